"""What a unit of work costs in instructions of the processor, work in C included: a figure that a
busy machine does not change.

Runs a workload in this process under `valgrind --tool=callgrind`, a few times and many times; the
difference is what the repetitions cost, without start and end. `--src` measures another working
tree, with the libraries of this one.

Run `python bench/instructions.py w1|w2|w3 [--src DIR] [--runs N]`. It needs valgrind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FEW, MANY = 2, 12
TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
UNITS = {"w1": 100, "w2": 1000, "w3": 500}
"""Steps, iterations and steps of one repetition."""


async def repeat(name: str, times: int) -> None:
    """Run a workload so often in this process. Older working trees know these names, too."""
    import msgspec

    from noetl import wiring
    from noetl.cli import workloads
    from noetl.settings import Settings

    text, executions = {
        "w1": (workloads.chain(100), 1),
        "w2": (workloads.LOOP, 1),
        "w3": (workloads.chain(5), 100),
    }[name]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/instructions.db"
        settings = msgspec.structs.replace(Settings.from_environment({}), database_url=url)
        async with wiring.embedded(settings) as system:
            compiled = system.catalog.check(text)
            net = compiled.unwrap()
            await system.orchestrator.programs.keep(net, compiled.digest)

            async def one() -> None:
                started = await system.executions.start(compiled.digest, net.path, None, {})
                state = await system.orchestrator.wait_for_end(started)
                assert state.status == "COMPLETED", state.failure

            for _ in range(times):
                await asyncio.gather(*(one() for _ in range(executions)))


def instructions(name: str, times: int, source: Path) -> int:
    """Instructions of a process that runs the workload so often."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "callgrind.out")
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={kept}", "--quiet"),
                *(sys.executable, __file__, name, "--repeat", str(times)),
            ],
            env=os.environ | {"PYTHONPATH": str(source), "PYTHONHASHSEED": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        found = TOTAL.findall(kept.read_text())
    return int(found[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workload", choices=UNITS)
    parser.add_argument("--src", type=Path, default=Path(__file__).parent.parent / "src")
    parser.add_argument("--runs", type=int, default=3, help="measure so often")
    parser.add_argument("--repeat", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeat is not None:
        asyncio.run(repeat(options.workload, options.repeat))
        return
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed.")
    source = options.src.resolve()
    for _ in range(options.runs):
        few = instructions(options.workload, FEW, source)
        many = instructions(options.workload, MANY, source)
        each = (many - few) / ((MANY - FEW) * UNITS[options.workload])
        print(f"{each:,.0f} per unit", flush=True)


if __name__ == "__main__":
    main()
