"""A step run on the server: its commands, the events that its rules answer, and its end.

A command carries what the body reads, and no more. While the run is open the server hears these
events of it:

    step.enter         before the body        → the body, or the end
    step.exit          when the body is over  → the end, and where the tokens go
    external events    while the step waits   → it goes on waiting, or the end

The server follows rules that take no tool itself; others it hands to a worker, as a command whose
progress holds the chain. The worker reports what they said, and the run goes on where it was
(`reports`). Calls, which are events too, happen on workers, and so does what answers them
(`pipeline.machine`). What the world says to a step that waits is offered by `signals`.

The body of a step ends with `complete_run` or `fail_run`: they hear `step.exit` before the run is
over. The end of a run closes all that works on it, writes what the step keeps of its result, and is
the fact that routing follows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.engine.evolve import put
from noetl.engine.listening import is_to_wait, waiting_facts
from noetl.engine.pipeline.actions import ResultProgram, checked_goals, rendered, suppressed, winner
from noetl.engine.pipeline.rules import (
    CaseProgram,
    RuleProgram,
    StepEvent,
    exiting,
    following,
)
from noetl.engine.scope import (
    WholeResult,
    event_names,
    event_value,
    outcome_names,
    result_names,
    server_scope,
    shown_names,
    step_view,
)
from noetl.engine.turn import CancelChild, Close, Issue, Turn
from noetl.errors import EvaluationFailed
from noetl.model.chains import Chain, Routing, Stage
from noetl.model.commands import SUSPECT_AFTER, Chunk, Command, apart
from noetl.model.events import (
    BranchSuppressed,
    CaseUnmatched,
    CommandClosed,
    CommandIssued,
    CtxPatched,
    Event,
    NextEvaluated,
    Progress,
    StepDone,
    StepFailed,
    StepPatched,
    StepSkipped,
    VarsSet,
)
from noetl.model.ids import CommandId, derive
from noetl.model.net import Needs, Patch, Values
from noetl.model.outcome import Outcome, TaskError, error_from, ok
from noetl.model.state import Run, StepResult
from noetl.templates import Scope

EVERYTHING = Needs(ctx=("*",), workload=("*",), vars=("*",), steps=("*",))
STAGES: dict[str, Stage] = {"enter": "enter", "exit": "exit", "external": "event"}


# --- Commands -------------------------------------------------------------------------------------


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
            turn.effects.append(Close(command_id))
        turn.record(CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))


def command_for(
    turn: Turn,
    run: Run,
    command_id: CommandId,
    *,
    progress: Progress | None,
    chunk: Chunk | None = None,
    iteration: int | None = None,
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


# --- Events of a step that the server hears -------------------------------------------------------


class _Notes:
    """What rules write while the server follows them: seen at once, recorded when they end."""

    def __init__(self, scope: Scope, ctx: Values) -> None:
        self.scope = scope
        self.ctx: Values = {}
        self.local: Values = {}
        self.vars: Values = {}
        self.yields: tuple[Any, ...] = ()
        scope.roots["ctx"] = dict(ctx)

    def write(self, patch: Patch) -> None:
        """In a step without iteration under way `iter` is the step run's own scratchpad."""
        if patch.vars:
            self.vars |= patch.vars
            known = self.scope.roots["vars"]
            assert isinstance(known, dict)
            self.scope.roots["vars"] = {**known, **patch.vars}
        seen = self.scope.roots["ctx"]
        assert isinstance(seen, dict)
        for path, value in patch.ctx.items():
            put(seen, path, value)
            self.ctx[path] = value
        for name, value in (*patch.iter.items(), *patch.local.items()):
            self.local[name] = value
            self.scope.roots[name] = value

    def say_result(self, value: Any) -> None:
        self.yields = (value,)


def hear(
    turn: Turn,
    run: Run,
    on: StepEvent,
    *,
    outcome: Outcome | None = None,
    tasks: Values | None = None,
    data: Any = None,
) -> Chain | None:
    """What the step's rules made of an event; None if none answered.

    A chain that is not over (`Chain.is_over`) is being followed by a worker.
    """
    case = turn.program.steps[run.step].case
    if case is None or run.compensates is not None or not case.answers(on.kind):
        return None
    chain = Chain(
        stage=STAGES[on.kind],
        event=on.name,
        rules=(),
        epoch=turn.state.seq,
        outcome=outcome,
        tasks=tasks or {},
        data=data,
    )
    scope = _scope(turn, run, on, outcome, tasks or {})
    if outcome is None:
        event = event_value(run.step, data)
    else:
        event = event_value(run.step, outcome.result, outcome.error)
    try:
        rules = case.selected(on, scope, event)
    except EvaluationFailed as error:
        chain.error = error_from(error)
        return chain
    if not rules:
        undefined = case.misspelt(on, scope, event)
        if undefined:
            turn.record(CaseUnmatched(**turn.of(run), trigger_event=on.name, undefined=undefined))
        return None
    chain.rules = tuple(rule.label for rule in rules)
    if any(rule.needs_worker for rule in rules):
        _hand_over(turn, run, case, chain)
        return chain
    turn.record(case.evaluated(chain, **turn.of(run)))
    _follow(turn, run, case, rules, chain, scope)
    return chain


def _scope(turn: Turn, run: Run, on: StepEvent, outcome: Outcome | None, tasks: Values) -> Scope:
    names: dict[str, object] = shown_names(turn.program, run, turn.state.seal)
    own = None
    if outcome is not None:
        seen_as = turn.program.views[turn.program.steps[run.step].kind]
        names |= outcome_names(seen_as, outcome.result, outcome.error)
        shown = None
        if outcome.is_ok:
            own = StepResult(value=outcome.result, tasks=tasks)
            shown = step_view(turn.program, run.step, own, turn.state.seal)
        names |= result_names(outcome.result, outcome.error, shown)
    return server_scope(
        turn,
        run.step,
        seed=run.step_run_id + on.name,
        args=run.args,
        names=names,
        own=own,
    )


def _hand_over(turn: Turn, run: Run, case: CaseProgram, chain: Chain) -> None:
    """A worker is to follow the rules; whatever else works on the run is let go."""
    let_go(turn, run)
    for child in run.children:
        turn.effects.append(CancelChild(child, "the step that waited for it has ended"))
    turn.record(case.evaluated(chain, chain=chain, **turn.of(run)))
    issue(turn, run)


def _follow(
    turn: Turn,
    run: Run,
    case: CaseProgram,
    rules: list[RuleProgram],
    chain: Chain,
    scope: Scope,
) -> None:
    notes = _Notes(scope, turn.state.ctx)
    policy = case.settings.next_policy
    try:
        for _, action in following(chain, lambda at: rules[at.branch], notes, policy):
            raise AssertionError(f"{type(action).__name__} is for a worker")
    except EvaluationFailed as error:
        chain.error = error_from(error)
        chain.branch = len(chain.rules)
        return
    if notes.ctx:
        turn.record(CtxPatched(**turn.of(run), values=notes.ctx))
    if notes.vars:
        turn.record(VarsSet(**turn.of(run), values=notes.vars))
    if notes.local or notes.yields:
        turn.record(StepPatched(**turn.of(run), local=notes.local, yields=notes.yields))
    if chain.routes and chain.error is None and chain.skipped is None:
        chain.error = decide_next(turn, run, winner(chain.routes), suppressed(chain))


def decide_next(
    turn: Turn, run: Run, routing: Routing, losers: tuple[str, ...]
) -> TaskError | None:
    """Record where a rule sends the tokens of the step. The first decision stands.

    An error if there is no such step.
    """
    if run.next is not None:
        _suppress(turn, run, (routing.branch, *losers), run.next.winner_branch)
        return None
    try:
        checked_goals(routing, run.step, turn.program.steps)
    except EvaluationFailed as error:
        return error_from(error)
    turn.record(
        NextEvaluated(
            **turn.of(run),
            selected=routing.goals,
            policy=routing.policy,
            winner_branch=routing.branch,
            suppressed_branches=losers,
            delay=routing.delay,
            priority=routing.priority,
        )
    )
    _suppress(turn, run, losers, routing.branch)
    return None


def _suppress(turn: Turn, run: Run, branches: tuple[str, ...], won: str) -> None:
    for branch in branches:
        turn.record(BranchSuppressed(**turn.of(run), branch=branch, winner=won))


# --- The end of the body --------------------------------------------------------------------------


def end_by_rule(turn: Turn, run: Run, chain: Chain) -> bool:
    """End the run if that is what the rules said. Says whether they did."""
    if chain.skipped is not None:
        record_skipped(turn, run, chain.skipped)
    elif chain.error is not None:
        fail_run(turn, run, chain.error)
    elif run.next is not None or _is_answered(turn, run, chain):
        result, tasks = _so_far(turn, run, chain)
        complete_run(turn, run, result, tasks)
    else:
        return False
    return True


def _is_answered(turn: Turn, run: Run, chain: Chain) -> bool:
    """A step that waits has waited long enough when a rule says what it yields."""
    case = turn.program.steps[run.step].case
    assert case is not None
    return chain.stage == "event" and any(
        isinstance(action, ResultProgram)
        for label in chain.rules
        for action in case.by_label[label].actions
    )


def _so_far(turn: Turn, run: Run, chain: Chain) -> tuple[Any, Values]:
    """What the step has come to: what its tools yielded, else what the event brought."""
    step = turn.program.steps[run.step].step
    if run.progress is None or not step.tasks:
        return chain.data, {}
    several = len(step.tasks) > 1
    return run.progress.previous, dict(run.progress.results) if several else {}


def complete_run(turn: Turn, run: Run, result: Any, tasks: Values | None = None) -> None:
    """The body is through: wait for the world, or hear `step.exit` and end the run."""
    program = turn.program.steps[run.step]
    if program.step.case.wait and is_to_wait(run):
        _begin_waiting(turn, run, run.yields[0] if run.yields else result)
        return
    named = tasks or {}
    # What a rule said stands, whatever the tools yielded.
    shown = run.yields[0] if run.yields else result
    chain = None
    if program.case is not None:
        leaving = exiting(ok=True, looped=program.step.loop is not None)
        chain = hear(turn, run, leaving, outcome=ok(shown), tasks=named)
    if chain is None:
        record_done(turn, run, shown, named)
    elif chain.is_over:
        leave(turn, run, chain)


def _begin_waiting(turn: Turn, run: Run, result: Any) -> None:
    """Let the run wait for the world; no worker is needed meanwhile."""
    try:
        facts = waiting_facts(turn, run, result)
    except EvaluationFailed as error:
        fail_run(turn, run, error_from(error))
        return
    let_go(turn, run)
    for fact in facts:
        turn.record(fact)


def fail_run(turn: Turn, run: Run, error: TaskError, result: Any = None) -> None:
    """The body failed: hear `step.exit`, then end the run; whatever works on it must stop."""
    chain = None
    if run.following is None or run.following.stage != "exit":
        looped = turn.program.steps[run.step].step.loop is not None
        outcome = Outcome(status="error", error=error, result=result)
        chain = hear(turn, run, exiting(ok=False, looped=looped), outcome=outcome)
    if chain is None:
        record_failed(turn, run, error, result)
    elif chain.is_over:
        leave(turn, run, chain)


def leave(turn: Turn, run: Run, chain: Chain) -> None:
    """The rules for the end of the step have spoken: end it."""
    body = chain.outcome
    assert body is not None
    recovered = chain.recovered and run.yields
    if chain.skipped is not None:
        record_skipped(turn, run, chain.skipped)
    elif chain.error is not None:
        record_failed(turn, run, chain.error, body.result)
    elif body.error is not None and not recovered:
        record_failed(turn, run, body.error, body.result)
    else:
        record_done(turn, run, run.yields[0] if run.yields else body.result, chain.tasks)


# --- The end of the run ---------------------------------------------------------------------------


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
    end_run(
        turn,
        run,
        StepDone(
            # Spelt out, as `Turn.of` would: this happens in every step.
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
    skipped = StepSkipped(**turn.of(run), reason=reason)
    end_run(turn, run, skipped)


def record_failed(turn: Turn, run: Run, error: TaskError, result: Any = None) -> None:
    """End a run as failed; whatever works on it must stop."""
    end_run(
        turn,
        run,
        StepFailed(
            **turn.of(run),
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
    envelope = {"status": "ok", "result": result, "error": None}
    outcome = WholeResult(turn.program.views[program.kind], envelope)
    scope = server_scope(
        turn,
        run.step,
        seed=run.step_run_id,
        args=run.args,
        names=shown_names(turn.program, run, turn.state.seal)
        | event_names("step.done", run.step, result, None, shown)
        | {"outcome": outcome, "output": outcome},
        own=own,
    )
    values = rendered(program.vars, scope, f"vars of step {run.step}")
    patch = rendered(program.patch, scope, f"set of step {run.step}")
    if values:
        turn.record(VarsSet(**turn.of(run), values=values))
    if patch:
        turn.record(CtxPatched(**turn.of(run), values=patch))


def end_run(
    turn: Turn, run: Run, fact: Event, reason: str = "the step that waited for it has ended"
) -> None:
    """The run ends with this fact: all that works on it must stop."""
    turn.ended[run.step_run_id] = run
    for command_id in run.commands:
        if command_id != turn.last_word:
            turn.effects.append(Close(command_id))
    for child in run.children:
        turn.effects.append(CancelChild(child, reason))
    turn.record(fact)
