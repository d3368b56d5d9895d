"""Step runs: admission, and handing the body to a worker."""

from __future__ import annotations

from typing import Any

from noetl.engine.failing import error_from
from noetl.engine.scope import server_scope
from noetl.engine.turn import Issue, Turn
from noetl.errors import EvaluationFailed
from noetl.model.commands import Chunk, Command
from noetl.model.events import (
    CommandIssued,
    Progress,
    StepDone,
    StepFailed,
    StepScheduled,
    StepSkipped,
    TimerSet,
    TokenConsumed,
)
from noetl.model.ids import CommandId, StepRunId, derive
from noetl.model.net import Needs, Step, Values
from noetl.model.outcome import TaskError
from noetl.model.state import Run, StepSummary, Token


def start_run(turn: Turn, step: str, tokens: list[Token], *, released: bool = False) -> None:
    """Take these tokens, ask admission, and set the step going."""
    program = turn.program.steps[step]
    number = turn.state.steps.get(step, StepSummary()).runs + 1
    run_id = derive(turn.execution_id, step, number)
    tokens = sorted(tokens, key=lambda token: (token.arc, token.order))
    for token in tokens:
        turn.record(TokenConsumed(at=turn.at, token_id=token.token_id, step_run_id=run_id))
    try:
        args, admitted = _enter(turn, step, run_id, tokens)
    except EvaluationFailed as error:
        _schedule(turn, program.step, run_id, number, {}, released)
        fail_run(turn, run_id, error_from(error))
        return
    if not admitted:
        reason = "admission denied"
        turn.record(StepSkipped(at=turn.at, step_run_id=run_id, step=step, reason=reason))
        return
    _schedule(turn, program.step, run_id, number, args, released)
    if program.step.loop is not None:
        from noetl.engine.looping import start_loop  # a loop hands out runs of its own

        start_loop(turn, turn.state.runs[run_id])
    elif program.step.tasks:
        issue(turn, turn.state.runs[run_id])
    else:
        turn.record(StepDone(at=turn.at, step_run_id=run_id, step=step, result=args or None))


def _enter(turn: Turn, step: str, run_id: StepRunId, tokens: list[Token]) -> tuple[Values, bool]:
    """The run's args, and whether admission lets it in."""
    program = turn.program.steps[step]
    carried: Values = {}
    for token in tokens:
        carried |= token.args
    event = {"event": tokens[-1].event} if tokens else {}
    scope = server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        step,
        at=turn.at,
        seed=run_id,
        args=carried,
        names=event,
    )
    own = program.args.render(scope, f"args of step {step}")
    assert isinstance(own, dict)
    args = {**own, **carried}
    if len(tokens) > 1:
        args["_tokens"] = [token.args for token in tokens]
    scope.roots["args"] = args
    for allow, when in program.admit:
        if when is None or when.holds(scope):
            return args, allow
    return args, not program.admit


def _schedule(
    turn: Turn, step: Step, run_id: StepRunId, number: int, args: Values, released: bool
) -> None:
    one_command = step.loop is None and bool(step.tasks) and turn.state.status != "PAUSED"
    turn.record(
        StepScheduled(
            at=turn.at,
            step_run_id=run_id,
            step=step.name,
            number=number,
            args=args,
            command_id=derive(run_id, 1) if one_command else None,
            released=released,
        )
    )
    for purpose, seconds, since in (
        ("timeout", step.timeout, turn.at),
        ("deadline", step.deadline, turn.state.started_at or turn.at),
    ):
        if isinstance(seconds, int | float):
            turn.record(
                TimerSet(
                    at=turn.at,
                    timer_id=derive(run_id, purpose),
                    fires_at=since + seconds,
                    purpose=purpose,  # type: ignore[arg-type]
                    step_run_id=run_id,
                )
            )


def issue(turn: Turn, run: Run, *, progress: Progress | None = None) -> None:
    """Give the run to a worker, unless the execution is paused: then resuming will."""
    if turn.state.status == "PAUSED":
        return
    if not run.commands:
        command_id = derive(run.step_run_id, "again", turn.state.seq)
        turn.record(CommandIssued(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    else:
        [command_id] = run.commands
    turn.effect(Issue(command_for(turn, run, command_id, progress=progress)))


def command_for(
    turn: Turn,
    run: Run,
    command_id: CommandId,
    *,
    chunk: Chunk | None = None,
    iteration: int | None = None,
    progress: Progress | None = None,
    deliveries: int = 1,
    block: str | None = None,
) -> Command:
    """A command that carries what the body reads, and no more."""
    step = turn.program.steps[run.step].step
    state = turn.state
    needs = step.needs
    return Command(
        command_id=command_id,
        execution_id=turn.execution_id,
        digest=turn.program.digest,
        step=run.step,
        step_run_id=run.step_run_id,
        run_number=run.number,
        args=run.args,
        workload=_needed(state.workload, needs.workload, needs.bare),
        ctx=_needed(state.ctx, needs.ctx, needs.bare),
        vars=_needed(state.vars, needs.vars, ()),
        steps=_needed_results(turn, needs),
        chunk=chunk,
        iteration=iteration,
        progress=progress,
        block=block,
        pool=step.pool or turn.program.net.executor.pool or "default",
        at=turn.at,
        deliveries=deliveries,
        parent_execution_id=state.parent.execution_id if state.parent is not None else None,
    )


def _needed(values: Values, named: tuple[str, ...], bare: tuple[str, ...]) -> Values:
    if "*" in named:
        return values
    return {name: values[name] for name in (*named, *bare) if name in values}


def _needed_results(turn: Turn, needs: Needs) -> dict[str, Any]:
    results = turn.state.results
    wanted = results if "*" in needs.steps else [*needs.steps, *needs.bare]
    return {name: results[name] for name in wanted if name in results}


def fail_run(turn: Turn, run_id: StepRunId, error: TaskError, result: Any = None) -> None:
    """End a run as failed; whatever works on it must stop."""
    turn.close_commands(run_id)
    run = turn.state.runs[run_id]
    turn.record(
        StepFailed(at=turn.at, step_run_id=run_id, step=run.step, error=error, result=result)
    )
