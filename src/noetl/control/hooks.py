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
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from noetl.control.deliveries import Deliveries
from noetl.control.documents import moment
from noetl.control.identity import new_id
from noetl.control.keys import Keys
from noetl.control.trigger_documents import (
    ATTEMPTS_MAX,
    TriggerDocuments,
    TriggerServices,
    TriggerState,
    payload_of,
    rendered,
    scope_of,
)
from noetl.errors import (
    Conflict,
    KeyReused,
    NoetlError,
    NotAllowed,
    NotFound,
    StoreError,
    UndefinedValue,
)
from noetl.model.ids import ExecutionId
from noetl.model.secrets import without_values
from noetl.model.triggers import (
    Hook,
    PlaybookRef,
    SignalTarget,
    StartTarget,
    TriggerChange,
    TriggerRow,
)
from noetl.secrets.signatures import is_genuine, may_be_genuine
from noetl.store.records import Records
from noetl.store.triggers import Messages
from noetl.templates import compile_condition

logger = logging.getLogger(__name__)

KNOWN_SECONDS = 2.0
"""After a change of a hook or its secret on one server, others may use the old one for so long."""
KNOWN_MAX = 1000
ID_MAX = 200
AGAIN_SECONDS = 30.0
"""Seconds between two attempts to start what was debounced while its playbook is missing."""
SECRET_FIELDS = ("secret", "signing_secret", "webhook_secret", "token", "password", "value", "key")
"""Fields that may hold the secret of a credential, in order, if it has several."""
HIDDEN = frozenset({"authorization", "cookie", "proxy-authorization"})
"""Headers that no playbook is shown, beside the one with the signature."""
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


class Pending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Deliveries of one key that wait to become one start."""

    first_at: float
    count: int
    playbook: str
    version: int | None = None
    workload: dict[str, Any] = {}
    problem: str = ""
    """Why it could not be started yet."""
    listed: str = ""
    """The row of the last one in the list of deliveries, if it has an id."""


class Known(NamedTuple):
    """A hook as this server knows it."""

    hook: Hook
    version: int
    secrets: tuple[str, ...]
    missing: tuple[str, ...]
    """Credentials that are not there, or not for this hook."""

    def __repr__(self) -> str:
        return without_values(self)


class _Read(NamedTuple):
    """A hook when it was read."""

    at: float
    changes: tuple[int, int]
    """How often hooks and credentials had been changed here, before it was read."""
    known: Known | None

    def __repr__(self) -> str:
        return without_values(self)


class Delivery(NamedTuple):
    """A request to a hook. Names of headers are in lower case."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return without_values(self)


class Taken(NamedTuple):
    """The outcome of a delivery."""

    status: Literal["started", "repeated", "ignored", "debounced", "signalled", "unmatched"]
    execution_ids: tuple[ExecutionId, ...] = ()
    due: float | None = None
    """When a debounced delivery starts its execution, if no other comes."""
    is_listed: bool = False
    """Whether it is in the list of deliveries already."""


_decode_pending = msgspec.json.Decoder(Pending).decode


class Hooks(TriggerDocuments[Hook, TriggerState]):
    """Everything one can do with hooks."""

    document = Hook
    state = TriggerState

    def __init__(
        self, services: TriggerServices, records: Records, messages: Messages, keys: Keys
    ) -> None:
        super().__init__(services)
        self._records = records
        self._messages = messages
        self._keys = keys
        self.deliveries = Deliveries(self._rows, messages, self._clock)
        self._known: dict[str, _Read] = {}
        self._changes = 0
        """How often hooks were changed here."""
        self._lacking: dict[str, tuple[str, ...]] = {}
        """By path: the credentials that are missing, as the log has it."""

    # --- Deliveries ---

    async def lately(self, path: str) -> Known | None:
        """The hook of that path, as it was a moment ago."""
        now, changes = self._clock.now(), (self._changes, self._keys.changes)
        found = self._known.get(path)
        if found is not None and 0 <= now - found.at < KNOWN_SECONDS and found.changes == changes:
            return found.known
        known = await self._read(path)
        self._say_lacking(path, () if known is None else known.missing)
        if len(self._known) >= KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[path] = _Read(now, changes, known)
        return known

    def _say_lacking(self, path: str, missing: tuple[str, ...]) -> None:
        """Each once, until it is there: strangers can have any hook read anew, and often."""
        said = self._lacking.pop(path, ())
        if missing:
            self._lacking[path] = missing
        for name in missing:
            if name not in said:
                logger.error(
                    'hook "%s" takes nothing with the credential "%s": it is not there, has no'
                    " secret in it, or is for others",
                    *(path, name),
                )

    async def _read(self, path: str) -> Known | None:
        row = await self._rows.get(path)
        if row is None or row.kind != self.kind:
            return None
        state = self.decoded(row)
        if state.status != "active":
            return None
        return await self.known(await self.spec(state.digest), state)

    async def known(self, hook: Hook, state: TriggerState) -> Known:
        """A hook with its secrets."""
        found = {name: await self._secret(name, hook.path) for name in hook.verify.secrets}
        return Known(
            hook,
            state.version,
            secrets=tuple(secret for secret in found.values() if secret is not None),
            missing=tuple(name for name, secret in found.items() if secret is None),
        )

    async def _secret(self, name: str, path: str) -> str | None:
        try:
            fields = await self._keys.granted(path, name)
        except (NotFound, NotAllowed):
            return None
        texts = {key: value for key, value in fields.items() if isinstance(value, str) and value}
        if len(texts) == 1:
            return next(iter(texts.values()))
        return next((texts[key] for key in SECRET_FIELDS if key in texts), None)

    def may_be_genuine(self, known: Known, headers: Mapping[str, str]) -> bool:
        """Whether a delivery may be genuine, by its headers alone."""
        return may_be_genuine(known.hook.verify, headers, known.secrets, self._clock.now())

    def is_genuine(self, known: Known, delivery: Delivery) -> bool:
        return is_genuine(
            known.hook.verify, delivery.headers, delivery.body, known.secrets, self._clock.now()
        )

    async def take(self, known: Known, delivery: Delivery) -> Taken:
        """Do what a genuine delivery is to do. Raises what keeps it from that."""
        hook, now = known.hook, self._clock.now()
        shown = view(hook, delivery, now)
        scope = scope_of("hook", shown, now, shown["id"] or new_id(now))
        if hook.id:
            # A delivery that does not say what the template reads has no name.
            shown["id"] = ""
            with suppress(UndefinedValue):
                shown["id"] = str(rendered(hook.id, scope) or "")
        if hook.when is not None and not compile_condition(hook.when).holds(scope):
            return Taken("ignored")
        delivery_id = shown["id"] or ""
        if len(delivery_id) > ID_MAX:
            delivery_id = hashlib.sha256(delivery_id.encode()).hexdigest()
        if isinstance(hook.target, SignalTarget):
            signal_id = f"hook/{hook.path}/{delivery_id}" if delivery_id else None
            found = await self.signal(hook.path, hook.target, "hook", scope, signal_id)
            return Taken("signalled" if found else "unmatched", found)
        workload = payload_of(hook.target, "hook", scope)
        if hook.debounce is not None:
            key = str(rendered(hook.debounce.key, scope))
            return await self._debounce(hook, hook.target, key, delivery_id, workload)
        return await self._start(hook.path, hook.target, delivery_id, workload)

    async def _start(
        self, path: str, target: StartTarget, delivery_id: str, workload: dict[str, Any]
    ) -> Taken:
        key = f"hook/{path}/{delivery_id}" if delivery_id else None
        if key is not None and (before := await self._records.by_key(key)) is not None:
            return Taken("repeated", (before.execution_id,))
        try:
            started = await self.start(path, target.playbook, workload, key=key)
        except KeyReused:
            # The same delivery came to another server at the same moment.
            before = await self._records.by_key(key or "")
            if before is None:
                raise
            return Taken("repeated", (before.execution_id,))
        return Taken("started", (started,))

    # --- Several that become one ---

    async def _debounce(
        self,
        hook: Hook,
        target: StartTarget,
        key: str,
        delivery_id: str,
        workload: dict[str, Any],
    ) -> Taken:
        """Let it wait for others with its key. It is listed in the same transaction, under its id:
        a delivery with an id that is listed changes nothing."""
        debounce = hook.debounce
        assert debounce is not None
        # An empty key of a row is the hook itself.
        name = f"={key}" if len(key) <= ID_MAX else f"#{hashlib.sha256(key.encode()).hexdigest()}"
        for _ in range(ATTEMPTS_MAX):
            now = self._clock.now()
            listed = self.deliveries.row(hook.path, "debounced", delivery_id=delivery_id)
            row = await self._rows.get(hook.path, name)
            before = None if row is None else _decode_pending(row.state)
            pending = Pending(
                first_at=now if before is None else before.first_at,
                count=1 if before is None else before.count + 1,
                playbook=target.playbook.path,
                version=target.playbook.version,
                workload=workload,
                problem="" if before is None else before.problem,
                listed=listed.id if delivery_id else "",
            )
            due = now + debounce.wait
            if debounce.max_wait is not None:
                due = min(due, pending.first_at + debounce.max_wait)
            changed = msgspec.structs.replace(
                row or TriggerRow(path=hook.path, key=name, kind=self.kind),
                next_at=due,
                state=msgspec.json.encode(pending),
            )
            if await self._rows.change(TriggerChange(row=changed, messages=(listed,))):
                self.deliveries.wrote(hook.path)
                self._triggers.announce()
                return Taken("debounced", due=due, is_listed=True)
            if delivery_id and await self._messages.known(hook.path, [listed.id]):
                return Taken("repeated")
        raise StoreError(f'deliveries of the hook "{hook.path}" come too fast; try again.')

    async def settle(self, row: TriggerRow) -> None:
        """Start what was debounced and is due."""
        if not row.key:
            return
        now = self._clock.now()
        current = await self._rows.get(row.path, row.key)
        if current is None or (current.next_at or now) > now:
            return
        gone = TriggerChange(row=current, gone=True)
        try:
            owner = await self.row(row.path)
        except NotFound:
            # A server that had not heard of its deletion yet took one more.
            await self._rows.change(gone)
            return
        pending = _decode_pending(current.state)
        playbook = PlaybookRef(path=pending.playbook, version=pending.version)
        if pending.problem:
            # Somebody may have corrected the hook since.
            target = (await self.spec(self.decoded(owner).digest)).target
            if isinstance(target, StartTarget):
                playbook = target.playbook
        try:
            await self.start(
                row.path,
                playbook,
                pending.workload,
                key=f"hook/{row.path}/{row.key}/{pending.first_at!r}",
                trigger=lambda execution_id: msgspec.structs.replace(
                    gone, messages=(self.deliveries.row(row.path, "started", execution_id),)
                ),
            )
            self.deliveries.wrote(row.path)
        except (Conflict, StoreError):
            # Another server was faster, or one more came; else it is tried again.
            if await self._rows.get(row.path, row.key) == current:
                raise
        except NoetlError as error:
            await self._not_started(current, pending, error)

    async def _not_started(self, row: TriggerRow, pending: Pending, error: NoetlError) -> None:
        """The sender was told that the delivery is accepted, so it is kept, or its loss is listed.

        A playbook that is not registered may be again. What the playbook does not accept, it will
        not accept later; but its sender may deliver it again once the playbook or the hook is
        corrected.
        """
        is_kept = isinstance(error, NotFound)
        kept = msgspec.structs.replace(pending, problem=str(error))
        later = msgspec.structs.replace(
            row, next_at=self._clock.now() + AGAIN_SECONDS, state=msgspec.json.encode(kept)
        )
        change = TriggerChange(row=later) if is_kept else TriggerChange(row=row, gone=True)
        if not await self._rows.change(change):
            return
        if str(error) != pending.problem:
            logger.error('hook "%s" starts nothing: %s', row.path, error)
            self.deliveries.note(row.path, "waiting" if is_kept else "failed", reason=str(error))
        if not is_kept and pending.listed:
            await self._messages.forget(row.path, [pending.listed])

    # --- What people do with hooks ---

    def changed(self, path: str) -> None:
        super().changed(path)
        self._changes += 1

    async def delete(self, path: str) -> None:
        """It takes nothing any more, and what was debounced starts nothing."""
        await super().delete(path)
        await self._rows.forget(path, self.kind)
        await self._messages.forget_old(path, before=self._clock.now())

    async def result(self, execution_id: ExecutionId, seconds: float) -> dict[str, Any] | None:
        """The document of an execution that ends within so long; None if it does not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._executions.wait(execution_id)
        return None


def view(hook: Hook, delivery: Delivery, now: float) -> dict[str, Any]:
    """A delivery as templates read it. What proves that it is genuine is not shown."""
    headers, verify = delivery.headers, hook.verify
    text = delivery.body.decode("utf-8", errors="replace")
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    body: Any = text
    # `curl -d` calls every body a form, also an object or a list.
    if media != FORM or text.lstrip().startswith(("{", "[")):
        with suppress(msgspec.DecodeError, RecursionError):
            body = msgspec.json.decode(text)
    is_form = media == FORM and isinstance(body, str)
    hidden = HIDDEN | {verify.header}
    return {
        "path": hook.path,
        "id": _id_of(hook, headers, body),
        "time": moment(now),
        "body": body,
        "text": text,
        "form": dict(parse_qsl(text, keep_blank_values=True)) if is_form else None,
        "headers": {name: value for name, value in headers.items() if name not in hidden},
        "query": dict(delivery.query),
    }


def broken_json(delivery: Delivery) -> str:
    """What is wrong with a body that is said to be JSON; empty if nothing is."""
    media = delivery.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON and not media.endswith("+json"):
        return ""
    try:
        msgspec.json.decode(delivery.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"its body is said to be {media} and is not: {error}"
    return ""


def _id_of(hook: Hook, headers: Mapping[str, str], body: Any) -> str:
    """The sender's id of a delivery; empty if it has none."""
    verify = hook.verify
    if verify.id:
        return headers.get(verify.id, "")
    inside = {"stripe-signature": "id", "x-slack-signature": "event_id"}.get(verify.header)
    if inside is None:
        return ""
    named = body.get(inside) if isinstance(body, dict) else None
    # A signature with a timestamp in it is as good a name as any.
    return named if isinstance(named, str) and named else headers.get(verify.header, "")
