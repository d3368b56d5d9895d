"""The registered documents of one kind, each with its row: what all kinds of triggers share.

A document is in the catalog; its row has a revision and says which version holds, whether it is
paused, and what its kind keeps beside. A change of a row names the revision that was read, and
is tried again if the row has moved.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

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
    SignalTarget,
    Trigger,
    TriggerChange,
    TriggerRow,
    TriggerTime,
    decode,
    started_by,
)
from noetl.store.base import Store
from noetl.store.catalog import CatalogEntry
from noetl.templates import Limits, Scope, compile_value

if TYPE_CHECKING:
    from noetl.dsl import Compiled

ATTEMPTS_MAX = 50
SPECS_MAX = 20_000
LIMITS = Limits(ticks=500_000, text=4 * 1024 * 1024)
"""Of a template over what came from outside."""


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


class TriggerDocuments(Generic[Document, State]):
    """Documents of one kind."""

    document: type[Document]
    state: type[State]

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        executions: Executions,
        clock: Clock,
        triggers: Triggers,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._executions = executions
        self._clock = clock
        self._triggers = triggers
        self._specs: dict[str, Document] = {}

    @property
    def kind(self) -> str:
        return self.document.__name__

    # --- What a kind says of its own ---

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
            body = await self._store.catalog.net(digest)
            if body is None:
                raise NotFound(
                    f"the {self.kind.lower()} {digest[:12]} is not stored; register it again."
                )
            decoded = decode(body)
            assert isinstance(decoded, self.document)
            found = decoded
            if len(self._specs) >= SPECS_MAX:
                self._specs.pop(next(iter(self._specs)))
            self._specs[digest] = found
        return found

    async def row(self, path: str) -> TriggerRow:
        """Raises NotFound for what is none of this kind."""
        row = await self._store.triggers.get(path)
        if row is None or row.kind != self.kind or self.decoded(row).status == "deleted":
            known = [
                one.path
                for one in await self._store.triggers.of_kind(self.kind)
                if not one.key and self.decoded(one).status != "deleted"
            ]
            word = self.kind.lower()
            raise NotFound(
                f'no {word} "{path}" is registered.{did_you_mean(path, known)}'
                f" `noetl {word}s list` shows those there are."
            )
        return row

    async def find(self, path: str) -> tuple[Document, State]:
        """Raises NotFound for what is none of this kind."""
        state = self.decoded(await self.row(path))
        return await self.spec(state.digest), state

    async def all(self, prefix: str, after: str, limit: int) -> list[tuple[Document, State]]:
        """Documents by path, of those behind `after`."""
        found: list[tuple[Document, State]] = []
        last = (after, "\uffff") if after else ("", "")
        while len(found) < limit:
            rows = await self._store.triggers.of_kind(
                self.kind, prefix=prefix, after=last, limit=limit
            )
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
        self._triggers.announce()
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

    async def change(
        self, path: str, change: Callable[[State], State], times: tuple[TriggerTime, ...] = ()
    ) -> State:
        """Bring a document into another state, also if another process changes it meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            row = await self.row(path)
            state = change(self.decoded(row))
            changed = self.written(row, state, await self.spec(state.digest))
            if await self._store.triggers.change(TriggerChange(row=changed, times=times)):
                self._triggers.announce()
                return state
        raise StoreError(f'the {self.kind.lower()} "{path}" is being changed elsewhere; try again.')

    async def pause(self, path: str, reason: str = "") -> State:
        """It starts nothing until it is resumed."""
        return await self.change(path, lambda state: self.paused(state, reason))

    async def resume(self, path: str) -> State:
        """It goes on from now."""
        return await self.change(
            path, lambda state: state if state.status == "active" else self.resumed(state)
        )

    async def delete(self, path: str) -> None:
        """It starts nothing any more. The outcomes of what it started are kept."""
        await self.change(
            path, lambda state: msgspec.structs.replace(state, status="deleted", reason="")
        )


# --- What comes from outside ---------------------------------------------------------------------


def scope_of(name: str, shown: dict[str, Any], now: float, seed: str) -> Scope:
    """What templates of a document read of what came."""
    return Scope({name: shown}, now=datetime.fromtimestamp(now, UTC), seed=seed, limits=LIMITS)


def rendered(template: Any, scope: Scope) -> Any:
    return compile_value(template).render(scope)


async def signal(
    executions: Executions,
    target: SignalTarget,
    name: str,
    scope: Scope,
    signal_id: str | None,
    actor: Actor,
) -> tuple[ExecutionId, ...]:
    """Wake those that wait for what came; the same id again changes nothing."""
    labels = rendered(target.labels, scope) if target.labels else {}
    shown: Any = scope.roots[name]
    found = await executions.signal_matching(
        target.signal,
        shown["body"] if target.data is None else rendered(target.data, scope),
        match=target.match,
        labels={key: str(value) for key, value in labels.items()},
        path=target.playbook or None,
        names={name: shown},
        signal_id=signal_id,
        actor=actor,
    )
    return tuple(one for one, _ in found)
