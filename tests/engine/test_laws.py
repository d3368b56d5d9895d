"""L1 to L4 over generated playbooks, whatever the world does.

L1 is checked at every decision: `Play` folds its facts, as they are stored, onto a snapshot of the
state before, and compares.
"""

from __future__ import annotations

import random
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.engine.evolve import FOLDS, evolve
from noetl.model import events as facts
from noetl.model.events import LoopDone, StepDone, StepFailed, StepScheduled, WorkflowFinished
from noetl.model.state import ExecutionState
from tests.effort import later
from tests.engine.chaos import World
from tests.engine.generated import extras, nets, wholes, written

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@st.composite
def playbooks(draw: st.DrawFn) -> str:
    steps = draw(nets())
    return written(steps, draw(extras(steps)), draw(wholes()))


SEEDS = st.integers(0, 2**32)


def test_every_fact_says_what_it_does_to_the_state():
    assert FOLDS.keys() == set(get_args(facts.Event))


def live(playbook: str, seed: int) -> None:
    dice = random.Random(seed)
    world = World(playbook, dice)
    world.live(dice.randint(0, 40))
    history = world.played.history

    replayed = ExecutionState()
    for event in history:
        evolve(replayed, facts.decode(facts.encode(event)))
    assert replayed == world.played.state, "L1: the whole history gives the state"

    assert len(world.played.events(WorkflowFinished)) == 1
    scheduled = [event.step_run_id for event in world.played.events(StepScheduled)]
    assert len(set(scheduled)) == len(scheduled)
    for done in world.played.events(LoopDone):
        assert done.success + done.failed <= done.total
    ended = [
        event.step_run_id for kind in (StepDone, StepFailed) for event in world.played.events(kind)
    ]
    assert len(set(ended)) == len(ended), "a run ends once"


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(playbooks(), SEEDS)
def test_l1_l2_l3_l4_replay_repeats_ends_and_owners(playbook: str, seed: int) -> None:
    live(playbook, seed)


@pytest.mark.long
@settings(max_examples=3_000, deadline=None, suppress_health_check=SLOW)
@given(playbooks(), SEEDS)
def test_l1_l2_l3_l4_at_length(playbook: str, seed: int) -> None:
    live(playbook, seed)


@pytest.mark.parametrize("seed", [*range(20), *later(range(20, 40))])
def test_the_laws_hold_for_a_net_with_everything_in_it(seed: int) -> None:
    """A fixed, rich net, so that no run of these tests misses what generation seldom makes."""
    world = World(RICH, random.Random(seed))
    world.live(seed * 3)


RICH = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: rich, path: tests/rich}
workflow:
- {step: start, next: [seq, par, fork]}
- step: seq
  loop: {in: [1, 2, 3, 4], iterator: x, spec: {on_error: continue}}
  spec: {compensate: undo, timeout: 500}
  tool: {kind: noop}
  next: {arcs: [{step: join, spec: {delay: 20}}]}
- step: par
  loop: {in: {from: 0, to: 20}, iterator: x,
         spec: {mode: parallel, max_in_flight: 3, on_error: continue}}
  spec: {compensate: undo_many, on_error: ignore}
  tool: {kind: noop}
  next: join
- step: fork
  spec: {on_error: ignore}
  next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}]}
- {step: a, tool: {kind: noop}, spec: {on_error: ignore}, next: first}
- {step: b, tool: {kind: noop}, spec: {on_error: ignore, compensate: undo_with}, next: first}
- step: c
  tool: {kind: noop}
  next: {arcs: [{step: first, when: "{{ error }}"}, {step: join}]}
- {step: first, spec: {join: any, on_error: ignore}, tool: {kind: noop}, next: join}
- step: join
  tool: {kind: noop}
  set: {ctx.rounds: "{{ (ctx.rounds | default(0)) + 1 }}"}
  next: {arcs: [{step: fork, when: "{{ ctx.rounds < 3 }}"}, {step: end}]}
- {step: end, spec: {policy: {failure: {mode: best_effort}}}, tool: {kind: noop}}
- {step: undo, tool: {kind: noop}}
- {step: undo_many, loop: {in: [1, 2], iterator: x}, tool: {kind: noop}}
workbook:
  undo_with: {tool: {kind: noop}}
"""
