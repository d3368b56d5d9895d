"""The view of an execution on a terminal."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator

from rich.console import Console

from noetl.api.routes.executions import EVENTS, LOGS
from noetl.cli.views.live import show_live
from noetl.model.answers import EventPage, Logs

TIMES = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}


class Ending:
    """An execution that ends while the second look at it is under way."""

    def __init__(self, step: str = "start") -> None:
        self.step = step
        self.ended = asyncio.get_running_loop().create_future()
        self.looks = 0

    async def document(self, execution_id: str) -> dict:
        self.looks += 1
        is_done = self.ended.done()
        if self.looks == 2:
            self.ended.set_result(None)
        step = {"step": self.step, "status": "done" if is_done else "running", "error": None}
        return {
            "execution_id": execution_id,
            "path": "tests/live",
            "status": "COMPLETED" if is_done else "RUNNING",
            "start_time": TIMES["started_at"],
            "end_time": TIMES["ended_at"] if is_done else None,
            "steps": [{**step, **TIMES, "runs": 1, "loop": {"total": 40, "done": 40, "failed": 0}}],
        }

    async def why(self, execution_id: str) -> list:
        return []

    async def pages(self, route, query, execution_id: str) -> AsyncIterator[EventPage | Logs]:
        if route is EVENTS:
            yield EventPage(events=[], next_after=0, more=False)
        else:
            assert route is LOGS
            yield Logs(
                execution_id=execution_id, status="RUNNING", entries=[], next_after=0, more=False
            )


def last_frame(step: str, width: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)

    async def shown() -> str:
        api = Ending(step)
        await show_live(api, "1", None, api.ended, console)
        return console.file.getvalue().rpartition("tests/live")[2]

    return asyncio.run(shown())


def test_the_last_frame_shows_how_it_ended():
    last = last_frame("start", 80)

    assert "completed" in last
    assert "✓" in last


def test_in_a_narrow_window_names_are_cut_and_marks_counts_and_times_stay():
    [row] = [line for line in last_frame("a" * 80, 60).splitlines() if "aaa" in line]

    assert row.startswith("✓ aaa")
    assert "…" in row
    assert row.rstrip().endswith("40/40 1.00 s")
