"""The processes behind kind: python: nothing leaks from call to call, and the pool never hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from noetl.tools.processes.child import Call
from noetl.tools.processes.programs import spawner
from noetl.tools.processes.sandbox import Crashed, SandboxPool
from tests.faults.runs import is_running
from tests.stopwatch import PATIENCE


def is_gone(pid):
    """Whether it is dead, or is within the moment that a killed process takes."""
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_running(pid)


def in_pool(work, size=1, **settings):
    async def all_of_it():
        pool = SandboxPool(size, **settings)
        try:
            return await work(pool)
        finally:
            await pool.close()

    return asyncio.run(all_of_it())


async def called(pool, code, log=lambda text: None, timeout=None, owner="", **inputs):
    call = Call(code, "<code>", inputs, {})
    answer = await pool.call(call, log=log, timeout=timeout, owner=owner)
    assert not answer.problem, answer
    return answer.value


PID = "import os\nresult = os.getpid()"
WHERE = "import os\nresult = os.getcwd()"


def test_code_runs_also_after_the_directory_of_the_worker_is_gone(tmp_path, monkeypatch):
    spawner().close()
    monkeypatch.chdir(tmp_path)
    try:
        assert in_pool(lambda pool: called(pool, WHERE)) == str(tmp_path)
        tmp_path.rmdir()
        assert in_pool(lambda pool: called(pool, WHERE)) == "/"
    finally:
        spawner().close()


def test_a_process_is_used_again():
    async def work(pool):
        return [await called(pool, PID) for _ in range(3)]

    assert len(set(in_pool(work))) == 1


@pytest.mark.parametrize(
    ("change", "look", "expected"),
    [
        ("leak = 1", "result = 'leak' in globals()", False),
        ("import os; os.chdir('/')", "import os; result = os.getcwd()", os.getcwd()),
        ("import os; os.environ['LEAK'] = '1'", "import os; result = 'LEAK' in os.environ", False),
        ("import sys; sys.path.append('leak')", "import sys; result = 'leak' in sys.path", False),
        ("import sys; sys.stdout = None", "print('x'); result = 1", 1),
        ("import sys; sys.stdout.close()", "print('x'); result = 1", 1),
        ("import os; os.umask(0o777)", "import os; result = os.umask(0o022) == 0o777", False),
        (
            "import sys; sys.setrecursionlimit(99)",
            "import sys; result = sys.getrecursionlimit()",
            1000,
        ),
        ("import signal; signal.alarm(1)", "import time; time.sleep(1.3); result = 1", 1),
        ("import sys; sys.modules['leak'] = sys.modules['noetl_task']", "result = 1", 1),
        ("import gc; gc.disable()", "import gc; result = gc.isenabled()", True),
    ],
)
def test_what_a_call_changes_is_as_before_for_the_next(change, look, expected):
    async def work(pool):
        await called(pool, change)
        return await called(pool, look)

    assert in_pool(work) == expected


@pytest.mark.parametrize(
    "code",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "import subprocess\nsubprocess.Popen(['sleep', '60'])",
        "import os, time\nif not os.fork(): time.sleep(60)",
    ],
)
def test_a_process_in_which_something_runs_on_is_replaced(code):
    async def work(pool):
        before = await called(pool, PID)
        await called(pool, code)
        return before, await called(pool, PID)

    before, after = in_pool(work)
    assert before != after
    assert not is_running(before)


def test_t07_what_the_code_started_dies_with_it(tmp_path):
    code = """
import subprocess, time
first = subprocess.Popen(["sleep", "60"])
second = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(first.pid, second.pid, flush=True)
time.sleep(60)
"""

    async def work(pool):
        parts = []
        with pytest.raises(TimeoutError):
            await called(pool, code, log=parts.append, timeout=0.5)
        return "".join(parts).split()

    pids = in_pool(work)
    assert len(pids) == 2
    assert all(is_gone(int(pid)) for pid in pids)


def test_calls_beyond_the_size_wait_their_turn_and_can_be_cancelled_there():
    async def work(pool):
        slow = asyncio.create_task(called(pool, "import time; time.sleep(0.4); result = 1"))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(called(pool, f"result = {n}")) for n in range(5)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        waiting[3].cancel()
        results = await asyncio.gather(slow, *waiting, return_exceptions=True)
        assert [r for r in results if not isinstance(r, BaseException)] == [1, 1, 2, 4]
        return await called(pool, "result = 9")

    assert in_pool(work) == 9


def test_a_storm_of_cancels_crashes_and_timeouts_leaves_a_pool_that_works():
    async def one(pool, n):
        code = ["result = 1", "import os; os._exit(1)", "while True: pass", "result = 2"][n % 4]
        try:
            return await asyncio.wait_for(called(pool, code, timeout=0.1), 5)
        except (TimeoutError, Crashed) as error:
            return type(error).__name__

    async def work(pool):
        tasks = [asyncio.create_task(one(pool, n)) for n in range(40)]
        await asyncio.sleep(0.3)
        for task in tasks[::7]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await asyncio.gather(*(called(pool, "result = 3") for _ in range(4)))

    assert in_pool(work, size=2) == [3, 3, 3, 3]


def test_a_process_killed_while_idle_is_replaced_unnoticed():
    async def work(pool):
        pid = await called(pool, PID)
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        return pid, await called(pool, PID)

    before, after = in_pool(work)
    assert before != after


def test_an_answer_that_is_too_long_is_refused_by_name():
    async def work(pool):
        call = Call("result = 'x' * 2000", "<code>", {}, {})
        return await pool.call(call, log=lambda text: None)

    answer = in_pool(work, message_max=1500)
    assert answer.problem == "not_plain"
    assert "2,0" in answer.message


def test_a_call_that_is_too_long_is_refused():
    async def work(pool):
        with pytest.raises(OverflowError):
            await called(pool, "result = 1", text="x" * 2000)
        return await called(pool, "result = 1")

    assert in_pool(work, message_max=1500) == 1


def test_code_that_writes_nonsense_to_the_line_cannot_harm_the_worker():
    code = """
import os
for fd in range(3, 1000):
    try: os.write(fd, b"\\xff" * 100)
    except OSError: pass
"""

    async def work(pool):
        with pytest.raises(Crashed):
            await called(pool, code)
        return await called(pool, "result = 1")

    assert in_pool(work) == 1


def test_closing_ends_every_process_also_busy_ones():
    async def work():
        pool = SandboxPool(2)
        pids = await asyncio.gather(
            *(called(pool, PID + "; import time; time.sleep(0.2)") for _ in "ab")
        )
        busy = asyncio.create_task(called(pool, "import time; time.sleep(60)"))
        await asyncio.sleep(0.1)
        await pool.close()
        with pytest.raises(Crashed):
            await busy
        with pytest.raises(Crashed):
            await called(pool, "result = 1")
        return pids

    pids = asyncio.run(work())
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent death signal of Linux")
def test_processes_of_a_worker_that_is_killed_die_with_it(tmp_path):
    program = """
import asyncio
from noetl.tools.processes.child import Call
from noetl.tools.processes.sandbox import SandboxPool
async def main():
    pool = SandboxPool(1)
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    await pool.call(Call(code, "c", {}, {}), log=lambda text: print(text, flush=True))
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        worker.kill()
    end = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(pid)


def test_what_the_worker_itself_holds_in_memory_does_not_spoil_its_processes():
    # A process begins its life with the peak of whoever started it.
    story = """
import asyncio
from noetl.tools.processes.child import Call
from noetl.tools.processes.sandbox import SandboxPool

peak = bytearray(1300 * 1024 * 1024)
del peak

async def work():
    pool = SandboxPool(1)
    call = Call("import os; result = os.getpid()", "t", {}, {})
    found = {(await pool.call(call, log=lambda text: None)).value for _ in range(3)}
    await pool.close()
    return len(found)

print(asyncio.run(work()))
"""
    ran = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "1"
