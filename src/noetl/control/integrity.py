"""Whether what stands beside the log is what follows from it, for `noetl db check`.

The log is the truth. The row of an execution, its timers, its open commands, its variables and its
slots are written with it in one transaction, so each of them must be what folding the log gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from noetl.control.live import fold, summary_of
from noetl.control.records import matching
from noetl.errors import Corrupted
from noetl.model import refs
from noetl.model.events import Event, ExecutionRequested
from noetl.model.ids import ExecutionId
from noetl.model.net import Values
from noetl.model.state import ExecutionState
from noetl.store.base import Store
from noetl.store.limits import HOLDING, Slot, SlotRow
from noetl.store.records import Summary

READS_MAX = 5
TIMERS_MAX = 10_000_000


async def problems(store: Store) -> list[str]:
    """Everything that is not what was written, one sentence each; reads all there is."""
    found = await store.check()
    digests: set[str] = set()
    known: set[ExecutionId] = set()
    async for row in matching(store.records):
        known.add(row.execution_id)
        found += await _of_execution(store, row.execution_id, digests)
    for digest in sorted(digests):
        try:
            is_there = await store.catalog.net(digest) is not None
        except Corrupted:
            continue  # The store has named it.
        if not is_there:
            found.append(f"The compiled playbook {digest[:12]} of some executions is not there")
    timers = await store.queue.due_timers(now=math.inf, limit=TIMERS_MAX)
    owners = {
        "timer": {execution_id for execution_id, _, _ in timers},
        "slot of a limit": set(await store.limits.bounded()),
    }
    for what, named in owners.items():
        for execution_id in sorted(named - known):
            if await store.records.summary(execution_id) is None:
                found.append(f"A {what} belongs to execution {execution_id}, which is not there")
    return found


async def _of_execution(store: Store, execution_id: ExecutionId, digests: set[str]) -> list[str]:
    """The problems of one execution. A server may be at work on it: only what was read at one
    moment is compared."""
    for _ in range(READS_MAX):
        before = await store.log.heads([execution_id])
        try:
            loaded = await store.log.load(execution_id)
            commands = await store.queue.open_commands(execution_id)
        except Corrupted:
            return []  # The store has named it.
        stored = await store.records.summary(execution_id)
        timers = await store.queue.timers(execution_id)
        variables = await store.log.variables(execution_id)
        slots = await store.limits.slots_of(execution_id)
        if await store.log.heads([execution_id]) != before or loaded is None or stored is None:
            continue
        state = fold(loaded)
        digests.add(state.digest)
        # The first event has the key; behind a snapshot it is not read.
        key = stored.idempotency_key if loaded.snapshot is not None else _first_key(loaded.events)
        if state.vars.keys() - variables.keys() and await _is_fork(store, execution_id):
            # Earlier versions wrote no rows for the variables that a fork or rerun took over.
            expected = {name: state.vars[name] for name in state.vars if name in variables}
        else:
            expected = state.vars
        open_commands = {command.command_id for command, _, _ in commands}
        found = [
            *_row_problems(stored, summary_of(execution_id, state, key)),
            *_timer_problems(timers, state),
            *_differing("command", open_commands, set(state.holders)),
            *_variable_problems(variables, expected),
            *_slot_problems(slots, state, stored.requested_at),
        ]
        return [f"Of execution {execution_id}, {problem}" for problem in found]
    return []


def _first_key(events: list[bytes]) -> str | None:
    """The idempotency key in the first event of a log."""
    first = msgspec.json.decode(events[0], type=list[Event])[0] if events else None
    return first.key if isinstance(first, ExecutionRequested) else None


LATER = ("failed_step", "waits")
"""Columns that rows of earlier versions do not have: NULL until they are written again."""


def _row_problems(stored: Summary, folded: Summary) -> Iterator[str]:
    """Columns of the row that lists show, against what the log says."""
    for name in Summary.__struct_fields__:
        has, says = _plain(getattr(stored, name)), _plain(getattr(folded, name))
        if has is None and name in LATER:
            continue
        if name == "waits" and (has, says) == ("", "timer"):
            continue  # Earlier versions told only of what comes from outside.
        if has != says:
            yield f"the column {name} says {has!r} and the log {says!r}"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return sorted(map(_plain, value))  # Earlier versions had steps in another order.
    # A text of PostgreSQL cannot hold NUL, and the row has something else in its place.
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _timer_problems(stored: dict[str, float], state: ExecutionState) -> Iterator[str]:
    yield from _differing("timer", set(stored), set(state.timers))
    for timer_id in sorted(stored.keys() & state.timers.keys()):
        if stored[timer_id] != state.timers[timer_id].fires_at:
            yield f"timer {timer_id} fires at another time than the log says"


def _slot_problems(
    stored: list[SlotRow], state: ExecutionState, requested_at: float
) -> Iterator[str]:
    """Limits that it has while it waits or runs."""
    expected = {} if state.is_finished else state.slots
    found = {row.slot.name: row for row in stored}
    yield from _differing("the slot of", set(found), set(expected))
    for name in sorted(found.keys() & expected.keys()):
        slot = Slot(name, expected[name], state.replaces, state.priority)
        if found[name] != SlotRow(slot, state.status in HOLDING, requested_at):
            yield f"the slot of {name} is not what the log says"


async def _is_fork(store: Store, execution_id: ExecutionId) -> bool:
    return bool(await store.log.events(execution_id, types=("playbook.forked",), limit=1))


def _variable_problems(stored: dict[str, bytes], logged: Values) -> Iterator[str]:
    yield from _differing("variable", set(stored), set(logged))
    for name in sorted(stored.keys() & logged.keys()):
        if msgspec.json.decode(stored[name]) != msgspec.json.decode(refs.encode(logged[name])):
            yield f"variable {name} has another value than the log says"


def _differing(what: str, stored: set[str], logged: set[str]) -> Iterator[str]:
    for one in sorted(logged - stored):
        yield f"{what} {one} is missing"
    for one in sorted(stored - logged):
        yield f"{what} {one} is not in the log"
