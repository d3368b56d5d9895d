"""The workloads W1–W7 that measure NoETL's speed, and what each one shows.

They run the whole system in this process, with every commit flushed to disk. `noetl bench` prints
their figures, and the benchmarks of a working tree run the same code.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from noetl.api.services import Services
    from noetl.dsl.compile import Compiled

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: bench, path: bench/bench}\n"
LOOP = (
    HEAD
    + """\
workload: {n: 1000}
workflow:
  - step: start
    loop: {in: "{{ range(workload.n) | list }}", iterator: item, spec: {mode: parallel}}
    tool: {kind: noop}
    next: end
  - step: end
    tool: {kind: noop}
"""
)
CALLS = LOOP.replace(
    "{kind: noop}", '{kind: python, args: {n: "{{ iter.item }}"}, code: "result = n + 1"}', 1
)
HELLO = HEAD + "workflow:\n  - step: start\n    tool: {kind: noop, result: hello}\n"

SHORT_RUNS_MAX = 3
"""Workloads that take seconds are repeated less often: they also vary less."""


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of the workloads. Figures of different sizes are not comparable."""

    steps: int = 100
    iterations: int = 1_000
    executions: int = 500
    alone: int = 50
    calls: int = 2_000
    long_loop: int = 100_000


class Bench(msgspec.Struct, frozen=True):
    """The system to measure, a directory on its disk, and how often to run."""

    system: Services
    folder: Path
    runs: int
    sizes: Sizes


def chain(steps: int) -> str:
    """A playbook of consecutive steps."""
    lines = [HEAD + "workflow:"]
    for index in range(steps):
        name = "start" if index == 0 else f"s{index}"
        following = f", next: s{index + 1}" if index < steps - 1 else ""
        lines.append(f"  - {{step: {name}, tool: {{kind: noop}}{following}}}")
    return "\n".join(lines) + "\n"


def of_length(loop: str, iterations: int) -> str:
    """The same loop over this many elements."""
    return loop.replace("n: 1000", f"n: {iterations}")


async def run(system: Services, text: str, count: int = 1) -> float:
    """Seconds until this many executions of a playbook, started at once, have ended."""
    return await seconds_of(system, await compiled(system, text), count)


async def compiled(system: Services, text: str) -> Compiled:
    """The playbook, which the system knows from now on."""
    found = system.catalog.check(text)
    await system.orchestrator.programs.keep(found.unwrap(), found.digest)
    return found


async def seconds_of(system: Services, playbook: Compiled, count: int = 1) -> float:
    """Seconds until this many executions of it, started at once, have ended."""
    path = playbook.unwrap().path

    async def one() -> None:
        execution_id = await system.executions.start(playbook.digest, path, None, {})
        state = await system.orchestrator.wait_for_end(execution_id)
        assert state.status == "COMPLETED", state.failure

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - begin


async def median(runs: int, measure: Callable[[], Awaitable[float]]) -> float:
    """The median time, without the first run."""
    await measure()
    return statistics.median([await measure() for _ in range(runs)])


# --- The workloads -----------------------------------------------------------------------------


async def steps_in_a_row(bench: Bench) -> dict[str, float]:
    steps = bench.sizes.steps
    text = chain(steps)
    seconds = await median(bench.runs, lambda: run(bench.system, text))
    return {"w1_ms_per_step": seconds * 1000 / steps}


async def parallel_loop(bench: Bench) -> dict[str, float]:
    iterations = bench.sizes.iterations
    text = of_length(LOOP, iterations)
    seconds = await median(bench.runs, lambda: run(bench.system, text))
    return {"w2_tasks_per_second": iterations / seconds}


async def many_executions(bench: Bench) -> dict[str, float]:
    count, text = bench.sizes.executions, chain(5)
    seconds = await median(bench.runs, lambda: run(bench.system, text, count))
    return {"w3_steps_per_second": 5 * count / seconds}


async def one_alone(bench: Bench) -> dict[str, float]:
    playbook = await compiled(bench.system, chain(1))
    times = sorted(
        [await seconds_of(bench.system, playbook) * 1000 for _ in range(bench.sizes.alone)]
    )
    return {"w4_p50_ms": times[len(times) // 2], "w4_p95_ms": times[len(times) * 95 // 100]}


async def from_the_shell(bench: Bench) -> dict[str, float]:
    tries = min(bench.runs, SHORT_RUNS_MAX)
    times = [await asyncio.to_thread(cold_start, bench.folder) for _ in range(tries)]
    return {"w5_cold_start_s": statistics.median(times)}


async def python_calls(bench: Bench) -> dict[str, float]:
    calls = bench.sizes.calls
    text = of_length(CALLS, calls)
    seconds = await median(min(bench.runs, SHORT_RUNS_MAX), lambda: run(bench.system, text))
    return {"w6_python_calls_per_second": calls / seconds}


async def long_loop(bench: Bench) -> dict[str, float]:
    sizes, tries = bench.sizes, min(bench.runs, SHORT_RUNS_MAX)
    short = of_length(LOOP, sizes.iterations)
    short_s = await median(tries, lambda: run(bench.system, short))
    before = resident_mb()
    long_s = await run(bench.system, of_length(LOOP, sizes.long_loop))
    return {
        "w7_iterations_per_second": sizes.long_loop / long_s,
        "w7_ratio_to_short_loop": (long_s / sizes.long_loop) / (short_s / sizes.iterations),
        "w7_memory_growth_mb": resident_mb() - before,
    }


class Workload(NamedTuple):
    """What a workload runs, in words, and how it is measured."""

    about: str
    measure: Callable[[Bench], Awaitable[dict[str, float]]]


WORKLOADS = {
    "w1": Workload("one execution of 100 no-op steps, one after the other", steps_in_a_row),
    "w2": Workload("a parallel loop over 1 000 no-ops, and its join", parallel_loop),
    "w3": Workload("500 executions of 5 steps, started at once", many_executions),
    "w4": Workload("an execution of one step on an idle system", one_alone),
    "w5": Workload("`noetl run` of a hello-world, from the shell to its end", from_the_shell),
    "w6": Workload("a parallel loop over 2 000 calls of `kind: python`", python_calls),
    "w7": Workload("a parallel loop over 100 000 no-ops", long_loop),
}

MEANINGS = {
    "flush_ms": "one small flush to this disk: most others contain it",
    "memory_idle_mb": "this process, before it has run anything",
    "w1_ms_per_step": WORKLOADS["w1"].about,
    "w2_tasks_per_second": WORKLOADS["w2"].about,
    "w3_steps_per_second": WORKLOADS["w3"].about,
    "w4_p50_ms": WORKLOADS["w4"].about + "; half take less",
    "w4_p95_ms": "the same; 95 of 100 take less",
    "w5_cold_start_s": WORKLOADS["w5"].about,
    "w6_python_calls_per_second": WORKLOADS["w6"].about,
    "w7_iterations_per_second": WORKLOADS["w7"].about,
    "w7_ratio_to_short_loop": "one of these iterations beside one of a loop over 1 000",
    "w7_memory_growth_mb": "how much larger the process is after that loop",
    "memory_after_mb": "this process, at its largest",
}
"""Every figure, in the order of printing, and its meaning."""


async def figures(
    folder: Path,
    url: str,
    runs: int,
    *,
    chosen: Collection[str] = tuple(WORKLOADS),
    sizes: Sizes | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Run the chosen workloads on a database; `tell` is called with the next one."""
    from noetl import wiring
    from noetl.settings import Settings

    settings = msgspec.structs.replace(Settings.from_environment({}), database_url=url)
    found = {"flush_ms": flush_ms(folder)}
    async with wiring.embedded(settings) as system:
        found["memory_idle_mb"] = largest_mb()
        bench = Bench(system, folder, runs, sizes or Sizes())
        for name, workload in WORKLOADS.items():
            if name in chosen:
                tell(f"{name}: {workload.about} …")
                found |= await workload.measure(bench)
        found["memory_after_mb"] = largest_mb()
    return found


# --- The machine -------------------------------------------------------------------------------


def flush_ms(folder: Path) -> float:
    """How long one small flush to this disk takes, in milliseconds."""
    times = []
    with (folder / "flush").open("wb") as file:
        for _ in range(30):
            file.write(b"x" * 4096)
            begin = time.perf_counter()
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def cold_start(folder: Path) -> float:
    """Seconds from the shell prompt to the end of a hello-world, on a database of its own.

    It uses default settings, because the current ones may name a server.
    """
    (folder / "hello.yaml").write_text(HELLO)
    command = [sys.executable, "-m", "noetl.cli", "run", "hello.yaml", "--new", "--db", "hello.db"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NOETL_")}
    begin = time.perf_counter()
    subprocess.run(  # noqa: S603 - our own program
        command, cwd=folder, env=environment, check=True, capture_output=True
    )
    return time.perf_counter() - begin


def resident_mb() -> float:
    """The current memory of this process; if the system does not tell, its peak."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return largest_mb()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def largest_mb() -> float:
    """The peak memory of this process. macOS counts bytes, other systems kilobytes."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def machine() -> dict[str, str | int]:
    """The machine and the date of the measurement."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "system": platform.platform(terse=True),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version() + _built(),
        "sqlite": sqlite3.sqlite_version,
    }


def _built() -> str:
    """What is slow about this interpreter itself, if anything is. Those of distributions are built
    with optimizations, whatever they remember of it.
    """
    written = sysconfig.get_config_var("CONFIG_ARGS") or "--enable-optimizations"
    is_optimized = sys.base_prefix == "/usr" or "--enable-optimizations" in written
    return "" if is_optimized else ", built without optimizations"
