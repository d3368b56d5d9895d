"""Deciding for many does not keep everybody else in the process waiting."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

from noetl.control.commit_loop import BATCH_MAX, DECIDED_AT_A_TIME
from tests.control.servers import run, servers, started

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


def test_others_have_turns_while_a_large_batch_is_decided(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            orchestrator = system.orchestrator
            seen = [(await orchestrator.last_known(execution_id)).seq]

            async def others() -> None:
                while True:
                    # In memory, so this takes one turn.
                    seen.append((await orchestrator.last_known(execution_id)).seq)
                    await asyncio.sleep(0)

            busy = asyncio.create_task(others())
            changes = [orchestrator.change_vars(execution_id, {"x": n}) for n in range(BATCH_MAX)]
            await asyncio.gather(*changes)
            busy.cancel()

            decided = [after - before for before, after in pairwise(seen)]
            assert sum(decided) == BATCH_MAX
            assert max(decided) <= DECIDED_AT_A_TIME

    run(story)
