"""T42, T43: calls have as many processes as there are slots, and waiting for one is no time."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from noetl import configured
from noetl.model.events import TaskStarted
from noetl.tools.limits import time_limit, waiting
from noetl.tools.processes import sandbox
from noetl.tools.processes.sandbox import memory_here, processes_for
from tests.examples.system import on_bench, playbook
from tests.faults.runs import is_running
from tests.stopwatch import PATIENCE, Stopwatch
from tests.tools.test_python_sandbox import PID, called, in_pool

SLEEP = "import time; time.sleep(seconds)"
SLEEPERS = """
- step: start
  loop: { in: "{{ range(16) }}", iterator: n, spec: { mode: parallel, max_in_flight: 16 } }
  tool: { kind: python, code: "import time; time.sleep(2)" }
"""
HELLO = '- { step: start, tool: { kind: python, code: "result = 1" } }'


def test_t43_sixteen_calls_run_at_once_where_there_are_sixteen_slots_and_delay_nobody():
    async def work(bench):
        # What is started first is warm: it is the waiting that is to be measured.
        await bench.ended(await bench.start(playbook(HELLO)))
        began, watch = time.monotonic(), Stopwatch()
        sleepers = await bench.start(playbook(SLEEPERS))
        while not any(isinstance(one, TaskStarted) for one in await bench.events(sleepers)):
            assert time.monotonic() < began + PATIENCE
            await asyncio.sleep(0.02)
        hello = Stopwatch()
        await bench.ended(await bench.start(playbook(HELLO)))
        greeted = hello.seconds()
        run = await bench.ended(sleepers)
        return run, watch.seconds(), greeted

    run, slept, greeted = on_bench(work, slots=16)

    assert run.document["status"] == "COMPLETED"
    assert slept < 8, "two at a time they take 16 seconds"
    assert greeted < 2


def test_t43_a_playbook_that_has_none_gets_a_place_although_another_wants_all():
    async def work(pool):
        sleepers = [
            asyncio.create_task(called(pool, SLEEP, owner="a", seconds=30)) for _ in range(20)
        ]
        await asyncio.sleep(0)
        found = [await called(pool, "result = 1", owner=owner) for owner in ("b", "c", "b")]
        for sleeper in sleepers:
            sleeper.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
        return found

    assert in_pool(work, size=5) == [1, 1, 1]


def test_t43_the_next_free_place_goes_to_the_playbook_that_has_the_fewest():
    order = []

    async def one(pool, owner):
        await called(pool, "import time; time.sleep(0.1)", owner=owner)
        order.append(owner)

    async def work(pool):
        await asyncio.gather(*(one(pool, owner) for owner in ["a"] * 9 + ["b"]))

    in_pool(work, size=2)

    assert order.index("b") <= 4, "it was last in the queue"


def test_processes_follow_from_slots_and_memory():
    assert [processes_for(slots, 1024**4) for slots in (1, 16, 64)] == [2, 20, 80]
    assert [processes_for(slots, 1024**3) for slots in (1, 16, 64)] == [2, 16, 16]
    assert memory_here() > 0


def test_idle_processes_go_after_a_while(monkeypatch):
    monkeypatch.setattr(sandbox, "IDLE_SECONDS", 0.2)

    async def work(pool):
        pids = await asyncio.gather(*(called(pool, f"{PID}; {SLEEP}", seconds=0.3) for _ in "abc"))
        end = time.monotonic() + PATIENCE
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        return await called(pool, "result = 1")

    assert in_pool(work, size=3) == 1


def test_an_idle_process_makes_room_for_another_playbook():
    async def work(pool):
        first = await called(pool, PID, owner="a")
        second = await called(pool, PID, owner="b")
        return first, second, await called(pool, PID, owner="b")

    first, second, third = in_pool(work, size=1)
    assert first != second
    assert second == third
    assert not is_running(first)


# --- Waiting is no time of the task ------------------------------------------------------------

QUEUED = """
- step: start
  loop: { in: "{{ range(4) }}", iterator: n, spec: { mode: parallel, max_in_flight: 4 } }
  tool:
    kind: python
    code: "import time; time.sleep(0.8)"
    spec: { timeout: 2 }
"""


def test_t42_waiting_for_a_python_process_is_no_time_of_the_task():
    async def work(bench):
        return await bench.ended(await bench.start(playbook(QUEUED)))

    run = on_bench(work, python_processes=1)

    assert run.document["status"] == "COMPLETED", run.document["error"]


def test_t42_a_call_that_times_out_while_others_wait_is_a_timeout_and_nothing_else():
    late = QUEUED.replace("timeout: 2", "timeout: 0.3")

    async def work(bench):
        return await bench.ended(await bench.start(playbook(late)))

    run = on_bench(work, python_processes=1)

    assert run.document["status"] == "FAILED"
    assert "ran longer than 0.3 s" in run.document["error"]["message"]


def test_t42_the_time_of_a_workbook_entry_stands_still_while_its_task_waits():
    workflow = QUEUED.replace(
        """    kind: python
    code: "import time; time.sleep(0.8)"
""",
        "    kind: workbook\n    task: slow\n",
    )
    book = '- { name: slow, tool: { kind: python, code: "import time; time.sleep(0.8)" } }'

    async def work(bench):
        return await bench.ended(await bench.start(playbook(workflow, workbook=book)))

    run = on_bench(work, python_processes=1)

    assert run.document["status"] == "COMPLETED", run.document["error"]


LIMIT = 0.5
"""Seconds that each of the following calls may take, and takes a small part of."""


@asynccontextmanager
async def holding_back():
    """A web server that answers its first request when it is told to, and all others at once."""
    arrived, release = asyncio.Event(), asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        if not arrived.is_set():
            arrived.set()
            await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", arrived, release
    finally:
        release.set()
        server.close()


async def waits_for_place(bench, execution_id, what):
    """Until the call says that it waits, and then for longer than it may take."""
    end = time.monotonic() + PATIENCE
    while True:
        why = (await bench.system.executions.why(execution_id)).reasons
        if any(what in one.text for one in why if one.waits_for == "place"):
            break
        assert time.monotonic() < end, why
        await asyncio.sleep(0.05)
    await asyncio.sleep(2 * LIMIT)


async def task_began(bench, execution_id):
    end = time.monotonic() + PATIENCE
    while not any(isinstance(one, TaskStarted) for one in await bench.events(execution_id)):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def few_places(monkeypatch, **places):
    """Let tools have so many threads and connections to a host."""
    made = configured.tool_rules
    monkeypatch.setattr(
        configured,
        "tool_rules",
        lambda settings: msgspec.structs.replace(made(settings), **places),
    )


def test_t42_waiting_for_a_thread_is_no_time_of_the_task(monkeypatch):
    few_places(monkeypatch, threads=1)

    async def work(bench):
        file = bench.folder / "locked.db"
        locked = sqlite3.connect(file, isolation_level=None)
        locked.execute("CREATE TABLE t (n)")
        locked.execute("BEGIN EXCLUSIVE")
        # It has the only thread, for as long as the file is locked.
        insert = "busy_timeout: 60, command: INSERT INTO t VALUES (1)"
        writes = f"{{kind: sqlite, database: {file}, {insert}}}"
        first = await bench.start(playbook(f"- {{step: start, tool: {writes}}}"))
        await task_began(bench, first)
        reads = f"{{kind: sqlite, command: SELECT 1 AS one, spec: {{timeout: {LIMIT}}}}}"
        second = await bench.start(playbook(f"- {{step: start, tool: {reads}}}"))
        await waits_for_place(bench, second, "a free thread")
        locked.execute("COMMIT")
        locked.close()
        return [await bench.ended(one) for one in (first, second)]

    for run in on_bench(work):
        assert run.document["status"] == "COMPLETED", run.document["error"]


def test_t42_waiting_for_a_thread_for_files_is_no_time_of_the_task():
    async def work(bench):
        # The only thread is taken, by something that takes long.
        loop, over = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        taken = loop.run_in_executor(None, over.wait)
        try:
            async with holding_back() as (url, _, release):
                release.set()
                file = bench.folder / "file"
                loads = f"kind: http, url: '{url}', download: '{file}'"
                tool = f"{{{loads}, spec: {{timeout: {LIMIT}}}}}"
                execution_id = await bench.start(playbook(f"- {{step: start, tool: {tool}}}"))
                await waits_for_place(bench, execution_id, "a free thread")
                over.set()
                return await bench.ended(execution_id), file.exists()
        finally:
            over.set()
            await taken

    run, is_there = on_bench(work)

    assert run.document["status"] == "COMPLETED", run.document["error"]
    assert is_there


def test_files_of_as_many_calls_as_there_are_slots_are_read_at_once():
    """Sixteen scripts that stand in pipes: each is read until somebody has written it."""

    async def work(bench):
        pipes = [bench.folder / f"pipe{number}" for number in range(16)]
        for pipe in pipes:
            os.mkfifo(pipe)
        tool = "{kind: python, script: '{{ iter.pipe }}'}"
        spec = "{mode: parallel, max_in_flight: 16}"
        loop = f"{{in: '{{{{ workload.pipes }}}}', iterator: pipe, spec: {spec}}}"
        text = playbook(f"- {{step: start, loop: {loop}, tool: {tool}}}", workload="pipes: []")
        execution_id = await bench.start(text, {"pipes": [str(pipe) for pipe in pipes]})
        at_once = 0
        while pipes:
            read = await being_read(pipes)
            at_once = max(at_once, len(read))
            for pipe, writer in read.items():
                os.write(writer, b"result = 1")
                os.close(writer)
                pipes.remove(pipe)
        return await bench.ended(execution_id), at_once

    async def being_read(pipes):
        """Those that can be opened for writing, at once: only while somebody reads them."""
        end, writers = time.monotonic() + PATIENCE / 6, {}
        while len(writers) < len(pipes) and time.monotonic() < end:
            for pipe in pipes:
                if pipe not in writers:
                    with suppress(OSError):
                        writers[pipe] = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            await asyncio.sleep(0.02)
        return writers

    run, at_once = on_bench(work, slots=16)

    assert at_once == 16
    assert run.document["status"] == "COMPLETED", run.document["error"]


def test_t42_waiting_for_a_connection_is_no_time_of_the_task(monkeypatch):
    few_places(monkeypatch, connections_per_host=1)

    async def work(bench):
        async with holding_back() as (url, arrived, release):
            first = await bench.start(
                playbook(f"- {{step: start, tool: {{kind: http, url: '{url}'}}}}")
            )
            await arrived.wait()
            asks = f"{{kind: http, url: '{url}', spec: {{timeout: {LIMIT}}}}}"
            second = await bench.start(playbook(f"- {{step: start, tool: {asks}}}"))
            await waits_for_place(bench, second, "a connection to 127.0.0.1")
            release.set()
            return [await bench.ended(one) for one in (first, second)]

    for run in on_bench(work):
        assert run.document["status"] == "COMPLETED", run.document["error"]


def test_t42_nor_is_it_time_of_a_task_whose_kind_asks_a_service_itself(monkeypatch):
    few_places(monkeypatch, connections_per_host=1)

    async def work(bench):
        async with holding_back() as (url, arrived, release):
            first = await bench.start(
                playbook(f"- {{step: start, tool: {{kind: http, url: '{url}'}}}}")
            )
            await arrived.wait()
            vault = (
                f"kind: secrets, provider: vault, url: '{url}', secret: kv/x, auth: {{token: t}}"
            )
            asks = f"{{{vault}, spec: {{timeout: {LIMIT}}}}}"
            second = await bench.start(playbook(f"- {{step: start, tool: {asks}}}"))
            await waits_for_place(bench, second, "a connection to 127.0.0.1")
            release.set()
            return [await bench.ended(one) for one in (first, second)]

    _, asked = on_bench(work)

    # It had its answer, which no vault would give.
    assert asked.document["error"]["kind"] in ("parse", "not_found"), asked.document["error"]


SPEC = f"spec: {{rate: 1/s, timeout: {LIMIT}}}"


@pytest.mark.parametrize(
    "tool",
    [f"{{kind: noop, {SPEC}}}", f"{{kind: workbook, task: entry, spec: {{timeout: {LIMIT}}}}}"],
    ids=["task", "workbook"],
)
def test_t42_waiting_for_its_turn_under_a_rate_is_no_time_of_the_task(tool):
    workflow = f"""
- step: start
  loop: {{ in: [1, 2, 3], iterator: n, spec: {{ mode: parallel }} }}
  tool: {tool}
"""
    book = f"""
- name: entry
  tool: {{kind: noop, {SPEC}}}
"""

    async def work(bench):
        return await bench.ended(await bench.start(playbook(workflow, workbook=book)))

    run = on_bench(work)

    assert run.document["status"] == "COMPLETED", run.document["error"]


def test_t42_waiting_for_a_worker_to_lease_it_is_no_time_of_the_task():
    async def work(bench):
        async with holding_back() as (url, arrived, release):
            tool = f"{{kind: http, url: '{url}'}}"
            first = await bench.start(playbook(f"- {{step: start, tool: {tool}}}"))
            await arrived.wait()
            asks = f"{{kind: http, url: '{url}', spec: {{timeout: {LIMIT}}}}}"
            second = await bench.start(playbook(f"- {{step: start, tool: {asks}}}"))
            await asyncio.sleep(2 * LIMIT)
            assert not any(isinstance(one, TaskStarted) for one in await bench.events(second))
            release.set()
            return [await bench.ended(one) for one in (first, second)]

    for run in on_bench(work, slots=1):
        assert run.document["status"] == "COMPLETED", run.document["error"]


def test_a_call_that_waits_is_named_when_somebody_asks_why():
    async def work(bench):
        slow = QUEUED.replace("0.8", "30").replace("timeout: 2", "timeout: 60")
        execution_id = await bench.start(playbook(slow))
        end = time.monotonic() + PATIENCE
        while True:
            why = (await bench.system.executions.why(execution_id)).reasons
            texts = [one.text for one in why if one.waits_for == "place"]
            if len(texts) == 3:
                break
            assert time.monotonic() < end, why
            await asyncio.sleep(0.1)
        await bench.system.executions.cancel(execution_id)
        await bench.ended(execution_id)
        return texts

    for text in on_bench(work, python_processes=1):
        assert "waits for a Python process" in text


def test_a_limit_stands_still_while_one_waits_and_goes_on_after():
    async def work(limit, waits, works):
        async with time_limit(limit):
            with waiting("a place"):
                await asyncio.sleep(waits)
            await asyncio.sleep(works)

    asyncio.run(work(limit=0.3, waits=0.5, works=0.05))
    with pytest.raises(TimeoutError):
        asyncio.run(work(limit=0.2, waits=0.1, works=5))
