"""SIM of several servers on one database: whatever is lost between them, nothing is stuck and
nothing is done on an old state.

Each execution ends right, whichever servers are killed, for good or not, and whatever becomes of
the news they send each other. In the end every server that is there tells the same, and keeps
nothing of what is over.
"""

from __future__ import annotations

import asyncio

import pytest

from noetl.control import peers
from noetl.engine.evolve import evolve
from noetl.model.events import CommandLost, Event, decode
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.simulation.test_sim import EXPECTED, MIXED
from tests.simulation.test_waiting import COLLECTS, ITEMS, tell
from tests.simulation.world import BLOCK, World, check_block, simulate

SETTLED_SECONDS = 30
"""Within this time servers have found what nobody told them."""
CHILD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child, path: sim/child}
workload: {number: 0}
workflow:
  - step: start
    tool: {kind: effect, value: "{{ workload.number }}", takes: 1}
    next: {arcs: [{step: end, spec: {delay: 6}}]}
  - step: end
    tool: {kind: effect, value: "{{ workload.number * 10 }}", takes: 1}
"""
PARENT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: parent, path: sim/parent}
workflow:
  - step: start
    loop:
      in: [1, 2, 3]
      iterator: number
      spec: {mode: parallel, max_in_flight: 3}
    tool: {kind: playbook, path: sim/child, payload: {number: "{{ number }}"}}
    next: end
  - step: end
    tool: {kind: noop, result: "{{ start.results | sum }}"}
"""


@pytest.fixture(autouse=True)
def little_room_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of executions is more than a message holds, as thousands are elsewhere."""
    monkeypatch.setattr(peers, "EXECUTIONS_MAX", 2)


def servers_for(seed: int) -> int:
    return 2 + seed % 2


async def facts(world: World, execution_id: str) -> list[Event]:
    return [decode(row.body) for row in await world.store.log.events(execution_id, limit=100_000)]


async def settled(world: World, ids: list[str], within: float = 1000) -> list[ExecutionState]:
    """The final states. What is stored and what every server says is the same, and nothing is
    left over."""
    states = [await world.ended(execution_id, within) for execution_id in ids]
    await asyncio.sleep(SETTLED_SECONDS)
    for execution_id, state in zip(ids, states, strict=True):
        replayed = ExecutionState()
        for fact in await facts(world, execution_id):
            evolve(replayed, fact)
        assert replayed == state
        for server in world.servers:
            assert await server.orchestrator.state(execution_id) == state
    assert await world.store.queue.open_commands() == []
    assert await world.store.queue.next_timer() is None
    for server in world.servers:
        assert server.orchestrator.dispatch.held == {}, "leases of commands that are over"
        assert server.orchestrator.memory.busy(None) == [], "executions in memory that are over"
    return states


def names(count: int) -> list[str]:
    return [str(10**17 + index) for index in range(count)]


async def started(world: World, text: str, ids: list[str]) -> None:
    await asyncio.gather(*(world.execute(text, execution_id, {}) for execution_id in ids))


# --- Whatever breaks ---------------------------------------------------------------------------


async def mixed_story(world: World) -> list[ExecutionState]:
    trouble = asyncio.create_task(world.torment(60))
    await started(world, MIXED, names(3))
    await trouble
    return await settled(world, names(3))


def check_mixed(seed: int) -> None:
    for state in simulate(mixed_story, seed, servers=servers_for(seed)):
        assert (state.status, state.result) == ("COMPLETED", EXPECTED), state.failure


@pytest.mark.parametrize("seed", [0, 5, 7, 20, *later([1, 2, 3, 4, 6, 8, 9])])
def test_everything_ends_right_whatever_breaks_between_servers(seed: int) -> None:
    """5, 7 and 20 found leases of ended commands that a server kept for ever."""
    check_mixed(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 1000, BLOCK))
def test_everything_ends_right_whatever_breaks_between_servers_for_long(first: int) -> None:
    check_block(check_mixed, first)


async def family_story(world: World) -> list[ExecutionState]:
    await world.register(CHILD)
    trouble = asyncio.create_task(world.torment(30))
    await started(world, PARENT, names(2))
    await trouble
    return await settled(world, names(2))


def check_family(seed: int) -> None:
    for state in simulate(family_story, seed, servers=servers_for(seed)):
        assert (state.status, state.result) == ("COMPLETED", 60), state.failure


@pytest.mark.parametrize("seed", [0, 13, 14, 17, 22, *later(range(1, 6))])
def test_parents_hear_of_their_children_whichever_server_decides(seed: int) -> None:
    """13 and 17 found parents that waited for ever; 14 and 22 leases kept for ever."""
    check_family(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 1000, BLOCK))
def test_parents_hear_of_their_children_whichever_server_decides_for_long(first: int) -> None:
    check_block(check_family, first)


async def told_story(world: World) -> list[ExecutionState]:
    trouble = asyncio.create_task(world.torment(40))

    async def one(execution_id: str) -> None:
        await world.execute(COLLECTS, execution_id, {})
        for item in ITEMS:
            await tell(world, execution_id, "item", item)
        await tell(world, execution_id, "closed", None)

    await asyncio.gather(*map(one, names(2)))
    await trouble
    return await settled(world, names(2))


def check_told(seed: int) -> None:
    for state in simulate(told_story, seed, servers=servers_for(seed)):
        assert (state.status, state.result) == ("COMPLETED", ITEMS), state.failure


@pytest.mark.parametrize("seed", [0, 1, 2, *later(range(3, 8))])
def test_what_is_said_to_any_server_counts_once_and_in_order(seed: int) -> None:
    check_told(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 1000, BLOCK))
def test_what_is_said_to_any_server_counts_once_and_in_order_for_long(first: int) -> None:
    check_block(check_told, first)


LARGE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large, path: sim/large}
workflow:
  - step: start
    loop: {in: {from: 0, to: 6}, iterator: x, spec: {mode: parallel, max_in_flight: 3}}
    tool: {kind: effect, value: "{{ 'x' | center(70000) }}", takes: 2}
    next: end
  - step: end
    tool: {kind: effect, value: "{{ start.results | map('length') | sum }}"}
"""


async def large_story(world: World) -> list[ExecutionState]:
    trouble = asyncio.create_task(world.torment(30))
    await started(world, LARGE, names(2))
    await trouble
    return await settled(world, names(2))


def check_large(seed: int) -> None:
    for state in simulate(large_story, seed, servers=servers_for(seed)):
        assert (state.status, state.result) == ("COMPLETED", 420_000), state.failure


@pytest.mark.parametrize("seed", [0, 4, *later([1, 2, 3, 5, 6, 7])])
def test_large_results_are_stored_and_read_once_the_database_answers_again(seed: int) -> None:
    """4 found a step that failed at once, with a worker in the process of its server."""
    check_large(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 300, BLOCK))
def test_large_results_are_stored_and_read_whatever_breaks_for_long(first: int) -> None:
    check_block(check_large, first)


# --- Nothing breaks but the news ---------------------------------------------------------------


async def healthy_story(world: World) -> None:
    world.faults.calm = True
    await started(world, MIXED, names(3))
    for state in await settled(world, names(3)):
        assert (state.status, state.result) == ("COMPLETED", EXPECTED), state.failure
    # start, first, join and twelve iterations once; second twice in vain and once well.
    assert sorted(world.effects.values()) == [1] * 45 + [3] * 3
    for execution_id in names(3):
        lost = [one for one in await facts(world, execution_id) if isinstance(one, CommandLost)]
        assert lost == [], "a report under a valid lease was refused"


def check_healthy(seed: int) -> None:
    simulate(healthy_story, seed, servers=servers_for(seed))


@pytest.mark.parametrize("seed", [1, 4, 5, 6, 7, 9, *later([0, 2, 3, 8, *range(10, 16)])])
def test_law_4_no_valid_report_is_refused_whatever_becomes_of_the_news(seed: int) -> None:
    """1, 4, 5, 6, 7 and 9 found effects that were repeated after such a refusal."""
    check_healthy(seed)


async def orphaned_story(world: World) -> None:
    """All is started at one server, worked by any into a timer wait, and the others are gone."""
    world.faults.calm = True
    assert world.air is not None
    world.air.loss = 1.0
    [first, *others] = world.servers
    ids = names(4)
    for execution_id in ids:
        await world.execute(MIXED, execution_id, {}, at=first)
    while {row.current_steps for row in await world.store.records.summaries()} != {()}:
        await asyncio.sleep(0.5)
    for server in others:
        await world.kill_server(server)
    # Only of some: to be asked makes a server look.
    for execution_id in ids[:1]:
        stored = ExecutionState()
        for fact in await facts(world, execution_id):
            evolve(stored, fact)
        assert await first.orchestrator.state(execution_id) == stored
    for state in await settled(world, ids, within=60):
        assert (state.status, state.result) == ("COMPLETED", EXPECTED), state.failure


def check_orphaned(seed: int) -> None:
    simulate(orphaned_story, seed, servers=servers_for(seed))


@pytest.mark.parametrize("seed", [0, 2, 3, 6, 7, 9, 10, 11, *later([1, 4, 5, 8])])
def test_law_7_timers_fire_at_a_server_that_heard_nothing_and_is_left_alone(seed: int) -> None:
    """0, 2, 3, 6 and 9 found timers that never fired; 7, 10 and 11 leases kept for ever."""
    check_orphaned(seed)
