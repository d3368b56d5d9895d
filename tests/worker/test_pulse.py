"""What a command has to say is not kept back for long, and what is over is not asked again."""

from __future__ import annotations

import asyncio

from noetl.worker.reporter import BEAT_SECONDS, Pulse
from tests.stopwatch import PATIENCE


class Speaker:
    """Whoever has something to say; here, that it was allowed to."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.spoke = 0
        self.has_spoken = asyncio.Event()

    def flush_soon(self) -> None:
        self.pulse.remove(self)
        self.spoke += 1
        self.has_spoken.set()


def test_everybody_speaks_once_also_those_who_come_between_two_beats():
    async def story() -> None:
        pulse = Pulse()
        early, late, over = (Speaker(pulse) for _ in range(3))
        pulse.add(early)
        pulse.add(over)
        pulse.remove(over)
        await asyncio.sleep(BEAT_SECONDS / 2)
        pulse.add(late)

        async with asyncio.timeout(PATIENCE):
            await early.has_spoken.wait()
            assert late.spoke == 0, "what has just begun may be over at once"
            await late.has_spoken.wait()
            # And again, after a time in which nobody had anything to say.
            early.has_spoken.clear()
            pulse.add(early)
            await early.has_spoken.wait()

        assert (early.spoke, late.spoke, over.spoke) == (2, 1, 0)

    asyncio.run(story())
