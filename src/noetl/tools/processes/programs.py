"""Starts the processes of tasks: through a small spawner process, each under a supervisor.

The spawner has loaded what Python tasks need, and forks on request: a copy of itself that runs
Python code, or a program. A fork takes a few milliseconds and shares memory. Each process has a
supervisor, which knows all its descendants, even those that left its session, and ends them with
the task, or when the worker is gone. `spawner` is the other side.

What tasks have on disk while they run lies in one directory, which the spawner removes when the
worker is gone, however that ended.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

import noetl
from noetl.tools.processes.namespaces import Room
from noetl.tools.processes.spawner import (
    ENDED,
    KILL,
    NEWS,
    NO_ROOM,
    REFUSED,
    SIZE,
    STARTED,
    TERMINATE,
    Bounds,
    Spawn,
)
from noetl.tools.processes.tree import kill_all

INHERITED = ("PATH", "HOME", "LANG")
"""Variables of the worker's environment that every process of a task inherits."""


def inherited() -> dict[str, str]:
    """Their current values."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


GRACE_SECONDS = 0.3
"""Between asking a program to end and killing it."""
STUBBORN_SECONDS = 5.0
"""If a supervisor does not respond for this long, we kill the processes we know of ourselves."""

# Isolated from the worker's environment and directory, yet with every installed package. The source
# of this package comes first only until everything is loaded.
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from noetl.tools.processes.child import serve; "
    "from noetl.tools.processes.spawner import keep; "
    "del sys.path[0]; keep(int(sys.argv[2]), serve, sys.argv[3])"
)
_SOURCE = str(Path(noetl.__file__).parents[1])


class Spawned:
    """A process as the worker sees it. It ends when this is closed."""

    def __init__(self, spawn: Spawn, fds: list[int]) -> None:
        """`fds` are its ends of the connections; they are still ours to close."""
        self._loop = asyncio.get_running_loop()
        self.pid: int | None = None
        """Of its supervisor."""
        self.started: asyncio.Future[None] = self._loop.create_future()
        """Raises OSError if the program could not be started."""
        self.exited: asyncio.Future[int] = self._loop.create_future()
        """The exit code (as `Popen.returncode`), once the process and all its descendants are
        gone.
        """
        self.refusal: OSError | None = None
        """Why it could not be started."""
        self._unread = b""
        self._stubborn: asyncio.TimerHandle | None = None
        self._line, theirs = socket.socketpair()
        with theirs:
            try:
                spawner().ask(spawn, [theirs.fileno(), *fds])
            except BaseException:
                self._line.close()
                raise
        self._line.setblocking(False)
        self._loop.add_reader(self._line, self._read)

    def _read(self) -> None:
        try:
            data = self._line.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The supervisor was killed; the process dies with it.
            self._over(-signal.SIGKILL)
            return
        self._unread += data
        while len(self._unread) >= NEWS.size:
            what, number = NEWS.unpack_from(self._unread)
            self._unread = self._unread[NEWS.size :]
            self._hear(what, number)

    def _hear(self, what: bytes, number: int) -> None:
        if what == STARTED:
            self.pid = number
            if not self.started.done():
                self.started.set_result(None)
        elif what in (REFUSED, NO_ROOM):
            self.refusal = OSError(number, os.strerror(number))
            if what == NO_ROOM:
                told = f"its sandbox could not be made: {self.refusal.strerror}"
                self.refusal = ChildProcessError(told)
            if not self.started.done():
                self.started.set_exception(self.refusal)
        elif what == ENDED:
            self._over(number)

    def _over(self, code: int) -> None:
        self._loop.remove_reader(self._line)
        self._line.close()
        if self._stubborn is not None:
            self._stubborn.cancel()
        if not self.started.done():
            self.started.set_exception(ChildProcessError("its supervisor was killed"))
        if not self.exited.done():
            self.exited.set_result(code)
        # If nothing awaits it, the loop must not report its error at the end.
        if not self.started.cancelled():
            self.started.exception()

    def terminate(self) -> None:
        """Ask it and its descendants to end."""
        self._tell(TERMINATE)

    def kill(self) -> None:
        """Kill it and its descendants; `exited` is resolved when that is done."""
        self._tell(KILL)
        if self._stubborn is None and not self.exited.done():
            self._stubborn = self._loop.call_later(STUBBORN_SECONDS, self._kill_ourselves)

    def _kill_ourselves(self) -> None:
        if self.pid is not None and not self.exited.done():
            kill_all(self.pid)
            self._over(-signal.SIGKILL)

    def _tell(self, what: bytes) -> None:
        if self._line.fileno() >= 0:
            try:
                self._line.send(what)
            except OSError:
                self._read()

    async def dead(self) -> None:
        """Kill it, and wait until it is dead, even if this call is cancelled meanwhile."""
        self.kill()
        while not self.exited.done():
            try:
                await asyncio.wait([self.exited])
            except asyncio.CancelledError:
                await asyncio.wait([self.exited])
                raise


class Spawner:
    """The process that starts all others. There is one for this process, started on first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._folder: str | None = None
        self._lock = threading.Lock()

    @property
    def folder(self) -> str | None:
        """A directory for what tasks have on disk while they run. None: make one anywhere."""
        self.warm()
        if self._folder is not None and not _is_ours(self._folder):
            # Some systems delete what lies in /tmp for days; others might take the name then.
            self._folder = None
        return self._folder

    def ask(self, spawn: Spawn, fds: list[int]) -> None:
        message = msgspec.msgpack.encode(spawn)
        with self._lock:
            try:
                self._send(message, fds)
            except (BrokenPipeError, ConnectionResetError):
                # The spawner was killed: start another. The processes it started continue.
                self._close()
                self._send(message, fds)

    def warm(self) -> None:
        """Start it now, so that the first task need not wait for it."""
        with self._lock:
            if self._line is None:
                self._start()

    def _send(self, message: bytes, fds: list[int]) -> None:
        if self._line is None:
            self._start()
        assert self._line is not None
        socket.send_fds(self._line, [SIZE.pack(len(message))], fds)
        self._line.sendall(message)

    def _start(self) -> None:
        if self._folder is None:
            # Most tasks need none; those that do fail where they ask for theirs.
            with suppress(OSError):
                self._folder = tempfile.mkdtemp(prefix="noetl-")
        words = [sys.executable, "-I", "-X", "utf8", "-c", _START, _SOURCE]
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*words, str(theirs.fileno()), self._folder or ""],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=inherited(),
                # A signal to our own group must not reach it: it is needed until the end.
                start_new_session=True,
            )
        self._line = ours

    def close(self) -> None:
        """End it. It removes the directory."""
        with self._lock:
            self._close()
            self._folder = None

    def _close(self) -> None:
        if self._line is not None:
            assert self._process is not None
            self._line.close()
            self._line = None
            self._process.wait()


def _is_ours(folder: str) -> bool:
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@cache
def spawner() -> Spawner:
    """The one spawner of this process."""
    made = Spawner()
    atexit.register(made.close)
    return made


def task_directory() -> tempfile.TemporaryDirectory[str]:
    """A new directory for one call, removed when its context ends; if this process ends first, by
    the spawner.
    """
    return tempfile.TemporaryDirectory(
        prefix="task-", dir=spawner().folder, ignore_cleanup_errors=True
    )


# --- Programs ----------------------------------------------------------------------------------


class Program(msgspec.Struct, frozen=True, eq=False):
    """A running program with its three streams. Closing it ends everything it started."""

    spawned: Spawned
    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    reading: list[asyncio.BaseTransport]

    @classmethod
    async def start(
        cls,
        words: list[str],
        environment: dict[str, str],
        directory: str,
        bounds: Bounds | None,
        *,
        writes: bool,
        room: Room | None = None,
        line_max: int = 64 * 1024,
    ) -> Program:
        """Raises OSError if there is no such program or directory, ValueError for a NUL.

        `writes`: its standard input is written to; otherwise it is empty.
        """
        if any("\0" in text for text in (directory, *words, *environment, *environment.values())):
            raise ValueError("embedded null byte")
        # Relative to our directory: the spawner may have another.
        directory = os.path.abspath(directory)
        spawn = Spawn(bounds, tuple(words), environment, directory, room=room)
        ours, theirs = _pipes(writes)
        try:
            spawned = Spawned(spawn, theirs)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        joining = asyncio.ensure_future(cls._joined(spawned, ours, line_max))
        try:
            await asyncio.shield(joining)
            await asyncio.shield(spawned.started)
        except BaseException:
            # Once begun, a start is completed: half a start could not be stopped. The program may
            # run before we hear that it does, so it is asked to end like one that has started.
            program = await joining
            try:
                await program.stop()
            finally:
                await program.close()
            raise
        return joining.result()

    @classmethod
    async def _joined(cls, spawned: Spawned, ours: list[int], line_max: int) -> Program:
        """Connect streams to our ends."""
        out, reading_out = await _reader(ours[0], line_max)
        err, reading_err = await _reader(ours[1], line_max)
        writer = await _writer(ours[2]) if len(ours) > 2 else None
        return cls(spawned, writer, out, err, [reading_out, reading_err])

    async def ended(self) -> int:
        """The exit code, once it and its descendants are gone."""
        return await asyncio.shield(self.spawned.exited)

    async def stop(self) -> None:
        """Ask it to end, and give it time to; `close` kills what is left."""
        self.spawned.terminate()
        await asyncio.wait([self.spawned.exited], timeout=GRACE_SECONDS)

    async def close(self) -> None:
        """Kill what is left of it. When this returns, it is dead."""
        try:
            await self.spawned.dead()
        finally:
            for transport in self.reading:
                transport.close()
            if self.stdin is not None:
                self.stdin.close()


async def _reader(fd: int, line_max: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(line_max, loop)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(fd, "rb", 0)
    )
    return reader, transport


async def _writer(fd: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, flow = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(fd, "wb", 0)
    )
    return asyncio.StreamWriter(transport, flow, None, loop)


def _pipes(writes: bool) -> tuple[list[int], list[int]]:
    """Our ends (output, errors, perhaps input) and theirs (input, output, errors)."""
    out, their_out = os.pipe()
    err, their_err = os.pipe()
    if not writes:
        return [out, err], [os.open(os.devnull, os.O_RDONLY), their_out, their_err]
    their_in, into = os.pipe()
    return [out, err, into], [their_in, their_out, their_err]
