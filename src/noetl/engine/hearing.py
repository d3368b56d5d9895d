"""Events that the server hears: which rules answer, and what they say where that takes no tool.

Rules that take one are handed to a worker, which follows them and reports what they said; the run
then goes on where it was (`listening`).
"""

from __future__ import annotations

from typing import Any

from noetl.engine.actions import (
    advanced,
    checked_goals,
    perform,
    suppressed,
    winner,
)
from noetl.engine.cases import (
    CaseProgram,
    EventRuleProgram,
    Happening,
    Repeat,
    needs_worker,
)
from noetl.engine.evolve import put
from noetl.engine.failing import error_from
from noetl.engine.running import issue, let_go
from noetl.engine.scope import outcome_names, server_scope, shown_names, step_view
from noetl.engine.turn import CancelChild, Turn
from noetl.errors import EvaluationFailed
from noetl.model.chains import Chain, Routing, Stage
from noetl.model.events import CtxPatched, VarsSet
from noetl.model.facts import Undefined
from noetl.model.net import Values
from noetl.model.outcome import Outcome, TaskError, error_value
from noetl.model.rule_events import (
    BranchSuppressed,
    CaseEvaluated,
    CaseUnmatched,
    NextEvaluated,
    StepPatched,
)
from noetl.model.state import Run, StepResult
from noetl.templates import Scope

STAGES: dict[str, Stage] = {"enter": "enter", "exit": "exit", "external": "event"}
NO_RETRY = TaskError(
    kind="client_error",
    code="retry_without_call",
    message="a rule for step.enter, step.exit or an external event asks for a `retry`, but there is"
    " no call to repeat. Retry on call.done or call.error, or use `call`.",
)


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
    chain.rules = tuple(rule.rule.label for rule in rules)
    if needs_worker(rules):
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
    rules: list[EventRuleProgram],
    chain: Chain,
    scope: Scope,
) -> None:
    notes = _Notes(scope, turn.state.ctx)
    try:
        while not chain.is_over:
            rule = rules[chain.branch]
            for action in rule.actions:
                move = perform(action, chain, notes, case.settings.next_policy)
                if move != "go on":
                    break
            else:
                move = "next branch"
            advanced(chain, move)
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
