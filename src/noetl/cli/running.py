"""What commands that run executions share: following one, and stopping it by Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.cli.exits import FAILED, OK
from noetl.cli.printing import one_line, print_json, print_text, say

if TYPE_CHECKING:
    from noetl.settings import Settings
    from noetl.store.base import EventRow
    from noetl.wiring import System

LOG_SHOWN = 2_000
INTERRUPTED = 130


def with_database(settings: Settings, url: str | None) -> Settings:
    """The settings, with `--db` over the environment."""
    if url is None:
        return settings
    return msgspec.structs.replace(
        settings, database_url=url if "://" in url else f"sqlite:///{url}"
    )


@asynccontextmanager
async def cancelled_by_ctrl_c(system: System, execution_id: str) -> AsyncIterator[None]:
    """The first Ctrl-C cancels the execution and waits for that; the second one quits."""
    loop = asyncio.get_running_loop()
    pressed = 0
    cancelling: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            os._exit(INTERRUPTED)
        say("cancelling; press Ctrl-C again to quit at once")
        cancelling.append(asyncio.create_task(_cancel(system, execution_id)))

    loop.add_signal_handler(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _cancel(system: System, execution_id: str) -> None:
    from noetl.errors import Finished

    try:
        await system.executions.cancel(execution_id, "cancelled by Ctrl-C")
    except Finished:
        say("it has just ended by itself")


async def follow(system: System, execution_id: str, *, as_json: bool, live: bool) -> dict[str, Any]:
    """Show an execution until it has ended; its document."""
    if live and not as_json:
        from noetl.cli.liveview import show_live

        return await show_live(system, execution_id)
    if not as_json:
        say(f"execution {execution_id}")
        async for rows in system.executions.follow(execution_id):
            for row in rows:
                line = plain_line(row)
                if line is not None:
                    say(line)
    return await system.executions.wait(execution_id)


def plain_line(row: EventRow) -> str | None:
    """One event for people without a terminal; None for what would only be noise."""
    from noetl.model.events import decode

    make = _LINES.get(row.type)
    return None if make is None else make(decode(row.body))


def _retry(fact: Any) -> str:
    wait = f" in {fact.delay:.3g} s" if fact.delay else ""
    return f"{fact.step}: {fact.task} is tried again{wait} (try {fact.attempt})"


def _failed(fact: Any) -> str:
    return f"{fact.step}: failed: {one_line(fact.error.message)}"


_LINES: dict[str, Callable[[Any], str]] = {
    "step.started": lambda fact: f"{fact.step}: started",
    "step.done": lambda fact: f"{fact.step}: done",
    "step.failed": _failed,
    "step.skipped": lambda fact: f"{fact.step}: skipped ({fact.reason})",
    "step.cancelled": lambda fact: f"{fact.step}: cancelled ({fact.reason})",
    "step.waiting": lambda fact: f"{fact.step}: waits, holding no worker",
    "loop.started": lambda fact: f"{fact.step}: a loop over {fact.total} elements",
    "loop.done": lambda fact: f"{fact.step}: {fact.success} of {fact.total} iterations succeeded",
    "retry.started": _retry,
    "child.started": lambda fact: f"{fact.step}: runs {fact.path} as execution {fact.child}",
    "playbook.paused": lambda _: "paused",
    "playbook.resumed": lambda _: "resumed",
}


def conclude(document: dict[str, Any], *, as_json: bool) -> int:
    """Print how it ended; the exit code."""
    if as_json:
        print_json(document)
    elif document["status"] == "COMPLETED":
        say(f"completed in {document['duration_seconds']:.3g} s")
        _print_result(document["result"])
    else:
        error = document["error"] or {}
        where = f" in step {document['failed_step']}" if document.get("failed_step") else ""
        say(f"{document['status'].lower()}{where}: {error.get('message', 'no reason given')}")
    return OK if document["status"] == "COMPLETED" else FAILED


def _print_result(result: Any) -> None:
    if isinstance(result, str):
        print_text(result + "\n")
    elif result is not None:
        print_json(result)


async def print_output(system: System, execution_id: str) -> None:
    """What failed tasks printed, for whoever wants to know why."""
    from noetl.model.events import TaskDone, decode

    rows = await system.store.events(execution_id, types=["task.done"], limit=1000)
    for row in rows[-20:]:
        fact = decode(row.body)
        if isinstance(fact, TaskDone) and not fact.outcome.is_ok and fact.log:
            say(f"output of {fact.step}.{fact.task}, try {fact.attempt}:")
            for line in fact.log[-LOG_SHOWN:].splitlines():
                say(f"  {line}")
