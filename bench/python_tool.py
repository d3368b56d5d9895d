"""How many trivial calls of kind: python two warm processes take per second, from asyncio."""

from __future__ import annotations

import asyncio
import statistics
import time

from noetl.tools.base import TaskLog, ToolContext
from noetl.tools.files.results import in_memory
from noetl.tools.python import TOOL, Python
from noetl.tools.resources import ToolResources
from noetl.tools.rules import Rules

CALLS = 5000
AT_ONCE = 4
ROUNDS = 5


async def no_credential(name: object) -> dict[str, object]:
    raise LookupError(name)


async def round_of(resources: ToolResources) -> float:
    """Calls per second, through the tool as a worker uses it."""
    config = Python(code="def main(x):\n    return {'y': x + 1}")
    assert TOOL.run is not None

    async def caller() -> None:
        for number in range(CALLS // AT_ONCE):
            context = ToolContext(
                execution_id="1",
                step="s",
                task="t",
                action_id="a",
                inputs={"x": number},
                credential=no_credential,
                log=TaskLog(),
                resources=resources,
                read_result=no_credential,
                open_files=lambda: resources.files("1", "1", "a", *in_memory({})),
            )
            assert TOOL.run is not None
            outcome = await TOOL.run(config, context)
            assert outcome.result == {"y": number + 1}

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return CALLS / (time.perf_counter() - started)


async def main() -> None:
    resources = ToolResources(Rules(python_processes=2))
    started = time.perf_counter()
    await round_of(resources)
    print(f"first round, with the start of 2 processes: {time.perf_counter() - started:.2f} s")
    rates = [await round_of(resources) for _ in range(ROUNDS)]
    print(f"{statistics.median(rates):,.0f} calls/s (median of {ROUNDS}, {AT_ONCE} at once)")
    await resources.close()


if __name__ == "__main__":
    asyncio.run(main())
