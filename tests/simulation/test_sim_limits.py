"""SIM of limits: whatever breaks between several servers, no more executions run than a limit
allows, each has its turn or is cancelled, and in the end there is room for as many as before.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from noetl.errors import NoetlError
from noetl.model.events import ExecutionQueued
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.simulation.test_sim_servers import facts, names, servers_for, settled
from tests.simulation.world import BLOCK, World, check_block, simulate

LIMIT, MOST, COUNT = 2, 3, 12
ALL = "all"
BOUNDED = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: bounded, path: sim/bounded}}
workload: {{key: a}}
executor:
  spec:
    concurrency: {{key: "{{{{ workload.key }}}}", limit: {LIMIT}}}
    limits: {{max_running: {MOST}}}
workflow:
  - step: start
    tool: {{kind: effect, takes: 2}}
    next: {{arcs: [{{step: end, spec: {{delay: 1}}}}]}}
  - step: end
    tool: {{kind: effect, value: "{{{{ workload.key }}}}", takes: 1}}
"""
IDS = names(COUNT)
KEYS = {execution_id: "ab"[index % 2] for index, execution_id in enumerate(IDS)}
CANCELLED = IDS[3::4]


class Watch:
    """How many ran at the same moment at most, by key, counted past all slots."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()

    async def run(self, world: World) -> None:
        while True:
            rows = await world.store.records.summaries()
            running = [row.execution_id for row in rows if row.status in ("RUNNING", "PAUSED")]
            self.most |= Counter(KEYS[one] for one in running) + Counter({ALL: len(running)})
            assert self.most[ALL] <= MOST, running
            assert max(self.most["a"], self.most["b"]) <= LIMIT, running
            await asyncio.sleep(0.02)


async def cancel(world: World, execution_id: str) -> None:
    """Until some server has done it."""
    for _ in range(200):
        cancelling = asyncio.create_task(world.orchestrator.cancel(execution_id))
        await asyncio.wait([cancelling], timeout=5)
        if cancelling.done():
            try:
                return cancelling.result()
            except NoetlError:
                if await has_ended(world, execution_id):
                    return None
        cancelling.cancel()
        await asyncio.sleep(0.5)
    raise AssertionError(f"nobody cancels {execution_id}")


async def has_ended(world: World, execution_id: str) -> bool:
    found = await world.store.records.summary(execution_id)
    return found is not None and found.ended_at is not None


async def one(world: World, execution_id: str) -> None:
    await asyncio.sleep(world.faults.dice.random() * 10)
    await world.execute(BOUNDED, execution_id, {"key": KEYS[execution_id]})
    if execution_id in CANCELLED:
        await asyncio.sleep(world.faults.dice.random() * 10)
        await cancel(world, execution_id)


async def story(world: World) -> list[ExecutionState]:
    watch = Watch()
    watching = asyncio.create_task(watch.run(world))
    trouble = asyncio.create_task(world.torment(40))
    await asyncio.gather(*(one(world, execution_id) for execution_id in IDS))
    await trouble
    states = await settled(world, IDS)
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled(), watching.exception()
    assert watch.most[ALL] == MOST, "nothing was ever full"
    await check_room(world)
    return states


async def check_room(world: World) -> None:
    """As many as are allowed begin at once: none of them waits for a slot that nobody has."""
    ids = [f"2{execution_id[1:]}" for execution_id in IDS[:MOST]]
    for execution_id, key in zip(ids, "aab", strict=True):
        await world.execute(BOUNDED, execution_id, {"key": key})
    for state, execution_id in zip(await settled(world, ids), ids, strict=True):
        assert state.status == "COMPLETED"
        waited = [isinstance(fact, ExecutionQueued) for fact in await facts(world, execution_id)]
        assert not any(waited), "it waited, though nothing else ran"


def check(seed: int) -> None:
    states = simulate(story, seed, servers=servers_for(seed), admits=True)
    for execution_id, state in zip(IDS, states, strict=True):
        if state.status == "CANCELLED":
            assert execution_id in CANCELLED
        else:
            assert (state.status, state.result) == ("COMPLETED", KEYS[execution_id]), state.failure


@pytest.mark.parametrize("seed", [0, 1, *later(range(2, 12))])
def test_limits_hold_and_no_slot_is_lost_whatever_breaks_between_servers(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 500, BLOCK))
def test_limits_hold_and_no_slot_is_lost_for_long(first: int) -> None:
    check_block(check, first)
