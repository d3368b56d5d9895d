"""Elements and results of long loops: kept in segments, whole and in order, never in an event."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from noetl.engine.evolve import evolve
from noetl.model import refs
from noetl.model.events import (
    LoopStarted,
    ResultsKept,
    StepDone,
    StepFailed,
    decode,
    encode,
)
from noetl.model.state import ExecutionState
from tests.engine.chaos import World
from tests.engine.playing import EXECUTION, SEAL, Play, element_of, error, play, todo

EVENT_MAX = refs.INLINE_MAX + 2048

LOOP = """
workload: {{texts: []}}
workflow:
- step: each
  loop: {{in: {collection}, iterator: x, spec: {spec}}}
  tool: {{kind: noop}}
  next: {{arcs: [{{step: failed, when: "{{{{ error }}}}"}}, {{step: last}}]}}
- {{step: last, tool: {{kind: noop}}}}
- {{step: failed, tool: {{kind: noop}}}}
"""


def loop(collection: str, spec: str = "{mode: parallel}", **workload: Any) -> Play:
    return play(LOOP.format(collection=collection, spec=spec), **workload)


def answer(played: Play, dice: random.Random, result: Any) -> None:
    """Workers end iterations in any order and report some at a time."""
    while "each" in played.steps:
        command = dice.choice([one for one in played.open.values() if one.step == "each"])
        left = [index for index in todo(command) if not known(played, index)]
        dice.shuffle(left)
        some = left[: dice.randint(1, 120)]
        ended = [played.iteration(command, index, result(index)) for index in some]
        played.report(command, *ended, closes=len(some) == len(left))


def known(played: Play, index: int) -> bool:
    [run] = (run for run in played.state.runs.values() if run.step == "each")
    assert run.loop is not None
    return index in run.loop.results or index // run.loop.segment in run.loop.segments


def held(played: Play) -> int:
    return max(
        (len(refs.encode(run.loop.results)) for run in played.state.runs.values() if run.loop),
        default=0,
    )


@pytest.mark.parametrize("seed", range(3))
def test_results_that_are_too_many_are_put_away_and_come_back_in_order(seed: int) -> None:
    played = loop("{from: 0, to: 1234}")
    answer(played, random.Random(seed), lambda index: f"{index} " + "x" * 200)

    assert len(played.events(ResultsKept)) == 13
    assert all(len(refs.encode(event)) < EVENT_MAX for event in played.history)
    [done] = played.events(StepDone)
    assert refs.about(done.result["results"], SEAL).segments
    results = played.result("each")["results"]
    assert [text.partition(" ")[0] for text in results] == [str(n) for n in range(1234)]
    assert played.result("each")["stats"] == {"total": 1234, "success": 1234, "failed": 0}


def test_a_running_loop_holds_no_more_results_than_its_open_segments() -> None:
    played = loop("{from: 0, to: 3000}", "{mode: sequential}")
    most = 0
    while "each" in played.steps:
        command = played["each"]
        work = todo(command)
        for begin in range(0, len(work), 50):
            some = work[begin : begin + 50]
            played.report(command, *(played.iteration(command, n, "y" * 1000) for n in some))
            most = max(most, held(played))
        played.report(command, closes=True)

    assert most < 4 * refs.INLINE_MAX
    assert played.result("each")["results"] == ["y" * 1000] * 3000


def test_results_that_fit_stay_in_the_event() -> None:
    played = loop("{from: 0, to: 300}")
    while "each" in played.steps:
        played.iterate("each")

    assert played.events(ResultsKept) == []
    assert played.kept == {}
    assert played.state.results["each"].value["results"] == list(range(300))


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_elements_that_are_too_large_are_kept_and_every_chunk_finds_its_own(mode: str) -> None:
    texts = [f"{index}:" + "z" * (index % 700) for index in range(1500)]
    played = loop('"{{ workload.texts }}"', f"{{mode: {mode}}}", texts=texts)
    [started] = played.events(LoopStarted)
    assert refs.about(started.items, SEAL).segments
    assert len(refs.encode(started)) < 2048

    seen: dict[int, str] = {}
    while "each" in played.steps:
        command = played["each"]
        assert len(refs.encode(command.chunk)) < 2048
        seen |= {index: element_of(played, command, index) for index in todo(command)}
        played.iterate(command)

    assert [seen[index] for index in range(1500)] == texts


def test_one_iteration_that_goes_on_alone_finds_its_element() -> None:
    texts = [f"{index}:" + "z" * 500 for index in range(400)]
    played = loop('"{{ workload.texts }}"', "{mode: sequential}", texts=texts)
    command = played["each"]
    played.report(command, *(played.iteration(command, index, 1) for index in range(321)))
    played.suspend(command, iteration=321, until=played.at + 60)
    played.fire()

    assert played["each"].iteration == 321
    assert element_of(played, played["each"], 321).startswith("321:")


def test_a_loop_that_fails_early_does_not_write_down_what_never_ran() -> None:
    played = loop("{from: 0, to: 1000000}", "{mode: sequential}")
    command = played["each"]
    ended = [played.iteration(command, index, index) for index in range(5)]
    played.report(command, *ended, played.iteration(command, 5, error("no")), closes=True)

    [failed] = played.events(StepFailed)
    assert "iteration 5 failed: no" in failed.error.message
    assert len(refs.encode(failed)) < 2048
    first = played.read(refs.part(refs.about(failed.result["results"], SEAL), EXECUTION, 0, 7))
    assert first == [0, 1, 2, 3, 4, None, None]
    assert failed.result["results"]["_ref"]["segments"]["length"] == 1_000_000


def test_failed_iterations_leave_one_error_and_nulls_however_many_they_are() -> None:
    played = loop("{from: 0, to: 20000}", "{mode: parallel, on_error: continue}")
    while "each" in played.steps:
        command = played["each"]
        work = todo(command)
        for begin in range(0, len(work), 100):
            some = work[begin : begin + 100]
            broken = [played.iteration(command, index, error("e" * 500)) for index in some]
            played.report(command, *broken)
            assert len(msgspec.json.encode(played.state)) < 3 * refs.INLINE_MAX
        played.report(command, closes=True)

    assert played.result("each")["stats"]["failed"] == 20_000
    assert played.result("each")["results"] == [None] * 20_000


def test_a_report_of_an_iteration_that_is_put_away_is_no_news() -> None:
    played = loop("{from: 0, to: 1000}", "{mode: sequential}")
    command = played["each"]
    ended = [played.iteration(command, index, "x" * 1000) for index in range(100)]
    played.report(command, *ended)
    assert len(played.events(ResultsKept)) == 1
    before = len(played.history)
    played.report(command, *ended[:10])

    assert len(played.history) == before


def test_the_arcs_of_a_long_loop_are_decided_once_its_results_are_at_hand() -> None:
    played = loop("{from: 0, to: 500}")
    answer(played, random.Random(1), lambda index: "x" * 1000)

    assert played.ran() == ["each", "last"]


@pytest.mark.parametrize("seed", range(12))
def test_the_laws_hold_while_segments_are_put_away(seed: int) -> None:
    """Workers that wait, break, lose leases and repeat themselves; replay equals live."""
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: long, path: tests/long}
workflow:
- step: each
  loop: {in: {from: 0, to: 350}, iterator: x,
         spec: {mode: parallel, max_in_flight: 40, on_error: continue}}
  tool: {kind: noop}
"""
    dice = random.Random(seed)
    world = World(text, dice, lambda index: f"{index} " + "x" * 900)
    world.live(dice.randint(0, 60), people=seed % 2 == 0)

    replayed = ExecutionState()
    for event in world.played.history:
        evolve(replayed, decode(encode(event)))
    assert replayed == world.played.state
    if world.played.status == "COMPLETED":
        results = world.played.result("each")["results"]
        assert len(results) == 350
        ended = {n for n, one in enumerate(results) if one is not None}
        assert all(results[n].startswith(f"{n} ") for n in ended)
        assert len(ended) == world.played.result("each")["stats"]["success"]
