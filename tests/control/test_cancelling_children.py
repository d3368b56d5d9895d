"""Cancelling at the very moment at which children are started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noetl.model.execution_query import exactly
from noetl.store.catalog import CatalogEntry
from tests.control.servers import HEAD, run, servers, started, working

CHILD = HEAD.replace("tests/servers", "tests/child") + (
    "workflow: [{step: start, tool: {kind: noop}}]\n"
)
FAN = """\
workflow:
  - step: start
    loop:
      in: "{{ range(40) | list }}"
      iterator: n
      spec: {mode: parallel, max_in_flight: 40}
    tool: {kind: playbook, path: tests/child}
"""


def test_a_child_that_is_recorded_but_not_yet_stored_is_cancelled_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,), working(system, "w"):
            await system.catalog.register(CHILD)
            entry, begun, cancelling = system.store.catalog.entry, asyncio.Event(), asyncio.Event()

            async def cancelled_meanwhile(path: str, version: int | None) -> CatalogEntry | None:
                begun.set()  # The parent has decided to start children, and looks for their net.
                await cancelling.wait()
                return await entry(path, version)

            monkeypatch.setattr(system.store.catalog, "entry", cancelled_meanwhile)
            execution_id = await started(system, FAN)
            await begun.wait()
            cancel = asyncio.create_task(system.executions.cancel(execution_id))
            for _ in range(10):
                await asyncio.sleep(0)
            cancelling.set()
            count = await cancel

            rows = await system.store.records.summaries(exactly(parent=execution_id), limit=100)
            assert rows
            assert count == 1 + sum(row.status == "CANCELLED" for row in rows)
            assert {row.status for row in rows} <= {"CANCELLED", "COMPLETED"}

    run(story)
