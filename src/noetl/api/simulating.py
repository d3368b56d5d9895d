"""What-if for whoever asks: in a process of its own, because it runs whole executions.

The process imports what stands above this room (`noetl.trials`), so it is named, not imported.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

import noetl
from noetl.errors import BudgetExceeded, TooMany
from noetl.model import net as nets
from noetl.model.net import Net
from noetl.model.retrospect import WhatIfExecution

PATIENCE_SECONDS = 120.0
WAITING_MAX = 4
ENVIRONMENT = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
_SOURCE = str(Path(noetl.__file__).parents[1])
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from noetl.trials.simulating import serve; serve()"
)


class Simulator:
    """Runs one comparison at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._asking = 0

    async def compared(self, net: Net, recordings: list[bytes]) -> list[WhatIfExecution]:
        """The playbook over these recordings. Raises TooMany and BudgetExceeded."""
        if self._asking >= WAITING_MAX:
            raise TooMany("several comparisons are under way; try again soon.")
        self._asking += 1
        try:
            async with self._turn:
                return await _compared(pickle.dumps((nets.encode(net), recordings)))
        finally:
            self._asking -= 1


async def _compared(job: bytes) -> list[WhatIfExecution]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _START, _SOURCE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        # None of our secrets is in its environment.
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer, _ = await process.communicate(job)
    except TimeoutError:
        answer = b""
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if not answer:
        raise BudgetExceeded(
            "the comparison took too long or too much memory. Compare fewer or smaller executions."
        )
    return msgspec.json.decode(answer, type=list[WhatIfExecution])
