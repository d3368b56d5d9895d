"""A step run: handed to workers as commands, and ended.

A command carries what the body reads, and no more. The end of a run closes whatever works on it,
writes what the step keeps of its result, and is the fact that routing follows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.engine.failures import error_from
from noetl.engine.scope import WholeResult, event_names, server_scope, shown_names, step_view
from noetl.engine.turn import Close, Issue, Turn
from noetl.errors import EvaluationFailed
from noetl.model.commands import SUSPECT_AFTER, Chunk, Command, apart
from noetl.model.events import (
    CommandClosed,
    CommandIssued,
    CtxPatched,
    Progress,
    StepDone,
    StepFailed,
    StepSkipped,
    VarsSet,
)
from noetl.model.ids import CommandId, derive
from noetl.model.net import Needs, Values
from noetl.model.outcome import TaskError
from noetl.model.state import Run, StepResult

EVERYTHING = Needs(ctx=("*",), workload=("*",), vars=("*",), steps=("*",))


def issue(turn: Turn, run: Run) -> None:
    """Give the run to a worker, unless the execution is paused: then resuming will."""
    if turn.state.status == "PAUSED":
        return
    if not run.commands:
        command_id = derive(run.step_run_id, "again", turn.state.seq)
        turn.record(CommandIssued(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    [command_id] = run.commands
    turn.effects.append(Issue(command_for(turn, run, command_id, progress=run.progress)))


def let_go(turn: Turn, run: Run) -> None:
    """Whatever works on the run must stop; the run itself goes on."""
    for command_id in list(run.commands):
        if command_id != turn.last_word:
            turn.effect(Close(command_id))
        turn.record(CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))


def command_for(
    turn: Turn,
    run: Run,
    command_id: CommandId,
    *,
    chunk: Chunk | None = None,
    iteration: int | None = None,
    progress: Progress | None = None,
) -> Command:
    """A command that carries what the body reads, and no more."""
    program, state = turn.program.steps[run.step], turn.state
    workload: Values = {}
    ctx: Values = {}
    variables: Values = {}
    steps: dict[str, StepResult] = {}
    if program.reads_state or run.block is not None:
        # What a workbook entry reads depends on who calls it, so it gets all there is.
        needs = program.step.needs if run.block is None else EVERYTHING
        workload = _needed_workload(state.workload, needs)
        ctx = _needed(state.ctx, needs.ctx, needs.bare)
        variables = _needed(state.vars, needs.vars, ())
        steps = _needed_results(turn, needs)
    deliveries = run.commands[command_id]
    return Command(
        command_id=command_id,
        execution_id=turn.execution_id,
        digest=turn.program.digest,
        step=run.step,
        step_run_id=run.step_run_id,
        run_number=run.number,
        args=run.args,
        workload=workload,
        ctx=ctx,
        vars=variables,
        steps=steps,
        chunk=chunk,
        iteration=iteration,
        progress=progress,
        local=run.local,
        block=run.block,
        undoes=run.compensates is not None,
        pool=program.pool if deliveries < SUSPECT_AFTER else apart(program.pool),
        priority=run.priority + turn.program.net.executor.priority,
        at=turn.at,
        deliveries=deliveries,
        parent_execution_id=state.parent.execution_id if state.parent is not None else None,
        seal=state.seal,
    )


def _needed_workload(workload: Values, needs: Needs) -> Values:
    """What the body reads; all of it if it reads a key that is not there, so that an error can say
    which key was probably meant."""
    for name in needs.workload:
        if name not in workload and name != "*":
            return dict(workload)
    return _needed(workload, needs.workload, needs.bare)


def _needed(values: Values, named: tuple[str, ...], bare: tuple[str, ...]) -> Values:
    """A part of the state as it is now: the state goes on changing, the command must not."""
    if not named and not bare:
        return {}
    if "*" in named:
        return dict(values)
    return {name: values[name] for name in (*named, *bare) if name in values}


def _needed_results(turn: Turn, needs: Needs) -> dict[str, Any]:
    """Copies: a worker in this process puts the value of a reference in its place."""
    if not needs.steps and not needs.bare:
        return {}
    results = turn.state.results
    wanted = results if "*" in needs.steps else [*needs.steps, *needs.bare]
    return {name: msgspec.structs.replace(results[name]) for name in wanted if name in results}


# --- The end of a run ----------------------------------------------------------------------------


def record_done(turn: Turn, run: Run, result: Any, tasks: Values) -> None:
    """It ended well: write what the step keeps, then end the run."""
    program = turn.program.steps[run.step]
    if program.keeps and run.compensates is None:
        try:
            _keep(turn, run, result, tasks)
        except EvaluationFailed as error:
            record_failed(turn, run, error_from(error))
            return
    step = program.step
    turn.end(
        run,
        StepDone(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            result=result,
            tasks=tasks,
            undo=step.compensate if run.compensates is None and not run.handles_failure else None,
            emitted=step.emit,
            undone=run.undoes,
        ),
    )


def record_skipped(turn: Turn, run: Run, reason: str) -> None:
    """End a run as skipped: none of its arcs is taken."""
    skipped = StepSkipped(at=turn.at, step_run_id=run.step_run_id, step=run.step, reason=reason)
    turn.end(run, skipped)


def record_failed(turn: Turn, run: Run, error: TaskError, result: Any = None) -> None:
    """End a run as failed; whatever works on it must stop."""
    turn.end(
        run,
        StepFailed(
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            error=error,
            result=result,
            emitted=turn.program.steps[run.step].step.emit,
        ),
    )


def _keep(turn: Turn, run: Run, result: Any, tasks: Values) -> None:
    """`vars` and `set` of the step, rendered with its result."""
    program = turn.program.steps[run.step]
    own = StepResult(value=result, tasks=tasks)
    shown = step_view(turn.program, run.step, own, turn.state.seal)
    outcome = WholeResult(program.kind, {"status": "ok", "result": result, "error": None})
    scope = server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        run.step,
        at=turn.at,
        seed=run.step_run_id,
        args=run.args,
        names=shown_names(turn.program, run, turn.state.seal)
        | event_names("step.done", run.step, result, None, shown)
        | {"outcome": outcome, "output": outcome},
        own=own,
    )
    values = program.vars.render(scope, f"vars of step {run.step}")
    patch = program.patch.render(scope, f"set of step {run.step}")
    assert isinstance(values, dict)
    assert isinstance(patch, dict)
    if values:
        turn.record(VarsSet(at=turn.at, values=values, step_run_id=run.step_run_id, step=run.step))
    if patch:
        turn.record(
            CtxPatched(at=turn.at, values=patch, step_run_id=run.step_run_id, step=run.step)
        )
