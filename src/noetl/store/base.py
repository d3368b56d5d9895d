"""The promise every store keeps. Written for whoever implements the next one.

A store keeps bytes and a few columns to find them by; it decides nothing. Everything that belongs
together is written in one transaction by `commit`. Times are seconds since 1970, handed in by the
caller: a store decides nothing by a clock of its own. Ids are texts. `tests/store` is this page as
a test suite; a new store joins it by one fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from noetl.model.commands import Command, Lease
from noetl.model.execution_query import Wanted
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.triggers import TriggerChange
from noetl.store.access import AccessStore, AuditEntry
from noetl.store.triggers import Renewed, TriggerStore


class Facts(NamedTuple):
    """Events to append: how many, and their JSON objects with commas between them."""

    size: int
    json: bytes


class EventRow(NamedTuple):
    """One event as read. `seq` counts per execution from 1 without gaps; the fields after it are
    those of the event itself, an object in JSON, that people choose events by.
    """

    seq: int
    type: str
    at: float
    step: str
    step_run_id: str
    body: bytes
    recorded_at: float = 0.0
    """When a server took the report that this event came with; 0 where no report brought it."""


class NewCommand(NamedTuple):
    """A command to insert, perhaps already leased ("leased at birth")."""

    command: Command
    worker_id: str | None = None
    expires_at: float | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The row of an execution that lists show. Always equal to the fold of its events."""

    execution_id: ExecutionId
    path: str
    version: int | None
    digest: str
    status: str
    requested_at: float
    ended_at: float | None = None
    parent_execution_id: ExecutionId | None = None
    idempotency_key: str | None = None
    current_steps: tuple[str, ...] = ()
    error: str | None = None
    labels: dict[str, str] = {}
    failed_step: str | None = None
    """The step that it failed in; empty if in none. None: written by a version without this."""
    waits: str | None = None
    """What from outside a step waits for, `form` or `event`; empty: nothing. None: as above."""


class Slot(NamedTuple):
    """A limit that an execution is held to: so many that have it run at the same time."""

    name: str
    capacity: int
    replaces: bool = False
    """Older ones make room for newer ones."""
    priority: int = 0


class SlotUse(NamedTuple):
    """An execution that holds a slot of a limit, or waits for one."""

    execution_id: ExecutionId
    name: str
    capacity: int
    held: bool
    path: str


class Write(msgspec.Struct, kw_only=True):
    """Everything that one decision changes in one execution."""

    execution_id: ExecutionId
    seq_before: int
    """The last seq the decision was made on; 0 for a new execution."""
    events: list[Facts] = []
    commands: list[NewCommand] = []
    closed: list[CommandId] = []
    """Commands that are over: reported, cancelled, lost."""
    timers: list[tuple[str, float]] = []
    """Timers to set: id and the moment they fire."""
    timers_cleared: list[str] = []
    results: list[tuple[str, bytes]] = []
    """Bodies kept by reference: key and JSON bytes. Writing a key again changes nothing."""
    summary: Summary | None = None
    snapshot: bytes | None = None
    """The state after these events; kept beside the log, which stays whole."""
    vars: dict[str, bytes | None] = {}
    """Execution variables to set (JSON bytes) or delete (None)."""
    audit: list[AuditEntry] = []
    """Who did from outside what these events record."""
    trigger: TriggerChange | None = None
    """What started it: if that row has moved, so has the execution, and nothing is kept."""
    slots: tuple[Slot, ...] = ()
    """The limits of the execution, where this write makes it wait (its summary is PENDING), run, or
    end. It runs only if all of them have room; then it holds a slot of each until it ends."""
    full: tuple[str, ...] = ()
    """Set by the store: it was refused, because these limits have no room."""

    @property
    def seq_after(self) -> int:
        """The last seq of its events."""
        return self.seq_before + sum([facts.size for facts in self.events])


class Loaded(NamedTuple):
    """What is needed to have an execution's state: a snapshot, if any, and the events after it,
    in JSON arrays of one or more.
    """

    snapshot_seq: int
    snapshot: bytes | None
    events: list[bytes]


class Holder(NamedTuple):
    """Who has a command that is not closed."""

    execution_id: ExecutionId
    worker_id: str


class Lapsed(NamedTuple):
    """A command whose lease has run out, and who held it."""

    command: Command
    worker_id: str
    expired_at: float


class Ended(NamedTuple):
    """An execution that nobody called and that has ended."""

    execution_id: ExecutionId
    path: str
    status: str
    ended_at: float


class Member(NamedTuple):
    """An execution of a tree: one that nobody called, what it called, and so on."""

    execution_id: ExecutionId
    has_ended: bool
    is_held: bool
    """Somebody wants it to be kept."""
    is_reused: bool
    """An execution outside of the tree stands on its results."""
    seq: int
    """How many events it has."""


class Forgotten(NamedTuple):
    """Executions of one day, path and status that are not kept any more."""

    day: int
    """Days since 1970."""
    path: str
    status: str
    executions: int


class Hold(NamedTuple):
    """Why an execution is kept, by whose wish, and since when."""

    execution_id: ExecutionId
    note: str
    who: str
    at: float


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


VERSION_MAX = 2**31 - 1


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A registered document. Versions of a path count from 1."""

    catalog_id: str
    path: str
    version: int
    kind: str
    digest: str
    content: str
    description: str = ""
    created_at: float = 0.0


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    """A query of executions that was saved under a name."""

    name: str
    q: str
    columns: tuple[str, ...] = ()
    owner: str = ""
    updated_at: float = 0.0


class StoredCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A credential, its data encrypted by the vault."""

    name: str
    type: str
    data: bytes
    description: str = ""
    tags: tuple[str, ...] = ()
    playbooks: tuple[str, ...] = ()
    """Paths that may use it, as patterns; all if there are none."""
    created_at: float = 0.0
    updated_at: float = 0.0


class Channel(Protocol):
    """Short messages between all processes on one database. Any of them may be lost."""

    async def send(self, text: str) -> None:
        """Tell the others. Raises StoreError when that is impossible just now."""

    def messages(self) -> AsyncIterator[str]:
        """What others send from now on; raises StoreError when the line breaks."""


class Pieces(NamedTuple):
    """A body that is read as it is needed."""

    size: int
    pieces: AsyncIterator[bytes]


class BodyCopies(Protocol):
    """Copies of large bodies that spare the database. Any of them may be missing."""

    async def get(self, sha256: str, size: int) -> bytes | None:
        """The copy of the body with this checksum, perhaps damaged; None if there is none."""

    def offer(self, sha256: str, body: bytes) -> None:
        """This body was read: a copy may be made of it."""


class Store(AccessStore, TriggerStore, Protocol):
    """A database with executions in it. Open it with its `open(url)`, close it with `close()`."""

    exclusive: bool
    """No other process writes while this one has it open."""
    channel: Channel | None
    """How to tell the others that something was written; None if there are none."""
    copies: BodyCopies | None
    """Where large bodies are looked for before the database is asked for them, if anywhere."""

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

    # --- Writing executions ---

    async def commit(
        self, writes: Sequence[Write], *, tied: Sequence[Collection[ExecutionId]] = ()
    ) -> list[ExecutionId]:
        """Write all of these; each execution all or nothing.

        An execution whose stored seq is not `seq_before` any more has moved: nothing of its write
        is kept and its id is in the answer. So no event is written twice: its seq is its place in
        the log, and its id is derived from that. The other writes are not affected, except those
        that are tied to it: of executions that are tied together, all are kept or none. When this
        returns, what it wrote survives the power plug.

        An execution that would run while one of its limits (`slots`) has no room is refused like
        one that has moved, and its write says so (`full`). Whether there is room is found out and
        the slot taken in one transaction that excludes all others of that limit.
        """

    # --- Reading executions ---

    async def load(self, execution_id: ExecutionId) -> Loaded | None:
        """Newest snapshot and the events after it; None if there is no such execution.

        Raises Corrupted if what is stored is not what was written.
        """

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
        """Events with a seq above `after`, in order. With a `size`, no further ones once they have
        so many bytes."""

    async def summary(self, execution_id: ExecutionId) -> Summary | None:
        """The list row of one execution."""

    async def summaries(
        self,
        wanted: Wanted = (),
        *,
        now: float = 0.0,
        before: tuple[float, ExecutionId] | None = None,
        limit: int = 50,
    ) -> list[Summary]:
        """Executions that match, newest first; `before` is where the last page ended
        (requested_at, id). `now` is for how long those that have not ended have taken."""

    async def count(self, wanted: Wanted = (), *, now: float = 0.0) -> int:
        """How many executions match."""

    async def span(self, wanted: Wanted = (), *, now: float = 0.0) -> tuple[float, float] | None:
        """When the first and the last execution that match were requested; None if none does."""

    async def histogram(
        self, wanted: Wanted = (), *, now: float = 0.0, begin: float, width: float, end: float
    ) -> list[tuple[int, str, int]]:
        """How many executions match by time and status, from `begin` to before `end`: number of
        the bucket, status and count, for those that are not empty, in order."""

    async def openings(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, bytes]:
        """The first events of each of these that exists, as a JSON array."""

    async def label_counts(
        self, label: str, *, since: float | None = None, limit: int = 100
    ) -> list[tuple[str, int]]:
        """The values of a label and how many executions have each, most frequent first."""

    async def by_key(self, key: str) -> Summary | None:
        """The execution that was started under this idempotency key."""

    async def unfinished(self) -> list[ExecutionId]:
        """Every execution that has not ended."""

    async def heads(self, execution_ids: Collection[ExecutionId]) -> dict[ExecutionId, int]:
        """The last seq of each of these that exists."""

    # --- Limits ---

    async def slot_uses(self, names: Collection[str], *, limit: int = 100) -> list[SlotUse]:
        """Who holds a slot of these limits, and who waits for one, in the order they will run."""

    async def admissible(self, *, limit: int = 100) -> list[ExecutionId]:
        """Executions that wait although all their limits have room, in the order of their turn."""

    async def displaced(self, *, limit: int = 100) -> list[tuple[ExecutionId, ExecutionId]]:
        """Executions that have to make room, and for which newer one."""

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
        """Lease up to `limit` free commands of a pool: highest priority first, then lowest turn,
        then oldest.

        Of these executions only, or of these commands, if some are named. With `own` of those that
        this process has opened, and none of them while one of a higher priority waits.

        Free: never leased. A command is leased once, under the token `token_of` it. When its lease
        lapses it stays where it is until a commit closes it: its work goes on under another one.
        """

    async def renew(
        self, commands: Collection[CommandId], *, now: float, expires_at: float
    ) -> set[CommandId]:
        """Extend these leases; those that still hold (not closed, not lapsed)."""

    async def holders(self, commands: Collection[CommandId]) -> dict[CommandId, Holder]:
        """Who has each of these that is leased, whether the lease has lapsed or not."""

    async def lapsed(self, *, now: float, limit: int = 100) -> list[Lapsed]:
        """Commands whose lease has lapsed, oldest first. Changes nothing."""

    async def free_pools(self) -> dict[str, int]:
        """Pools with commands that wait for a worker, and the turn of the next one."""

    async def queue_sizes(self) -> dict[str, tuple[int, int]]:
        """For each pool with commands: how many wait for a worker, and how many are leased."""

    async def open_commands(
        self, execution_id: ExecutionId | None = None
    ) -> list[tuple[Command, str | None, float | None]]:
        """Commands not closed, with worker and expiry where leased; of one execution, or all."""

    async def waiting_commands(self, *, limit: int = 1000) -> list[Command]:
        """Commands that no worker has, oldest first; damaged ones are left out."""

    async def due_timers(
        self, *, now: float, limit: int = 100
    ) -> list[tuple[ExecutionId, str, float]]:
        """Timers whose time has come, earliest first. They stay until a commit clears them."""

    async def timers(self, execution_id: ExecutionId) -> dict[str, float]:
        """The timers of an execution, and when each fires."""

    async def next_timer(self) -> float | None:
        """When the earliest timer fires."""

    # --- Who is there ---

    async def beat(self, runtime: Runtime) -> None:
        """Note that this process is there, as it is now. It has started once and only once."""

    async def runtimes(
        self, *, kind: str | None = None, since: float | None = None
    ) -> list[Runtime]:
        """Processes by name, perhaps of one kind or seen at or after a moment only."""

    async def leave(self, name: str) -> bool:
        """This process ends; whether it was known."""

    # --- Results ---

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> str:
        """Keep a body; its checksum (sha256, hex). The same key again changes nothing."""

    async def put_pieces(
        self,
        execution_id: ExecutionId,
        key: str,
        pieces: AsyncIterator[bytes],
        check: Callable[[str, int], None],
    ) -> str:
        """As `put_result`, for a body that comes in pieces, so that it need not be in memory.

        `check` is given checksum and size of what came, and raises if it is not to be kept. Then,
        and if `pieces` raises, nothing is.
        """

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes | None:
        """The body, verified against its checksum; raises Corrupted if it does not agree."""

    async def get_pieces(self, execution_id: ExecutionId, key: str) -> Pieces | None:
        """As `get_result`, in pieces. It is verified before the first one comes."""

    # --- Variables ---

    async def get_vars(self, execution_id: ExecutionId) -> dict[str, bytes]:
        """Every variable of an execution, as JSON bytes."""

    # --- Catalog and nets ---

    async def register(
        self, entry: CatalogEntry, net: bytes, renewed: Renewed | None = None
    ) -> CatalogEntry:
        """Keep a document. The same content again is the same version; new content is the next.

        Raises Conflict if the path belongs to a document of another kind. What `renewed` makes of
        the row of its trigger is written in the same transaction; it may be called again.
        """

    async def catalog_entry(self, path: str, version: int | None = None) -> CatalogEntry | None:
        """A version, by default the newest."""

    async def catalog_entry_of(self, catalog_id: str) -> CatalogEntry | None:
        """The version that has this id."""

    async def catalog(self, *, kind: str | None = None, prefix: str = "") -> list[CatalogEntry]:
        """The newest version of every path, by path."""

    async def versions(
        self, path: str, *, before: int | None = None, limit: int = 50
    ) -> list[CatalogEntry]:
        """Versions of a path below `before`, newest first."""

    async def net(self, digest: str) -> bytes | None:
        """The canonical bytes of a net."""

    async def put_net(self, digest: str, net: bytes) -> None:
        """Keep a net that is in no catalog: a file run directly."""

    # --- Credentials ---

    async def put_credential(self, credential: StoredCredential) -> None:
        """Create it, or replace its type, data, description and tags."""

    async def credential(self, name: str) -> StoredCredential | None:
        """By name."""

    async def credentials(self) -> list[StoredCredential]:
        """All, by name."""

    async def reseal_credential(self, name: str, *, old: bytes, new: bytes) -> bool:
        """Replace its data; False, and nothing is changed, if that is not `old` any more."""

    async def delete_credential(self, name: str) -> bool:
        """Whether there was one."""

    # --- Keeping and forgetting ---

    async def ended(
        self,
        *,
        before: float,
        prefix: str = "",
        after: tuple[float, ExecutionId] = (0.0, ""),
        limit: int = 200,
    ) -> list[Ended]:
        """Executions that nobody called and that ended before a moment, oldest first; `after` is
        where the last page ended (ended_at, id)."""

    async def tree(self, execution_id: ExecutionId) -> list[Member]:
        """An execution and all that it called, the called ones first; none if it is unknown."""

    async def forget(self, execution_ids: Collection[ExecutionId]) -> int:
        """Remove these with all that belongs to them, and count them; how many were removed.

        Whatever has not ended or is held stays.
        """

    async def forget_files(self) -> int:
        """Remove bodies in files that no execution refers to any more; how many bytes."""

    async def forgotten(self, *, since_day: int = 0) -> list[Forgotten]:
        """What is not kept any more, by day, path and status."""

    async def reuse(self, execution_id: ExecutionId, source: ExecutionId) -> None:
        """One execution stands on results of another, which must be kept as long as it is."""

    async def hold(self, hold: Hold) -> bool:
        """Keep an execution until it is released; False if there is no such execution."""

    async def release(self, execution_id: ExecutionId) -> bool:
        """Whether it was held."""

    async def holds(self) -> list[Hold]:
        """All of them, the newest first."""

    # --- Saved views ---

    async def views(self) -> list[SavedView]:
        """All, by name."""

    async def put_view(self, view: SavedView) -> None:
        """Create it, or replace it."""

    async def delete_view(self, name: str) -> bool:
        """Whether there was one."""

    # --- Upkeep ---

    async def check(self) -> list[str]:
        """Everything that is not what was written, one sentence each; reads all there is."""
