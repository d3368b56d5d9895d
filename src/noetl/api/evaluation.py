"""Compiling and rendering for callers, outside the event loop that answers all requests.

A text of a few kilobytes can keep an interpreter busy for a minute. So a few child processes do the
work, each job within a budget of computing seconds and memory. A job that exceeds it is killed with
its process. `evaluation_child` is the other side.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import noetl
from noetl.api.evaluation_child import (
    ANSWER_MAX,
    COMPUTING_SECONDS,
    SIZE,
    Compile,
    Job,
    Made,
    Render,
    Rewrite,
)
from noetl.control.explanation import Inquiry
from noetl.control.preview import Seen
from noetl.dsl import Compiled
from noetl.dsl.building import Known
from noetl.errors import (
    BudgetExceeded,
    EvaluationFailed,
    NoetlError,
    PlaybookRejected,
    TooMany,
    UndefinedValue,
)
from noetl.model import net as nets
from noetl.model.net import Limits
from noetl.model.retrospect import StepWhyDocument
from noetl.model.rewrites import Rewritten

PATIENCE_SECONDS = 20.0
"""Wall-clock limit; then the process is killed."""
PROCESSES_MAX = 2
WAITING_MAX = 20
PER_CALLER_MAX = 4
"""Jobs of one caller, running or waiting."""
JOBS_MAX = 1000
"""A process is replaced after this many jobs."""
ENVIRONMENT = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
_SOURCE = str(Path(noetl.__file__).parents[1])
_START = "import sys; sys.path.insert(0, sys.argv[1]); from {} import serve; serve()"
ERRORS: dict[str, Callable[[str], NoetlError]] = {
    kind.code: kind for kind in (EvaluationFailed, UndefinedValue, BudgetExceeded)
}
_read = msgspec.json.Decoder(Made).decode


async def child(module: str) -> asyncio.subprocess.Process:
    """A process that runs `serve` of a module. It gets none of our secrets through its environment,
    and opens no files.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _START.format(module), _SOURCE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        start_new_session=True,
    )


async def end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


class Evaluator:
    """A few processes that compile and render."""

    def __init__(self, limits: Limits, here: Callable[..., Compiled] | None) -> None:
        """`here` compiles in this process: for a program with tools of its own, which a child
        process would not know. Such a program also writes its own playbooks.
        """
        self._limits = limits
        self._here = here
        self._idle: list[_Process] = []
        self._turns = asyncio.Semaphore(PROCESSES_MAX)
        self._of_caller: Counter[str] = Counter()

    async def compiled(self, text: str, caller: str, known: Known | None = None) -> Compiled:
        """Compile a text. Raises BudgetExceeded or TooMany."""
        if self._here is not None:
            return self._here(text, known=known)
        made = await self._done(Compile(text=text, limits=self._limits, known=known), caller)
        return Compiled(
            net=nets.decode(made.net) if made.net is not None else None,
            trigger=made.trigger,
            digest=made.digest,
            problems=made.problems,
            unresolved=made.unresolved,
        )

    async def rendered(self, template: Any, seen: Seen, caller: str) -> msgspec.Raw:
        """The value as JSON. Raises EvaluationFailed, BudgetExceeded or TooMany."""
        return (await self._done(Render(template=template, seen=seen), caller)).value

    async def why(self, asked: Inquiry, caller: str) -> StepWhyDocument:
        """Why a step ran or did not. Raises BudgetExceeded or TooMany."""
        made = await self._done(asked, caller)
        return msgspec.json.decode(made.value, type=StepWhyDocument)

    async def rewritten(self, text: str, caller: str, *, migrates: bool) -> Rewritten:
        """The text formatted, or migrated. Raises PlaybookRejected, BudgetExceeded or TooMany."""
        made = await self._done(Rewrite(text=text, migrates=migrates), caller)
        return msgspec.json.decode(made.value, type=Rewritten)

    async def close(self) -> None:
        for process in self._idle:
            await process.end()
        self._idle.clear()

    async def _done(self, job: Job, caller: str) -> Made:
        if self._of_caller[caller] >= PER_CALLER_MAX:
            raise TooMany(f"you have {PER_CALLER_MAX} of these under way; wait for their answers.")
        if self._of_caller.total() >= WAITING_MAX:
            raise TooMany("too many templates and playbooks are being evaluated; try again soon.")
        self._of_caller[caller] += 1
        try:
            async with self._turns:
                made = await self._run(pickle.dumps(job))
        finally:
            self._of_caller[caller] -= 1
            self._of_caller += Counter()  # Drops callers with no jobs.
        if made.error == PlaybookRejected.code:
            raise PlaybookRejected(made.problems)
        if made.error:
            raise ERRORS.get(made.error, EvaluationFailed)(made.message)
        return made

    async def _run(self, job: bytes) -> Made:
        process = next((one for one in self._idle if one.is_alive), None)
        if process is None:
            process = _Process(await child("noetl.api.evaluation_child"))
        self._idle = [one for one in self._idle if one is not process and one.is_alive]
        try:
            answer = await process.answer(job)
        except BaseException:
            await process.end()
            raise
        if answer is None:
            await process.end()
            raise BudgetExceeded(
                f"this takes longer than {COMPUTING_SECONDS} seconds or too much memory."
                " Make it smaller, or do it in a Python task."
            )
        if process.jobs < JOBS_MAX:
            self._idle.append(process)
        else:
            await process.end()
        return _read(answer)


class _Process:
    """A child process, and how many jobs it has done."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.jobs = 0

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def answer(self, job: bytes) -> bytes | None:
        """None if the job failed: it took too long, or its process ended."""
        self.jobs += 1
        sender, reader = self._process.stdin, self._process.stdout
        assert sender is not None
        assert reader is not None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                sender.write(SIZE.pack(len(job)) + job)
                await sender.drain()
                (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
                return await reader.readexactly(size) if size <= ANSWER_MAX else None
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            return None

    async def end(self) -> None:
        await end(self._process)
