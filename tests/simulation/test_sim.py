"""SIM: whatever breaks, once it stops breaking every execution ends, and ends right."""

from __future__ import annotations

import asyncio

import pytest

from noetl.engine.evolve import evolve
from noetl.model.events import decode
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.simulation.world import BLOCK, World, check_block, simulate

MIXED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: mixed, path: sim/mixed}
workload: {items: 12}
workflow:
  - step: start
    tool: {kind: effect, value: 1, takes: 1}
    next: [left, right]
  - step: left
    tool:
      - {name: first, kind: effect, value: 10, takes: 2}
      - name: second
        kind: effect
        value: "{{ first + 1 }}"
        takes: 1
        fails: 2
        spec:
          policy:
            rules:
              - when: "{{ outcome.status == 'error' }}"
                then: {do: retry, attempts: 5, delay: 1}
    next: join
  - step: right
    loop:
      in: "{{ range(workload.items) | list }}"
      iterator: item
      spec: {mode: parallel, max_in_flight: 4, policy: {reduce: {total: sum}}}
    tool:
      kind: effect
      value: "{{ item }}"
      takes: 0.5
      spec: {policy: {rules: [{else: {do: continue, set_ctx: {total: "{{ outcome.result }}"}}}]}}
    next: join
  - step: join
    tool: {kind: effect, value: "{{ [left, right.stats.success, ctx.total] }}", takes: 0.2}
    next:
      arcs: [{step: end, spec: {delay: 20}}]
  - step: end
    tool: {kind: noop, result: "{{ join }}"}
"""
EXPECTED = [11, 12, 66]


async def mixed_story(world: World) -> list[ExecutionState]:
    ids = [str(10**17 + index) for index in range(4)]
    trouble = asyncio.create_task(world.torment(60))
    await asyncio.gather(*(world.execute(MIXED, execution_id, {}) for execution_id in ids))
    await trouble
    states = [await world.ended(execution_id) for execution_id in ids]
    for execution_id, state in zip(ids, states, strict=True):
        replayed = ExecutionState()
        for row in await world.store.log.events(execution_id, limit=100_000):
            evolve(replayed, decode(row.body))
        assert replayed == state
        summary = await world.store.records.summary(execution_id)
        assert summary is not None
        assert summary.status == state.status
    assert await world.store.queue.open_commands() == []
    return states


def check(seed: int) -> None:
    for state in simulate(mixed_story, seed):
        assert (state.status, state.result) == ("COMPLETED", EXPECTED), state.failure


@pytest.mark.parametrize("seed", [*range(8), *later(range(8, 16))])
def test_everything_ends_right_whatever_breaks(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 2000, BLOCK))
def test_everything_ends_right_whatever_breaks_for_long(first: int) -> None:
    check_block(check, first)


def test_a_calm_world_runs_every_call_exactly_as_often_as_it_must() -> None:
    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(MIXED, "1", {})
        state = await world.ended("1")
        assert (state.status, state.result) == ("COMPLETED", EXPECTED)
        # start, first, join and twelve iterations once; second twice in vain and once well.
        assert sorted(world.effects.values()) == [1] * 15 + [3]

    simulate(story, 0)
