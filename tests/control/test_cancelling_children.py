"""Cancelling at the very moment at which children are started."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from noetl.model.execution_query import exactly
from noetl.store.log import Write
from tests.control.servers import HEAD, run, servers, started, working

CHILD = HEAD.replace("tests/servers", "tests/child") + (
    "workflow: [{step: start, tool: {kind: noop}}]\n"
)
STARTED = b'"child.started"'
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
            commit = system.store.log.commit
            cancelling: asyncio.Future[asyncio.Task[int]] = asyncio.Future()

            async def cancelled_meanwhile(writes: Sequence[Write], **options: Any) -> list[str]:
                for write in writes:
                    if not cancelling.done() and any(STARTED in one.json for one in write.events):
                        cancel = system.executions.cancel(write.execution_id)
                        cancelling.set_result(asyncio.create_task(cancel))
                        await asyncio.sleep(0)
                return await commit(writes, **options)

            monkeypatch.setattr(system.store.log, "commit", cancelled_meanwhile)
            execution_id = await started(system, FAN)

            count = await (await cancelling)

            rows = await system.store.records.summaries(exactly(parent=execution_id), limit=100)
            assert count == 1 + sum(row.status == "CANCELLED" for row in rows)
            assert {row.status for row in rows} <= {"CANCELLED", "COMPLETED"}

    run(story)
