"""Entering a step: args, admission, time limits, and setting the body going."""

from __future__ import annotations

from typing import Literal

from noetl.engine.durations import duration
from noetl.engine.event_rules import complete_run, end_by_rule, fail_run, hear
from noetl.engine.failures import error_from
from noetl.engine.loops import start_loop
from noetl.engine.pipeline.rules import entering
from noetl.engine.program import GATHERING, AdmitProgram, StepProgram
from noetl.engine.runs import issue
from noetl.engine.scope import ALIASES, NOTHING, server_scope
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed
from noetl.model.events import StepScheduled, StepSkipped, TimerSet, TokenConsumed
from noetl.model.facts import Undefined
from noetl.model.ids import StepRunId, derive
from noetl.model.net import Values
from noetl.model.outcome import TaskError, error_value
from noetl.model.state import Run, Token, Undo
from noetl.templates import EventView, Scope

Limit = tuple[Literal["timeout", "deadline"], float]
"""Which limit, and when it is reached."""
NO_LIMITS: list[Limit] = []


def start_run(turn: Turn, step: str, tokens: list[Token], *, released: bool = False) -> None:
    """Take these tokens, ask admission, and set the step going."""
    turn.runs_started += 1
    program = turn.program.steps[step]
    if len(tokens) > 1:
        order = turn.program.arc_order
        tokens = sorted(tokens, key=lambda token: (order.get(token.arc, -1), token.order))
    run_id = derive(tokens[0].token_id, "run")
    for token in tokens:
        turn.record(TokenConsumed(at=turn.at, token_id=token.token_id, step_run_id=run_id))
    first, known = tokens[0], turn.state.steps.get(step)
    number = 1 if known is None else known.runs + 1
    limits, wrong = NO_LIMITS, None
    if program.enters_plainly and len(tokens) == 1:
        args = {**program.entry_args, **first.args}
    else:
        try:
            args, scope = seen_on_entry(turn, program, run_id, tokens)
            admitted, matched, added = _admits(program, scope)
            args |= added
            limits = _limits(turn, program, scope)
        except EvaluationFailed as error:
            admitted, args, wrong = True, {}, error_from(error)
        if not admitted:
            turn.record(
                StepSkipped(
                    at=turn.at,
                    step_run_id=run_id,
                    step=step,
                    reason="admission denied",
                    undefined={} if matched else _undefined(program, scope),
                )
            )
            return
    one_command = program.has_one_command and not program.hears_enter and wrong is None
    absorbing = turn.program.absorbing
    turn.record(
        StepScheduled(
            at=turn.at,
            step_run_id=run_id,
            step=step,
            number=number,
            args=args,
            command_id=derive(run_id, 1) if one_command else None,
            priority=first.priority
            if len(tokens) == 1
            else max([token.priority for token in tokens]),
            past=_past(turn, step, number, tokens) if absorbing else {},
            released=released,
            partition=first.partition,
        )
    )
    run = turn.state.runs[run_id]
    if wrong is not None:
        fail_run(turn, run_id, wrong)
    elif limits or program.case is not None:
        _begin(turn, run, limits)
    else:
        begin_body(turn, run)


def start_undoing(turn: Turn, undo: Undo) -> None:
    """Compensate one done run: by a workbook entry, or by a step. Nothing is routed from there."""
    block = undo.by if undo.by in turn.program.blocks else None
    step = undo.step if block is not None else undo.by
    program = turn.program.steps[step]
    run_id = derive(undo.step_run_id, "compensate")
    number = _next_number(turn, step)
    wrong: TaskError | None = None
    args: Values = {"step": undo.step, "result": undo.result}
    limits: list[Limit] = []
    if block is None:
        try:
            given, scope = seen_on_entry(turn, program, run_id, [], args)
            limits = _limits(turn, program, scope)
        except EvaluationFailed as error:
            wrong = error_from(error)
        else:
            args = given
    one_command = (program.has_one_command or block is not None) and wrong is None
    turn.record(
        StepScheduled(
            at=turn.at,
            step_run_id=run_id,
            step=step,
            number=number,
            args=args,
            command_id=derive(run_id, 1) if one_command else None,
            compensates=undo.step_run_id,
            block=block,
        )
    )
    if wrong is not None:
        fail_run(turn, run_id, wrong)
    else:
        _begin(turn, turn.state.runs[run_id], limits)


def start_handling(turn: Turn, step: str, error: TaskError) -> None:
    """Run what the playbook says for a failure, once. Nothing is routed from there, and how it
    ends does not change how the execution ends."""
    program = turn.program.steps[step]
    run_id = derive(turn.execution_id, "on_failure")
    args: Values = {"error": error_value(error), "failed_step": turn.state.failed_step}
    limits: list[Limit] = []
    wrong: TaskError | None = None
    try:
        args, scope = seen_on_entry(turn, program, run_id, [], args)
        limits = _limits(turn, program, scope)
    except EvaluationFailed as failure:
        wrong = error_from(failure)
    turn.record(
        StepScheduled(
            at=turn.at,
            step_run_id=run_id,
            step=step,
            number=_next_number(turn, step),
            args=args,
            command_id=derive(run_id, 1) if program.has_one_command and wrong is None else None,
            handles_failure=True,
        )
    )
    if wrong is not None:
        fail_run(turn, run_id, wrong)
    else:
        _begin(turn, turn.state.runs[run_id], limits)


def _next_number(turn: Turn, step: str) -> int:
    summary = turn.state.steps.get(step)
    return 1 if summary is None else summary.runs + 1


def _past(turn: Turn, step: str, number: int, tokens: list[Token]) -> dict[str, int]:
    """The runs of absorbing joins that this run descends from, itself included."""
    past: dict[str, int] = {}
    for token in tokens:
        for join, run_number in token.past.items():
            past[join] = max(run_number, past.get(join, 0))
    if step in turn.program.absorbing:
        past[step] = number
    return past


def seen_on_entry(
    turn: Turn,
    program: StepProgram,
    run_id: StepRunId,
    tokens: list[Token],
    given: Values | None = None,
) -> tuple[Values, Scope]:
    """The args of the run, and what admission and time limits see."""
    carried: Values = dict(given or {})
    for token in tokens:
        carried |= token.args
    if program.enters_plainly:
        return _args(program, program.entry_args, carried, tokens), NOTHING
    reads_event = "event" in program.reads
    scope = server_scope(
        turn.program,
        turn.state,
        turn.execution_id,
        program.step.name,
        at=turn.at,
        seed=run_id,
        args=carried,
        names={"event": _event(turn, tokens[-1].event)} if tokens and reads_event else {},
    )
    own = program.args.render(scope, f"args of step {program.step.name}")
    assert isinstance(own, dict)
    args = scope.roots["args"] = _args(program, own, carried, tokens)
    return args, scope


def _args(program: StepProgram, own: Values, carried: Values, tokens: list[Token]) -> Values:
    """What a token carries stands, whatever the step says."""
    args = {**own, **carried}
    if len(tokens) > 1 or program.step.join.kind in GATHERING:
        args["_tokens"] = [token.args for token in tokens]
    return args


def _event(turn: Turn, carried: Values) -> EventView:
    """The event that sent the token. Its data is the result of the step it came from."""
    result = turn.state.results.get(carried.get("step", ""))
    data = result.value if result is not None else None
    shown = {"data": data, "payload": data, "error": None, **carried}
    return EventView(shown, ALIASES.get(carried.get("name", ""), frozenset()))


def _admits(program: StepProgram, scope: Scope) -> tuple[bool, bool, Values]:
    """Whether a run may begin, whether a rule said so, and what rules add to its args."""
    matched: list[AdmitProgram] = []
    for rule in program.admit:
        # The `else`, which is the last one, answers only where no other has.
        if (rule.when is None and not matched) or (
            rule.when is not None and rule.when.holds(scope)
        ):
            matched.append(rule)
            if program.step.admit_mode == "exclusive":
                break
    if not matched:
        return not program.admit, False, {}
    if not all(rule.allow for rule in matched):
        return False, True, {}
    added: Values = {}
    for rule in matched:
        if rule.args is not None:
            values = rule.args.render(scope, f"set of an admission rule of {program.step.name}")
            assert isinstance(values, dict)
            added |= values
    return True, True, added


def _undefined(program: StepProgram, scope: Scope) -> Undefined:
    """What the admission rules, none of which held, did not find."""
    found: Undefined = {}
    for rule in program.admit:
        found |= rule.when.undefined(scope) if rule.when is not None else {}
    return found


def _limits(turn: Turn, program: StepProgram, scope: Scope) -> list[Limit]:
    found: list[Limit] = []
    if not program.is_limited:
        return found
    of_step = f'of step "{program.step.name}"'
    timeout = duration(program.timeout, scope, f"timeout {of_step}")
    if timeout is not None:
        most = turn.program.net.executor.limits.timeout
        found.append(("timeout", turn.at + min(timeout, timeout if most is None else most)))
    deadline = duration(program.deadline, scope, f"deadline {of_step}")
    if deadline is not None:
        found.append(("deadline", (turn.state.started_at or turn.at) + deadline))
    return found


def _begin(turn: Turn, run: Run, limits: list[Limit]) -> None:
    """Set a run going: let its rules hear that it begins, then its body."""
    program = turn.program.steps[run.step]
    step = program.step
    hears = program.case is not None and run.compensates is None
    if limits and (hears or step.tasks or step.loop is not None or run.block is not None):
        _set_limits(turn, run.step_run_id, limits)
    chain = hear(turn, run, entering()) if hears and program.hears_enter else None
    if chain is None or (chain.is_over and not end_by_rule(turn, run, chain)):
        begin_body(turn, run)


def begin_body(turn: Turn, run: Run) -> None:
    """Set the body going: as one command, as a loop, or, with nothing to do, done at once."""
    step = turn.program.steps[run.step].step
    if step.loop is not None and run.block is None:
        start_loop(turn, run)
    elif step.tasks or run.block is not None:
        issue(turn, run)
    else:
        kept = {name: value for name, value in run.args.items() if name != "_tokens"}
        complete_run(turn, run, kept or None)


def _set_limits(turn: Turn, run_id: StepRunId, limits: list[Limit]) -> None:
    for purpose, fires_at in limits:
        turn.record(
            TimerSet(
                at=turn.at,
                timer_id=derive(run_id, purpose),
                fires_at=fires_at,
                purpose=purpose,
                step_run_id=run_id,
            )
        )
