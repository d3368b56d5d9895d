"""L5 and L6: the engine agrees with the reference, and `auto` runs a step once after all."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.model.events import TaskStarted
from tests.engine.generated import Whole, nets, wholes, written
from tests.engine.playing import Play
from tests.engine.reference import Reference

LINKS = st.tuples(st.booleans(), st.booleans())
"""A step of a branch: whether it has a tool, and whether an event rule sends its token on."""
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def agree(played: Play, reference: Reference) -> None:
    runs = {(run.step, run.number) for run in played.state.runs.values()}
    waiting = sorted(token.step for token in played.state.tokens.values())
    expected = sorted(token.step for token in [*reference.tokens, *reference.delayed])
    assert played.status == reference.status
    assert runs == set(reference.open)
    assert waiting == expected


def act(played: Play, reference: Reference, dice: random.Random) -> None:
    """Something happens to both: a run makes calls or ends, or a delayed token's moment comes."""
    delayed = [token for token in played.state.tokens.values() if token.ready_at is not None]
    choices: list[Any] = [*played.open.values(), *delayed]
    chosen = dice.choice(choices)
    if chosen in delayed:
        assert chosen.timer is not None
        played.fire(chosen.timer)
        reference.wake(delayed.index(chosen))
        return
    if dice.random() < 0.3:
        count = dice.randint(1, 2)
        begun = TaskStarted(
            at=played.at, step_run_id=chosen.step_run_id, step=chosen.step, task="t"
        )
        played.report(chosen, *[begun] * count)
        reference.call(chosen.step, chosen.run_number, count)
        return
    ok, flag = dice.random() < 0.85, dice.random() < 0.5
    if ok:
        played.done(chosen, {"flag": flag})
    else:
        played.fail(chosen)
    reference.finish(chosen.step, chosen.run_number, ok=ok, flag=flag)


def check_agreement(steps: dict[str, dict[str, Any]], whole: Whole, dice: random.Random) -> None:
    played = Play(written(steps, whole=whole), checked=False)
    reference = Reference(steps, max_calls=whole.max_calls, promises=whole.promises)
    played.start()
    reference.start("s0")
    agree(played, reference)
    while reference.status == "RUNNING":
        act(played, reference, dice)
        agree(played, reference)


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(nets(), wholes(), st.integers(0, 2**32))
def test_l5_the_engine_agrees_with_the_reference(
    steps: dict[str, dict[str, Any]], whole: Whole, seed: int
) -> None:
    check_agreement(steps, whole, random.Random(seed))


@pytest.mark.long
@settings(max_examples=5_000, deadline=None, suppress_health_check=SLOW)
@given(nets(), wholes(), st.integers(0, 2**32))
def test_l5_the_engine_agrees_with_the_reference_at_length(
    steps: dict[str, dict[str, Any]], whole: Whole, seed: int
) -> None:
    check_agreement(steps, whole, random.Random(seed))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(LINKS, max_size=4), min_size=1, max_size=5), st.randoms())
def test_l6_auto_runs_a_step_once_after_all_live_branches_whatever_their_lengths(
    branches: list[list[tuple[bool, bool]]], dice: random.Random
) -> None:
    """Branches of steps with and without tools, joined by arcs and event rules, fork to join."""

    def chain(branch: int, length: list[tuple[bool, bool]]) -> dict[str, Any]:
        names = [*(f"b{branch}_{index}" for index in range(len(length))), "join"]
        return {
            names[index]: plain([names[index + 1]], tool=tool, by_rule=by_rule)
            for index, (tool, by_rule) in enumerate(length)
        }

    heads = [f"b{index}_0" if branch else "join" for index, branch in enumerate(branches)]
    steps: dict[str, Any] = {"s0": plain(heads)}
    for index, branch in enumerate(branches):
        steps |= chain(index, branch)
    steps |= {"join": plain(["last"], tool=True), "last": plain([], tool=True)}
    played = Play(written(steps)).start()

    while "join" not in played.steps:
        played.done(dice.choice(list(played.open.values())))

    assert played.steps == ["join"]
    assert set(played.ran()) == set(steps) - {"last"}
    played.done("join")
    played.done("last")
    assert played.status == "COMPLETED"
    assert sorted(played.ran()) == sorted(steps)


def plain(targets: list[str], *, tool: bool = False, by_rule: bool = False) -> dict[str, Any]:
    arc = {"when": "always", "turns": 0, "delay": False}
    rules = [{"to": target, "when": "always"} for target in targets] if by_rule else []
    return {
        "tool": tool,
        "join": "auto",
        "mode": "inclusive",
        "arcs": [] if by_rule else [{"to": target, **arc} for target in targets],
        "rules": rules,
        "deny": False,
        "ignore": False,
        "best_effort": False,
    }
