"""Follows an execution until it ends, wherever it runs: `run`, `execute`, `resume` and `follow`.

`to_end` is for executions that a command started: Ctrl-C cancels them, and if no server and no
other process runs them, this process does. `follow` only watches.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from noetl import configured, wiring
from noetl.api.client import LAST_EVENT
from noetl.api.routes.executions import CANCEL, GET, RESUME, STATUS, Cancel, Resume
from noetl.cli import FAILED, INTERRUPTED, OK
from noetl.cli.output import as_text, one_line, say
from noetl.cli.views.lines import (
    NEWS,
    Telling,
    failed_iterations,
    length,
    more_about,
    of_what_is_there,
)
from noetl.cli.views.paint import is_rich
from noetl.cli.views.results import print_beginning, print_document, print_value
from noetl.cli.views.source_lines import Locator, SourceLines
from noetl.control.documents import restored
from noetl.errors import Finished, Unreachable

if TYPE_CHECKING:
    from rich.console import Console

    from noetl.cli.calls import Api
    from noetl.model.events import TaskDone

QUIET_SECONDS = 3.0
"""How long nothing may happen before we ask what it waits for."""
LOOKS_BETWEEN_CHECKS = 5
OUTPUT_SHOWN = 4_000
FAILURES_SHOWN = 3
FAILURES_KEPT = 100
ELEMENT_MAX = 60
"""Characters of an element that are shown beside its number."""

Tell = Callable[[str], None]


async def to_end(
    api: Api, execution_id: str, *, as_json: bool, file: SourceLines | None = None
) -> int:
    """Show an execution that this command started until it ends. Returns the exit code.

    For a `file` that this command runs, errors name its lines. If another process holds the
    database, and ends before the execution does, the execution goes on here, or in the process
    that holds the database by then.
    """
    is_server = api.settings.server_url is not None
    if not as_json and _console() is None:
        say(f"execution {execution_id}" + (f" on {api.client.url}" if is_server else ""))
    telling = Telling(execution_id, _locator(api, execution_id, file))
    while True:
        try:
            if api.has_moved and api.system is None:
                await _hand_over(api, execution_id)
            return await _to_end(api, execution_id, telling, as_json=as_json)
        except Unreachable:
            if not await api.moves():
                raise
        say(f"the process that held the database has ended; execution {execution_id} goes on")


async def _hand_over(api: Api, execution_id: str) -> None:
    """Let the process that holds the database now continue what began in another."""
    root = await _root(api, execution_id)
    with suppress(Finished):
        if (await api.call(STATUS, execution_id=root)).status != "PAUSED":
            await api.call(RESUME, execution_id=root, body=Resume())


async def _to_end(api: Api, execution_id: str, telling: Telling, *, as_json: bool) -> int:
    console = None if as_json else _console()
    async with AsyncExitStack() as here:
        if api.system is not None:
            await here.enter_async_context(working_here(api, {await _root(api, execution_id)}))
        async with _cancelled_by_ctrl_c(api, execution_id, console) as was_pressed:
            if as_json:
                await _until_over(api, execution_id)
            else:
                await _show(api, execution_id, telling, console)
            document = await api.document(execution_id)
        code = await conclude(api, document, telling.locator, as_json=as_json)
    return INTERRUPTED if was_pressed() and code != OK else code


@asynccontextmanager
async def working_here(api: Api, executions: Collection[str]) -> AsyncIterator[None]:
    """Run the tasks of these executions in this process."""
    from noetl.cli.privacy import hide_process

    assert api.system is not None
    hide_process()
    api.is_run = lambda: True
    async with wiring.working(api.system, executions):
        yield


async def _root(api: Api, execution_id: str) -> str:
    """The top-level execution that this one is part of."""
    while parent := (await api.call(GET, execution_id=execution_id)).parent_execution_id:
        execution_id = parent
    return execution_id


async def follow(api: Api, execution_id: str) -> int:
    """Show an execution until it ends, or until no process runs it any more. Ctrl-C only stops the
    display.
    """
    telling, console = Telling(execution_id, _locator(api)), _console()
    if console is None:
        # Printed at once, because the first event may take long.
        now = await api.document(execution_id)
        say(f"following execution {execution_id} ({now['path']}, {now['status'].lower()})")
    await _show(api, execution_id, telling, console)
    document = await api.document(execution_id)
    if document["end_time"] is None:
        say(
            "no process is running it: it was interrupted."
            f" `noetl executions resume {execution_id}` continues it."
        )
        return FAILED
    return await conclude(api, document, telling.locator, as_json=False)


async def follow_quietly(api: Api, execution_id: str, path: str) -> int:
    """Print the news of one execution among several until it ends. Returns the exit code."""
    from noetl.api.routes.moments import STATE

    name = f"{path} {execution_id}"
    after = (await api.call(STATE, execution_id=execution_id)).seq
    telling = Telling(execution_id, _locator(api), after)
    await _until_over(api, execution_id, telling, lambda line: say(f"{name}: {line}"))
    document = await api.document(execution_id)
    document = (await telling.locator.source(document)).told(document)
    error = f": {document['error']['message']}" if document["error"] else ""
    say(f"{name}: {document['status'].lower()}{error}")
    return OK if document["status"] == "COMPLETED" else FAILED


def _locator(api: Api, execution_id: str = "", file: SourceLines | None = None) -> Locator:
    return Locator(api, configured.compiler(api.settings), execution_id, file)


def _console() -> Console | None:
    """The terminal to draw on, if there is one."""
    if not is_rich(sys.stderr):
        return None
    from rich.console import Console

    return Console(stderr=True)


async def _show(api: Api, execution_id: str, telling: Telling, console: Console | None) -> None:
    if console is not None:
        from noetl.cli.views.live import show_live

        ended = _until_over(api, execution_id)
        await show_live(api, execution_id, telling.locator, ended, console)
        return
    await _until_over(api, execution_id, telling)


async def _until_over(
    api: Api, execution_id: str, telling: Telling | None = None, tell: Tell = say
) -> None:
    """Follow it until it ends, or no process runs it; report when no worker takes its commands."""
    types = (*NEWS, LAST_EVENT) if telling is not None else (LAST_EVENT,)
    looks, told = 0, set[str]()
    after = 0 if telling is None else telling.after
    while True:
        wait = min(api.patience, QUIET_SECONDS) if not looks else api.patience
        page = await api.page(execution_id, after=after, types=types, wait=wait)
        for row in of_what_is_there([restored(event) for event in page.events]):
            if row.type == LAST_EVENT:
                return
            line = await telling.line(row) if telling is not None else None
            if line is not None:
                tell(line)
        after = page.next_after
        if telling is not None:
            telling.after = after
        if page.events:
            continue
        looks += 1
        unserved = await _unserved(api, execution_id)
        for text in unserved - told:
            say(text)
        told |= unserved
        if (
            api.settings.server_url is None
            and looks % LOOKS_BETWEEN_CHECKS == 1
            and not api.is_run()
        ):
            # The process may have stored the end just before it released the database.
            rest = await api.page(execution_id, after=after, types=types)
            if not rest.events:
                return


async def _unserved(api: Api, execution_id: str) -> set[str]:
    """What is said of each step that no worker takes, with what makes one take it."""
    found = {one.text for one in await api.why(execution_id) if one.waits_for == "worker"}
    start = "`noetl worker start"
    if api.settings.server_url is not None:
        return {text.replace(start, f"{start} --server {api.client.url}") for text in found}
    if api.system is None:
        return found
    here = (
        "This process takes steps of the pool default, with labels that are in NOETL_LABELS;"
        " workers of a server take others."
    )
    return {
        f"{head}{here}" for head, is_none, _ in (one.partition(start) for one in found) if is_none
    }


@asynccontextmanager
async def _cancelled_by_ctrl_c(
    api: Api, execution_id: str, console: Console | None
) -> AsyncIterator[Callable[[], bool]]:
    """The first Ctrl-C cancels the execution and waits for that; the second one quits.

    SIGTERM stops this process and leaves the execution as it is, to be resumed.
    """
    loop = asyncio.get_running_loop()
    cancelling: list[asyncio.Task[None]] = []

    def tell(text: str) -> None:
        """Print above the live view, if there is one."""
        if console is None:
            say(text)
        else:
            console.print(f"noetl: {text}", markup=False, highlight=False)

    def on_interrupt() -> None:
        if cancelling:
            if api.system is not None:
                tell("quitting; the execution may not have ended. `noetl executions resume-all`")
            os._exit(INTERRUPTED)
        tell("cancelling; press Ctrl-C again to quit at once")
        cancelling.append(asyncio.create_task(_cancel(api, execution_id, tell)))

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(cancelling)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        await asyncio.gather(*cancelling)


async def _cancel(api: Api, execution_id: str, tell: Tell) -> None:
    try:
        await api.call(CANCEL, execution_id=execution_id, body=Cancel(reason="cancelled by Ctrl-C"))
    except Finished:
        tell("it has just ended by itself")


# --- How it ended ------------------------------------------------------------------------------


async def conclude(api: Api, document: dict[str, Any], locator: Locator, *, as_json: bool) -> int:
    """Print how it ended. Returns the exit code."""
    execution_id = document["execution_id"]
    if as_json:
        await print_document(document, api.body)
        return OK if document["status"] == "COMPLETED" else FAILED
    source = await locator.source(document)
    document = source.told(document)
    if document["status"] == "FAILED":
        await print_output(api, execution_id, shown=True, source=source)
    for warning in document.get("warnings", ()):
        say(f"warning: {one_line(warning['message'])}")
        if child := warning.get("execution_id"):
            say(f"  `noetl executions show {child}` shows it")
    for step in document["steps"]:
        if failed := failed_iterations(step):
            say(f"{step['step']}: {failed}")
    if document["status"] == "CANCELLED":
        say("cancelled")
    elif document["status"] == "COMPLETED":
        say(f"completed in {length(document['duration_seconds'])}")
        result = document["result"]
        if result is not None and not sys.stdout.isatty():
            await print_value(result, execution_id, api.body)
        elif result is not None and not await print_beginning(result, execution_id, api.body):
            say(f"the result goes on: `noetl executions result {execution_id}` prints all of it")
    else:
        error = document["error"] or {}
        where = f" in step {document['failed_step']}" if document.get("failed_step") else ""
        message = error.get("message", "no reason given")
        say(f"{document['status'].lower()}{where}: {one_line(message)}")
        for line in more_about(error):
            say(f"  {line}")
    return OK if document["status"] == "COMPLETED" else FAILED


async def print_output(
    api: Api, execution_id: str, *, shown: bool = False, source: SourceLines
) -> None:
    """Print what failed tasks printed, unless it was `shown` before, and where their code
    failed.
    """
    from noetl.model.events import LoopStarted, TaskDone, decode

    last: dict[tuple[str, str, int | None], TaskDone] = {}
    loops: dict[str, Any] = {}
    async for row in api.events(execution_id, types=("loop.started", "task.done")):
        fact = decode(row.body)
        if isinstance(fact, LoopStarted):
            loops[fact.step_run_id] = fact.items
        elif isinstance(fact, TaskDone):
            key = (fact.step, fact.task, fact.iteration)
            last.pop(key, None)
            if not fact.outcome.is_ok:
                last[key] = fact
            if len(last) > FAILURES_KEPT:
                last.pop(next(iter(last)))
    for fact in list(last.values())[-FAILURES_SHOWN:]:
        _print_failure(fact, loops.get(fact.step_run_id), source, shown=shown)


def _print_failure(fact: TaskDone, items: Any, source: SourceLines, *, shown: bool) -> None:
    where = f"{fact.step}.{fact.task}"
    if fact.iteration is not None:
        where += f", iteration {fact.iteration}{_element(items, fact.iteration)}"
    if fact.attempt > 1:
        where += f", try {fact.attempt}"
    if not shown:
        _print_block(f"output of {where}", fact.log)
    error = fact.outcome.error
    details = error.details if error is not None else None
    if isinstance(details, dict) and isinstance(details.get("traceback"), str):
        text = source.traceback(details["traceback"], details, fact.step, fact.task)
        _print_block(f"traceback of {where}", text)


def _element(items: Any, index: int) -> str:
    """The element of an iteration, if it is recorded in the event and short. Events hold no
    secrets.
    """
    if not isinstance(items, list | tuple) or index >= len(items):
        return ""
    text = one_line(as_text(items[index]))
    return f" ({text})" if len(text) <= ELEMENT_MAX else ""


def _print_block(title: str, text: str) -> None:
    if text.strip():
        say(f"{title}:")
        for line in text[-OUTPUT_SHOWN:].splitlines():
            say(f"  {line}")
