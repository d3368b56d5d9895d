"""Time that jumps: exactly as far as somebody waits, and never while real work is under way."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from noetl.trials.clock import START, VirtualClock, VirtualLoop

T = TypeVar("T")
CENTURY = 3_155_760_000.0


def in_virtual_time(story: Callable[[VirtualLoop], Awaitable[T]]) -> T:
    async def whole() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return await story(loop)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(whole())


def test_who_sleeps_wakes_up_at_the_right_moment_and_in_the_right_order():
    woken: list[tuple[str, float]] = []

    async def story(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop.virtual)

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append((name, round(clock.now() - START, 3)))

        await asyncio.gather(sleeper("century", CENTURY), sleeper("hour", 3600.0))

    in_virtual_time(story)
    assert woken == [("hour", 3600.0), ("century", CENTURY)]


def test_a_timeout_strikes_what_takes_longer():
    async def story(_: VirtualLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(61)
        async with asyncio.timeout(60):
            await asyncio.sleep(59)

    in_virtual_time(story)


def test_real_work_is_waited_for_and_takes_no_time():
    code = "import time; time.sleep(0.2); print('done')"

    async def story(loop: VirtualLoop) -> tuple[bytes, float]:
        clock = VirtualClock(loop.virtual)
        alarm = asyncio.create_task(clock.sleep(0.01))
        with clock.real_work():
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, stdout=subprocess.PIPE
            )
            said, _ = await child.communicate()
            assert not alarm.done()
        elapsed = clock.elapsed
        await alarm
        return said.strip(), elapsed

    assert in_virtual_time(story) == (b"done", 0.0)


def test_when_nothing_can_happen_any_more_that_is_told():
    async def story(loop: VirtualLoop) -> str:
        told: asyncio.Future[str] = loop.create_future()
        loop.virtual.on_rest = lambda: told.set_result("at rest")
        never = asyncio.create_task(asyncio.sleep(math.inf))
        answer = await told
        never.cancel()
        return answer

    assert in_virtual_time(story) == "at rest"


def test_what_goes_round_for_ever_is_told_after_a_while_of_real_time():
    async def story(loop: VirtualLoop) -> str:
        told: asyncio.Future[str] = loop.create_future()

        async def for_ever() -> None:
            while True:
                await asyncio.sleep(60)

        circle = asyncio.create_task(for_ever())
        loop.virtual.on_deadline = lambda: told.set_result("still going")
        loop.virtual.deadline = time.monotonic() + 0.05
        answer = await told
        circle.cancel()
        return answer

    assert in_virtual_time(story) == "still going"
