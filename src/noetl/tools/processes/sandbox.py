"""Warm processes that run the Python code of tasks, isolated from the worker and its secrets.

A process serves one playbook, one call at a time, and is reused. It is killed with its descendants
when its call times out or is cancelled, and replaced when it ends by itself or is spoiled by a
call. The environment of the code is `PATH`, `HOME` and `LANG`. Its output is read from a pipe;
calls and answers go over a socket that has no name in the code. In a room (`namespaces`) it sees no
files but those of its call.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import socket
import stat
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from noetl.tools.files.results import link_or_copy
from noetl.tools.limits import to_thread, waiting
from noetl.tools.processes.child import SIZE, Answer, Call
from noetl.tools.processes.namespaces import INPUTS, OUTPUTS, Room
from noetl.tools.processes.programs import Spawned, inherited, spawner
from noetl.tools.processes.spawner import Bounds, Spawn
from noetl.tools.processes.tree import ending

CHUNK = 256 * 1024
MESSAGE_MAX = 512 * 1024 * 1024
CALLS_MAX = 10_000
"""A process is replaced after this many calls, which limits what code can leave behind."""
START_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""How long an idle process waits for the next call of its playbook."""
BYTES_PER_PROCESS = 64 * 1024 * 1024
"""The assumed size of a process, when their number is derived from the memory of the machine."""
WHAT = "a Python process"
"""What calls wait for, in messages."""
RESERVE = 5
"""One place in this many is reserved for playbooks that have none yet."""

_decode_answer = msgspec.msgpack.Decoder(Answer).decode
_encode = msgspec.msgpack.Encoder().encode

Key = tuple[str, str | None, bool]
"""What a process serves: a playbook, with a directory of more packages, with or without a network.

Without namespaces every process has the worker's network.
"""
LINES = "lines.ndjson"


def processes_for(slots: int, memory: int) -> int:
    """The default maximum number of processes of a worker on a machine with so much memory.

    Enough for one playbook in all slots plus the reserve for others, if there is memory.
    """
    most = max(4, memory // BYTES_PER_PROCESS)
    return min(slots + -(-slots // (RESERVE - 1)), most)


def memory_here() -> int:
    """The memory of the machine, or the limit set for us."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is not a number, and no limit
            found.append(int(Path("/sys/fs/cgroup", place).read_text()))
    return min(found)


class Crashed(Exception):
    """The process ended instead of answering; the text says how."""


def _nobody(text: str) -> None:
    """Discards output between calls."""


class Child:
    """One process and the two connections to it."""

    def __init__(self, key: Key, message_max: int, bounds: Bounds, room: Room | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._message_max = message_max
        self.key = key
        self.calls = 0
        self.idle_since = 0.0
        self.spoiled = False
        self._unread = bytearray()
        self._log: Callable[[str], None] = _nobody
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self.folder: Path | None = None
        """Contains `inputs` and `outputs`, which the process sees in its room."""
        if room is not None:
            self.folder, room = _furnished(room, key)
        self._line, theirs = socket.socketpair()
        self._output, their_output = os.pipe()
        spawn = Spawn(
            bounds,
            environment=inherited(),
            message_max=message_max,
            packages=key[1],
            room=room,
        )
        with theirs:
            try:
                self._process = Spawned(spawn, [theirs.fileno(), their_output])
            except BaseException:
                self._line.close()
                os.close(self._output)
                self._clear_away()
                raise
            finally:
                os.close(their_output)
        self._line.setblocking(False)
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._line, self._read_line)
        self._loop.add_reader(self._output, self._read_output)
        self.ready: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting: asyncio.Future[bytes] | None = self.ready
        self._process.exited.add_done_callback(self._ended)

    # --- A call ---

    async def call(self, message: bytes, log: Callable[[str], None]) -> Answer:
        """Send a call and wait for its answer. Raises Crashed if there will be none."""
        self.calls += 1
        self._log = log
        self._waiting = self._loop.create_future()
        try:
            try:
                await self._loop.sock_sendall(self._line, SIZE.pack(len(message)) + message)
            except OSError:
                self._end()
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
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(message)

    def _read_output(self) -> None:
        """Read the output so far; bounded, so that a flood cannot block the loop."""
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
        return not self.spoiled and self.calls < CALLS_MAX

    def _end(self) -> None:
        """Kill it, so that no answer comes; the pending call fails once it is dead."""
        self._loop.remove_reader(self._line)
        self.kill()

    def _ended(self, exited: asyncio.Future[int]) -> None:
        self.spoiled = True
        if self._waiting is not None and not self._waiting.done():
            refusal = self._process.refusal
            how = ending(exited.result()) if refusal is None else f"did not start: {refusal}"
            self._waiting.set_exception(Crashed(f"The Python process {how}."))

    def kill(self) -> None:
        """Kill the process and its descendants."""
        self.spoiled = True
        self._process.kill()

    async def dispose(self) -> None:
        """Kill it and its descendants. When this returns, they are dead."""
        self.spoiled = True
        try:
            await self._process.dead()
        finally:
            self._read_output()
            for fd in (self._line, self._output):
                self._loop.remove_reader(fd)
            self._line.close()
            os.close(self._output)
            self._clear_away()
            # No one waits for it to become ready any more.
            if self.ready.done() and not self.ready.cancelled():
                self.ready.exception()

    # --- Files ---

    def show(self, files: tuple[Path, ...]) -> None:
        """Make these files readable for the next call."""
        if self.folder is not None:
            for file in files:
                link_or_copy(file, self.folder / "inputs" / file.name)

    def take(self, place: Path) -> None:
        """Move the lines that the code wrote; they may not be a regular file."""
        assert self.folder is not None
        # Once moved out of reach of the code, it cannot be replaced.
        (self.folder / "outputs" / LINES).rename(place)
        if not stat.S_ISREG(place.lstat().st_mode):
            place.unlink()
            raise Crashed("The code left something else in place of its lines.")

    def tidy(self) -> None:
        """Remove the files that a call was shown or left behind."""
        if self.folder is not None:
            for room in self.folder.iterdir():
                for path in room.iterdir():
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)

    def _clear_away(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _furnished(room: Room, key: Key) -> tuple[Path, Room]:
    """A directory for one process, and the room in which it sees that."""
    _, packages, network = key
    folder = Path(tempfile.mkdtemp(prefix="room-", dir=spawner().folder))
    inputs, outputs = folder / "inputs", folder / "outputs"
    inputs.mkdir()
    outputs.mkdir()
    return folder, msgspec.structs.replace(
        room,
        network=network,
        reads=room.reads if packages is None else (*room.reads, packages),
        lends=(*room.lends, (str(inputs), INPUTS)),
        writes=(*room.writes, (str(outputs), OUTPUTS)),
    )


class SandboxPool:
    """At most `size` processes; further calls wait their turn.

    A process runs the code of one playbook only. When all are busy, the next free place goes to the
    playbook with the fewest, and the last places go only to playbooks without any: long calls of
    one playbook do not block another.
    """

    def __init__(
        self,
        size: int,
        *,
        message_max: int = MESSAGE_MAX,
        bounds: Bounds | None = None,
        room: Room | None = None,
    ) -> None:
        self._size = size
        self._reserve = self._size // RESERVE
        self._message_max = message_max
        self._bounds = bounds or Bounds()
        self._room = room
        self._idle: list[Child] = []
        """The most recently used is last."""
        self._busy: set[Child] = set()
        self._taken: Counter[str] = Counter()
        """Places by playbook."""
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._reaping: asyncio.TimerHandle | None = None
        self._closed = False

    async def call(
        self,
        call: Call,
        *,
        log: Callable[[str], None],
        owner: str = "",
        packages: str | None = None,
        timeout: float | None = None,
        network: bool = False,
        files: tuple[Path, ...] = (),
    ) -> Answer:
        """Run the code in a process that serves `owner` only, with `packages` before all others.

        If processes see only files of their own, `files` are visible under `inputs_in`, and the
        code has a network only with `network`.

        The timeout begins when the code does. Raises TimeoutError or Crashed; then, as when
        cancelled, its process is dead before this returns.
        """
        lines = call.lines
        if lines and self._room is not None:
            call = msgspec.structs.replace(call, lines=f"{OUTPUTS}/{LINES}")
        message = _encode(call)
        if len(message) > self._message_max:
            raise OverflowError(
                f"the code and its inputs are {len(message):,} bytes long, more than "
                f"{self._message_max:,}"
            )
        await self._take_place(owner)
        try:
            child = self._taken_child((owner, packages, network and self._room is not None))
            try:
                await self._until_ready(child)
                if files:
                    await to_thread(child.show, files)
                async with asyncio.timeout(timeout):
                    answer = await child.call(message, log)
                if lines and self._room is not None and not answer.problem:
                    child.take(Path(lines))
                return answer
            except BaseException:
                child.spoiled = True
                raise
            finally:
                if files or lines:
                    child.tidy()
                await self._give_back(child)
        finally:
            self._leave_place(owner)

    @property
    def inputs_in(self) -> str | None:
        """The directory in which code finds its files; None: at their paths on the worker."""
        return None if self._room is None else INPUTS

    async def close(self) -> None:
        """End every process."""
        self._closed = True
        if self._reaping is not None:
            self._reaping.cancel()
        idle, self._idle = self._idle, []
        for child in [*idle, *self._busy]:
            child.kill()
        await asyncio.gather(*(child.dispose() for child in idle))
        if self._endings:
            await asyncio.gather(*self._endings)

    async def _until_ready(self, child: Child) -> None:
        if not child.ready.done():
            with waiting(WHAT):
                try:
                    async with asyncio.timeout(START_SECONDS):
                        await asyncio.shield(child.ready)
                except TimeoutError:
                    raise Crashed(
                        f"A Python process did not start within {START_SECONDS:.0f} seconds. "
                        "The machine is overloaded, or its Python cannot start."
                    ) from None
        child.ready.result()

    # --- Places ---

    async def _take_place(self, owner: str) -> None:
        if self._closed:
            raise Crashed("The worker is closing; no Python process is started any more.")
        if owner not in self._queues and self._may_take(owner):
            self._taken[owner] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(owner, deque())
        queue.append(turn)
        try:
            with waiting(WHAT):
                await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave_place(owner)
            elif turn in queue:
                queue.remove(turn)
                self._forget_empty(owner)
            raise

    def _may_take(self, owner: str) -> bool:
        free = self._size - self._taken.total()
        return free > self._reserve or (free > 0 and not self._taken[owner])

    def _leave_place(self, owner: str) -> None:
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        while waits := [one for one in self._queues if self._may_take(one)]:
            chosen = min(waits, key=self._taken.__getitem__)
            turn = self._queues[chosen].popleft()
            self._forget_empty(chosen)
            if not turn.done():
                self._taken[chosen] += 1
                turn.set_result(None)

    def _forget_empty(self, owner: str) -> None:
        if not self._queues[owner]:
            del self._queues[owner]

    # --- Processes ---

    def _taken_child(self, key: Key) -> Child:
        """An idle process of this playbook, or a new one."""
        idle = (one for one in reversed(self._idle) if one.key == key and one.is_fit)
        child = next(idle, None)
        if child is not None:
            self._idle.remove(child)
        else:
            while self._idle and len(self._idle) + len(self._busy) >= self._size:
                self._end_later(self._idle.pop(0))
            child = Child(key, self._message_max, self._bounds, self._room)
        self._busy.add(child)
        return child

    async def _give_back(self, child: Child) -> None:
        self._busy.discard(child)
        if child.is_fit and not self._closed:
            self._keep(child)
        else:
            await child.dispose()

    def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        child.idle_since = loop.time()
        self._idle.append(child)
        if self._reaping is None:
            self._reaping = loop.call_later(IDLE_SECONDS, self._end_idle)

    def _end_idle(self) -> None:
        """End processes that were idle for long, and check again when the next may be due."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].idle_since <= loop.time() - IDLE_SECONDS:
            self._end_later(self._idle.pop(0))
        self._reaping = None
        if self._idle:
            due = self._idle[0].idle_since + IDLE_SECONDS
            self._reaping = loop.call_at(due, self._end_idle)

    def _end_later(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(child.dispose())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
