"""The store in PostgreSQL, shared by any number of servers: its parts over one pool."""

from __future__ import annotations

from noetl.store.base import Channel, Store
from noetl.store.migrations import require_none_missing
from noetl.store.postgres.bodies import PostgresBodies
from noetl.store.postgres.channel import PostgresChannel
from noetl.store.postgres.commit_connection import STATEMENT_SECONDS, limited
from noetl.store.postgres.database import PostgresDatabase, connect, conninfo_of, place_of
from noetl.store.postgres.faults import FORESEEN, fault
from noetl.store.postgres.log import PostgresLog
from noetl.store.postgres.queue import PostgresQueue
from noetl.store.postgres.retention import PostgresRetention
from noetl.store.postgres.schema import MIGRATIONS, applied, migrate


class PostgresStore(Store):
    """See `noetl.store.base.Store`. Open it with `open`."""

    _database: PostgresDatabase
    exclusive = False

    def __init__(self, database: PostgresDatabase, channel: PostgresChannel) -> None:
        super().__init__(database)
        self._channel = channel
        self.channel: Channel | None = channel
        self.log = PostgresLog(database)
        self.queue = PostgresQueue(database)
        self.bodies = PostgresBodies(database)
        self.retention = PostgresRetention(database)

    @classmethod
    async def open(cls, url: str, *, read_only: bool = False) -> PostgresStore:
        """Open a database, and create or upgrade our schema if need be. `read_only`: one that is
        missing or older is refused.
        """
        conninfo = conninfo_of(url)
        place = place_of(conninfo)
        async with await connect(conninfo) as db:
            try:
                # A migration may take long; checking the version may not.
                with limited(db, STATEMENT_SECONDS):
                    known = await applied(db)
                if read_only:
                    require_none_missing(known, MIGRATIONS, place)
                else:
                    await migrate(db, place)
            except FORESEEN as error:
                raise fault(error, place) from error
        database = PostgresDatabase(conninfo)
        await database.open()
        store = cls(database, PostgresChannel(conninfo))
        if not read_only:
            await PostgresRetention(database).add_partitions(await store.time())
        return store

    async def time(self) -> float:
        [now] = await self._database.column("time")
        return float(now)

    async def probe(self) -> None:
        await self._database.probe()

    async def close(self) -> None:
        await self._database.close()
        await self._channel.close()

    async def _own_problems(self) -> list[str]:
        strays = await self._database.column("check_strays")
        return [f"Events belong to execution {stray}, which is not there" for stray in strays]
