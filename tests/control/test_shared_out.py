"""Commands that are decided together go to everybody who waits, not all to whoever came first."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.control.servers import done, leased, run, servers, started

FORK = """\
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}, {step: d}]}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
  - {step: c, tool: {kind: noop}}
  - {step: d, tool: {kind: noop}}
"""


def test_four_commands_for_two_workers_are_two_for_each(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            await started(system, FORK)
            [first] = await leased(system, "w-0")
            waiting = [
                asyncio.create_task(leased(system, name, want=64, wait=60))
                for name in ("w-1", "w-2")
            ]
            while len(system.orchestrator.dispatch._waiting.get("default", ())) < len(waiting):
                await asyncio.sleep(0.01)

            await system.orchestrator.report(done(first, "w-0"))

            assert [len(await given) for given in waiting] == [2, 2]

    run(story)
