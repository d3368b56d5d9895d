"""What an execution takes over from another: a rerun from a step, and a fork at an event.

`Past` folds the log of the other one up to the event that is to happen again, and `seed` makes of
the state there one that a new execution can begin with: ids are its own, no worker has a command,
and each wait has as long to go as it had there.

The engine decides in turns, and an event may stand in the middle of one: a step has ended, and its
tokens are not placed yet. What calls and the world said up to the event is kept; what the engine
made of it in the same turn is decided anew by the execution that begins here, with its playbook and
its ctx. Turns before that one are kept whole, and so is one in which a run gave its worker back:
only the worker's last report says how that came about.

A worker reports what a run wrote with the position behind it, and what a call wrote right after the
call. Neither counts without the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import msgspec

from noetl.engine.evolve import DRY, TAKEN_OVER, discount_reason, evolve, put, release
from noetl.engine.loops import rest_of
from noetl.engine.turn import Turn
from noetl.model import refs
from noetl.model.events import (
    ApprovalReceived,
    BranchSuppressed,
    CaseEvaluated,
    CaseProcessed,
    CaseUnmatched,
    ChainRestarted,
    ChildFinished,
    CommandClosed,
    CtxPatched,
    Event,
    ExecutionForked,
    IterationDone,
    IterationFailed,
    LoopStarted,
    MessageReceived,
    PolicyUnmatched,
    PollIteration,
    Progress,
    ReportedFact,
    RetryProcessed,
    RetryStarted,
    SinkProcessed,
    SinkStarted,
    StepDone,
    StepFailed,
    StepPatched,
    StepScheduled,
    StepSkipped,
    StepWaiting,
    TaskDone,
    TaskStarted,
    TimerFired,
    TimerSet,
    TokenCreated,
    VarsSet,
)
from noetl.model.ids import ExecutionId, StepRunId, derive
from noetl.model.inputs import Seed
from noetl.model.outcome import TaskError
from noetl.model.state import (
    ExecutionState,
    LoopState,
    Partitions,
    Run,
    Signal,
    StepSummary,
    TimerState,
    Token,
)

AHEAD_MAX = 200
"""How many events after the chosen one are read to learn how a call that was made ended its run."""
WRITES = (CtxPatched, VarsSet, StepPatched)
CALLED = (TaskDone, SinkProcessed)
AFTERWARDS = (*WRITES, PolicyUnmatched, PollIteration, RetryStarted, RetryProcessed)
"""What workers say of a call that has ended."""
POSITIONS = (*CALLED, ChainRestarted, StepWaiting, StepDone, StepFailed)
"""They say how far a run without a loop has come, and what it wrote on the way counts with them."""


# --- Up to which event -------------------------------------------------------------------------


class Past:
    """The log of an execution, folded up to the event that is to happen again."""

    def __init__(self, again: tuple[StepRunId, frozenset[int]] | None) -> None:
        """`again`: of this run of a loop, these iterations have not been."""
        self.again = again
        self.state = ExecutionState()
        self.seq = 0
        """The last event that counts."""
        self.at = 0.0
        self.ended: tuple[StepDone | StepFailed, Run] | None = None
        """The run that ended with that event, while nothing that followed counts."""
        self.has_begun = False
        self._open: list[tuple[int, Event]] = []
        """What was decided since then."""
        self._last: Event | None = None
        self._writes: dict[tuple[StepRunId | None, int | None], list[Event]] = {}
        """What iterations and calls that have not ended wrote."""
        self._calling: set[StepRunId | None] = set()
        """Runs without a loop that make a call."""
        self._timers: set[str] = set()
        """What the iterations that have not been waited for."""

    def take(self, seq: int, fact: Event) -> None:
        """The next event before the one that is to happen again."""
        if self._is_undone(fact):
            return
        if not self._is_said(fact) and not _is_first(fact):
            self._open.append((seq, fact))
            return
        self._fold_open()
        self._fold_said(seq, fact)
        self.has_begun = self.has_begun or _is_first(fact) or isinstance(fact, ExecutionForked)

    def is_to_take(self, fact: Event) -> bool:
        """Whether this must be taken, too, for the execution to have begun at all."""
        return not self.has_begun or _is_first(fact)

    def _is_undone(self, fact: Event) -> bool:
        if self.again is None:
            return False
        if isinstance(fact, TimerFired):
            return fact.timer_id in self._timers
        run, iterations = self.again
        if getattr(fact, "step_run_id", None) != run:
            return False
        if getattr(fact, "iteration", None) not in iterations:
            return False
        if isinstance(fact, TimerSet):
            self._timers.add(fact.timer_id)
        return True

    def _fold(self, seq: int, fact: Event) -> None:
        self.ended = None
        if isinstance(fact, StepDone | StepFailed):
            self.ended = (fact, self.state.runs[fact.step_run_id])
        evolve(self.state, fact)
        if isinstance(fact, ExecutionForked) and self.again is not None:
            _forget(self.state, *self.again)
        self.seq, self.at, self._last = seq, _decided_at(fact), fact

    def _fold_said(self, seq: int, fact: Event) -> None:
        """Fold what was said. Writes wait for the end of the iteration or call that they belong to:
        one that does not end before the event is made again, with its writes.
        """
        run: StepRunId | None = getattr(fact, "step_run_id", None)
        iteration: int | None = getattr(fact, "iteration", None)
        if isinstance(fact, WRITES) and (iteration is not None or run in self._calling):
            self._writes.setdefault((run, iteration), []).append(fact)
            return
        # Calls of hooks and workbook entries are parts of the call that the run is at.
        moves = isinstance(fact, POSITIONS) and getattr(fact, "progress", fact) is not None
        if moves or isinstance(fact, IterationDone | IterationFailed):
            for write in self._writes.pop((run, iteration), ()):
                evolve(self.state, msgspec.structs.replace(write, report=0))
        self._fold(seq, fact)
        if iteration is not None:
            return
        if isinstance(fact, TaskStarted | SinkStarted):
            self._calling.add(run)
        elif moves and not isinstance(fact, StepWaiting):
            self._calling.discard(run)

    def _fold_open(self) -> None:
        for seq, fact in self._open:
            self._fold(seq, fact)
        self._open.clear()

    def stop(self, ahead: list[tuple[int, Event]]) -> None:
        """What comes now is to happen again: `ahead` are the events from there on, a few of them.

        Turns before that of the next event are kept whole. If the last call has ended its run, it
        has: otherwise it would have to be made again to know how it ends.
        """
        if not ahead:
            self._fold_open()
            self.ended = None
            return
        _, following = ahead[0]
        if self._is_said(following) and not isinstance(following, StepDone | StepFailed):
            self._fold_open()
        turn_at = _decided_at(following)
        while self._open and _decided_at(self._open[0][1]) != turn_at:
            self._fold(*self._open.pop(0))
        self._fold_beginning()
        if self.at != turn_at:
            self.ended = None
        run = self.state.runs.get(getattr(self._last, "step_run_id", None) or "")
        if run is not None and run.open_loop is None:
            # The end of a loop follows from that of its iterations.
            self._end_run(run.step_run_id, ahead)
        self._open.clear()

    def _fold_beginning(self) -> None:
        """A loop of which iterations are repeated has begun, also in the turn of the next event."""
        for place, (_, fact) in enumerate(self._open, 1):
            if isinstance(fact, LoopStarted) and self.again and fact.step_run_id == self.again[0]:
                for one in self._open[:place]:
                    self._fold(*one)
                del self._open[:place]
                return

    def _end_run(self, run: StepRunId, ahead: list[tuple[int, Event]]) -> None:
        """Keep what a worker said of the last call of this run in one breath with it: what the call
        wrote and, if nothing else was called, the end of the run or what it waits for.
        """
        for place, (_, fact) in enumerate(self._open, 1):
            if isinstance(fact, StepSkipped) and fact.step_run_id == run:
                # The run has ended. What followed from that is decided anew.
                del self._open[place:]
                self._fold_open()
                return
        closed = (one.at for _, one in self._open if _closes(one, run))
        turn_at, until = next(closed, None), 0
        for place, (_, fact) in enumerate(ahead, 1):
            if isinstance(fact, StepDone | StepFailed | StepSkipped) and fact.step_run_id == run:
                turn_at, until = fact.at, place
                break
            is_own = self._is_told(fact, run, (*AFTERWARDS, StepWaiting))
            if isinstance(fact, TimerFired) or (self._is_said(fact) and not is_own):
                break
            if _closes(fact, run):
                turn_at = fact.at
            if fact.at == turn_at:
                until = place
        if turn_at is not None:
            self._fold_open()
        elif run not in self._calling and self._is_told(self._last, run, (*AFTERWARDS, *CALLED)):
            until = len([*takewhile(lambda one: self._is_told(one[1], run, AFTERWARDS), ahead)])
        for one in ahead[:until]:
            self._fold_said(*one)

    def _is_told(self, fact: Any, run: StepRunId, kinds: tuple[type[Any], ...]) -> bool:
        """Whether a worker said it of this run, and it is one of these kinds."""
        return isinstance(fact, kinds) and fact.step_run_id == run and self._is_said(fact)

    def _is_said(self, fact: Event) -> bool:
        """Whether a call or the world said it: what else there is follows from such facts."""
        match fact:
            case CaseEvaluated() | CaseUnmatched():
                # Of all other events the engine decides.
                return fact.iteration is not None or fact.trigger_event.startswith("call.")
            case BranchSuppressed():
                return False
            case CtxPatched() | VarsSet() | StepPatched():
                return self._is_written_by_call(fact)
            case StepWaiting():
                return fact.listens is None
            case StepDone() | StepFailed() | ExecutionForked():
                return True
            case ChildFinished() | MessageReceived() | ApprovalReceived():
                return True
            case _:
                return isinstance(fact, ReportedFact)

    def _is_written_by_call(self, fact: CtxPatched | VarsSet | StepPatched) -> bool:
        """Else an arc wrote it, behind the end of its step, or a loop at its end, or rules that the
        engine follows, or the step behind rules that a worker followed."""
        if fact.report or getattr(fact, "actor", None) is not None:
            return True
        run = self.state.runs.get(fact.step_run_id or "")
        if run is None:
            return False
        if run.open_loop is not None and getattr(fact, "iteration", None) is None:
            return False
        return not any(
            isinstance(one, CaseEvaluated | CaseProcessed) and one.step_run_id == run.step_run_id
            for _, one in self._open
        )


def _closes(fact: Event, run: StepRunId) -> bool:
    """Whether a command of this run was closed. The same turn decided what came of it."""
    return isinstance(fact, CommandClosed) and fact.step_run_id == run


def _is_first(fact: Event) -> bool:
    """A token that an execution begins with."""
    return isinstance(fact, TokenCreated) and fact.source is None


def _decided_at(fact: Event) -> float:
    """When the turn began in which it was recorded, by the server's clock."""
    return (fact.recorded_at or fact.at) if isinstance(fact, ReportedFact) else fact.at


# --- What a new execution begins with ----------------------------------------------------------


def seed(
    past: Past,
    source: ExecutionId,
    execution_id: ExecutionId,
    *,
    now: float,
    iteration: int | None = None,
    ctx: dict[str, Any] | None = None,
) -> Seed:
    """The state that the past has come to, made ready for a new execution.

    `ctx` is written over it: dotted path → value.
    """

    def named(old: str) -> str:
        return derive(execution_id, old)

    state = past.state
    later = now - past.at
    timers = {
        named(timer_id): msgspec.structs.replace(
            timer,
            timer_id=named(timer_id),
            fires_at=timer.fires_at + later,
            step_run_id=timer.step_run_id and named(timer.step_run_id),
            token_id=timer.token_id and named(timer.token_id),
        )
        for timer_id, timer in state.timers.items()
        if timer.purpose != "child"
    }
    made = msgspec.structs.replace(
        state,
        ctx=dict(state.ctx),
        tokens={
            named(token_id): msgspec.structs.replace(
                token,
                token_id=named(token_id),
                timer=timer if timer in timers else None,
                ready_at=None if timer is None or timer not in timers else timers[timer].fires_at,
            )
            for token_id, token in state.tokens.items()
            for timer in [token.timer and named(token.timer)]
        },
        runs={
            named(run_id): _resting(run, named, timers, later) for run_id, run in state.runs.items()
        },
        timers=timers,
        steps=_steps(state, later),
        signals={one.signal_id: one for one in _signals(state, named)},
        undo=[
            msgspec.structs.replace(one, step_run_id=named(one.step_run_id)) for one in state.undo
        ],
        holders={},
        lost={},
    )
    for path, value in (ctx or {}).items():
        put(made.ctx, path, value)
    if past.again is not None:
        for number in sorted(past.again[1]):
            _hand_back(made.runs[named(past.again[0])], number)
    return Seed(
        source=source,
        state=made,
        seq=past.seq,
        iteration=iteration,
        ctx=ctx or {},
        ended=() if past.ended is None else (_ended(*past.ended, named),),
    )


def _steps(state: ExecutionState, later: float) -> dict[str, StepSummary]:
    """Steps that go on have run for as long as at that event; the time between does not count."""
    going_on = {run.step for run in state.runs.values()}
    return {
        name: msgspec.structs.replace(one, started_at=one.started_at + later)
        if name in going_on and one.started_at is not None
        else one
        for name, one in state.steps.items()
    }


def _ended(fact: StepDone | StepFailed, run: Run, named: Any) -> tuple[Any, Run]:
    renamed = named(run.step_run_id)
    return (
        msgspec.structs.replace(fact, step_run_id=renamed),
        msgspec.structs.replace(run, step_run_id=renamed, commands={}, children={}),
    )


def _resting(run: Run, named: Any, timers: dict[str, TimerState], later: float) -> Run:
    """A run without a worker: the work that was under way is handed out again."""
    step_run_id = named(run.step_run_id)
    wakes = {
        timer.iteration
        for timer in timers.values()
        if timer.purpose == "wake" and timer.step_run_id == step_run_id
    }
    return msgspec.structs.replace(
        run,
        step_run_id=step_run_id,
        started=False,
        commands={},
        alone={},
        paused={},
        reported={},
        children={},
        # A run that waits for a child calls it again: that child belongs to the other execution.
        # Nor does a run that listens, while the rules for what it has heard are followed.
        waiting=run.waiting
        and (None in wakes or (run.listens is not None and not run.children and not run.following)),
        timers={named(one): None for one in run.timers if named(one) in timers},
        compensates=run.compensates and named(run.compensates),
        progress=_progress(run.progress, named, later),
        loop=None if run.loop is None else _loop(run.loop, named, wakes, later),
    )


def _progress(progress: Progress | None, named: Any, later: float) -> Progress | None:
    """Calls that are yet to be made are calls of the new execution, by name, and have the time that
    they had left.
    """
    if progress is None:
        return None
    inner = progress.inner
    if inner is not None:
        passes = {number: _progress(one, named, later) for number, one in inner.passes.items()}
        until = None if inner.until is None else inner.until + later
        inner = msgspec.structs.replace(inner, passes=passes, until=until)
    cause = progress.cause and named(progress.cause)
    began = None if progress.poll_began is None else progress.poll_began + later
    return msgspec.structs.replace(progress, cause=cause, inner=inner, poll_began=began)


def _loop(loop: LoopState, named: Any, wakes: set[int | None], later: float) -> LoopState:
    """A loop without open chunks: iterations that have not ended are to be handed out again."""
    returned = [*loop.returned]
    for command_id, (_, stop) in loop.chunks.items():
        if (rest := rest_of(loop, command_id)) is not None:
            returned.append((rest, stop))
    return msgspec.structs.replace(
        loop,
        chunks={},
        widths={},
        frames={},
        claimed={},
        parts=_parts(loop),
        dry=loop.dry + sum(first == DRY for first in loop.frames.values()),
        resuming={},
        returned=sorted(returned),
        suspended={number: _progress(one, named, later) for number, one in loop.suspended.items()},
        woken=[number for number in loop.suspended if number not in wakes],
    )


def _parts(loop: LoopState) -> Partitions | None:
    """A partitioned loop of which no command has an iteration."""
    if loop.parts is None:
        return None
    parts = msgspec.structs.replace(
        loop.parts,
        keying="",
        ready=dict(loop.parts.ready),
        handed=dict(loop.parts.handed),
        chains={},
        left={},
    )
    for chains in loop.parts.chains.values():
        release(loop, parts, chains)
    return parts


def _hand_back(run: Run, iteration: int) -> None:
    """The iteration is to be done again."""
    loop = run.loop
    assert loop is not None
    loop.suspended.pop(iteration, None)
    if iteration in loop.woken:
        loop.woken.remove(iteration)
    if loop.parts is not None:
        loop.parts.ready[iteration] = None
        return
    covered = any(start <= iteration < stop for start, stop in loop.returned)
    if not covered and iteration < loop.given:
        loop.returned = sorted([*loop.returned, (iteration, iteration + 1)])


def _forget(state: ExecutionState, run_id: StepRunId, iterations: frozenset[int]) -> None:
    """Iterations of a loop that was taken over itself have not been. Their results that were put
    away are left to `take_back`."""
    run = state.runs.get(run_id)
    if run is None or run.loop is None:
        return
    loop, summary = run.loop, state.steps[run.step]
    errors = {one["index"]: one["error"] for one in loop.errors}
    for number in iterations:
        segment = number // loop.segment
        if number in loop.results:
            loop.weight -= refs.weight(loop.results.pop(number))
            loop.filled[segment] -= 1
        elif segment not in loop.segments:
            continue
        loop.patches.pop(number, None)
        if number in errors:
            loop.failed -= 1
            discount_reason(summary, errors.pop(number)["message"])
        else:
            loop.success -= 1
    loop.errors = [one for one in loop.errors if one["index"] in errors]
    first = min(errors, default=None)
    loop.first_error = None if first is None else (first, msgspec.convert(errors[first], TaskError))
    summary.loop_success, summary.loop_failed = loop.success, loop.failed


def take_back(
    loop: LoopState, segment: int, results: list[Any], without: frozenset[int], size: int
) -> None:
    """Have the results of a segment that was put away in the state again, less some of them."""
    del loop.segments[segment]
    loop.kept -= size
    first = segment * loop.segment
    loop.filled[segment] = 0
    for place, value in enumerate(results):
        if first + place not in without:
            loop.results[first + place] = value
            loop.weight += refs.weight(value)
            loop.filled[segment] += 1


def _signals(state: ExecutionState, named: Any) -> Iterator[Signal]:
    """A timer's signal has the timer's name; those of the world keep theirs."""
    for one in state.signals.values():
        name = one.signal_id if one.signal_id in state.heard else named(one.signal_id)
        due = [named(run_id) for run_id in one.due]
        yield msgspec.structs.replace(one, signal_id=name, due=due)


# --- The new execution -------------------------------------------------------------------------


_OF_RUNS = ("step_run_id", "step", "number", "args", "block", "priority", "past", "partition")
_OF_TOKENS = tuple(name for name in Token.__struct_fields__ if name not in ("timer", "order"))


def record(turn: Turn, given: Seed) -> None:
    """Say what the execution begins with: its open runs, everything else, its tokens."""
    state = given.state
    for run in state.runs.values():
        if run.compensates is None:
            turn.record(StepScheduled(at=turn.at, **{key: getattr(run, key) for key in _OF_RUNS}))
    taken = {name: getattr(state, name) for name in TAKEN_OVER}
    of_tokens = {one.timer for one in state.tokens.values() if one.timer is not None}
    taken["timers"] = {k: v for k, v in state.timers.items() if k not in of_tokens}
    turn.record(
        ExecutionForked(
            at=turn.at,
            source=given.source,
            seq=given.seq,
            iteration=given.iteration,
            ctx=given.ctx,
            state=msgspec.to_builtins(ExecutionState(**taken), str_keys=True),
        )
    )
    for token in sorted(state.tokens.values(), key=lambda one: one.order):
        turn.record(TokenCreated(at=turn.at, **{key: getattr(token, key) for key in _OF_TOKENS}))
        timer = state.timers.get(token.timer or "")
        if timer is not None:
            turn.record(
                TimerSet(
                    at=turn.at,
                    timer_id=timer.timer_id,
                    fires_at=timer.fires_at,
                    purpose="token",
                    token_id=token.token_id,
                )
            )
