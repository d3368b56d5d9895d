"""S22, S23, S24: tasks of one worker do not see, harm or outlive each other."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from noetl.tools.processes.child import Call
from noetl.tools.processes.sandbox import Crashed
from noetl.tools.processes.spawner import Bounds
from noetl.tools.rules import Rules
from tests.examples.system import on_bench, playbook
from tests.stopwatch import PATIENCE
from tests.tools.running import Bench as ToolBench
from tests.tools.test_python_sandbox import PID, called, in_pool, is_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux keeps this")

MEBI = 1024 * 1024
LARGE = "head -c 2000000 /dev/zero > large"


def landlock() -> int:
    """The version of Landlock that the kernel has; less than 1 if none."""
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) if sys.platform == "linux" else 0


def with_tools(work, **rules):
    async def all_of_it():
        bench = ToolBench(rules=Rules(**rules))
        try:
            return await work(bench)
        finally:
            await bench.resources.close()

    return asyncio.run(all_of_it())


# --- S22: one playbook, and nobody else --------------------------------------------------------

PATCHING = """
- step: start
  tool:
    kind: python
    code: |
      import json
      json.dumps = lambda value: "forged"
"""
PATCHED = """
- step: start
  tool: { kind: python, code: "import json; result = json.dumps([1])" }
"""


def test_s22_what_a_playbook_patches_in_its_process_does_not_reach_another():
    async def work(bench):
        await bench.run(playbook(PATCHING))
        return await bench.run(playbook(PATCHED))

    run = on_bench(work, slots=1)

    assert run.document["result"] == "[1]"


LOOK = """
found = []
for name in ("environ", "mem", "maps"):
    try:
        open(f"/proc/{pid}/{name}", "rb").read(10)
        found.append(name)
    except PermissionError:
        pass
result = found
"""


def test_s22_a_python_process_sees_nothing_of_its_siblings_and_of_those_above():
    async def work(pool):
        pids = []

        def note(text):
            pids.extend(int(word) for word in text.split())

        code = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(60)"
        sibling = asyncio.create_task(called(pool, code, log=note, owner="victim"))
        end = time.monotonic() + PATIENCE
        while len(pids) < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        seen = [await called(pool, LOOK, owner="thief", pid=pid) for pid in pids]
        sibling.cancel()
        await asyncio.wait([sibling])
        return seen

    assert in_pool(work, size=3) == [[], []]


@pytest.mark.skipif(landlock() < 1, reason="without Landlock programs of one user see each other")
def test_s22_a_task_sees_nothing_of_the_programs_of_another():
    async def work(bench):
        config = {"cmd": "echo $$; exec sleep 60", "env": {"SECRET": "canary"}}
        program = asyncio.create_task(bench.run("shell", config))
        end = time.monotonic() + PATIENCE
        while not bench.log.text().strip():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        pid = int(bench.log.text())
        seen = await bench.run("python", {"code": LOOK}, inputs={"pid": pid})
        cat = await bench.run("shell", {"cmd": f"cat /proc/{pid}/environ"})
        program.cancel()
        await asyncio.wait([program])
        return seen, cat

    seen, cat = with_tools(work)

    assert seen.result == []
    assert cat.status == "error"
    assert "canary" not in str(cat)


@pytest.mark.skipif(landlock() < 6, reason="before Landlock 6 processes of one user can signal")
@pytest.mark.parametrize("target", ["os.getppid()", str(os.getpid())], ids=["parent", "worker"])
def test_s24_a_task_cannot_signal_its_worker_or_anybody_else(target):
    async def work(pool):
        code = f"import os\ntry:\n    os.kill({target}, 9)\nexcept PermissionError:\n    result = 1"
        assert await called(pool, code, owner="a") == 1
        return await called(pool, "result = 2", owner="b")

    assert in_pool(work, size=2) == 2


# --- S23: nothing outlives its task ------------------------------------------------------------

DAEMON = """
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.write(write, str(os.getpid()).encode())
        os.close(1); os.close(2)
        time.sleep(300)
    os._exit(0)
os.wait()
result = int(os.read(read, 20))
"""


@pytest.mark.parametrize("ending", ["", "print(result, flush=True); os._exit(1)"])
def test_s23_a_daemon_of_python_code_ends_with_its_task(ending):
    async def work(pool):
        printed = []
        answer = await asyncio.gather(
            called(pool, f"{DAEMON}\n{ending}", log=printed.append), return_exceptions=True
        )
        return int("".join(printed).strip() or answer[0])

    assert is_gone(in_pool(work))


def test_s23_a_daemon_of_a_program_ends_with_its_task():
    daemon = "(setsid sh -c 'echo $$; exec sleep 300 >/dev/null 2>&1' &) ; sleep 0.3"

    async def work(bench):
        return await bench.run("shell", {"cmd": daemon})

    outcome = with_tools(work)

    assert outcome.status == "ok", outcome.error
    assert is_gone(int(outcome.result["stdout"]))


def test_s23_what_is_left_of_a_killed_supervisor_ends_too():
    async def work(pool):
        pids = []

        def note(text):
            pids.extend(int(word) for word in text.split())

        code = f"{DAEMON}\nprint(os.getppid(), result, flush=True)\ntime.sleep(60)"
        call = asyncio.create_task(called(pool, code, log=note))
        end = time.monotonic() + PATIENCE
        while len(pids) < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(Crashed):
            await call
        return pids[1]

    assert is_gone(in_pool(work))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_spawner_that_is_killed_is_replaced_and_what_it_started_goes_on():
    async def work(pool):
        first = await called(pool, PID)
        # The parent of a process is its supervisor, whose parent is the spawner.
        process = parent_of(parent_of(first))
        assert parent_of(process) == os.getpid()
        os.kill(process, signal.SIGKILL)
        assert is_gone(process)
        assert await called(pool, PID) == first
        return await called(pool, "result = 1", owner="other")

    assert in_pool(work, size=2) == 1


# --- S24: limits of the system -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = len(bytearray(2 * 1024**3))", "MemoryError"),
        ("open('/tmp/noetl-large', 'wb').write(bytes(2 * 1024**2))", "File too large"),
    ],
)
def test_s24_python_code_is_held_to_memory_and_file_size(code, expected):
    bounds = Bounds(memory=1024 * MEBI, file_bytes=MEBI)

    async def work(pool):
        return await pool.call(Call(code, "c", {}, {}), log=lambda text: None)

    answer = in_pool(work, bounds=bounds)

    Path("/tmp/noetl-large").unlink(missing_ok=True)
    assert expected in answer.message


def test_s24_programs_and_code_are_held_to_the_same_limits():
    bounds = Bounds(memory=1024 * MEBI, processes=1234, file_bytes=MEBI)
    asked = "import resource\nresult = resource.getrlimit(resource.RLIMIT_NPROC)[1]"

    async def work(bench):
        shell = {"cmds": ["ulimit -H -v; grep processes /proc/self/limits", LARGE]}
        return await bench.run("shell", shell), await called(bench.resources.sandbox, asked)

    outcome, processes = with_tools(work, bounds=bounds)

    assert outcome.error.details["stdout"].split()[:5] == [
        *(str(1024 * 1024), "Max", "processes", "1234", "1234")
    ]
    assert "File size limit" in outcome.error.message or outcome.error.code == 153
    assert processes == 1234


def test_s24_when_memory_runs_out_tasks_go_before_their_worker():
    async def work(pool):
        return await called(pool, "result = int(open('/proc/self/oom_score_adj').read())")

    assert in_pool(work) > int(Path("/proc/self/oom_score_adj").read_text())


def test_s24_a_task_gets_no_rights_by_setuid_programs_and_traces_nobody():
    asked = "grep -E 'NoNewPrivs|CapBnd' /proc/self/status"

    async def work(bench):
        code = "result = open('/proc/self/status').read()"
        shell = await bench.run("shell", {"cmd": asked})
        return shell.result["stdout"], await called(bench.resources.sandbox, code)

    for said in with_tools(work):
        found = dict(line.split(":\t") for line in said.splitlines() if ":\t" in line)
        assert found["NoNewPrivs"] == "1"
        kept = int(found["CapBnd"], 16)
        assert not kept & (1 << 19 | 1 << 21), "CAP_SYS_PTRACE or CAP_SYS_ADMIN"


CAPSET = {"x86_64": 126, "aarch64": 91}.get(platform.machine())
"""The number of the system call that drops capabilities."""
FILTERED = f"""
import ctypes, struct
from tests.tools.running import ran

# A filter of seccomp: refuse this one call, and allow all others.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, {CAPSET}), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in steps))

class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

libc, made = ctypes.CDLL(None), Filter(len(steps), ctypes.addressof(text))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(made), 0, 0) == 0
assert ran("python", {{"code": "return 42"}}).result == 42
"""


@pytest.mark.skipif(CAPSET is None or os.geteuid() != 0, reason="only root drops capabilities")
def test_tasks_run_where_a_filter_refuses_to_drop_capabilities():
    found = subprocess.run([sys.executable, "-c", FILTERED], capture_output=True, text=True)

    assert found.returncode == 0, found.stderr
