"""`noetl migrate` changes how a playbook is written, not what it does.

Every valid example that it rewrites is run in both forms. What the world sees must be the same: how
it ends, what it yields and writes, what it asks of the services. And so must its events, as far as
`comparing.py` goes, which is all the way but for what is listed there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from noetl.rewrite.migrate import migrate_text
from noetl.tools.registry import shapes
from tests.documents.comparing import OF_RULES, Course, course, with_arcs_for_rules
from tests.documents.running import Life, lived, told
from tests.documents.test_runs import (
    DRIVEN,
    LAST_OF_TWO,
    OF_ITS_OWN_TIME,
    RUNNABLE,
    life_of,
)

TEXTS = {verdict.path.stem: verdict.text for verdict in RUNNABLE}


@cache
def rewritten(name: str) -> str | None:
    """The example in its new form, if it has another."""
    migration = migrate_text(TEXTS[name], shapes())
    return migration.text if migration.changes else None


def of_any_time(name: str, found: Course) -> Course:
    """The course without what depends on how fast the machine is (`test_runs` says where)."""
    if name in LAST_OF_TWO:
        for fact in found["the execution"]:
            fact.pop("result", None)
    timed = OF_ITS_OWN_TIME.get(name)
    if timed is None:
        return found
    ends = [{"type": fact["type"]} for fact in found[timed][-2:]]
    rest = {place: facts for place, facts in found.items() if f"{timed}[" not in place}
    return {**rest, timed: ends}


def seen(name: str, life: Life) -> Any:
    """What the world sees of a run."""
    found = told(life)
    del found["steps"]
    if name in LAST_OF_TWO:
        del found["result"]
    if name in OF_ITS_OWN_TIME:
        found.pop("asked", None)
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_a_migrated_example_does_what_it_did(name: str, postgres: dict[str, Any]) -> None:
    text = rewritten(name)
    if text is None:
        return
    lives = [
        life_of(name, TEXTS[name], postgres),
        lived(text, postgres, DRIVEN.get(name)),
    ]
    old, new = (of_any_time(name, course(life.run.events, life.url)) for life in lives)

    assert seen(name, lives[1]) == seen(name, lives[0])
    assert new == with_arcs_for_rules(old, new)


def test_rules_that_stay_rules_must_be_recorded_as_before() -> None:
    rules = [{"type": "case.evaluated"}, {"type": "step.done"}]

    assert with_arcs_for_rules({"a": rules, "a[0]": rules}, {"a[0]": rules}) == {
        "a": rules,
        "a[0]": rules,
    }
    assert with_arcs_for_rules({"a": rules}, {"a": []}) == {"a": [{"type": "step.done"}]}


def test_migrate_has_examples_to_rewrite_and_rules_to_make_arcs_of() -> None:
    found = {name: text for name in TEXTS if (text := rewritten(name)) is not None}
    became_arcs = [
        name for name, text in found.items() if "case:" in TEXTS[name] and "case:" not in text
    ]

    assert len(found) > 50
    assert len(became_arcs) > 5
    assert OF_RULES
