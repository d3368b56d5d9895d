"""S36: with NOETL_SANDBOX=namespaces a task has no network, files or processes but its own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from noetl.configured import tool_rules
from noetl.errors import BadSetting
from noetl.settings import Settings
from noetl.tools.processes.namespaces import Room, refusal
from noetl.tools.processes.sandbox import SandboxPool
from noetl.tools.processes.spawner import Bounds
from noetl.tools.rules import Rules
from tests.cli.conftest import COMMAND, clean_environment
from tests.stopwatch import PATIENCE
from tests.tools.running import Bench, failure
from tests.tools.running import on_bench as with_tools
from tests.tools.test_python_sandbox import called, in_pool

REFUSED = refusal()
pytestmark = pytest.mark.skipif(
    REFUSED is not None, reason=f"this kernel lets nobody here make namespaces: {REFUSED}"
)
MEBI = 1024 * 1024
NETWORK = {"sandbox": {"network": True}}


def ran(kind, config, *, rules=None, **context):
    rules = rules or Rules(room=Room())
    return with_tools(lambda bench: bench.run(kind, config, **context), rules=rules)


def value(code, **context):
    outcome = ran("python", {"code": code}, **context)
    assert outcome.status == "ok", outcome.error
    return outcome.result


def printed(cmd, **context):
    outcome = ran("shell", {"cmd": cmd}, **context)
    assert outcome.status == "ok", outcome.error
    return outcome.result["stdout"]


# --- The network -------------------------------------------------------------------------------


@contextmanager
def listening():
    """Something that listens here, on the loopback and under an abstract name."""
    name = f"\0noetl-test-{os.getpid()}"
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as abstract:
        port.bind(("127.0.0.1", 0))
        port.listen()
        abstract.bind(name)
        abstract.listen()
        yield port.getsockname()[1], name


CONNECT = """
import socket
def reached(family, address):
    with socket.socket(family) as line:
        line.settimeout(5)
        try:
            line.connect(address)
        except OSError as error:
            return type(error).__name__
    return "reached"
def main(port, name):
    return [
        reached(socket.AF_INET, ("127.0.0.1", port)),
        reached(socket.AF_UNIX, name),
        reached(socket.AF_INET, ("169.254.169.254", 80)),
    ]
"""


def test_s36_code_reaches_no_network_not_even_the_loopback_of_the_machine():
    with listening() as (port, name):
        found = value(CONNECT, inputs={"port": port, "name": name})
        cmd = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        shell = ran("shell", {"cmd": ["bash", "-c", cmd]})

    assert found == ["ConnectionRefusedError", "ConnectionRefusedError", "OSError"]
    assert "Connection refused" in failure(shell)[1]


def test_s36_a_task_has_a_loopback_of_its_own():
    code = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
result = client.getpeername()[0]
"""
    assert value(code) == "127.0.0.1"


def test_s36_a_task_that_says_so_has_the_network_of_the_worker():
    with listening() as (port, name):
        found = value(CONNECT, inputs={"port": port, "name": name}, spec=NETWORK)
        cmd = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        shell = ran("shell", {"cmd": ["bash", "-c", cmd]}, spec=NETWORK)

    assert found[0] == "reached"
    assert shell.status == "ok", shell.error


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("python", {"code": "result = 1"}),
        ("shell", {"cmd": "true"}),
        ("mcp", {"command": ["true"], "discover": "tools"}),
    ],
)
def test_s36_the_operator_can_refuse_the_network_to_all(kind, config):
    rules = Rules(room=Room(), task_network=False)

    found, told = failure(ran(kind, config, rules=rules, spec=NETWORK))

    assert found == "auth"
    assert "NOETL_TASK_NETWORK" in told


def test_s36_code_with_a_network_and_code_without_share_no_process():
    async def work(bench):
        async def namespace(spec):
            code = "import os; result = os.readlink('/proc/self/ns/net')"
            return (await bench.run("python", {"code": code}, spec=spec)).result

        return [await namespace(spec) for spec in ({}, NETWORK, {}, NETWORK)]

    first, second, third, fourth = with_tools(work, rules=Rules(room=Room()))

    assert (first, second) == (third, fourth)
    assert first != second == os.readlink("/proc/self/ns/net")


# --- Processes ---------------------------------------------------------------------------------


def test_s36_a_task_sees_and_signals_no_process_but_its_own():
    code = """
import os
seen = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
hit = []
for pid in range(1, 100_000):
    if pid not in seen:
        try:
            os.kill(pid, 0)
            hit.append(pid)
        except ProcessLookupError:
            pass
try:
    os.kill(worker, 9)
except (ProcessLookupError, PermissionError):
    pass
result = [len(seen), os.getpid() in seen, hit]
"""
    assert value(code, inputs={"worker": os.getpid()}) == [2, True, []]


def on_the_machine(mark):
    """Processes whose command line holds this."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                found += [place.name] if mark.encode() in (place / "cmdline").read_bytes() else []
            except OSError:
                continue
    return found


@pytest.mark.parametrize("how", ["cancelled", "ended"])
def test_s36_all_that_a_task_started_ends_with_it(how):
    mark = f"300.{time.monotonic_ns() % 1_000_000}1"
    daemon = f"(setsid setsid sleep {mark} >/dev/null 2>&1 &); echo started"

    async def work(bench):
        cmd = f"{daemon}; sleep 300" if how == "cancelled" else daemon
        task = asyncio.create_task(bench.run("shell", {"cmd": cmd}))
        if how == "cancelled":
            end = time.monotonic() + PATIENCE
            while not (bench.log.text() and on_the_machine(mark)):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.wait([task])
        return on_the_machine(mark)

    assert with_tools(work, rules=Rules(room=Room())) == []


@pytest.mark.parametrize(
    ("cmd", "code"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_s36_how_a_program_ended_is_told_as_it_was(cmd, code):
    assert ran("shell", {"cmd": cmd}).error.code == code


def test_s36_a_fork_bomb_is_bounded_and_gone_afterwards():
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if os.geteuid() == 0 and release < (6, 14):
        pytest.skip("before Linux 6.14 nothing bounds the processes of the superuser")
    mark = f"300.{time.monotonic_ns() % 1_000_000}2"
    code = f"""
import os
count = 0
try:
    while count < 3000:
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "{mark}"])
        count += 1
except OSError:
    pass
result = count
"""
    count = value(code, rules=Rules(room=Room(), bounds=Bounds(processes=40)))

    # The superuser is not held to RLIMIT_NPROC, but to the pids of its room: 300 more.
    assert 10 < count <= (340 if os.geteuid() == 0 else 40)
    assert on_the_machine(mark) == []


def test_s36_memory_is_bounded_also_in_files_of_memory():
    rules = Rules(room=Room(tmp_bytes=4 * MEBI), bounds=Bounds(memory=1024 * MEBI))
    fill = "import os\nwith open('{}', 'wb') as file:\n    file.write(bytes(5 * 1024**2))"

    hog = ran("python", {"code": "result = len(bytearray(2 * 1024**3))"}, rules=rules)
    files = [
        ran("python", {"code": fill.format(place)}, rules=rules)
        for place in ("/tmp/large", "/dev/shm/large")
    ]

    assert "MemoryError" in failure(hog)[1]
    assert all("No space left on device" in failure(one)[1] for one in files)


def test_s36_a_task_has_no_rights_over_its_own_room():
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(call):
    try:
        return call() not in (0, None)
    except OSError:
        return True
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
result = [
    sorted({status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}),
    refused(lambda: libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)),
    refused(lambda: libc.umount2(b"/proc/sys", 2)),
    refused(lambda: libc.unshare(0x10000000)),
    refused(lambda: open("/proc/sys/kernel/core_pattern", "w").write("x")),
    refused(lambda: open("/usr/noetl-test", "w")),
    refused(lambda: open("/noetl-test", "w")),
]
"""
    assert value(code) == [["0" * 16], *[True] * 6]


# --- Files -------------------------------------------------------------------------------------

READ = """
def main(paths):
    found = []
    for path in paths:
        try:
            open(path, "rb").read(1)
            found.append(path)
        except OSError:
            pass
    return found
"""


def test_s36_code_cannot_read_the_files_of_the_worker_and_of_other_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "data" / "noetl.db"
    secret = tmp_path / "files" / "secrets" / "password"
    inside = tmp_path / "files" / "table.csv"
    outside = tmp_path / "outside.txt"
    own = [database, database.with_name("secret.key"), secret, outside, Path(".noetl/server.log")]
    for path in [*own, inside]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("canary")
    settings = Settings.from_environment(
        {
            "NOETL_SANDBOX": "namespaces",
            "NOETL_DATABASE_URL": f"sqlite:///{database}",
            "NOETL_FILES": str(tmp_path / "files"),
            "NOETL_SECRET_FILES": str(secret.parent),
        }
    )
    sibling = Path(tempfile.mkdtemp(prefix="noetl-"))
    (sibling / "data").write_text("canary")
    environ = f"/proc/{os.getpid()}/environ"
    paths = [str(path.absolute()) for path in [*own, inside, sibling / "data"]]
    paths += [environ, "/etc/shadow", str(Path.home() / ".bashrc")]

    seen = value(READ, inputs={"paths": paths}, rules=tool_rules(settings))
    cat = printed(f"cat {' '.join(paths)} 2>/dev/null; true", rules=tool_rules(settings))

    (sibling / "data").unlink()
    sibling.rmdir()
    assert seen == [str(inside)]
    assert cat == "canary"


def test_s36_files_below_the_directory_of_the_operator_are_read_and_written(tmp_path):
    (tmp_path / "in.txt").write_text("hello")
    settings = Settings.from_environment(
        {"NOETL_SANDBOX": "namespaces", "NOETL_FILES": str(tmp_path)}
    )
    rules = tool_rules(settings)

    outcome = ran("shell", {"cmd": "cat in.txt > out.txt", "cwd": "."}, rules=rules)
    code = f"open({str(tmp_path / 'python.txt')!r}, 'w').write('x')"
    python = ran("python", {"code": code}, rules=rules)

    assert (outcome.status, python.status) == ("ok", "ok"), (outcome.error, python.error)
    assert (tmp_path / "out.txt").read_text() == "hello"
    assert (tmp_path / "python.txt").read_text() == "x"


def test_s36_without_that_directory_a_program_runs_in_a_fresh_one_only(tmp_path):
    found, told = failure(ran("shell", {"cmd": "true", "cwd": str(tmp_path)}))

    assert found == "auth"
    assert "NOETL_FILES" in told
    outcome = ran("shell", {"cmds": ["echo 1 > kept", "cat kept; pwd; echo $HOME"]})
    kept, directory, home = outcome.result["stdout"].split()
    assert kept == "1"
    assert home == "/tmp"
    assert not Path(directory).exists()


def test_s36_tmp_is_its_own_and_empty_for_every_call():
    mark = f"noetl-{time.monotonic_ns()}"
    write = f"""
import os
before = os.listdir("/tmp") + os.listdir("/dev/shm")
os.makedirs("/tmp/{mark}/deep")
open("/tmp/{mark}/deep/file", "w").write("x")
open("/dev/shm/{mark}", "w").write("x")
result = [before, os.readlink("/proc/self/ns/pid"), os.environ["HOME"], os.getcwd()]
"""

    async def work(pool):
        return [await called(pool, write) for _ in range(2)]

    first, second = in_pool(work, room=Room())

    assert first == second
    assert first[2:] == ["/tmp", "/tmp"]
    assert mark not in first[0]
    assert not Path("/tmp", mark).exists()
    assert not Path("/dev/shm", mark).exists()


def test_s36_code_reads_the_files_of_its_inputs_and_leaves_lines():
    make = "def main():\n    for n in range(3):\n        yield {'n': n}"
    read = """
def main(table):
    import os
    with open(table["path"]) as file:
        lines = file.read().splitlines()
    try:
        open(table["path"], "a")
    except OSError:
        return [lines, os.listdir("/inputs") + os.listdir("/outputs")]
"""

    async def work(bench: Bench):
        made = await bench.run("python", {"code": make, "result_as": "ndjson"})
        assert made.status == "ok", made.error
        args = {"inputs": {"table": made.result}}
        found = await bench.run("python", {"code": read}, **args)
        left = await bench.run("python", {"code": "import os; result = os.listdir('/inputs')"})
        return found.result, left.result

    (lines, seen), left = with_tools(work, rules=Rules(room=Room()))

    assert [json.loads(line) for line in lines] == [{"n": n} for n in range(3)]
    assert len(seen) == 1
    assert left == []


def test_s36_what_code_leaves_in_place_of_its_lines_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("canary")
    code = f"""
import os
def main():
    yield 1
    os.unlink("/outputs/lines.ndjson")
    os.symlink({str(secret)!r}, "/outputs/lines.ndjson")
"""
    outcome = ran("python", {"code": code, "result_as": "ndjson"})

    assert "something else" in failure(outcome)[1]
    assert "canary" not in str(outcome)
    assert secret.read_text() == "canary"


# --- Warm processes ----------------------------------------------------------------------------


def test_s36_a_warm_process_answers_about_as_fast_as_without_a_room():
    async def work(pool):
        kept_pool = SandboxPool(1, room=Room())
        bare, kept = [], []
        try:
            for _ in range(300):
                for times, one in ((bare, pool), (kept, kept_pool)):
                    begin = time.perf_counter()
                    await called(one, "result = 1")
                    times.append(time.perf_counter() - begin)
        finally:
            await kept_pool.close()
        return min(bare), min(kept)  # Others use the machine, too, and some calls meet nobody.

    bare, kept = in_pool(work)

    assert kept < 2 * bare, (bare, kept)


def test_s36_a_room_that_cannot_be_built_fails_the_task_and_says_why():
    room = Room(writes=(("/nonexistent/noetl", "/data"),))

    python = ran("python", {"code": "result = 1"}, rules=Rules(room=room))
    with pytest.raises(ChildProcessError, match="sandbox could not be made"):
        ran("shell", {"cmd": "true"}, rules=Rules(room=room))

    assert "sandbox could not be made" in failure(python)[1]


# --- The worker --------------------------------------------------------------------------------


def test_s36_a_worker_does_not_start_where_the_kernel_refuses(tmp_path):
    begin = ["unshare", "-Ur", "sh", "-c"]
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    start = ["worker", "start", "--server", "http://127.0.0.1:9"]
    ended = subprocess.run(
        [*begin, forbid, "sh", *COMMAND, *start],
        cwd=tmp_path,
        env=clean_environment(NOETL_SANDBOX="namespaces"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ended.returncode == 2, ended.stderr
    assert "NOETL_SANDBOX=namespaces" in ended.stderr
    assert "user.max_user_namespaces" in ended.stderr


def test_s36_a_refused_network_without_a_sandbox_is_not_promised():
    settings = Settings.from_environment({"NOETL_TASK_NETWORK": "refuse"})

    with pytest.raises(BadSetting, match="NOETL_SANDBOX=namespaces"):
        tool_rules(settings)
