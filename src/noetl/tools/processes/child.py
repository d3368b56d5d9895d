"""The other end of `sandbox`: a process that runs Python code, one call after another.

It imports as little as possible, because the spawner of every worker loads it. Changes that a call
makes to the process (directory, environment, import path, …) are undone after it. What cannot be
undone (threads, children, much memory) makes the process spoiled, and the worker replaces it.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
import socket
import struct
import sys
from itertools import groupby
from types import ModuleType
from typing import Any

import msgspec

from noetl.tools.plain_data import NotPlain, lines_of, plain
from noetl.tools.processes.code import END, FELL_THROUGH, Program, arguments_of, compiled, mismatch

SIZE = struct.Struct(">I")
READY = b"ready"
MODULE = "noetl_task"
MEMORY_MAX_KIB = 1024 * 1024
"""A process with a larger peak is not reused."""
PROGRAMS_MAX = 256

_programs: dict[tuple[str, str], Program] = {}


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Run this code with these inputs."""

    code: str
    name: str
    """The file name in tracebacks."""
    inputs: Any
    context: Any
    lines: str = ""
    """A file to write the values to, as one line of JSON each; the answer is then their number."""
    imports: tuple[str, ...] = ()
    """Statements that bind modules before the code runs."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a call: a value, or why there is none."""

    value: Any = None
    problem: str = ""
    """Empty; or `raised`, `syntax`, `not_plain`."""
    exception_type: str = ""
    message: str = ""
    traceback: str = ""
    line: int = 0
    spoiled: bool = False
    """The process cannot take another call: threads or children are left, or it grew."""


def serve(fd: int, message_max: int, private: tuple[str, ...] = ()) -> None:
    """Answer calls until the worker closes its end.

    `private` are directories of this process alone; they are emptied after each call.
    """
    os.set_inheritable(fd, False)
    # Output must be visible while the code runs, in any encoding.
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]
    with socket.socket(fileno=fd) as line:
        before = _Surroundings(private)
        decode = msgspec.msgpack.Decoder(Call).decode
        send(line, READY)
        while (message := receive(line)) is not None:
            answer = _answered(decode(message))
            spoiled = before.restore()
            send(line, _encoded(answer, spoiled, message_max))


def _stream(fd: int) -> io.TextIOWrapper:
    return open(fd, "w", 1, "utf-8", "backslashreplace", closefd=False)


def receive(line: socket.socket) -> bytes | None:
    """The next message; None when the other end is closed."""
    head = line.recv(SIZE.size, socket.MSG_WAITALL)
    if len(head) < SIZE.size:
        return None
    (size,) = SIZE.unpack(head)
    body = bytearray(size)
    view = memoryview(body)
    filled = 0
    while filled < size:
        read = line.recv_into(view[filled:])
        if not read:
            return None
        filled += read
    return bytes(body)


def send(line: socket.socket, message: bytes) -> None:
    line.sendall(SIZE.pack(len(message)) + message)


def _encoded(answer: Answer, spoiled: bool, message_max: int) -> bytes:
    if spoiled:
        answer = msgspec.structs.replace(answer, spoiled=True)
    message = msgspec.msgpack.encode(answer)
    if len(message) <= message_max:
        return message
    text = (
        f"result is {len(message):,} bytes long, more than the {message_max:,} that one task may "
        "yield. Write it to a file or a database and yield where it is."
    )
    return msgspec.msgpack.encode(Answer(problem="not_plain", message=text, spoiled=True))


# --- One call ----------------------------------------------------------------------------------


def _answered(call: Call) -> Answer:
    try:
        program = _program(call.code, call.name)
    except SyntaxError as error:
        return _raised(error, call, "syntax")
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    try:
        for statement in call.imports:
            try:
                exec(statement, module.__dict__)  # noqa: S102 - an import that the task names
            except ImportError as error:
                sys.modules.pop(MODULE, None)
                return Answer(problem="no_module", message=f"{statement}: {error}.")
        value = _value(program, call, module.__dict__)
        answer = Answer(value=_written(value, call.lines) if call.lines else plain(value))
    except NotPlain as problem:
        answer = Answer(problem="not_plain", message=f"{problem}.")
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        answer = _raised(error, call, "raised")
    _flush()
    sys.modules.pop(MODULE, None)
    # The globals of the call and its functions refer to each other; free both now.
    module.__dict__.clear()
    return answer


def _program(code: str, name: str) -> Program:
    program = _programs.get((code, name))
    if program is None:
        if len(_programs) >= PROGRAMS_MAX:
            _programs.pop(next(iter(_programs)))
        program = _programs[code, name] = compiled(code, name)
    return program


def _value(program: Program, call: Call, variables: dict[str, Any]) -> Any:
    """Run the code, then take its value: what it returned, else `result`, else the result of
    `main`.
    """
    inputs = call.inputs
    variables.update(args=inputs, input_data=inputs, context=call.context, json=json)
    variables.update(inputs)
    given = variables.get("result", FELL_THROUGH)
    try:
        exec(program.body, variables)  # noqa: S102 - it is what this process is for
        if program.returns:
            variables[END] = FELL_THROUGH
            value = variables.pop(program.returns)()
            if value is not FELL_THROUGH:
                return value
    except SystemExit as ending:
        if ending.code not in (None, 0):
            raise
        return variables.get("result")
    result = variables.get("result", FELL_THROUGH)
    if result is not given:
        return result
    main = variables.get("main") if program.defines_main else None
    if not callable(main):
        return None
    positional, named = arguments_of(main, inputs, call.context)
    try:
        value = main(*positional, **named)
    except TypeError as error:
        trace = error.__traceback__
        if trace is None or trace.tb_next is not None or "missing" not in str(error):
            raise
        # It was not entered: a parameter has no value.
        raise TypeError(f"{error}. {mismatch(main, inputs)}") from None
    return value if call.lines else _finished(value)


def _written(value: Any, place: str) -> int:
    """Write values as the code yields them, with only one in memory at a time."""
    with open(place, "wb") as file:
        if hasattr(value, "__await__"):
            value = _finished(value)
        if hasattr(value, "__anext__"):
            import asyncio

            return asyncio.run(_written_async(value, file))
        values = value if hasattr(value, "__next__") or isinstance(value, list) else [value]
        return sum(_line(one, file) for one in values)


def _line(value: Any, file: Any) -> int:
    file.write(msgspec.json.encode(plain(value)) + b"\n")
    return 1


async def _written_async(values: Any, file: Any) -> int:
    count = 0
    async for one in values:
        count += _line(one, file)
    return count


def _finished(value: Any) -> Any:
    """The final value of an async function or a generator; otherwise the value itself."""
    if hasattr(value, "__await__") or hasattr(value, "__anext__"):
        import asyncio

        return asyncio.run(_awaited(value))
    return list(value) if hasattr(value, "gi_frame") else value


async def _awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else [one async for one in value]


# --- Failures ----------------------------------------------------------------------------------


def _raised(error: BaseException, call: Call, problem: str) -> Answer:
    """The failure with the author's own lines only; ours and the libraries' mean nothing to
    them.
    """
    source = lines_of(call.code)
    frames: list[tuple[int, str]] = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == call.name:
            frames.append((trace.tb_lineno, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == call.name:
        frames.append((error.lineno or 0, ""))
    shown = []
    # Calls of a function by itself are told once, not a thousand times.
    runs = [(frame, len(list(equal))) for frame, equal in groupby(frames)]
    for (line, function), count in runs[-20:]:
        place = f", in {function}" if function and not function.startswith("__noetl") else ""
        text = source[line - 1].strip() if 0 < line <= len(source) else ""
        shown.append(f'  File "{call.name}", line {line}{place}\n    {text}')
        if count > 1:
            shown.append(f"  [the same line {count - 1} more time{'s' * (count > 2)}]")
    kind = type(error).__name__
    said = _carried(_said(error))
    summary = f"{kind}: {said}" if said else kind
    line = frames[-1][0] if frames else 0
    return Answer(
        problem=problem,
        exception_type=kind,
        message=summary,
        traceback=_carried("\n".join(["Traceback (your code only):", *shown, summary])),
        line=line,
        spoiled=isinstance(error, MemoryError),
    )


def _said(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return str(error.msg)
    if isinstance(error, ModuleNotFoundError):
        return f"{error}. Install it in the environment of the worker"
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - an exception may be unable to say what it is
        return f"<its text could not be made: {type(problem).__name__}>"


def _carried(text: str) -> str:
    """Text that JSON can carry, shortened to a readable length."""
    if len(text) > 20_000:
        text = f"{text[:10_000]}\n…\n{text[-10_000:]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


# --- The process around the calls --------------------------------------------------------------


class _Surroundings:
    """The state of the process before any call."""

    def __init__(self, private: tuple[str, ...]) -> None:
        self.private = {place: frozenset(os.listdir(place)) for place in private}
        try:
            self.directory = os.getcwd()
        except FileNotFoundError:
            # The directory in which the worker was started is gone.
            self.directory = "/"
            os.chdir(self.directory)
        self.environment = dict(os.environ)
        self.path = list(sys.path)
        self.umask = os.umask(0o022)
        os.umask(self.umask)
        self.recursion = sys.getrecursionlimit()
        self.streams = (sys.stdin, sys.stdout, sys.stderr)

    def restore(self) -> bool:
        """Restore it. Returns whether something is left that cannot be undone."""
        streams = (sys.stdin, sys.stdout, sys.stderr)
        if any(now is not was for now, was in zip(streams, self.streams, strict=True)):
            sys.stdin, sys.stdout, sys.stderr = self.streams
        if sys.path != self.path:
            sys.path[:] = self.path
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
        os.umask(self.umask)
        signal.alarm(0)
        if not gc.isenabled():
            gc.enable()
        is_mute = any(stream.closed for stream in self.streams)
        return is_mute or not self._is_home_again() or _has_company() or _has_grown()

    def _is_home_again(self) -> bool:
        """Back in its directory, and with its private ones as they were."""
        try:
            if os.getcwd() != self.directory:
                os.chdir(self.directory)
            for place, before in self.private.items():
                for name in before.symmetric_difference(os.listdir(place)):
                    _remove(f"{place}/{name}")
        except OSError:
            return False
        return True


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    else:
        os.unlink(path)


def _has_company() -> bool:
    """Whether threads or child processes of the call are still alive."""
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return True
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _has_grown() -> bool:
    """Whether it holds much memory. The peak is useless: it begins with that of the worker."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            pages = int(file.read().split()[1])
    except OSError:  # Not Linux.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY_MAX_KIB
    return pages * resource.getpagesize() > MEMORY_MAX_KIB * 1024


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # The code closed or broke it. No one needs to know; the next call gets the original
            # streams.
            continue
