"""Events of a step that the server hears: which rules answer, and what becomes of the run then.

    step.enter         before the body        → the body, or the end
    step.exit          when the body is over  → the end, and where the tokens go
    external events    while the step waits   → it goes on waiting, or the end

The server follows rules that take no tool itself; others it hands to a worker, as a command whose
progress holds the chain. The worker reports what they said, and the run goes on where it was
(`followed`). Calls, which are events too, happen on workers, and so does what answers them
(`pipeline.machine`).

`complete_run` and `fail_run` are how the body of a step ends: they hear `step.exit` before the run
is over. What the world says to a step that waits is offered by `signals`.
"""

from __future__ import annotations

from typing import Any

from noetl.engine.evolve import put
from noetl.engine.failures import error_from
from noetl.engine.pipeline.actions import ResultProgram, checked_goals, suppressed, winner
from noetl.engine.pipeline.rules import (
    CaseProgram,
    Happening,
    Repeat,
    RuleProgram,
    exiting,
    following,
)
from noetl.engine.runs import issue, let_go, record_done, record_failed, record_skipped
from noetl.engine.scope import outcome_names, server_scope, shown_names, step_view
from noetl.engine.turn import CancelChild, Turn
from noetl.engine.waits import begin_waiting, is_to_wait
from noetl.errors import EvaluationFailed
from noetl.model.chains import Chain, Routing, Stage
from noetl.model.commands import Ending
from noetl.model.events import CommandClosed, CtxPatched, VarsSet
from noetl.model.facts import Undefined
from noetl.model.ids import CommandId, StepRunId
from noetl.model.net import Values
from noetl.model.outcome import Outcome, TaskError, error_value, ok
from noetl.model.rule_events import (
    BranchSuppressed,
    CaseEvaluated,
    CaseProcessed,
    CaseUnmatched,
    NextEvaluated,
    StepPatched,
)
from noetl.model.state import Run, StepResult
from noetl.templates import Scope

STAGES: dict[str, Stage] = {"enter": "enter", "exit": "exit", "external": "event"}


class _Notes:
    """What rules write while the server follows them: seen at once, recorded when they end."""

    def __init__(self, scope: Scope, ctx: Values) -> None:
        self.scope = scope
        self.ctx: Values = {}
        self.local: Values = {}
        self.vars: Values = {}
        self.yields: tuple[Any, ...] = ()
        scope.roots["ctx"] = dict(ctx)

    def write(
        self, ctx: Values, iteration: Values, local: Values, variables: Values | None = None
    ) -> None:
        """In a step without iteration under way `iter` is the step run's own scratchpad."""
        if variables:
            self.vars |= variables
            known = self.scope.roots["vars"]
            assert isinstance(known, dict)
            self.scope.roots["vars"] = {**known, **variables}
        seen = self.scope.roots["ctx"]
        assert isinstance(seen, dict)
        for path, value in ctx.items():
            put(seen, path, value)
            self.ctx[path] = value
        for name, value in (*iteration.items(), *local.items()):
            self.local[name] = value
            self.scope.roots[name] = value

    def say_result(self, value: Any) -> None:
        self.yields = (value,)


def hear(
    turn: Turn,
    run: Run,
    happening: Happening,
    *,
    outcome: Outcome | None = None,
    tasks: Values | None = None,
    data: Any = None,
) -> Chain | None:
    """What the step's rules made of an event; None if none answered.

    A chain that is not over (`Chain.is_over`) is being followed by a worker.
    """
    case = turn.program.steps[run.step].case
    if case is None or run.compensates is not None or not case.answers(happening.kind):
        return None
    chain = Chain(
        stage=STAGES[happening.kind],
        event=happening.name,
        rules=(),
        epoch=turn.state.seq,
        outcome=outcome,
        tasks=tasks or {},
        data=data,
    )
    scope = _scope(turn, run, happening, outcome, tasks or {})
    event = _event(run, outcome, data)
    try:
        rules = case.selected(happening, scope, event, _never)
    except EvaluationFailed as error:
        chain.error = error_from(error)
        return chain
    if not rules:
        _warn_of_misspelt(turn, run, case.misspelt(happening, scope, event), happening)
        return None
    chain.rules = tuple(rule.label for rule in rules)
    if any(rule.needs_worker for rule in rules):
        _hand_over(turn, run, case, chain)
        return chain
    turn.record(evaluated(turn.at, run, case, chain, None))
    _follow(turn, run, case, rules, chain, scope)
    return chain


def _warn_of_misspelt(turn: Turn, run: Run, undefined: Undefined, happening: Happening) -> None:
    if undefined:
        turn.record(
            CaseUnmatched(
                at=turn.at,
                step_run_id=run.step_run_id,
                step=run.step,
                trigger_event=happening.name,
                undefined=undefined,
            )
        )


def _nothing() -> None:
    """The event stays in sight for all actions."""


def _never(_: Repeat) -> bool:
    return False


def _event(run: Run, outcome: Outcome | None, data: Any) -> Values:
    """`event` without its name."""
    shown = outcome.result if outcome is not None else data
    error = error_value(outcome.error) if outcome is not None else None
    return {"step": run.step, "data": shown, "payload": shown, "error": error}


def _scope(
    turn: Turn, run: Run, happening: Happening, outcome: Outcome | None, tasks: Values
) -> Scope:
    names: dict[str, object] = shown_names(turn.program, run, turn.state.seal)
    own = None
    if outcome is not None:
        kind = turn.program.steps[run.step].kind
        names |= outcome_names(kind, outcome.result, outcome.error)
    if outcome is not None and outcome.is_ok:
        own = StepResult(value=outcome.result, tasks=tasks)
        shown = step_view(turn.program, run.step, own, turn.state.seal)
        envelope = {"status": "ok", "result": outcome.result}
        names |= {"result": shown, "response": shown, "this": envelope}
    elif outcome is not None:
        error = error_value(outcome.error)
        names |= {"error": error, "this": {"status": "error", "error": error}}
    return server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        run.step,
        at=turn.at,
        seed=run.step_run_id + happening.name,
        args=run.args,
        names=names,
        own=own,
    )


def evaluated(
    at: float, run: Run, case: CaseProgram, chain: Chain, handed: Chain | None
) -> CaseEvaluated:
    return CaseEvaluated(
        at=at,
        step_run_id=run.step_run_id,
        step=run.step,
        trigger_event=chain.event,
        matched=tuple(label for label in case.source if label in chain.rules),
        order=chain.rules,
        case_mode=case.settings.mode,
        eval_mode="on_event" if case.settings.wait else "on_entry",
        chain=handed,
    )


def _hand_over(turn: Turn, run: Run, case: CaseProgram, chain: Chain) -> None:
    """A worker is to follow the rules; whatever else works on the run is let go."""
    let_go(turn, run)
    for child in run.children:
        turn.effect(CancelChild(child, "the step that waited for it has ended"))
    turn.record(evaluated(turn.at, run, case, chain, chain))
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
        for _, action in following(chain, lambda at: rules[at.branch], notes, policy, _nothing):
            raise AssertionError(f"{type(action).__name__} is for a worker")
    except EvaluationFailed as error:
        chain.error = error_from(error)
        chain.branch = len(chain.rules)
        return
    if notes.ctx:
        turn.record(
            CtxPatched(at=turn.at, values=notes.ctx, step_run_id=run.step_run_id, step=run.step)
        )
    if notes.vars:
        turn.record(
            VarsSet(at=turn.at, values=notes.vars, step_run_id=run.step_run_id, step=run.step)
        )
    if notes.local or notes.yields:
        turn.record(
            StepPatched(
                at=turn.at,
                step_run_id=run.step_run_id,
                step=run.step,
                local=notes.local,
                yields=notes.yields,
            )
        )
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
            at=turn.at,
            step_run_id=run.step_run_id,
            step=run.step,
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
        turn.record(
            BranchSuppressed(
                at=turn.at, step_run_id=run.step_run_id, step=run.step, branch=branch, winner=won
            )
        )


# --- What becomes of the run -------------------------------------------------------------------


def end_by_rule(turn: Turn, run: Run, chain: Chain) -> bool:
    """End the run if that is what the rules said. Says whether they did."""
    if chain.skipped is not None:
        record_skipped(turn, run, chain.skipped)
    elif chain.error is not None:
        fail_run(turn, run.step_run_id, chain.error)
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
        reason = begin_waiting(turn, run, run.yields[0] if run.yields else result)
        if reason is not None:
            fail_run(turn, run.step_run_id, reason)
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


def fail_run(turn: Turn, run_id: StepRunId, error: TaskError, result: Any = None) -> None:
    """The body failed: hear `step.exit`, then end the run; whatever works on it must stop."""
    run = turn.state.runs[run_id]
    following = run.following
    chain = None
    if following is None or following.stage != "exit":
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


def followed(turn: Turn, run: Run, command_id: CommandId, ending: Ending) -> Chain:
    """A worker has followed the rules for an event that the server heard.

    Returns the chain as it ended. Whether the run has ended with it is for `end_by_rule` to say,
    and for `leave` if the event was the end of the step.
    """
    chain = run.following
    assert chain is not None
    turn.record(CommandClosed(at=turn.at, command_id=command_id, step_run_id=run.step_run_id))
    turn.record(
        CaseProcessed(
            at=turn.at, step_run_id=run.step_run_id, step=run.step, trigger_event=chain.event
        )
    )
    ended = Chain(
        stage=chain.stage,
        event=chain.event,
        rules=chain.rules,
        branch=len(chain.rules),
        outcome=chain.outcome,
        tasks=chain.tasks,
        data=chain.data,
        error=ending.error,
        skipped=ending.skipped,
        recovered=ending.recovered,
    )
    if ending.next is not None and ended.error is None:
        ended.error = decide_next(turn, run, ending.next, ending.suppressed)
    return ended
