"""Whoever waits for ever in the background ends when told to, whatever happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from noetl import wiring
from noetl.control.timekeeping import fire_timers
from noetl.settings import Settings

TURNS = range(6)
"""How many turns of the event loop lie between what is waited for and the word to end."""


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ends(task: asyncio.Task[object]) -> bool:
    """Whether a cancelled task ends."""
    task.cancel()
    await asyncio.wait([task], timeout=5)
    has_ended = task.done()
    task.cancel()
    return has_ended


def run(story: Callable[[wiring.System], Awaitable[None]], folder: Path) -> None:
    settings = Settings.from_environment({"NOETL_DATABASE_URL": f"sqlite:///{folder}/noetl.db"})

    async def whole() -> None:
        async with wiring.embedded(settings) as system:
            await story(system)

    asyncio.run(whole())


@pytest.mark.parametrize("count", TURNS)
def test_timers_change_just_when_their_keeper_is_told_to_end(tmp_path: Path, count: int):
    async def story(system: wiring.System) -> None:
        orchestrator = system.orchestrator
        keeper = asyncio.create_task(fire_timers(orchestrator, system.store, system.clock))
        await asyncio.sleep(0.05)  # It waits for a timer by then; if not, that is fine, too.
        orchestrator.timer_changed.set()
        await turns(count)

        assert await ends(keeper)

    run(story, tmp_path)


@pytest.mark.parametrize("count", TURNS)
def test_work_comes_just_when_its_worker_goes(tmp_path: Path, count: int):
    async def story(system: wiring.System) -> None:
        asked = system.orchestrator.lease("w", pool="elsewhere", want=1, wait=60)
        asking = asyncio.create_task(asked)
        await asyncio.sleep(0.05)
        system.orchestrator.dispatch.wake("elsewhere")
        await turns(count)

        assert await ends(asking)

    run(story, tmp_path)
