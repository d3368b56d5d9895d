"""Why an execution is not over: who owns it, and until when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from noetl.control import documents
from noetl.control.documents import moment
from noetl.control.records import events
from noetl.engine.concurrency import described
from noetl.model.answers import WaitDocument
from noetl.model.commands import lacking, place_of, pool_of, serves
from noetl.model.events import TaskDone, TaskWaiting, decode
from noetl.model.ids import CommandId, ExecutionId, StepRunId
from noetl.model.state import ExecutionState, Run, Status, TimerState
from noetl.store.base import Runtime, Store
from noetl.store.limits import SlotUse
from noetl.store.log import Log
from noetl.store.queue import OpenCommand

SAID_MAX = 300
"""Characters of an error's message that are shown."""
LIVE_SECONDS = 60.0
"""A worker that was silent for longer is gone."""

HOLDERS_SHOWN = 20


class Waits(NamedTuple):
    """An execution at one moment."""

    status: Status
    reasons: list[WaitDocument]
    """What it waits for, most immediate first; nothing if it has ended."""


class Workers(NamedTuple):
    """Who may take commands."""

    offers: list[str]
    """Pools and labels of those that were heard of lately."""
    known: list[Runtime]
    queues: dict[str, tuple[int, int]]
    """Per queue, how many commands wait and how many are leased. A worker inside of a command such
    as `noetl run` is known only by its leases.
    """


async def waits_of(
    store: Store,
    execution_id: ExecutionId,
    state_now: Callable[[], Awaitable[ExecutionState]],
    now: float,
) -> Waits:
    """What an execution waits for."""
    state = await state_now()
    slots = []
    if state.queued is not None:
        slots = await store.limits.slot_uses(list(state.slots))
    commands = {
        one.command.command_id: one for one in await store.queue.open_commands(execution_id)
    }
    workers = Workers([], [], {})
    if any(one.worker_id is None for one in commands.values()):
        known = await store.runtimes.all(kind="worker")
        live = [row.pool for row in known if row.seen_at >= now - LIVE_SECONDS]
        workers = Workers(live, known, await store.queue.sizes())
    calls = await _calls_waiting(store.log, execution_id)
    tries = await _failed_tries(store.log, execution_id, state)
    # It may have moved on meanwhile. Status and reasons are of the moment of this answer.
    state = await state_now()
    found: list[WaitDocument] = []
    if state.is_finished:
        return Waits(state.status, found)
    if state.queued is not None:
        found += [_of_limit(name, state, slots) for name in state.slots]
    if state.status == "PAUSED":
        text = "it is paused; `resume` lets it go on"
        found.append(WaitDocument(waits_for="resume", text=text))
    for run in state.runs.values():
        for command_id in run.commands:
            found.append(_of_command(run.step, command_id, commands.get(command_id), workers))
        for child in run.children:
            text = f'step "{run.step}" waits for the end of execution {child}'
            found.append(WaitDocument(waits_for="child", text=text, step=run.step, owner=child))
        if run.listens is not None:
            found.append(_of_listener(run, state))
        found += [_of_call(call) for call in calls if call.step_run_id == run.step_run_id]
    for timer in state.timers.values():
        found.append(_of_timer(timer, state, tries))
    kept = [signal.name for signal in state.signals.values() if not signal.taken]
    if kept:
        names = ", ".join(sorted(set(kept)))
        text = f"{len(kept)} kept events ({names}) wait for a step that takes them"
        found.append(WaitDocument(waits_for="listener", text=text, events=kept))
    for token in state.tokens.values():
        if token.ready_at is None:
            text = f'a token waits at step "{token.step}" until no other can arrive'
            if token.partition:
                text = f'a token waits at step "{token.step}" for one of the same partition'
            found.append(WaitDocument(waits_for="other tokens", text=text, step=token.step))
    return Waits(state.status, found)


def _of_command(
    step: str,
    command_id: CommandId,
    known: OpenCommand | None,
    workers: Workers,
) -> WaitDocument:
    """A command waits for a worker that takes it, or is leased to one. It may just have ended."""
    if known is not None and (worker := known.worker_id) is not None:
        until = moment(known.expires_at)
        return WaitDocument(
            waits_for="lease",
            text=f'step "{step}" runs on {worker}, whose lease holds until {until}',
            step=step,
            command_id=command_id,
            owner=worker,
            until=until,
        )
    queue = known.command.pool if known is not None else ""
    text = f'step "{step}" waits for {_worker(queue, workers)}'
    return WaitDocument(waits_for="worker", text=text, step=step, command_id=command_id)


def _worker(queue: str, workers: Workers) -> str:
    """The worker that a command waits for, and what keeps those that there are from it."""
    pool, asked = place_of(queue)
    if any(serves(offer, queue) for offer in workers.offers):
        return "a free worker"
    if not asked:
        return _any_worker(pool, workers)
    here = [offer for offer in workers.offers if pool_of(offer) == pool]
    missing = ", ".join(sorted(lacking(queue, here)))
    return (
        f"a worker with {', '.join(sorted(asked))}: no worker of pool {pool} has {missing}."
        f" `noetl worker start --pool {pool} --label …` starts one"
    )


def _any_worker(pool: str, workers: Workers) -> str:
    """A worker of a pool in which none has been heard of lately, and what to do about that."""
    if not pool or any(
        leased for queue, (_, leased) in workers.queues.items() if pool_of(queue) == pool
    ):
        return "a free worker"
    silent = [row for row in workers.known if pool_of(row.pool) == pool]
    last = max(silent, key=lambda row: row.seen_at, default=None)
    if last is None:
        return (
            f"a worker: none of pool {pool} is there. `noetl worker start --pool {pool}` starts"
            " one; if one runs, its log says why the server does not know it"
        )
    return (
        f"a worker: none of pool {pool} has asked since {moment(last.seen_at)}. The log of"
        f" {last.name} says why, e.g. that its token is refused; `noetl worker start --pool {pool}`"
        " starts another"
    )


def _of_limit(name: str, state: ExecutionState, slots: list[SlotUse]) -> WaitDocument:
    holders = [one for one in slots if one.name == name and one.held]
    waiting = sum(1 for one in slots if one.name == name and not one.held)
    shown = ", ".join(f"{one.execution_id} ({one.path})" for one in holders[:HOLDERS_SHOWN])
    capacity = state.slots[name]
    if len(holders) < capacity:
        text = f"it starts as soon as another limit has room: {described(name)} has"
    else:
        text = (
            f"it waits for its turn: {described(name)} allows {capacity} at a time, and that is"
            f" {shown}; {waiting} wait"
        )
    assert state.queued is not None
    return WaitDocument(
        waits_for="slot",
        text=text,
        what=name,
        since=moment(state.queued.since),
        holders=[one.execution_id for one in holders],
    )


async def _calls_waiting(log: Log, execution_id: ExecutionId) -> list[TaskWaiting]:
    """Calls that have waited for a while for a place on their worker or an answer, and do so still.

    A run that has lost its worker does not wait there any more.
    """
    waits: dict[tuple[str, int | None, int], TaskWaiting] = {}
    async for row in events(log, execution_id, types=("task.waiting", "command.lost")):
        fact = decode(row.body)
        if not isinstance(fact, TaskWaiting):
            gone = [call for call, one in waits.items() if one.step_run_id == row.step_run_id]
            for call in gone:
                del waits[call]
            continue
        call = (fact.action_id, fact.iteration, fact.attempt)
        if fact.over:
            waits.pop(call, None)
        else:
            waits[call] = fact
    return list(waits.values())


def _of_call(call: TaskWaiting) -> WaitDocument:
    iteration = "" if call.iteration is None else f" (iteration {call.iteration})"
    text = f'task "{call.task}" of step "{call.step}"{iteration} waits for {call.what}'
    text += f" since {moment(call.at)}"
    return documents.of(WaitDocument, call, waits_for="place", text=text, since=call.at)


def _of_listener(run: Run, state: ExecutionState) -> WaitDocument:
    """The events that a step waits for, and until when."""
    shown = documents.listening(run, state)
    asked = ", ".join(field.name for field in shown.form)
    who = f" of somebody with the role {shown.role}" if shown.role else ""
    asks = f"; it asks for {asked}{who}" if asked else ""
    text = f'step "{run.step}" waits for {documents.event_words(shown.events)}{asks}'
    return documents.of(WaitDocument, shown, waits_for="event", text=text, step=run.step)


async def _failed_tries(
    log: Log, execution_id: ExecutionId, state: ExecutionState
) -> dict[StepRunId, TaskDone]:
    """Of runs that wait to try a task again, the try that failed last."""
    found: dict[StepRunId, TaskDone] = {}
    for timer in list(state.timers.values()):
        run = state.runs.get(timer.step_run_id or "")
        if timer.purpose != "wake" or run is None or run.loop is not None:
            continue
        last = None
        async for row in events(log, execution_id, types=("task.done",), step=run.step):
            if row.step_run_id == run.step_run_id:
                last = row
        fact = decode(last.body) if last is not None else None
        if isinstance(fact, TaskDone) and fact.directive == "retry" and fact.outcome.error:
            found[run.step_run_id] = fact
    return found


def _of_timer(
    timer: TimerState, state: ExecutionState, tries: dict[StepRunId, TaskDone]
) -> WaitDocument:
    run = state.runs.get(timer.step_run_id or "")
    token = state.tokens.get(timer.token_id or "")
    step = run.step if run is not None else token.step if token is not None else ""
    purpose = {
        "listener": f'its timer "{timer.name}" fires',
        "token": "a delayed token becomes ready",
        "wake": "it goes on after a wait",
        "timeout": "it would time out",
        "deadline": "its deadline passes",
    }.get(timer.purpose, timer.purpose)
    failed = tries.get(timer.step_run_id or "") if timer.purpose == "wake" else None
    if failed is not None and (error := failed.outcome.error) is not None:
        said = error.message if len(error.message) <= SAID_MAX else f"{error.message[:SAID_MAX]}…"
        purpose = f'task "{failed.task}" failed in attempt {failed.attempt} ({said}); the next one'
        purpose += " begins"
    return WaitDocument(
        waits_for="timer",
        text=f'step "{step}": {purpose} at {moment(timer.fires_at)}',
        step=step,
        until=moment(timer.fires_at),
    )
