"""Commands in sessions of their own: their environment, their output, how they end.

Shared by the kinds that start programs. In every case, nothing of a command keeps running.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from noetl.model.outcome import Outcome, TaskError
from noetl.tools.failures import Failed, Refused
from noetl.tools.plain_data import NotPlain, as_text, lines_of, plain, read_json, read_ndjson
from noetl.tools.processes.namespaces import Room
from noetl.tools.processes.programs import INHERITED, Program, inherited
from noetl.tools.processes.spawner import Bounds
from noetl.tools.processes.tree import ending

CHUNK = 64 * 1024
TAIL = 2000


def environment(
    own: Mapping[str, str | float | bool],
    allowed: tuple[str, ...] = (),
    opened: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of a command: a few of the worker's variables, and those that the task sets.

    `allowed` is what the task asks for, `opened` what the operator lets tasks have.
    """
    seen = inherited()
    for name in allowed:
        if name in INHERITED:
            continue
        if opened is None or name not in opened:
            raise Refused(
                f"env_allow: {name} is not set on this worker, or not opened to tasks. Its operator"
                " names what tasks may see in NOETL_TASK_ENV."
            )
        seen[name] = opened[name]
    return seen | {name: as_text(value) for name, value in own.items()}


class Output:
    """The output of a command on one stream, up to a limit."""

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
        """As text; invalid bytes and NUL are replaced."""
        return self._kept.decode("utf-8", "replace").replace("\0", "\ufffd")


async def run_command(
    words: list[str],
    stdin: str | None,
    environment: dict[str, str],
    directory: str,
    out: Output,
    err: Output,
    bounds: Bounds | None,
    room: Room | None = None,
) -> int:
    """Run one command to its end, and end what it left in the background.

    Without `bounds` it is one of the operator's programs: a container engine, an installer.
    """
    program = await Program.start(
        words, environment, directory, bounds, writes=stdin is not None, room=room
    )
    try:
        if stdin is not None:
            assert program.stdin is not None
            # If the command ends without reading everything, the rest is dropped.
            program.stdin.write(stdin.encode())
            program.stdin.close()
        await asyncio.gather(heard(program.stdout, out), heard(program.stderr, err))
        return await program.ended()
    except asyncio.CancelledError:
        await program.stop()
        raise
    finally:
        await program.close()


EMPTY = "the empty directory that it has without `cwd`"
_NO_FILE = re.compile(r"^(?!.*[\s'\"=(]/).*(?:No such file\b|\./\S+: not found)", re.MULTILINE)
"""A line that misses a file of the working directory: no path in it begins at the root."""


@contextmanager
def started(program: str, directory: str, cwd: str | None) -> Iterator[None]:
    """Turn the errors of a program that cannot be started into failures of the task."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        what = f'program "{program}"' if os.path.isdir(directory) else f'cwd "{cwd}"'
        alone = cwd is None and "/" in program and not os.path.isabs(program)
        where = f"in {EMPTY}" if alone else "on this worker"
        raise Failed("not_found", f"The {what} does not exist {where}.") from None
    except PermissionError as error:
        raise Failed("auth", f'"{program}" may not be run here: {error.strerror}.') from None
    except ValueError as error:
        raise Failed("client_error", f"The command cannot be run: {error}.") from None


async def heard(stream: asyncio.StreamReader, output: Output) -> None:
    """Read the stream to its end."""
    while data := await stream.read(CHUNK):
        output.take(data)


# --- What it means -----------------------------------------------------------------------------


def ended_well(form: str, code: int, out: Output, err: Output) -> Outcome:
    stdout = out.text()
    try:
        data = plain(_decoded(stdout, form))
    except (msgspec.DecodeError, NotPlain) as error:
        raise Failed("parse", f"The output is not what `decode: {form}` says: {error}.") from None
    result = {"stdout": stdout, "stderr": err.text(), "exit_code": code, "data": data}
    if out.truncated or err.truncated:
        result["truncated"] = True
    return Outcome(status="ok", result=result, sh={"exit_code": code})


def _decoded(text: str, form: str) -> Any:
    match form:
        case "lines":
            return lines_of(text)
        case "json":
            return read_json(text)
        case "ndjson":
            return read_ndjson(text)
    return text


def ended_badly(
    subject: str,
    retry_codes: tuple[int, ...],
    code: int,
    out: Output,
    err: Output,
    cwd: str | None = "",
) -> Outcome:
    """The failure for an exit code; `subject` is its name in the message. A file that is missed
    where no `cwd` is named may lie in the worker's directory.
    """
    alone = f" in {EMPTY}" if cwd is None and _NO_FILE.search(err.text()[-TAIL:]) else ""
    last = (err.text().strip() or out.text().strip())[-TAIL:]
    said = f" It said: {last.splitlines()[-1]}" if last else ""
    # Like a shell: 128 + n for a command that signal n killed.
    exit_code = code if code >= 0 else 128 - code
    return Outcome(
        status="error",
        error=TaskError(
            kind="exception",
            code=exit_code,
            message=f"{subject} {ending(code)}{alone}.{said}",
            retryable=exit_code in retry_codes,
            details={"stdout": out.text()[-TAIL:], "stderr": err.text()[-TAIL:]},
        ),
        sh={"exit_code": exit_code},
    )
