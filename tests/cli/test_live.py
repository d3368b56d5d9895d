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

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.looks = 0

    async def document(self, execution_id: str) -> dict:
        self.looks += 1
        is_done = self.ended.done()
        if self.looks == 2:
            self.ended.set_result(None)
        step = {"step": "start", "status": "done" if is_done else "running", "error": None}
        return {
            "execution_id": execution_id,
            "path": "tests/live",
            "status": "COMPLETED" if is_done else "RUNNING",
            "start_time": TIMES["started_at"],
            "end_time": TIMES["ended_at"] if is_done else None,
            "steps": [{**step, **TIMES, "runs": 1}],
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


def test_the_last_frame_shows_how_it_ended():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)

    async def shown() -> str:
        api = Ending()
        await show_live(api, "1", None, api.ended, console)
        return console.file.getvalue().rpartition("tests/live")[2]

    last = asyncio.run(shown())

    assert "completed" in last
    assert "✓" in last
