"""An execution on a terminal, as it happens: steps, loop bars, tries, time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from noetl.cli.printing import one_line

if TYPE_CHECKING:
    from noetl.model.state import ExecutionState, StepSummary
    from noetl.wiring import System

FRAMES_PER_SECOND = 10
STEPS_SHOWN = 40
BAR_WIDTH = 24
MARKS = {
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "cancelled": ("■", "yellow"),
}


async def show_live(system: System, execution_id: str) -> dict[str, Any]:
    """Draw the execution until it has ended; its document."""
    console = Console(stderr=True)
    view = _View(system, execution_id)
    ended = asyncio.create_task(system.orchestrator.wait_for_end(execution_id))
    with Live(
        await view.frame(), console=console, refresh_per_second=FRAMES_PER_SECOND, transient=False
    ) as live:
        while not ended.done():
            await asyncio.wait([ended], timeout=1 / FRAMES_PER_SECOND)
            live.update(await view.frame())
        live.update(await view.frame())
    await ended
    return await system.executions.document(execution_id)


class _View:
    """Draws one execution; spinners keep turning between frames."""

    def __init__(self, system: System, execution_id: str) -> None:
        self._system = system
        self._execution_id = execution_id
        self._spinners: dict[str, Spinner] = {}

    async def frame(self) -> RenderableType:
        state = await self._system.orchestrator.state(self._execution_id)
        table = Table.grid(padding=(0, 1))
        for _ in range(5):
            table.add_column()
        shown = list(state.steps.items())
        if len(shown) > STEPS_SHOWN:
            hidden = len(shown) - STEPS_SHOWN
            table.add_row("", Text(f"… {hidden} earlier steps", style="dim"))
            shown = shown[-STEPS_SHOWN:]
        for name, summary in shown:
            table.add_row(*self._row(name, summary, state))
        return Group(self._head(state), table)

    def _head(self, state: ExecutionState) -> Text:
        colour = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow"}.get(
            state.status, "cyan"
        )
        head = Text(f"{state.path}  ", style="bold")
        head.append(state.status.lower(), style=colour)
        head.append(f"  {self._execution_id}", style="dim")
        return head

    def _row(
        self, name: str, summary: StepSummary, state: ExecutionState
    ) -> tuple[RenderableType, ...]:
        mark: RenderableType
        if summary.status == "running":
            mark = self._spinners.setdefault(name, Spinner("dots", style="cyan"))
        else:
            sign, style = MARKS[summary.status]
            mark = Text(sign, style=style)
        return (
            mark,
            Text(name),
            _bar(summary) if summary.loop_total is not None else Text(""),
            Text(_times(summary), style="dim"),
            Text(_remark(summary), style="red" if summary.error else "dim", overflow="ellipsis"),
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


def _times(summary: StepSummary) -> str:
    if summary.started_at is None or summary.ended_at is None:
        return ""
    return f"{summary.ended_at - summary.started_at:.2f} s"


def _remark(summary: StepSummary) -> str:
    if summary.error is not None:
        return one_line(summary.error.message)[:100]
    parts = []
    if summary.runs > 1:
        parts.append(f"run {summary.runs}")
    if summary.loop_total is None and summary.attempts > summary.runs:
        parts.append(f"{summary.attempts} calls")
    if summary.loop_failed:
        parts.append(f"{summary.loop_failed} failed")
    return ", ".join(parts)
