"""The ways out of a step: which arcs fire, and what their tokens carry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from noetl.engine.durations import duration
from noetl.engine.pipeline.actions import rendered
from noetl.engine.program import ArcProgram, Sending, StepProgram
from noetl.engine.scope import (
    EMPTY_SCOPE,
    event_names,
    outcome_names,
    result_view,
    server_scope,
    shown_names,
    state_scope,
)
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed
from noetl.model.events import (
    CtxPatched,
    NextSelected,
    NextUnmatched,
    StepDone,
    StepFailed,
    TimerSet,
    TokenAbsorbed,
    TokenCreated,
    WorkflowFailing,
)
from noetl.model.facts import Undefined, near_misses, sentence
from noetl.model.ids import derive
from noetl.model.net import Values
from noetl.model.outcome import TaskError, error_from, error_value
from noetl.model.spelling import did_you_mean
from noetl.model.state import Run, StepResult
from noetl.templates import Compiled, Scope, undefined_in

Verdict = Literal["fired", "false", "not_asked", "not_for_failures"]
"""`not_asked`: an arc before it fired, and the step takes only one."""
RUNS_PER_TURN_MAX = 1000
"""Runs that may start within one decision; what comes after them waits for a timer."""


def route(turn: Turn, ended: StepDone | StepFailed) -> None:
    """Place a token on the far end of every arc that fires, in playbook order.

    Where a rule's `next` has decided, its targets take the place of the arcs.

    A failed step takes only arcs whose guard reads the event or the error. If none of them fires
    nothing has handled the failure, and the execution fails.
    """
    program = turn.program.steps[ended.step]
    error = ended.error if isinstance(ended, StepFailed) else None
    unhandled = error if program.step.on_error != "ignore" else None
    scope = EMPTY_SCOPE
    undefined: Undefined = {}
    run = turn.ended[ended.step_run_id]
    decided = run.next
    try:
        if decided is not None:
            sendings = [
                Sending(goal.label, 0, goal.step, goal.args, {}, decided.delay)
                for goal in decided.selected
            ]
        elif program.sendings is not None and unhandled is None:
            sendings = program.sendings
        else:
            if not program.routes_plainly:
                scope = ending_scope(turn, ended, error)
            arcs = list(judge_arcs(program, scope, failed=unhandled is not None))
            chosen = [arc for arc, verdict in arcs if verdict == "fired"]
            if len(chosen) < len(arcs):
                undefined = _misspelt(turn, arcs, scope)
            sendings = [arc.sending or _sending(turn, ended, arc, scope) for arc in chosen]
            if program.routes_plainly and unhandled is None:
                program.sendings = sendings
    except EvaluationFailed as failure:
        _fail(turn, ended, error_from(failure))
        return
    if sendings:
        # `event` in admission rules of the target, without the result, which is in the state.
        event: Values = {"name": step_end_event(program, error), "step": ended.step}
        if error is not None:
            event["error"] = error_value(error)
        for sending in sendings:
            _send(turn, ended, run, sending, event)
        targets = tuple([sending.target for sending in sendings])
        turn.record(
            NextSelected(
                at=turn.at,
                step_run_id=ended.step_run_id,
                step=ended.step,
                targets=targets,
                undefined=undefined,
            )
        )
    elif unhandled is not None:
        _fail(turn, ended, unhandled)
    elif program.arcs and decided is None and not program.step.router.quiet:
        _unmatched(turn, ended, program, scope)


def _fail(turn: Turn, ended: StepDone | StepFailed, error: TaskError) -> None:
    stop = turn.program.steps[ended.step].step.failure_mode == "fail_fast"
    turn.record(WorkflowFailing(at=turn.at, error=error, step=ended.step, stop=stop))


def _misspelt(turn: Turn, arcs: list[tuple[ArcProgram, Verdict]], scope: Scope) -> Undefined:
    """Undefined names in guards that are nearly the name of something that exists. Names that may
    be defined later do not count: keys of `ctx` or `vars`, results of steps.
    """
    asked = [arc.guard for arc, verdict in arcs if verdict == "false"]
    return {
        path: meant
        for path, meant in near_misses(undefined_in(asked, scope)).items()
        if not path.startswith(("ctx.", "vars.", "steps.")) and path not in turn.program.steps
    }


def _unmatched(
    turn: Turn, ended: StepDone | StepFailed, program: StepProgram, scope: Scope
) -> None:
    """Record that no arc fired, with the undefined names that guards read."""
    undefined = undefined_in([arc.guard for arc in program.arcs], scope)
    turn.record(NextUnmatched(**turn.about(ended), undefined=undefined))
    if turn.program.net.executor.no_next_is_error:
        why = f" {sentence(undefined)}" if undefined else ""
        error = TaskError(
            kind="client_error",
            code="no_next",
            message=f'no arc of step "{ended.step}" fired, and `no_next_is_error` is set.{why}',
        )
        _fail(turn, ended, error)


def step_end_event(program: StepProgram, error: TaskError | None) -> str:
    """The stored name of the event that ends a step."""
    return program.end_event if error is None else "step.failed"


def ending_scope(turn: Turn, ended: StepDone | StepFailed, error: TaskError | None) -> Scope:
    """The finished step's scope, without `iter`."""
    program, run = turn.program.steps[ended.step], turn.ended[ended.step_run_id]
    has_names = run.local or (run.progress is not None and run.progress.local)
    if program.reads_plainly and not has_names:
        return state_scope(
            turn.state, turn.execution_id, at=turn.at, seed=ended.step_run_id, args=run.args
        )
    result = StepResult(
        value=ended.result, tasks=ended.tasks if isinstance(ended, StepDone) else {}
    )
    shown = result_view(turn, ended.step, result)
    return server_scope(
        turn,
        ended.step,
        seed=ended.step_run_id,
        args=run.args,
        names=shown_names(turn, run)
        | event_names(step_end_event(program, error), ended.step, ended.result, error, shown)
        | outcome_names(turn.program.views[program.kind], ended.result, error),
        own=result if error is None or ended.result is not None else None,
    )


def judge_arcs(
    program: StepProgram, scope: Scope, *, failed: bool
) -> Iterator[tuple[ArcProgram, Verdict]]:
    """Every arc in order, and whether it fires. Raises EvaluationFailed if a guard does."""
    is_decided = False
    for arc in program.arcs:
        if is_decided:
            yield arc, "not_asked"
        elif failed and not arc.arc.on_failure:
            yield arc, "not_for_failures"
        elif arc.guard is not None and not arc.guard.holds(scope, arc.place):
            yield arc, "false"
        else:
            yield arc, "fired"
            is_decided = program.step.router.mode == "exclusive"


def _sending(turn: Turn, ended: StepDone | StepFailed, arc: ArcProgram, scope: Scope) -> Sending:
    target = arc.step.render(scope, f"an arc of step {ended.step}")
    if not isinstance(target, str) or target not in turn.program.steps:
        raise EvaluationFailed(
            f'step "{ended.step}" sends its token to "{target}", which is not a step.'
            + did_you_mean(str(target), turn.program.steps)
        )
    where = f"of the arc from {ended.step} to {target}"
    args = rendered(arc.args, scope, f"args {where}")
    patch = rendered(arc.patch, scope, f"set {where}")
    delay = duration(arc.delay, scope, "delay of an arc") or 0.0
    dedupe = key_digest(arc.dedupe, scope, f"dedupe {where}")
    partition = key_digest(arc.partition, scope, f"partition {where}")
    priority = arc.arc.priority
    sending = Sending(arc.label, priority, target, args, patch, delay, dedupe, partition)
    if arc.sends_plainly:
        arc.sending = sending
    return sending


def key_digest(key: Compiled, scope: Scope, where: str) -> str:
    """A short digest of a key, the same for equal keys; empty for no key."""
    value = key.render(scope, where)
    return derive(msgspec.json.encode(value, order="sorted")) if value is not None else ""


def _send(
    turn: Turn, ended: StepDone | StepFailed, run: Run, sending: Sending, event: Values
) -> None:
    if sending.patch:
        run_id, step = ended.step_run_id, ended.step
        turn.record(CtxPatched(at=turn.at, values=sending.patch, step_run_id=run_id, step=step))
    # A cycle without any work would keep other executions waiting: it goes on by a timer.
    later = sending.delay > 0 or turn.runs_started >= RUNS_PER_TURN_MAX
    ready_at = turn.at + sending.delay if later else None
    token_id = derive(ended.step_run_id, sending.label)
    is_known = bool(sending.dedupe) and sending.dedupe in turn.state.arc_keys.get(sending.label, ())
    if is_known:
        ready_at = None
    turn.record(
        TokenCreated(
            at=turn.at,
            token_id=token_id,
            step=sending.target,
            args=sending.args,
            source=ended.step_run_id,
            arc=sending.label,
            ready_at=ready_at,
            priority=sending.priority,
            event=event,
            past=run.past,
            dedupe=sending.dedupe,
            partition=sending.partition,
        )
    )
    if is_known:
        reason = "its arc has carried a token with the same key"
        turn.record(TokenAbsorbed(at=turn.at, token_id=token_id, reason=reason))
    if ready_at is not None:
        turn.record(
            TimerSet(
                at=turn.at,
                timer_id=derive(token_id, "ready"),
                fires_at=ready_at,
                purpose="token",
                token_id=token_id,
            )
        )
