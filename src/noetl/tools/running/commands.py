"""Commands in sessions of their own: what they see, what they print, how they end.

Shared by the kinds that start programs. Whatever happens, nothing of a command runs on.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from noetl.model.outcome import Outcome, TaskError, failed
from noetl.tools.running.guard import guard
from noetl.tools.running.plain import NotPlain, plain, read_json
from noetl.tools.running.processes import ending, kill_all
from noetl.tools.running.resources import Refused

ALWAYS_SEEN = ("PATH", "HOME", "LANG")
NEVER_SEEN = "NOETL_"
"""Variables of the worker itself; they hold its secrets."""
GRACE_SECONDS = 0.3
"""Between asking a group to end and killing it."""
TAIL = 2000


def environment(
    own: Mapping[str, str | float | bool], allowed: tuple[str, ...] = ()
) -> dict[str, str]:
    """What a command sees: little of the worker's variables, and those that the task sets."""
    for name in allowed:
        if name.upper().startswith(NEVER_SEEN):
            raise Refused(f"env_allow: {name} belongs to the worker itself and is not handed out.")
    seen = {name: os.environ[name] for name in (*ALWAYS_SEEN, *allowed) if name in os.environ}
    return seen | {name: as_text(value) for name, value in own.items()}


def as_text(value: str | float | bool) -> str:
    """A value as an environment variable holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Output:
    """What a command printed to one stream, up to a limit."""

    def __init__(self, log: Callable[[str], None], limit: int) -> None:
        self._log = log
        self._room = limit
        self._kept = bytearray()
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self.truncated = False

    def take(self, data: bytes) -> None:
        self._log(self._text.decode(data))
        taken = data[: self._room]
        self._kept += taken
        self._room -= len(taken)
        self.truncated = self.truncated or len(taken) < len(data)

    def text(self) -> str:
        """As text; bytes that are none, and NUL, are replaced."""
        return self._kept.decode("utf-8", "replace").replace("\0", "\ufffd")


class Watch(asyncio.SubprocessProtocol):
    """Tells the end of a command from the end of its output, which its children may hold open."""

    def __init__(self, out: Output, err: Output) -> None:
        loop = asyncio.get_running_loop()
        self._outputs = {1: out, 2: err}
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._outputs[fd].take(data)

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


async def run_command(
    words: list[str],
    stdin: str | None,
    environment: dict[str, str],
    directory: str,
    out: Output,
    err: Output,
) -> int:
    """Run one command to its end, and end what it left in the background."""
    starting = asyncio.create_task(
        asyncio.get_running_loop().subprocess_exec(
            lambda: Watch(out, err),
            *words,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    )
    try:
        # Once begun, a start is seen through: half a start could not be stopped.
        transport, watch = await asyncio.shield(starting)
        guard().watch(transport.get_pid())
        if stdin is not None:
            _feed(transport, stdin)
        await asyncio.shield(watch.exited)
        kill_all(transport.get_pid())
        await watch.closed
    except asyncio.CancelledError:
        transport, watch = await starting
        try:
            await _stop(transport.get_pid(), watch)
        finally:
            # Whoever is in such a hurry that he cancels us twice gets no grace period.
            kill_all(transport.get_pid())
            guard().forget(transport.get_pid())
            transport.close()
        raise
    guard().forget(transport.get_pid())
    code = transport.get_returncode()
    transport.close()
    assert code is not None
    return code


def _feed(transport: asyncio.SubprocessTransport, text: str) -> None:
    pipe = transport.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    # If the command ends without reading everything, the rest is dropped, which is its right.
    pipe.write(text.encode())
    pipe.close()


async def _stop(pid: int, watch: Watch) -> None:
    """Ask the group to end, then make it; when this returns the command is dead."""
    if not watch.exited.done():
        kill_all(pid, signal.SIGTERM)
        await asyncio.wait([watch.exited], timeout=GRACE_SECONDS)
    kill_all(pid)
    await asyncio.wait([watch.exited])


# --- What it means -----------------------------------------------------------------------------


def ended_well(form: str, code: int, out: Output, err: Output) -> Outcome:
    stdout = out.text()
    try:
        data = plain(_decoded(stdout, form))
    except (msgspec.DecodeError, NotPlain) as error:
        return failed("parse", f"The output is not what `decode: {form}` says: {error}.")
    result = {"stdout": stdout, "stderr": err.text(), "exit_code": code, "data": data}
    if out.truncated or err.truncated:
        result["truncated"] = True
    return Outcome(status="ok", result=result, sh={"exit_code": code})


def _decoded(text: str, form: str) -> Any:
    match form:
        case "lines":
            return text.splitlines()
        case "json":
            return read_json(text)
        case "ndjson":
            return [read_json(line) for line in text.splitlines() if line.strip()]
    return text


def ended_badly(
    subject: str, retry_codes: tuple[int, ...], code: int, out: Output, err: Output
) -> Outcome:
    """`subject` is what the message calls it."""
    last = (err.text().strip() or out.text().strip())[-TAIL:]
    said = f" It said: {last.splitlines()[-1]}" if last else ""
    # A shell says 128 + n for a command of its own that signal n killed; so do we.
    exit_code = code if code >= 0 else 128 - code
    return Outcome(
        status="error",
        error=TaskError(
            kind="exception",
            code=exit_code,
            message=f"{subject} {ending(code)}.{said}",
            retryable=exit_code in retry_codes,
            details={"stdout": out.text()[-TAIL:], "stderr": err.text()[-TAIL:]},
        ),
        sh={"exit_code": exit_code},
    )
