"""Shows an execution on a terminal as it happens: steps, loop bars, attempts, time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from noetl.cli.calls import PAGE
from noetl.cli.output import one_line
from noetl.cli.views.lines import (
    clock_time,
    how_to_tell,
    length,
    pause,
    printed_lines,
    step_time,
)
from noetl.control.documents import event_words
from noetl.model.duration import timestamp
from noetl.model.outcome import TaskError

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.cli.views.source_lines import Locator
    from noetl.model.answers import WaitDocument

FRAMES_PER_SECOND = 10
LOOK_SECONDS = 0.25
"""The maximum age of the displayed state."""
LINES_KEPT_FREE = 4
"""Lines of the window kept free for the heading and its surroundings."""
STEPS_AT_END = 200
DEPTH_MAX = 3
BAR_WIDTH = 24
REMARK_MAX = 100
CHILDREN_SHOWN = 3
LINES_AT_ONCE = 500
MARKS = {
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "cancelled": ("■", "yellow"),
}
COLOURS = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "PAUSED": "yellow"}


class Seen(NamedTuple):
    """An execution as of a moment ago."""

    document: dict[str, Any]
    waits: list[WaitDocument]
    children: dict[str, list[Seen]]
    """Executions that its running steps called and wait for."""


async def show_live(
    api: Api, execution_id: str, locator: Locator, ended: Awaitable[object], console: Console
) -> None:
    """Draw the execution until `ended` returns."""
    view = _View(api, execution_id, locator, console)
    over = asyncio.ensure_future(ended)
    await view.look()
    with Live(
        await view.frame(), console=console, refresh_per_second=FRAMES_PER_SECOND, transient=False
    ) as live:
        is_over = False
        while not is_over:
            await asyncio.wait([over], timeout=LOOK_SECONDS)
            # Asked before looking: what ends during the look is seen by the next one.
            is_over = over.done()
            await view.look()
            live.update(await view.frame(whole=is_over))
    await over


class _View:
    """Draws one execution; spinners keep turning between frames."""

    def __init__(self, api: Api, execution_id: str, locator: Locator, console: Console) -> None:
        self._api = api
        self._execution_id = execution_id
        self._locator = locator
        self._console = console
        self._spinner = Spinner("dots", style="cyan")
        self._retries: dict[str, dict[str, str]] = {}
        self._heard: dict[str, tuple[int, int]] = {}
        """The last events seen, for retries and for output, by execution."""

    async def look(self) -> None:
        """Read its current state."""
        self._seen = await self._look(self._execution_id, 0)

    async def _look(self, execution_id: str, depth: int) -> Seen:
        document = await self._api.document(execution_id)
        waits = await self._api.why(execution_id)
        await self._hear(execution_id)
        children: dict[str, list[Seen]] = {}
        for one in waits if depth < DEPTH_MAX else ():
            if one.waits_for == "child" and one.step and one.owner:
                below = children.setdefault(one.step, [])
                if len(below) < CHILDREN_SHOWN:
                    below.append(await self._look(one.owner, depth + 1))
        return Seen(document, waits, children)

    async def _hear(self, execution_id: str) -> None:
        """Print retries and output of tasks above the view, where they remain."""
        from noetl.api.routes.executions import EVENTS, LOGS, WhichEvents, WhichLogs

        tried, printed = self._heard.get(execution_id, (0, 0))
        retries = WhichEvents(after=tried, limit=PAGE, type=("retry.started",))
        async for page in self._api.pages(EVENTS, retries, execution_id=execution_id):
            for event in page.events:
                delay = event.payload.get("delay")
                wait = f", after {pause(delay)}" if delay else ""
                tries = self._retries.setdefault(execution_id, {})
                is_page = event.attempt == 1  # not a repetition, but the call after this one
                what = f"page {event.payload['page'] + 1}" if is_page else f"try {event.attempt}"
                text = f"{what} of {event.payload['task']}{wait}"
                tries[event.step or ""] = text
            tried = page.next_after
        output = WhichLogs(after=printed, limit=LINES_AT_ONCE)
        async for logs in self._api.pages(LOGS, output, execution_id=execution_id):
            for entry in logs.entries:
                for line in printed_lines(entry):
                    self._console.print(Text(line), soft_wrap=True)
            printed = logs.next_after
        self._heard[execution_id] = (tried, printed)

    async def frame(self, *, whole: bool = False) -> RenderableType:
        seen = self._seen
        rows = await self._rows(seen, 0)
        room = STEPS_AT_END if whole else max(3, self._console.height - LINES_KEPT_FREE)
        table = Table.grid(padding=(0, 1))
        for is_text in (False, True, False, False, True):
            # Only columns that may wrap give way where the window is narrow: names and remarks,
            # which are cut instead. Marks, bars and times stay whole.
            table.add_column(no_wrap=not is_text)
        if len(rows) > room:
            table.add_row("", _cut_to_fit(f"… {len(rows) - room} earlier steps", "dim"))
        for row in rows[-room:]:
            table.add_row(*row)
        return Group(self._head(seen.document), table, *self._hint(seen.waits))

    def _head(self, document: dict[str, Any]) -> Text:
        head = Text(f"{document['path']}  ", style="bold", overflow="ellipsis", no_wrap=True)
        status = document["status"]
        head.append(status.lower(), style=COLOURS.get(status, "cyan"))
        begun = timestamp(document["start_time"] or "")
        if begun is not None:
            head.append(
                f"  {length((timestamp(document['end_time'] or '') or time.time()) - begun)}"
            )
        head.append(f"  {self._execution_id}", style="dim")
        if status == "PAUSED":
            head.append("  `noetl executions resume` continues it", style="dim")
        return head

    def _hint(self, waits: list[WaitDocument]) -> list[Text]:
        """The command that sends a waiting step what it waits for."""
        listening = [one for one in waits if one.waits_for == "event"]
        hints = {
            how_to_tell(one.events or (), bool(one.form), self._execution_id) for one in listening
        }
        return [Text(hint, style="dim") for hint in sorted(hints) if hint]

    async def _rows(self, seen: Seen, depth: int) -> list[tuple[RenderableType, ...]]:
        rows: list[tuple[RenderableType, ...]] = []
        execution_id = seen.document["execution_id"]
        for step in seen.document["steps"]:
            name, error = step["step"], ""
            retry = self._retries.get(execution_id, {}).get(name, "")
            is_running = step["status"] == "running"
            wait = _wait([one for one in seen.waits if one.step == name]) if is_running else ""
            if step["error"] is not None:
                failure = msgspec.convert(step["error"], TaskError)
                error = await self._locator.message(execution_id, name, failure)
            rows.append(self._row(step, wait, retry, error, depth))
            for child in seen.children.get(name, ()):
                rows += await self._rows(child, depth + 1)
        return rows

    def _row(
        self, step: dict[str, Any], wait: str, retry: str, error: str, depth: int
    ) -> tuple[RenderableType, ...]:
        is_running = step["status"] == "running"
        mark: RenderableType = self._spinner
        if not is_running:
            mark = Text(*MARKS[step["status"]])
        elif wait:
            mark = Text("◷", style="cyan")
        remark = _remark(step, wait, retry if is_running else "", error)
        return (
            mark,
            _cut_to_fit("  " * depth + step["step"]),
            _bar(step["loop"]) if "loop" in step else Text(""),
            Text(step_time(step), style="dim"),
            _cut_to_fit(remark, "red" if step["error"] else "yellow" if retry else "dim"),
        )


def _cut_to_fit(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _bar(loop: dict[str, Any]) -> RenderableType:
    total, ended = loop["total"], loop["done"] + loop["failed"]
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        ProgressBar(total=max(total, 1), completed=ended if total else 1, width=BAR_WIDTH),
        Text(f"{ended}/{total}", style="dim"),
    )
    return grid


def _remark(step: dict[str, Any], wait: str, retry: str, error: str) -> str:
    if error:
        return one_line(error)[:REMARK_MAX]
    parts = []
    own = step["runs"] - step.get("undoes", 0)
    if own > 1:
        parts.append(f"run {own}")
    if step.get("undone"):
        parts.append("undone")
    elif step.get("undoes"):
        parts.append("undoes other steps" if not own else "is being undone")
    if failed := step.get("loop", {}).get("failed"):
        parts.append(f"{failed} failed")
    parts.append(wait or retry)
    return ", ".join(part for part in parts if part)[:REMARK_MAX]


def _wait(waits: list[WaitDocument]) -> str:
    """What a running step waits for; empty while a worker has it."""
    kinds = {one.waits_for: one for one in waits}
    if "child" in kinds:
        return "waits for a sub-playbook"
    if "event" in kinds:
        return f"waits for {event_words(kinds['event'].events or ())}"
    if kinds.keys() != {"timer"}:
        return ""
    return f"waits until {clock_time(min(timestamp(one.until or '') or 0.0 for one in waits))}"
