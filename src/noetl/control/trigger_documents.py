"""The registered documents of one kind, each with its row: what all kinds of triggers share.

A document is in the catalog; its row has a revision and says which version holds, whether it is
paused, and what its kind keeps beside. A change of a row names the revision that was read, and
is tried again if the row has moved.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from noetl.control.catalog import Catalog
from noetl.control.clock import Clock
from noetl.control.executions import Executions
from noetl.control.triggers import Triggers
from noetl.errors import NotFound, StoreError
from noetl.model.facts import Actor
from noetl.model.ids import ExecutionId
from noetl.model.spelling import did_you_mean
from noetl.model.triggers import (
    PlaybookRef,
    SignalTarget,
    StartTarget,
    Trigger,
    TriggerChange,
    TriggerRow,
    TriggerTime,
    started_by,
)
from noetl.store import triggers as stored
from noetl.store.catalog import CatalogEntry
from noetl.templates import Limits, Scope, compile_value

if TYPE_CHECKING:
    from noetl.dsl import Compiled

ATTEMPTS_MAX = 50
SPECS_MAX = 20_000
LIMITS = Limits(ticks=500_000, text=4 * 1024 * 1024)
"""Limits of templates over data from outside."""


class TriggerState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of every document beside its text."""

    version: int
    """In the catalog."""
    digest: str
    status: Literal["active", "paused", "deleted"] = "active"
    reason: str = ""
    """Why it is paused."""


Document = TypeVar("Document", bound=Trigger)
State = TypeVar("State", bound=TriggerState)


class TriggerServices(NamedTuple):
    """What every kind of trigger works with."""

    rows: stored.Triggers
    catalog: Catalog
    executions: Executions
    clock: Clock
    triggers: Triggers


class TriggerDocuments(Generic[Document, State]):
    """Documents of one kind."""

    document: type[Document]
    state: type[State]

    def __init__(self, services: TriggerServices) -> None:
        self._rows, self._catalog, self._executions, self._clock, self._triggers = services
        self._specs: dict[str, Document] = {}

    @property
    def kind(self) -> str:
        return self.document.__name__

    # --- What a kind says of its own ---

    async def settle(self, row: TriggerRow) -> None:
        """Do what is due for a row of this kind, and move the row."""
        raise NotImplementedError

    def changed(self, path: str) -> None:
        """A document was registered, or people changed it: all servers look at once."""
        self._triggers.announce()

    def next_look(self, document: Document, state: State) -> float | None:
        """When a server has to look at a document in this state; None: never by itself."""
        return None

    def renewed(self, document: Document, digest: str, version: int, old: State | None) -> State:
        """The state of a document that is being registered. A pause holds."""
        if old is None:
            return self.state(version=version, digest=digest)
        status: Literal["active", "paused"] = "paused" if old.status == "paused" else "active"
        return msgspec.structs.replace(old, version=version, digest=digest, status=status)

    def paused(self, state: State, reason: str) -> State:
        """The state of one that is active, when it is to rest."""
        return msgspec.structs.replace(state, status="paused", reason=reason)

    def resumed(self, state: State) -> State:
        """The state of one that is paused, when it goes on."""
        return msgspec.structs.replace(state, status="active", reason="")

    # --- Reading ---

    def decoded(self, row: TriggerRow) -> State:
        return msgspec.json.decode(row.state, type=self.state)

    async def spec(self, digest: str) -> Document:
        found = self._specs.get(digest)
        if found is None:
            document = await self._catalog.by_digest(digest)
            if document is None:
                raise NotFound(
                    f"the {self.kind.lower()} {digest[:12]} is not stored; register it again."
                )
            assert isinstance(document, self.document)
            found = document
            if len(self._specs) >= SPECS_MAX:
                self._specs.pop(next(iter(self._specs)))
            self._specs[digest] = found
        return found

    async def row(self, path: str) -> TriggerRow:
        """Raises NotFound for what is none of this kind."""
        row = await self._rows.get(path)
        if row is None or row.kind != self.kind or self.decoded(row).status == "deleted":
            raise await self._unknown(path)
        return row

    async def _unknown(self, path: str) -> NotFound:
        known = [
            one.path
            for one in await self._rows.of_kind(self.kind)
            if not one.key and self.decoded(one).status != "deleted"
        ]
        word = self.kind.lower()
        return NotFound(
            f'no {word} "{path}" is registered.{did_you_mean(path, known)}'
            f" `noetl {word}s list` shows those there are."
        )

    async def find(self, path: str) -> tuple[Document, State]:
        """Raises NotFound for what is none of this kind."""
        state = self.decoded(await self.row(path))
        return await self.spec(state.digest), state

    async def all(self, prefix: str, after: str, limit: int) -> list[tuple[Document, State]]:
        """Documents by path, of those behind `after`."""
        found: list[tuple[Document, State]] = []
        last = (after, "\uffff") if after else ("", "")
        while len(found) < limit:
            rows = await self._rows.of_kind(self.kind, prefix=prefix, after=last, limit=limit)
            for row in rows:
                last = (row.path, row.key)
                if not row.key and (state := self.decoded(row)).status != "deleted":
                    found.append((await self.spec(state.digest), state))
            if len(rows) < limit:
                break
        return found[:limit]

    # --- Changing ---

    async def register(self, text: str, compiled: Compiled) -> CatalogEntry:
        """Keep a version; this server and the others take it over at once."""
        document = compiled.trigger
        assert isinstance(document, self.document)
        made = document

        def row(version: int, before: TriggerRow | None) -> TriggerRow:
            old = None if before is None else self.decoded(before)
            state = self.renewed(made, compiled.digest, version, old)
            kept = before or TriggerRow(path=made.path, kind=self.kind)
            return self.written(kept, state, made)

        entry = await self._catalog.keep(text, compiled, row)
        self.changed(entry.path)
        return entry

    async def lacks(self, document: Document) -> str:
        """Why it cannot start anything as it is; empty: it can."""
        wanted = started_by(document)
        try:
            if wanted is not None:
                await self._catalog.playbook(wanted.path, wanted.version)
        except NotFound as error:
            return f"{error} It starts nothing until there is one."
        return ""

    def written(self, row: TriggerRow, state: State, document: Document) -> TriggerRow:
        """The row of a document in this state."""
        return msgspec.structs.replace(
            row, next_at=self.next_look(document, state), state=msgspec.json.encode(state)
        )

    async def move(
        self,
        path: str,
        change: Callable[[State], State | None],
        times: tuple[TriggerTime, ...] = (),
    ) -> State | None:
        """Bring a document into another state, also if another process changes it meanwhile. None:
        it is none of this kind, or there is nothing to change.
        """
        for _ in range(ATTEMPTS_MAX):
            row = await self._rows.get(path)
            if row is None or row.kind != self.kind:
                return None
            state = change(self.decoded(row))
            if state is None:
                return None
            changed = self.written(row, state, await self.spec(state.digest))
            if await self._rows.change(TriggerChange(row=changed, times=times)):
                return state
        raise self._contended(path)

    def _contended(self, path: str) -> StoreError:
        return StoreError(
            f'the {self.kind.lower()} "{path}" is being changed elsewhere; try again.'
        )

    async def change(
        self, path: str, change: Callable[[State], State], times: tuple[TriggerTime, ...] = ()
    ) -> State:
        """Move a document because somebody asked to. Raises NotFound; every server hears of it."""
        state = await self.move(
            path, lambda state: None if state.status == "deleted" else change(state), times
        )
        if state is None:
            raise await self._unknown(path)
        self.changed(path)
        return state

    async def pause(self, path: str, reason: str = "") -> State:
        """It starts nothing until it is resumed."""
        return await self.change(path, lambda state: self.paused(state, reason))

    async def resume(self, path: str) -> State:
        """It continues from now on."""
        return await self.change(
            path, lambda state: state if state.status == "active" else self.resumed(state)
        )

    async def delete(self, path: str) -> None:
        """It starts nothing any more. The outcomes of what it started are kept."""
        await self.change(
            path, lambda state: msgspec.structs.replace(state, status="deleted", reason="")
        )

    # --- What a document makes happen ---

    async def start(
        self,
        path: str,
        playbook: PlaybookRef,
        workload: dict[str, Any],
        *,
        key: str | None,
        trigger: Callable[[ExecutionId], TriggerChange] | None = None,
    ) -> ExecutionId:
        """Start a playbook in the name of a document; see `Executions.start`."""
        entry = await self._catalog.playbook(playbook.path, playbook.version)
        return await self._executions.start(
            entry.digest,
            entry.path,
            entry.version,
            workload,
            key=key,
            is_newest=playbook.version is None,
            actor=self._actor(path),
            trigger=trigger,
        )

    async def signal(
        self, path: str, target: SignalTarget, name: str, scope: Scope, signal_id: str | None
    ) -> tuple[ExecutionId, ...]:
        """Wake those that wait for what came; the same id again changes nothing."""
        labels = rendered(target.labels, scope) if target.labels else {}
        shown: Any = scope.roots[name]
        found = await self._executions.signal_matching(
            target.signal,
            shown["body"] if target.data is None else rendered(target.data, scope),
            match=target.match,
            labels={key: str(value) for key, value in labels.items()},
            path=target.playbook or None,
            names={name: shown},
            signal_id=signal_id,
            actor=self._actor(path),
        )
        return tuple(one for one, _ in found)

    def _actor(self, path: str) -> Actor:
        # Every kind of document is a kind of actor, too.
        return Actor(kind=self.kind.lower(), name=path)  # type: ignore[arg-type]


# --- What comes from outside ---------------------------------------------------------------------


def scope_of(name: str, shown: dict[str, Any], now: float, seed: str) -> Scope:
    """The scope of a document's templates over what came."""
    return Scope({name: shown}, now=datetime.fromtimestamp(now, UTC), seed=seed, limits=LIMITS)


def rendered(template: Any, scope: Scope) -> Any:
    return compile_value(template).render(scope)


def payload_of(target: StartTarget, name: str, scope: Scope) -> dict[str, Any]:
    """The payload of an execution: what the document says, else all that came."""
    if not target.workload:
        return {name: scope.roots[name]}
    found: dict[str, Any] = rendered(target.workload, scope)
    return found
