"""Handing the body of a run to a worker: commands, and what they carry."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.engine.turn import Close, Issue, Turn
from noetl.model.commands import SUSPECT_AFTER, Chunk, Command, apart
from noetl.model.events import CommandClosed, CommandIssued, Progress
from noetl.model.ids import CommandId, derive
from noetl.model.net import Needs, Values
from noetl.model.state import Run

EVERYTHING = Needs(ctx=("*",), workload=("*",), vars=("*",), steps=("*",))


def issue(turn: Turn, run: Run) -> None:
    """Give the run to a worker, unless the execution is paused: then resuming will."""
    if turn.state.status == "PAUSED":
        return
    if not run.commands:
        command_id = derive(run.step_run_id, "again", turn.state.seq)
        turn.record(CommandIssued(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    [command_id] = run.commands
    turn.effect(Issue(command_for(turn, run, command_id, progress=run.progress)))


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
    step = turn.program.steps[run.step].step
    state = turn.state
    # What a workbook entry reads depends on who calls it, so it gets all there is.
    needs = step.needs if run.block is None else EVERYTHING
    pool = step.pool or turn.program.net.executor.pool or "default"
    deliveries = run.commands[command_id]
    return Command(
        command_id=command_id,
        execution_id=turn.execution_id,
        digest=turn.program.digest,
        step=run.step,
        step_run_id=run.step_run_id,
        run_number=run.number,
        args=run.args,
        workload=_needed_workload(state.workload, needs),
        ctx=_needed(state.ctx, needs.ctx, needs.bare),
        vars=_needed(state.vars, needs.vars, ()),
        steps=_needed_results(turn, needs),
        chunk=chunk,
        iteration=iteration,
        progress=progress,
        local=run.local,
        block=run.block,
        undoes=run.compensates is not None,
        pool=pool if deliveries < SUSPECT_AFTER else apart(pool),
        priority=run.priority + turn.program.net.executor.priority,
        at=turn.at,
        deliveries=deliveries,
        parent_execution_id=state.parent.execution_id if state.parent is not None else None,
        seal=state.seal,
    )


def _needed_workload(workload: Values, needs: Needs) -> Values:
    """What the body reads; all of it if it reads a key that is not there, so that an error can say
    which key was probably meant."""
    if all(name in workload or name == "*" for name in needs.workload):
        return _needed(workload, needs.workload, needs.bare)
    return dict(workload)


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
