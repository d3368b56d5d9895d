"""What tasks printed, in print: `noetl executions logs`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from noetl.cli.lines import speaker
from noetl.cli.printing import print_json, print_line, printable, say
from noetl.cli.remote import WAIT_SECONDS, Executions, RemoteExecutions, looking
from noetl.control.records import LOOK_SECONDS
from noetl.model.answers import LogEntry, Logs
from noetl.model.state import TERMINAL

if TYPE_CHECKING:
    from noetl.settings import Settings


async def print_logs(
    settings: Settings, written: str, chosen: dict[str, Any], *, follow: bool, as_json: bool
) -> None:
    """All of it, and with `follow` what is yet to come."""
    async with looking(settings) as executions:
        execution_id = await executions.find(written)
        if as_json:
            print_json(await _whole(executions, execution_id, chosen))
            return
        printed = False
        async for page in _pages(settings, executions, execution_id, chosen, follow=follow):
            for entry in page.entries:
                printed = True
                for line in lines(entry):
                    print_line(line)
        if not printed:
            where = f"step {chosen['step']} of it" if chosen["step"] else "its tasks"
            what = "no such line" if chosen["grep"] else "nothing"
            say(f"execution {execution_id}: {where} printed {what}")


async def _whole(executions: Executions, execution_id: str, chosen: dict[str, Any]) -> Logs:
    first = await executions.logs(execution_id, **chosen)
    entries, last = list(first.entries), first
    while last.more:
        last = await executions.logs(execution_id, after=last.next_after, **chosen)
        entries += last.entries
    return Logs(
        execution_id=execution_id,
        status=first.status,
        entries=entries,
        next_after=last.next_after,
        more=False,
    )


async def _pages(
    settings: Settings,
    executions: Executions,
    execution_id: str,
    chosen: dict[str, Any],
    *,
    follow: bool,
) -> AsyncIterator[Logs]:
    """Page after page; at the end of what there is, with `follow`, the next when it is there."""
    after = 0
    while True:
        page = await executions.logs(execution_id, after=after, **chosen)
        yield page
        after = page.next_after
        if page.more:
            continue
        if not follow or page.status in TERMINAL:
            return
        if isinstance(executions, RemoteExecutions):
            page = await executions.logs(execution_id, after=after, wait=WAIT_SECONDS, **chosen)
            yield page
            after = page.next_after
        elif not await _is_run(settings, executions, execution_id):
            say(
                f"no process is running execution {execution_id}: it was interrupted."
                f" `noetl executions resume {execution_id}` goes on with it."
            )
            return
        else:
            await asyncio.sleep(LOOK_SECONDS)


async def _is_run(settings: Settings, executions: Executions, execution_id: str) -> bool:
    from noetl import wiring

    if wiring.is_in_use(settings):
        return True
    # The process may have stored the end just before it let the database go.
    return (await executions.logs(execution_id, limit=1)).status in TERMINAL


def lines(entry: LogEntry) -> list[str]:
    """Each line behind the step that printed it; on a terminal without what would steer it."""
    text = entry.text.splitlines()
    shown = [printable(line) for line in text] if sys.stdout.isatty() else text
    return [f"{speaker(entry.step, entry.task, entry.iteration)} | {line}" for line in shown]
