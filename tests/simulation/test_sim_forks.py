"""SIM of forks: at whatever event an execution happens again, it comes to the same end, and what
was written before that event is written once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import pytest

from noetl.control.forks import Wish
from noetl.model.events import LoopStarted, decode
from noetl.model.state import ExecutionState
from tests.effort import IS_LONG, later
from tests.simulation.playbooks import Maker
from tests.simulation.test_sim_playbooks import ROOT, WITHIN, came_to, executions, settled
from tests.simulation.world import World, simulate

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: again, path: sim/again}
workflow:
"""
PAGES = """
- step: start
  tool: {kind: effect, value: {data: [1]}}
  retry:
    - when: "{{ _retry.index < 3 }}"
      then:
        next_call: {value: {data: [2]}}
        max_attempts: 5
        initial_delay: DELAY
        collect: {path: data, into: ctx.pages, strategy: extend}
"""
CALLS = """
- step: start
  tool: {kind: effect, value: 1, fails: 1}
  case:
    - when: "{{ event.name == 'call.error' }}"
      then:
        - set: {ctx.failed: "{{ (ctx.failed | default(0)) + 1 }}"}
        - collect: {from: error.message, into: own}
        - note: {tool: {kind: effect}}
        - set: {ctx.failed: "{{ (ctx.failed | default(0)) + 10 }}"}
        - retry: {max_attempts: 3, initial_delay: DELAY}
    - when: "{{ event.name == 'call.done' }}"
      then:
        - set: {ctx.done: "{{ (ctx.done | default(0)) + 1 }}"}
        - note: {tool: {kind: effect, fails: 1}, retry: {max_attempts: 3, initial_delay: DELAY}}
        - set: {ctx.done: "{{ (ctx.done | default(0)) + 10 }}"}
    - when: "{{ event.name == 'step.exit' }}"
      then:
        - set: {ctx.exit: "{{ (ctx.exit | default(0)) + 1 }}", ctx.errors: "{{ own }}"}
        - note: {tool: {kind: effect}}
        - set: {ctx.exit: "{{ (ctx.exit | default(0)) + 10 }}"}
"""
ENTER = """
- step: start
  tool: {kind: effect, value: 1}
  case:
    - when: "{{ event.name == 'step.enter' }}"
      then:
        - set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
        - note: {tool: {kind: effect, fails: 1}, retry: {max_attempts: 3, initial_delay: DELAY}}
        - set: {ctx.n: "{{ (ctx.n | default(0)) + 10 }}"}
        - call: {value: 8, max_calls: 1}
"""
POLICY = """
- step: start
  tool:
    - name: first
      kind: effect
      fails: 1
      set: {ctx.first: "{{ (ctx.first | default(0)) + 1 }}"}
      spec:
        policy:
          rules:
            - when: "{{ outcome.status == 'error' }}"
              then:
                do: retry
                delay: DELAY
                set_ctx: {tries: "{{ (ctx.tries | default(0)) + 1 }}"}
            - else: {then: {do: continue, set_ctx: {fine: "{{ (ctx.fine | default(0)) + 1 }}"}}}
    - name: second
      kind: effect
      poll: {until: "{{ _retry.index >= 2 }}", interval: DELAY}
      set: {ctx.second: "{{ (ctx.second | default(0)) + 1 }}"}
      spec:
        policy:
          rules: [{when: "{{ false }}", then: {do: continue}}]
          before: [{name: hook, kind: effect, set: {ctx.hook: "{{ (ctx.hook | default(0)) + 1 }}"}}]
    - name: third
      kind: effect
      spec:
        policy:
          rules:
            - when: "{{ not iter.again }}"
              then:
                do: jump
                to: first
                set_iter: {again: true}
                set_ctx: {jumps: "{{ (ctx.jumps | default(0)) + 1 }}"}
"""
LOOP = """
- step: start
  loop: {in: [1, 2], iterator: x}
  tool:
    kind: effect
    fails: 1
    retry: {max_attempts: 2, initial_delay: DELAY}
    set: {ctx.calls: "{{ (ctx.calls | default(0)) + 1 }}"}
  case:
    - when: "{{ event.name == 'step.exit' }}"
      then:
        - set: {ctx.exits: "{{ (ctx.exits | default(0)) + 1 }}"}
        - note: {tool: {kind: effect, fails: 1}, retry: {max_attempts: 3, initial_delay: DELAY}}
        - set: {ctx.exits: "{{ (ctx.exits | default(0)) + 10 }}"}
    - when: "{{ event.name == 'loop.done' }}"
      then:
        - set: {ctx.ends: "{{ (ctx.ends | default(0)) + 1 }}"}
        - note: {tool: {kind: effect, fails: 1}, retry: {max_attempts: 3, initial_delay: DELAY}}
        - set: {ctx.ends: "{{ (ctx.ends | default(0)) + 10 }}"}
  set: {ctx.steps: "{{ (ctx.steps | default(0)) + 1 }}"}
"""
WAITS = """
- step: start
  spec: {eval_mode: on_event, timers: [{id: tick, after: 5}]}
  tool: {kind: effect, set: {ctx.calls: "{{ (ctx.calls | default(0)) + 1 }}"}}
  sink: {tool: {kind: effect}}
  case:
    - when: "{{ event.name == 'timer.fired' }}"
      then:
        - set: {ctx.ticks: "{{ (ctx.ticks | default(0)) + 1 }}"}
        - note: {tool: {kind: effect, fails: 1}, retry: {max_attempts: 3, initial_delay: DELAY}}
        - set: {ctx.ticks: "{{ (ctx.ticks | default(0)) + 10 }}"}
        - call: {value: 8, max_calls: 2}
        - next: [{step: end}]
- step: end
  tool: {kind: noop}
"""
SKIPS = """
- step: start
  tool: {kind: effect}
  case:
    - when: "{{ event.name == 'call.done' }}"
      then:
        - set: {ctx.done: "{{ (ctx.done | default(0)) + 1 }}"}
        - note: {tool: {kind: effect, fails: 1}, retry: {max_attempts: 3, initial_delay: DELAY}}
        - set: {ctx.done: "{{ (ctx.done | default(0)) + 10 }}"}
        - skip: true
"""
PLAYBOOKS = {
    "pages": PAGES,
    "calls": CALLS,
    "enter": ENTER,
    "policy": POLICY,
    "loop": LOOP,
    "waits": WAITS,
    "skips": SKIPS,
}


async def check_forks(world: World, state: ExecutionState, wishes: Iterable[Wish]) -> None:
    """Each of them ends as the execution did that it continues."""
    for wish in wishes:
        forked, _ = await executions(world).fork(ROOT, wish)
        again = await world.ended(forked, WITHIN)
        assert (again.status, kept(again)) == (state.status, kept(state)), wish
    await settled(world)


def kept(state: ExecutionState) -> tuple[object, ...]:
    """What it came to. References name the execution that they belong to; a failed execution has
    written what came first."""
    if state.status != "COMPLETED":
        return ()
    return re.sub(r"'(execution_id|key|seal)': '\w+'", "", came_to(state)), state.vars


@pytest.mark.parametrize("delay", [30, *later([0])])
@pytest.mark.parametrize("name", PLAYBOOKS)
def test_an_execution_that_happens_again_from_any_event_on_comes_to_the_same(
    name: str, delay: int
) -> None:
    """Writes of a call were lost or made twice where the fork began between the call and them, and
    a step that waited for its rules to go on was woken by nobody."""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(HEAD + PLAYBOOKS[name].replace("DELAY", str(delay)), ROOT, {})
        state = await world.ended(ROOT, WITHIN)
        assert state.status == "COMPLETED", state.failure
        await check_forks(world, state, [Wish(seq=seq) for seq in range(1, state.seq + 1)])

    simulate(story, 0, workers=2)


ALONE = """
- step: start
  loop: {in: [1], iterator: x}
  tool: {kind: effect, set: {ctx.calls: "{{ (ctx.calls | default(0)) + 1 }}"}}
"""


def test_a_loop_of_which_every_iteration_happens_again_has_begun() -> None:
    """Begun and ended at one moment, it was refused: the loop had not begun, it said."""

    async def story(world: World) -> None:
        world.faults.calm = True
        await world.execute(HEAD + ALONE, ROOT, {})
        state = await world.ended(ROOT, WITHIN)
        [begun] = await world.store.log.events(ROOT, types=("loop.started",))
        await check_forks(world, state, [Wish(seq=begun.seq, iteration=0)])

    simulate(story, 0)


def forked(made: Maker, seed: int) -> None:
    """At some events of a random playbook, and for iterations of its loops."""
    dice = random.Random(seed)

    async def story(world: World) -> None:
        world.faults.calm = True
        for child in made.children:
            await world.register(child)
        await world.execute(made.text, ROOT, {})
        state = await world.ended(ROOT, WITHIN)
        wishes = [Wish(seq=dice.randint(1, state.seq)) for _ in range(6)]
        for row in await world.store.log.events(ROOT, types=("loop.started",), limit=3):
            loop = decode(row.body)
            assert isinstance(loop, LoopStarted)
            if loop.total:
                wishes.append(Wish(seq=row.seq, iteration=dice.randrange(loop.total)))
        if state.steps:  # Otherwise it was refused before its first step.
            await check_forks(world, state, wishes)

    try:
        simulate(story, seed, workers=2)
    except BaseException as error:
        error.add_note("\n".join((f"seed {seed}", made.text, *made.children)))
        raise


def test_forks_of_random_playbooks_come_to_the_same() -> None:
    for seed in range(500 if IS_LONG else 12):
        forked(Maker(seed, steady=True), seed)
