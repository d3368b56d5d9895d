"""Who has a turn between and within batches: deciding for many keeps nobody else waiting, and those
who were just answered share the next flush with those who came meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

from noetl.control.commit_loop import BATCH_MAX, DECIDED_AT_A_TIME
from noetl.model.inputs import VarsChanged
from noetl.store.log import Write
from tests.control.servers import run, servers, started

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


def test_others_have_turns_while_a_large_batch_is_decided(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            orchestrator = system.orchestrator
            memory = orchestrator.memory
            seen = [(await memory.get(execution_id)).state.seq]

            async def others() -> None:
                while True:
                    seen.append((await memory.get(execution_id)).state.seq)
                    await asyncio.sleep(0)

            busy = asyncio.create_task(others())
            changes = [orchestrator.change_vars(execution_id, {"x": n}) for n in range(BATCH_MAX)]
            await asyncio.gather(*changes)
            busy.cancel()

            decided = [after - before for before, after in pairwise(seen)]
            assert sum(decided) == BATCH_MAX
            assert max(decided) <= DECIDED_AT_A_TIME

    run(story)


def test_who_was_just_answered_shares_the_next_commit_with_who_came_meanwhile(tmp_path: Path):
    """Otherwise two groups of workers that once fell apart alternate for ever, and every flush
    serves one of them."""

    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            mine, other = [await started(system, ONE_STEP) for _ in range(2)]
            orchestrator, commits = system.orchestrator, system.orchestrator.commits
            stored: list[set[str]] = []

            def noted(writes: list[Write]) -> None:
                if not stored:  # comes while the first is being stored
                    orchestrator.inbox.post(
                        VarsChanged(execution_id=other, at=1.0, values={"x": 1})
                    )
                stored.append({write.execution_id for write in writes})

            commits.on_stored = noted
            for n in range(2):
                await orchestrator.change_vars(mine, {"x": n})

            assert stored == [{mine}, {mine, other}]

    run(story)
