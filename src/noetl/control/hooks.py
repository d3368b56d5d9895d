"""Hooks: what others call when something happened, and what a delivery does.

A delivery is verified over its raw body, filtered, and then starts a playbook or wakes executions
that wait for it. The id that its sender gave it is the idempotency key of the execution, or the id
of the signal: the same delivery again changes nothing, on whichever server it arrives.

Documents and secrets are remembered for a moment, so that strangers who call a thousand times a
second cost the database nothing.

A hook with `debounce` writes what was delivered into a row of its own for each key. When no more
has come for a while the row is due, and whichever server looks after it (`control/triggers.py`)
starts the execution and removes the row, in one transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from noetl.control.catalog import Catalog
from noetl.control.clock import Clock
from noetl.control.documents import moment
from noetl.control.executions import Executions
from noetl.control.identity import new_id
from noetl.control.keys import Keys
from noetl.control.lending import require_playbook
from noetl.control.triggers import Triggers
from noetl.dsl import Compiled
from noetl.errors import Conflict, KeyReused, NoetlError, NotFound, StoreError, UndefinedValue
from noetl.model.facts import Actor
from noetl.model.ids import ExecutionId
from noetl.model.spelling import did_you_mean
from noetl.model.triggers import (
    Hook,
    SignalTarget,
    StartTarget,
    TriggerChange,
    TriggerRow,
    decode,
)
from noetl.secrets.signatures import is_genuine, may_be_genuine
from noetl.store.base import CatalogEntry, Store
from noetl.templates import Limits, Scope, compile_condition, compile_value

logger = logging.getLogger(__name__)

KIND = "Hook"
KNOWN_SECONDS = 2.0
"""So long after a hook or its secret was changed on one server, another may go by the old one."""
KNOWN_MAX = 1000
ID_MAX = 200
ATTEMPTS_MAX = 50
LIMITS = Limits(ticks=500_000, text=4 * 1024 * 1024)
SECRET_FIELDS = ("secret", "signing_secret", "webhook_secret", "token", "password", "value", "key")
"""Where the secret of a credential is looked for, if it has several fields."""
HIDDEN = frozenset({"authorization", "cookie", "proxy-authorization"})
"""Headers that no playbook is shown, beside the one with the signature."""
FORM = "application/x-www-form-urlencoded"


class HookState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a hook beside its document."""

    version: int
    digest: str
    status: Literal["active", "deleted"] = "active"


class Pending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Deliveries of one key that wait to become one start."""

    first_at: float
    count: int
    playbook: str
    version: int | None = None
    workload: dict[str, Any] = {}


class Known(NamedTuple):
    """A hook as this server knows it."""

    hook: Hook
    version: int
    secrets: tuple[str, ...]
    missing: tuple[str, ...]
    """Credentials that are not there, or not for this hook."""


class Delivery(NamedTuple):
    """What somebody sent. Names of headers are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes


class Taken(NamedTuple):
    """What became of a delivery."""

    status: Literal["started", "repeated", "ignored", "debounced", "signalled", "unmatched"]
    execution_ids: tuple[ExecutionId, ...] = ()
    due: float | None = None
    """When a debounced one is started, if no other comes."""


_decode_state = msgspec.json.Decoder(HookState).decode
_decode_pending = msgspec.json.Decoder(Pending).decode


class Hooks:
    """Everything one can do with hooks."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        executions: Executions,
        keys: Keys,
        clock: Clock,
        triggers: Triggers,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._executions = executions
        self._keys = keys
        self._clock = clock
        self._triggers = triggers
        self._known: dict[str, tuple[float, Known | None]] = {}

    # --- Deliveries ---

    async def find(self, path: str) -> Known | None:
        """The hook of that path, as it was a moment ago."""
        now = self._clock.now()
        found = self._known.get(path)
        if found is not None and 0 <= now - found[0] < KNOWN_SECONDS:
            return found[1]
        known = await self._read(path)
        if len(self._known) >= KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[path] = (now, known)
        return known

    async def _read(self, path: str) -> Known | None:
        row = await self._store.trigger(path)
        if row is None or row.kind != KIND:
            return None
        state = _decode_state(row.state)
        body = await self._store.net(state.digest)
        if state.status != "active" or body is None:
            return None
        hook = decode(body)
        assert isinstance(hook, Hook)
        secrets: list[str] = []
        missing: list[str] = []
        for name in hook.verify.secrets:
            secret = await self._secret(name, path)
            if secret is None:
                missing.append(name)
                logger.error(
                    'hook "%s" takes nothing with the credential "%s": it is not there, has no'
                    " secret in it, or is for others",
                    *(path, name),
                )
            else:
                secrets.append(secret)
        return Known(hook, state.version, tuple(secrets), tuple(missing))

    async def _secret(self, name: str, path: str) -> str | None:
        row = await self._store.credential(name)
        if row is None:
            return None
        try:
            require_playbook(row, path)
        except NoetlError:
            return None
        fields = await self._keys.credential(name) or {}
        texts = {key: value for key, value in fields.items() if isinstance(value, str) and value}
        if len(texts) == 1:
            return next(iter(texts.values()))
        return next((texts[key] for key in SECRET_FIELDS if key in texts), None)

    def may_be_genuine(self, known: Known, headers: Mapping[str, str]) -> bool:
        """Whether its headers do not speak against a delivery."""
        return may_be_genuine(known.hook.verify, headers, known.secrets, self._clock.now())

    def is_genuine(self, known: Known, delivery: Delivery) -> bool:
        return is_genuine(
            known.hook.verify, delivery.headers, delivery.body, known.secrets, self._clock.now()
        )

    async def take(self, known: Known, delivery: Delivery) -> Taken:
        """Do what a genuine delivery is to do. Raises what keeps it from that."""
        hook, now = known.hook, self._clock.now()
        shown = view(hook, delivery, now)
        scope = _scope(shown, now)
        if hook.id:
            # A delivery that does not say what the template reads has no name.
            shown["id"] = ""
            with suppress(UndefinedValue):
                shown["id"] = str(_rendered(hook.id, scope) or "")
        if hook.when is not None and not compile_condition(hook.when).holds(scope):
            return Taken("ignored")
        delivery_id = shown["id"] or ""
        if len(delivery_id) > ID_MAX:
            delivery_id = hashlib.sha256(delivery_id.encode()).hexdigest()
        if isinstance(hook.target, SignalTarget):
            return await self._signal(hook, hook.target, scope, delivery_id)
        target = hook.target
        workload = _rendered(target.workload, scope) if target.workload else {"hook": shown}
        if hook.debounce is not None:
            return await self._debounce(
                hook, target, str(_rendered(hook.debounce.key, scope)), workload
            )
        return await self._start(hook, target, delivery_id, workload)

    async def _start(
        self, hook: Hook, target: StartTarget, delivery_id: str, workload: dict[str, Any]
    ) -> Taken:
        key = f"hook/{hook.path}/{delivery_id}" if delivery_id else None
        if key is not None and (before := await self._store.by_key(key)) is not None:
            return Taken("repeated", (before.execution_id,))
        entry = await self._catalog.playbook(target.playbook.path, target.playbook.version)
        try:
            started = await self._executions.start(
                entry.digest,
                entry.path,
                entry.version,
                workload,
                key=key,
                is_newest=target.playbook.version is None,
                actor=Actor(kind="hook", name=hook.path),
            )
        except KeyReused:
            # The same delivery came to another server at the same moment.
            before = await self._store.by_key(key or "")
            if before is None:
                raise
            return Taken("repeated", (before.execution_id,))
        return Taken("started", (started,))

    async def _signal(
        self, hook: Hook, target: SignalTarget, scope: Scope, delivery_id: str
    ) -> Taken:
        labels = _rendered(target.labels, scope) if target.labels else {}
        data = scope.roots["hook"]["body"] if target.data is None else _rendered(target.data, scope)  # type: ignore[index]
        found = await self._executions.signal_matching(
            target.signal,
            data,
            match=target.match,
            labels={name: str(value) for name, value in labels.items()},
            path=target.playbook or None,
            names={"hook": scope.roots["hook"]},
            signal_id=f"hook/{hook.path}/{delivery_id}" if delivery_id else None,
            actor=Actor(kind="hook", name=hook.path),
        )
        return Taken("signalled" if found else "unmatched", tuple(one for one, _ in found))

    # --- Several that become one ---

    async def _debounce(
        self, hook: Hook, target: StartTarget, key: str, workload: dict[str, Any]
    ) -> Taken:
        debounce = hook.debounce
        assert debounce is not None
        # An empty key of a row is the hook itself.
        name = f"={key}" if len(key) <= ID_MAX else f"#{hashlib.sha256(key.encode()).hexdigest()}"
        for _ in range(ATTEMPTS_MAX):
            now = self._clock.now()
            row = await self._store.trigger(hook.path, name)
            before = None if row is None else _decode_pending(row.state)
            pending = Pending(
                first_at=now if before is None else before.first_at,
                count=1 if before is None else before.count + 1,
                playbook=target.playbook.path,
                version=target.playbook.version,
                workload=workload,
            )
            due = now + debounce.wait
            if debounce.max_wait is not None:
                due = min(due, pending.first_at + debounce.max_wait)
            changed = msgspec.structs.replace(
                row or TriggerRow(path=hook.path, key=name, kind=KIND),
                next_at=due,
                state=msgspec.json.encode(pending),
            )
            if await self._store.change_trigger(TriggerChange(row=changed)):
                self._triggers.announce()
                return Taken("debounced", due=due)
        raise StoreError(f'deliveries of the hook "{hook.path}" come too fast; try again.')

    async def settle(self, row: TriggerRow) -> None:
        """Start what was debounced and is due."""
        if not row.key:
            return
        now = self._clock.now()
        current = await self._store.trigger(row.path, row.key)
        if current is None or (current.next_at or now) > now:
            return
        pending = _decode_pending(current.state)
        gone = TriggerChange(row=current, gone=True)
        try:
            entry = await self._catalog.playbook(pending.playbook, pending.version)
            await self._executions.start(
                entry.digest,
                entry.path,
                entry.version,
                pending.workload,
                key=f"hook/{row.path}/{row.key}/{pending.first_at!r}",
                actor=Actor(kind="hook", name=row.path),
                trigger=lambda _: gone,
            )
        except (Conflict, StoreError):
            # Another server was faster, or one more came; else it is tried again.
            if await self._store.trigger(row.path, row.key) == current:
                raise
        except NoetlError as error:
            logger.error('hook "%s" starts nothing: %s', row.path, error)
            await self._store.change_trigger(gone)

    # --- What people do with hooks ---

    async def register(self, text: str, compiled: Compiled) -> CatalogEntry:
        """Keep a version of a hook."""
        hook = compiled.trigger
        assert isinstance(hook, Hook)
        entry = await self._catalog.keep(text, compiled, _renewed(hook.path, compiled.digest))
        self._known.pop(hook.path, None)
        return entry

    async def shown(self, path: str) -> Known:
        """Raises NotFound for what is no hook."""
        found = await self._read(path)
        if found is None:
            known = [row.path for row in await self._store.triggers(KIND) if not row.key]
            raise NotFound(
                f'no hook "{path}" is registered.{did_you_mean(path, known)}'
                " `noetl hooks list` shows those there are."
            )
        return found

    async def all(self, prefix: str, after: str, limit: int) -> list[Known]:
        """Hooks by path, of those behind `after`."""
        found: list[Known] = []
        last = (after, "\uffff") if after else ("", "")
        while len(found) < limit:
            rows = await self._store.triggers(KIND, prefix=prefix, after=last, limit=limit)
            for row in rows:
                last = (row.path, row.key)
                if not row.key and (known := await self._read(row.path)) is not None:
                    found.append(known)
            if len(rows) < limit:
                break
        return found[:limit]

    async def delete(self, path: str) -> None:
        """It takes nothing any more."""
        await self.shown(path)
        row = await self._store.trigger(path)
        assert row is not None
        state = msgspec.structs.replace(_decode_state(row.state), status="deleted")
        changed = msgspec.structs.replace(row, state=msgspec.json.encode(state))
        if not await self._store.change_trigger(TriggerChange(row=changed)):
            raise Conflict(f'the hook "{path}" was changed at the same moment; try again.')
        self._known.pop(path, None)

    async def result(self, execution_id: ExecutionId, seconds: float) -> dict[str, Any] | None:
        """The document of an execution that ends within so long; None if it does not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._executions.wait(execution_id)
        return None


def _renewed(path: str, digest: str) -> Callable[[int, TriggerRow | None], TriggerRow]:
    def row(version: int, before: TriggerRow | None) -> TriggerRow:
        state = msgspec.json.encode(HookState(version=version, digest=digest))
        kept = before or TriggerRow(path=path, kind=KIND)
        return msgspec.structs.replace(kept, state=state)

    return row


def _scope(shown: dict[str, Any], now: float) -> Scope:
    return Scope(
        {"hook": shown},
        now=datetime.fromtimestamp(now, UTC),
        seed=shown["id"] or new_id(now),
        limits=LIMITS,
    )


def _rendered(template: Any, scope: Scope) -> Any:
    return compile_value(template).render(scope)


def view(hook: Hook, delivery: Delivery, now: float) -> dict[str, Any]:
    """A delivery as templates read it. What proves that it is genuine is not shown."""
    headers, verify = delivery.headers, hook.verify
    text = delivery.body.decode("utf-8", errors="replace").replace("\0", "\ufffd")
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    body: Any = text
    if media != FORM:
        with suppress(msgspec.DecodeError, RecursionError):
            body = msgspec.json.decode(text)
    hidden = HIDDEN | {verify.header}
    return {
        "path": hook.path,
        "id": _id_of(hook, headers, body),
        "time": moment(now),
        "body": body,
        "text": text,
        "form": dict(parse_qsl(text, keep_blank_values=True)) if media == FORM else None,
        "headers": {name: value for name, value in headers.items() if name not in hidden},
        "query": dict(delivery.query),
    }


def _id_of(hook: Hook, headers: Mapping[str, str], body: Any) -> str:
    """What the sender calls the delivery; empty if it has no name."""
    verify = hook.verify
    if verify.id:
        return headers.get(verify.id, "")
    inside = {"stripe-signature": "id", "x-slack-signature": "event_id"}.get(verify.header)
    if inside is None:
        return ""
    named = body.get(inside) if isinstance(body, dict) else None
    # A signature with a timestamp in it is as good a name as any.
    return named if isinstance(named, str) and named else headers.get(verify.header, "")
