"""A database with executions in it: its parts, its clock, and the processes that share it.

The promise that every store keeps is written in one file for each part, for the author of the next
store. A store keeps bytes and a few columns to find them by; it decides nothing. Everything
that belongs together is written in one transaction by `Log.commit`. Times are seconds since 1970,
handed in by the caller: a store decides nothing by a clock of its own. Ids are texts. `tests/store`
is these pages as a test suite; a new store joins it by one fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from noetl.store.access import Access, Sessions
from noetl.store.bodies import Bodies
from noetl.store.catalog import Catalog
from noetl.store.credentials import Credentials
from noetl.store.limits import Limits
from noetl.store.log import Log
from noetl.store.queue import Queue
from noetl.store.records import Records
from noetl.store.retention import Retention
from noetl.store.triggers import Messages, Triggers


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A server or worker process that says from time to time that it is there."""

    name: str
    kind: Literal["server", "worker"]
    started_at: float
    seen_at: float
    pool: str = ""
    slots: int = 0
    host: str = ""
    version: str = ""
    draining: bool = False
    """It takes nothing new."""
    sandbox: str = ""
    """What a worker keeps code and programs of tasks in: `processes` or `namespaces`."""


class Channel(Protocol):
    """Short messages between all processes on one database. Any of them may be lost."""

    async def send(self, text: str) -> None:
        """Tell the others. Raises StoreError when that is impossible just now."""

    def messages(self) -> AsyncIterator[str]:
        """What others send from now on; raises StoreError when the line breaks."""


class Store(Protocol):
    """One database. Open it with its `open(url)`, close it with `close()`."""

    log: Log
    queue: Queue
    records: Records
    bodies: Bodies
    catalog: Catalog
    triggers: Triggers
    messages: Messages
    limits: Limits
    retention: Retention
    credentials: Credentials
    access: Access
    sessions: Sessions

    exclusive: bool
    """No other process writes while this one has it open. `wiring` asks, and hands out what
    follows from it as values."""
    channel: Channel | None
    """How to tell the others that something was written; None if there are none."""

    async def time(self) -> float:
        """Seconds since 1970 by the one clock that all who use this database share."""

    async def installation(self) -> str:
        """What tells this database from all others: drawn when it was made, the same for ever."""

    async def probe(self) -> None:
        """Raise StoreError with the reason if, as far as can be told, nothing can be written now.

        StoreBusy: it does not answer; StoreFull: there is no room.
        """

    async def close(self) -> None:
        """Finish what is being written, then let go of the database."""

    async def check(self) -> list[str]:
        """Everything that is not what was written, one sentence each; reads all there is."""

    # --- Who is there ---

    async def beat(self, runtime: Runtime) -> None:
        """Note that this process is there, as it is now. It has started once and only once."""

    async def runtimes(
        self, *, kind: str | None = None, since: float | None = None
    ) -> list[Runtime]:
        """Processes by name, perhaps of one kind or seen at or after a moment only."""

    async def leave(self, name: str) -> bool:
        """This process ends; whether it was known."""
