"""The process in which a server tries playbooks out: one job each.

`noetl.api.simulation` starts it and speaks to it; nothing of the server's is in it. No tool is
called: recorded outcomes or the stand-ins of a test answer instead, also for Python code, which a
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

from noetl import wiring
from noetl.api.simulation import Compare, Job, Refused, RunTests, WriteTest
from noetl.control.recordings import read_bytes
from noetl.errors import BadRequest
from noetl.model import net as nets
from noetl.model.retrospect import (
    TestDifference,
    TestDocument,
    TestsDocument,
    WhatIfExecution,
)
from noetl.settings import Settings
from noetl.trials.clock import VirtualLoop
from noetl.trials.files import Expect, Loaded, Trial, load_of
from noetl.trials.from_run import trial_of, written
from noetl.trials.recorded import PURE, compared
from noetl.trials.verdict import differences, way_of
from noetl.trials.world import Surroundings, run_trial, surroundings

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
    loaded = load_of(
        "tests", job.tests, "playbook", job.playbook, wiring.compiler(settings), beside={}
    )
    if not isinstance(loaded, Loaded):
        problems = [wrong.problem for wrong in loaded]
        return TestsDocument(passed=0, failed=0, problems=problems, tests=[])
    trials = loaded.file.tests[:TESTS_MAX]
    found = _run(settings, lambda around: _judged(loaded, trials, around))
    passed = sum(one.passed for one in found)
    return TestsDocument(passed=passed, failed=len(found) - passed, problems=[], tests=found)


async def _judged(loaded: Loaded, trials: list[Trial], around: Surroundings) -> list[TestDocument]:
    tools = {
        kind: tool if kind in PURE else msgspec.structs.replace(tool, run=None)
        for kind, tool in around.tools.items()
    }
    found = []
    for trial in trials:
        story = await run_trial(
            loaded.file.whole(trial), loaded.playbooks, around._replace(tools=tools)
        )
        wrong = differences(trial.expect or Expect(), story, loaded.playbooks.nets)
        found.append(
            TestDocument(
                name=trial.name,
                passed=not wrong and not story.complaints,
                status=story.execution["status"],
                elapsed_seconds=round(story.elapsed, 3),
                steps=list(way_of(story.facts).steps),
                complaints=list(story.complaints),
                differences=[TestDifference(**one._asdict()) for one in wrong],
            )
        )
    return found
