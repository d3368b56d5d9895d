"""SIM with event rules: chains, pages, polls and waits go on behind what was recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from noetl.engine.evolve import evolve
from noetl.engine.signals import received
from noetl.errors import Finished
from noetl.model.events import SinkProcessed, TaskDone, decode
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.simulation.test_sim_servers import CHILD
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


FAILS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: fails, path: sim/fails}
workflow:
  - step: start
    tool: {kind: effect, fails: 9}
    next: {arcs: [{step: end, when: "{{ error }}"}]}
  - step: end
    tool: {kind: noop}
"""


@pytest.mark.parametrize("at", range(1, 7))
def test_a_call_that_failed_is_not_made_again_because_its_worker_died(at: int) -> None:
    async def story(world: World) -> None:
        world.faults.calm = True
        commit, commits = world.store.log.commit, 0
        deaths = []

        async def counted(*words: Any, **named: Any) -> Any:
            nonlocal commits
            stored = await commit(*words, **named)
            commits += 1
            if commits == at:
                deaths.append(asyncio.create_task(world.kill_worker()))
            return stored

        world.store.log.commit = counted  # type: ignore[method-assign]
        await world.execute(FAILS, "1", {})
        state = await world.ended("1")

        assert state.status == "COMPLETED"
        rows = await world.store.log.events("1", types=("task.done",), limit=100)
        assert len(rows) == 2

    simulate(story, 0, workers=1)


ELSE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: else, path: sim/else}
workflow:
  - step: start
    tool: {kind: effect, value: 1}
    case: [{else: {then: {retry: {max_attempts: 3, initial_delay: 1}}}}]
"""


def test_the_retry_of_an_else_ends_when_its_tries_are_used_up() -> None:
    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(ELSE, "1", {})
        state = await world.ended("1", within=60)

        assert (state.status, state.result) == ("COMPLETED", 1)
        assert list(world.effects.values()) == [3]

    simulate(story, 0)


PAGES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: pages, path: sim/pages}
workflow:
  - step: start
    tool: {kind: effect, value: 5}
    retry:
      - when: "{{ _retry.index < 3 }}"
        then:
          next_call: {value: 6}
          collect: {from: response, into: ctx.all}
          backoff: fixed
          initial_delay: 60
    next: end
  - step: end
    tool: {kind: noop, result: "{{ ctx.all }}"}
"""


def test_pages_that_are_waited_for_are_collected_with_those_before() -> None:
    """A wait gives the worker back, and the next one was not shown what had been collected."""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(PAGES, "1", {})

        assert (await world.ended("1", within=600)).result == [5, 6]

    simulate(story, 0)


NOTES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: notes, path: sim/notes}
workflow:
  - step: start
    tool: [{one: {kind: effect}}, {two: {kind: effect, fails: 1}}]
    case:
      - when: "{{ event.name == 'call.error' and error }}"
        then: [{note: {tool: {kind: effect}}}, {retry: {max_attempts: 2}}]
      - when: "{{ event.name == 'call.done' }}"
        then: [{note: {tool: {kind: effect}}}]
"""


def test_each_call_that_a_rule_answers_has_calls_of_its_own() -> None:
    """They had one name, and a service that knows it does nothing the second time."""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(NOTES, "1", {})
        assert (await world.ended("1")).status == "COMPLETED"
        # One call of `one`, two tries of `two`, and a note for each.
        assert sorted(world.effects.values()) == [1, 1, 1, 1, 2]

    simulate(story, 0)


ROUNDS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: rounds, path: sim/rounds}
workflow:
  - step: start
    tool:
      name: one
      kind: effect
      spec:
        policy:
          rules:
            - {when: "{{ not iter.k }}", then: {do: jump, to: one, set_iter: {k: 1}}}
    case:
      - when: "{{ event.name == 'call.done' }}"
        then: [{note: {tool: {kind: effect}}}]
"""


def test_calls_of_a_rule_are_others_in_each_round_of_jumps() -> None:
    """The rule answers a call when its policy has jumped already: what the rule called then, and
    what it called in the next round, had one name."""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(ROUNDS, "1", {})
        assert (await world.ended("1")).status == "COMPLETED"
        assert sorted(world.effects.values()) == [1] * 4

    simulate(story, 0)


WAITS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: sim/waits}
workflow:
  - step: start
    tool:
      kind: effect
      fails: 2
      spec:
        policy:
          rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, delay: 20}}]
    next: look
  - step: look
    tool:
      kind: effect
      poll: {until: "{{ _retry.index == 4 }}", interval: 10, deadline: 35}
    next: ask
  - step: ask
    tool: {kind: workbook, task: entry, spec: {timeout: 60}}
workbook:
  entry:
    tool:
      - {name: child, kind: playbook, path: sim/child, args: {number: 4}}
      - {name: after, kind: effect, value: "{{ child }}"}
"""


@pytest.mark.parametrize("seed", [0, 1, 2, *later(range(3, 20))])
def test_waits_and_limits_are_as_long_as_they_say_whatever_the_clocks_of_workers(seed: int) -> None:
    async def calm(world: World) -> None:
        world.faults.calm = True
        await world.register(CHILD)
        began = world.clock.now()
        await world.execute(WAITS, "1", {})
        state = await world.ended("1", within=300)
        assert (state.status, state.result) == ("COMPLETED", 40), state.failure
        seconds = sum([2 * 20, 3 * 10, 8])
        assert seconds <= world.clock.now() - began < seconds + 15

    simulate(calm, seed)


AGAIN = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: again, path: sim/again}
workflow:
  - step: start
    tool: [{name: one, kind: effect, value: 1, takes: 1}, {name: two, kind: effect, takes: 1}]
    case:
      - when: "{{ event.name == 'step.enter' }}"
        then: {call: {value: 0, max_calls: 1}}
      - when: "{{ event.name == 'step.exit' and not error }}"
        then: {call: {value: 9, max_calls: 3}}
    next: loop
  - step: loop
    loop: {in: [1, 2], iterator: x}
    tool: {kind: effect, value: 1, takes: 1}
    case:
      - when: "{{ event.name == 'step.exit' and not error }}"
        then: {call: {value: 9, max_calls: 2}}
    next: wait
  - step: wait
    spec: {eval_mode: on_event}
    tool: {kind: effect, takes: 1}
    case:
      - when: "{{ event.name == 'go' }}"
        then: {call: {max_calls: 1}}
      - when: "{{ event.name == 'go' }}"
        then: {result: {value: enough}}
"""


@pytest.mark.parametrize("seed", [0, 1, 2, *later(range(3, 20))])
def test_max_calls_bounds_what_the_end_of_a_step_and_events_call_whatever_breaks(seed: int) -> None:
    """It was not counted there, and such a step had no end."""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(AGAIN, "1", {})
        for number in range(4):
            await asyncio.sleep(seed + 3)
            await world.kill_worker()
            await asyncio.sleep(40)
            go = received(world.clock.now(), f"go{number}", "go", None, None)
            with suppress(Finished):
                await world.orchestrator.signal("1", go)
        state = await world.ended("1")
        assert (state.status, state.result) == ("COMPLETED", "enough"), state.failure
        replayed, calls = ExecutionState(), Counter[str]()
        for row in await world.store.log.events("1", limit=100_000):
            evolve(replayed, fact := decode(row.body))
            if isinstance(fact, TaskDone):
                calls[fact.step] += 1
        assert replayed == state
        assert calls["start"] == 2 * 3
        assert calls["wait"] == 1
        ended = state.results["loop"].value
        assert ended["results"] == [9, 9]

    simulate(story, seed)


@pytest.mark.parametrize("looped", ["", "loop: {in: [1], iterator: x}"])
def test_a_step_whose_end_calls_it_again_without_a_bound_ends_with_max_jumps(looped: str) -> None:
    text = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: endless, path: sim/endless}}
workflow:
  - step: start
    {looped}
    tool: {{kind: effect, spec: {{max_jumps: 5}}}}
    case: [{{when: "{{{{ event.name == 'step.exit' }}}}", then: {{call: {{}}}}}}]
"""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(text, "1", {})
        state = await world.ended("1")
        assert state.status == "FAILED"
        assert "max_jumps" in state.failure.message
        assert sum(world.effects.values()) == 1 + 5

    simulate(story, 0)


HOOKS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hooks, path: sim/hooks}
workflow:
  - step: start
    tool:
      kind: effect
      fails: 2
      retry: {max_attempts: 3, initial_delay: 1}
      spec:
        policy:
          before: [{name: lock, kind: effect}]
          finally: [{name: unlock, kind: effect}]
"""


def test_the_hooks_of_each_try_make_calls_of_their_own() -> None:
    """They had one name, and a service that knows it unlocked nothing the second time."""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(HOOKS, "1", {})
        assert (await world.ended("1")).status == "COMPLETED"
        # Three tries of one call, and two hooks of each.
        assert sorted(world.effects.values()) == [1] * 6 + [3]

    simulate(story, 0)
