"""T22: loops of any length take linear time and bounded memory.

Time is that of the processor, and the measure is a ratio within one run: what an iteration of a
long loop costs against one of a short loop.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from noetl.model import refs
from noetl.model.events import IterationDone, encode
from tests.examples.system import Bench, on_bench, playbook, ran

MEBI = 1024 * 1024
GROWTH_MAX = 150 * MEBI
DEARER_MAX = 1.3
SHORT = 1_000
TRIES = 4
"""One quiet moment is enough: a machine that has other things to do only adds to the cost."""

LOOPS = {
    "a range, small results": """
- step: start
  loop: { in: { from: 0, to: "{{ workload.n }}" }, iterator: n, spec: { mode: parallel } }
  tool: { kind: noop, result: "{{ n }}" }
  next: end
- { step: end, tool: { kind: noop, result: "{{ [start.results | length, start.results[-1]] }}" } }
""",
    "a list, results of a kilobyte": """
- step: start
  loop: { in: "{{ range(workload.n) }}", iterator: n, spec: { mode: parallel } }
  tool: { kind: noop, result: { n: "{{ n }}", text: "{{ 'x' * 1000 }}" } }
  next: end
- { step: end, tool: { kind: noop, result: ["{{ start.stats.total }}", "{{ workload.n - 1 }}"] } }
""",
}


class Cost(NamedTuple):
    dearer: float
    """An iteration of the long loop against one of the short loop."""
    grown: int
    """Bytes of memory that the process had at most while the long loop ran, beyond before."""


def memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def processor_seconds(bench: Bench, flow: str, iterations: int) -> float:
    """Per iteration."""
    execution_id = await bench.start(playbook(flow, workload="n: 0"), {"n": iterations})
    started = time.process_time()
    document = await bench.system.executions.wait(execution_id)
    elapsed = time.process_time() - started
    assert document["result"] == [iterations, iterations - 1]
    return elapsed / iterations


async def peak(most: list[int]) -> None:
    while True:
        most[0] = max(most[0], memory())
        await asyncio.sleep(0.02)


def cost(flow: str, iterations: int) -> Cost:
    async def work(bench: Bench) -> Cost:
        await processor_seconds(bench, flow, SHORT)
        short = min([await processor_seconds(bench, flow, SHORT) for _ in range(3)])
        gc.collect()
        before = memory()
        most = [before]
        watching = asyncio.create_task(peak(most))
        long = await processor_seconds(bench, flow, iterations)
        watching.cancel()
        return Cost(long / short, most[0] - before)

    return on_bench(work)


def assert_linear(flow: str, iterations: int) -> None:
    seen = []
    for _ in range(TRIES):
        seen.append(cost(flow, iterations))
        assert seen[-1].grown < GROWTH_MAX
        if seen[-1].dearer <= DEARER_MAX:
            return
    pytest.fail(f"an iteration of a long loop is dearer: {seen}")


@pytest.mark.parametrize("flow", LOOPS.values(), ids=LOOPS)
def test_t22_a_loop_of_10_000_iterations_takes_linear_time_and_bounded_memory(flow):
    assert_linear(flow, 10_000)


@pytest.mark.long
@pytest.mark.parametrize("flow", LOOPS.values(), ids=LOOPS)
def test_t22_a_loop_of_100_000_iterations_takes_linear_time_and_bounded_memory(flow):
    assert_linear(flow, 100_000)


def test_t22_a_sequential_loop_of_10_000_keeps_its_order_and_its_state():
    flow = """
- step: start
  loop: { in: "{{ range(10000) }}", iterator: n }
  tool: { kind: noop, result: "{{ n }}", set: { ctx.sum: "{{ ctx.sum | default(0) + n }}" } }
  next: end
- { step: end, tool: { kind: noop, result: "{{ [ctx.sum, start.results[7777]] }}" } }
"""
    done = ran(playbook(flow))

    assert done.result == [49_995_000, 7777]
    assert [fact.iteration for fact in done.of(IterationDone)] == list(range(10_000))


def test_t22_no_event_of_a_long_loop_is_long_and_its_arcs_read_all_results():
    flow = """
- step: start
  loop: { in: "{{ range(workload.n) }}", iterator: n, spec: { mode: parallel } }
  tool: { kind: noop, result: "{{ n }} {{ 'x' * 200 }}" }
  next:
    spec: { mode: exclusive }
    arcs:
      - step: end
        when: "{{ result.results | length == workload.n and start.results[1234][:5] == '1234 ' }}"
        args: { last: "{{ start.results[-1][:4] }}" }
- { step: end, tool: { kind: noop, result: "{{ args.last }}" } }
"""
    done = ran(playbook(flow, workload="n: 3000"))

    assert done.result == "2999"
    assert max(len(encode(fact)) for fact in done.events) < refs.INLINE_MAX
    assert "segments" in done.step("start")["result"]["results"]["_ref"]
