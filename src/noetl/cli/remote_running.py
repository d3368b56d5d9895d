"""Executions that a server runs: started from here, followed from here, cancelled by Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from noetl.cli.exits import INTERRUPTED, OK
from noetl.cli.lines import Telling
from noetl.cli.paint import is_rich
from noetl.cli.printing import say
from noetl.cli.remote import WAIT_SECONDS, RemoteExecutions, RemoteFollowing, connected
from noetl.cli.running import conclude, news_in
from noetl.cli.source_lines import Locator, SourceLines
from noetl.model.state import ExecutionState

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.settings import Settings

QUIET_SECONDS = 3.0
"""So long nothing happens before we ask what it waits for."""
CHILD_SECONDS = 0.5
"""How old the picture of a sub-playbook may be while it is drawn."""


async def follow_there(settings: Settings, written: str) -> int:
    """Show an execution until it has ended. Ctrl-C ends the showing and nothing else."""
    async with connected(settings) as client:
        execution_id = await RemoteExecutions(client).find(written)
        locator = _locator(settings, client)
        await _show(client, execution_id, locator)
        return await _conclude(client, execution_id, locator, as_json=False)


async def rerun_there(
    settings: Settings, old: str, step: str | None, given: dict[str, Any], *, as_json: bool
) -> int:
    """Run it again on the server, and follow that."""
    async with connected(settings) as client:
        body: dict[str, Any] = {"workload": given}
        if step is not None:
            body["from"] = step
        started = await client.act(old, "rerun", **body)
        return await to_end(settings, client, started["execution_id"], as_json=as_json)


async def to_end(
    settings: Settings,
    client: Client,
    execution_id: str,
    *,
    as_json: bool,
    file: SourceLines | None = None,
) -> int:
    """Show an execution that was started from here until it has ended; the exit code.

    Of a `file` that was run from here, people know the lines.
    """
    locator = _locator(settings, client, execution_id, file)
    async with _cancelled_by_ctrl_c(client, execution_id) as was_pressed:
        if not as_json:
            await _show(client, execution_id, locator)
        else:
            followed = RemoteFollowing(client, execution_id, ExecutionState())
            await _until_over(client, followed)
        code = await _conclude(client, execution_id, locator, as_json=as_json)
    return INTERRUPTED if was_pressed() and code != OK else code


def _locator(
    settings: Settings, client: Client, execution_id: str = "", file: SourceLines | None = None
) -> Locator:
    from noetl import wiring

    return Locator(RemoteExecutions(client), wiring.compiler(settings), execution_id, file)


async def _conclude(client: Client, execution_id: str, locator: Locator, *, as_json: bool) -> int:
    document = await client.execution(execution_id)
    return await conclude(document, RemoteExecutions(client), locator, as_json=as_json)


async def _show(client: Client, execution_id: str, locator: Locator) -> None:
    followed = RemoteFollowing(client, execution_id, ExecutionState())
    if not is_rich(sys.stderr):
        say(f"execution {execution_id} on {client.url}")
        await _until_over(client, followed, Telling(execution_id, locator))
        return
    from rich.console import Console

    from noetl.cli.liveview import show_live

    remote = RemoteExecutions(client)
    seen: dict[str, tuple[float, ExecutionState]] = {}

    async def state_of(wanted: str) -> ExecutionState:
        if wanted == execution_id:
            return followed.state
        at, state = seen.get(wanted, (0.0, ExecutionState()))
        if time.monotonic() - at > CHILD_SECONDS:
            state = await remote.state(wanted)
            seen[wanted] = (time.monotonic(), state)
        return state

    await followed.catch_up()
    over = _until_over(client, followed)
    await show_live(execution_id, state_of, news_in(remote), locator, over, Console(stderr=True))


async def _until_over(
    client: Client, followed: RemoteFollowing, telling: Telling | None = None
) -> None:
    """Keep up with it until it has ended; while no worker takes what it has to do, say so."""
    patience, told = QUIET_SECONDS, set[str]()
    while not followed.state.is_finished:
        rows = await followed.catch_up(patience)
        for row in rows:
            line = await telling.line(row) if telling is not None else None
            if line is not None:
                say(line)
        if not rows:
            patience = WAIT_SECONDS
            unserved = await _unserved(client, followed.execution_id)
            for text in unserved - told:
                say(f"{text}; `noetl worker start --server {client.url}` starts one")
            told |= unserved


async def _unserved(client: Client, execution_id: str) -> set[str]:
    """What waits for a worker, in words."""
    found = await RemoteExecutions(client).why(execution_id)
    return {one.text for one in found if one.waits_for == "worker"}


@asynccontextmanager
async def _cancelled_by_ctrl_c(
    client: Client, execution_id: str
) -> AsyncIterator[Callable[[], bool]]:
    """The first Ctrl-C cancels the execution and waits for that; the second one quits."""
    loop = asyncio.get_running_loop()
    cancelling: list[asyncio.Task[Any]] = []

    def on_interrupt() -> None:
        if cancelling:
            os._exit(INTERRUPTED)
        say("cancelling; press Ctrl-C again to quit at once")
        cancelling.append(asyncio.create_task(_cancel(client, execution_id)))

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(cancelling)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        await asyncio.gather(*cancelling)


async def _cancel(client: Client, execution_id: str) -> None:
    from noetl.errors import Finished

    try:
        await client.act(execution_id, "cancel", reason="cancelled by Ctrl-C")
    except Finished:
        say("it has just ended by itself")
