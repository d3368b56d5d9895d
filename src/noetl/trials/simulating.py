"""The process in which a server tries playbooks out: one job each.

`noetl.api.simulation` starts it and talks to it; it shares nothing with the server. No tool is
called: recorded outcomes or the stand-ins of a test answer instead, even for Python code, which a
test on a developer's machine would run.
"""

from __future__ import annotations

import asyncio
import pickle
import resource
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from noetl import configured
from noetl.api.simulation import Compare, Job, Refused, RunTests, WriteTest
from noetl.control.recordings import read_bytes
from noetl.errors import BadRequest
from noetl.model import net as nets
from noetl.model.retrospect import TestDocument, TestsDocument, WhatIfExecution
from noetl.settings import Settings
from noetl.trials.clock import VirtualLoop
from noetl.trials.files import PlaybookTrials, load_for
from noetl.trials.from_run import trial_of, written
from noetl.trials.recorded import PURE, compared
from noetl.trials.verdict import judge
from noetl.trials.world import Surroundings, surroundings

COMPUTING_SECONDS = 60
MEMORY_MAX = 4 * 1024**3
TESTS_MAX = 100
T = TypeVar("T")


def serve() -> None:
    """Read a job from standard input, write the answer to standard output."""
    resource.setrlimit(resource.RLIMIT_CPU, (COMPUTING_SECONDS, COMPUTING_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  the server wrote it
    sys.stdout.buffer.write(msgspec.json.encode(done(Settings.from_environment({}), job)))


def done(settings: Settings, job: Job) -> list[WhatIfExecution] | str | Refused | TestsDocument:
    """The answer to a job."""
    match job:
        case Compare():
            return _run(settings, lambda around: _compared(job, around))
        case WriteTest():
            try:
                recording = read_bytes(job.recording)
                return written(asyncio.run(trial_of(recording, job.playbook)))
            except BadRequest as error:
                return Refused(message=str(error))
        case RunTests():
            return _tested(settings, job)


def _run(settings: Settings, what: Callable[[Surroundings], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with surroundings(settings) as around:
            return await what(around)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


async def _compared(job: Compare, around: Surroundings) -> list[WhatIfExecution]:
    net = nets.decode(job.net)
    return [await compared(read_bytes(one), net, around) for one in job.recordings]


def _tested(settings: Settings, job: RunTests) -> TestsDocument:
    loaded = load_for(job.playbook, job.tests, configured.compiler(settings))
    if not isinstance(loaded, PlaybookTrials):
        problems = [wrong.problem for wrong in loaded]
        return TestsDocument(passed=0, failed=0, problems=problems, tests=[])
    tests = _run(settings, lambda around: _judged(loaded, around))
    passed = sum(test.passed for test in tests)
    return TestsDocument(passed=passed, failed=len(tests) - passed, problems=[], tests=tests)


async def _judged(loaded: PlaybookTrials, around: Surroundings) -> list[TestDocument]:
    tools = {
        kind: tool if kind in PURE else msgspec.structs.replace(tool, run=None)
        for kind, tool in around.tools.items()
    }
    around = around._replace(tools=tools)
    verdicts = [await judge(loaded, trial, around) for trial in loaded.file.tests[:TESTS_MAX]]
    return [
        msgspec.convert(verdict.as_data(), TestDocument, from_attributes=True)
        for verdict in verdicts
    ]
