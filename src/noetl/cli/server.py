"""`noetl server`: the control plane as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from noetl.cli.daemons import Daemon, daemons, start, status, stop, tell_ready
from noetl.cli.options import db_option, json_option, local_settings
from noetl.cli.output import say
from noetl.cli.privacy import hide_process

if TYPE_CHECKING:
    from noetl.settings import Settings

Beside = Callable[[], AbstractAsyncContextManager[None]]

PORT = 8082


@click.group()
def command() -> None:
    """Start and stop a server.

    \b
    Examples:
      noetl server start --detach
      noetl server status
      noetl server stop
    """


host_option = click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen."
)
port_option = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="0 means any free port.",
)
detach_option = click.option("--detach", is_flag=True, help="Run in the background.")


@command.command("start")
@host_option
@port_option
@db_option
@detach_option
def start_command(host: str, port: int, db: str | None, detach: bool) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Requests under way are then completed.

    The server schedules; workers run the tasks (`noetl worker start`). Without users and API tokens
    it listens on this machine only, and gives every caller full access.

    \b
    Examples:
      noetl server start
      noetl server start --host 0.0.0.0 --db postgresql://noetl@db.example.com/noetl
    """
    if detach:
        arguments = ["server", "start", f"--host={host}", f"--port={port}"]
        sys.exit(start(Daemon("server"), arguments + ([f"--db={db}"] if db is not None else [])))
    run(local_settings(db), host, port, work=False)


@command.command("stop")
def stop_command() -> None:
    """Stop the server in the background, and wait until it has ended.

    \b
    Example:
      noetl server stop
    """
    sys.exit(stop(Daemon("server")))


@command.command("status")
@json_option
def status_command(as_json: bool) -> None:
    """Show whether a server runs in the background. Exits with 1 if not.

    \b
    Example:
      noetl server status
    """
    sys.exit(status(daemons("server"), as_json=as_json))


def run(
    settings: Settings,
    host: str,
    port: int,
    *,
    work: bool,
    opens: bool = False,
    beside: Beside = nullcontext,
) -> None:
    """Serve in this process, with what runs beside it; with `opens`, open the web UI in a browser
    if there is one.
    """
    from noetl import logs

    logs.set_up(settings.log)
    hide_process()
    # Tools run on the event loop that they are tested on, in every process that runs tools.
    with asyncio.Runner(loop_factory=None if work else _fast_loop()) as runner:
        runner.run(_serve(settings, host, port, work=work, opens=opens, beside=beside))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    settings: Settings, host: str, port: int, *, work: bool, opens: bool, beside: Beside
) -> None:
    from noetl import serving
    from noetl.api.listener import serve

    async with serving.server(settings, host=host, port=port, work=work) as served:
        bound = served.listener.getsockname()[1]
        url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        if served.is_open:
            say("no users are configured: every user of this machine has full access")

        def ready() -> None:
            say(f"serving at {url}{', with a worker' if work else ''}; Ctrl-C ends it")
            if settings.ui:
                say(f"web UI: {url}/")
                if opens and sys.stderr.isatty():
                    open_browser(f"{url}/")
            tell_ready(url)

        async with beside():
            await serve(served.app, served.listener, served.draining, ready)
    say("the server has ended")


def open_browser(url: str) -> None:
    """Open that page, if a person sits at a screen. Does not wait for it."""
    import webbrowser

    has_screen = (
        sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    )
    if has_screen:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
