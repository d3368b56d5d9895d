"""The executions that this process has in memory: those at work, and a few that are quiet.

An execution without open commands is quiet: it waits for the world, for a moment, for a child, or
has ended. Its state is in the store and is read again when something happens to it, so thousands
of them cost nothing here.
"""

from __future__ import annotations

from noetl.control import bodies
from noetl.control.live import Live, fold, key_of
from noetl.control.programs import Programs
from noetl.errors import Conflict, NotFound
from noetl.model.ids import ExecutionId
from noetl.store.base import Store

QUIET_KEPT = 200


class Memory:
    """Executions by id; the state of any other comes from the store."""

    def __init__(self, store: Store, programs: Programs) -> None:
        self._store = store
        self._programs = programs
        self._live: dict[ExecutionId, Live] = {}
        self._quiet: dict[ExecutionId, None] = {}
        """Those that may be forgotten, the one that was quiet longest first."""
        self._unverified: list[ExecutionId] = []
        """What is still to be compared with the store on this way through the busy ones."""
        self._reading: dict[ExecutionId, object] = {}
        """What is being read from the store, unless it was let go of since: then what is read is
        perhaps older than what was."""

    def find(self, execution_id: ExecutionId) -> Live | None:
        """What is in memory."""
        return self._live.get(execution_id)

    def put(self, live: Live) -> None:
        self._reading.pop(live.execution_id, None)
        self._live[live.execution_id] = live

    async def refuse_taken_key(self, live: Live) -> None:
        """Raises Conflict if another execution was started under its idempotency key."""
        known = await self._store.by_key(live.key) if live.key is not None else None
        if known is not None:
            raise Conflict(f"execution {known.execution_id} was started under the same key.")

    def drop(self, execution_id: ExecutionId) -> None:
        """It is not what is stored; read it again when it is needed."""
        self._live.pop(execution_id, None)
        self._quiet.pop(execution_id, None)
        self._reading.pop(execution_id, None)

    async def get(self, execution_id: ExecutionId) -> Live:
        """The execution, read from the store if need be."""
        while (live := self._live.get(execution_id)) is None:
            reading = self._reading.setdefault(execution_id, object())
            try:
                read = await self.read(execution_id)
            except BaseException:
                self._reading.pop(execution_id, None)
                raise
            if self._reading.get(execution_id) is reading:
                self.put(read)
                self.note(read)
        return live

    async def read(self, execution_id: ExecutionId) -> Live:
        """As it is stored, whatever is in memory."""
        loaded = await self._store.load(execution_id)
        if loaded is None:
            raise NotFound(f"there is no execution {execution_id}.")
        state = fold(loaded)
        live = Live(execution_id, await self._programs.by_digest(state.digest), state)
        live.key = key_of(loaded)
        live.snapshot_seq = loaded.snapshot_seq
        return live

    def note(self, live: Live) -> None:
        """What is stored of it is what is in memory: it may be forgotten once it is quiet."""
        self._quiet.pop(live.execution_id, None)
        if not live.state.holders:
            self._quiet[live.execution_id] = None

    def busy(self, limit: int | None = None) -> list[ExecutionId]:
        """The next so many that are not quiet, in turn; None: all of them.

        Another server may have gone on with them. Who forgets only what is quiet would keep them
        for ever if it was not told.
        """
        if limit is None or not self._unverified:
            self._unverified = list(self._live.keys() - self._quiet.keys())
        chosen = self._unverified[:limit]
        del self._unverified[:limit]
        return chosen

    def forget(self) -> None:
        """Let go of what has been quiet longest. Only while nothing is being decided."""
        while len(self._quiet) > QUIET_KEPT:
            execution_id = next(iter(self._quiet))
            bodies.let_go(self._live[execution_id])
            self.drop(execution_id)
