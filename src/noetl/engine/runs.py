"""A step run on the server: its commands, its event rules, and its end.

A command carries what the body reads, and no more. While the run is open, the server applies the
step's rules to these events:

    step.enter         before the body        → the body, or the end
    step.exit          when the body is over  → the end, and where the tokens go
    external events    while the step waits   → it goes on waiting, or the end

If no action of the rules needs a tool, the server follows them itself. Otherwise it hands the chain
of actions to a worker, as a command whose progress holds the chain; the worker reports what came of
it, and the run continues where it was (`reports`). Calls are events, too: workers make them, and
apply the rules for them (`pipeline.machine`). External events are offered by `signals`.

The body of a step ends with `complete_run` or `fail_run`. They apply the rules for `step.exit`, and
end the run: `vars` and `set` of the step are written, its commands closed, its children cancelled,
and routing follows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.engine.evolve import put
from noetl.engine.listening import must_wait, waiting_facts
from noetl.engine.pipeline.actions import ResultProgram, checked_goals, rendered, suppressed, winner
from noetl.engine.pipeline.rules import (
    CaseProgram,
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
    result_view,
    server_scope,
    shown_names,
)
from noetl.engine.turn import CancelChild, Close, Issue, Turn
from noetl.errors import EvaluationFailed
from noetl.model.chains import Chain, Routing, Tries
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


# --- Commands -------------------------------------------------------------------------------------


def issue(turn: Turn, run: Run) -> None:
    """Open a command for the run; in a paused execution, resuming will do it."""
    if turn.state.status == "PAUSED":
        return
    if not run.commands:
        command_id = derive(run.step_run_id, "again", turn.state.seq)
        turn.record(CommandIssued(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    [command_id] = run.commands
    turn.effects.append(Issue(command_for(turn, run, command_id, progress=run.progress)))


def close_commands(turn: Turn, run: Run) -> None:
    """Close the commands of a run that stays open."""
    for command_id in list(run.commands):
        if command_id != turn.closing_command:
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
    """The command, with the part of the state that the body reads."""
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
        pool=program.pool if deliveries < SUSPECT_AFTER else apart(program.pool),
        priority=run.priority + turn.program.net.executor.priority,
        at=turn.at,
        deliveries=deliveries,
        parent_execution_id=state.parent.execution_id if state.parent is not None else None,
        seal=state.seal,
    )


def _needed_workload(workload: Values, needs: Needs) -> Values:
    """The keys that the body reads; all keys if one of those is missing, so that the error can say
    which key was probably meant."""
    for name in needs.workload:
        if name not in workload and name != "*":
            return dict(workload)
    return _needed(workload, needs.workload, needs.bare)


def _needed(values: Values, named: tuple[str, ...], bare: tuple[str, ...]) -> Values:
    """A copy of these keys: the state goes on changing, the command must not."""
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


# --- Events to which the server applies rules -----------------------------------------------------


class _RuleWrites:
    """What rules write while the server follows them. Templates see it at once; it is recorded at
    the end.
    """

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


def apply_rules(
    turn: Turn,
    run: Run,
    on: StepEvent,
    *,
    outcome: Outcome | None = None,
    tasks: Values | None = None,
    data: Any = None,
) -> Chain | None:
    """Apply the step's rules to an event. Returns the chain of actions; None if no rule holds.

    A chain that is not over (`Chain.is_over`) is being followed by a worker.
    """
    case = turn.program.steps[run.step].case
    if case is None or run.block is not None or not case.answers(on.kind):
        return None
    chain = Chain(
        stage=on.kind,
        epoch=turn.state.seq,
        call=Tries(page=run.progress.passes) if run.progress is not None else Tries(),
        outcome=outcome,
        tasks=tasks or {},
        data=data,
    )
    scope = _scope(turn, run, on, outcome, tasks or {})
    if outcome is None:
        event = event_value(run.step, data)
    else:
        event = event_value(run.step, outcome.result, outcome.error)
    limits = turn.program.net.executor.limits
    undefined = case.answer(chain, on, scope, event, limits)
    if undefined:
        turn.record(CaseUnmatched(**turn.about(run), trigger_event=on.name, undefined=undefined))
    if undefined is not None:
        return None
    if any(case.by_label[label].needs_worker for label in chain.rules):
        _issue_chain(turn, run, case, chain)
    elif chain.error is None:
        turn.record(case.evaluated(chain, **turn.about(run)))
        _follow(turn, run, case, chain, scope)
    return chain


def _scope(turn: Turn, run: Run, on: StepEvent, outcome: Outcome | None, tasks: Values) -> Scope:
    names: dict[str, object] = shown_names(turn, run)
    own = None
    if outcome is not None:
        seen_as = turn.program.views[turn.program.steps[run.step].kind]
        names |= outcome_names(seen_as, outcome.result, outcome.error)
        shown = None
        if outcome.is_ok:
            own = StepResult(value=outcome.result, tasks=tasks)
            shown = result_view(turn, run.step, own)
        names |= result_names(outcome.result, outcome.error, shown)
    return server_scope(
        turn,
        run.step,
        seed=run.step_run_id + on.name,
        args=run.args,
        names=names,
        own=own,
    )


def _issue_chain(turn: Turn, run: Run, case: CaseProgram, chain: Chain) -> None:
    """Hand the chain to a worker; other commands of the run are closed, its children cancelled."""
    close_commands(turn, run)
    for child in run.children:
        turn.effects.append(CancelChild(child, "the step that waited for it has ended"))
    turn.record(case.evaluated(chain, chain=chain, **turn.about(run)))
    issue(turn, run)


def _follow(turn: Turn, run: Run, case: CaseProgram, chain: Chain, scope: Scope) -> None:
    notes = _RuleWrites(scope, turn.state.ctx)
    policy = case.settings.next_policy
    try:
        for _, action in following(chain, case.current, notes, policy):
            raise AssertionError(f"{type(action).__name__} is for a worker")
    except EvaluationFailed as error:
        chain.error = error_from(error)
        chain.branch = len(chain.rules)
        return
    if notes.ctx:
        turn.record(CtxPatched(**turn.about(run), values=notes.ctx))
    if notes.vars:
        turn.record(VarsSet(**turn.about(run), values=notes.vars))
    if notes.local or notes.yields:
        turn.record(StepPatched(**turn.about(run), local=notes.local, yields=notes.yields))
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
            **turn.about(run),
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
        turn.record(BranchSuppressed(**turn.about(run), branch=branch, winner=won))


# --- The end of the body --------------------------------------------------------------------------


def end_by_rule(turn: Turn, run: Run, chain: Chain) -> bool:
    """End the run if the rules led to that. Returns whether they did."""
    if chain.skipped is not None:
        record_skipped(turn, run, chain.skipped)
    elif chain.error is not None:
        fail_run(turn, run, chain.error)
    elif run.next is not None or _yields_result(turn, run, chain):
        result, tasks = _result_so_far(turn, run, chain)
        complete_run(turn, run, result, tasks)
    else:
        return False
    return True


def _yields_result(turn: Turn, run: Run, chain: Chain) -> bool:
    """Whether a rule for an external event says what the step yields, which ends its waiting."""
    case = turn.program.steps[run.step].case
    assert case is not None
    return chain.stage == "event" and any(
        isinstance(action, ResultProgram)
        for label in chain.rules
        for action in case.by_label[label].actions
    )


def _result_so_far(turn: Turn, run: Run, chain: Chain) -> tuple[Any, Values]:
    """The result so far: that of the tools, else the data of the event."""
    step = turn.program.steps[run.step].step
    if run.progress is None or not step.tasks:
        return chain.data, {}
    several = len(step.tasks) > 1
    return run.progress.previous, dict(run.progress.results) if several else {}


def complete_run(turn: Turn, run: Run, result: Any, tasks: Values | None = None) -> None:
    """The body succeeded: wait for external events, or apply the rules for `step.exit` and end."""
    program = turn.program.steps[run.step]
    if program.step.case.wait and must_wait(run):
        _begin_waiting(turn, run, run.yields[0] if run.yields else result)
        return
    named = tasks or {}
    # What a rule said that the step yields wins over what the tools yielded.
    shown = run.yields[0] if run.yields else result
    chain = None
    if program.case is not None:
        leaving = exiting(ok=True, looped=program.step.loop is not None)
        chain = apply_rules(turn, run, leaving, outcome=ok(shown), tasks=named)
    if chain is None:
        record_done(turn, run, shown, named)
    elif chain.is_over:
        end_by_exit_rules(turn, run, chain)


def _begin_waiting(turn: Turn, run: Run, result: Any) -> None:
    """Let the run wait for external events; no worker is needed meanwhile."""
    try:
        facts = waiting_facts(turn, run, result)
    except EvaluationFailed as error:
        fail_run(turn, run, error_from(error))
        return
    close_commands(turn, run)
    for fact in facts:
        turn.record(fact)


def fail_run(turn: Turn, run: Run, error: TaskError, result: Any = None) -> None:
    """The body failed: apply the rules for `step.exit`, then end the run."""
    chain = None
    if run.following is None or run.following.stage != "exit":
        looped = turn.program.steps[run.step].step.loop is not None
        outcome = Outcome(status="error", error=error, result=result)
        chain = apply_rules(turn, run, exiting(ok=False, looped=looped), outcome=outcome)
    if chain is None:
        record_failed(turn, run, error, result)
    elif chain.is_over:
        end_by_exit_rules(turn, run, chain)


def end_by_exit_rules(turn: Turn, run: Run, chain: Chain) -> None:
    """End the run, after the rules for `step.exit`, as they and its body say."""
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
    """End the run as done, after `vars` and `set` of the step are written."""
    program = turn.program.steps[run.step]
    if program.keeps and run.block is None:
        try:
            _write_vars_and_ctx(turn, run, result, tasks)
        except EvaluationFailed as error:
            record_failed(turn, run, error_from(error))
            return
    step = program.step
    end_run(
        turn,
        run,
        StepDone(
            # As `Turn.about`, without a call: this happens in every step.
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
            result=result,
            tasks=tasks,
            undo=step.compensate if run.compensates is None and not run.handles_failure else None,
            emitted=step.emit if run.block is None else (),
            undone=run.undoes,
        ),
    )


def record_skipped(turn: Turn, run: Run, reason: str) -> None:
    """End the run as skipped: none of its arcs is taken."""
    skipped = StepSkipped(**turn.about(run), reason=reason)
    end_run(turn, run, skipped)


def record_failed(turn: Turn, run: Run, error: TaskError, result: Any = None) -> None:
    """End the run as failed."""
    emitted = turn.program.steps[run.step].step.emit if run.block is None else ()
    end_run(turn, run, StepFailed(**turn.about(run), error=error, result=result, emitted=emitted))


def _write_vars_and_ctx(turn: Turn, run: Run, result: Any, tasks: Values) -> None:
    """Write `vars` and `set` of the step, rendered with its result."""
    program = turn.program.steps[run.step]
    own = StepResult(value=result, tasks=tasks)
    shown = result_view(turn, run.step, own)
    envelope = {"status": "ok", "result": result, "error": None}
    outcome = WholeResult(turn.program.views[program.kind], envelope)
    scope = server_scope(
        turn,
        run.step,
        seed=run.step_run_id,
        args=run.args,
        names=shown_names(turn, run)
        | event_names("step.done", run.step, result, None, shown)
        | {"outcome": outcome, "output": outcome},
        own=own,
    )
    values = rendered(program.vars, scope, f"vars of step {run.step}")
    patch = rendered(program.patch, scope, f"set of step {run.step}")
    if values:
        turn.record(VarsSet(**turn.about(run), values=values))
    if patch:
        turn.record(CtxPatched(**turn.about(run), values=patch))


def end_run(
    turn: Turn, run: Run, fact: Event, reason: str = "the step that waited for it has ended"
) -> None:
    """End the run with this fact: its commands are closed, its children cancelled."""
    turn.ended[run.step_run_id] = run
    for command_id in run.commands:
        if command_id != turn.closing_command:
            turn.effects.append(Close(command_id))
    for child in run.children:
        turn.effects.append(CancelChild(child, reason))
    turn.record(fact)
