"""The life of one step run, or of one pass of it, from its first task to its end. It does nothing
itself: it is given what happened and answers with what to do next.

    Entered ─▶ Call ─▶ CallEnded ─▶ rules ─▶ Call | Wait | Suspend | End
                  │                   ▲
                  └─▶ ChildAsked      └── Woken, Fetched, Kept: what was asked for in between

Its driver (`noetl.worker.driver`, or a test) performs each `Do` in the order of the list that `on`
returns. The last of them is answered by the next input; the others (`Say`, `Flush`) are not.
An input that answers nothing that was asked for changes nothing.

The rules of the machine:

1.  A pipeline is a list of tasks. It stands before one of them, follows a chain of event rules, or
    is through. Where it stands is `Progress`, a value that is recorded with each call that ends;
    a machine that is given it goes on exactly there, and makes no recorded call again.
2.  A call has a name (`action_id`) that is the same on every try of it, and another for each page,
    each round of jumps and each place in a chain.
3.  A try is `before` hooks, the task, `after` hooks if it succeeded, `finally` hooks in any case.
    Hooks are pipelines within the try: they write what the task writes, they wait where they are,
    and a try that is made again after a crash runs them again. A task that waits for a child
    execution is not over: it goes on behind its `before`, and its `finally` comes at its end.
4.  The outcome of a try is judged by the task's rules: poll, then `retry`, then its policy; the
    first that holds decides (`rules`). A repetition writes what its rule writes, counts, is
    reported, and waits. Any other directive settles the call.
5.  A settled call is put to the event rules of the step, before what the policy writes is
    applied. The chain of actions that they set off is followed before the pipeline goes on. It may
    run tasks (each settled like any other, but without event rules of its own), collect, write,
    say what the step yields, ask for another call, decide where the tokens go, fail or skip.
    `next`, `fail` and `skip` come before a repetition that was asked for as well.
6.  A rule of `retry` that keeps or stores something before the next page is such a chain, too; if
    the call was made by a chain, that one waits in the new one (`Chain.outer`).
7.  Where no task and no chain is left, the pass ends: after a success with the step's sink, then,
    in an iteration, with the rules for `step.exit`. Each of them once.
8.  A wait of up to `SLEEP_MAX` seconds keeps the worker (`Wait`). A longer one gives it back
    (`Suspend`), as do a child execution and a pause. A pipeline within a try waits where it is.
9.  A pause is looked at before each call and nowhere else.
10. `Cancelled` ends whatever is under way. The `finally` hooks of tries that have begun run, the
    innermost first; then the machine ends.
11. A template that cannot be evaluated fails the call, or the chain, that it belongs to. No input
    makes the machine raise.

Within, it is a generator: `happened = yield do` says what to do and comes back with what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, ClassVar, NamedTuple, TypeVar, assert_never

import msgspec

from noetl.engine.pipeline.actions import (
    RetryProgram,
    advanced,
    suppressed,
    winner,
)
from noetl.engine.pipeline.calls import asserted, child_request, hook_cause, jumps_of
from noetl.engine.pipeline.frame import FRESH, Body, Frame, large_names, recorded
from noetl.engine.pipeline.rules import (
    ENTER,
    GO_ON,
    SINK,
    CaseProgram,
    Directive,
    RuleProgram,
    RunProgram,
    StepEvent,
    TaskProgram,
    called,
    decide,
    exiting,
    following,
    outside,
)
from noetl.engine.program import Program, StepProgram
from noetl.engine.scope import event_value
from noetl.errors import EvaluationFailed
from noetl.model import refs
from noetl.model.chains import SERVER_STAGES, Again, Chain, Inner, Tries
from noetl.model.commands import ChildRequest, Command, Ending, Suspension
from noetl.model.events import (
    CaseUnmatched,
    ChainRestarted,
    Event,
    PolicyUnmatched,
    PollFinished,
    PollIteration,
    PollStarted,
    RetryProcessed,
    RetryStarted,
    SinkProcessed,
    SinkStarted,
    StepPatched,
    TaskDone,
    TaskStarted,
)
from noetl.model.facts import Undefined
from noetl.model.ids import derive
from noetl.model.net import NOOP, DirectiveKind, Limits
from noetl.model.outcome import Outcome, TaskError, error_from, failed, ok
from noetl.model.toolshape import ToolShape
from noetl.templates import view
from noetl.templates.views import ResultView

SLEEP_MAX = 5.0
"""Waits up to this long keep the worker; longer ones give it back."""
PASSES: tuple[DirectiveKind, ...] = ("continue", "jump", "break")
"""After these the pipeline goes past the task, so its `set` applies."""
NOTHING_TO_CALL = TaskError(
    kind="client_error",
    code="nothing_to_call",
    message="a rule for step.enter, step.exit or an external event asks for a `call`, but the step"
    " has no tool, or is a loop, whose calls belong to its iterations. Use `call` on call.done or"
    " call.error.",
)
NO_RETRY = TaskError(
    kind="client_error",
    code="retry_without_call",
    message="a rule for step.enter, step.exit or an external event asks for a `retry`, but there is"
    " no call to repeat. Retry on call.done or call.error, or use `call`.",
)
CANCELLED_ENDING = Ending(error=TaskError(kind="cancelled", message="the run was cancelled"))


# --- What happened -----------------------------------------------------------------------------


class Printed(NamedTuple):
    """What a call printed: the end of it, and how much of that was in `task.log` before."""

    text: str = ""
    told: int = 0


NO_OUTPUT = Printed()


class Entered(msgspec.Struct, frozen=True):
    """The machine may begin, or go on where its progress says."""


class CallEnded(msgspec.Struct, frozen=True):
    """A call came to an outcome."""

    outcome: Outcome
    printed: Printed = NO_OUTPUT
    hide: Callable[[str], str] | None = None
    """Masks the secrets that the call used."""


class ChildAsked(msgspec.Struct, frozen=True):
    """A workbook entry that was called waits for a child execution. It goes on at `inner`."""

    child: ChildRequest
    inner: Inner


class Woken(msgspec.Struct, frozen=True):
    """A wait is over."""


class Fetched(msgspec.Struct, frozen=True):
    """What references in a value stand for is there."""

    value: Any


class Kept(msgspec.Struct, frozen=True):
    """What was to be kept, or recorded, is."""


class Cancelled(msgspec.Struct, frozen=True):
    """The run is no longer wanted, or what was to be done could not be."""


Happened = Entered | CallEnded | ChildAsked | Woken | Fetched | Kept | Cancelled


# --- What to do --------------------------------------------------------------------------------


class Say(msgspec.Struct, frozen=True):
    """Report this fact."""

    fact: Event
    held: bool = False
    """Not before the next fact that says how far the run has come, or its end: what reads a value
    and writes it back would otherwise be done twice after a crash."""


class Flush(msgspec.Struct, frozen=True):
    """Have what was said so far recorded, without waiting for it."""


class Call(msgspec.Struct, frozen=True):
    """Make this call once."""

    answers: ClassVar = (CallEnded, ChildAsked)
    program: TaskProgram
    frame: Frame
    action_id: str


class Wait(msgspec.Struct, frozen=True):
    """Answer after so many seconds."""

    answers: ClassVar = (Woken,)
    seconds: float


class Fetch(msgspec.Struct, frozen=True):
    """Read what references in this value stand for."""

    answers: ClassVar = (Fetched,)
    value: Any


class Keep(msgspec.Struct, frozen=True):
    """Keep a body that is too large for an event."""

    answers: ClassVar = (Kept,)
    body: Body


class Record(msgspec.Struct, frozen=True):
    """Have all that was said recorded, and answer then."""

    answers: ClassVar = (Kept,)


class Suspend(msgspec.Struct, frozen=True):
    """Give the worker back until a time, a child's end, or the end of a pause. The last word."""

    answers: ClassVar = ()
    suspension: Suspension


class End(msgspec.Struct, frozen=True):
    """The pass is over. The last word."""

    answers: ClassVar = ()
    ending: Ending


Asked = Call | Wait | Fetch | Keep | Record
Do = Say | Flush | Asked | Suspend | End
_AT_FIRST = (Entered,)
T = TypeVar("T")
Steps = Generator[Asked, Any, T]
"""Yields what to do, is sent what happened, and returns a result."""


# --- The machine -------------------------------------------------------------------------------


class StepRun(msgspec.Struct, eq=False):
    """What the passes of one command share."""

    program: Program
    command: Command
    child_shape: ToolShape
    """The kind of tasks that are child executions."""
    result_max: int
    """Bytes that a result may have."""
    began: float
    """By this worker's clock."""
    _warned: set[str] = set()

    @property
    def step(self) -> StepProgram:
        return self.program.steps[self.command.step]

    @property
    def limits(self) -> Limits:
        return self.program.net.executor.limits

    def has_warned(self, what: str) -> bool:
        """Whether this was pointed out under this command before; from now on it was."""
        if what in self._warned:
            return True
        self._warned.add(what)
        return False

    def by_server(self, at: float) -> float:
        """A moment of this worker's clock, by the server's: the next worker's clock may differ. The
        time that the command waited for a worker is left out.
        """
        return self.command.at + at - self.began


class _Stopped(BaseException):
    """Unwinds the machine when it is cancelled. No handler of errors may catch it."""


class Settled(msgspec.Struct, frozen=True):
    """The outcome of a call, and what its policy decided."""

    outcome: Outcome
    stored: Outcome
    """As it is recorded: a large result is a reference."""
    directive: Directive
    tries: Tries
    page: int
    action_id: str
    printed: Printed = NO_OUTPUT


class Pipeline(msgspec.Struct, eq=False):
    """A frame on its way through tasks."""

    run: StepRun
    tasks: tuple[TaskProgram, ...]
    frame: Frame
    top: bool
    """Not in a loop."""
    inside: bool = False
    """Of a workbook entry or a hook, which can only wait where it is, and which no event rules
    answer.
    """
    _case: CaseProgram | None = None
    _has_stored: bool = False
    """The step's sink has run for this pass."""
    _has_left: bool = False
    """The rules for the end of this iteration have been followed."""
    _steps: Steps[Ending | Suspension] | None = None
    _awaited: tuple[type, ...] = _AT_FIRST
    _at: float = 0.0
    _is_paused: bool = False
    _doing: list[Do] = []
    """Of the input under way."""

    def __post_init__(self) -> None:
        self._case = None if self.inside else self.run.step.case

    def on(self, happened: Happened, at: float, is_paused: bool = False) -> list[Do]:
        """What to do next. Nothing if this is not what the machine waits for."""
        doing: list[Do] = []
        self._at, self._is_paused, self._doing = at, is_paused, doing
        kind = type(happened)
        last: Asked | Suspend | End
        steps = self._steps = self._steps or self._pass()
        try:
            if kind in self._awaited:
                last = steps.send(None if kind is Entered else happened)
            elif kind is Cancelled and self._awaited:
                last = steps.throw(_Stopped())
            else:
                return doing
        except StopIteration as over:
            ended = over.value
            last = End(ended) if type(ended) is Ending else Suspend(ended)
        except _Stopped:
            last = End(CANCELLED_ENDING)
        self._awaited = last.answers
        doing.append(last)
        return doing

    def _say(self, fact: Event, *, held: bool = False) -> None:
        self._doing.append(Say(fact, held))

    def _is_only(self, program: TaskProgram) -> bool:
        """Whether this is the only task of the step: what it yields, the step yields."""
        return not self.inside and len(self.tasks) == 1 and self.tasks[0] is program

    # --- From task to task ---

    def _pass(self) -> Steps[Ending | Suspension]:
        """Tasks and chains until none is left, or until a long wait."""
        frame = self.frame
        if frame.local or frame.stored or frame.stored_previous is not None:
            yield from self._recall()
        ended: Ending | Suspension | None
        while True:
            if frame.chain is not None:
                stage = frame.chain.stage
                self._has_stored = self._has_stored or stage == "sink"
                self._has_left = self._has_left or stage == "iteration"
                ended = yield from self._follow(frame.chain)
                if stage in SERVER_STAGES and isinstance(ended, Ending):
                    return ended
            elif frame.position < len(self.tasks):
                ended = yield from self._task(self.tasks[frame.position])
            else:
                ended = Ending(result=frame.result)
            if ended is None:
                continue
            if type(ended) is Suspension:
                if self.top:
                    self._say_writes()
                return ended
            assert type(ended) is Ending
            chain = self._last_chain(self._case, ended) if self._case is not None else None
            if chain is None:
                if len(self.tasks) < 2 or ended.error is not None:
                    return ended
                # Of several tasks, the step also yields the result of each.
                return msgspec.structs.replace(ended, tasks=dict(frame.stored))
            frame.position = len(self.tasks)
            frame.chain = chain

    def _recall(self) -> Steps[None]:
        """After an interruption: the results of the tasks that were done before it."""
        frame = self.frame
        for name, value in frame.local.items():
            frame.local[name] = frame.names[name] = yield from self._real(value)
        if not frame.stored and frame.stored_previous is None:
            return
        tasks = {program.task.name: program.task for program in self.tasks}
        if self._case is not None:
            tasks |= self._case.tasks
        values = {}
        for name, stored in frame.stored.items():
            values[name] = yield from self._real(stored)
        previous = yield from self._real(frame.stored_previous)
        frame.recall(tasks, values, previous)

    def _real(self, value: Any) -> Steps[Any]:
        """The value with what references in it stand for; any other value as it is."""
        if not refs.holds_reference(value, self.run.command.seal):
            return value
        return (yield Fetch(value)).value

    def _task(self, program: TaskProgram) -> Steps[Ending | Suspension | None]:
        frame = self.frame
        if program.reads_output:
            frame.show_last()
        settled = yield from self._settle(program)
        if type(settled) is Suspension:
            return settled
        assert type(settled) is Settled
        frame.last = program.task.kind, settled.outcome
        chain = None
        if settled.directive.rule:
            chain = self._page_chain(program, settled)
        elif self._case is not None:
            chain = self._answer(self._case, program, settled)
        frame.leave(settled.directive.writes)
        jumps = frame.jumps
        ended = self._move(program, settled) if not settled.directive.rule else None
        if chain is not None:
            chain.jumps = jumps if jumps != frame.jumps else None
            chain.fails = ended.error if ended is not None else None
            frame.chain = chain
        before = len(self._doing)
        self._report(program, settled)
        if chain is None:
            if settled.tries.attempt > 1:
                self._say_processed(program.task.name, settled.outcome, settled.tries)
            if self.top and ended is not None and ended.error is not None:
                # No position says that it failed: only the end of the run does.
                said = [one for one in self._doing[before:] if type(one) is Say]
                self._doing[before:] = [Say(one.fact, held=True) for one in said]
            return ended
        if self._case is not None and chain.stage == "call":
            self._say(self._case.evaluated(chain, page=chain.call.page, **self._place))
        return None

    def _move(self, program: TaskProgram, settled: Settled) -> Ending | None:
        """Go where the directive says; an ending if there is nowhere to go."""
        frame, directive = self.frame, settled.directive
        if settled.outcome.status == "ok":
            frame.keep(program.task, settled.outcome.result, settled.stored.result)
        frame.task_tries = FRESH  # no chain is followed here
        match directive.kind:
            case "continue":
                frame.position += 1
            case "jump":
                return self._jump(program, directive.to)
            case "break":
                frame.position = len(self.tasks)
                return Ending(result=frame.result)
            case "fail":
                return Ending(error=directive.error or TaskError(kind="unknown", message="failed"))
            case "retry":
                raise AssertionError("a call that is repeated is not settled (`_settle`)")
            case _:
                assert_never(directive.kind)
        return None

    def _jump(self, program: TaskProgram, to: str) -> Ending | None:
        target = next(i for i, one in enumerate(self.tasks) if one.task.name == to)
        too_many = self._count_jump(program, is_bounded=target <= self.frame.position)
        if too_many is None:
            self.frame.position = target
        return too_many

    def _count_jump(self, program: TaskProgram, *, is_bounded: bool) -> Ending | None:
        """Count a jump; an ending if it is one too many."""
        frame = self.frame
        frame.jumps += 1
        try:
            limit = jumps_of(program, frame) if is_bounded else None
        except EvaluationFailed as error:
            return Ending(error=error_from(error))
        if limit is not None and frame.jumps > limit:
            message = f'task "{program.task.name}" jumped more than {limit} times (`max_jumps`)'
            return Ending(error=TaskError(kind="client_error", code="jumps", message=message))
        return None

    # --- One call, until it is settled ---

    def _settle(self, program: TaskProgram, *, sink: bool = False) -> Steps[Settled | Suspension]:
        """Call until the rules say something else than to call again, or until a long wait."""
        frame, task = self.frame, program.task
        while True:
            if not self.inside and self._is_paused and not (frame.inner or frame.pending):
                # A call that has begun ends first, with the entry or the hooks it consists of.
                return Suspension(progress=frame.progress())
            tries, page, action_id = frame.enter(task)
            printed = NO_OUTPUT
            if program.starts_child or frame.pending is not None:
                awaited = yield from self._child(program, action_id)
                if isinstance(awaited, Suspension):
                    return awaited
                outcome, stored = awaited
            else:
                if frame.inner is None:
                    self._say_started(program, action_id, tries, page, sink=sink)
                    if self.run.program.counts_calls:
                        # A run that is beyond a quota is cancelled here, before the call.
                        yield Record()
                tried: CallEnded | ChildAsked
                if program.has_hooks:
                    tried = yield from self._with_hooks(program, action_id)
                else:
                    tried = yield Call(program, frame, action_id)
                if type(tried) is ChildAsked:
                    frame.inner = tried.inner
                    return Suspension(progress=frame.progress(), child=tried.child)
                assert type(tried) is CallEnded
                printed = tried.printed
                outcome = stored = tried.outcome
                if program.promises:
                    outcome = stored = asserted(program, frame, outcome)
                if outcome.result is not None:
                    run = self.run
                    outcome, stored, body = recorded(
                        outcome,
                        run.command,
                        action_id,
                        run.result_max,
                        tried.hide,
                        task,
                        run.program.views[task.kind],
                    )
                    if body is not None:
                        yield Keep(body)
            directive = GO_ON
            # Otherwise nothing here reads the outcome.
            if not program.judges_nothing or self._case is not None or outcome.status != "ok":
                try:
                    directive = self._judge(program, outcome, action_id)
                    if directive.poll and directive.kind == "fail":
                        # Rules judge that as an error. Recorded is also what came last.
                        frame.hide_outcome()
                        outcome = _gave_up(outcome, directive)
                        stored = _gave_up(stored, directive)
                        directive = self._judge(program, outcome, action_id, gave_up=True)
                except EvaluationFailed as error:
                    directive = Directive(kind="fail", error=error_from(error))
                if task.poll is not None:
                    tries = frame.tries
            settled = Settled(outcome, stored, directive, tries, page, action_id, printed)
            if directive.kind != "retry" or directive.rule:
                return settled
            frame.leave(settled.directive.writes)
            frame.tries = _next_tries(settled)
            self._report(program, settled, sink=sink)
            suspension = yield from self._wait(directive.delay)
            if suspension is not None:
                return suspension

    def _child(
        self, program: TaskProgram, action_id: str
    ) -> Steps[tuple[Outcome, Outcome] | Suspension]:
        """Ask for a child execution and wait for it; or what the one that was waited for came to,
        with its hooks, and that as it is recorded.
        """
        frame = self.frame
        if frame.pending is None:
            asked: ChildRequest | Outcome | None = None
            if program.has_hooks:
                asked = yield from self._before(program, action_id)
            if asked is None:
                asked = child_request(program, frame, self.run.child_shape)
            if isinstance(asked, ChildRequest):
                return Suspension(progress=frame.progress(), child=asked)
            frame.pending = asked
        stored, frame.pending = frame.pending, None
        value = yield from self._real(stored.result)
        outcome = asserted(program, frame, msgspec.structs.replace(stored, result=value))
        if not outcome.is_ok:
            stored = outcome
        if program.has_hooks:
            broken = yield from self._behind(program, action_id, outcome)
            if broken is not None:
                return broken, broken
        return outcome, stored

    def _wait(self, delay: float) -> Steps[Suspension | None]:
        """Sleep for a short while; for a long one, say when to go on."""
        if delay > SLEEP_MAX and not self.inside:
            until = self._at + delay
            return Suspension(progress=self.frame.progress(), until=until, at=self._at)
        if delay > 0:
            yield Wait(delay)
        return None

    def _with_hooks(self, program: TaskProgram, action_id: str) -> Steps[CallEnded | ChildAsked]:
        """`before`, the call, `after`; `finally` whatever happens, also on cancellation."""
        goes_on = self.frame.inner is not None
        broken = None if goes_on else (yield from self._before(program, action_id))
        if broken is not None:
            ended: CallEnded | ChildAsked = CallEnded(broken)
        else:
            call = _calling(Call(program, self.frame, action_id))
            ended = yield from self._or_finally(program, action_id, call)
        if type(ended) is ChildAsked:
            return ended
        assert type(ended) is CallEnded
        broken = yield from self._behind(program, action_id, ended.outcome)
        return ended if broken is None else CallEnded(broken, ended.printed, ended.hide)

    def _before(self, program: TaskProgram, action_id: str) -> Steps[Outcome | None]:
        """The hooks before a try; what they have failed it with, if they have."""
        hook = self._hook(program, "before", action_id)
        return (yield from self._or_finally(program, action_id, hook))

    def _behind(
        self, program: TaskProgram, action_id: str, outcome: Outcome
    ) -> Steps[Outcome | None]:
        """The hooks after a try; what it came to instead, if they have failed it."""
        self.frame.show_outcome(program.task.kind, outcome)
        broken = None
        if outcome.is_ok:
            hook = self._hook(program, "after", action_id)
            broken = yield from self._or_finally(program, action_id, hook)
        at_last = yield from self._hook(program, "finally", action_id)
        return broken or (at_last if outcome.is_ok else None)

    def _or_finally(self, program: TaskProgram, action_id: str, steps: Steps[T]) -> Steps[T]:
        """Follow these; if that is cancelled, `finally` comes yet."""
        try:
            return (yield from steps)
        except _Stopped:
            yield from self._hook(program, "finally", action_id)
            raise

    def _hook(self, program: TaskProgram, name: str, action_id: str) -> Steps[Outcome | None]:
        """Run one hook; what it failed with, if it did."""
        tasks = {"before": program.before, "after": program.after, "finally": program.finally_}
        if not tasks[name]:
            return None
        frame = self.frame
        inner = frame.around(hook_cause(action_id, name, frame.tries.attempt))
        around = self.frame, self.tasks, self._case, self.top, self.inside
        self.frame, self.tasks, self._case = inner, tasks[name], None
        self.top, self.inside = False, True
        try:
            ended = yield from self._pass()
        finally:
            self.frame, self.tasks, self._case, self.top, self.inside = around
        frame.names.update(frame.local)
        frame.scope.tainted |= inner.scope.tainted
        if isinstance(ended, Suspension):
            message = f'a hook (`{name}`) of task "{program.task.name}" calls a playbook, for which'
            message += " it cannot wait. Call it from a task."
            return failed("client_error", message, code="no_suspension")
        return None if ended.error is None else Outcome(status="error", error=ended.error)

    def _judge(
        self, program: TaskProgram, outcome: Outcome, action_id: str, *, gave_up: bool = False
    ) -> Directive:
        """What the task's rules make of the outcome, with its own `set` where it is passed."""
        frame, task, is_ok = self.frame, program.task, outcome.status == "ok"
        is_judged = bool(program.rules) or not is_ok
        frame.show(task.kind, outcome, is_own=self._is_only(program), whole=not is_judged)
        directive = self._ruled(program, outcome, action_id, gave_up) if is_judged else GO_ON
        if task.patch is not None and directive.kind in PASSES:
            if is_judged and is_ok:
                frame.show_result(task.kind)
            patch = program.patch if is_ok else program.patch_after_error
            patch.perform(frame)
        return directive

    def _ruled(
        self, program: TaskProgram, outcome: Outcome, action_id: str, gave_up: bool
    ) -> Directive:
        """What the first of its rules that holds makes of the outcome."""
        frame = self.frame
        frame.show_page(program.task.kind, outcome)
        polls = program.task.poll is not None
        at = self.run.by_server(self._at) if polls else self._at
        if polls and frame.tries.poll_began is None:
            self._say(PollStarted(task=program.task.name, **self._place))
            frame.tries = msgspec.structs.replace(frame.tries, poll_began=at)
        directive = None
        try:
            directive = decide(
                program,
                outcome,
                frame.scope,
                tries=frame.tries,
                seed=action_id,
                limits=self.run.limits,
                at=at,
                gave_up=gave_up,
            )
        finally:
            frame.hide_page()
            if polls and not gave_up:  # otherwise that was said already
                self._say_poll(program, outcome, directive)
        return directive

    # --- Chains: what event rules lead to ---

    def _answer(self, case: CaseProgram, program: TaskProgram, settled: Settled) -> Chain | None:
        """The chain that a call sets off; None if no rule answers it."""
        if not case.answers("call"):
            return None
        frame, outcome = self.frame, settled.outcome
        ends = settled.directive.kind in ("break", "fail")
        last = ends or frame.position == len(self.tasks) - 1
        if program.task.origin and not last:
            return None  # A task of sugar is no call that people wrote, except for how it ends.
        chain = self._chain_after(program, settled)
        frame.show_outcome(program.task.kind, outcome)
        if self._is_only(program):
            frame.show_own(outcome)
        return self._begun(case, chain, called(ok=outcome.is_ok, last=last), outcome)

    def _last_chain(self, case: CaseProgram, ended: Ending) -> Chain | None:
        """What comes at the end of a pass: the step's sink, then the rules for its exit."""
        if ended.skipped is not None:
            return None
        if SINK in case.by_label and not self._has_stored and ended.error is None:
            return Chain(
                stage="sink",
                event="step.done",
                rules=(SINK,),
                outcome=ok(ended.result),
                routes=(ended.next,) if ended.next is not None else (),
                losers=ended.suppressed,
                position=self.frame.position,
            )
        if self._has_left or self.frame.iteration is None or ended.next is not None:
            return None
        self._has_left = True
        return self._leave(case, ended)

    def _leave(self, case: CaseProgram, ended: Ending) -> Chain | None:
        """The chain that the end of an iteration sets off; None if no rule answers it."""
        if not case.answers("exit"):
            return None
        frame = self.frame
        error = ended.error
        outcome = ok(ended.result) if error is None else Outcome(status="error", error=error)
        chain = Chain(
            stage="iteration",
            outcome=outcome,
            position=frame.position,
            call=Tries(page=frame.passes),
            fails=error,
        )
        kind = self.tasks[-1].task.kind if self.tasks else ""
        frame.show_outcome(kind, outcome)
        frame.show_own(outcome)
        on = exiting(ok=error is None, looped=False)
        begun = self._begun(case, chain, on, outcome)
        if begun is not None and begun.rules:
            self._say(case.evaluated(begun, page=begun.call.page, **self._place))
        return begun

    def _begun(
        self, case: CaseProgram, chain: Chain, on: StepEvent, outcome: Outcome
    ) -> Chain | None:
        """The chain with the rules that answer, or with the error that kept them from it."""
        event = event_value(self.run.command.step, outcome.result, outcome.error)
        misspelt = case.answer(chain, on, self.frame.scope, event, self.run.limits)
        if misspelt is None:
            return chain
        self._say_misspelt(misspelt, on)
        self._hide()
        return None

    def _page_chain(self, program: TaskProgram, settled: Settled) -> Chain:
        """A rule of `retry` that keeps or stores something before it makes the call again."""
        directive = settled.directive
        chain = self._chain_after(program, settled)
        chain.outer = self.frame.chain
        chain.stage, chain.event, chain.rules = "page", "call.done", (directive.rule,)
        chain.again = Again(
            overrides=directive.overrides, delay=directive.delay, new_page=directive.new_page
        )
        return chain

    def _chain_after(self, program: TaskProgram, settled: Settled) -> Chain:
        return Chain(
            stage="call",
            outcome=settled.stored,
            task=program.task.name,
            position=self.frame.position,
            call=settled.tries,
        )

    def _follow(self, chain: Chain) -> Steps[Ending | Suspension | None]:
        """Perform what is left of the chain; how the pass ends, or None if it goes on."""
        frame, outcome = self.frame, chain.outcome
        if outcome is not None:
            value = yield from self._real(outcome.result)
            outcome = msgspec.structs.replace(outcome, result=value)
        policy = self._case.settings.next_policy if self._case is not None else "end_step"
        try:
            for rule, action in following(
                chain, self._rule, frame, policy, lambda: self._show(chain, outcome)
            ):
                if isinstance(action, RetryProgram):
                    self._ask_again(chain, action, outcome)
                    chain.action += 1
                    continue
                suspension = yield from self._run_task(chain, rule, action)
                if suspension is not None:
                    return suspension
                if frame.chain is not chain:
                    return None  # the task's own `retry` comes first
        except EvaluationFailed as error:
            chain.error = error_from(error)
        self._hide()
        return (yield from self._conclude(chain))

    def _rule(self, chain: Chain) -> RuleProgram:
        if chain.stage == "page":
            [label] = chain.rules
            rules = self._called(chain).rules
            return next(one for one in rules if one.label == label and one.origin != "poll")
        assert self._case is not None
        return self._case.current(chain)

    def _called(self, chain: Chain) -> TaskProgram:
        """The task whose call the chain is about."""
        if chain.outer is None:
            return self.tasks[chain.position]
        action = self._rule(chain.outer).actions[chain.outer.action]
        assert isinstance(action, RunProgram)
        return action.task

    def _show(self, chain: Chain, outcome: Outcome | None) -> None:
        """What the actions see: the event, and the call or the step it is about."""
        frame, step = self.frame, self.run.command.step
        kind = self._called(chain).task.kind if chain.stage in ("call", "page") else ""
        if chain.stage == "iteration" and self.tasks:
            kind = self.tasks[-1].task.kind
        elif chain.stage in ("exit", "sink"):
            kind = self.run.step.kind
        if outcome is not None:
            frame.show_outcome(kind, outcome)
            if chain.stage in ("exit", "iteration", "sink") or (
                chain.stage in ("call", "page") and self._is_only(self._called(chain))
            ):
                frame.show_own(outcome)
            frame.show_page(kind, outcome)
        if frame.yields and chain.recovered:
            frame.names["result"] = view(ResultView, frame.yields[0])
        frame.show_tries(chain.call)
        data, error = (chain.data, None) if outcome is None else (outcome.result, outcome.error)
        event = {"name": chain.event, **event_value(step, data, error)}
        frame.show_event(event, self._other_names(chain))

    def _other_names(self, chain: Chain) -> frozenset[str]:
        """The other names of the event."""
        fine = chain.outcome is None or chain.outcome.is_ok
        match chain.stage:
            case "enter":
                found = ENTER
            case "iteration":
                found = exiting(ok=fine, looped=False)
            case "exit" | "sink":
                found = exiting(ok=fine, looped=self.run.step.step.loop is not None)
            case "event":
                found = outside(chain.event)
            case _:
                found = called(ok=fine, last=True)
        return found.aliases | found.general

    def _hide(self) -> None:
        self.frame.hide_outcome()
        self.frame.hide_page()
        self.frame.names.pop("event", None)

    def _ask_again(self, chain: Chain, action: RetryProgram, outcome: Outcome | None) -> None:
        if chain.stage == "page":
            return  # decided already: that is why the chain is followed
        if chain.stage != "call":
            chain.error = NO_RETRY
            return
        error = outcome.error if outcome is not None else None
        seed = derive(self.frame.cause, chain.task, chain.call.page)
        delay = action.delay(self.frame.scope, chain.call.attempt, error, seed)
        chain.again = chain.again or Again(delay=delay, new_page=False)

    def _run_task(
        self, chain: Chain, rule: RuleProgram, action: RunProgram
    ) -> Steps[Suspension | None]:
        """Run a task of the chain until it is settled, and move on."""
        frame = self.frame
        if rule.restart is not None and chain.action == 0 and not chain.tries.calls:
            chain.before = dict(frame.local)
        settled = yield from self._settle(action.task, sink=action.sink)
        if isinstance(settled, Suspension):
            return settled
        frame.leave(settled.directive.writes)
        chain.tries = Tries()
        yield from self._put_away()
        task, directive = action.task.task, settled.directive
        if settled.outcome.is_ok:
            frame.name_result(task, settled.outcome.result, settled.stored.result)
        again = None
        if directive.rule:
            frame.chain = self._page_chain(action.task, settled)
        elif directive.kind == "fail":
            message = f'task "{task.name}" failed'
            error = directive.error or TaskError(kind="unknown", message=message)
            again = self._restart_after(chain, rule, error)
        else:
            advanced(chain, "next branch" if directive.kind == "break" else "go on")
        self._report(action.task, settled, sink=action.sink)
        if not directive.rule:
            self._say_processed(task.name, settled.outcome, settled.tries)
        if again is None:
            return None
        return (yield from self._restart(chain, again))

    def _put_away(self) -> Steps[None]:
        """Keep the step's own large names by reference."""
        for body in large_names(self.frame):
            yield Keep(body)

    def _restart_after(self, chain: Chain, rule: RuleProgram, error: TaskError) -> float | None:
        """A task of the chain failed: the wait before the chain begins again, if it is to."""
        scope, used = self.frame.scope, chain.restarts + 1
        if rule.restart is None or rule.restart.is_exhausted(scope, used, self.run.limits):
            chain.error = error
            return None
        return rule.restart.delay(scope, used, error, derive(self.frame.cause, rule.label))

    def _restart(self, chain: Chain, delay: float) -> Steps[Suspension | None]:
        frame = self.frame
        label = chain.rules[chain.branch]
        chain.restarts, chain.action = chain.restarts + 1, 0
        chain.routes = tuple(one for one in chain.routes if one.branch != label)
        frame.restore(chain.before)
        self._say(
            ChainRestarted(
                branch=label,
                attempt=chain.restarts + 1,
                delay=delay,
                progress=frame.progress() if self.top else None,
                **self._place,
            )
        )
        return (yield from self._wait(delay))

    # --- The end of a chain ---

    def _conclude(self, chain: Chain) -> Steps[Ending | Suspension | None]:
        frame = self.frame
        # A copy: what was reported of this chain must not change with the one that goes on.
        frame.chain = msgspec.structs.replace(chain.outer) if chain.outer is not None else None
        yield from self._put_away()
        yield from self._tell(chain)
        if frame.chain is not None and chain.error is not None:
            return (yield from self._broken(frame.chain, chain.error))
        if chain.stage in SERVER_STAGES:
            return self._heard(chain)
        if chain.stage == "call" and (chain.again is None or chain.again.new_page):
            self._say_processed(chain.task, chain.outcome, chain.call)
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
            return self._begin_again(chain, chain.again)
        if chain.again is not None:
            return (yield from self._again(chain, chain.again))
        if chain.fails is not None and chain.recovered:
            frame.position += 1
        return Ending(error=fails) if fails is not None else None

    def _broken(self, chain: Chain, error: TaskError) -> Steps[Suspension | None]:
        """A page of this chain's task could not be kept or stored: that task has failed."""
        try:
            delay = self._restart_after(chain, self._rule(chain), error)
        except EvaluationFailed as wrong:
            chain.error = error_from(wrong)
            return None
        return None if delay is None else (yield from self._restart(chain, delay))

    def _tell(self, chain: Chain) -> Steps[None]:
        """Report what the rules wrote that is not in the progress of a call."""
        frame, run = self.frame, self.run
        if chain.recovered and frame.yields:
            key = derive(frame.cause, chain.event, *chain.rules, chain.position, chain.call.page)
            said = ok(frame.yields[0])
            _, stored, body = recorded(said, run.command, key, run.result_max)
            if body is not None:
                yield Keep(body)
            frame.yields = (stored.result,)
        if not self.top:
            return
        self._say_writes(held=True)
        # If a call follows, its report will tell.
        local = frame.recorded_local() if chain.again is None else {}
        if local or (chain.recovered and frame.yields):
            patched = StepPatched(
                at=self._at,
                step_run_id=run.command.step_run_id,
                step=run.command.step,
                local=local,
                yields=frame.yields if chain.recovered else (),
            )
            self._say(patched, held=True)

    def _again(self, chain: Chain, again: Again) -> Steps[Suspension | None]:
        """Make the call once more: the next page, or the same one."""
        frame, tries = self.frame, chain.call
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
            action_id = chain.outcome.meta.action_id if chain.outcome is not None else ""
            self._say_retry(chain.task, action_id, frame.tries, again.delay)
        return (yield from self._wait(again.delay))

    def _begin_again(self, chain: Chain, again: Again) -> Ending | None:
        """`call` at the end of a pass: its tasks once more, the first with some config changed.

        Nobody outside bounds how often a pass ends, so that is a jump back.
        """
        frame = self.frame
        if not self.tasks:
            return Ending(error=NOTHING_TO_CALL)
        # Calls of this round are other calls than those before.
        is_bounded = chain.stage in ("exit", "iteration")
        too_many = self._count_jump(self.tasks[-1], is_bounded=is_bounded)
        if too_many is not None:
            return too_many
        frame.position = 0
        frame.passes += chain.stage != "enter"
        frame.tries = Tries(overrides=again.overrides)
        self._has_left = False
        return None

    def _heard(self, chain: Chain) -> Ending | None:
        """The rules answered what the server heard: it goes on from here, unless they `call`."""
        decided = chain.error is not None or chain.skipped is not None or chain.routes
        if chain.again is not None and not decided:
            if self.run.step.step.loop is not None:
                return Ending(error=NOTHING_TO_CALL)
            return self._begin_again(chain, chain.again)
        won = winner(chain.routes) if chain.routes else None
        return Ending(
            error=chain.error,
            next=won,
            suppressed=suppressed(chain),
            skipped=chain.skipped,
            recovered=chain.recovered,
        )

    # --- Facts ---

    @property
    def _place(self) -> dict[str, Any]:
        """When and where a fact of this pass happened."""
        command = self.run.command
        return {
            "at": self._at,
            "step_run_id": command.step_run_id,
            "step": command.step,
            "iteration": self.frame.iteration,
        }

    def _say_started(
        self, program: TaskProgram, action_id: str, tries: Tries, page: int, *, sink: bool
    ) -> None:
        frame, task = self.frame, program.task
        started = SinkStarted if sink else TaskStarted
        fact = started(
            at=self._at,
            step_run_id=frame.command.step_run_id,
            step=frame.command.step,
            task=task.name,
            kind=task.kind,
            attempt=tries.attempt,
            action_id=action_id,
            iteration=frame.iteration,
            page=page,
        )
        if task.origin and not sink:
            fact = msgspec.structs.replace(fact, origin=task.origin)
        self._doing.append(Say(fact))

    def _report(self, program: TaskProgram, settled: Settled, *, sink: bool = False) -> None:
        """Report the outcome of a call, and the position behind it."""
        frame, directive = self.frame, settled.directive
        done = SinkProcessed if sink else TaskDone
        fact = done(
            at=self._at,
            step_run_id=frame.command.step_run_id,
            step=frame.command.step,
            task=program.task.name,
            outcome=settled.stored,
            attempt=settled.tries.attempt,
            action_id=settled.action_id,
            iteration=frame.iteration,
            page=settled.page,
            directive=directive.kind,
            log=settled.printed.text,
            told=settled.printed.told,
            progress=frame.progress() if self.top else None,
        )
        self._doing.append(Say(fact))
        if directive.unmatched:
            name, undefined = program.task.name, directive.undefined
            if undefined and self.run.has_warned(name):
                undefined = {}
            status = settled.outcome.status
            self._say(PolicyUnmatched(task=name, status=status, undefined=undefined, **self._place))
        if directive.kind == "retry":
            self._say_repeated(program, settled)
        if self.top:
            self._say_writes()
            if program.task.kind != NOOP:
                self._doing.append(Flush())

    def _say_writes(self, *, held: bool = False) -> None:
        frame = self.frame
        if frame.ctx_writes or frame.vars_writes:
            self._doing += [Say(fact, held) for fact in frame.written(self._at)]

    def _say_repeated(self, program: TaskProgram, settled: Settled) -> None:
        directive, task = settled.directive, program.task.name
        if directive.poll:
            looks = settled.tries.polls + 1
            self._say(PollIteration(task=task, number=looks, delay=directive.delay, **self._place))
            return
        action_id = "" if directive.new_page else settled.action_id
        self._say_retry(task, action_id, _next_tries(settled), directive.delay)

    def _say_retry(self, task: str, action_id: str, tries: Tries, delay: float) -> None:
        again: dict[str, Any] = {"attempt": tries.attempt, "page": tries.page, "delay": delay}
        self._say(RetryStarted(task=task, action_id=action_id, **again, **self._place))

    def _say_poll(
        self, program: TaskProgram, outcome: Outcome, directive: Directive | None
    ) -> None:
        """What became of a poll, unless it looks again or a rule repeats the call."""
        if directive is None or (directive.kind == "fail" and not outcome.is_ok):
            status = "error"
        elif directive.poll and directive.kind == "fail":
            status = "exhausted"
        elif outcome.is_ok and not directive.poll:
            status = "reached"
        else:
            return
        number = self.frame.tries.polls + 1
        task = program.task.name
        self._say(PollFinished(task=task, status=status, number=number, **self._place))

    def _say_processed(self, task: str, outcome: Outcome | None, tries: Tries) -> None:
        """A call that was tried more than once is settled for good."""
        if tries.attempt < 2 or outcome is None:
            return
        self._say(
            RetryProcessed(
                task=task,
                status=outcome.status,
                attempts=tries.attempt,
                action_id=outcome.meta.action_id,
                **self._place,
            )
        )

    def _say_misspelt(self, undefined: Undefined, on: StepEvent) -> None:
        """Once under a command is enough: the next iteration makes the same mistake."""
        name = on.name
        if undefined and not self.run.has_warned(name):
            self._say(CaseUnmatched(trigger_event=name, undefined=undefined, **self._place))


def _calling(call: Call) -> Steps[Any]:
    return (yield call)


def _gave_up(outcome: Outcome, directive: Directive) -> Outcome:
    """The last answer of a poll that has looked often enough: an error."""
    return msgspec.structs.replace(outcome, status="error", error=directive.error)


def _next_tries(settled: Settled) -> Tries:
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
