"""Moments of a long log: checkpoints make the second look short, and change nothing."""

from __future__ import annotations

import asyncio
import time

from noetl.control import history
from noetl.control.history import Moments, state_at
from noetl.control.timeline import Timelines
from noetl.model import refs
from tests.examples.system import Bench, on_bench

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


def test_every_look_at_a_long_log_is_the_fold_and_the_second_one_is_short(monkeypatch):
    monkeypatch.setattr(history, "CHECKPOINT_EVERY", 1000)
    monkeypatch.setattr(history, "STRIDE", 100)

    async def work(bench: Bench) -> None:
        store = bench.system.store
        execution_id = await bench.start(LOOP, {})
        await bench.ended(execution_id)
        last = (await store.log.heads([execution_id]))[execution_id]
        moments = Moments(store)
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
            expected = await state_at(store, execution_id, seq)
            assert refs.encode(found.state) == refs.encode(expected), seq
        assert shortest < first / 2

    on_bench(work)


def test_checkpoints_are_dropped_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr(history, "CHECKPOINT_EVERY", 10)
    monkeypatch.setattr(history, "KEPT_BYTES", 20_000)

    async def work(bench: Bench) -> None:
        store = bench.system.store
        moments = Moments(store)
        for count in (60, 80, 100):
            text = LOOP.replace("3000", str(count))
            execution_id = await bench.start(text, {})
            await bench.ended(execution_id)
            for seq in (None, 40, 20):
                found = await moments.at(execution_id, seq)
                expected = await state_at(store, execution_id, seq)
                assert refs.encode(found.state) == refs.encode(expected)
            kept = sum(len(body) for one in moments._kept.values() for body in one.values())
            assert kept == moments._size <= history.KEPT_BYTES

    on_bench(work)


def test_a_timeline_is_read_once_and_continued(monkeypatch):
    async def work(bench: Bench) -> None:
        store = bench.system.store
        execution_id = await bench.start(LOOP.replace("3000", "50"), {})
        lines = Timelines(store)
        asked = [lines.timeline(execution_id, after=0, limit=9, buckets=9) for _ in range(3)]
        await asyncio.gather(*asked)
        await bench.ended(execution_id)
        found = await lines.timeline(execution_id, after=0, limit=9, buckets=9)
        anew = await Timelines(store).timeline(execution_id, after=0, limit=9, buckets=9)

        assert found == anew
        [run] = found.runs
        assert run.loop is not None
        assert (run.loop.done, run.loop.running, len(run.loop.strip)) == (50, 0, 9)

    on_bench(work)
