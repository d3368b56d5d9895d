"""An execution on a terminal, as it happens: steps, loop bars, tries, time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from noetl.cli.lines import clock_time, how_to_tell, length, listened_for
from noetl.cli.printing import one_line

if TYPE_CHECKING:
    from noetl.cli.source_lines import Locator
    from noetl.model.state import ExecutionState, Run, StepSummary

FRAMES_PER_SECOND = 10
LINES_KEPT_FREE = 4
"""Of the window, for the heading and what stands around it."""
STEPS_AT_END = 200
DEPTH_MAX = 3
BAR_WIDTH = 24
REMARK_MAX = 100
MARKS = {
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "cancelled": ("■", "yellow"),
}
COLOURS = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "PAUSED": "yellow"}

StateOf = Callable[[str], Awaitable["ExecutionState"]]


class News(NamedTuple):
    """What the state of an execution does not tell: tries of its steps, and lines of its tasks."""

    retries: dict[str, str]
    printed: list[str]


NewsAfter = Callable[[str, int, int], Awaitable[News]]
"""The news of an execution, after one event and up to another."""


async def show_live(
    execution_id: str,
    state_of: StateOf,
    news: NewsAfter,
    locator: Locator,
    ended: Awaitable[object],
    console: Console,
) -> None:
    """Draw the execution until `ended` comes back."""
    view = _View(execution_id, state_of, news, locator, console)
    over = asyncio.ensure_future(ended)
    with Live(
        await view.frame(), console=console, refresh_per_second=FRAMES_PER_SECOND, transient=False
    ) as live:
        while not over.done():
            await asyncio.wait([over], timeout=1 / FRAMES_PER_SECOND)
            live.update(await view.frame())
        live.update(await view.frame(whole=True))
    await over


class _View:
    """Draws one execution; spinners keep turning between frames."""

    def __init__(
        self,
        execution_id: str,
        state_of: StateOf,
        news: NewsAfter,
        locator: Locator,
        console: Console,
    ) -> None:
        self._execution_id = execution_id
        self._state_of = state_of
        self._news_after = news
        self._locator = locator
        self._console = console
        self._spinner = Spinner("dots", style="cyan")
        self._seen: dict[str, int] = {}
        self._retries: dict[str, dict[str, str]] = {}

    async def frame(self, *, whole: bool = False) -> RenderableType:
        state = await self._state_of(self._execution_id)
        rows = await self._rows(self._execution_id, state, 0)
        room = STEPS_AT_END if whole else max(3, self._console.height - LINES_KEPT_FREE)
        table = Table.grid(padding=(0, 1))
        for _ in range(5):
            table.add_column(overflow="ellipsis", no_wrap=True)
        if len(rows) > room:
            table.add_row("", Text(f"… {len(rows) - room} earlier steps", style="dim"))
        for row in rows[-room:]:
            table.add_row(*row)
        return Group(self._head(state), table, *self._hint(state))

    def _head(self, state: ExecutionState) -> Text:
        head = Text(f"{state.path}  ", style="bold", overflow="ellipsis", no_wrap=True)
        head.append(state.status.lower(), style=COLOURS.get(state.status, "cyan"))
        if state.started_at is not None:
            head.append(f"  {length((state.ended_at or time.time()) - state.started_at)}")
        head.append(f"  {self._execution_id}", style="dim")
        if state.status == "PAUSED":
            head.append("  `noetl executions resume` lets it go on", style="dim")
        return head

    def _hint(self, state: ExecutionState) -> list[Text]:
        """How to tell a waiting step what it waits for."""
        listening = [run.listens for run in state.runs.values() if run.listens is not None]
        hints = {how_to_tell(listens, self._execution_id) for listens in listening}
        return [Text(hint, style="dim") for hint in sorted(hints) if hint]

    async def _rows(
        self, execution_id: str, state: ExecutionState, depth: int
    ) -> list[tuple[RenderableType, ...]]:
        after = self._seen.get(execution_id, 0)
        self._seen[execution_id] = state.seq
        if state.seq > after:
            news = await self._news_after(execution_id, after, state.seq)
            self._retries.setdefault(execution_id, {}).update(news.retries)
            for line in news.printed:
                # Above the view, where it stays.
                self._console.print(Text(line), soft_wrap=True)
        running = {run.step: run for run in state.runs.values()}
        rows = []
        for name, summary in list(state.steps.items()):
            retry = self._retries.get(execution_id, {}).get(name, "")
            run = running.get(name)
            wait = _wait(run, state) if run is not None and run.waiting else ""
            error = ""
            if summary.error is not None:
                error = await self._locator.message(execution_id, name, summary.error)
            rows.append(self._row(name, summary, wait, retry, error, depth))
            for child in list(run.children)[:3] if run is not None and depth < DEPTH_MAX else ():
                rows += await self._rows(child, await self._state_of(child), depth + 1)
        return rows

    def _row(
        self,
        name: str,
        summary: StepSummary,
        wait: str,
        retry: str,
        error: str,
        depth: int,
    ) -> tuple[RenderableType, ...]:
        is_running = summary.status == "running"
        mark: RenderableType = self._spinner
        if not is_running:
            mark = Text(*MARKS[summary.status])
        elif wait:
            mark = Text("◷", style="cyan")
        remark = _remark(summary, wait, retry if is_running else "", error)
        return (
            mark,
            Text("  " * depth + name),
            _bar(summary) if summary.loop_total is not None else Text(""),
            Text(_time_of(summary), style="dim"),
            Text(remark, style="red" if summary.error else "yellow" if retry else "dim"),
        )


def _bar(summary: StepSummary) -> RenderableType:
    total = summary.loop_total or 0
    ended = summary.loop_success + summary.loop_failed
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        ProgressBar(total=max(total, 1), completed=ended if total else 1, width=BAR_WIDTH),
        Text(f"{ended}/{total}", style="dim"),
    )
    return grid


def _time_of(summary: StepSummary) -> str:
    if summary.started_at is None:
        return ""
    if summary.status == "running":
        return length(time.time() - summary.started_at)
    return length((summary.ended_at or summary.started_at) - summary.started_at)


def _remark(summary: StepSummary, wait: str, retry: str, error: str) -> str:
    if error:
        return one_line(error)[:REMARK_MAX]
    parts = []
    own = summary.runs - summary.undoes
    if own > 1:
        parts.append(f"run {own}")
    if summary.undone:
        parts.append("undone")
    elif summary.undoes:
        parts.append("undoes other steps" if not own else "is being undone")
    if summary.loop_failed:
        parts.append(f"{summary.loop_failed} failed")
    parts.append(wait or retry)
    return ", ".join(part for part in parts if part)[:REMARK_MAX]


def _wait(run: Run, state: ExecutionState) -> str:
    if run.children:
        return "waits for a sub-playbook"
    if run.listens is not None:
        return f"waits for {listened_for(run.listens)}"
    moments = [state.timers[timer].fires_at for timer in run.timers if timer in state.timers]
    return f"waits until {clock_time(min(moments))}" if moments else "waits"
