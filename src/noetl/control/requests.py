"""What one process asks of another that holds the database: small files in a folder beside it.

    <id>.request   asked; whoever wants it no longer removes it
    <id>.taken     the owner has it, and will answer
    <id>.answer    what became of it

Every change is one atomic rename, so a request is either withdrawn or taken, never both: whoever
withdraws one knows that nothing was done. The owner looks a few times a second. Requests that were
left behind by processes that died are not obeyed later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from noetl.errors import NoetlError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
STALE_SECONDS = 10.0
BYTES_MAX = 256 * 1024

Action = Literal["cancel", "pause", "resume", "signal"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do with an execution."""

    action: Action
    execution_id: str
    user: str = ""
    """The account of whoever asks."""
    reason: str = ""
    name: str = ""
    data: Any = None
    step: str | None = None
    signal_id: str | None = None
    """A signal: what happened outside, and the sender's own id for it."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request."""

    done: bool
    message: str = ""
    """Why not."""
    code: str = ""


Act = Callable[[Request], Awaitable[None]]


def folder_of(database: Path) -> Path:
    return database.with_name(f"{database.name}.requests")


# --- The process that holds the database -------------------------------------------------------


async def serve(folder: Path, act: Act) -> None:
    """Do what others ask, for ever."""
    while True:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(folder)
            await _serve_all(folder, act)
        except OSError:
            # Being asked is a convenience; what we are here for goes on without it.
            logger.exception("requests of other processes cannot be served")
            await asyncio.sleep(STALE_SECONDS)


async def _serve_all(folder: Path, act: Act) -> None:
    while True:
        names = os.listdir(folder)
        for name in sorted(names):
            if name.endswith(".request"):
                await _serve_one(folder / name, act)
        await asyncio.sleep(LOOK_SECONDS)


async def _serve_one(path: Path, act: Act) -> None:
    taken = path.with_suffix(".taken")
    try:
        os.rename(path, taken)
    except FileNotFoundError:
        return  # withdrawn
    try:
        if _age(taken) > STALE_SECONDS:
            logger.info("a request was left behind", extra={"request": path.stem})
            return
        _write(path.with_suffix(".answer"), msgspec.json.encode(await _answer(taken, act)))
    finally:
        taken.unlink(missing_ok=True)


async def _answer(path: Path, act: Act) -> Answer:
    try:
        with path.open("rb") as file:
            request = msgspec.json.decode(file.read(BYTES_MAX), type=Request)
        await act(request)
    except msgspec.DecodeError as error:
        return Answer(done=False, message=f"the request cannot be read: {error}", code="bad")
    except NoetlError as error:
        return Answer(done=False, message=str(error), code=error.code)
    return Answer(done=True)


def _sweep(folder: Path) -> None:
    """Remove what processes that died have left."""
    for path in folder.iterdir():
        if path.suffix == ".taken" or _age(path) > STALE_SECONDS:
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        # Both times are the file system's own, whatever our clock says.
        return abs(time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _write(path: Path, body: bytes) -> None:
    """Whoever sees the file sees all of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.")
    with open(handle, "wb") as file:
        file.write(body)
    os.rename(temporary, path)


# --- The process that asks ---------------------------------------------------------------------


async def ask(folder: Path, request: Request, *, patience: float) -> Answer | None:
    """The owner's answer; None if it took no notice, and then nothing was done."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{secrets.token_hex(8)}.request"
    answer = path.with_suffix(".answer")
    _write(path, msgspec.json.encode(request))
    deadline = time.monotonic() + patience
    try:
        while time.monotonic() < deadline:
            if answer.exists():
                return _read_answer(answer)
            await asyncio.sleep(LOOK_SECONDS / 8)
        if _withdrawn(path):
            return None
        # It was taken, so it is being done: the answer comes, unless the owner dies.
        while path.with_suffix(".taken").exists() and time.monotonic() < deadline + patience:
            await asyncio.sleep(LOOK_SECONDS / 8)
        return _read_answer(answer) if answer.exists() else None
    finally:
        path.unlink(missing_ok=True)


def _withdrawn(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _read_answer(path: Path) -> Answer:
    found = msgspec.json.decode(path.read_bytes(), type=Answer)
    path.unlink(missing_ok=True)
    return found
