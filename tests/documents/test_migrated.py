"""`noetl migrate` changes how a playbook is written, not what it does.

Every valid example that it rewrites is run in its new form. Everything that the world sees must be
the same: how it ends, what it yields and writes, what it asks of the services; and for each step,
the calls with their outcomes, its end, and where it sends its tokens. Names of tasks may differ,
and what only tells how a decision was reached (rules, policies, retries).
"""

from __future__ import annotations

from typing import Any

import pytest

from noetl.dsl.migrate import migrate_text
from noetl.tools.registry import shapes
from tests.documents.test_runs import EXPECTED, RUNNABLE, account_of, make_tables
from tests.tools.conftest import postgres as postgres
from tests.tools.conftest import postgres_server as postgres_server

CALLS = ("task.done", "sink.processed")
ENDS = ("step.done", "step.failed", "step.skipped", "next.selected", "loop.iteration.")


def essence(account: dict[str, Any]) -> dict[str, Any]:
    """What must not change."""
    steps = {}
    for step, story in account["steps"].items():
        lines = [_essential(line) for line in story if line.startswith((*CALLS, *ENDS))]
        if lines:
            steps[step] = lines
    return {**account, "steps": steps}


def _essential(line: str) -> str:
    kind, *rest = line.split()
    return f"call {rest[-1]}" if kind in CALLS else line


def rewritten() -> list[tuple[str, str]]:
    """The examples that migrate changes, by name, in their new form."""
    found = [(verdict.path.stem, migrate_text(verdict.text, shapes())) for verdict in RUNNABLE]
    return [(name, migration.text) for name, migration in found if migration.changes]


@pytest.mark.parametrize(("name", "text"), rewritten(), ids=lambda value: value[:40])
def test_a_migrated_example_does_what_it_did(
    name: str, text: str, postgres: dict[str, Any]
) -> None:
    make_tables(postgres)

    found = account_of(name, text, postgres)

    assert essence(found) == essence(EXPECTED[name])


def test_migrate_has_examples_to_rewrite() -> None:
    assert len(rewritten()) > 50
