"""Watchers: parts of this process that hear when events of an execution are stored, or its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from noetl.model.ids import ExecutionId
from noetl.store.log import EventRow, Facts, Write, events_of, mark


class Changed:
    """Executions of which events were stored since the last look."""

    def __init__(self) -> None:
        self.signal = asyncio.Event()
        self._executions: set[ExecutionId] = set()

    def add(self, execution_id: ExecutionId) -> None:
        self._executions.add(execution_id)
        self.signal.set()

    def take(self) -> set[ExecutionId]:
        """Take what was gathered; gathering begins anew."""
        found, self._executions = self._executions, set()
        self.signal.clear()
        return found


class Tail:
    """What this process stores of an execution from now on, for a reader that takes its events one
    after the other: they need not be read from the store again. With `types`, only events of these
    types.

    Events are kept until they are taken, up to `size` bytes. Those that others store are not here.
    """

    def __init__(self, size: int, types: Sequence[str]) -> None:
        self.signal = asyncio.Event()
        """Set when there may be more."""
        self._types = types
        self._marks = [mark(type=one) for one in types]
        self._size = self._room = size
        self._stored: list[tuple[int, Sequence[Facts]]] = []
        """The seq before each write, and its events."""
        self._is_whole = False
        self._begin: int | None = None
        """The seq before the first write since the last `take`; None: there was none."""
        self.end = 0
        """The last event that was stored here."""

    def add(self, write: Write | None) -> None:
        """This was stored. None: another process stored something."""
        if write is None:
            self.miss()
            self.signal.set()
        elif write.events:
            is_wanted = not self._marks or any(
                one in facts.json for facts in write.events for one in self._marks
            )
            if self._is_whole:
                self._keep(write, is_wanted=is_wanted)
            if is_wanted or not self._is_whole:
                self.signal.set()

    def _keep(self, write: Write, *, is_wanted: bool) -> None:
        if self._begin is None:
            self._begin = self.end = write.seq_before
        if write.seq_before != self.end:
            self.miss()  # Another process stored what comes before it.
            return
        self.end += sum([facts.size for facts in write.events])
        if is_wanted:
            self._stored.append((write.seq_before, write.events))
            self._room -= sum([len(facts.json) for facts in write.events])
            if self._room < 0:
                self.miss()

    def miss(self) -> None:
        """There is more in the store than is known here."""
        self._stored, self._room, self._is_whole = [], self._size, False

    def take(self, after: int) -> list[EventRow] | None:
        """The events after that one, as far as there are any. None: read them from the store. What
        is stored from now on is here again."""
        self.signal.clear()
        is_whole = self._is_whole and (self._begin is None or self._begin <= after)
        rows = [
            row
            for before, facts in self._stored
            for row in events_of(facts, before)
            if row.seq > after and (not self._types or row.type in self._types)
        ]
        self.miss()
        self._is_whole, self._begin = True, None
        return rows if is_whole else None


class Watchers:
    """The watchers of this process."""

    def __init__(self) -> None:
        self._all: list[Changed] = []
        self._followed: dict[ExecutionId, list[Tail]] = {}
        self._waiting: dict[ExecutionId, list[asyncio.Future[None]]] = {}

    @contextmanager
    def follow(
        self, execution_id: ExecutionId, size: int = 0, types: Sequence[str] = ()
    ) -> Iterator[Tail]:
        """What is stored of the execution, for as long as this lasts. Whoever only wants to know
        that something was stored keeps nothing.
        """
        tail = Tail(size, types)
        followers = self._followed.setdefault(execution_id, [])
        followers.append(tail)
        try:
            yield tail
        finally:
            followers.remove(tail)
            if not followers:
                del self._followed[execution_id]

    @contextmanager
    def all(self) -> Iterator[Changed]:
        """What changes in any execution, for as long as this lasts."""
        changed = Changed()
        self._all.append(changed)
        try:
            yield changed
        finally:
            self._all.remove(changed)

    def end(self, execution_id: ExecutionId) -> asyncio.Future[None]:
        """Done when the execution may have ended: look again then."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(execution_id, []).append(future)
        return future

    def tell(self, execution_id: ExecutionId, write: Write | None, *, may_have_ended: bool) -> None:
        """This was stored. None: another process stored something, it is not known what."""
        for changed in self._all:
            changed.add(execution_id)
        for tail in self._followed.get(execution_id, ()):
            tail.add(write)
        if may_have_ended:
            for future in self._waiting.pop(execution_id, ()):
                if not future.done():
                    future.set_result(None)

    def doubt(self, execution_id: ExecutionId) -> None:
        """Others may have stored something that was not told: whoever watches it looks again."""
        if execution_id in self._followed or execution_id in self._waiting:
            self.tell(execution_id, None, may_have_ended=True)

    def executions(self) -> set[ExecutionId]:
        """Executions that are followed, or whose end is waited for."""
        return self._followed.keys() | self._waiting.keys()
