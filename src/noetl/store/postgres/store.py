"""The store in PostgreSQL, shared by any number of servers: its parts over one pool."""

from __future__ import annotations

from noetl.store.access import Access, Sessions
from noetl.store.base import Channel, Runtime
from noetl.store.bodies import Bodies
from noetl.store.catalog import Catalog
from noetl.store.credentials import Credentials
from noetl.store.limits import Limits
from noetl.store.log import Log
from noetl.store.postgres import check
from noetl.store.postgres.access import PostgresAccess, PostgresCredentials, PostgresSessions
from noetl.store.postgres.bodies import PostgresBodies
from noetl.store.postgres.catalog import PostgresCatalog
from noetl.store.postgres.channel import PostgresChannel
from noetl.store.postgres.commit_connection import STATEMENT_SECONDS, limited
from noetl.store.postgres.database import Database, connect, conninfo_of, place_of
from noetl.store.postgres.faults import FORESEEN, fault
from noetl.store.postgres.limits import PostgresLimits
from noetl.store.postgres.log import PostgresLog
from noetl.store.postgres.queue import PostgresQueue
from noetl.store.postgres.records import PostgresRecords
from noetl.store.postgres.retention import PostgresRetention
from noetl.store.postgres.schema import migrate, require_current, schema_version
from noetl.store.postgres.triggers import PostgresMessages, PostgresTriggers
from noetl.store.queries import columns_of
from noetl.store.queue import Queue
from noetl.store.records import Records
from noetl.store.retention import Retention
from noetl.store.triggers import Messages, Triggers


class PostgresStore:
    """See `noetl.store.base.Store`. Open it with `open`."""

    exclusive = False

    def __init__(self, database: Database, channel: PostgresChannel) -> None:
        self._database = database
        self._channel = channel
        self.channel: Channel | None = channel
        self.log: Log = PostgresLog(database)
        self.queue: Queue = PostgresQueue(database)
        self.records: Records = PostgresRecords(database)
        self.bodies: Bodies = PostgresBodies(database)
        self.catalog: Catalog = PostgresCatalog(database)
        self.triggers: Triggers = PostgresTriggers(database)
        self.messages: Messages = PostgresMessages(database)
        self.limits: Limits = PostgresLimits(database)
        self.retention: Retention = PostgresRetention(database)
        self.credentials: Credentials = PostgresCredentials(database)
        self.access: Access = PostgresAccess(database)
        self.sessions: Sessions = PostgresSessions(database)

    @classmethod
    async def open(cls, url: str, *, shared: bool = False) -> PostgresStore:
        """Open a database; unless `shared`, create or upgrade our schema if need be."""
        conninfo = conninfo_of(url)
        place = place_of(conninfo)
        async with await connect(conninfo) as db:
            try:
                # A migration may take long; checking the version may not.
                with limited(db, STATEMENT_SECONDS):
                    await schema_version(db)
                await (require_current if shared else migrate)(db, place)
            except FORESEEN as error:
                raise fault(error, place) from error
        database = Database(conninfo)
        await database.open()
        store = cls(database, PostgresChannel(conninfo))
        if not shared:
            await PostgresRetention(database).add_partitions(await store.time())
        return store

    async def time(self) -> float:
        row = await self._database.one("time")
        assert row is not None
        return float(row["now"])

    async def installation(self) -> str:
        row = await self._database.one("installation")
        assert row is not None, "it was made with the table"
        return str(row["installation_id"])

    async def probe(self) -> None:
        await self._database.probe()

    async def close(self) -> None:
        await self._database.close()
        await self._channel.close()

    async def check(self) -> list[str]:
        return await check.problems(self._database)

    async def beat(self, runtime: Runtime) -> None:
        await self._database.change("beat", columns_of(runtime))

    async def runtimes(
        self, *, kind: str | None = None, since: float | None = None
    ) -> list[Runtime]:
        return await self._database.rows("runtimes", Runtime, {"kind": kind, "since": since})

    async def leave(self, name: str) -> bool:
        return await self._database.change("leave", {"name": name}) > 0
