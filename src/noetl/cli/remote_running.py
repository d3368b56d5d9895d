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
from noetl.cli.running import conclude, news_in, print_output
from noetl.cli.source_lines import NOWHERE, SourceLines, of_execution
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
        await _show(client, execution_id)
        return await _conclude(settings, client, execution_id, as_json=False)


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
    """Show an execution that was started from here until it has ended; the exit code."""
    async with _cancelled_by_ctrl_c(client, execution_id) as was_pressed:
        if not as_json:
            await _show(client, execution_id)
        else:
            followed = RemoteFollowing(client, execution_id, ExecutionState())
            await _until_over(client, followed, speak=False)
        code = await _conclude(settings, client, execution_id, as_json=as_json, file=file)
    return INTERRUPTED if was_pressed() and code != OK else code


async def _conclude(
    settings: Settings,
    client: Client,
    execution_id: str,
    *,
    as_json: bool,
    file: SourceLines | None = None,
) -> int:
    """How it ended; of a `file` that was run from here, people know the lines."""
    from noetl import wiring

    document = await client.execution(execution_id)
    remote, source = RemoteExecutions(client), NOWHERE
    if document["status"] == "FAILED" and not as_json:
        source = await of_execution(remote, wiring.compiler(settings), document)
        if file is not None:
            source = source._replace(name=file.name, first=file.first)
        await print_output(remote, execution_id, shown=True, source=source)
    return await conclude(document, remote.body, as_json=as_json, source=source)


async def _show(client: Client, execution_id: str) -> None:
    followed = RemoteFollowing(client, execution_id, ExecutionState())
    if not is_rich(sys.stderr):
        say(f"execution {execution_id} on {client.url}")
        await _until_over(client, followed, speak=True)
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
    over = _until_over(client, followed, speak=False)
    await show_live(execution_id, state_of, news_in(remote), over, Console(stderr=True))


async def _until_over(client: Client, followed: RemoteFollowing, *, speak: bool) -> None:
    """Keep up with it until it has ended; while no worker takes what it has to do, say so."""
    patience, told = QUIET_SECONDS, set[str]()
    telling = Telling(followed.execution_id)
    while not followed.state.is_finished:
        rows = await followed.catch_up(patience)
        for row in rows:
            line = telling.line(row) if speak else None
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
