"""What the orchestrator works on: things that happened, gathered into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from noetl.control.dispatch import Waiter
from noetl.control.live import Live
from noetl.engine import advance
from noetl.engine.turn import CancelChild, Decision, EndLoop, TellParent
from noetl.errors import Finished, LeaseLost, NoetlError, SignalRefused
from noetl.model.commands import Lease, Report
from noetl.model.events import ChildFinished
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.net import Values
from noetl.model.rule_events import StepPatched
from noetl.model.signals import ApprovalReceived, MessageReceived
from noetl.store.base import Write

Decide = Callable[[Live], Decision]


class Job:
    """Something that happened to one execution, and who waits for it to be stored."""

    __slots__ = (
        "changed",
        "clears",
        "closes",
        "coming",
        "create",
        "decide",
        "execution_id",
        "future",
        "has_moved",
        "has_voice",
        "is_own",
        "names",
        "speaks_for",
        "waiter",
    )

    def __init__(
        self,
        execution_id: ExecutionId,
        decide: Decide,
        *,
        create: Callable[[], Live] | None = None,
        clears: str | None = None,
        closes: CommandId | None = None,
        waiter: Waiter | None = None,
        coming: tuple[Any, ...] = (),
        names: Values | None = None,
        speaks_for: CommandId | None = None,
    ) -> None:
        self.coming = coming
        """Results that it brings."""
        self.names = names or {}
        """Names of the step run that it brings."""
        self.execution_id = execution_id
        self.decide = decide
        self.create = create
        self.clears = clears
        """A timer that is due. If the execution does not wait for it, it is removed."""
        self.closes = closes
        self.waiter = waiter
        self.speaks_for = speaks_for
        """It counts only while this command is open."""
        self.has_voice = True
        self.changed = False
        """It made something happen."""
        self.has_moved = False
        """It was decided on a state that was no longer the stored one."""
        self.is_own = False
        """Of our own making: if its cause is decided again, it is made again."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Batch:
    """What one round decides."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.writes: dict[ExecutionId, Write] = {}
        self.todo = list(jobs)
        """Grows by what follows from what is decided."""
        self.jobs: list[Job] = []
        """Those that were decided."""
        self.closed: dict[CommandId, tuple[ExecutionId, bool]] = {}
        """Commands that are over, and whether their worker has to be told."""
        self._ties: dict[ExecutionId, set[ExecutionId]] = {}

    def follow(self, cause: ExecutionId, job: Job) -> None:
        """What one decision makes happen to another execution: both are kept, or neither."""
        job.is_own = True
        self.todo.append(job)
        if job.execution_id != cause:
            both = self._ties.get(cause, {cause}) | self._ties.get(
                job.execution_id, {job.execution_id}
            )
            for execution_id in both:
                self._ties[execution_id] = both

    @property
    def tied(self) -> list[set[ExecutionId]]:
        """Executions that are kept together."""
        if not self._ties:
            return []
        return list({id(ties): ties for ties in self._ties.values()}.values())


def fail(job: Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)
        # A job of our own making (the end of a child, say) has nobody who would look.
        job.future.exception()


def report_job(report: Report, now: float, waiter: Waiter | None) -> Job:
    """What a worker says; `waiter`: that it wants more to do."""

    def decide(live: Live) -> Decision:
        return advance.reported(live.program, live.state, report.execution_id, now, report)

    ending = report.ending
    return Job(
        report.execution_id,
        decide,
        closes=report.command_id if report.closes or ending is not None else None,
        waiter=waiter,
        coming=() if ending is None else (ending.result, *ending.tasks.values()),
        names=_names_left(report) if ending is not None else None,
        speaks_for=report.command_id,
    )


def refused_job(report: Report, now: float) -> Job:
    """What somebody says who is known not to hold the lease."""

    def decide(live: Live) -> Decision:
        return advance.refused(live.program, live.state, report.execution_id, now, report)

    return Job(report.execution_id, decide)


def lease_lost(report: Report) -> LeaseLost:
    return LeaseLost(
        f"the lease on command {report.command_id} lapsed, or the command is over."
        " Drop this result; whoever goes on with the work will report."
    )


def _names_left(report: Report) -> Values:
    """The step run's own names as the report leaves them."""
    names: Values = {}
    for event in report.events:
        if type(event) is StepPatched:
            names |= event.local
        elif (progress := getattr(event, "progress", None)) is not None:
            names |= progress.local
    return names


def leased_job(lease: Lease, worker_id: str, now: float) -> Job:
    """A worker has taken a command."""
    command = lease.command

    def decide(live: Live) -> Decision:
        return advance.leased(
            live.program, live.state, command.execution_id, now, command.step_run_id, worker_id
        )

    return Job(command.execution_id, decide)


def lapse_job(
    execution_id: ExecutionId,
    command_id: CommandId,
    worker: str,
    now: float,
    *,
    given_back: bool,
    alone: bool = False,
) -> Job:
    """Nobody works on a command any more."""

    def decide(live: Live) -> Decision:
        state = live.state
        return advance.lapsed(
            live.program,
            state,
            execution_id,
            now,
            command_id,
            worker,
            given_back=given_back,
            alone=alone,
        )

    return Job(execution_id, decide, closes=command_id)


def timer_job(execution_id: ExecutionId, timer_id: str, now: float) -> Job:
    """A timer's moment has come."""

    def decide(live: Live) -> Decision:
        return advance.fired(live.program, live.state, execution_id, now, timer_id)

    return Job(execution_id, decide, clears=timer_id)


def parent_job(child: ExecutionId, effect: TellParent, now: float) -> Job:
    parent = effect.parent
    fact = ChildFinished(
        at=now,
        step_run_id=parent.step_run_id,
        child=child,
        status=effect.status,
        result=effect.result,
        error=effect.error,
        iteration=parent.iteration,
    )

    def decide(live: Live) -> Decision:
        return advance.child_ended(live.program, live.state, parent.execution_id, fact)

    return Job(parent.execution_id, decide, coming=(effect.result,))


def following(
    execution_id: ExecutionId, effect: EndLoop | TellParent | CancelChild, now: float
) -> Job:
    """What an effect makes happen next, in the same batch."""
    match effect:
        case EndLoop():
            return _loop_job(execution_id, effect, now)
        case TellParent():
            return parent_job(execution_id, effect, now)
        case CancelChild():
            return _cancel_job(effect, now)


def _loop_job(execution_id: ExecutionId, effect: EndLoop, now: float) -> Job:
    """The rest of a decision: what follows from a loop's end may read all its results."""

    def decide(live: Live) -> Decision:
        return advance.loop_ended(live.program, live.state, execution_id, now, effect.step_run_id)

    return Job(execution_id, decide, coming=(effect.result,))


def _cancel_job(effect: CancelChild, now: float) -> Job:
    def decide(live: Live) -> Decision:
        return advance.cancel(live.program, live.state, effect.child, now, effect.reason)

    return Job(effect.child, decide)


class Hearing:
    """What became of a signal: refused for a reason, known before, or taken in."""

    __slots__ = ("refusal", "was_known")

    def __init__(self) -> None:
        self.refusal: NoetlError | None = None
        self.was_known = False


def signal_job(
    execution_id: ExecutionId, signal: MessageReceived | ApprovalReceived, hearing: Hearing
) -> Job:
    """Something the world said. It may be decided more than once; the last time counts."""

    def decide(live: Live) -> Decision:
        hearing.refusal, hearing.was_known = None, signal.signal_id in live.state.heard
        try:
            return advance.signalled(live.program, live.state, execution_id, signal)
        except (SignalRefused, Finished) as error:
            hearing.refusal = error
            return Decision((), ())

    return Job(execution_id, decide)


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The workload: the playbook's defaults with the request's values deep-merged over them."""
    result = dict(defaults)
    for key, value in given.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
