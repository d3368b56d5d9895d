"""What a unit of work costs in bytecodes and calls, by room: a figure that a busy machine does not
change.

Counts every bytecode that the interpreter executes on the event loop's thread while a workload
runs, and every call, and divides by the steps or iterations. A call counts as 25 bytecodes, which
is about what it costs. Work in C (SQLite, msgspec) is not counted.

Run `python bench/bytecodes.py w1|w2|w3 [functions]`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

import noetl
from noetl import wiring
from noetl.cli import workloads
from noetl.settings import Settings
from noetl.store.sqlite import database

HOUSE = str(Path(noetl.__file__).parent) + "/"
CALL = 25
WORKLOADS = {
    "w1": (workloads.chain(100), 1, 100),
    "w2": (workloads.LOOP, 1, 1000),
    "w3": (workloads.chain(5), 100, 500),
}
"""Playbook, executions at once, and units in all of them."""

executed: Counter[CodeType] = Counter()
called: Counter[CodeType] = Counter()


def trace(frame: FrameType, event: str, _: Any) -> Any:
    if event == "call":
        called[frame.f_code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
    elif event == "opcode":
        executed[frame.f_code] += 1
    return trace


async def count(name: str) -> None:
    text, executions, _ = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bytecodes.db"
        settings = msgspec.structs.replace(Settings.from_environment({}), database_url=url)
        async with wiring.embedded(settings) as system:
            await workloads.run(system, text, executions)
            compiled = system.catalog.check(text)
            net = compiled.unwrap()

            async def one() -> None:
                started = await system.executions.start(compiled.digest, net.path, None, {})
                await system.orchestrator.wait_for_end(started)

            loop = asyncio.get_running_loop()
            loop.call_soon(sys.settrace, trace)
            await asyncio.gather(*(one() for _ in range(executions)))
            sys.settrace(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("functions", nargs="?", type=int, default=0, help="print so many of them")
    options = parser.parse_args()
    # Tracing makes writes slow; they are done on the spot all the same, as untraced ones are.
    database.SHORT_SECONDS = 100.0
    asyncio.run(count(options.workload))
    units = WORKLOADS[options.workload][2]
    weights = {code: (executed[code] + CALL * called[code]) / units for code in called}
    rooms: dict[str, float] = defaultdict(float)
    for code, weight in weights.items():
        path = code.co_filename
        room = path.removeprefix(HOUSE).split("/")[0] if path.startswith(HOUSE) else "others"
        rooms[room] += weight
    bytecodes, calls = sum(executed.values()) / units, sum(called.values()) / units
    print(f"{bytecodes + CALL * calls:.0f} per unit: {bytecodes:.0f} bytecodes, {calls:.0f} calls")
    for room, weight in sorted(rooms.items(), key=lambda one: -one[1]):
        print(f"{weight:8.0f}  {room}")
    for code in sorted(weights, key=lambda one: -weights[one])[: options.functions]:
        place = code.co_filename.removeprefix(HOUSE)
        print(f"{weights[code]:8.1f}  {called[code] / units:6.2f} ×  {place} {code.co_qualname}")


if __name__ == "__main__":
    main()
