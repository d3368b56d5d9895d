"""The process that starts the processes of tasks, and the supervisors that end them.

It works in a single thread, so that it can fork. Each process of a task has a supervisor as its
parent. The supervisor is a sub-reaper: everything the task starts, in any session, stays below it,
and is killed when the task's process ends, when the worker asks for it, or when the worker is gone.
If a supervisor itself is killed, its processes fall to the spawner, which kills them. At its own
end, when no process of a task is left, the spawner removes what they had on disk. A service manager
may ask all processes of a service to end at once; spawner and supervisors ignore that, because they
are needed until the worker and its tasks have ended.

A process of a task cannot inspect others or be inspected by them, gains no privileges through
setuid programs, and, if the kernel has Landlock, cannot trace or signal processes that it did not
start.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from noetl.tools.processes.namespaces import (
    HOME,
    PRIVATE,
    Room,
    build,
    drop_capabilities,
    unshare,
)
from noetl.tools.processes.tree import descendants

SIZE = struct.Struct(">I")
NEWS = struct.Struct(">ci")
"""A message of a supervisor: one of these letters, and a number."""
STARTED, REFUSED, NO_ROOM, ENDED = b"S", b"X", b"N", b"E"
KILL, TERMINATE = b"K", b"T"
"""Messages to a supervisor. A closed connection means KILL."""
FDS_MAX = 8
OOM_SCORE = "500"
"""When memory runs out, the kernel kills tasks before the worker."""
NOT_STARTED = 127
REQUESTS = (signal.SIGTERM, signal.SIGHUP)
"""Signals by which others ask a process to end."""
_PARENT_DEATH_SIGNAL, _DUMPABLE, _NO_NEW_PRIVILEGES, _SUBREAPER = 1, 4, 38, 36
_SIGHT = (19, 21, 38)
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON."""
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_RULESET_VERSION = 1
_SCOPES_SINCE = 6
_SCOPE_SIGNALS = 1 << 1
_MAKE_BLOCK_DEVICES = 1 << 11

Serve = Callable[[int, int, tuple[str, ...]], None]
"""Runs Python code that arrives over a socket: its descriptor, the maximum message size, and
private directories that are emptied after every call."""


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """Resource limits of a process of a task; None: no limit of ours."""

    memory: int | None = None
    """Bytes of address space."""
    processes: int | None = None
    file_bytes: int | None = None
    """The size of one file that it writes."""


class Spawn(msgspec.Struct, frozen=True, array_like=True):
    """A request to start a process. The supervisor's connection and the process's own descriptors
    are sent with it.
    """

    bounds: Bounds | None
    """None: a program of the operator, not of a task's author; it may do what the worker may."""
    words: tuple[str, ...] = ()
    """A program and its arguments, with its three standard streams; empty: Python code."""
    environment: dict[str, str] = {}
    directory: str = ""
    message_max: int = 0
    packages: str | None = None
    """For Python code: the maximum message size, and a directory of more packages."""
    room: Room | None = None
    """None: it sees the machine as the worker does."""


_decode = msgspec.msgpack.Decoder(Spawn).decode


def keep(fd: int, serve: Serve, folder: str) -> None:
    """Start processes for the worker, until it closes its end and all have ended. Then remove the
    directory of its tasks: if the worker was killed, nobody else does.
    """
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(fd, False)
    if sys.platform == "linux":
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(OOM_SCORE)
    _hide()
    _reap_orphans()
    wake = _woken_by_children()
    # Objects that exist now live as long as this process: exclude them from collection and copying.
    gc.collect()
    gc.freeze()
    line: socket.socket | None = socket.socket(fileno=fd)
    ours: set[int] = set()
    has_orphans = False
    while line is not None or ours:
        heard: list[int | socket.socket] = [wake] if line is None else [wake, line]
        ready, _, _ = select.select(heard, [], [])
        if wake in ready:
            _drain(wake)
            has_orphans = _reap(ours, has_orphans)
        if line in ready:
            assert line is not None
            request = _received(line)
            if request is None:
                line.close()
                line = None
                continue
            spawn, fds = request
            pid = os.fork()
            if pid == 0:
                _as_supervisor(spawn, fds, serve, close=(line.detach(), wake))
            ours.add(pid)
            for one in fds:
                os.close(one)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _received(line: socket.socket) -> tuple[Spawn, list[int]] | None:
    head, fds, _, _ = socket.recv_fds(line, SIZE.size, FDS_MAX)
    while head and len(head) < SIZE.size:
        head += line.recv(SIZE.size - len(head))
    if not head:
        return None
    (size,) = SIZE.unpack(head)
    body = bytearray()
    while len(body) < size:
        data = line.recv(size - len(body))
        if not data:
            return None
        body += data
    for fd in fds:
        os.set_inheritable(fd, False)
    return _decode(body), fds


def _reap(ours: set[int], has_orphans: bool) -> bool:
    """Reap supervisors that have ended. If one was killed, its processes are ours now.

    A process that we kill may have children, which fall to us when it is dead; so we look again
    after every death, until nothing is left. Returns whether something was.
    """
    ended = [(pid, status) for pid, status in _ended_children() if pid in ours]
    ours.difference_update(pid for pid, _ in ended)
    if not has_orphans and not any(status for _, status in ended):
        return False
    orphans = [pid for pid in descendants(os.getpid(), deep=False) if pid not in ours]
    for pid in orphans:
        for orphan in (pid, *descendants(pid)):
            _signal(orphan, signal.SIGKILL)
    return bool(orphans)


# --- The supervisor ----------------------------------------------------------------------------


def _as_supervisor(spawn: Spawn, fds: list[int], serve: Serve, close: tuple[int, ...]) -> NoReturn:
    try:
        for fd in close:
            os.close(fd)
        _supervise(spawn, fds, serve)
    except BaseException:  # noqa: BLE001 - nobody is above us to see it
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _supervise(spawn: Spawn, fds: list[int], serve: Serve) -> NoReturn:
    """Start it, wait for its end or for a message of the worker, then end everything left of it."""
    os.setsid()
    if spawn.bounds is not None:
        _reap_orphans()
    line = socket.socket(fileno=fds[0])
    wake = _woken_by_children()
    begun, begins = os.pipe()
    last, lasts = os.pipe()
    if spawn.room is not None:
        try:
            unshare()
        except OSError as error:
            _say(line, NO_ROOM, error.errno or errno.EINVAL)
            raise
    main = os.fork()
    if main == 0:
        _as_task(spawn, fds, serve, begins, lasts, close=(wake, begun, last))
    for fd in (*fds[1:], begins, lasts):
        os.close(fd)
    # It closes by itself when the program runs.
    refusal = os.read(begun, 16)
    os.close(begun)
    if refusal:
        _say(line, refusal[:1], int(refusal[1:]))
    else:
        _say(line, STARTED, os.getpid())
    code = None
    while code is None:
        heard: list[int | socket.socket] = [wake, line]
        ready, _, _ = select.select(heard, [], [])
        if wake in ready:
            _drain(wake)
            code = _code_of(main, _ended_children())
        if line in ready and code is None:
            word = _heard(line)
            if word == TERMINATE:
                for pid in descendants(os.getpid()):
                    _signal(pid, signal.SIGTERM)
            elif word == KILL:
                break
    if code is None and spawn.bounds is not None:
        code = _killed(main)
    code = _kill_the_rest(main, code)
    if spawn.room is not None:
        # The first process of the room cannot end the way the task's process did, so it reports the
        # code.
        code = int(os.read(last, 16) or -signal.SIGKILL)
    _say(line, ENDED, code)
    os._exit(0)


def _heard(line: socket.socket) -> bytes:
    try:
        return line.recv(1) or KILL
    except OSError:
        return KILL


def _say(line: socket.socket, what: bytes, number: int) -> None:
    # If the worker is gone, the next read shows that.
    with suppress(OSError):
        line.sendall(NEWS.pack(what, number))


def _killed(main: int) -> int:
    """Kill the main process and its group. Returns how it ended.

    What it leaves falls to us, a sub-reaper; mostly that is nothing, and then nobody needs to look
    through all processes of the machine for it.
    """
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(main, signal.SIGKILL)
    _, status = os.waitpid(main, 0)
    return os.waitstatus_to_exitcode(status)


def _kill_the_rest(main: int, code: int | None) -> int:
    """Kill all descendants until none is left. Returns how the main process ended."""
    while _has_children():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(main, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        ended = _ended_children(at_least_one=True)
        if code is None:
            code = _code_of(main, ended)
    return -signal.SIGKILL if code is None else code


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _code_of(main: int, ended: list[tuple[int, int]]) -> int | None:
    return next((os.waitstatus_to_exitcode(status) for pid, status in ended if pid == main), None)


def _ended_children(*, at_least_one: bool = False) -> list[tuple[int, int]]:
    """Reap children that have ended; waits for the first if asked to."""
    found: list[tuple[int, int]] = []
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, 0 if at_least_one and not found else os.WNOHANG)
            if pid == 0:
                break
            found.append((pid, status))
    return found


def _woken_by_children() -> int:
    """A pipe that becomes readable when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    if before >= 0:
        os.close(before)
    return read


def _drain(pipe: int) -> None:
    with suppress(BlockingIOError):
        while os.read(pipe, 4096):
            continue


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


# --- The process of a task ---------------------------------------------------------------------


def _as_task(
    spawn: Spawn, fds: list[int], serve: Serve, begins: int, lasts: int, close: tuple[int, ...]
) -> NoReturn:
    code = NOT_STARTED
    try:
        os.close(signal.set_wakeup_fd(-1))
        for number in (signal.SIGCHLD, *REQUESTS):
            signal.signal(number, signal.SIG_DFL)
        line, *fds = fds
        for fd in (*close, line):
            os.close(fd)
        os.setsid()
        _die_with_supervisor()
        if spawn.room is not None:
            _enter(spawn.room, spawn.bounds, begins, lasts, fds)
        os.close(lasts)
        if spawn.bounds is not None:
            _confine()
            _bound(spawn.bounds)
        if spawn.words:
            _run_program(spawn, fds, begins)
        _reap_orphans()
        messages, output = fds
        os.close(begins)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        if spawn.packages is not None:
            sys.path.insert(0, spawn.packages)
        os.environ.clear()
        os.environ.update(spawn.environment)
        if spawn.room is not None:
            os.environ["HOME"] = HOME
        serve(messages, spawn.message_max, PRIVATE if spawn.room is not None else ())
        code = 0
    except BaseException:  # noqa: BLE001 - nobody is above us to see it
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _run_program(spawn: Spawn, streams: list[int], begins: int) -> NoReturn:
    """Become the program; if that fails, report why to the worker."""
    try:
        os.chdir(spawn.directory)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        # Python ignores these signals; programs expect the default.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        variables = spawn.environment
        if spawn.room is not None and variables.get("HOME") == os.environ.get("HOME"):
            variables = {**variables, "HOME": HOME}
        os.execvpe(spawn.words[0], spawn.words, variables)  # noqa: S606 - the task's own
    except OSError as error:
        _refuse(begins, REFUSED, error)
    os._exit(NOT_STARTED)


def _refuse(begins: int, what: bytes, error: OSError) -> None:
    os.write(begins, what + str(error.errno or errno.EINVAL).encode())


def _enter(room: Room, bounds: Bounds | None, begins: int, lasts: int, fds: list[int]) -> None:
    """Build the room, and continue in it as another process.

    The first process of a pid namespace is special: signals do not reach it, and it inherits all
    orphans. So it only waits for the task's own process and reports how that ended.
    """
    try:
        build(room, None if bounds is None else bounds.processes)
        drop_capabilities()
    except OSError as error:
        _refuse(begins, NO_ROOM, error)
        raise
    main = os.fork()
    if main == 0:
        os.setsid()
        return
    for fd in (begins, *fds):
        os.close(fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = None
    while code is None:
        code = _code_of(main, _ended_children(at_least_one=True))
    os.write(lasts, str(code).encode())
    os._exit(0)


def _bound(bounds: Bounds) -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, bounds.memory),
        (resource.RLIMIT_NPROC, bounds.processes),
        (resource.RLIMIT_FSIZE, bounds.file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        if limit is not None:
            _, most = resource.getrlimit(kind)
            limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (limit, limit))


# --- Kernel features ---------------------------------------------------------------------------


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _hide() -> None:
    """No process of the same user may inspect this process or its copies."""
    _prctl(_DUMPABLE, 0)


def _reap_orphans() -> None:
    """Orphaned descendants become our children."""
    _prctl(_SUBREAPER, 1)


def _die_with_supervisor() -> None:
    supervisor = os.getppid()
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(NOT_STARTED)


def _confine() -> None:
    """Prevent tracing, reading and signalling of processes that it did not start."""
    _prctl(_NO_NEW_PRIVILEGES, 1)
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if os.geteuid() == 0:
        # A task of the superuser could inspect other processes. Where the operator's filter refuses
        # the call, tasks run all the same.
        with suppress(OSError):
            drop_capabilities(_SIGHT)
    version = libc.syscall(_CREATE_RULESET, None, 0, _RULESET_VERSION)
    if version < 1:
        return
    # A ruleset must restrict something. On kernels whose rulesets cannot restrict signals, it is
    # the creation of block devices, which no task needs; any ruleset prevents tracing others.
    has_scopes = version >= _SCOPES_SINCE
    rules = (ctypes.c_uint64 * 3)(
        0 if has_scopes else _MAKE_BLOCK_DEVICES, 0, _SCOPE_SIGNALS if has_scopes else 0
    )
    ruleset = libc.syscall(_CREATE_RULESET, rules, 24 if has_scopes else 8, 0)
    if ruleset >= 0:
        libc.syscall(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
