"""What-if comparisons and tests for callers, in a child process, because they run whole executions.

The child imports `noetl.trials`, which is above this layer, so it is named, not imported.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable

import msgspec

from noetl.api.evaluation import child, end
from noetl.errors import BadRequest, BudgetExceeded, TooMany
from noetl.model import net as nets
from noetl.model.net import Net
from noetl.model.retrospect import TestsDocument, WhatIfExecution

PATIENCE_SECONDS = 120.0
WAITING_MAX = 4


class Compare(msgspec.Struct, frozen=True, kw_only=True):
    """A request: which recordings would have gone another way under a playbook?"""

    net: bytes
    recordings: list[bytes]


class WriteTest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to make a test from a recording."""

    recording: bytes
    playbook: str
    """The file name of the playbook in the test."""


class RunTests(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run the tests of a playbook."""

    playbook: str
    tests: str


Job = Compare | WriteTest | RunTests


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why the job cannot be done."""

    message: str


class Simulator:
    """Runs one job at a time. Each raises TooMany, BudgetExceeded or BadRequest."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._asking = 0

    async def compared(
        self, net: Net, recordings: Callable[[], Awaitable[list[bytes]]]
    ) -> list[WhatIfExecution]:
        """Compare the playbook with these recordings."""

        async def job() -> Job:
            return Compare(net=nets.encode(net), recordings=await recordings())

        return msgspec.json.decode(await self._done(job), type=list[WhatIfExecution])

    async def test_of(self, recording: Callable[[], Awaitable[bytes]], playbook: str) -> str:
        """The test file of a recording."""

        async def job() -> Job:
            return WriteTest(recording=await recording(), playbook=playbook)

        answer = await self._done(job)
        found = msgspec.json.decode(answer, type=str | Refused)
        if isinstance(found, Refused):
            raise BadRequest(found.message)
        return found

    async def tested(self, playbook: str, tests: str) -> TestsDocument:
        """Run the tests of a playbook."""

        async def job() -> Job:
            return RunTests(playbook=playbook, tests=tests)

        return msgspec.json.decode(await self._done(job), type=TestsDocument)

    async def _done(self, job: Callable[[], Awaitable[Job]]) -> bytes:
        """Recordings are read when the job starts, so a waiting job holds no memory."""
        if self._asking >= WAITING_MAX:
            raise TooMany("several comparisons and tests are under way; try again soon.")
        self._asking += 1
        try:
            async with self._turn:
                return await _answered(pickle.dumps(await job()))
        finally:
            self._asking -= 1


async def _answered(job: bytes) -> bytes:
    process = await child("noetl.trials.simulating")
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer, _ = await process.communicate(job)
    except TimeoutError:
        answer = b""
    finally:
        await end(process)
    if not answer:
        raise BudgetExceeded(
            "this took too long or too much memory. Choose fewer or smaller executions or tests."
        )
    return answer
