"""T27: cancelled while queued, running, retrying, waiting or paused, it ends, lets go of all, and
never comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from noetl import wiring
from noetl.errors import Finished
from noetl.model.execution_query import exactly
from noetl.settings import Settings
from tests.examples.system import Bench, on_bench, playbook
from tests.faults.runs import is_running
from tests.stopwatch import PATIENCE, Stopwatch

QUICK = playbook("- { step: start, tool: { kind: noop } }")
RETRIES = """
- step: start
  tool:
    kind: python
    code: "raise ValueError('again')"
    spec:
      policy:
        rules:
          - when: "{{{{ outcome.status == 'error' }}}}"
            then: {{ do: retry, attempts: 9, delay: {delay} }}
          - else: {{ then: {{ do: continue }} }}
"""
PYTHON = """
- step: start
  tool:
    kind: python
    args: { file: "{{ workload.file }}" }
    code: |
      import os, time
      with open(file, "w") as out:
          out.write(str(os.getpid()))
      time.sleep(60)
"""
SHELL = """
- step: start
  tool:
    kind: shell
    env: { FILE: "{{ workload.file }}" }
    command: echo -n $$ > $FILE; sleep 60
"""
LOOP = """
- step: start
  loop: { in: [1, 2, 3, 4, 5, 6, 7, 8], iterator: item, spec: { mode: parallel } }
  tool: { kind: python, code: "import time; time.sleep(60)" }
"""
CALLS = "- { step: start, tool: { kind: playbook, path: tests/child } }"


async def until(condition: Callable[[], Awaitable[object]], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.02)


def has_happened(bench: Bench, execution_id: str, *types: str) -> Callable[[], Awaitable[object]]:
    return lambda: bench.system.store.log.events(execution_id, types=types)


async def cancel_and_check(bench: Bench, execution_id: str) -> None:
    """Cancel it; nothing of it may be left, now or later."""
    system = bench.system
    watch = Stopwatch()
    await system.executions.cancel(execution_id, "no longer wanted")
    run = await bench.ended(execution_id)

    assert watch.seconds() < 5
    assert run.document["status"] == "CANCELLED"
    types = [type(event).__struct_config__.tag for event in run.events]
    assert types.count("playbook.processed") == 1
    assert types[-1] == "playbook.processed"
    assert await system.store.queue.open_commands() == []
    assert await system.store.queue.next_timer() is None
    assert await system.store.records.unfinished() == []
    with pytest.raises(Finished):
        await system.executions.cancel(execution_id)
    # Every slot is free again, and what came in meanwhile changes nothing.
    after = await bench.run(QUICK)
    assert after.document["status"] == "COMPLETED"
    await asyncio.sleep(0.3)
    assert await bench.events(execution_id) == run.events


async def is_gone(pid: int) -> bool:
    return not is_running(pid)


@pytest.mark.parametrize("workflow", [PYTHON, SHELL], ids=["python", "shell"])
def test_while_running_what_runs_is_killed(workflow):
    async def work(bench: Bench) -> None:
        file = bench.folder / "pid"
        execution_id = await bench.start(
            playbook(workflow, workload="file: ''"), {"file": str(file)}
        )

        async def written() -> bool:
            return file.exists() and bool(file.read_text())

        await until(written)
        pid = int(file.read_text())
        await cancel_and_check(bench, execution_id)
        await until(lambda: is_gone(pid))

    on_bench(work, slots=1)


def test_while_a_loop_runs():
    async def work(bench: Bench) -> None:
        execution_id = await bench.start(playbook(LOOP))
        await until(has_happened(bench, execution_id, "step.started"))
        await asyncio.sleep(0.2)
        await cancel_and_check(bench, execution_id)

    on_bench(work, slots=2)


def test_while_queued():
    async def work(bench: Bench) -> None:
        first = await bench.start(playbook(LOOP))
        await until(has_happened(bench, first, "step.started"))
        queued = await bench.start(QUICK)
        await asyncio.sleep(0.2)
        assert not await bench.system.store.log.events(queued, types=["step.started"])

        await bench.system.executions.cancel(queued, "no longer wanted")
        assert (await bench.ended(queued)).document["status"] == "CANCELLED"
        await cancel_and_check(bench, first)
        assert not await bench.system.store.log.events(queued, types=["step.started"])

    on_bench(work, slots=1)


@pytest.mark.parametrize("delay", [3, 60], ids=["in its slot", "holding no slot"])
def test_while_it_waits_to_try_again(delay):
    async def work(bench: Bench) -> None:
        execution_id = await bench.start(playbook(RETRIES.format(delay=delay)))
        waits = "retry.started" if delay == 3 else "step.waiting"
        await until(has_happened(bench, execution_id, waits))
        await cancel_and_check(bench, execution_id)

    on_bench(work, slots=1)


def test_while_it_waits_for_a_sub_playbook_which_is_cancelled_too():
    async def work(bench: Bench) -> None:
        file = bench.folder / "pid"
        child = playbook(PYTHON, workload=f"file: {file}").replace(
            "name: tried, path: tried", "name: child, path: tests/child"
        )
        await bench.system.catalog.register(child)
        execution_id = await bench.start(playbook(CALLS))

        async def written() -> bool:
            return file.exists() and bool(file.read_text())

        await until(written)
        [called] = await bench.system.store.records.summaries(exactly(parent=execution_id))
        await cancel_and_check(bench, execution_id)
        assert (await bench.ended(called.execution_id)).document["status"] == "CANCELLED"
        await until(lambda: is_gone(int(file.read_text())))

    on_bench(work, slots=1)


@pytest.mark.parametrize("workflow", [LOOP, RETRIES.format(delay=60)], ids=["running", "waiting"])
def test_while_paused(workflow):
    async def work(bench: Bench) -> None:
        execution_id = await bench.start(playbook(workflow))
        event = "step.started" if workflow is LOOP else "step.waiting"
        await until(has_happened(bench, execution_id, event))
        await bench.system.executions.pause(execution_id)
        assert (await bench.system.executions.document(execution_id))["status"] == "PAUSED"
        await cancel_and_check(bench, execution_id)

    on_bench(work, slots=1)


def test_what_was_cancelled_stays_so_when_the_database_is_opened_again(tmp_path):
    settings = Settings.from_environment({"NOETL_DATABASE_URL": f"sqlite:///{tmp_path}/noetl.db"})

    async def work() -> None:
        async with wiring.embedded(settings) as system:
            bench = Bench(system, settings, tmp_path)
            execution_id = await bench.start(playbook(LOOP))
            await until(has_happened(bench, execution_id, "step.started"))
            await cancel_and_check(bench, execution_id)
            events = await bench.events(execution_id)
        async with wiring.embedded(settings) as system:
            await asyncio.sleep(0.5)
            assert await Bench(system, settings, tmp_path).events(execution_id) == events

    asyncio.run(work())
