"""Deciding for many does not keep everybody else in the process waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path

from noetl.control.live import Live
from noetl.control.rounds import BATCH_MAX, DECIDED_AT_A_TIME
from noetl.engine.turn import Decision
from tests.control.servers import run, servers, started

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


def test_others_have_turns_while_a_large_batch_is_decided(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            turns, decided_in = 0, []

            async def others() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            def decide(live: Live, now: float) -> Decision:
                decided_in.append(turns)
                return Decision((), ())

            busy = asyncio.create_task(others())
            happening = [system.orchestrator.happen(execution_id, decide) for _ in range(BATCH_MAX)]
            await asyncio.gather(*happening)
            busy.cancel()

            most = max(decided_in.count(turn) for turn in decided_in)
            assert len(decided_in) == BATCH_MAX
            assert most <= DECIDED_AT_A_TIME

    run(story)
