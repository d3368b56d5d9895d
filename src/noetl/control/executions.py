"""Executions as a service: start, look, act. What the command line and the API both call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from noetl.control import documents
from noetl.control.clock import Clock, Deadline, heard
from noetl.control.identity import new_id, new_seal
from noetl.control.orchestrator import Orchestrator
from noetl.control.programs import merged, workload_of
from noetl.control.records import matching, no_execution, unless_lost
from noetl.engine.program import Program
from noetl.engine.signals import received
from noetl.errors import (
    BadRequest,
    Conflict,
    EvaluationFailed,
    Finished,
    KeyReused,
    NotAllowed,
    NotFound,
    StoreError,
    TooMany,
)
from noetl.model import labels as label_rules
from noetl.model.answers import ExecutionDocument
from noetl.model.events import Actor, ExecutionRequested, Parent
from noetl.model.execution_query import Condition, Term, Wanted, exactly
from noetl.model.facts import Source
from noetl.model.ids import ExecutionId, derive
from noetl.model.inputs import Seed
from noetl.model.net import Net
from noetl.model.outcome import TaskError
from noetl.model.retrospect import ForkPlanDocument
from noetl.model.signals import ANY
from noetl.model.spelling import no_such_step
from noetl.model.state import TERMINAL, ExecutionState
from noetl.model.triggers import TriggerChange
from noetl.store.base import Store
from noetl.store.log import EventRow
from noetl.store.records import Summary
from noetl.templates import Condition as TemplateCondition
from noetl.templates import Limits, Scope, TemplateRefused, compile_condition

if TYPE_CHECKING:
    from noetl.control import forks
    from noetl.control.waits import Waits

KeychainCheck = Callable[[Net], Awaitable[TaskError | None]]
ID_DRAWS_MAX = 20
"""How many ids are drawn to find one that this server looks after."""
POLLED_BYTES = 256 * 1024
"""How much is kept for a long poll of events; beyond that it reads them from the store."""
PAUSE_PATIENCE = 5.0
"""Seconds that workers have to confirm a pause before it is answered without them."""


MATCHED_MAX = 10_000
"""Waiting executions that a signal by business key looks at."""
MATCH_LIMITS = Limits(ticks=50_000, text=256 * 1024)


def _condition(source: str) -> TemplateCondition:
    try:
        return compile_condition(source)
    except TemplateRefused as refused:
        said = "; ".join(problem.message for problem in refused.problems)
        raise BadRequest(f"`match` cannot be read: {said}") from None


def _listens(state: ExecutionState, name: str, signal_id: str) -> bool:
    """Whether a step waits for such an event, or has heard this one."""
    events = {
        event
        for run in state.runs.values()
        if run.listens is not None
        for event in run.listens.events
    }
    return bool(events & {name, ANY}) or signal_id in state.heard


class _Asked(NamedTuple):
    """What makes two requests to start an execution the same."""

    path: str
    version: str | None
    """Its digest; None: whichever is the newest."""
    workload: dict[str, Any]
    parent: ExecutionId | None
    labels: dict[str, str]


def _reused(known: Summary, how: str) -> KeyReused:
    return KeyReused(
        f"execution {known.execution_id} was started under the Idempotency-Key"
        f" {(known.idempotency_key or '')[:80]!r} {how}. Another request needs another key."
    )


class Executions:
    """Everything one can do with executions."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        store: Store,
        clock: Clock,
        check: KeychainCheck,
        owns: Callable[[ExecutionId], bool] = lambda execution_id: True,
    ) -> None:
        self._orchestrator = orchestrator
        self._store = store
        self._clock = clock
        self._check = check
        self._owns = owns

    async def start(
        self,
        digest: str,
        path: str,
        version: int | None,
        payload: dict[str, Any],
        *,
        key: str | None = None,
        parent: ExecutionId | None = None,
        is_newest: bool = False,
        actor: Actor | None = None,
        source: Source | None = None,
        labels: dict[str, str] | None = None,
        trigger: Callable[[ExecutionId], TriggerChange] | None = None,
    ) -> ExecutionId:
        """Start an execution. Under a key that was used before for the same request, it is that
        execution; raises KeyReused for another request.

        A `parent` is listed as such; it does not wait for this one, as a playbook step would. With
        `is_newest` no version was asked for: under the same key, an older one is the same.
        `labels` are put over those of the playbook. With a `trigger` that change is stored together
        with it; Conflict if it cannot be, or if the key was used.
        """
        if wrong := label_rules.problems(labels or {}):
            raise BadRequest(" ".join(wrong))
        asked = _Asked(path, None if is_newest else digest, payload, parent, labels or {})
        begun_before = partial(self._begun_before, key, asked)
        if trigger is None:
            if (known := await begun_before()) is not None:
                return known
        elif key is not None and (taken := await self._store.records.by_key(key)) is not None:
            raise Conflict(f"execution {taken.execution_id} was started under the same key.")
        now = self._clock.now()
        execution_id = self._new_id(now)
        program = await self._orchestrator.programs.by_digest(digest)
        request = ExecutionRequested(
            at=now,
            path=path,
            digest=digest,
            version=version,
            payload=payload,
            key=key,
            parent=await self._parent(parent),
            actor=actor,
            source=source,
            labels=label_rules.combined(program.labels, labels or {}),
            seal=new_seal(),
        )
        return await self._begin(execution_id, request, program, begun_before, trigger=trigger)

    async def _begin(
        self,
        new: ExecutionId,
        request: ExecutionRequested,
        program: Program,
        begun_before: Callable[[], Awaitable[ExecutionId | None]],
        *,
        seed: Seed | None = None,
        trigger: Callable[[ExecutionId], TriggerChange] | None = None,
    ) -> ExecutionId:
        """Start what is requested; or it is what another caller has `begun_before` under its key,
        at the same moment.
        """
        workload = await workload_of(self._store.credentials, program, request.payload)
        if seed is not None and request.rerun_of is not None:
            await self._store.retention.reuse(new, request.rerun_of)
        try:
            await self._orchestrator.start(
                new,
                request,
                workload=workload,
                seed=seed,
                refused=await self._check(program.net),
                trigger=None if trigger is None else trigger(new),
            )
        except (Conflict, StoreError):
            known = None if trigger is not None else await begun_before()
            if known is None:
                raise
            return known
        return new

    def _new_id(self, now: float) -> ExecutionId:
        """An id that this server looks after: what is started here stays here, with its timers."""
        drawn = new_id(now)
        for _ in range(ID_DRAWS_MAX):
            if self._owns(drawn):
                break
            drawn = new_id(now)
        return drawn

    async def _begun_before(self, key: str | None, asked: _Asked | str) -> ExecutionId | None:
        """The execution that was started under the key, if it is what is asked for now: a start, or
        the digest of a rerun or a fork.
        """
        known = None if key is None else await self._store.records.by_key(key)
        if known is None:
            return None
        from noetl.control import forks

        request = await forks.request_of(self._store.log, known.execution_id)
        if isinstance(asked, str) or request.asked:
            if request.asked != asked:
                raise _reused(known, "for another request")
            return known.execution_id
        program = await self._orchestrator.programs.by_digest(request.digest)
        digest = None if asked.version is None else request.digest
        parent = known.parent_execution_id
        before = _Asked(request.path, digest, request.payload, parent, request.labels)
        asked = asked._replace(labels=label_rules.combined(program.labels, asked.labels))
        if before != asked:
            pairs = zip(_Asked._fields, before, asked, strict=True)
            others = ", ".join(word for word, one, other in pairs if one != other)
            raise _reused(known, f"with another {others}")
        return known.execution_id

    async def _parent(self, execution_id: ExecutionId | None) -> Parent | None:
        if execution_id is None:
            return None
        await self._orchestrator.state(execution_id)
        return Parent(execution_id=execution_id, step_run_id="")

    async def shown(self, execution_id: ExecutionId) -> ExecutionDocument:
        """The whole execution as the API shows it."""
        state = await self._orchestrator.state(execution_id)
        program = await self._orchestrator.programs.by_digest(state.digest)
        return documents.execution(execution_id, state, program)

    async def document(self, execution_id: ExecutionId) -> dict[str, Any]:
        """The execution as dictionaries and lists."""
        return documents.plain(await self.shown(execution_id))

    async def wait(self, execution_id: ExecutionId) -> dict[str, Any]:
        """The execution as dictionaries and lists, when it has ended."""
        await self._orchestrator.wait_for_end(execution_id)
        return await self.document(execution_id)

    async def next_events(
        self,
        execution_id: ExecutionId,
        *,
        after: int,
        limit: int,
        wait: float,
        types: tuple[str, ...] = (),
        step: str | None = None,
    ) -> list[EventRow]:
        """The next events, as soon as there are some; none if that takes longer than `wait`."""
        deadline = Deadline(self._clock, wait)
        is_chosen = bool(types) or step is not None
        with self._orchestrator.watchers.follow(execution_id, POLLED_BYTES, types) as tail:
            while True:
                remaining = deadline.left()
                rows = tail.take(after)
                # Before it answers that there was nothing, it looks: others may have stored it.
                if rows is None or (not rows and remaining <= 0):
                    heads = await self._store.log.heads([execution_id])
                    if execution_id not in heads:
                        raise no_execution(execution_id)
                    rows = await self._store.log.events(
                        execution_id, after=after, limit=limit, types=types, step=step
                    )
                    if is_chosen and not rows:
                        # None of those up to there was chosen: they are not looked at again.
                        after = max(after, heads[execution_id])
                elif step is not None:
                    rows = [row for row in rows if row.step == step]
                    after = after if rows else max(after, tail.end)
                if rows or remaining <= 0:
                    return rows[:limit]
                await heard(tail.signal, remaining)

    async def why(self, execution_id: ExecutionId) -> Waits:
        """What an unfinished execution waits for."""
        from noetl.control.waits import waits_of

        state_now = partial(self._orchestrator.state, execution_id)
        return await waits_of(self._store, execution_id, state_now, self._clock.now())

    async def cancel(
        self,
        execution_id: ExecutionId,
        reason: str = "",
        *,
        cascade: bool = True,
        actor: Actor | None = None,
        key: str | None = None,
    ) -> int:
        """Stop it, and with `cascade` those below it; how many were stopped.

        Under a key that was used before it is that cancellation, and changes nothing; raises
        KeyReused for another reason.
        """
        state = await self._orchestrator.state(execution_id)
        known = None if key is None else state.cancelled_under(key)
        if known is not None:
            if known.reason != reason:
                raise KeyReused(
                    f"execution {execution_id} was cancelled under the Idempotency-Key"
                    f" {key!r:.80} with another reason. Another request needs another key."
                )
            return await self._stopped_at(execution_id, known.at)
        _refuse_finished(execution_id, state)
        now = self._clock.now()
        await self._orchestrator.cancel(
            execution_id, reason, cascade=cascade, actor=actor, key=key or ""
        )
        return await self._stopped_at(execution_id, now)

    async def _stopped_at(self, execution_id: ExecutionId, at: float) -> int:
        """How many a cancellation at this time stopped: what has ended does not know its children
        any more, but they know their parent. One that a person cancelled is not among them.
        """
        if not (await self._orchestrator.last_known(execution_id)).cancelling:
            return 0  # It ended before.
        found = [execution_id]
        for one in found:
            async for row in matching(self._store.records, exactly(parent=one)):
                if row.ended_at is None or row.ended_at >= at:
                    state = await unless_lost(self._orchestrator.last_known(row.execution_id))
                    acts = {act.action for act in state.acts} if state is not None else set()
                    if state and state.cancelling and "playbook.cancelled" not in acts:
                        found.append(row.execution_id)
        return len(found)

    async def pause(
        self, execution_id: ExecutionId, reason: str = "", *, actor: Actor | None = None
    ) -> list[str]:
        """Begin nothing new. Calls that run end, and are the last.

        The answer comes when every worker that has work of it has confirmed that; the names of
        those that have not within a few seconds: what they report counts until their leases lapse.
        """
        state = await self._orchestrator.state(execution_id)
        _refuse_finished(execution_id, state)
        if state.queued is not None:
            raise Conflict(
                f"execution {execution_id} waits for its turn and has begun nothing that could be"
                " paused. `noetl executions why` names what it waits for; `cancel` takes it out."
            )
        await self._orchestrator.pause(execution_id, reason, actor=actor)
        return await self._orchestrator.held_back(execution_id, patience=PAUSE_PATIENCE)

    async def resume(self, execution_id: ExecutionId, *, actor: Actor | None = None) -> None:
        _refuse_finished(execution_id, await self._orchestrator.state(execution_id))
        await self._orchestrator.resume(execution_id, actor=actor)

    async def signal(
        self,
        execution_id: ExecutionId,
        name: str,
        data: Any = None,
        *,
        step: str | None = None,
        signal_id: str | None = None,
        actor: Actor | None = None,
        roles: tuple[str, ...] = (),
    ) -> tuple[str, bool]:
        """Tell an execution that something happened outside; its id, and whether it was known.

        Under an id that was used before it is the same event again, and changes nothing. `roles`
        are those of the sender: some forms are answered by one role only.
        """
        now = self._clock.now()
        signal = received(now, signal_id or new_id(now), name, data, step, actor, roles)
        return signal.signal_id, await self._orchestrator.signal(execution_id, signal)

    async def signal_matching(
        self,
        name: str,
        data: Any,
        *,
        match: str,
        labels: Mapping[str, str] | None,
        path: str | None,
        names: Mapping[str, object] | None = None,
        signal_id: str | None,
        actor: Actor | None,
        roles: tuple[str, ...] = (),
    ) -> list[tuple[ExecutionId, bool]]:
        """Tell every execution that waits for such an event, and that matches, that it happened:
        their ids, and whether each knew it already.

        `match` is a condition on `workload`, `ctx`, `labels`, `execution_id` and `path` of each,
        and on `names`. An execution that knows this id already is not told again.
        Forms for a role that is not among `roles` are left alone.
        """
        now = self._clock.now()
        condition = _condition(match) if match else None
        signal = received(now, signal_id or new_id(now), name, data, None, actor, roles)
        wanted = (*exactly(path=path, labels=labels), Term((Condition("waiting"),)))
        found: list[tuple[ExecutionId, bool]] = []
        for execution_id in await self._matching(wanted):
            state = await unless_lost(self._orchestrator.state(execution_id))
            if state is None or not _listens(state, name, signal.signal_id):
                continue
            seen: dict[str, object] = {
                "workload": state.workload,
                "ctx": state.ctx,
                "labels": state.labels,
                "execution_id": execution_id,
                "path": state.path,
                **(names or {}),
            }
            scope = Scope(seen, seed=execution_id, limits=MATCH_LIMITS)
            with suppress(EvaluationFailed, Finished, NotAllowed):
                if condition is None or condition.holds(scope):
                    known = await self._orchestrator.signal(execution_id, signal)
                    found.append((execution_id, known))
            await asyncio.sleep(0)
        return found

    async def _matching(self, wanted: Wanted) -> list[ExecutionId]:
        found: list[ExecutionId] = []
        async for row in matching(self._store.records, wanted):
            found.append(row.execution_id)
            if len(found) > MATCHED_MAX:
                raise TooMany(
                    f"more than {MATCHED_MAX:,} executions wait. Name a playbook, or labels that"
                    " the ones you mean have."
                )
        return found

    async def rerun(
        self,
        execution_id: ExecutionId,
        *,
        step: str | None = None,
        workload: dict[str, Any] | None = None,
        actor: Actor | None = None,
        key: str | None = None,
    ) -> ExecutionId:
        """A new execution of the same playbook; from a step on, with what was there before it.

        Under a key that was used before for the same request, it is the one started then; raises
        KeyReused for another request.
        """
        from noetl.control import forks

        asked = _digest("rerun", execution_id, step, workload or {})
        begun_before = partial(self._begun_before, key, asked)
        if (known := await begun_before()) is not None:
            return known
        old = await forks.request_of(self._store.log, execution_id)
        program = await self._orchestrator.programs.by_digest(old.digest)
        now = self._clock.now()
        new = self._new_id(now)
        seed = None
        if step is not None:
            if step not in program.steps:
                raise NotFound(no_such_step(step, program.steps))
            seed = await forks.before_step(self._store.log, execution_id, new, old.seal, step)
        payload = merged(old.payload, workload or {})
        # What it reuses may be references that the first one made.
        seal = old.seal if old.seal or step is not None else new_seal()
        request = msgspec.structs.replace(
            old,
            at=now,
            payload=payload,
            seal=seal,
            forked_at=None,
            rerun_of=execution_id,
            parent=None,
            actor=actor,
            key=key,
            asked=asked,
        )
        return await self._begin(new, request, program, begun_before, seed=seed)

    async def fork(
        self,
        execution_id: ExecutionId,
        wish: forks.Wish,
        *,
        actor: Actor | None = None,
        key: str | None = None,
    ) -> tuple[ExecutionId, ForkPlanDocument]:
        """A new execution that goes on from an event of this one, and what it reuses. For a `key`,
        see `rerun`.
        """
        from noetl.control import forks

        planned = await self.planned_fork(execution_id, wish)
        asked = _digest("fork", execution_id, wish)
        begun_before = partial(self._begun_before, key, asked)
        if (known := await begun_before()) is not None:
            return known, planned.document
        now = self._clock.now()
        new = self._new_id(now)
        seed = forks.seed_of(planned, new, now=now)
        await forks.copy_segments(self._store.bodies, planned, seed, new)
        request = msgspec.structs.replace(
            planned.request,
            at=now,
            digest=planned.program.digest,
            version=planned.version,
            forked_at=wish.seq,
            rerun_of=execution_id,
            parent=None,
            actor=actor,
            key=key,
            asked=asked,
        )
        begun = await self._begin(new, request, planned.program, begun_before, seed=seed)
        return begun, planned.document

    async def planned_fork(self, execution_id: ExecutionId, wish: forks.Wish) -> forks.PlannedFork:
        """What a fork would begin with. Nothing is started."""
        from noetl.control import forks

        store, programs = self._store, self._orchestrator.programs
        return await forks.planned(store.log, store.bodies, programs, execution_id, wish)


def _refuse_finished(execution_id: ExecutionId, state: ExecutionState) -> None:
    if state.status in TERMINAL:
        raise Finished(
            f"execution {execution_id} has ended ({state.status});"
            " an ended execution does not change."
            " `noetl executions rerun` starts a new one."
        )


def _digest(*asked: object) -> str:
    """The same for the same request."""
    return derive(msgspec.json.encode(asked, order="deterministic").decode())
