"""An execution as people and programs read it: the documents of the API, made from the state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from noetl.model.answers import (
    ActDocument,
    ActorDocument,
    CredentialDocument,
    Document,
    EventDocument,
    ExecutionDocument,
    ExecutionStatus,
    ExecutionSummary,
    FailureDocument,
    InputDocument,
    ListeningDocument,
    LoopDocument,
    LoopErrorDocument,
    ProgressDocument,
    QuestionDocument,
    StepDocument,
    WarningDocument,
    WorkerDocument,
)
from noetl.model.commands import place_of
from noetl.model.duration import timestamp
from noetl.model.facts import Actor, Warned, sentence
from noetl.model.ids import ExecutionId, derive, event_id, trace_of
from noetl.model.net import FormField
from noetl.model.outcome import TaskError
from noetl.model.signals import ANY
from noetl.model.state import ExecutionState, Run, StepSummary
from noetl.model.timeline import MomentDocument, OpenRunDocument, WaitingTokenDocument, Waits
from noetl.store.base import Runtime
from noetl.store.credentials import StoredCredential
from noetl.store.log import EventRow
from noetl.store.records import Summary

if TYPE_CHECKING:
    from noetl.control.history import Moment
    from noetl.engine.program import Program

D = TypeVar("D", bound=Document)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@lru_cache(256)
def moment(at: float | None) -> str | None:
    """RFC 3339, UTC."""
    if at is None:
        return None
    fraction, second = math.modf(at)
    microseconds = round(fraction * 1_000_000)
    if not 0 <= microseconds < 1_000_000:  # before 1970, or as good as the next second
        text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return f"{_second(second)}.{microseconds // 1000:03d}Z"


@lru_cache(64)
def _second(at: float) -> str:
    """Many events happen within one."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


@cache
def _texts(kind: type[Document]) -> frozenset[str]:
    """The fields of a document that are texts."""
    fields = msgspec.structs.fields(kind)
    texts = (str, str | None, str | UnsetType, str | UnsetType | None)
    return frozenset(one.name for one in fields if one.type in texts)


def of(kind: type[D], *sources: Any, **fields: Any) -> D:
    """A document of that kind: `fields`, and what the sources hold under the names of the others. A
    number in a field of text is a moment, and a field that is UNSET stays so, whatever they hold.
    """
    for source in sources:
        for name in kind.__struct_fields__:
            if name not in fields and (held := getattr(source, name, UNSET)) is not UNSET:
                fields[name] = held
    for name in _texts(kind) & fields.keys():
        if isinstance(fields[name], float | int):
            fields[name] = moment(fields[name])
    return msgspec.convert({name: one for name, one in fields.items() if one is not UNSET}, kind)


def span(begun: float, ended: float | None) -> float | None:
    """The duration in seconds; not negative even if a clock was set back meanwhile."""
    return None if ended is None else max(0.0, round(ended - begun, 6))


def plain(document: Document) -> dict[str, Any]:
    """A document as dictionaries and lists, as JSON would be read."""
    found: dict[str, Any] = msgspec.to_builtins(document)
    return found


def execution(
    execution_id: ExecutionId, state: ExecutionState, program: Program
) -> ExecutionDocument:
    """The document of `GET /api/executions/{id}`."""
    ended = state.ended_at
    begun = state.started_at or state.requested_at
    return ExecutionDocument(
        execution_id=execution_id,
        path=state.path,
        version=state.version,
        digest=state.digest,
        status=state.status,
        start_time=moment(begun),
        end_time=moment(ended),
        duration_seconds=span(begun, ended),
        progress=_progress(state, program),
        workload=state.workload,
        ctx=state.ctx,
        vars=state.vars,
        result=state.result,
        error=error(state.failure),
        failed_step=state.failed_step or None,
        parent_execution_id=state.parent.execution_id if state.parent is not None else None,
        labels=state.labels,
        actor=_actor(state.actor),
        source=state.source,
        acts=[of(ActDocument, act, actor=_actor(act.actor)) for act in state.acts],
        warnings=[_warning(one) for one in state.warnings],
        steps=[
            _step(name, state.steps[name], state) for name in program.steps if name in state.steps
        ],
    )


def moment_of(execution_id: ExecutionId, found: Moment, program: Program) -> MomentDocument:
    """The document of `GET /api/executions/{id}/state`."""
    state = found.state
    return of(
        MomentDocument,
        execution(execution_id, state, program),
        found,
        at=found.event.at,
        event_type=found.event.type,
        tokens=[of(WaitingTokenDocument, token) for token in state.tokens.values()],
        runs=[_open_run(run) for run in state.runs.values()],
    )


def _open_run(run: Run) -> OpenRunDocument:
    waits: Waits = None
    if run.children:
        waits = "child"
    elif run.waiting and run.listens is not None:
        waits = "form" if run.listens.form else "event"
    elif run.waiting:
        waits = "timer"
    elif not run.started:
        waits = "worker"
    loop = run.loop
    count = 0 if loop is None else max(loop.given - loop.ended, 0)
    return of(
        OpenRunDocument, run, waits_for=waits, children=list(run.children), iterations_open=count
    )


def _actor(actor: Actor | None) -> ActorDocument | None:
    if actor is None:
        return None
    return ActorDocument(kind=actor.kind, name=actor.name, text=str(actor))


_NONE_HELD = {
    "arcs": "none of {step}'s arcs held",
    "guard": "an arc of {step} did not hold",
    "admission": "none of {step}'s admission rules held, so it was skipped",
    "rules": "none of {step}'s rules held",
    "policy": "none of the policy rules of a task of {step} held",
}


def _warning(found: Warned) -> WarningDocument:
    held = _NONE_HELD[found.about].format(step=found.step)
    where = f"in {found.playbook}, " if found.playbook else ""
    return WarningDocument(
        code="undefined",
        step=found.caller or found.step,
        message=f"{where}{held}: {sentence(found.undefined)}",
        undefined=found.undefined,
        count=found.count,
        execution_id=found.execution_id or UNSET,
    )


def _progress(state: ExecutionState, program: Program) -> ProgressDocument:
    ended = sum(1 for step in state.steps.values() if step.status != "running")
    return ProgressDocument(steps=len(program.steps), ended=ended, running=len(state.runs))


def _step(name: str, summary: StepSummary, state: ExecutionState) -> StepDocument:
    result = state.results.get(name)
    listens = [
        listening(run, state)
        for run in state.runs.values()
        if run.step == name and run.listens is not None
    ]
    return StepDocument(
        step=name,
        status=summary.status,
        runs=summary.runs,
        attempts=summary.attempts,
        started_at=moment(summary.started_at),
        ended_at=moment(summary.ended_at),
        result=result.value if result is not None else None,
        error=error(summary.error),
        loop=_loop(summary),
        undone=summary.undone or UNSET,
        undoes=summary.undoes or UNSET,
        unmatched=summary.unmatched or UNSET,
        waiting=listens[-1] if listens else UNSET,
    )


def _loop(summary: StepSummary) -> LoopDocument | UnsetType:
    if summary.loop_total is None:
        return UNSET
    # The same list whichever iteration ended first.
    errors = [
        LoopErrorDocument(message=message, count=count)
        for message, count in sorted(summary.loop_errors.items(), key=lambda row: (-row[1], row[0]))
    ]
    return LoopDocument(
        total=summary.loop_total,
        done=summary.loop_success,
        failed=summary.loop_failed,
        errors=errors or UNSET,
    )


def listening(run: Run, state: ExecutionState) -> ListeningDocument:
    """The event or form that a step waits for."""
    assert run.listens is not None
    moments = [state.timers[timer].fires_at for timer in run.timers]
    return ListeningDocument(
        since=moment(run.scheduled_at),
        until=moment(min(moments, default=None)),
        events=list(run.listens.events),
        form=[_question(field) for field in run.listens.form],
        role=run.listens.role or UNSET,
    )


def _question(field: FormField) -> QuestionDocument:
    """A field of a form, as people are asked."""
    return QuestionDocument(
        name=field.name,
        type=field.type,
        label=field.label or field.name,
        required=field.required,
        help=field.help or UNSET,
        default=UNSET if field.default in (None, "") else field.default,
        options=UNSET if field.options in (None, "") else field.options,
    )


def playbook_input(field: FormField) -> InputDocument:
    """An input of a playbook, as the API shows it."""
    return InputDocument(
        **msgspec.structs.asdict(_question(field)),
        min=UNSET if field.min is None else field.min,
        max=UNSET if field.max is None else field.max,
        pattern=UNSET if field.pattern is None else field.pattern,
    )


def event_words(events: Sequence[str]) -> str:
    """Which events a step waits for, in words."""
    if ANY in events:
        return "any event from outside"
    return " or ".join(events) or "its timers"


def error(found: TaskError | None) -> FailureDocument | None:
    if found is None:
        return None
    return FailureDocument(
        kind=found.kind,
        message=found.message,
        code=UNSET if found.code is None else found.code,
        retryable=found.retryable or UNSET,
        retry_after=UNSET if found.retry_after is None else found.retry_after,
        status=UNSET if found.status is None else found.status,
        details=UNSET if found.details in (None, False) else found.details,
    )


def status(execution_id: ExecutionId, state: ExecutionState) -> ExecutionStatus:
    """The short form: where an execution stands."""
    begun = state.started_at or state.requested_at
    current = sorted({run.step for run in state.runs.values()})
    return ExecutionStatus(
        execution_id=execution_id,
        status=state.status,
        current_steps=current,
        current_step=current[0] if current else None,
        completed_steps=[name for name, one in state.steps.items() if one.status == "done"],
        failed=state.status == "FAILED",
        completed=state.status == "COMPLETED",
        error=error(state.failure),
        start_time=moment(begun),
        end_time=moment(state.ended_at),
        duration_seconds=span(begun, state.ended_at),
    )


def waiting(stored: str | None) -> Literal["form", "event", "timer"] | None:
    """What a step waits for, if it waits."""
    match stored:
        case "form" | "event" | "timer":
            return stored
    return None


def summary(row: Summary, workload: dict[str, Any] | UnsetType = UNSET) -> ExecutionSummary:
    """An entry of the list of executions."""
    step = row.failed_step or next(iter(row.current_steps), None)
    return of(
        ExecutionSummary,
        row,
        start_time=row.requested_at,
        end_time=row.ended_at,
        duration_seconds=span(row.requested_at, row.ended_at),
        step=step,
        waits=waiting(row.waits),
        workload=workload,
    )


WORKER_EVENTS = (
    *("task.", "retry.", "poll.", "sink.", "policy.", "chain.restarted"),
    *("loop.iteration.", "loop.frame."),
)
"""Events that workers report; the server records all others."""
_ENTITIES = ("playbook", "workflow", "step", "task", "loop", "token", "command", "timer", "child")
_STATUSES = {
    **dict.fromkeys(("playbook.paused", "step.waiting"), "paused"),
    **dict.fromkeys(
        (
            *("playbook.execution.requested", "playbook.resumed", "workflow.started"),
            *("token.created", "step.scheduled", "step.started", "step.resumed"),
            *("command.issued", "command.leased", "command.requeued", "timer.set"),
            *("task.started", "task.log", "retry.started", "chain.restarted", "child.started"),
            *("loop.started", "loop.frame.claimed", "loop.iteration.started"),
            *("poll.started", "poll.iteration", "sink.started"),
        ),
        "in_progress",
    ),
    **dict.fromkeys(
        (
            *("workflow.failing", "playbook.cancelled", "step.failed", "step.cancelled"),
            *("command.lost", "loop.iteration.failed", "policy.unmatched"),
        ),
        "error",
    ),
}
"""What is not here has succeeded, unless it says otherwise."""
_FAILED = ("error", "exhausted", "FAILED", "CANCELLED")


def event_status(name: str, payload: dict[str, Any]) -> str:
    """The status of an event: `in_progress`, `success`, `error` or `paused`."""
    known = _STATUSES.get(name)
    if known is not None:
        return known
    said = payload.get("outcome", payload)
    return "error" if said.get("status") in _FAILED else "success"


@lru_cache(256)
def _kind(name: str) -> tuple[str, str]:
    """Who reports events of this name, and what they are about."""
    entity = name.partition(".")[0]
    source = "worker" if name.startswith(WORKER_EVENTS) else "server"
    return source, entity if entity in _ENTITIES else "playbook"


def event(execution_id: ExecutionId, row: EventRow) -> EventDocument:
    """The envelope of an event."""
    # As it was written: to make a fact of it first would take three times as long.
    payload = _decode(row.body)
    for name in ("type", "at", "step", "step_run_id", "seal", "recorded_at"):
        payload.pop(name, None)
    source, entity = _kind(row.type)
    # A server records what it says in the same moment; rows of earlier versions do not tell when
    # a worker's report was taken.
    recorded_at = row.at if source == "server" else row.recorded_at or None
    actor = payload.get("actor")
    return EventDocument(
        event_id=event_id(execution_id, row.seq, row.at),
        seq=row.seq,
        event_type=row.type,
        name=row.type,
        timestamp=moment(row.at),
        recorded_at=None if recorded_at is None else moment(recorded_at),
        source=source,
        execution_id=execution_id,
        step=row.step or None,
        step_run_id=row.step_run_id or None,
        entity_type=entity,
        entity_id=row.step_run_id or execution_id,
        parent_id=execution_id,
        trace_id=trace_of(execution_id),
        attempt=payload.get("attempt"),
        iteration=payload.get("iteration"),
        action_id=payload.get("action_id"),
        status=event_status(row.type, payload),
        actor=_actor(msgspec.convert(actor, Actor)) if actor else None,
        payload=payload,
    )


def restored(envelope: EventDocument) -> EventRow:
    """The event that an envelope was made from, to be read with the same eyes as a stored one."""
    fact = {
        **envelope.payload,
        "type": envelope.event_type,
        "at": timestamp(envelope.timestamp or ""),
        "step": envelope.step,
        "step_run_id": envelope.step_run_id,
    }
    return EventRow(
        seq=envelope.seq,
        type=envelope.event_type,
        at=fact["at"] or 0.0,
        step=envelope.step or "",
        step_run_id=envelope.step_run_id or "",
        body=msgspec.json.encode({name: one for name, one in fact.items() if one is not None}),
        recorded_at=timestamp(envelope.recorded_at or "") or 0.0,
    )


def credential_id(name: str) -> str:
    """Another name for a credential, which is as good as its own."""
    return derive("credential", name)


def credential(row: StoredCredential, data: dict[str, Any] | None = None) -> CredentialDocument:
    """A credential; without its data it holds no secret."""
    shown = UNSET if data is None else data
    return of(CredentialDocument, row, id=credential_id(row.name), data=shown)


def runtime(row: Runtime) -> WorkerDocument:
    """A process that says that it is there."""
    pool, labels = place_of(row.pool)
    return of(WorkerDocument, row, pool=pool, labels=sorted(labels))
