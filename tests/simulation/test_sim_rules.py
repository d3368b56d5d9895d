"""SIM with event rules: chains, pages, polls and waits go on behind what was recorded."""

from __future__ import annotations

import asyncio

import pytest

from noetl.engine.evolve import evolve
from noetl.model.events import SinkProcessed, TaskDone, decode
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.simulation.world import BLOCK, World, check_block, simulate

RULES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: rules, path: sim/rules}
workflow:
  - step: start
    case:
      - when: "{{ event.name == 'step.enter' }}"
        then:
          - prepare: {tool: {kind: effect, value: 1, takes: 1}}
          - set: {ready: "{{ prepare.result }}"}
      - when: "{{ event.name == 'step.exit' }}"
        then:
          - look_back: {tool: {kind: effect, value: "{{ [ready, result] }}", takes: 1}}
          - next: {to: [{step: pages, args: {began: "{{ look_back.result }}"}}, {step: loop}]}
    tool: {kind: effect, value: 2, takes: 1}
    next: never
  - step: never
    tool: {kind: noop}
  - step: pages
    tool: {kind: effect, value: 1, takes: 1}
    case:
      - when: "{{ event.name == 'call.done' and result < 4 }}"
        then:
          - collect: {from: result, into: pages}
          - store: {tool: {kind: effect, value: "{{ result * 10 }}", takes: 1, fails: 1},
                    retry: {max_attempts: 3, backoff: {type: fixed, delay_seconds: 7}}}
          - collect: {from: store.result, into: stored}
          - call: {value: "{{ result + 1 }}"}
      - when: "{{ event.name == 'call.done' }}"
        then: {result: {value: "{{ [args.began, pages, stored] }}"}}
    sink: {tool: {kind: effect, value: sunk, takes: 1}}
    next: join
  - step: loop
    loop: {in: "{{ range(40) | list }}", iterator: x, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: effect, value: "{{ x }}", takes: 1}
    case:
      - when: "{{ event.name == 'call.done' and x == 9 }}"
        then: {next: [{step: join, args: {found: "{{ result }}"}}]}
    next: never
  - step: join
    tool:
      kind: effect
      value: "{{ [pages, args.found] }}"
      poll: {until: "{{ result | length == 2 }}", interval: 1}
"""
EXPECTED = [[[1, 2], [1, 2, 3], [10, 20, 30]], 9]


async def story(world: World) -> None:
    ids = [str(10**17 + index) for index in range(3)]
    trouble = asyncio.create_task(world.torment(40))
    await asyncio.gather(*(world.execute(RULES, execution_id, {}) for execution_id in ids))
    await trouble
    for execution_id in ids:
        state = await world.ended(execution_id)
        assert (state.status, state.result) == ("COMPLETED", EXPECTED), state.failure
        replayed = ExecutionState()
        facts = [
            decode(row.body) for row in await world.store.log.events(execution_id, limit=100_000)
        ]
        for fact in facts:
            evolve(replayed, fact)
        assert replayed == state
        ended = [
            (fact.action_id, fact.attempt)
            for fact in facts
            if isinstance(fact, TaskDone | SinkProcessed) and fact.iteration is None
        ]
        assert len(set(ended)) == len(ended), "a call that was recorded was made again"


@pytest.mark.parametrize("seed", [0, 1, 4, *later([2, 3, *range(5, 10)])])
def test_rules_end_right_and_repeat_no_recorded_call_whatever_breaks(seed: int) -> None:
    simulate(story, seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 500, BLOCK))
def test_rules_end_right_whatever_breaks_for_long(first: int) -> None:
    check_block(lambda seed: simulate(story, seed), first)


def test_in_a_calm_world_every_call_of_a_chain_is_made_once() -> None:
    async def calm(world: World) -> None:
        world.faults.calm = True
        await world.execute(RULES, "1", {})
        state = await world.ended("1")
        assert (state.status, state.result) == ("COMPLETED", EXPECTED)
        repeated = [count for count in world.effects.values() if count > 1]
        assert repeated == [2, 2, 2], "each `store` fails once"

    simulate(calm, 0)
