"""Warm processes that run the Python code of tasks, away from the worker and its secrets.

A process serves one call at a time and is used again. It is killed with all it started when its
call times out or is cancelled, and replaced when it ends by itself or is spoiled by a call. The
code sees no environment but `PATH`, `HOME` and `LANG`. What it prints is read from a pipe of its
own; the calls and answers go over a socket that the code has no name for.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import noetl
from noetl.tools.running.guard import guard
from noetl.tools.running.processes import ending, kill_all
from noetl.tools.running.python_calls import Answer, Call, Crashed

SIZE = struct.Struct(">I")
CHUNK = 256 * 1024
ENVIRONMENT = ("PATH", "HOME", "LANG")
MESSAGE_MAX = 512 * 1024 * 1024
CALLS_MAX = 10_000
"""After so many calls a process is replaced, so that what code leaves behind has an end."""
START_SECONDS = 30.0

# Isolated from the worker's environment and directory, yet with every installed package. The
# source of this package comes first only until the child is loaded.
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from noetl.worker.sandbox_child import serve; "
    "del sys.path[0]; sys.path[:0] = sys.argv[4:]; serve(int(sys.argv[2]), int(sys.argv[3]))"
)
_SOURCE = str(Path(noetl.__file__).parents[1])
_decode_answer = msgspec.msgpack.Decoder(Answer).decode
_encode = msgspec.msgpack.Encoder().encode


def _nobody(text: str) -> None:
    """Takes what is printed between calls."""


class Child:
    """One process and the two lines to it."""

    def __init__(self, message_max: int, packages: str | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._message_max = message_max
        self.calls = 0
        self.spoiled = False
        self._waiting: asyncio.Future[bytes] | None = None
        self._unread = bytearray()
        self._unsent = memoryview(b"")
        self._log: Callable[[str], None] = _nobody
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._line, theirs = socket.socketpair()
        self._output, their_output = os.pipe()
        with theirs:
            try:
                arguments = [str(theirs.fileno()), str(message_max)]
                arguments += [] if packages is None else [packages]
                self.process = self._started(theirs.fileno(), their_output, arguments)
            except BaseException:
                self._line.close()
                os.close(self._output)
                raise
            finally:
                os.close(their_output)
        # It ends with us by itself; what code started in it does not.
        guard().watch(self.process.pid)
        self._line.setblocking(False)
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._line, self._read_line)
        self._loop.add_reader(self._output, self._read_output)
        self.ready: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting = self.ready

    @staticmethod
    def _started(line: int, output: int, arguments: list[str]) -> subprocess.Popen[bytes]:
        # Started from the loop's own thread: the child asks to be killed when that thread ends.
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-X", "utf8", "-c", _START, _SOURCE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(line,),
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )

    # --- A call ---

    async def call(self, message: bytes, log: Callable[[str], None]) -> Answer:
        """Send a call and wait for its answer; raises Crashed when there will be none."""
        self.calls += 1
        self._log = log
        self._waiting = self._loop.create_future()
        try:
            self._send(SIZE.pack(len(message)) + message)
            answer = _decode_answer(await self._waiting)
        except msgspec.MsgspecError as error:
            raise Crashed(f"The Python process gave an answer we cannot read: {error}.") from error
        finally:
            self._read_output()
            if rest := self._text.decode(b"", final=True):
                log(rest)
            self._log = _nobody
            self._waiting = None
        self.spoiled = answer.spoiled
        return answer

    def _send(self, data: bytes) -> None:
        try:
            sent = self._line.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end()
            return
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._line, self._send_more)

    def _send_more(self) -> None:
        try:
            sent = self._line.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._loop.remove_writer(self._line)
            self._end()
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._line)

    def _read_line(self) -> None:
        try:
            data = self._line.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._unread += data
        if len(self._unread) < SIZE.size:
            return
        (size,) = SIZE.unpack_from(self._unread)
        if size > self._message_max + 1024:
            self._end()
        elif len(self._unread) >= SIZE.size + size:
            message = bytes(memoryview(self._unread)[SIZE.size : SIZE.size + size])
            self._unread.clear()
            self._answer(message)

    def _answer(self, message: bytes) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(message)

    def _read_output(self) -> None:
        """Take what is printed so far; bounded, so that a flood cannot hold up the loop."""
        for _ in range(16):
            try:
                data = os.read(self._output, CHUNK)
            except (BlockingIOError, OSError):
                return
            if not data:
                self._loop.remove_reader(self._output)
                return
            if text := self._text.decode(data):
                self._log(text)

    # --- The end ---

    @property
    def is_fit(self) -> bool:
        return not self.spoiled and self.calls < CALLS_MAX and self._line.fileno() >= 0

    def _end(self) -> None:
        """No answer will come: make sure of it, and tell whoever waits."""
        self.spoiled = True
        self._loop.remove_reader(self._line)
        self._let_die()
        self.kill()
        self.process.wait()
        guard().forget(self.process.pid)
        if self._waiting is not None and not self._waiting.done():
            how = ending(self.process.returncode)
            self._waiting.set_exception(Crashed(f"The Python process {how}."))

    def _let_die(self) -> None:
        """Its line closes a moment before it is gone; wait for that, to learn how it ended."""
        if not hasattr(os, "waitid"):
            return
        for _ in range(50):
            # Not to reap it: while it is there, its number can mean no other group.
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.001)

    def kill(self) -> None:
        """Kill the process, and whatever it left behind if it is gone already."""
        self.spoiled = True
        if self.process.returncode is None:
            kill_all(self.process.pid)

    async def dispose(self) -> None:
        """Kill it and all it started; when this returns it is dead."""
        self.kill()
        self._read_output()
        for fd in (self._line, self._output):
            self._loop.remove_reader(fd)
        if self._unsent:
            self._loop.remove_writer(self._line)
        try:
            while self.process.poll() is None:
                await asyncio.sleep(0.001)
        finally:
            # Cancelled while waiting: it was killed, so this takes no longer than that does.
            self.process.wait()
            guard().forget(self.process.pid)
            self._line.close()
            os.close(self._output)
            if self._waiting is not None and not self._waiting.done():
                self._waiting.cancel()


class SandboxPool:
    """At most `size` calls at once; the next ones wait their turn.

    `packages` is a directory of packages that the code may import before all others.
    """

    def __init__(
        self, size: int = 2, *, message_max: int = MESSAGE_MAX, packages: str | None = None
    ) -> None:
        self._free_places = size
        self._size = size
        self._message_max = message_max
        self._packages = packages
        self._idle: list[Child] = []
        self._queue: deque[asyncio.Future[None]] = deque()
        self._endings: set[asyncio.Task[None]] = set()
        self._busy: set[Child] = set()
        self._closed = False

    async def warm(self) -> None:
        """Have every process ready before the first call."""
        while len(self._idle) + len(self._busy) < self._size:
            self._idle.append(Child(self._message_max, self._packages))
        await asyncio.gather(*(asyncio.shield(child.ready) for child in self._idle))

    async def call(
        self,
        code: str,
        *,
        name: str,
        inputs: Mapping[str, Any],
        context: Mapping[str, Any],
        log: Callable[[str], None],
        timeout: float | None = None,
        lines: str = "",
    ) -> Answer:
        """Run the code in a process of its own; see `Sandbox.call`."""
        message = _encode(Call(code, name, inputs, context, lines))
        if len(message) > self._message_max:
            raise OverflowError(
                f"the code and its inputs are {len(message):,} bytes long, more than "
                f"{self._message_max:,}"
            )
        await self._take_place()
        try:
            child = self._taken_child()
            try:
                await self._until_ready(child)
                if timeout is None:
                    return await child.call(message, log)
                async with asyncio.timeout(timeout):
                    return await child.call(message, log)
            except BaseException:
                child.spoiled = True
                raise
            finally:
                await self._give_back(child)
        finally:
            self._leave_place()

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for child in [*idle, *self._busy]:
            child.kill()
        await asyncio.gather(*(child.dispose() for child in idle))
        if self._endings:
            await asyncio.gather(*self._endings)

    async def _until_ready(self, child: Child) -> None:
        if not child.ready.done():
            try:
                async with asyncio.timeout(START_SECONDS):
                    await asyncio.shield(child.ready)
            except TimeoutError:
                raise Crashed(
                    f"A Python process did not start within {START_SECONDS:.0f} seconds. "
                    "The machine is overloaded, or its Python cannot start."
                ) from None
        child.ready.result()

    # --- Places and processes ---

    async def _take_place(self) -> None:
        if self._closed:
            raise Crashed("The worker is closing; no Python process is started any more.")
        if self._free_places and not self._queue:
            self._free_places -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave_place()
            else:
                self._queue.remove(turn)
            raise

    def _leave_place(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free_places += 1

    def _taken_child(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.is_fit:
                self._busy.add(child)
                return child
            self._end_later(child)
        child = Child(self._message_max, self._packages)
        self._busy.add(child)
        return child

    async def _give_back(self, child: Child) -> None:
        self._busy.discard(child)
        if child.is_fit and not self._closed:
            self._idle.append(child)
            return
        if not self._closed:
            self._idle.append(Child(self._message_max, self._packages))
        await child.dispose()

    def _end_later(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(child.dispose())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
