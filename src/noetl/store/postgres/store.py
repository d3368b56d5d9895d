"""The store in PostgreSQL, shared by any number of servers.

What the methods promise is written in `noetl.store.base`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from hashlib import sha256

import msgspec

from noetl.model.commands import Command, Lease
from noetl.model.execution_query import Wanted
from noetl.model.ids import CommandId, ExecutionId
from noetl.store import listing
from noetl.store.base import (
    VERSION_MAX,
    BodyCopies,
    CatalogEntry,
    Channel,
    Ended,
    EventRow,
    Forgotten,
    Hold,
    Holder,
    Lapsed,
    Loaded,
    Member,
    Pieces,
    Runtime,
    SavedView,
    SlotUse,
    StoredCredential,
    Summary,
    Write,
)
from noetl.store.checksums import Head, damaged_result, verified_entry, verified_net
from noetl.store.heads import Heads
from noetl.store.log import Selection
from noetl.store.pieces import PIECE, checked, one_piece
from noetl.store.postgres import cataloguing, checking, committing, reading, working, writing
from noetl.store.postgres.access import AccessMethods
from noetl.store.postgres.channel import PostgresChannel
from noetl.store.postgres.connections import (
    BODY_SECONDS,
    Database,
    connect,
    conninfo_of,
    place_of,
)
from noetl.store.postgres.faults import FORESEEN, fault
from noetl.store.postgres.line import STATEMENT_SECONDS, limited
from noetl.store.postgres.schema import migrate, require_current, schema_version
from noetl.store.postgres.triggers import TriggerMethods
from noetl.store.triggers import Renewed

COPIED_MAX = 32 * 1024 * 1024
"""Larger bodies have no copies in NATS."""


class PostgresStore(AccessMethods, TriggerMethods):
    """See `noetl.store.base.Store`. Open it with `open`."""

    exclusive = False

    def __init__(self, database: Database, channel: PostgresChannel) -> None:
        self._database = database
        self._line = channel
        self.channel: Channel | None = channel
        self.copies: BodyCopies | None = None
        self._heads: Heads[Head] = Heads()

    @classmethod
    async def open(cls, url: str, *, shared: bool = False) -> PostgresStore:
        """Open a database; unless `shared`, create or upgrade our schema if need be."""
        conninfo = conninfo_of(url)
        place = place_of(conninfo)
        async with await connect(conninfo) as db:
            try:
                # A migration may take long; to say which version there is may not.
                with limited(db, STATEMENT_SECONDS):
                    await schema_version(db)
                await (require_current if shared else migrate)(db, place)
            except FORESEEN as error:
                raise fault(error, place) from error
        database = Database(conninfo)
        await database.open()
        return cls(database, PostgresChannel(conninfo))

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
        await self._line.close()

    # --- Writing executions ---

    async def commit(
        self, writes: Sequence[Write], *, tied: Sequence[Collection[ExecutionId]] = ()
    ) -> list[ExecutionId]:
        if not writes:
            return []
        try:
            return await writing.commit(self._database, writes, self._heads, tied)
        except FORESEEN as error:
            raise self._database.fault(error) from error

    # --- Reading executions ---

    async def load(self, execution_id: ExecutionId) -> Loaded | None:
        log = await reading.load(self._database, execution_id)
        if log is None:
            return None
        self._heads.remember(execution_id, log.end)
        return log.loaded

    async def events(
        self,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        limit: int = 1000,
        types: Sequence[str] = (),
        step: str | None = None,
        size: int | None = None,
    ) -> list[EventRow]:
        wanted = Selection(after, limit, types, step, size)
        return await reading.events(self._database, execution_id, wanted)

    async def summary(self, execution_id: ExecutionId) -> Summary | None:
        row = await self._database.one("summary", {"execution_id": execution_id})
        return listing.summary_of(row) if row else None

    async def summaries(
        self,
        wanted: Wanted = (),
        *,
        now: float = 0.0,
        before: tuple[float, ExecutionId] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        rows = await self._database.found("summaries", wanted, now, listing.page(before, limit))
        return [listing.summary_of(row) for row in rows]

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        [row] = await self._database.found("executions_count", wanted, now)
        return int(row["count"])

    async def span(self, wanted: Wanted = (), *, now: float = 0.0) -> tuple[float, float] | None:
        [row] = await self._database.found("executions_span", wanted, now)
        return None if row["first"] is None else (row["first"], row["last"])

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        chosen = {"begin": begin, "width": width, "end": end}
        rows = await self._database.found("executions_histogram", wanted, now, chosen)
        return sorted((row["bucket"], row["status"], row["count"]) for row in rows)

    async def openings(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, bytes]:
        rows = await self._database.all("openings", {"executions": list(execution_ids)})
        return {row["execution_id"]: row["events"] for row in rows}

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        found = await self._database.all("label_counts", listing.counts(label, since, limit))
        return [(row["value"], row["executions"]) for row in found]

    async def by_key(self, key: str) -> Summary | None:
        row = await self._database.one("summary_by_key", {"key": key})
        return listing.summary_of(row) if row else None

    async def unfinished(self) -> list[ExecutionId]:
        return [row["execution_id"] for row in await self._database.all("unfinished")]

    async def heads(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, int]:
        chosen = {"executions": list(execution_ids)}
        found = await self._database.all("heads_to_chain", chosen)
        return {row["execution_id"]: row["seq"] for row in found}

    # --- Keeping and forgetting ---

    async def ended(
        self,
        *,
        before: float,
        prefix: str = "",
        after: tuple[float, ExecutionId] = (0.0, ""),
        limit: int = 200,
    ) -> list[Ended]:
        chosen = {
            "before": before,
            "prefix": prefix,
            "after_at": after[0],
            "after_id": after[1],
            "limit": limit,
        }
        return [Ended(**row) for row in await self._database.all("ended", chosen)]

    async def tree(self, execution_id: ExecutionId) -> list[Member]:
        rows = await self._database.all("tree", {"execution_id": execution_id}, BODY_SECONDS)
        return [Member(**row) for row in rows]

    async def forget(self, execution_ids: Collection[ExecutionId]) -> int:
        wanted = sorted(execution_ids)
        return await self._database.run(lambda db: writing.forget(db, wanted), BODY_SECONDS)

    async def forget_files(self) -> int:
        return 0  # Bodies are rows, and go with their execution.

    async def forgotten(self, *, since_day: int = 0) -> list[Forgotten]:
        rows = await self._database.all("forgotten", {"since_day": since_day})
        return [Forgotten(**row) for row in rows]

    async def reuse(self, execution_id: ExecutionId, source: ExecutionId) -> None:
        await self._database.change("reuse", {"execution_id": execution_id, "source": source})

    async def hold(self, hold: Hold) -> bool:
        return await self._database.change("hold", hold._asdict()) > 0

    async def release(self, execution_id: ExecutionId) -> bool:
        return await self._database.change("release", {"execution_id": execution_id}) > 0

    async def holds(self) -> list[Hold]:
        return [Hold(**row) for row in await self._database.all("holds")]

    # --- Limits ---

    async def slot_uses(self, names: Collection[str], *, limit: int = 100) -> list[SlotUse]:
        chosen = {"names": list(names), "limit": limit}
        return [SlotUse(**row) for row in await self._database.all("slot_holders", chosen)]

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        found = await self._database.all("admissible", {"limit": limit})
        return [row["execution_id"] for row in found]

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        found = await self._database.all("displaced", {"limit": limit})
        return [(row["execution_id"], row["by"]) for row in found]

    # --- Work ---

    async def claim(
        self,
        worker_id: str,
        *,
        pool: str,
        limit: int,
        expires_at: float,
        executions: Collection[ExecutionId] | None = None,
        commands: Collection[CommandId] | None = None,
        own: bool = False,
    ) -> list[Lease]:
        chosen: dict[str, object] = {"worker_id": worker_id, "pool": pool}
        chosen["expires_at"] = expires_at
        name = "claim"
        if own:
            name = "claim_own"
            chosen["home"] = self._database.home
        elif executions is not None or commands is not None:
            name = "claim_of"
            chosen["executions"] = None if executions is None else list(executions)
            chosen["commands"] = None if commands is None else list(commands)
        return await working.claim(self._database, name, chosen, limit)

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        chosen = {"commands": list(commands), "now": now, "expires_at": expires_at}
        return {row["command_id"] for row in await self._database.all("renew_leases", chosen)}

    async def holders(self, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
        rows = await self._database.all("holders", {"commands": list(commands)})
        return {row["command_id"]: Holder(row["execution_id"], row["worker_id"]) for row in rows}

    async def lapsed(self, *, now: float, limit: int = 100) -> list[Lapsed]:
        return await working.lapsed(self._database, now, limit)

    async def free_pools(self) -> dict[str, int]:
        return {row["pool"]: row["turn"] for row in await self._database.all("free_pools")}

    async def queue_sizes(self) -> dict[str, tuple[int, int]]:
        rows = await self._database.all("queue_sizes")
        return {row["pool"]: (row["free"], row["leased"]) for row in rows}

    async def open_commands(
        self, execution_id: ExecutionId | None = None
    ) -> list[tuple[Command, str | None, float | None]]:
        return await working.open_commands(self._database, execution_id)

    async def waiting_commands(self, *, limit: int = 1000) -> list[Command]:
        return await working.waiting_commands(self._database, limit)

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        rows = await self._database.all("due_timers", {"now": now, "limit": limit})
        return [(row["execution_id"], row["timer_id"], row["fires_at"]) for row in rows]

    async def timers(self, execution_id: ExecutionId) -> dict[str, float]:
        rows = await self._database.all("timers_of", {"execution_id": execution_id})
        return {row["timer_id"]: row["fires_at"] for row in rows}

    async def next_timer(self) -> float | None:
        row = await self._database.one("next_timer")
        return row["fires_at"] if row else None

    # --- Who is there ---

    async def beat(self, runtime: Runtime) -> None:
        await self._database.change("beat", msgspec.structs.asdict(runtime))

    async def runtimes(
        self, *, kind: str | None = None, since: float | None = None
    ) -> list[Runtime]:
        rows = await self._database.all("runtimes", {"kind": kind, "since": since})
        return [Runtime(**row) for row in rows]

    async def leave(self, name: str) -> bool:
        return await self._database.change("leave", {"name": name}) > 0

    # --- Results ---

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> str:
        new = committing.result_row(execution_id, key, body)
        await self._database.change("put_result", new, BODY_SECONDS)
        chosen = {"execution_id": execution_id, "key": key}
        row = await self._database.one("result_checksum", chosen)
        assert row is not None, "it is there now, and results are never removed"
        return str(row["sha256"])

    async def put_pieces(
        self,
        execution_id: ExecutionId,
        key: str,
        pieces: AsyncIterator[bytes],
        check: Callable[[str, int], None],
    ) -> str:
        # A row is sent as a whole, so here the body is in memory once.
        body = bytearray()
        async for piece in pieces:
            body += piece
            committing.allow_size(execution_id, key, len(body))
        return await self.put_result(execution_id, key, checked(bytes(body), check))

    async def get_pieces(self, execution_id: ExecutionId, key: str) -> Pieces | None:
        chosen = {"execution_id": execution_id, "key": key}
        row = await self._database.one("result_checksum", chosen)
        if row is None:
            return None
        size = row["size"]
        if size <= (PIECE if self.copies is None else COPIED_MAX):
            body = await self.get_result(execution_id, key)
            assert body is not None, "it was there, and results are never removed"
            return Pieces(size, one_piece(body))
        whole = await self._database.one("result_is_whole", chosen, BODY_SECONDS)
        if whole is None or not whole["is_whole"]:
            raise damaged_result(execution_id, key, row["sha256"])
        return Pieces(size, self._read_on(chosen, size))

    async def _read_on(self, chosen: dict[str, str], size: int) -> AsyncIterator[bytes]:
        for first in range(0, size, PIECE):
            place = {"first": first + 1, "count": PIECE}
            row = await self._database.one("result_piece", chosen | place, BODY_SECONDS)
            assert row is not None, "it was there, and results are never removed"
            yield bytes(row["piece"])

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes | None:
        chosen = {"execution_id": execution_id, "key": key}
        if self.copies is not None:
            row = await self._database.one("result_checksum", chosen)
            if row is None:
                return None
            copy = await self.copies.get(row["sha256"], row["size"])
            if copy is not None and sha256(copy).hexdigest() == row["sha256"]:
                return copy
        row = await self._database.one("result", chosen, BODY_SECONDS)
        if row is None:
            return None
        body = bytes(row["body"])
        if sha256(body).hexdigest() != row["sha256"]:
            raise damaged_result(execution_id, key, row["sha256"])
        if self.copies is not None:
            self.copies.offer(row["sha256"], body)
        return body

    # --- Variables ---

    async def get_vars(self, execution_id: ExecutionId) -> dict[str, bytes]:
        rows = await self._database.all("vars", {"execution_id": execution_id})
        return {committing.read_name(row["name"]): row["value"] for row in rows}

    # --- Catalog and nets ---

    async def register(
        self, entry: CatalogEntry, net: bytes, renewed: Renewed | None = None
    ) -> CatalogEntry:
        return await self._database.together(
            lambda db: cataloguing.register(db, entry, net, renewed)
        )

    async def catalog_entry(self, path: str, version: int | None = None) -> CatalogEntry | None:
        name = "newest_entry" if version is None else "entry_of_version"
        row = await self._database.one(name, {"path": path, "version": version})
        return verified_entry(*cataloguing.entry_of(row)) if row else None

    async def catalog_entry_of(self, catalog_id: str) -> CatalogEntry | None:
        row = await self._database.one("entry_of_id", {"catalog_id": catalog_id})
        return verified_entry(*cataloguing.entry_of(row)) if row else None

    async def catalog(self, *, kind: str | None = None, prefix: str = "") -> list[CatalogEntry]:
        rows = await self._database.all("newest_entries", {"kind": kind, "prefix": prefix})
        return [cataloguing.entry_of(row)[0] for row in rows]

    async def versions(
        self, path: str, *, before: int | None = None, limit: int = 50
    ) -> list[CatalogEntry]:
        chosen = {"path": path, "before": VERSION_MAX if before is None else before, "limit": limit}
        return [
            cataloguing.entry_of(row)[0] for row in await self._database.all("versions", chosen)
        ]

    async def net(self, digest: str) -> bytes | None:
        row = await self._database.one("net", {"digest": digest})
        return verified_net(row["body"], digest) if row else None

    async def put_net(self, digest: str, net: bytes) -> None:
        await self._database.change("put_net", {"digest": digest, "body": net})

    # --- Credentials ---

    async def put_credential(self, credential: StoredCredential) -> None:
        row = cataloguing.credential_row(credential)
        await self._database.change("put_credential", row)

    async def credential(self, name: str) -> StoredCredential | None:
        row = await self._database.one("credential", {"name": name})
        return cataloguing.credential_of(row) if row else None

    async def credentials(self) -> list[StoredCredential]:
        return [cataloguing.credential_of(row) for row in await self._database.all("credentials")]

    async def reseal_credential(self, name: str, *, old: bytes, new: bytes) -> bool:
        values = {"name": name, "old": old, "new": new}
        return await self._database.change("reseal_credential", values) > 0

    async def delete_credential(self, name: str) -> bool:
        return await self._database.change("delete_credential", {"name": name}) > 0

    # --- Saved views ---

    async def views(self) -> list[SavedView]:
        return [cataloguing.view_of(row) for row in await self._database.all("views")]

    async def put_view(self, view: SavedView) -> None:
        columns = {"columns": msgspec.json.encode(view.columns).decode()}
        await self._database.change("put_view", msgspec.structs.asdict(view) | columns)

    async def delete_view(self, name: str) -> bool:
        return await self._database.change("delete_view", {"name": name}) > 0

    # --- Upkeep ---

    async def check(self) -> list[str]:
        return await checking.problems(self._database)
