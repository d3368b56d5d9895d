"""L5 and L6: the engine agrees with the reference, and `auto` runs a step once after all."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.engine.pipeline.machine import (
    Call,
    CallEnded,
    End,
    Entered,
    Happened,
    Kept,
    Pipeline,
    Record,
    Say,
)
from noetl.model.commands import Command
from noetl.model.events import StepFailed
from noetl.model.outcome import Meta, failed, ok
from tests.effort import generated
from tests.engine.generated import Whole, nets, wholes, written
from tests.engine.playing import Play, machine_of
from tests.engine.reference import Reference

LINKS = st.tuples(st.booleans(), st.booleans())
"""A step of a branch: whether it has a tool, and whether an event rule sends its token on."""
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


class Workers:
    """Whoever drives the pipelines of the runs under way, and what their calls come to."""

    def __init__(self, played: Play) -> None:
        self.played = played
        self.machines: dict[str, Pipeline] = {}
        """By command, from its first call on."""
        self.calls: Counter[tuple[str, int]] = Counter()
        """The calls that were made, by run."""

    def number_of(self, command: Command) -> int:
        """Which run of its step it is for."""
        return self.played.state.runs[command.step_run_id].number

    def go_on(self, command: Command, ended: CallEnded | None) -> None:
        """The pipeline goes on to its next call, or to its end."""
        machine = self.machines.setdefault(command.command_id, machine_of(self.played, command))
        happened: Happened = ended or Entered()
        while True:
            *said, last = machine.on(happened, self.played.at)
            facts = [do.fact for do in said if isinstance(do, Say)]
            if isinstance(last, End):
                self.played.report(command, *facts, ending=last.ending)
                return
            if isinstance(last, Call):
                self.calls[command.step, self.number_of(command)] += 1
            if facts:
                self.played.report(command, *facts)
            if isinstance(last, Call) or command.command_id not in self.played.open:
                return
            assert isinstance(last, Record)
            happened = Kept()


def agree(played: Play, reference: Reference) -> None:
    runs = {(run.step, run.number) for run in played.state.runs.values()}
    waiting = sorted(token.step for token in played.state.tokens.values())
    expected = sorted(token.step for token in [*reference.tokens, *reference.delayed])
    failed = [(fact.step, fact.error.kind) for fact in played.events(StepFailed)]
    assert played.status == reference.status
    assert runs == set(reference.open)
    assert waiting == expected
    assert failed == reference.failures


def act(workers: Workers, reference: Reference, dice: random.Random) -> None:
    """Something happens to both: a call begins or ends, or a delayed token's moment comes."""
    played = workers.played
    delayed = [token for token in played.state.tokens.values() if token.ready_at is not None]
    choices: list[Any] = [*played.open.values(), *delayed]
    chosen = dice.choice(choices)
    if chosen in delayed:
        assert chosen.timer is not None
        played.fire(chosen.timer)
        reference.wake(delayed.index(chosen))
    elif chosen.command_id not in workers.machines:
        number = workers.number_of(chosen)
        workers.go_on(chosen, None)
        reference.begin(chosen.step, number)
    else:
        fails = dice.random() < 0.15
        flag = dice.random() < 0.5
        result = {"flag": flag, "text": "x" * dice.randint(0, 30)}
        seconds = dice.randint(0, 4) / 4
        outcome = failed("connection", "no answer", retryable=True) if fails else ok(result)
        outcome = msgspec.structs.replace(outcome, meta=Meta(duration=seconds))
        number = workers.number_of(chosen)
        workers.go_on(chosen, CallEnded(outcome))
        reference.end(
            chosen.step,
            number,
            error="connection" if fails else "",
            flag=flag,
            size=len(json.dumps(result, separators=(",", ":"))),
            seconds=seconds,
        )


def check_agreement(steps: dict[str, dict[str, Any]], whole: Whole, dice: random.Random) -> None:
    played = Play(written(steps, whole=whole), checked=False)
    reference = Reference(steps, quotas=whole.quotas, promises=whole.promises)
    workers = Workers(played)
    played.start()
    reference.start("s0")
    agree(played, reference)
    while reference.status == "RUNNING":
        act(workers, reference, dice)
        agree(played, reference)
    assert workers.calls.total() <= whole.quotas.calls, "no call is made beyond a quota"
    assert all(count <= steps[step]["quotas"].calls for (step, _), count in workers.calls.items())


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
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


@generated(30, long=500)
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
        "tasks": [{"promises": False, "retries": False}] if tool else [],
        "join": "auto",
        "mode": "inclusive",
        "arcs": [] if by_rule else [{"to": target, **arc} for target in targets],
        "rules": rules,
        "deny": False,
        "ignore": False,
        "best_effort": False,
    }
