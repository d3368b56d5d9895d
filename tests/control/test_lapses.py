"""Lost leases and timers of executions that cannot be read: they wait, and nobody waits for one."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from noetl.control.leases import RECENT_SECONDS, Leases
from noetl.control.timers import BATCH, fire_timers
from noetl.model.events import CommandRequeued, decode
from noetl.store.log import Write
from tests.control.servers import run, servers, started

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"
SECONDS = 100.0


class TurnedClock:
    """Whoever sleeps turns it forward."""

    def __init__(self, at: float, seconds: float = SECONDS) -> None:
        self._at = at
        self.until = at + seconds
        self.over = asyncio.Event()

    def now(self) -> float:
        return self._at

    async def sleep(self, seconds: float) -> None:
        self._at += seconds
        if self._at > self.until:
            self.over.set()
        await asyncio.sleep(0)


def damage(path: Path, ids: list[str]) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(
            "UPDATE noetl_log SET events = x'00' WHERE execution_id = ?", [(one,) for one in ids]
        )


def test_damaged_executions_whose_leases_lapse_are_tried_ever_more_rarely_and_hide_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async def story() -> None:
        url = f"sqlite:///{tmp_path}/noetl.db"
        async with servers(url, 1) as (before,):
            ids = [await started(before, ONE_STEP) for _ in range(BATCH + 1)]
            at = before.clock.now()
            # In this order they lapse: the sound one last.
            for number, one in enumerate(ids):
                [(command, *_)] = await before.store.queue.open_commands(one)
                terms = {"pool": "default", "limit": 1, "expires_at": at - 1000 + number}
                [_] = await before.store.queue.claim_of("gone", [command.command_id], **terms)
        *damaged, sound = ids
        damage(tmp_path / "noetl.db", damaged)
        async with servers(url, 1) as (after,):
            clock = TurnedClock(at)
            parts = after.orchestrator.dispatch, after.orchestrator.inbox
            leases = Leases(after.store.queue, clock, *parts)
            lapses = asyncio.create_task(leases.requeue_lapsed())
            await clock.over.wait()
            lapses.cancel()

            [(command, worker, _)] = await after.store.queue.open_commands(sound)
            assert (worker, command.deliveries) == (None, 2)

    caplog.set_level(logging.WARNING, "noetl.control.leases")
    run(story)

    told = [one for one in caplog.records if "a lost command cannot go on: " in one.message]
    assert not any(one.exc_info for one in told), "damage is foreseen: a sentence says it"
    tried = Counter(record.execution_id for record in told)
    assert len(tried) == BATCH
    assert max(tried.values()) <= 8


@pytest.mark.parametrize(("apart", "alone"), [(SECONDS / 2, 0), (2 * RECENT_SECONDS, 1)])
def test_of_what_a_worker_lost_within_two_minutes_nothing_was_lost_alone(
    tmp_path: Path, apart: float, alone: int
):
    """One death loses leases that lapse one after the other; what lapses long after died alone."""

    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            clock = TurnedClock(system.clock.now(), apart + 10)
            ids = [await started(system, ONE_STEP) for _ in range(2)]
            for number, one in enumerate(ids):
                [(command, *_)] = await system.store.queue.open_commands(one)
                lapses_at = clock.now() + 1 + number * apart
                terms = {"pool": "default", "limit": 1, "expires_at": lapses_at}
                [_] = await system.store.queue.claim_of("gone", [command.command_id], **terms)
            parts = system.orchestrator.dispatch, system.orchestrator.inbox
            leases = Leases(system.store.queue, clock, *parts)
            lapses = asyncio.create_task(leases.requeue_lapsed())
            await clock.over.wait()
            lapses.cancel()

            for one, expected in zip(ids, (0, alone), strict=True):
                events = [decode(row.body) for row in await system.store.log.events(one)]
                again = [fact for fact in events if isinstance(fact, CommandRequeued)]
                assert [fact.alone for fact in again] == [expected]

    run(story)


def test_a_timer_of_a_damaged_execution_is_told_in_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async def story() -> None:
        url = f"sqlite:///{tmp_path}/noetl.db"
        async with servers(url, 1) as (before,):
            one = await started(before, ONE_STEP)
            head = (await before.store.log.heads([one]))[one]
            stray = Write(execution_id=one, seq_before=head, timers=[("stray", 1.0)])
            assert await before.store.log.commit([stray]) == []
        damage(tmp_path / "noetl.db", [one])
        async with servers(url, 1) as (after,):
            clock = TurnedClock(after.clock.now())
            firing = asyncio.create_task(fire_timers(after.orchestrator, after.store.queue, clock))
            while not caplog.records:
                await asyncio.sleep(0.01)
            firing.cancel()

    caplog.set_level(logging.WARNING, "noetl.control.timers")
    run(story)

    told = caplog.records[0]
    assert told.message.startswith("a timer could not fire: ")
    assert told.exc_info is None
