"""Who is given work: everybody who waits in turn, and at once, whenever it was that it came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

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


def test_what_is_opened_while_a_worker_looks_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            claim = system.store.claim

            async def opened_just_behind(*words, **options):
                found = await claim(*words, **options)
                if not found:
                    await started(system, FORK)
                return found

            monkeypatch.setattr(system.store, "claim", opened_just_behind)

            async with asyncio.timeout(30):
                [_] = await leased(system, "w", wait=60)

    run(story)
