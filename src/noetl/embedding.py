"""NoETL inside another program: its database, its decisions and its worker live in that process.

This is what `noetl run` does, for programs that have an event loop of their own. What runs is as
durable as anywhere: after a crash, the next `embedded` on the same database continues it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from noetl.api.client import Client
from noetl.errors import BadSetting
from noetl.settings import Settings, database_url
from noetl.tools.base import Tool
from noetl.wiring import embedded as whole_system
from noetl.wiring import here


@asynccontextmanager
async def embedded(
    database: str | None = None, *, tools: Sequence[Tool] = (), slots: int | None = None
) -> AsyncIterator[Client]:
    """A client of a whole system in this process.

    `database` is a URL such as `sqlite:///orders.db`; without one, `NOETL_DATABASE_URL` or its
    default says which. `tools` are tool kinds of this program, which its playbooks can name beside
    the installed ones. `slots` is how many tasks run at the same time. All else comes from the
    environment, as for every command. Raises StoreBusy if another process has the database.
    """
    settings = Settings.from_environment(os.environ)
    if database is not None:
        settings = msgspec.structs.replace(settings, database_url=database_url(database))
    if slots is not None:
        if slots < 1:
            raise BadSetting(f"slots is {slots}, and with less than 1 no task would ever run.")
        settings = msgspec.structs.replace(settings, slots=slots)
    async with whole_system(settings, tools=tools) as system:
        yield here(system).client
