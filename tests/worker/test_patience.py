"""What fails for a while is asked for again, by a task that is being stopped not for ever."""

from __future__ import annotations

import asyncio

import pytest

from noetl.errors import Corrupted, StoreError
from noetl.patience import STOPPED_SECONDS, persist
from noetl.trials.clock import VirtualLoop

AWAY = 3600.0


def test_who_asks_waits_until_it_works():
    async def story() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def ask() -> float:
            if loop.time() - begun < AWAY:
                raise StoreError("the database is away")
            return loop.time() - begun

        return await persist(ask)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(story()) >= AWAY


def test_a_task_that_is_stopped_does_not_clean_up_for_ever():
    """A `finally` hook that needs a credential, while its process ends and the database is away."""

    async def ask() -> None:
        raise StoreError("the database is away")

    async def work() -> None:
        try:
            await asyncio.sleep(AWAY)
        finally:
            await persist(ask)

    async def story() -> float:
        loop = asyncio.get_running_loop()
        working = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        working.cancel()
        begun = loop.time()
        with pytest.raises(StoreError):
            await working
        return loop.time() - begun

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert STOPPED_SECONDS <= runner.run(story()) < 2 * STOPPED_SECONDS


def test_what_is_damaged_is_not_asked_for_again():
    asked = []

    async def ask() -> None:
        asked.append(1)
        raise Corrupted("a checksum is wrong")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(Corrupted):
        runner.run(persist(ask))

    assert asked == [1]
