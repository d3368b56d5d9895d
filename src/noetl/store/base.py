"""A database with executions: its parts, its clock, and the processes that share it.

Each part has a file of its own, written for the author of the next store: what it promises, and the
code, where every store does the same with its own statements. A store holds bytes and a few columns
to find them by; it decides nothing. Everything that belongs together is written in one transaction
by `Log.commit`. Times are seconds since 1970, passed in by the caller: a store decides nothing by a
clock of its own. Ids are texts. `tests/store` is the test suite of these promises; a new store
joins it by one fixture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol, Self

import msgspec

from noetl.errors import StoreError
from noetl.model.commands import Presence
from noetl.store.access import Access, Sessions
from noetl.store.bodies import Bodies
from noetl.store.catalog import Catalog
from noetl.store.check import problems
from noetl.store.checksums import first_sentence
from noetl.store.credentials import Credentials
from noetl.store.database import Database, columns_of
from noetl.store.limits import Limits
from noetl.store.log import Log
from noetl.store.queue import Queue
from noetl.store.records import Records
from noetl.store.retention import Retention
from noetl.store.triggers import Messages, Triggers


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A server or worker process that sends heartbeats."""

    name: str
    kind: Literal["server", "worker"]
    started_at: float
    seen_at: float
    pool: str = ""
    slots: int = 0
    host: str = ""
    version: str = ""
    draining: bool = False
    """It takes no new work."""
    sandbox: str = ""
    """How a worker isolates code and programs of tasks: `processes` or `namespaces`."""

    @classmethod
    def of(cls, me: Presence, name: str, now: float) -> Self:
        """A heartbeat of a worker, under its name in records."""
        said = {key: getattr(me, key) for key in me.__struct_fields__ if key != "worker_id"}
        return cls(name=name, kind="worker", started_at=now, seen_at=now, **said)


class Runtimes:
    """The processes that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, runtime: Runtime) -> None:
        """A heartbeat of this process, with its current state. Its start time never changes."""
        await self._database.change("beat", **columns_of(runtime))

    async def all(self, *, kind: str | None = None, since: float | None = None) -> list[Runtime]:
        """Processes by name; optionally of one kind, or seen at or after a moment."""
        return await self._database.rows("runtimes", _runtime_of, kind=kind, since=since)

    async def leave(self, name: str) -> bool:
        """This process ends. Returns whether it was known."""
        return await self._database.change("leave", name=name) > 0


def _runtime_of(draining: int, **fields: Any) -> Runtime:
    return Runtime(draining=bool(draining), **fields)


class Channel(Protocol):
    """Short messages between all processes on one database. Any of them may be lost."""

    async def send(self, text: str) -> None:
        """Send to the others. Raises StoreError if that is impossible at the moment."""

    def messages(self) -> AsyncIterator[str]:
        """What others send from now on. Raises StoreError when the connection breaks."""


class Store(ABC):
    """One database. Open it with its `open(url)`, close it with `close()`."""

    log: Log
    queue: Queue
    bodies: Bodies
    retention: Retention

    exclusive: bool
    """No other process writes while this one has it open. `wiring` asks, and hands out what
    follows from it as values."""
    channel: Channel | None
    """Notifies the others that something was written; None if there are none."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.records = Records(database)
        self.catalog = Catalog(database)
        self.triggers = Triggers(database)
        self.messages = Messages(database)
        self.limits = Limits(database)
        self.credentials = Credentials(database)
        self.access = Access(database)
        self.sessions = Sessions(database)
        self.runtimes = Runtimes(database)

    @abstractmethod
    async def time(self) -> float:
        """Seconds since 1970 by the clock that all users of this database share."""

    async def installation(self) -> str:
        """The identity of this database: generated when it was created, and never changed."""
        [found] = await self._database.column("installation")
        return str(found)

    @abstractmethod
    async def probe(self) -> None:
        """Raise StoreError with the reason if, as far as is known, nothing can be written now.

        StoreBusy: it does not answer; StoreFull: there is no room.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish writes under way, then close the database."""

    async def check(self) -> list[str]:
        """All damage, one sentence each; reads everything."""
        try:
            found = await self._own_problems()
        except StoreError as error:
            found = [f"The database itself cannot be checked: {first_sentence(error)}"]
        return found + await problems(self._database, self.bodies)

    @abstractmethod
    async def _own_problems(self) -> list[str]:
        """Damage that only this kind of database knows of."""
