"""What commands that run executions share: following one to its end, and stopping it by Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from noetl.cli.exits import FAILED, INTERRUPTED, OK
from noetl.cli.lines import Telling, failed_iterations, length, more_about, speaker
from noetl.cli.paint import is_rich
from noetl.cli.printing import one_line, printable, say
from noetl.cli.source_lines import NOWHERE, Locator, SourceLines
from noetl.cli.whoami import local_actor

if TYPE_CHECKING:
    from rich.console import Console

    from noetl.cli.liveview import NewsAfter
    from noetl.model.events import TaskDone
    from noetl.settings import Settings
    from noetl.store.base import EventRow
    from noetl.wiring import System

NEWS_PAGE = 1000
OUTPUT_SHOWN = 4_000
FAILURES_SHOWN = 3
FAILURES_KEPT = 100


@asynccontextmanager
async def working_here(system: System, settings: Settings, chosen: set[str]) -> AsyncIterator[None]:
    """Run the tasks of these executions in this process."""
    from noetl import wiring
    from noetl.cli.hiding import hide_process

    hide_process()
    async with wiring.working(system, settings, chosen):
        yield


async def run_to_end(system: System, execution_id: str, *, as_json: bool) -> int:
    """Show an execution that this process runs until it has ended; the exit code."""
    from noetl.control.records import Records

    records = Records(system.store)
    locator = Locator(records, system.catalog.check)
    console = _console() if is_rich(sys.stderr) and not as_json else None
    async with cancelled_by_ctrl_c(system, execution_id, _teller(console)) as was_pressed:
        if as_json:
            await system.orchestrator.wait_for_end(execution_id)
        elif console is not None:
            await _show_live(system, execution_id, locator, console)
        else:
            await _print_lines(system, execution_id, locator)
        document = await system.executions.wait(execution_id)
    code = await conclude(document, records, locator, as_json=as_json)
    return INTERRUPTED if was_pressed() and code != OK else code


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _teller(console: Console | None) -> Callable[[str], None]:
    """How to say something: above the live view, if there is one."""
    if console is None:
        return say
    return lambda text: console.print(f"noetl: {text}", markup=False, highlight=False)


@asynccontextmanager
async def cancelled_by_ctrl_c(
    system: System, execution_id: str, tell: Callable[[str], None]
) -> AsyncIterator[Callable[[], bool]]:
    """The first Ctrl-C cancels the execution and waits for that; the second one quits.

    SIGTERM stops this process and leaves the execution as it is, to be resumed.
    """
    loop = asyncio.get_running_loop()
    cancelling: list[asyncio.Task[None]] = []

    def on_interrupt() -> None:
        if cancelling:
            tell("quitting; the execution may not have ended. `noetl executions resume-all`")
            os._exit(INTERRUPTED)
        tell("cancelling; press Ctrl-C again to quit at once")
        cancelling.append(asyncio.create_task(_cancel(system, execution_id, tell)))

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(cancelling)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        await asyncio.gather(*cancelling)


async def _cancel(system: System, execution_id: str, tell: Callable[[str], None]) -> None:
    from noetl.errors import Finished

    try:
        await system.executions.cancel(execution_id, "cancelled by Ctrl-C", actor=local_actor())
    except Finished:
        tell("it has just ended by itself")


# --- Showing it --------------------------------------------------------------------------------


async def _print_lines(system: System, execution_id: str, locator: Locator) -> None:
    say(f"execution {execution_id}")
    telling = Telling(execution_id, locator)
    async for rows in system.executions.follow(execution_id):
        for row in rows:
            line = await telling.line(row)
            if line is not None:
                say(line)


async def _show_live(system: System, execution_id: str, locator: Locator, console: Console) -> None:
    from noetl.cli.liveview import show_live

    await show_live(
        execution_id,
        system.orchestrator.state,
        news_in(system.store),
        locator,
        system.orchestrator.wait_for_end(execution_id),
        console,
    )


class Events(Protocol):
    """Wherever events can be read."""

    async def events(
        self, execution_id: str, *, after: int, types: tuple[str, ...], limit: int
    ) -> list[EventRow]: ...


def news_in(store: Events) -> NewsAfter:
    """For the live view: which steps were tried again, and what tasks printed since an event."""
    from noetl.cli.liveview import News
    from noetl.control.task_logs import TYPES, text_of
    from noetl.model.events import RetryStarted, decode

    async def news(execution_id: str, after: int, up_to: int) -> News:
        found = News({}, [])
        while after < up_to:
            types = ("retry.started", *TYPES)
            rows = await store.events(execution_id, after=after, types=types, limit=NEWS_PAGE)
            for row in rows:
                if row.seq > up_to:
                    return found
                fact: Any = decode(row.body)
                if isinstance(fact, RetryStarted):
                    wait = f", after {fact.delay:.3g} s" if fact.delay else ""
                    found.retries[fact.step] = f"try {fact.attempt} of {fact.task}{wait}"
                elif text := text_of(fact):
                    who = speaker(fact.step, fact.task, fact.iteration)
                    found.printed.extend(f"{who} | {printable(line)}" for line in text.splitlines())
            if len(rows) < NEWS_PAGE:
                return found
            after = rows[-1].seq
        return found

    return news


class Ended(Events, Protocol):
    """Wherever what an execution left can be read."""

    async def body(self, execution_id: str, key: str) -> bytes: ...


async def conclude(
    document: dict[str, Any], records: Ended, locator: Locator, *, as_json: bool
) -> int:
    """Print how it ended; the exit code."""
    from noetl.cli.results import print_document, print_value

    execution_id = document["execution_id"]
    if as_json:
        await print_document(document, records.body)
        return OK if document["status"] == "COMPLETED" else FAILED
    source = await locator.source(document)
    document = source.told(document)
    if document["status"] == "FAILED":
        await print_output(records, execution_id, shown=True, source=source)
    for warning in document.get("warnings", ()):
        say(f"warning: {one_line(warning['message'])}")
    for step in document["steps"]:
        if failed := failed_iterations(step):
            say(f"{step['step']}: {failed}")
    if document["status"] == "CANCELLED":
        say("cancelled")
    elif document["status"] == "COMPLETED":
        say(f"completed in {length(document['duration_seconds'])}")
        if document["result"] is not None:
            await print_value(document["result"], execution_id, records.body)
    else:
        error = document["error"] or {}
        where = f" in step {document['failed_step']}" if document.get("failed_step") else ""
        message = error.get("message", "no reason given")
        say(f"{document['status'].lower()}{where}: {one_line(message)}")
        for line in more_about(error):
            say(f"  {line}")
    return OK if document["status"] == "COMPLETED" else FAILED


async def print_output(
    store: Events, execution_id: str, *, shown: bool = False, source: SourceLines = NOWHERE
) -> None:
    """What failed tasks printed, unless it was `shown` before, and where their code broke."""
    from noetl.model.events import TaskDone, decode

    last: dict[tuple[str, str, int | None], TaskDone] = {}
    after = 0
    while rows := await store.events(execution_id, types=("task.done",), after=after, limit=1000):
        after = rows[-1].seq
        for row in rows:
            fact = decode(row.body)
            if isinstance(fact, TaskDone):
                key = (fact.step, fact.task, fact.iteration)
                last.pop(key, None)
                if not fact.outcome.is_ok:
                    last[key] = fact
                if len(last) > FAILURES_KEPT:
                    last.pop(next(iter(last)))
    for fact in list(last.values())[-FAILURES_SHOWN:]:
        _print_failure(fact, source, shown=shown)


def _print_failure(fact: TaskDone, source: SourceLines, *, shown: bool) -> None:
    where = f"{fact.step}.{fact.task}"
    if fact.iteration is not None:
        where += f", iteration {fact.iteration}"
    if fact.attempt > 1:
        where += f", try {fact.attempt}"
    if not shown:
        _print_block(f"output of {where}", fact.log)
    error = fact.outcome.error
    details = error.details if error is not None else None
    if isinstance(details, dict) and isinstance(details.get("traceback"), str):
        text = source.traceback(details["traceback"], details, fact.step, fact.task)
        _print_block(f"traceback of {where}", text)


def _print_block(title: str, text: str) -> None:
    if text.strip():
        say(f"{title}:")
        for line in text[-OUTPUT_SHOWN:].splitlines():
            say(f"  {line}")
