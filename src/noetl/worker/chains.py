"""Event rules on the worker: which answer a call, and following their chains of actions.

A chain that is interrupted goes on behind its last recorded task: all that it has decided so far is
in its progress. Calls that rules ask for (`call`, `retry`) are made when all selected chains are
through; a `next`, `fail` or `skip` that was reached comes before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from noetl.engine.actions import (
    RetryProgram,
    RunProgram,
    advanced,
    next_branch,
    perform,
    suppressed,
    winner,
)
from noetl.engine.cases import (
    CaseProgram,
    EventRuleProgram,
    Happening,
    Repeat,
    called,
    entering,
    exiting,
    outside,
)
from noetl.engine.failing import error_from
from noetl.engine.hearing import NO_RETRY
from noetl.engine.pipeline import TaskProgram
from noetl.errors import EvaluationFailed
from noetl.model.chains import SERVER_STAGES, Again, Chain, Tries
from noetl.model.commands import Ending, Suspension
from noetl.model.events import RetryStarted
from noetl.model.facts import Undefined
from noetl.model.ids import derive
from noetl.model.net import Values
from noetl.model.outcome import Outcome, TaskError, error_value, ok
from noetl.model.rule_events import CaseEvaluated, CaseUnmatched, ChainRestarted, StepPatched
from noetl.templates import view
from noetl.worker.frame import Frame
from noetl.worker.settling import Settled, report, say_processed, settle, wait, write

if TYPE_CHECKING:
    from noetl.worker.passing import Passage

NOTHING_TO_CALL = TaskError(
    kind="client_error",
    code="nothing_to_call",
    message="a rule for step.enter, step.exit or an external event asks for a `call`, but the step"
    " has no tool, or is a loop, whose calls belong to its iterations. Use `call` on call.done or"
    " call.error.",
)


# --- Which rules answer ------------------------------------------------------------------------


def answer(
    passage: Passage, case: CaseProgram, program: TaskProgram, settled: Settled
) -> Chain | None:
    """The chain that this call sets off; None if no rule answers it."""
    if not case.answers("call"):
        return None
    frame, outcome = passage.frame, settled.outcome
    ends = settled.directive.kind in ("break", "fail")
    last = ends or frame.position == len(passage.tasks) - 1
    if program.task.origin and not last:
        return None  # What sugar is made of is nobody's call, except for how it ends.
    happening = called(ok=outcome.is_ok, last=last)
    chain = _chain(frame, program, settled)
    chain.event = happening.name
    frame.show_outcome(program.task.kind, outcome)
    if passage.is_only(program):
        frame.show_own(program.task.kind, outcome)
    limits = passage.runner.program.net.executor.limits

    def exhausted(one: Repeat) -> bool:
        return one.is_exhausted(frame.scope, one.used(settled.tries), limits)

    try:
        event = _event(passage, outcome)
        rules = case.selected(happening, frame.scope, event, exhausted)
    except EvaluationFailed as error:
        chain.error = error_from(error)
        return chain
    if not rules:
        _say_misspelt(passage, case.misspelt(happening, frame.scope, event), happening)
        _hide(frame)
        return None
    chain.rules = tuple(rule.rule.label for rule in rules)
    return chain


def _say_misspelt(passage: Passage, undefined: Undefined, happening: Happening) -> None:
    """Once under a command is enough: the next iteration makes the same mistake."""
    runner = passage.runner
    if not undefined or runner.has_warned(happening.name):
        return
    runner.reporter.say(
        CaseUnmatched(
            at=runner.now(),
            step_run_id=runner.command.step_run_id,
            step=runner.command.step,
            trigger_event=happening.name,
            undefined=undefined,
            iteration=passage.frame.iteration,
        )
    )


def leaving(passage: Passage, case: CaseProgram, ended: Ending) -> Chain | None:
    """The chain that the end of an iteration sets off; None if no rule answers it."""
    if not case.answers("exit"):
        return None
    frame = passage.frame
    happening = exiting(ok=ended.error is None, looped=False)
    outcome = (
        ok(ended.result) if ended.error is None else Outcome(status="error", error=ended.error)
    )
    chain = Chain(
        stage="iteration",
        event=happening.name,
        rules=(),
        outcome=outcome,
        position=frame.position,
        fails=ended.error,
    )
    kind = passage.tasks[-1].task.kind if passage.tasks else ""
    frame.show_outcome(kind, outcome)
    frame.show_own(kind, outcome)
    try:
        rules = case.selected(happening, frame.scope, _event(passage, outcome), _never)
    except EvaluationFailed as error:
        chain.error = error_from(error)
        return chain
    if not rules:
        misspelt = case.misspelt(happening, frame.scope, _event(passage, outcome))
        _say_misspelt(passage, misspelt, happening)
        _hide(frame)
        return None
    chain.rules = tuple(rule.rule.label for rule in rules)
    say_evaluated(passage, case, chain)
    return chain


def _never(_: Repeat) -> bool:
    return False


def page_chain(passage: Passage, program: TaskProgram, settled: Settled) -> Chain:
    """A rule of `retry` that keeps or stores something before it makes the call again.

    The call may be a task of a chain, too: that chain waits in the new one, and goes on after it.
    """
    directive = settled.directive
    chain = _chain(passage.frame, program, settled)
    chain.outer = passage.frame.chain
    chain.stage, chain.event, chain.rules = "page", "call.done", (directive.rule,)
    chain.again = Again(
        overrides=directive.overrides, delay=directive.delay, new_page=directive.new_page
    )
    return chain


def _chain(frame: Frame, program: TaskProgram, settled: Settled) -> Chain:
    return Chain(
        stage="call",
        event="",
        rules=(),
        outcome=settled.stored,
        task=program.task.name,
        position=frame.position,
        call=settled.tries,
    )


def _event(passage: Passage, outcome: Outcome) -> Values:
    """`event` without its name."""
    return {
        "step": passage.runner.command.step,
        "data": outcome.result,
        "payload": outcome.result,
        "error": error_value(outcome.error),
    }


def say_evaluated(passage: Passage, case: CaseProgram, chain: Chain) -> None:
    """The server records which rules answered the call."""
    command = passage.runner.command
    passage.runner.reporter.say(
        CaseEvaluated(
            at=passage.runner.now(),
            step_run_id=command.step_run_id,
            step=command.step,
            trigger_event=chain.event,
            matched=tuple(label for label in case.source if label in chain.rules),
            order=chain.rules,
            case_mode=case.settings.mode,
            eval_mode="on_event" if case.settings.wait else "on_entry",
            iteration=passage.frame.iteration,
            page=chain.call.page,
        )
    )


# --- Following them ----------------------------------------------------------------------------


async def follow(passage: Passage) -> Ending | Suspension | None:
    """Perform what is left of the chains; how the pass ends, or None if it goes on."""
    frame = passage.frame
    chain = frame.chain
    assert chain is not None
    outcome = await _real(passage, chain)
    try:
        while not chain.is_over and chain.error is None:
            rule = _rule(passage, chain)
            if chain.action >= len(rule.actions):
                next_branch(chain)
                continue
            action = rule.actions[chain.action]
            _show(passage, chain, outcome)
            if isinstance(action, RunProgram):
                suspension = await _run(passage, chain, rule, action)
                if suspension is not None:
                    return suspension
                if frame.chain is not chain:
                    return None  # the task's own `retry` comes first
            elif isinstance(action, RetryProgram):
                _ask_again(passage, chain, action, outcome)
                chain.action += 1
            else:
                policy = passage.case.settings.next_policy if passage.case else "end_step"
                advanced(chain, perform(action, chain, frame, policy))
    except EvaluationFailed as error:
        chain.error = error_from(error)
    _hide(frame)
    return await _conclude(passage, chain)


async def _real(passage: Passage, chain: Chain) -> Outcome | None:
    if chain.outcome is None:
        return None
    value = await passage.runner.bodies.real(chain.outcome.result)
    return msgspec.structs.replace(chain.outcome, result=value)


def _rule(passage: Passage, chain: Chain) -> EventRuleProgram:
    label = chain.rules[chain.branch]
    if chain.stage == "page":
        return passage.runner.pipelines.repeating(_called(passage, chain), label)
    assert passage.case is not None
    return passage.case.by_label[label]


def _called(passage: Passage, chain: Chain) -> TaskProgram:
    """The task whose call the chain is about."""
    if chain.outer is None:
        return passage.tasks[chain.position]
    action = _rule(passage, chain.outer).actions[chain.outer.action]
    assert isinstance(action, RunProgram)
    return action.task


def _show(passage: Passage, chain: Chain, outcome: Outcome | None) -> None:
    """What the actions see: the event, and the call or the step it is about."""
    frame = passage.frame
    kind = _called(passage, chain).task.kind if chain.stage in ("call", "page") else ""
    if chain.stage == "iteration" and passage.tasks:
        kind = passage.tasks[-1].task.kind
    elif chain.stage in ("exit", "sink"):
        kind = passage.runner.program.steps[passage.runner.command.step].kind
    if outcome is not None:
        frame.show_outcome(kind, outcome)
        if chain.stage in ("exit", "iteration") or (
            chain.stage in ("call", "page") and passage.is_only(_called(passage, chain))
        ):
            frame.show_own(kind, outcome)
        frame.show_page(kind, outcome)
    if frame.yields and chain.recovered:
        frame.names["result"] = view("", frame.yields[0])
    frame.show_tries(chain.call)
    data = chain.data if outcome is None else outcome.result
    frame.show_event(
        {
            "name": chain.event,
            "step": passage.runner.command.step,
            "data": data,
            "payload": data,
            "error": error_value(outcome.error) if outcome is not None else None,
        },
        _happening(passage, chain),
    )


def _happening(passage: Passage, chain: Chain) -> frozenset[str]:
    """The other names of the event."""
    fine = chain.outcome is None or chain.outcome.is_ok
    looped = passage.runner.program.steps[passage.runner.command.step].step.loop is not None
    found: Happening
    match chain.stage:
        case "enter":
            found = entering()
        case "iteration":
            found = exiting(ok=fine, looped=False)
        case "exit" | "sink":
            found = exiting(ok=fine, looped=looped)
        case "event":
            found = outside(chain.event)
        case _:
            found = called(ok=fine, last=True)
    return found.aliases | found.general


def _hide(frame: Frame) -> None:
    frame.hide_outcome()
    frame.hide_page()
    frame.names.pop("event", None)


def _ask_again(
    passage: Passage, chain: Chain, action: RetryProgram, outcome: Outcome | None
) -> None:
    if chain.stage == "page":
        return  # decided already: that is why the chain is followed
    if chain.stage != "call":
        chain.error = NO_RETRY
        return
    error = outcome.error if outcome is not None else None
    seed = derive(passage.frame.cause, chain.task, chain.call.page)
    delay = action.delay(passage.frame.scope, chain.call.attempt, error, seed)
    chain.again = chain.again or Again(delay=delay, new_page=False)


async def _run(
    passage: Passage, chain: Chain, rule: EventRuleProgram, action: RunProgram
) -> Suspension | None:
    """Run a task of the chain until it is settled, and move on."""
    frame = passage.frame
    if rule.restart is not None and chain.action == 0 and not chain.tries.calls:
        chain.before = dict(frame.local)
    settled = await settle(passage, action.task, sink=action.sink)
    if isinstance(settled, Suspension):
        return settled
    write(frame, settled)
    chain.tries = Tries()
    await passage.runner.bodies.put_away(frame)
    task, directive = action.task.task, settled.directive
    if settled.outcome.is_ok:
        frame.name_result(task, settled.outcome.result, settled.stored.result)
    again = None
    if directive.rule:
        frame.chain = page_chain(passage, action.task, settled)
    elif directive.kind == "fail":
        error = directive.error or TaskError(kind="unknown", message=f'task "{task.name}" failed')
        again = _restart_after(passage, chain, rule, error)
    else:
        advanced(chain, "next branch" if directive.kind == "break" else "go on")
    report(passage, action.task, settled, sink=action.sink)
    if not directive.rule:
        say_processed(passage, task.name, settled.outcome, settled.tries)
    return None if again is None else await _restart(passage, chain, again)


def _restart_after(
    passage: Passage, chain: Chain, rule: EventRuleProgram, error: TaskError
) -> float | None:
    """A task of the chain failed: the wait before the chain begins again, if it is to."""
    scope, used = passage.frame.scope, chain.restarts + 1
    limits = passage.runner.program.net.executor.limits
    if rule.restart is None or rule.restart.is_exhausted(scope, used, limits):
        chain.error = error
        return None
    seed = derive(passage.frame.cause, rule.rule.label)
    return rule.restart.delay(scope, used, error, seed)


async def _restart(passage: Passage, chain: Chain, delay: float) -> Suspension | None:
    frame, runner = passage.frame, passage.runner
    label = chain.rules[chain.branch]
    chain.restarts, chain.action = chain.restarts + 1, 0
    chain.routes = tuple(one for one in chain.routes if one.branch != label)
    frame.restore(chain.before)
    runner.reporter.say(
        ChainRestarted(
            at=runner.now(),
            step_run_id=runner.command.step_run_id,
            step=runner.command.step,
            branch=label,
            attempt=chain.restarts + 1,
            delay=delay,
            iteration=frame.iteration,
            progress=frame.progress() if passage.top else None,
        )
    )
    return await wait(passage, delay)


# --- What they came to -------------------------------------------------------------------------


async def _conclude(passage: Passage, chain: Chain) -> Ending | Suspension | None:
    frame = passage.frame
    # A copy: what was reported of this chain must not change with the one that goes on.
    frame.chain = msgspec.structs.replace(chain.outer) if chain.outer is not None else None
    await passage.runner.bodies.put_away(frame)
    await _tell(passage, chain)
    if frame.chain is not None and chain.error is not None:
        return await _broken(passage, frame.chain, chain.error)
    if chain.stage in SERVER_STAGES:
        return await _heard(passage, chain)
    if chain.stage == "call" and (chain.again is None or chain.again.new_page):
        say_processed(passage, chain.task, chain.outcome, chain.call)
    if chain.error is not None:
        return Ending(error=chain.error)
    if chain.skipped is not None:
        return Ending(skipped=chain.skipped)
    fails = None if chain.recovered else chain.fails
    if chain.routes:
        won = winner(chain.routes)
        losers = (*suppressed(chain), *chain.losers)
        return Ending(error=fails, result=frame.result, next=won, suppressed=losers)
    if chain.again is not None and chain.stage == "iteration":
        _begin_again(passage, chain.again)
        return None
    if chain.again is not None:
        return await _again(passage, chain, chain.again)
    if chain.fails is not None and chain.recovered:
        frame.position += 1
    return Ending(error=fails) if fails is not None else None


async def _broken(passage: Passage, chain: Chain, error: TaskError) -> Suspension | None:
    """A page of this chain's task could not be kept or stored: that task has failed."""
    delay = _restart_after(passage, chain, _rule(passage, chain), error)
    return None if delay is None else await _restart(passage, chain, delay)


async def _tell(passage: Passage, chain: Chain) -> None:
    """Report what the rules wrote that is not in the progress of a call."""
    frame, runner = passage.frame, passage.runner
    if chain.recovered and frame.yields:
        key = derive(frame.cause, chain.event, *chain.rules, chain.position, chain.call.page)
        _, stored = await runner.bodies.stored(ok(frame.yields[0]), key)
        frame.yields = (stored.result,)
    if not passage.top:
        return
    if frame.ctx_writes:
        runner.reporter.hold(runner.ctx_patch(frame, runner.now()))
    if frame.vars_writes:
        runner.report_vars(frame)
    # If a call follows, its report will tell.
    local = frame.recorded_local() if chain.again is None else {}
    if local or (chain.recovered and frame.yields):
        runner.reporter.hold(
            StepPatched(
                at=runner.now(),
                step_run_id=runner.command.step_run_id,
                step=runner.command.step,
                local=local,
                yields=frame.yields if chain.recovered else (),
            )
        )


async def _again(passage: Passage, chain: Chain, again: Again) -> Suspension | None:
    """Make the call once more: the next page, or the same one."""
    frame, tries = passage.frame, chain.call
    fine = chain.outcome is not None and chain.outcome.is_ok
    frame.position = chain.position
    frame.tries = Tries(
        attempt=1 if again.new_page else tries.attempt + 1,
        page=tries.page + again.new_page,
        calls=tries.calls + 1,
        rounds=tries.rounds + fine,
        overrides=again.overrides if again.new_page else tries.overrides,
    )
    if chain.stage == "call" and not again.new_page:  # of a page the report of its call tells
        passage.runner.reporter.say(
            RetryStarted(
                at=passage.runner.now(),
                step_run_id=passage.runner.command.step_run_id,
                step=passage.runner.command.step,
                task=chain.task,
                attempt=frame.tries.attempt,
                action_id=chain.outcome.meta.action_id if chain.outcome is not None else "",
                page=frame.tries.page,
                delay=again.delay,
                iteration=frame.iteration,
            )
        )
    return await wait(passage, again.delay)


def _begin_again(passage: Passage, again: Again) -> None:
    """`call` at the end of a pass: its tasks once more, the first with some config changed."""
    frame = passage.frame
    frame.position = 0
    frame.jumps += 1  # calls of this round are other calls than those before
    frame.tries = Tries(overrides=again.overrides)
    passage.left = False


async def _heard(passage: Passage, chain: Chain) -> Ending | None:
    """The rules answered something the server heard: it goes on from here, unless they `call`."""
    decided = chain.error is not None or chain.skipped is not None or chain.routes
    if chain.again is not None and not decided:
        step = passage.runner.program.steps[passage.runner.command.step].step
        if step.loop is not None or not step.tasks:
            return Ending(error=NOTHING_TO_CALL)
        _begin_again(passage, chain.again)
        return None
    won = winner(chain.routes) if chain.routes else None
    return Ending(
        error=chain.error,
        next=won,
        suppressed=suppressed(chain),
        skipped=chain.skipped,
        recovered=chain.recovered,
    )
