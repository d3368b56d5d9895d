"""One call until it is settled: tried again as `retry` says, looked at again as `poll` says.

Every try is reported. A wait of more than a few seconds gives the worker back: whoever goes on
finds the counters in the progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from noetl.engine.failing import error_from
from noetl.engine.pipeline import GO_ON, Directive, PollProgram, TaskProgram, decide, rendered
from noetl.errors import EvaluationFailed
from noetl.model import refs
from noetl.model.chains import Tries
from noetl.model.commands import ChildRequest, Suspension
from noetl.model.events import PolicyUnmatched, RetryStarted, TaskDone, TaskStarted
from noetl.model.facts import sentence
from noetl.model.outcome import Outcome, TaskError, failed
from noetl.model.rule_events import (
    PollFinished,
    PollIteration,
    PollStarted,
    RetryProcessed,
    SinkProcessed,
    SinkStarted,
)
from noetl.tools.playbook import TOOL as PLAYBOOK
from noetl.worker.allowances import timeout_of
from noetl.worker.blocks import Interrupted
from noetl.worker.calls import action_of, asserted, overridden, total_seconds, unmet
from noetl.worker.frame import Frame
from noetl.worker.printing import NOTHING, Printed

if TYPE_CHECKING:
    from noetl.worker.passing import Passage

SLEEP_MAX = 5.0
"""Waits up to this long keep the slot; longer ones give it back."""


PASSES = ("continue", "jump", "break")
"""After these the pipeline goes past the task, so its `set` applies."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What a call came to, and what its policy makes of that."""

    outcome: Outcome
    stored: Outcome
    """As it is recorded: a large result is a reference."""
    directive: Directive
    tries: Tries
    page: int
    action_id: str
    printed: Printed = NOTHING


async def settle(
    passage: Passage, program: TaskProgram, *, sink: bool = False
) -> Settled | Suspension:
    """Call until the policy says something else than to call again, or until a long wait."""
    frame = passage.frame
    while True:
        if passage.runner.is_paused() and not (passage.inside or frame.inner or frame.pending):
            # A call that has begun ends first, with the workbook entry or the hooks it consists of.
            return Suspension(progress=frame.progress())
        frame.enter(program.task.name)
        if frame.pending is None and program.task.kind == "playbook":
            waiting = _child(program, frame)
            if isinstance(waiting, Suspension):
                return waiting
            frame.pending = waiting
        try:
            settled = await _try(passage, program, sink=sink)
        except Interrupted as entry:
            frame.inner = entry.inner
            return Suspension(progress=frame.progress(), child=entry.child)
        directive = settled.directive
        if directive.kind != "retry" or directive.rule:
            return settled
        write(frame, settled)
        frame.tries = next_tries(settled)
        report(passage, program, settled, sink=sink)
        suspension = await wait(passage, directive.delay)
        if suspension is not None:
            return suspension


async def wait(passage: Passage, delay: float) -> Suspension | None:
    """Sleep for a short while; for a long one, say when to go on."""
    if delay > SLEEP_MAX and not passage.inside:
        return Suspension(progress=passage.frame.progress(), until=passage.runner.now() + delay)
    if delay > 0:
        await passage.runner.sleep(delay)
    return None


def _child(program: TaskProgram, frame: Frame) -> Suspension | Outcome:
    """A sub-playbook holds no slot: the run waits for it, not the worker."""
    try:
        config = rendered(program.config, frame.scope, f"task {program.task.name}")
        inputs = rendered(program.inputs, frame.scope, f"args of {program.task.name}")
        config, inputs = overridden(config, inputs, frame.tries.overrides, PLAYBOOK)
        limit = total_seconds(timeout_of(program, frame))
        if (lacking := unmet(program.task, inputs)) is not None:
            return lacking
    except EvaluationFailed as error:
        return failed("schema", str(error), code=error.code)
    request = ChildRequest(
        path=str(config.get("path", "")),
        version=config.get("version"),
        workload={**(config.get("payload") or {}), **inputs},
        return_step=config.get("return_step"),
        timeout=limit,
    )
    return Suspension(progress=frame.progress(), child=request)


async def _try(passage: Passage, program: TaskProgram, *, sink: bool) -> Settled:
    frame, runner = passage.frame, passage.runner
    action_id = action_of(frame, program.task)
    printed = NOTHING
    if frame.pending is not None:
        stored, frame.pending = frame.pending, None
        value = await runner.bodies.real(stored.result)
        outcome = asserted(program.task, msgspec.structs.replace(stored, result=value))
        if not outcome.is_ok:
            stored = outcome
    else:
        if frame.inner is None:
            _say_started(passage, program, action_id, sink=sink)
        outcome, printed = await runner.outcome(program, frame, action_id)
        outcome = asserted(program.task, outcome)
        inline_max = program.task.spec.get("inline_max_bytes", refs.INLINE_MAX)
        outcome, stored = await runner.bodies.stored(
            outcome, action_id, frame.mask, inline_max, program.task
        )
    try:
        directive = _judge(passage, program, outcome, action_id)
    except EvaluationFailed as error:
        directive = Directive(kind="fail", error=error_from(error))
    return Settled(
        outcome=outcome,
        stored=stored,
        directive=directive,
        tries=frame.tries,
        page=frame.page,
        action_id=action_id,
        printed=printed,
    )


def _say_started(passage: Passage, program: TaskProgram, action_id: str, *, sink: bool) -> None:
    frame, runner, task = passage.frame, passage.runner, program.task
    started = SinkStarted if sink else TaskStarted
    fact = started(
        at=runner.now(),
        step_run_id=runner.command.step_run_id,
        step=runner.command.step,
        task=task.name,
        kind=task.kind,
        attempt=frame.tries.attempt,
        action_id=action_id,
        iteration=frame.iteration,
        page=frame.page,
    )
    if task.origin and not sink:
        fact = msgspec.structs.replace(fact, origin=task.origin)
    runner.reporter.say(fact)


def _judge(passage: Passage, program: TaskProgram, outcome: Outcome, action_id: str) -> Directive:
    """What poll and policy make of the outcome, with the task's own `set` on success."""
    if program.judges_nothing and passage.case is None and outcome.is_ok:
        return GO_ON  # Nobody looks at the outcome here.
    frame = passage.frame
    frame.show_outcome(program.task.kind, outcome)
    if passage.is_only(program):
        frame.show_own(program.task.kind, outcome)
    frame.show_page(program.task.kind, outcome)
    frame.show_tries(frame.tries)
    try:
        looked = _look(passage, program, program.poll, outcome) if program.poll else None
        if looked is not None:
            return looked
        directive = decide(
            program,
            outcome,
            frame.scope,
            tries=frame.tries,
            seed=action_id,
            limits=passage.runner.program.net.executor.limits,
        )
        if program.poll is not None and directive.kind == "fail" and not outcome.is_ok:
            _say_poll(passage, program, "error")
    finally:
        frame.hide_page()
    if program.task.patch is not None and directive.kind in PASSES:
        place = f"set of task {program.task.name}"
        parts = program.patch
        if outcome.is_ok:
            frame.show_result(program.task.kind)
        else:
            parts = program.patch_after_error
        frame.write(*(rendered(part, frame.scope, place) for part in parts))
    return directive


def _look(
    passage: Passage, program: TaskProgram, poll: PollProgram, outcome: Outcome
) -> Directive | None:
    """What `poll` makes of a success; None when what was waited for is there."""
    frame, now = passage.frame, passage.runner.now()
    tries = frame.tries
    if tries.poll_began is None:
        passage.runner.reporter.say(PollStarted(at=now, **names(passage, program)))
        tries = frame.tries = msgspec.structs.replace(tries, poll_began=now)
    if not outcome.is_ok:
        return None
    if poll.until.holds(frame.scope):
        _say_poll(passage, program, "reached")
        return None
    looks = tries.polls + 1
    delay = poll.wait(frame.scope, looks, now - (tries.poll_began or now))
    if delay is None:
        _say_poll(passage, program, "exhausted")
        undefined = poll.until.undefined(frame.scope)
        why = f" {sentence(undefined)}" if undefined else ""
        message = f'task "{program.task.name}" was polled {looks} times, and what it waits for'
        message += f" did not come.{why}"
        error = TaskError(kind="timeout", code="poll_exhausted", message=message)
        return Directive(kind="fail", error=error)
    return Directive(kind="retry", delay=delay, new_page=True, poll=True)


def _say_poll(passage: Passage, program: TaskProgram, status: str) -> None:
    frame = passage.frame
    passage.runner.reporter.say(
        PollFinished(
            at=passage.runner.now(),
            status=status,
            number=frame.tries.polls + 1,
            **names(passage, program),
        )
    )


def next_tries(settled: Settled) -> Tries:
    """The counters after a call that will be repeated: as it was, or as a new page."""
    tries, directive = settled.tries, settled.directive
    counted = msgspec.structs.replace(
        tries, calls=tries.calls + 1, rounds=tries.rounds + settled.outcome.is_ok
    )
    if not directive.new_page:
        return msgspec.structs.replace(counted, attempt=tries.attempt + 1)
    return msgspec.structs.replace(
        counted,
        attempt=1,
        page=tries.page + 1,
        polls=tries.polls + directive.poll,
        overrides=tries.overrides if directive.poll else directive.overrides,
    )


def write(frame: Frame, settled: Settled) -> None:
    """Apply what the policy writes, and forget the outcome."""
    directive = settled.directive
    frame.write(directive.ctx, directive.iter, directive.local, directive.vars)
    frame.hide_outcome()


def names(passage: Passage, program: TaskProgram) -> dict[str, Any]:
    """What every fact about a call says of where it was made."""
    command = passage.runner.command
    return {
        "step_run_id": command.step_run_id,
        "step": command.step,
        "task": program.task.name,
        "iteration": passage.frame.iteration,
    }


def report(passage: Passage, program: TaskProgram, settled: Settled, *, sink: bool = False) -> None:
    """Say what a call came to, and where whoever goes on would go on."""
    frame, runner, directive = passage.frame, passage.runner, settled.directive
    now = runner.now()
    done = SinkProcessed if sink else TaskDone
    runner.reporter.say(
        done(
            at=now,
            step_run_id=runner.command.step_run_id,
            step=runner.command.step,
            task=program.task.name,
            outcome=settled.stored,
            attempt=settled.tries.attempt,
            action_id=settled.action_id,
            iteration=frame.iteration,
            page=settled.page,
            directive=directive.kind,
            log=settled.printed.text,
            told=settled.printed.told,
            progress=frame.progress() if passage.top else None,
        )
    )
    if directive.unmatched:
        status = settled.outcome.status
        undefined = directive.undefined
        if undefined and runner.has_warned(program.task.name):
            undefined = {}
        runner.reporter.say(
            PolicyUnmatched(at=now, status=status, undefined=undefined, **names(passage, program))
        )
    if directive.kind == "retry":
        _say_repeated(passage, program, settled, now)
    if passage.top:
        if frame.ctx_writes:
            runner.report_ctx(frame, now)
        if frame.vars_writes:
            runner.report_vars(frame)
        if program.task.kind != "noop":
            runner.reporter.flush_soon()


def _say_repeated(passage: Passage, program: TaskProgram, settled: Settled, now: float) -> None:
    directive, where = settled.directive, names(passage, program)
    if directive.poll:
        passage.runner.reporter.say(
            PollIteration(at=now, number=settled.tries.polls + 1, delay=directive.delay, **where)
        )
    else:
        passage.runner.reporter.say(
            RetryStarted(
                at=now,
                attempt=1 if directive.new_page else settled.tries.attempt + 1,
                action_id="" if directive.new_page else settled.action_id,
                page=settled.tries.page + directive.new_page,
                delay=directive.delay,
                **where,
            )
        )


def say_processed(passage: Passage, task: str, outcome: Outcome | None, tries: Tries) -> None:
    """A call that was tried more than once is settled for good."""
    if tries.attempt < 2 or outcome is None:
        return
    command = passage.runner.command
    passage.runner.reporter.say(
        RetryProcessed(
            at=passage.runner.now(),
            step_run_id=command.step_run_id,
            step=command.step,
            task=task,
            status=outcome.status,
            attempts=tries.attempt,
            action_id=outcome.meta.action_id,
            iteration=passage.frame.iteration,
        )
    )
