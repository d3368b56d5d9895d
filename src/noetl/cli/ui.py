"""`noetl ui`: view a recording of an execution, offline."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from noetl.cli.daemons import tell_ready
from noetl.cli.options import current_settings
from noetl.cli.output import say
from noetl.cli.server import open_browser

if TYPE_CHECKING:
    from noetl.control.recordings import Recording
    from noetl.settings import Settings


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@click.option("--no-open", is_flag=True, help="Do not open it in a browser.")
def command(file: str, port: int, no_open: bool) -> None:
    """Show a recorded execution in the web UI, without a server.

    FILE comes from `noetl executions export`. The web UI shows it on this machine, read-only; in a
    terminal the command opens the browser. Ctrl-C ends it.

    \b
    Example:
      noetl executions export 4711 -o 4711.noetl
      noetl ui 4711.noetl
    """
    from noetl import logs
    from noetl.control.recordings import read

    settings = current_settings()
    logs.set_up(settings.log)
    with open(file, "rb") as opened:
        recording = read(opened)
    asyncio.run(_show(settings, recording, port, opens=not no_open))


async def _show(settings: Settings, recording: Recording, port: int, *, opens: bool) -> None:
    from noetl import serving
    from noetl.api.listener import serve

    head = recording.head
    async with serving.showing(settings, recording, port) as served:
        url = f"http://127.0.0.1:{served.listener.getsockname()[1]}"
        page = f"{url}/executions/{head.execution_id}"

        def ready() -> None:
            say(f"execution {head.execution_id} of {head.path} ({head.status}) is shown at {page}")
            say(f"{url}/api/executions/{head.execution_id} is its document; Ctrl-C ends it")
            if opens and sys.stderr.isatty():
                open_browser(page)
            tell_ready(url)

        await serve(served.app, served.listener, served.draining, ready)
