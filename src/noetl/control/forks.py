"""Reruns and forks: which part of another execution's log a new one begins with.

Reads the log and the bodies that it refers to. What is made of them is `engine.forks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from noetl.control.history import facts, last_seq
from noetl.control.live import body_of
from noetl.control.records import events, no_execution
from noetl.engine import forks as past_of
from noetl.engine.evolve import evolve
from noetl.engine.forks import Past, take_back
from noetl.engine.program import Program
from noetl.errors import BadRequest, NotFound
from noetl.model import refs
from noetl.model.events import (
    Event,
    ExecutionForked,
    ExecutionRequested,
    IterationDone,
    IterationFailed,
    StepScheduled,
    TaskDone,
    TaskStarted,
    decode,
)
from noetl.model.ids import ExecutionId, StepRunId, derive
from noetl.model.inputs import Seed
from noetl.model.net import Values
from noetl.model.retrospect import ForkedCalls, ForkPlanDocument
from noetl.model.state import ExecutionState, Run, StepSummary, Token

if TYPE_CHECKING:
    from noetl.control.programs import Programs
    from noetl.store.bodies import Bodies
    from noetl.store.log import EventRow, Log

REUSED = (
    *("playbook.request.evaluated", "playbook.forked", "ctx.patched", "vars.set"),
    *("step.scheduled", "step.done", "step.failed", "step.skipped", "step.cancelled"),
    # Who may have reported a patch.
    *("command.issued", "command.requeued", "command.closed"),
)
"""The fold of these alone has the same ctx, vars and results as the fold of all events."""
ENDS = ("loop.done", "step.done", "step.failed", "step.cancelled")
FAILED = "loop.iteration.failed"
ITERATIONS_NAMED = 20
NEVER = 2**62
"""The number of an event that has not happened."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The fork that a caller asks for."""

    seq: int
    """The event that is to happen again, and everything after it."""
    iteration: int | None = None
    """Of the loop that the event belongs to, only this iteration is to happen again."""
    failed: bool = False
    """Of the loop that the event belongs to, only its failed iterations are to happen again."""
    version: int | None = None
    """Another version of the playbook goes on."""
    ctx: Values = {}
    """Values to write to ctx first: dotted path → value."""


class PlannedFork(msgspec.Struct, kw_only=True):
    """A fork that can be started."""

    execution_id: ExecutionId
    wish: Wish
    request: ExecutionRequested
    program: Program
    version: int | None
    past: Past
    document: ForkPlanDocument


async def request_of(log: Log, execution_id: ExecutionId) -> ExecutionRequested:
    """What an execution was started with: its first event."""
    rows = await log.events(execution_id, limit=1)
    if not rows:
        raise no_execution(execution_id)
    first = decode(rows[0].body)
    assert isinstance(first, ExecutionRequested)
    return first


# --- From a step on ----------------------------------------------------------------------------


async def before_step(
    log: Log, execution_id: ExecutionId, new: ExecutionId, seal: str, step: str
) -> Seed:
    """What a new execution begins with: the state when the step was last about to run, with one
    token for it. Its id is of the new execution, as are those of the calls that follow from it.
    """
    state = ExecutionState()
    found: ExecutionState | None = None
    async for row in events(log, execution_id, types=REUSED):
        fact = decode(row.body)
        if isinstance(fact, StepScheduled) and fact.step == step:
            token = Token(
                token_id=derive(new, fact.step_run_id),
                step=step,
                args=fact.args,
                event={"name": "workflow.started", "step": ""},
            )
            found = ExecutionState(
                seal=seal,
                ctx=dict(state.ctx),
                vars=dict(state.vars),
                results=dict(state.results),
                steps={name: StepSummary(status="done") for name in state.results},
                tokens={token.token_id: token},
            )
        evolve(state, fact)
        if isinstance(fact, ExecutionForked):
            # What happens to the loops that it goes on with is not among these.
            for run in state.runs.values():
                run.loop = None
    if found is None:
        raise NotFound(
            f'execution {execution_id} never reached step "{step}", so nothing can start'
            " from there. Choose one of: " + ", ".join(state.steps) + "."
        )
    return Seed(source=execution_id, state=found, entry=step)


# --- From an event on --------------------------------------------------------------------------


async def planned(
    log: Log, bodies: Bodies, programs: Programs, execution_id: ExecutionId, wish: Wish
) -> PlannedFork:
    """What a fork would begin with, and which calls it would reuse. Changes nothing.

    Raises NotFound and BadRequest.
    """
    request = await request_of(log, execution_id)
    program = old = await programs.by_digest(request.digest)
    version = request.version
    if wish.version is not None:
        program, entry = await programs.by_path(request.path, wish.version)
        version = entry.version
    again, until = None, wish.seq
    await last_seq(log, execution_id, wish.seq)
    if wish.failed and wish.iteration is not None:
        raise BadRequest("name one `iteration`, or say `failed` for all that failed; not both.")
    if wish.failed or wish.iteration is not None:
        again, until = await _loop_of(log, execution_id, wish.seq, wish.iteration)
    past = Past(again)
    calls = _Calls(again)
    ahead: list[tuple[int, Event]] = []
    async for seq, fact in facts(log, execution_id):
        calls.see(seq, fact)
        if seq < until or (not ahead and past.is_to_take(fact)):
            past.take(seq, fact)
        elif len(ahead) < past_of.AHEAD_MAX:
            ahead.append((seq, fact))
    past.stop(ahead)
    if not past.has_begun:
        raise BadRequest(
            f"execution {execution_id} was refused before its first step, so there is nothing to go"
            " on from. `noetl executions rerun` starts it again."
        )
    await _take_back(bodies, execution_id, past)
    if past.again is not None:
        step = program.steps.get(past.state.runs[past.again[0]].step)
        calls.expect([task.name for task in step.step.tasks] if step is not None else [], past)
    restarted = _fit(past, old, program, version)
    return PlannedFork(
        execution_id=execution_id,
        wish=wish,
        request=request,
        program=program,
        version=version,
        past=past,
        document=calls.document(execution_id, wish, past, restarted, version),
    )


def seed_of(plan: PlannedFork, new: ExecutionId, *, now: float) -> Seed:
    """What the new execution begins with."""
    return past_of.seed(
        plan.past,
        plan.execution_id,
        new,
        now=now,
        iteration=plan.wish.iteration,
        ctx=plan.wish.ctx,
    )


async def _loop_of(
    log: Log, execution_id: ExecutionId, seq: int, iteration: int | None
) -> tuple[tuple[StepRunId, frozenset[int]], int]:
    """The run of a loop that the event belongs to, with the iteration, or all that failed, and the
    event that ended the loop."""
    [row] = await log.events(execution_id, after=seq - 1, limit=1)
    total, failed = await _begun(log, execution_id, row) if row.step_run_id else (None, set())
    if total is None:
        raise BadRequest(
            f"event {seq} ({row.type}) belongs to no loop over elements, so no iteration of it can"
            f" be repeated. `noetl executions events {execution_id} --step STEP` lists the events"
            " of a loop; name one of these."
        )
    if iteration is not None and not 0 <= iteration < total:
        raise BadRequest(
            f"the loop of step {row.step!r} has the iterations 0 to {total - 1}, but no"
            f" {iteration}."
        )
    end = None
    async for one in events(log, execution_id, types=(*ENDS, FAILED), step=row.step):
        if one.step_run_id != row.step_run_id:
            continue
        if one.type != FAILED:
            end = one.seq
            break
        failed.add(getattr(decode(one.body), "iteration", -1))
    if iteration is None and not failed:
        raise BadRequest(f"no iteration of the loop of step {row.step!r} failed.")
    if end is None:
        end = await last_seq(log, execution_id) + 1
    return (row.step_run_id, frozenset(failed if iteration is None else {iteration})), end


async def _begun(log: Log, execution_id: ExecutionId, row: EventRow) -> tuple[int | None, set[int]]:
    """How many iterations the loop of an event has, and which had failed before this execution
    took it over from another; None if there is no loop, or one that does not know its end.
    """
    async for one in events(log, execution_id, types=("loop.started",), step=row.step):
        if one.step_run_id == row.step_run_id:
            return getattr(decode(one.body), "total", None), set()
    for one in await log.events(execution_id, limit=1, types=("playbook.forked",)):
        fork, state = decode(one.body), ExecutionState()
        evolve(state, fork)
        run = state.runs.get(row.step_run_id)
        if run is not None and run.loop is not None:
            failed = {error["index"] for error in run.loop.errors}
            if run.loop.failed > len(failed):
                source = getattr(fork, "source", "")
                raise BadRequest(
                    f"{run.loop.failed} iterations had failed before execution {execution_id} took"
                    f" the loop over, too many to know which. Fork {source}, where they failed."
                )
            return run.loop.total, failed
    return None, set()


async def _take_back(bodies: Bodies, execution_id: ExecutionId, past: Past) -> None:
    """The results beside iterations that are repeated must not be put away yet."""
    if past.again is None:
        return
    run_id, iterations = past.again
    run = past.state.runs.get(run_id)
    if run is None or run.loop is None:
        raise BadRequest("the loop had not begun at that event; name a later one.")
    for segment in sorted({number // run.loop.segment for number in iterations}):
        if segment in run.loop.segments:
            body = await _segment(bodies, execution_id, run, segment)
            take_back(run.loop, segment, refs.decode(body), iterations, len(body))


async def _segment(bodies: Bodies, execution_id: ExecutionId, run: Run, segment: int) -> bytes:
    key = refs.segment_key(derive(run.step_run_id, "results"), segment)
    return await body_of(bodies, execution_id, key)


async def copy_segments(bodies: Bodies, plan: PlannedFork, seed: Seed, new: ExecutionId) -> None:
    """Results of loops under way that were put away go with the new execution.

    They are kept before it begins; if it does not, nothing refers to them.
    """
    for run in plan.past.state.runs.values():
        renamed = seed.state.runs.get(derive(new, run.step_run_id))
        if run.loop is None or renamed is None:
            continue
        for segment in run.loop.segments:
            body = await _segment(bodies, plan.execution_id, run, segment)
            key = refs.segment_key(derive(renamed.step_run_id, "results"), segment)
            await bodies.put(new, key, body)


def _fit(past: Past, old: Program, new: Program, version: int | None) -> set[StepRunId]:
    """Make the past fit another version of the playbook; the runs that begin anew in it.

    A run whose tasks have changed cannot go on in the middle. Raises BadRequest if a step is gone.
    """
    state = past.state
    standing = {token.step for token in state.tokens.values()}
    standing |= {run.step for run in state.runs.values()}
    if past.ended is not None:
        standing.add(past.ended[0].step)
    gone = sorted(standing - new.steps.keys())
    if gone:
        raise BadRequest(
            f"version {version} has no step {', '.join(gone)}, where the execution stood at that"
            " event. Choose an event before it, or a version that has it."
        )
    if old is new:
        return set()
    restarted: set[StepRunId] = set()
    for run in list(state.runs.values()):
        was, now = old.steps.get(run.step), new.steps[run.step]
        if was is not None and _goes_on(run, was.step, now.step):
            continue
        restarted.add(run.step_run_id)
        for timer_id in run.timers:
            state.timers.pop(timer_id, None)
        del state.runs[run.step_run_id]
        args = {name: value for name, value in run.args.items() if name != "_tokens"}
        token_id = derive(run.step_run_id, "anew")
        state.tokens[token_id] = Token(
            token_id=token_id, step=run.step, args=args, priority=run.priority, past=run.past
        )
    return restarted


def _goes_on(run: Run, was: Any, now: Any) -> bool:
    if run.loop is not None:
        return now.loop is not None and (was.loop.iterator == now.loop.iterator)
    if run.progress is None or was == now:
        return bool(now.tasks) == bool(was.tasks) and now.loop is None
    names = [task.name for task in was.tasks], [task.name for task in now.tasks]
    return names[0] == names[1] and now.loop is None


# --- Which calls -------------------------------------------------------------------------------


class _Calls:
    """Every call of an execution, to tell those that are reused from those that happen again."""

    def __init__(self, again: tuple[StepRunId, frozenset[int]] | None) -> None:
        self._again = frozenset() if again is None else {(again[0], one) for one in again[1]}
        self._done: dict[tuple[str, str], list[tuple[int, StepRunId, int | None]]] = {}
        self._open: dict[tuple[str, str, StepRunId, int | None, str], int] = {}
        self._ended: dict[tuple[StepRunId, int], int] = {}

    def see(self, seq: int, fact: Event) -> None:
        match fact:
            case TaskStarted():
                call = (fact.step, fact.task, fact.step_run_id, fact.iteration, fact.action_id)
                self._open[call] = seq
            case TaskDone():
                call = (fact.step, fact.task, fact.step_run_id, fact.iteration, fact.action_id)
                self._open.pop(call, None)
                found = self._done.setdefault((fact.step, fact.task), [])
                found.append((seq, fact.step_run_id, fact.iteration))
            case IterationDone() | IterationFailed():
                self._ended[fact.step_run_id, fact.iteration] = seq
            case _:
                pass

    def expect(self, tasks: list[str], past: Past) -> None:
        """Iterations that happen again and whose calls another execution has recorded, from which
        this one took the loop over: they will make the calls of their step."""
        run_id, iterations = past.again or ("", frozenset())
        step = past.state.runs[run_id].step
        made = {
            number for calls in self._done.values() for _, run, number in calls if run == run_id
        }
        for number in sorted(iterations - made):
            for task in tasks:
                self._done.setdefault((step, task), []).append((NEVER, run_id, number))

    def document(
        self,
        execution_id: ExecutionId,
        wish: Wish,
        past: Past,
        restarted: set[StepRunId],
        version: int | None,
    ) -> ForkPlanDocument:
        for step, task, run, iteration, _ in self._open:
            # It was under way, and its end is not known.
            self._done.setdefault((step, task), []).append((NEVER, run, iteration))
        calls = []
        for (step, task), made in self._done.items():
            fates = [self._is_reused(one, past, restarted) for one in made]
            repeated = sorted(
                {
                    iteration
                    for (_, _, iteration), reused in zip(made, fates, strict=True)
                    if iteration is not None and not reused
                }
            )
            calls.append(
                ForkedCalls(
                    step=step,
                    task=task,
                    reused=sum(fates),
                    again=len(fates) - sum(fates),
                    iterations=repeated[:ITERATIONS_NAMED],
                )
            )
        state = past.state
        goes_on = [token.step for token in state.tokens.values()]
        goes_on += [run.step for run in state.runs.values()]
        goes_on += [past.ended[0].step] if past.ended is not None else []
        return ForkPlanDocument(
            source=execution_id,
            seq=wish.seq,
            reused_upto=past.seq,
            iteration=wish.iteration,
            version=version,
            reused=sum(one.reused for one in calls),
            again=sum(one.again for one in calls),
            calls=calls,
            goes_on=sorted(set(goes_on)),
        )

    def _is_reused(
        self, call: tuple[int, StepRunId, int | None], past: Past, restarted: set[StepRunId]
    ) -> bool:
        seq, run, iteration = call
        if seq > past.seq or run in restarted or (run, iteration) in self._again:
            return False
        # Of an iteration that had not ended, every call is made again.
        is_open = run in past.state.runs and iteration is not None
        return not is_open or self._ended.get((run, iteration or 0), NEVER) <= past.seq
