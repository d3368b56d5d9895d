"""`noetl dev`: a server with a worker and the web UI in it, for one machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

from noetl.cli.calls import acting
from noetl.cli.files import Source, Unreadable, is_test, sources, stamps
from noetl.cli.options import db_option, local_settings
from noetl.cli.output import say
from noetl.cli.server import host_option, port_option, run
from noetl.errors import NoetlError
from noetl.wiring import in_background

if TYPE_CHECKING:
    from pathlib import Path

    from noetl.cli.calls import Api
    from noetl.settings import Settings

    Known = dict[str, Source | Unreadable]
    Stamps = dict[Path, tuple[int, int]]

LOOK_SECONDS = 0.5
"""How often to look whether a file has changed."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True), metavar="[FILE_OR_DIR]...")
@host_option
@port_option
@db_option
@click.option("--no-open", is_flag=True, help="Do not open the web UI in a browser.")
def command(files: tuple[str, ...], host: str, port: int, db: str | None, no_open: bool) -> None:
    """Run a server, a worker and the web UI in one process.

    It registers the playbooks and triggers in the files and directories that you name, and each of
    them again when you save it. In a terminal it opens the web UI in the browser, if there is one.

    \b
    Examples:
      noetl dev
      noetl dev playbooks/
      noetl execute shop/orders --server http://127.0.0.1:8082 --wait
    """
    settings = local_settings(db)
    beside = partial(_registering, settings, files) if files else nullcontext
    run(settings, host, port, work=True, opens=not no_open, beside=beside)


@asynccontextmanager
async def _registering(settings: Settings, names: Sequence[str]) -> AsyncIterator[None]:
    """Register what the files hold, and from then on each file that changes."""
    async with acting(settings) as api:
        known: Known = {}
        seen = await asyncio.to_thread(stamps, names)
        await _register_changed(api, names, known)
        async with in_background(_follow(api, names, known, seen)):
            yield


async def _follow(api: Api, names: Sequence[str], known: Known, seen: Stamps) -> None:
    """Register what changes, once it is written to its end: when two looks see the same."""
    before = seen
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = await asyncio.to_thread(stamps, names)
        if now == before and now != seen:
            seen = now
            await _register_changed(api, names, known)
        before = now


async def _register_changed(api: Api, names: Sequence[str], known: Known) -> None:
    """Register the files that are not as they are known, and say which have gone."""
    from noetl.cli.register import register

    every = await asyncio.to_thread(list, sources(names))
    found = {one.name: one for one in every if not (isinstance(one, Source) and is_test(one))}
    try:
        if found != known:
            await register(api, found.values(), set(known.values()))
    except NoetlError as error:
        say(f"{error} Save a file to try again.")
        return
    for name in known.keys() - found.keys():
        if isinstance(known[name], Source):
            say(f"{name} is gone; what it registered stays")
    known.clear()
    known.update(found)
