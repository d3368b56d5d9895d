"""The process in which a server compares a playbook with recorded executions: one job each.

`noetl.api.simulating` starts it and speaks to it; nothing of the server's is in it, and no tool.
"""

from __future__ import annotations

import asyncio
import pickle
import resource
import sys

import msgspec

from noetl.control.recording import read_bytes
from noetl.model import net as nets
from noetl.model.net import Net
from noetl.model.retrospect import WhatIfExecution
from noetl.settings import Settings
from noetl.trials.clock import VirtualLoop
from noetl.trials.recorded import compared
from noetl.trials.world import surroundings

COMPUTING_SECONDS = 60
MEMORY_MAX = 4 * 1024**3


def serve() -> None:
    """Read a job from standard input, write the answer to standard output."""
    resource.setrlimit(resource.RLIMIT_CPU, (COMPUTING_SECONDS, COMPUTING_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    net, recordings = pickle.load(sys.stdin.buffer)  # noqa: S301  the server wrote it
    found = simulated(Settings.from_environment({}), nets.decode(net), recordings)
    sys.stdout.buffer.write(msgspec.json.encode(found))


def simulated(settings: Settings, net: Net, recordings: list[bytes]) -> list[WhatIfExecution]:
    """The playbook over each of these recordings."""

    async def run() -> list[WhatIfExecution]:
        async with surroundings(settings) as around:
            return [await compared(read_bytes(one), net, around) for one in recordings]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())
