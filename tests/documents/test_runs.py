"""E2: every valid example of the documents runs, and does what `runs/` says it does.

`noetl migrate` changes how a playbook is written, not what it does: every example that it rewrites
is run in both forms. What the world sees must be the same: how it ends, what it yields and writes,
what it asks of the services. And so must its events, as far as `comparing.py` goes, which is all
the way but for what is listed there.

`python -m tests.documents.test_runs NAME…` prints the accounts of examples as they are now, to be
read before they are put into the file of their document under `runs/`.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pytest
import yaml

from noetl.rewrite.migrate import migrate_text
from noetl.tools.registry import tools
from tests.documents.comparing import OF_RULES, Course, course, with_arcs_for_rules
from tests.documents.conftest import made_database
from tests.documents.running import Drive, Life, lived, told, until_waiting
from tests.documents.services import Services
from tests.documents.verdicts import HERE, Verdict, all_verdicts
from tests.examples.system import Bench
from tests.servers import postgres_running

RUNNABLE = [verdict for verdict in all_verdicts() if verdict.valid]
TEXTS = {verdict.path.stem: verdict.text for verdict in RUNNABLE}
EXPECTED: dict[str, Any] = {
    name: told
    for path in sorted((HERE / "runs").glob("*.yaml"))
    for name, told in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader).items()
}


async def _send_a_message(bench: Bench, execution_id: str) -> None:
    await until_waiting(bench, execution_id)
    await bench.system.executions.signal(execution_id, "message.received", {"type": "approval"})


DRIVEN: dict[str, Drive] = {"001_7_step_spec_defer_http": _send_a_message}
"""Examples that end only when the world does something."""
OF_ITS_OWN_TIME = {
    "001_7_step_spec_exclusive_postgres": "step_name",
    "003_11_quantum": "poll_qpu_job",
}
"""Steps whose course is not said: how far parallel iterations get before a rule ends the loop, and
how often a job is asked about. Only their end is told."""
LAST_OF_TWO = frozenset({"000_patch_next_static_args", "003_7_2_next_list_with_args"})
"""Two branches end the execution; its result is that of the one that happens to be the last."""


_LIVES: dict[str, Life] = {}


def life_of(name: str, text: str, postgres: dict[str, Any]) -> Life:
    """The example's run as it is written, the same one for all tests that look at it."""
    if name not in _LIVES:
        _LIVES[name] = lived(text, postgres, DRIVEN.get(name))
    return _LIVES[name]


def account_of(name: str, text: str, postgres: dict[str, Any]) -> Any:
    """What this text does when it runs, told as the example of that name is."""
    found = told(life_of(name, text, postgres))
    if name in LAST_OF_TWO:
        del found["result"]
    if (timed := OF_ITS_OWN_TIME.get(name)) is not None:
        steps = {step: told for step, told in found["steps"].items() if f"{timed}[" not in step}
        found["steps"] = {**steps, timed: steps[timed][-2:]}
        found.pop("asked", None)
    return found


@pytest.mark.parametrize("verdict", RUNNABLE, ids=lambda verdict: verdict.path.stem)
def test_e2_the_example_runs_as_the_document_says(
    verdict: Verdict, postgres: dict[str, Any]
) -> None:
    found = account_of(verdict.path.stem, verdict.text, postgres)

    assert found == EXPECTED[verdict.path.stem]


def test_every_account_belongs_to_an_example() -> None:
    assert EXPECTED.keys() == {verdict.path.stem for verdict in RUNNABLE}


def test_the_services_answer_as_the_page_says() -> None:
    services = Services()

    assert [services.answer("GET", "/flaky", None)[0] for _ in range(3)] == [503, 503, 200]
    assert services.answer("GET", "/items?page=3", None)[1]["paging"]["hasMore"] is False


# --- Migrated ------------------------------------------------------------------------------------


@cache
def rewritten(name: str) -> str | None:
    """The example in its new form, if it has another."""
    migration = migrate_text(TEXTS[name], tools())
    return migration.text if migration.changes else None


def of_any_time(name: str, found: Course) -> Course:
    """The course without what depends on how fast the machine is."""
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


def _print_accounts(names: list[str]) -> None:
    with postgres_running() as server:
        fields = made_database(server)
        for verdict in RUNNABLE:
            if names and verdict.path.stem not in names:
                continue
            try:
                found = account_of(verdict.path.stem, verdict.text, fields)
            except Exception as error:  # noqa: BLE001  told beside the others
                found = {"broken": f"{type(error).__name__}: {error}"}
            told = yaml.safe_dump({verdict.path.stem: found}, sort_keys=False, width=100)
            print(told, flush=True)


if __name__ == "__main__":
    _print_accounts(sys.argv[1:])
