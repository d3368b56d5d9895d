"""The row of an execution says at which step it waits, and for what."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest

from noetl import wiring
from noetl.api.services import Services
from noetl.control import documents
from noetl.control.integrity import problems
from noetl.settings import Settings
from noetl.store.records import Summary

TIRED = """
  - step: tired
    tool:
      kind: noop
      result: "{{ 1 / 0 }}"
      spec: {policy: {rules: [{when: "{{ outcome.error }}", then: {do: retry, delay: 600s}}]}}
"""
UNSURE = """
  - step: unsure
    spec: {eval_mode: on_event, form: [{name: sure, type: boolean}]}
    case: [{when: "{{ event.name == 'approval.received' }}", then: {next: [{step: end}]}}]
  - {step: end, tool: {kind: noop}}
"""
BOTH = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: both, path: tests/both}
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: busy}, {step: WAITS}]}
  - step: busy
    tool: {kind: python, code: "import time; time.sleep(600)"}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/noetl.db"
    return str(request.getfixturevalue("database_url"))


@asynccontextmanager
async def waiting(url: str, name: str, step: str) -> AsyncIterator[tuple[Services, Summary]]:
    """A system with an execution of which one step is at work, and this one waits."""
    settings = Settings.from_environment({"NOETL_DATABASE_URL": url})
    async with wiring.embedded(settings) as system:
        await system.catalog.register(BOTH.replace("WAITS", name) + step.lstrip("\n"))
        entry = await system.store.catalog.entry("tests/both")
        assert entry is not None
        execution_id = await system.executions.start(entry.digest, entry.path, entry.version, {})
        while True:
            row = await system.store.records.summary(execution_id)
            if row is not None and row.waits and len(row.current_steps) == 2:
                break
            await asyncio.sleep(0.01)
        yield system, row
        await system.executions.cancel(execution_id)
        await system.orchestrator.wait_for_end(execution_id)


@pytest.mark.parametrize(
    ("name", "step", "waits"), [("tired", TIRED, "timer"), ("unsure", UNSURE, "form")]
)
def test_a_wait_is_told_of_the_step_that_waits(tmp_path: Path, name: str, step: str, waits: str):
    """Lists said it of the first by name, which was at work."""

    async def work() -> None:
        async with waiting(f"sqlite:///{tmp_path}/noetl.db", name, step) as (_, row):
            shown = documents.summary(row)

            assert (shown.step, shown.waits) == (name, waits)
            assert shown.current_steps == [name, "busy"]

    asyncio.run(work())


def test_what_an_earlier_version_wrote_of_a_step_that_backs_off_is_no_damage(url: str):
    """Its row said that nothing waits, and named the steps in their order."""

    async def work() -> None:
        async with waiting(url, "tired", TIRED) as (system, row):
            change = "UPDATE %s SET waits = '%s', current_steps = '[\"busy\", \"tired\"]'"
            assert await problems(system.store) == []
            run_sql(url, change % ("EXECUTION", ""))
            assert await problems(system.store) == []
            run_sql(url, change % ("EXECUTION", "form"))
            assert await problems(system.store) == [
                f"Of execution {row.execution_id}, the column waits says 'form' and the log 'timer'"
            ]

    asyncio.run(work())


def run_sql(url: str, statement: str) -> None:
    """Change something behind everybody's back, in the table of executions (EXECUTION)."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            assert file.execute(statement.replace("EXECUTION", "noetl_execution")).rowcount
        return
    with psycopg.connect(url) as database:
        assert database.execute(statement.replace("EXECUTION", "noetl.execution")).rowcount
