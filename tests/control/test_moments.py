"""Moments of a long log: checkpoints make the second look short, and change nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from noetl.control import history, timeline
from noetl.control.history import Moments, facts
from noetl.control.timeline import Timelines
from noetl.engine.evolve import evolve
from noetl.errors import NotFound
from noetl.model import refs
from noetl.model.state import ExecutionState
from noetl.store.log import EventRow, Log
from tests.examples.system import Bench, on_bench
from tests.stopwatch import PATIENCE

LOOP = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: x, path: x}
workflow:
  - step: start
    loop:
      in: "{{ range(3000) | list }}"
      iterator: n
      spec: {mode: parallel, on_error: continue}
    tool: {kind: noop}
"""


async def folded(log: Log, execution_id: str, seq: int | None) -> ExecutionState:
    """The state after an event, by the long way."""
    state = ExecutionState()
    async for _, fact in facts(log, execution_id, upto=seq):
        evolve(state, fact)
    return state


def test_every_look_at_a_long_log_is_the_fold_and_the_second_one_is_short(monkeypatch):
    monkeypatch.setattr(history, "CHECKPOINT_EVERY", 1000)
    monkeypatch.setattr(history, "STRIDE", 100)

    async def work(bench: Bench) -> None:
        store = bench.system.store
        execution_id = await bench.start(LOOP, {})
        await bench.ended(execution_id)
        last = (await store.log.heads([execution_id]))[execution_id]
        moments = Moments(store.log)
        begun = time.perf_counter()
        whole = await moments.at(execution_id)
        first = time.perf_counter() - begun
        assert whole.seq == whole.last_seq == last
        assert whole.event.type == "playbook.processed"
        shortest = first
        for seq in (last - 1, 1, 999, 1000, 1001, last // 2, 2500, last, 3):
            begun = time.perf_counter()
            found = await moments.at(execution_id, seq)
            shortest = min(shortest, time.perf_counter() - begun)
            expected = await folded(store.log, execution_id, seq)
            assert refs.encode(found.state) == refs.encode(expected), seq
        assert shortest < first / 2

    on_bench(work)


class Reading:
    """A log that counts the events that are read of it, and may be cut off."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.read = 0
        self.is_gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def events(self, *given: Any, **named: Any) -> list[EventRow]:
        rows = [] if self.is_gone else await self._log.events(*given, **named)
        self.read += len(rows)
        return rows


def test_who_asks_for_many_moments_at_once_has_the_log_read_once(monkeypatch):
    monkeypatch.setattr(history, "CHECKPOINT_EVERY", 500)
    monkeypatch.setattr(history, "STRIDE", 100)

    async def work(bench: Bench) -> None:
        store = bench.system.store
        execution_id = await bench.start(LOOP, {})
        await bench.ended(execution_id)
        last = (await store.log.heads([execution_id]))[execution_id]
        log = Reading(store.log)
        moments = Moments(cast(Log, log))
        wanted = [last - 10 * number for number in range(20)]

        found = await asyncio.gather(*(moments.at(execution_id, seq) for seq in wanted))

        assert [one.seq for one in found] == wanted
        # Twenty times the log without the lock.
        assert log.read < 3 * last

    on_bench(work)


def test_an_execution_that_is_removed_meanwhile_is_not_waited_for():
    async def work(bench: Bench) -> None:
        execution_id = await bench.start(LOOP.replace("3000", "10"), {})
        await bench.ended(execution_id)
        log = Reading(bench.system.store.log)
        log.is_gone = True

        with pytest.raises(NotFound):
            async with asyncio.timeout(PATIENCE):
                await Moments(cast(Log, log)).at(execution_id, 9)

    on_bench(work)


def test_checkpoints_are_dropped_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr(history, "CHECKPOINT_EVERY", 10)
    monkeypatch.setattr(history, "KEPT_BYTES", 20_000)

    async def work(bench: Bench) -> None:
        store = bench.system.store
        log = Reading(store.log)
        moments = Moments(cast(Log, log))
        ids = []
        for count in (60, 80, 100):
            ids.append(await bench.start(LOOP.replace("3000", str(count)), {}))
            await bench.ended(ids[-1])
            for seq in (None, 40, 20):
                found = await moments.at(ids[-1], seq)
                expected = await folded(store.log, ids[-1], seq)
                assert refs.encode(found.state) == refs.encode(expected)

        async def read_for(execution_id: str) -> int:
            log.read = 0
            await moments.at(execution_id, 45)
            return log.read

        assert await read_for(ids[0]) == 45, "its checkpoints made room for those of the others"
        assert await read_for(ids[0]) < 45, "and are kept again"

    on_bench(work)


def test_a_timeline_is_read_once_and_continued(monkeypatch):
    async def work(bench: Bench) -> None:
        store = bench.system.store
        execution_id = await bench.start(LOOP.replace("3000", "50"), {})
        lines = Timelines(store.log, store.records)
        asked = [lines.timeline(execution_id, after=0, limit=9, buckets=9) for _ in range(3)]
        await asyncio.gather(*asked)
        await bench.ended(execution_id)
        found = await lines.timeline(execution_id, after=0, limit=9, buckets=9)
        anew = await Timelines(store.log, store.records).timeline(
            execution_id, after=0, limit=9, buckets=9
        )

        assert found == anew
        [run] = found.runs
        assert run.loop is not None
        assert (run.loop.done, run.loop.running, len(run.loop.strip)) == (50, 0, 9)
        monkeypatch.setattr(timeline, "STRIPS_MAX", 4)
        [run] = (await lines.timeline(execution_id, after=0, limit=9, buckets=9)).runs
        assert run.loop is not None
        assert len(run.loop.strip) == 4

    on_bench(work)


def test_an_execution_that_was_looked_at_and_deleted_has_no_timeline():
    async def work(bench: Bench) -> None:
        system = bench.system
        execution_id = await bench.start(LOOP.replace("3000", "3"), {})
        await bench.ended(execution_id)
        lines = await system.timelines.timeline(execution_id, after=0, limit=9, buckets=9)
        await system.retention.delete(execution_id)
        with pytest.raises(NotFound):
            await system.timelines.timeline(execution_id, after=0, limit=9, buckets=9)
        run_id = lines.runs[0].step_run_id
        with pytest.raises(NotFound):
            await system.timelines.iterations(execution_id, run_id, status=None, after=-1, limit=9)

    on_bench(work)
