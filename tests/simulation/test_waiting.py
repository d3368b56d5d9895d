"""SIM: what the world says to a waiting execution counts once and in order, whatever breaks.

The sender is as good as senders are: it says everything again, under the same id, until somebody
has answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from noetl.engine.evolve import evolve
from noetl.engine.signals import received
from noetl.errors import NoetlError, StoreError
from noetl.model.events import decode
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.simulation.world import World, simulate

COLLECTS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: collects, path: sim/collects}
workflow:
  - step: start
    tool: {kind: effect, value: 1, takes: 3}
    next: collect
  - step: collect
    spec:
      eval_mode: on_event
      timers: [{id: late, after: 1h}]
    case:
      - when: "{{ event.name == 'item' and event.data is even }}"
        then:
          - keep: {tool: {kind: effect, value: "{{ event.data }}", takes: 2}}
          - set: {ctx.items: "{{ (ctx.items | default([])) + [keep.result] }}"}
      - when: "{{ event.name == 'item' }}"
        then:
          - set: {ctx.items: "{{ (ctx.items | default([])) + [event.data] }}"}
      - when: "{{ event.name == 'closed' }}"
        then: [{result: {value: "{{ ctx.items }}"}}]
    next: end
  - step: end
    tool: {kind: noop, result: "{{ collect }}"}
"""
ITEMS = list(range(8))


async def tell(world: World, execution_id: str, name: str, data: Any) -> None:
    """Say it until it was heard; perhaps once more, to be sure."""
    signal_id = f"{name}-{data}"
    for _ in range(200):
        signal = received(world.clock.now(), signal_id, name, data, None)
        saying = asyncio.create_task(world.orchestrator.signal(execution_id, signal))
        await asyncio.wait([saying], timeout=2)
        if not saying.done():
            saying.cancel()
            continue
        try:
            await saying
        except StoreError:
            continue
        except NoetlError:
            # Not started yet, or over by what it heard before.
            if (await world.store.records.summary(execution_id)) is None:
                await asyncio.sleep(1)
                continue
            return
        if not world.faults.happens(0.3):
            return


async def story(world: World) -> list[ExecutionState]:
    ids = [str(10**17 + index) for index in range(2)]
    trouble = asyncio.create_task(world.torment(40))

    async def one(execution_id: str) -> ExecutionState:
        await world.execute(COLLECTS, execution_id, {})
        for item in ITEMS:
            await tell(world, execution_id, "item", item)
        await tell(world, execution_id, "closed", None)
        return await world.ended(execution_id)

    states = await asyncio.gather(*(one(execution_id) for execution_id in ids))
    await trouble
    for execution_id, state in zip(ids, states, strict=True):
        replayed = ExecutionState()
        for row in await world.store.log.events(execution_id, limit=100_000):
            evolve(replayed, decode(row.body))
        assert replayed == state
    assert await world.store.queue.open_commands() == []
    assert await world.store.queue.next_timer() is None
    return states


@pytest.mark.parametrize("seed", [*range(5), *later(range(5, 20))])
def test_everything_that_was_said_counts_once_and_in_order(seed: int) -> None:
    for state in simulate(story, seed):
        assert (state.status, state.result) == ("COMPLETED", ITEMS), state.failure
