"""`noetl` in real processes that need not import it first.

A Python process imports NoETL once and forks for each command that a test starts. The fork is a
process like any other: it has its own id, environment, directory, pipes, signals and exit code,
and it runs what is registered for its end. Only the imports are missing, half a second, which is
most of what a short command costs. Tests of the start itself use `subprocess`; so does whatever
has something in its environment that the interpreter reads (`PYTHON…`, a locale).

The command gets what it starts itself from the same place, if it would import the same again: the
processes that compile and simulate for a server.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

MESSAGE_BYTES_MAX = 100_000
NUMBER = struct.Struct("i")
BEYOND_STANDARD = 3
OUT_OF_THE_WAY = 500
"""Descriptors are moved up here before they get the numbers that the command expects."""
ASKING = 900
"""The descriptor by which a forked command asks for a process of its own."""
OWN_THREADS = (
    "noetl.tools.duckdb.",
    "noetl.tools.sql.duckdb",
    "noetl.tools.tables.files",
    "noetl.tools.transfer.",
)
"""They import DuckDB, which starts a thread that a fork would lose."""
RARE = ("noetl.tools.sqlalchemy.", "noetl.tools.testing")
"""They import SQLAlchemy and pytest: a fifth of the memory that each fork maps, and few use it."""

IMPORTED_LATE = ("argon2", "click._textwrap", "encodings.idna", "pwd", "re2", "uvloop")
"""What modules of NoETL and of others import only where it is used, and many commands use."""


# --- The tests' side ---------------------------------------------------------------------------


def popen(words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen`, forked where that makes no difference."""
    kind = _Forked if _can_be_forked(words, options) else subprocess.Popen
    return kind(words, **options)


def run(
    words: Sequence[str],
    *,
    input: Any = None,  # noqa: A002 - as `subprocess.run` calls it
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`, forked where that makes no difference."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _can_be_forked(words: Sequence[str], options: Mapping[str, Any]) -> bool:
    known = {"args", "cwd", "env", "stdin", "stdout", "stderr", "text", "encoding", "pass_fds"}
    return (
        sys.platform == "linux"
        and words[0] == sys.executable
        and (words[1] == "-m" or words[1].endswith(".py"))
        and options.get("env") is not None
        and known.issuperset(options)
        and len(_message(words, options["env"], "")) < MESSAGE_BYTES_MAX
        and _read_by_the_interpreter(options["env"]) == _source().settings
    )


def _read_by_the_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter itself reads of an environment; buffering is seen to after the fork."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LC_", "LANG", "MALLOC_", "LD_"))
        and name != "PYTHONUNBUFFERED"
    }


def _message(words: Sequence[str], environment: Mapping[str, str], cwd: str) -> bytes:
    told = {"words": list(words[1:]), "env": dict(environment), "cwd": cwd}
    return json.dumps(told).encode(errors="surrogateescape")


class _Source:
    """The process that imported everything; it lives as long as the tests do."""

    def __init__(self) -> None:
        from tests.cli.conftest import clean_environment

        environment = clean_environment()
        self.settings = _read_by_the_interpreter(environment)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._turn = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def start(self, message: bytes, descriptors: list[int], numbers: list[int]) -> tuple[int, int]:
        with self._turn:
            return _started(self._socket, message, descriptors, numbers)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def _started(
    source: socket.socket, message: bytes, descriptors: list[int], numbers: list[int]
) -> tuple[int, int]:
    """The new process' id, and where its exit status will come."""
    status, theirs = os.pipe()
    told = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs, *descriptors]))]
    head = json.dumps(numbers).encode() + b"\n"
    try:
        source.sendmsg([head + message], told)
    finally:
        os.close(theirs)
    return NUMBER.unpack(os.read(status, NUMBER.size))[0], status


@functools.cache
def _source() -> _Source:
    return _Source()


def share() -> None:
    """Start the source now: processes that are forked from this one ask the same.

    What one asks is one message, and the answer comes by a pipe of its own.
    """
    _source()


class _Forked(subprocess.Popen[Any]):
    """A process whose parent is the source: it tells how the process ended."""

    _status = -1

    def _execute_child(
        self, args: Any, _executable: Any, _preexec: Any, _close: Any, pass_fds: Any, cwd: Any,
        env: Any, _startup: Any, _flags: Any, _shell: Any, p2cread: int, p2cwrite: int,
        c2pread: int, c2pwrite: int, errread: int, errwrite: int, *_rest: Any,
    ) -> None:  # fmt: skip
        given = [p2cread, c2pwrite, errwrite]
        standard = [number if given[number] < 0 else given[number] for number in range(3)]
        message = _message(args, env, os.fspath(cwd or os.getcwd()))
        descriptors = [*standard, *pass_fds]
        numbers = [0, 1, 2, *pass_fds]
        self.pid, self._status = _source().start(message, descriptors, numbers)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags == os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        said = os.read(self._status, NUMBER.size)
        os.close(self._status)
        return self.pid, NUMBER.unpack(said)[0]

    def _internal_poll(self, _deadstate: int | None = None, **_more: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


# --- The side of the process that forks --------------------------------------------------------


def import_all() -> None:
    """What commands would import, as far as a fork keeps it whole."""
    import noetl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(noetl.__path__, "noetl."):
            left_out = module.name.startswith(OWN_THREADS + RARE)
            if not left_out and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        for late in IMPORTED_LATE:
            importlib.import_module(late)
        importlib.import_module("noetl.tools.registry").kinds()
    make_once()
    assert len(os.listdir("/proc/self/task")) == 1, "an import started a thread: do not import it"


PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: first, path: tests/first}
workflow:
  - step: start
    loop: {in: [1], iterator: one}
    tool: {kind: noop, result: "{{ iter.one }}"}
    next: end
  - step: end
    tool: {kind: noop}
"""


def make_once() -> None:
    """What a process makes for its first command, execution and call, and keeps: the forks of this
    one have it. A whole system runs in here, and nothing of it is left."""
    import click

    from noetl.api.table import TABLE
    from noetl.cli.commands import noetl
    from noetl.errors import BadRequest
    from noetl.serving import server
    from noetl.settings import Settings
    from noetl.wiring import embedded, here

    async def work(folder: str) -> None:
        settings = Settings.from_environment({"NOETL_DATABASE_URL": f"sqlite:///{folder}/noetl.db"})
        async with embedded(settings) as system:
            client = here(system).client
            await client.register(PLAYBOOK)
            started = await client.start("tests/first")
            assert [event async for event in client.follow(started.execution_id)]
        async with server(settings, host="127.0.0.1", port=0, work=True):
            pass

    def prepare(command: click.Command, above: click.Context | None = None) -> None:
        context = click.Context(command, above)
        command.make_parser(context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                prepare(command.get_command(context, name), context)  # type: ignore[arg-type]

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(work(folder))
    tempfile.tempdir = None  # each fork asks its own environment
    prepare(noetl)
    for route in TABLE:
        with contextlib.suppress(BadRequest):
            route.reader.query(b"")


class Wanted(NamedTuple):
    """What a fork is to become."""

    told: dict[str, Any]
    given: list[int]
    """Descriptors, and the numbers that the command expects them under."""
    numbers: list[int]
    source: socket.socket
    """Where it asks for a process of its own."""


def serve(line: socket.socket) -> Wanted:
    """Fork for everything that is asked for. Returns in the fork; ends when no test can ask."""
    statuses: dict[int, tuple[int, int]] = {}
    lines = {line.fileno(): line}
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in lines:
                asking = lines[descriptor]
                message, descriptors, _, _ = socket.recv_fds(asking, 2 * MESSAGE_BYTES_MAX, 250)
                if not message and asking is line:
                    os._exit(0)
                if not message:
                    poll.unregister(descriptor)
                    lines.pop(descriptor).close()
                    continue
                status, *given = descriptors
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                pid = os.fork()
                if not pid:
                    head, _, body = message.partition(b"\n")
                    told = json.loads(body.decode(errors="surrogateescape"))
                    return Wanted(told, given, json.loads(head), theirs)
                theirs.close()
                lines[ours.fileno()] = ours
                poll.register(ours, select.POLLIN)
                for number in given:
                    os.close(number)
                os.write(status, NUMBER.pack(pid))
                ended = os.pidfd_open(pid)
                statuses[ended] = pid, status
                poll.register(ended, select.POLLIN)
            else:
                pid, status = statuses.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                _, code = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):  # Nobody asks how it ended.
                    os.write(status, NUMBER.pack(code))
                os.close(status)


def become(told: dict[str, Any], given: list[int], numbers: list[int], asked: int) -> NoReturn:
    """Be the command, as if this interpreter had been started for it."""
    source = socket.socket(fileno=fcntl.fcntl(asked, fcntl.F_DUPFD_CLOEXEC, ASKING))
    asyncio.create_subprocess_exec = functools.partial(_child, source)  # type: ignore[assignment]
    high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for number in given]
    os.closerange(BEYOND_STANDARD, OUT_OF_THE_WAY)
    for source, number in zip(high, numbers, strict=True):
        os.dup2(source, number)
    os.closerange(OUT_OF_THE_WAY, max(high) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(told["env"])
    time.tzset()  # As an interpreter does that begins with this environment.
    os.chdir(told["cwd"])
    buffered = not told["env"].get("PYTHONUNBUFFERED")
    sys.stdin = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8", errors="surrogateescape"
    )
    sys.stdout = _writer(1, "surrogateescape", buffered=buffered, lines=os.isatty(1))
    sys.stderr = _writer(2, "backslashreplace", buffered=buffered, lines=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    code = 0
    try:
        _run(told["words"], told["cwd"])
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        code = -signal.SIGINT
    except BaseException:  # noqa: BLE001 - the interpreter shows it, whatever it is
        sys.excepthook(*sys.exc_info())
        code = 1
    end(code)


async def _child(source: socket.socket, *words: str, **options: Any) -> Any:
    """As `asyncio.create_subprocess_exec`, forked if it serves what a module of NoETL does."""
    is_ours = words[:2] == (sys.executable, "-c") and words[2].endswith("import serve; serve()")
    if not is_ours or options["stderr"] != subprocess.DEVNULL:
        return await asyncio.subprocess.create_subprocess_exec(*words, **options)
    ours, theirs = socket.socketpair()
    with theirs, open(os.devnull, "w") as nowhere:
        given = [theirs.fileno(), theirs.fileno(), nowhere.fileno()]
        message = _message(words, options["env"], os.getcwd())
        pid, status = _started(source, message, given, [0, 1, 2])
    return _Child(pid, status, *await asyncio.open_connection(sock=ours))


class _Child:
    """As `asyncio.subprocess.Process`, as far as NoETL uses it."""

    def __init__(
        self, pid: int, status: int, stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter
    ) -> None:
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout = stdout
        self._pid = pid
        self._status = status
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(status, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._status)
        said = os.read(self._status, NUMBER.size)
        os.close(self._status)
        self.returncode = os.waitstatus_to_exitcode(NUMBER.unpack(said)[0])
        self._ended.set()

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self._pid, signal.SIGKILL)

    async def wait(self) -> None:
        await self._ended.wait()
        self.stdin.close()

    async def communicate(self, said: bytes) -> tuple[bytes, None]:
        self.stdin.write(said)
        self.stdin.write_eof()
        return await self.stdout.read(), None


def _run(words: list[str], cwd: str) -> None:
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.path[0] = cwd
        sys.argv = ["-m", *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(words[0])
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def end(code: int) -> NoReturn:
    """As an interpreter ends, except that it does not take every imported module apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _writer(number: int, errors: str, *, buffered: bool, lines: bool) -> Any:
    raw: Any = io.FileIO(number, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if buffered else raw,
        encoding="utf-8",
        errors=errors,
        line_buffering=lines,
        write_through=not buffered,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        asked.set_inheritable(False)
        gc.disable()  # None of what is imported is garbage.
        import_all()
        gc.freeze()
        gc.enable()
        wanted = serve(asked)
        asked.detach()
    become(wanted.told, wanted.given, wanted.numbers, wanted.source.detach())
