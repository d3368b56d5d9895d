"""Entering a step: from tokens that wait to a step run whose body has begun.

A join says when waiting tokens become a run of their step:

`auto`   as soon as no other live token could still arrive
`each`   every token by itself
`all`    one token from every incoming arc; arcs that can bring none any more do not count
`any`    the first; the others of the same activation are absorbed
`{n: k}` k tokens, or all there will ever be; the others of the same activation are absorbed

`any` and `{n: k}` are the absorbing joins. A token that reaches one belongs to an earlier
activation if it does not descend from the join's last run: it was on its way when that run began.

Then the run gets its args, admission lets it in or skips it, its time limits are set, and its body
begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from noetl.engine.durations import duration
from noetl.engine.loops import start_loop
from noetl.engine.pipeline.actions import rendered
from noetl.engine.pipeline.rules import ENTER
from noetl.engine.program import GATHERING, AdmitProgram, StepProgram
from noetl.engine.runs import apply_rules, complete_run, end_by_rule, fail_run, issue
from noetl.engine.scope import ALIASES, EMPTY_SCOPE, server_scope
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed
from noetl.model.events import StepScheduled, StepSkipped, TimerSet, TokenAbsorbed, TokenConsumed
from noetl.model.ids import StepRunId, derive
from noetl.model.net import Values
from noetl.model.outcome import TaskError, error_from, error_value
from noetl.model.state import Run, StepSummary, Token, Undo
from noetl.templates import EventView, Scope, undefined_in

Limit = tuple[Literal["timeout", "deadline"], float]
"""Which limit, and when it is reached."""
NO_LIMITS: list[Limit] = []


# --- Joins ----------------------------------------------------------------------------------------


def fire_ready(turn: Turn) -> bool:
    """Start the runs that waiting tokens allow. Returns whether anything happened.

    Stops when a run has ended: its tokens must be placed before a join can know that no more come.
    """
    state = turn.state
    if len(state.tokens) == 1 and not state.runs:
        [token] = state.tokens.values()
        if token.ready_at is None and token.step not in turn.program.absorbing:
            # Nothing else is alive that could send another token: no join waits for one.
            start_run(turn, token.step, [token])
            return True
    waiting: dict[str, list[Token]] = {}
    has_partitions = turn.program.has_partitions
    for token in _first_of_partitions(turn) if has_partitions else state.tokens.values():
        waiting.setdefault(token.step, []).append(token)
    live = live_mask(turn)
    before, ended = len(turn.events), len(turn.ended)
    for step, tokens in waiting.items():
        ready = _absorb_late(turn, step, [token for token in tokens if token.ready_at is None])
        more = len(ready) < len(tokens) or bool(turn.program.reaching(live, step))
        for group in _groups(turn, step, ready, more_may_come=more):
            start_run(turn, step, group)
            if len(turn.ended) > ended:
                return True
    return len(turn.events) > before or _release_oldest(turn, waiting, live)


def _first_of_partitions(turn: Turn) -> Iterator[Token]:
    """The tokens that may go: one of each partition of a step, if no run of it is open."""
    busy = {(run.step, run.partition) for run in turn.state.runs.values() if run.partition}
    for token in turn.state.tokens.values():
        place = (token.step, token.partition)
        if token.partition and token.ready_at is None:
            if place in busy:
                continue
            busy.add(place)
        yield token


def _absorb_late(turn: Turn, step: str, ready: list[Token]) -> list[Token]:
    """Absorb the tokens that came too late for an absorbing join. Returns the others."""
    if step not in turn.program.absorbing:
        return ready
    last = turn.state.steps.get(step, StepSummary()).runs
    kept = []
    for token in ready:
        if token.past.get(step, 0) < last:
            turn.record(
                TokenAbsorbed(at=turn.at, token_id=token.token_id, reason="the join has run")
            )
        else:
            kept.append(token)
    return kept


def _groups(turn: Turn, step: str, ready: list[Token], *, more_may_come: bool) -> list[list[Token]]:
    """The groups of tokens of which each starts a run now."""
    if not ready:
        return []
    join = turn.program.steps[step].step.join
    match join.kind:
        case "each":
            return [[token] for token in ready]
        case "any":
            return [ready[:1]]
        case "count":
            size = join.count or 1
            return [ready[:size]] if len(ready) >= size or not more_may_come else []
        case "all":
            return _complete_sets(turn.program.incoming[step], ready, more_may_come=more_may_come)
        case _:
            return [] if more_may_come else [ready]


def _complete_sets(
    arcs: tuple[str, ...], ready: list[Token], *, more_may_come: bool
) -> list[list[Token]]:
    """Sets with one token per arc; an incomplete one only if no more tokens can come."""
    sets: list[list[Token]] = []
    while ready:
        chosen: dict[str, Token] = {}
        for token in ready:
            chosen.setdefault(token.arc, token)
        if more_may_come and not all(arc in chosen for arc in arcs):
            break
        sets.append(list(chosen.values()))
        taken = {token.token_id for token in chosen.values()}
        ready = [token for token in ready if token.token_id not in taken]
    return sets


def live_mask(turn: Turn) -> int:
    """The steps with a token or an open run, from which further tokens may come."""
    steps = turn.program.steps
    mask = moving_mask(turn)
    for token in turn.state.tokens.values():
        mask |= steps[token.step].bit
    return mask


def moving_mask(turn: Turn) -> int:
    """The steps with an open run, or with a token that waits for a timer only."""
    steps = turn.program.steps
    mask = 0
    for run in turn.state.runs.values():
        mask |= steps[run.step].bit
    for token in turn.state.tokens.values():
        if token.ready_at is not None:
            mask |= steps[token.step].bit
    return mask


def _release_oldest(turn: Turn, waiting: dict[str, list[Token]], live: int) -> bool:
    """Joins that wait only for each other would wait for ever: start the one whose token is oldest.

    A join that also waits for something outside its group is not released, because that will move.
    """
    if not waiting:
        return False
    moving = moving_mask(turn)
    stuck: list[Token] = []
    for step, tokens in waiting.items():
        awaited = turn.program.reaching(live, step)
        ready = all(token.ready_at is None for token in tokens)
        if ready and not awaited & (moving | ~turn.program.reach.mutual[step]):
            stuck += tokens
    oldest = min(stuck, key=lambda token: token.order, default=None)
    if oldest is None:
        return False
    [group, *_] = _groups(turn, oldest.step, waiting[oldest.step], more_may_come=False)
    start_run(turn, oldest.step, group, released=True)
    return True


# --- Runs -----------------------------------------------------------------------------------------


def start_run(turn: Turn, step: str, tokens: list[Token], *, released: bool = False) -> None:
    """Consume these tokens, and begin a run of the step if admission allows it."""
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
            args, scope = args_and_scope(turn, program, run_id, tokens)
            admitted, matched, added = _admits(program, scope)
            args |= added
            limits = _limits(turn, program, scope)
        except EvaluationFailed as error:
            admitted, args, wrong = True, {}, error_from(error)
        if not admitted:
            asked = [] if matched else [rule.when for rule in program.admit]
            undefined = undefined_in(asked, scope)
            turn.record(
                StepSkipped(
                    at=turn.at,
                    step_run_id=run_id,
                    step=step,
                    reason="admission denied",
                    undefined=undefined,
                )
            )
            return
    one_command = program.has_one_command and not program.has_enter_rules and wrong is None
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
        fail_run(turn, run, wrong)
    elif limits or program.case is not None:
        _begin_run(turn, run, limits)
    else:
        begin_body(turn, run)


def start_undoing(turn: Turn, undo: Undo) -> None:
    """Start what compensates a run that was done: a workbook entry, or a step."""
    block = undo.by if undo.by in turn.program.blocks else None
    step = undo.step if block is not None else undo.by
    run_id = derive(undo.step_run_id, "compensate")
    args: Values = {"step": undo.step, "result": undo.result}
    _start_without_token(turn, step, run_id, args, block=block, compensates=undo.step_run_id)


def start_handling(turn: Turn, step: str, error: TaskError) -> None:
    """Start the step that handles a failure (`on_failure`). It does not change how the execution
    ends."""
    args: Values = {"error": error_value(error), "failed_step": turn.state.failed_step}
    run_id = derive(turn.execution_id, "on_failure")
    _start_without_token(turn, step, run_id, args, handles_failure=True)


def _start_without_token(
    turn: Turn,
    step: str,
    run_id: StepRunId,
    args: Values,
    *,
    block: str | None = None,
    compensates: StepRunId | None = None,
    handles_failure: bool = False,
) -> None:
    """Start a run that no token leads to, and from which none is sent."""
    program, known = turn.program.steps[step], turn.state.steps.get(step)
    limits, wrong = NO_LIMITS, None
    if block is None:
        try:
            args, scope = args_and_scope(turn, program, run_id, [], args)
            limits = _limits(turn, program, scope)
        except EvaluationFailed as failure:
            wrong = error_from(failure)
    one_command = (program.has_one_command or block is not None) and wrong is None
    turn.record(
        StepScheduled(
            at=turn.at,
            step_run_id=run_id,
            step=step,
            number=1 if known is None else known.runs + 1,
            args=args,
            command_id=derive(run_id, 1) if one_command else None,
            compensates=compensates,
            block=block,
            handles_failure=handles_failure,
        )
    )
    run = turn.state.runs[run_id]
    if wrong is not None:
        fail_run(turn, run, wrong)
    else:
        _begin_run(turn, run, limits)


def _past(turn: Turn, step: str, number: int, tokens: list[Token]) -> dict[str, int]:
    """The runs of absorbing joins that this run descends from, itself included."""
    past: dict[str, int] = {}
    for token in tokens:
        for join, run_number in token.past.items():
            past[join] = max(run_number, past.get(join, 0))
    if step in turn.program.absorbing:
        past[step] = number
    return past


def args_and_scope(
    turn: Turn,
    program: StepProgram,
    run_id: StepRunId,
    tokens: list[Token],
    given: Values | None = None,
) -> tuple[Values, Scope]:
    """The args of a run, and the scope of its admission rules and time limits."""
    carried: Values = dict(given or {})
    for token in tokens:
        carried |= token.args
    if program.enters_plainly:
        return _args(program, program.entry_args, carried, tokens), EMPTY_SCOPE
    reads_event = "event" in program.reads
    scope = server_scope(
        turn,
        program.step.name,
        seed=run_id,
        args=carried,
        names={"event": _event(turn, tokens[-1].event)} if tokens and reads_event else {},
    )
    own = rendered(program.args, scope, f"args of step {program.step.name}")
    args = scope.roots["args"] = _args(program, own, carried, tokens)
    return args, scope


def _args(program: StepProgram, own: Values, carried: Values, tokens: list[Token]) -> Values:
    """The args of the step, overridden by those that tokens carry."""
    args = {**own, **carried}
    if len(tokens) > 1 or program.step.join.kind in GATHERING:
        args["_tokens"] = [token.args for token in tokens]
    return args


def _event(turn: Turn, carried: Values) -> EventView:
    """`event` in admission rules: the event that sent the token, with the result of its step."""
    result = turn.state.results.get(carried.get("step", ""))
    data = result.value if result is not None else None
    shown = {"data": data, "payload": data, "error": None, **carried}
    return EventView(shown, ALIASES.get(carried.get("name", ""), frozenset()))


def judge_admission(program: StepProgram, scope: Scope) -> Iterator[tuple[AdmitProgram, bool]]:
    """The admission rules that count, and whether each holds. Raises EvaluationFailed."""
    any_holds = False
    for rule in program.admit:
        if rule.when is None and any_holds:
            return  # The `else`, which is the last one, counts only if no other rule holds.
        holds = rule.when is None or rule.when.holds(scope, rule.place)
        yield rule, holds
        any_holds = any_holds or holds
        if holds and program.step.admit_mode == "exclusive":
            return


def _admits(program: StepProgram, scope: Scope) -> tuple[bool, bool, Values]:
    """Whether a run may begin, whether a rule said so, and what rules add to its args."""
    matched = [rule for rule, holds in judge_admission(program, scope) if holds]
    if not matched:
        return not program.admit, False, {}
    if not all(rule.allow for rule in matched):
        return False, True, {}
    added: Values = {}
    for rule in matched:
        if rule.args is not None:
            place = f"set of an admission rule of {program.step.name}"
            added |= rendered(rule.args, scope, place)
    return True, True, added


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


def _begin_run(turn: Turn, run: Run, limits: list[Limit]) -> None:
    """Begin a run: set its time limits, apply its rules for `step.enter`, then begin its body."""
    program = turn.program.steps[run.step]
    step = program.step
    has_rules = program.case is not None and run.block is None
    if limits and (has_rules or step.tasks or step.loop is not None):
        for purpose, fires_at in limits:
            turn.record(
                TimerSet(
                    at=turn.at,
                    timer_id=derive(run.step_run_id, purpose),
                    fires_at=fires_at,
                    purpose=purpose,
                    step_run_id=run.step_run_id,
                )
            )
    chain = apply_rules(turn, run, ENTER) if has_rules and program.has_enter_rules else None
    if chain is None or (chain.is_over and not end_by_rule(turn, run, chain)):
        begin_body(turn, run)


def begin_body(turn: Turn, run: Run) -> None:
    """Begin the body: a loop, or one command. A step without tasks is done at once."""
    step = turn.program.steps[run.step].step
    if step.loop is not None and run.block is None:
        start_loop(turn, run)
    elif step.tasks or run.block is not None:
        issue(turn, run)
    else:
        kept = {name: value for name, value in run.args.items() if name != "_tokens"}
        complete_run(turn, run, kept or None)
