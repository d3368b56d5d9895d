"""What an event costs does not grow with what has happened, nor with how much is to come.

Measured as a ratio in one run: the same thing, many times larger, per event. Processor time, the
least of several tries taken in turns: a machine that is busy with something else only adds to it.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from noetl.engine.evolve import evolve
from noetl.engine.explanation import Witness, near
from noetl.model.state import ExecutionState
from tests.effort import IS_LONG
from tests.engine.playing import Play, todo

RATIO_MAX = 3.0
"""The large one is twenty times as large and leaves the processor's caches, which neighbours share:
twice the cost was seen on a busy machine. A cost that grows with size shows as a factor near 20."""
TRIES = 7
SMALL_TRIES = 4
"""The small one is tried more often: it is as likely to meet a quiet moment as the large one."""


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """The collector's cost depends on everything else that is in memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def per_event(play: Callable[[], Play]) -> tuple[float, float]:
    """Seconds per event: of deciding, and of folding the history again."""
    began = time.process_time()
    played = play()
    decided = time.process_time()
    state = ExecutionState()
    for event in played.history:
        evolve(state, event)
    folded = time.process_time()
    assert played.status == "COMPLETED"
    return (decided - began) / len(played.history), (folded - decided) / len(played.history)


def assert_flat(play: Callable[[int], Play], size: int) -> None:
    """Twenty times the size costs as much per event."""
    size *= 2 if IS_LONG else 1
    small, large = partial(play, size), partial(play, 20 * size)
    per_event(small)  # compiled and warm
    few, many = [], []
    for _ in range(TRIES):
        few += [per_event(small) for _ in range(SMALL_TRIES)]
        many.append(per_event(large))
        if all(_least(many, part) <= RATIO_MAX * _least(few, part) for part in (0, 1)):
            return
    costs = [(_least(few, part) * 1e6, _least(many, part) * 1e6) for part in (0, 1)]
    pytest.fail(f"µs per event of deciding and folding grew: {costs}")


def _least(costs: list[tuple[float, float]], part: int) -> float:
    return min(cost[part] for cost in costs)


def looped(mode: str, total: int) -> Play:
    text = f"""
workflow:
- step: start
  loop: {{in: {{from: 0, to: {total}}}, iterator: x, spec: {{mode: {mode}}}}}
  tool: {{kind: noop}}
"""
    played = Play(text, checked=False).start()
    while played.open:
        command = next(iter(played.open.values()))
        work = todo(command)
        for begin in range(0, len(work), 100):
            ended = [played.iteration(command, index, index) for index in work[begin : begin + 100]]
            played.report(command, *ended)
        played.report(command, closes=True)
    return played


def test_an_iteration_of_a_long_loop_costs_no_more_than_one_of_a_short_loop() -> None:
    for mode in ("sequential", "parallel"):
        assert_flat(partial(looped, mode), 500)


def waiting(total: int) -> Play:
    """Every iteration waits for a child execution."""
    text = f"""
workflow:
- step: start
  loop: {{in: {{from: 0, to: {total}}}, iterator: x, spec: {{mode: parallel, max_in_flight: 4}}}}
  tool: {{kind: playbook, path: p}}
"""
    played = Play(text, checked=False).start()
    while played.status != "COMPLETED":
        for command in list(played.open.values()):
            if command.iteration is not None:
                done = played.iteration(command, command.iteration, 1)
                played.report(command, done, closes=True)
                continue
            assert command.chunk is not None
            for index in todo(command)[: command.chunk.concurrency]:
                played.suspend(command, iteration=index, child="p", closes=False)
            played.report(command, closes=True)
        for child in list(played.children):
            played.end_child(child)
    return played


def test_an_iteration_that_waits_costs_no_more_in_a_long_loop() -> None:
    assert_flat(waiting, 100)


def chained(length: int) -> Play:
    steps = "\n".join(
        f"- {{step: s{n}, spec: {{compensate: undo}}, tool: {{kind: noop}}, next: s{n + 1}}}"
        for n in range(length)
    )
    text = f"""
workflow:
{steps}
- {{step: s{length}, tool: {{kind: noop}}}}
- {{step: undo, tool: {{kind: noop}}}}
"""
    played = Play(text, checked=False).start()
    while played.open:
        played.done(next(iter(played.open.values())), {"v": 1})
    return played


def test_a_step_of_a_long_chain_costs_no_more_than_one_of_a_short_chain() -> None:
    assert_flat(chained, 50)


def test_to_look_back_at_a_step_of_a_long_chain_costs_no_more_per_event() -> None:
    """The server does it between two requests: for ten seconds nobody else was answered."""

    def per_event(played: Play, step: str) -> float:
        began = time.process_time()
        witness = Witness(step=step, near=near(played.program, step))
        for number, event in enumerate(played.history, 1):
            witness.see(number, event)
        pickle.dumps(witness)  # for the process that asks the guards again
        return (time.process_time() - began) / len(played.history)

    short, long = chained(100), chained(2000)
    few, many = [], []
    for _ in range(TRIES):
        few += [per_event(short, "s90") for _ in range(SMALL_TRIES)]
        many.append(per_event(long, "s1900"))
        if min(many) <= RATIO_MAX * min(few):
            return
    pytest.fail(f"µs per event grew from {min(few) * 1e6} to {min(many) * 1e6}")


def turning(rounds: int) -> Play:
    text = f"""
workflow:
- step: start
  spec: {{join: any, compensate: undo}}
  tool: {{kind: noop}}
  set: {{ctx.n: "{{{{ (ctx.n | default(0)) + 1 }}}}"}}
  next: {{arcs: [{{step: start, when: "{{{{ ctx.n < {rounds} }}}}"}}]}}
- {{step: undo, tool: {{kind: noop}}}}
"""
    played = Play(text, checked=False).start()
    while played.open:
        played.done("start", {"v": 1})
    return played


def test_a_round_of_a_long_cycle_costs_no_more_than_one_of_a_short_cycle() -> None:
    assert_flat(turning, 50)
