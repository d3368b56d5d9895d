"""SIM of loops whose elements and results are too many for an event: nothing of them is lost."""

from __future__ import annotations

import asyncio

import pytest

from noetl.engine.evolve import evolve
from noetl.model import refs
from noetl.model.events import decode
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.simulation.world import World, simulate

LONG = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: long, path: sim/long}
workflow:
  - step: start
    tool: {kind: effect, value: "{{ range(420) | map('string') | map('center', 300) | list }}"}
    next: each
  - step: each
    loop:
      in: "{{ start }}"
      iterator: text
      spec: {mode: parallel, max_in_flight: 60, batch_size: 15}
    tool: {kind: effect, value: "{{ text }}", takes: 0.5}
    next:
      arcs:
        - step: end
          when: "{{ each.results | length == 420 and each.results[321].strip() == '321' }}"
          args: {last: "{{ each.results[-1].strip() }}"}
  - step: end
    tool: {kind: noop, result: "{{ [args.last, each.results | map('trim') | map('int') | sum] }}"}
"""


async def story(world: World) -> ExecutionState:
    trouble = asyncio.create_task(world.torment(30))
    await world.execute(LONG, "77", {})
    await trouble
    state = await world.ended("77")
    replayed = ExecutionState()
    for row in await world.store.log.events("77", limit=100_000):
        assert len(row.body) < refs.INLINE_MAX
        evolve(replayed, decode(row.body))
    assert replayed == state
    return state


@pytest.mark.parametrize("seed", [0, 1, 2, *later([3, 4, 5])])
def test_a_long_loop_ends_right_whatever_breaks(seed):
    state = simulate(story, seed)

    assert (state.status, state.result) == ("COMPLETED", ["419", 87_990]), state.failure
