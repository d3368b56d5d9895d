"""What-if comparisons and tests for callers, in a child process, because they run whole executions.

The child imports `noetl.trials`, which is above this layer, so it is named, not imported.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
    """Runs jobs, each in a `turn` of its caller. They raise BudgetExceeded and BadRequest."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._asking = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The caller's turn: one at a time. Recordings are read in it, so a caller that waits holds
        no memory. Raises TooMany.
        """
        if self._asking >= WAITING_MAX:
            raise TooMany("several comparisons and tests are under way; try again soon.")
        self._asking += 1
        try:
            async with self._turn:
                yield
        finally:
            self._asking -= 1

    async def compared(self, net: Net, recordings: list[bytes]) -> list[WhatIfExecution]:
        """Compare the playbook with these recordings."""
        job = pickle.dumps(Compare(net=nets.encode(net), recordings=recordings))
        del recordings  # The job has a copy, and they may be large.
        return msgspec.json.decode(await _answered(job), type=list[WhatIfExecution])

    async def test_of(self, recording: bytes, playbook: str) -> str:
        """The test file of a recording."""
        job = pickle.dumps(WriteTest(recording=recording, playbook=playbook))
        del recording
        found = msgspec.json.decode(await _answered(job), type=str | Refused)
        if isinstance(found, Refused):
            raise BadRequest(found.message)
        return found

    async def tested(self, playbook: str, tests: str) -> TestsDocument:
        """Run the tests of a playbook."""
        job = pickle.dumps(RunTests(playbook=playbook, tests=tests))
        return msgspec.json.decode(await _answered(job), type=TestsDocument)


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
