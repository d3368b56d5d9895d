"""Loops: what is gone over, handing out, ends, failures, reducers, waits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from noetl.engine.advance import DELIVERIES_MAX
from noetl.engine.loops import CHUNK_MAX, OPEN_MAX
from noetl.model.commands import Command
from noetl.model.events import (
    IterationDone,
    IterationsKeyed,
    IterationStarted,
    LoopDone,
    StepDone,
    StepFailed,
    StepWaiting,
    TaskDone,
)
from noetl.model.inputs import Reported
from noetl.model.outcome import error_value, ok
from tests.engine.playing import Play, element_of, error, play, todo

LOOP = """
workload: {{n: 4, items: [5, 6, 7], least: 2}}
workflow:
- step: each
  loop: {{in: {collection}, iterator: x, spec: {spec}}}
  spec: {step_spec}
  tool: {{kind: noop}}
  next: {{arcs: [{{step: failed, when: "{{{{ error }}}}"}}, {{step: last}}]}}
- {{step: last, tool: {{kind: noop}}}}
- {{step: failed, tool: {{kind: noop}}}}
"""


def loop(collection: str, spec: str = "{}", step_spec: str = "{}", **workload: Any) -> Play:
    text = LOOP.format(collection=collection, spec=spec, step_spec=step_spec)
    return play(text, **workload)


def run_all(played: Play) -> dict[str, Any]:
    """Answer chunks until the loop is over; its result."""
    while "each" in played.steps:
        played.iterate("each")
    result: dict[str, Any] = played.state.results["each"].value
    return result


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("collection", "elements"),
    [
        ("[1, 2, 3]", [1, 2, 3]),
        ('"{{ workload.items }}"', [5, 6, 7]),
        ("[]", []),
        ("{a: 1, b: 2}", [{"key": "a", "value": 1}, {"key": "b", "value": 2}]),
        ("{from: 0, to: 4}", [0, 1, 2, 3]),
        ("{from: 1, to: 8, step: 3}", [1, 4, 7]),
        ("{from: 5, to: 0, step: -2}", [5, 3, 1]),
        ("{from: 3, to: 3}", []),
        ("{from: 0, to: -4}", []),
        ("{from: 0, to: 4, step: -1}", []),
        ("{from: 0, to: 1, step: 0.25}", [0, 0.25, 0.5, 0.75]),
        ('{from: "{{ workload.least }}", to: "{{ workload.n + 1 }}"}', [2, 3, 4]),
        ('{from: 6, to: "{{ workload.n }}", step: "{{ 0 - 1 }}"}', [6, 5]),
        ('{from: 0, to: "1{{ workload.least }}", step: 5}', [0, 5, 10]),
        ('"{{ range(3) }}"', [0, 1, 2]),
    ],
)
def test_a_loop_goes_over_lists_mappings_and_ranges_in_order(
    collection: str, elements: list[Any], mode: str
) -> None:
    played = loop(collection, f"{{mode: {mode}}}")

    result = run_all(played)

    assert result["results"] == elements
    count = len(elements)
    assert result["stats"] == {"total": count, "success": count, "failed": 0}
    assert len(played.events(LoopDone)) == 1
    assert played.steps == ["last"]


@pytest.mark.parametrize(
    ("collection", "said"),
    [
        ('"{{ workload.n }}"', "int"),
        ('"{{ none }}"', "nothing"),
        ('"text {{ workload.n }}"', "str"),
        ('{from: 0, to: "{{ workload.items }}"}', "not a number"),
        ('{from: 0, to: "{{ none }}"}', "not a number"),
        ("{from: 0, to: \"{{ '9' * 400 }}\"}", "too large"),
        ("{from: 0, to: 3, step: \"{{ 'nan' }}\"}", "not a number"),
        ('{from: 0, to: 4, step: "{{ 0 }}"}', "never end"),
        ("{from: 0, to: 1000000000000}", "at most"),
    ],
)
def test_what_is_nothing_to_go_over_fails_the_step(collection: str, said: str) -> None:
    played = loop(collection)

    assert played.steps == ["failed"]
    [ended] = played.events(StepFailed)
    assert ended.error.code == "bad_collection"
    assert said in ended.error.message


def test_a_collection_that_cannot_be_evaluated_fails_the_step() -> None:
    assert loop('"{{ workload.nowhere }}"').steps == ["failed"]


def in_flight(played: Play) -> int:
    """The most iterations that may be under way now: waiting, or running if workers obey.

    A worker runs as many iterations of a chunk as it is told, less those that it left waiting.
    """
    running, waiting = 0, set()
    for event in played.events(StepWaiting):
        waiting.add(event.iteration)
    for event in played.events(IterationDone):
        waiting.discard(event.iteration)
    for command in played.open.values():
        left = sum(event.command_id == command.command_id for event in played.events(StepWaiting))
        if command.chunk is not None and command.iteration is None:
            running += max(0, min(command.chunk.concurrency, len(todo(command))) - left)
    return running + len(waiting)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("batch", [None, 1, 3, 100])
def test_no_more_than_max_in_flight_are_handed_out_at_once_and_all_room_is_used(
    limit: int, batch: int | None
) -> None:
    size = f", batch_size: {batch}" if batch else ""
    played = loop("{from: 0, to: 100}", f"{{mode: parallel, max_in_flight: {limit}{size}}}")
    seen: list[int] = []

    assert in_flight(played) == limit
    while "each" in played.steps:
        assert in_flight(played) <= limit
        command = random.Random(len(seen)).choice(list(played.open.values()))
        seen += todo(command)
        assert batch is None or len(todo(command)) <= batch
        played.iterate(command)

    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(("asked", "limit"), [("'{{ workload.n }}'", 4), ("9", 9)])
def test_max_in_flight_may_be_a_template_and_never_exceeds_the_operators_limit(
    asked: str, limit: int
) -> None:
    spec = f"{{mode: parallel, max_in_flight: {asked}}}"

    assert in_flight(loop("{from: 0, to: 100}", spec)) == limit
    head = "executor: {spec: {policy: {limits: {max_in_flight: 3}}}}\n"
    text = LOOP.format(collection="{from: 0, to: 100}", spec=spec, step_spec="{}")
    assert in_flight(play(head + text)) == 3


def test_a_max_in_flight_below_one_fails_the_step() -> None:
    played = loop("[1]", '{mode: parallel, max_in_flight: "{{ workload.n - 4 }}"}')

    assert played.steps == ["failed"]


def test_a_local_loop_is_one_chunk_at_a_time() -> None:
    played = loop("{from: 0, to: 50}", "{mode: parallel, policy: {exec: local}}")

    assert len(played.open) == 1


def test_a_sequential_loop_runs_one_iteration_at_a_time_on_one_lease() -> None:
    played = loop("{from: 0, to: 100}")

    [command] = played.open.values()
    assert command.chunk is not None
    assert (command.chunk.start, command.chunk.stop, command.chunk.concurrency) == (0, 100, 1)


def test_chunks_of_long_loops_stay_small() -> None:
    for mode in ("sequential", "parallel"):
        played = loop("{from: 0, to: 100000}", f"{{mode: {mode}}}")
        assert all(len(todo(command)) <= CHUNK_MAX for command in played.open.values())


def test_a_lost_chunk_goes_on_behind_the_recorded_iterations() -> None:
    played = loop("[1, 2, 3, 4]")
    command = played["each"]
    report = played.report(command, *[played.iteration(command, index, "x") for index in (0, 1)])
    played.happen(Reported, report=report)
    played.lapse(command)

    assert todo(played["each"]) == [2, 3]
    played.report(command, played.iteration(command, 2, "too late"))
    played.iterate("each")
    assert played.state.results["each"].value["results"] == ["x", "x", 3, 4]


def test_an_iteration_counts_once_whoever_reports_it() -> None:
    played = loop("[1, 2]", "{mode: parallel, max_in_flight: 1}")
    command = played["each"]
    first = played.iteration(command, 0, "first")
    played.report(command, first, played.iteration(command, 0, "second"))
    played.report(command, played.iteration(command, 0, error()), played.iteration(command, 77, 1))

    state = played.state.runs[command.step_run_id].loop
    assert state is not None
    assert (state.success, state.failed, state.results) == (1, 0, {0: "first"})


def test_a_failed_iteration_fails_the_loop_at_once_and_stops_the_others() -> None:
    played = loop("{from: 0, to: 100}", "{mode: parallel, max_in_flight: 4}")
    first, second = played.open.values()
    failing = todo(second)[0]
    played.report(second, played.iteration(second, failing, error("no luck", code=9)))

    assert played.closed == [first.command_id, second.command_id]
    assert played.steps == ["failed"]
    [ended] = played.events(StepFailed)
    assert ended.error.message == f"iteration {failing} failed: no luck"
    assert ended.error.code == 9
    assert ended.result["stats"] == {"total": 100, "success": 0, "failed": 1}


def test_on_error_continue_goes_on_and_leaves_a_hole() -> None:
    played = loop("[1, 2, 3]", "{on_error: continue}")

    played.iterate("each", results={1: error()})

    assert played.steps == ["last"]
    assert played.state.results["each"].value == {
        "results": [1, None, 3],
        "stats": {"total": 3, "success": 2, "failed": 1},
        "errors": [{"index": 1, "error": error_value(error())}],
    }


def test_errors_are_in_the_order_of_the_collection_whichever_came_first() -> None:
    played = loop("[1, 2, 3]", "{mode: parallel, on_error: continue}")
    command = played["each"]

    for index in (2, 0):
        played.report(command, played.iteration(command, index, error(f"of {index}")))

    result = run_all(played)
    assert [(one["index"], one["error"]["message"]) for one in result["errors"]] == [
        (0, "of 0"),
        (2, "of 2"),
    ]


def test_errors_that_an_older_version_kept_as_they_came_are_listed_in_order() -> None:
    """Its snapshot of a loop that was under way is read by this one."""
    played = loop("[1, 2, 3, 4]", "{mode: parallel, on_error: continue}")
    command = played["each"]
    for index in (0, 2):
        played.report(command, played.iteration(command, index, error()))
    for run in played.state.runs.values():
        if run.loop is not None:
            run.loop.errors.reverse()

    played.report(command, played.iteration(command, 1, error()))

    assert [one["index"] for one in run_all(played)["errors"]] == [0, 1, 2]


def test_the_errors_that_a_result_holds_are_the_first_in_order_not_in_time() -> None:
    """A loop whose chunks ended in another order came to another result."""
    played = loop("{from: 0, to: 150}", "{mode: parallel, on_error: continue, batch_size: 10}")

    while "each" in played.steps:
        last = max(
            (command for command in played.open.values() if command.step == "each"),
            key=lambda command: todo(command)[0],
        )
        played.iterate(last, results={index: error() for index in todo(last)})

    result = played.result("each")
    assert result["stats"]["failed"] == 150
    assert [one["index"] for one in result["errors"]] == list(range(100))


def test_best_effort_lets_the_other_iterations_finish_before_the_step_fails() -> None:
    played = loop("[1, 2, 3]", "{}", "{policy: {failure: {mode: best_effort}}}")
    command = played["each"]
    played.report(command, played.iteration(command, 0, error("first")))
    assert played.steps == ["each"]
    rest = [played.iteration(command, index, index) for index in (1, 2)]
    played.report(command, *rest, closes=True)

    assert played.steps == ["failed"]
    assert played.state.results["each"].value["results"] == [None, 1, 2]


def test_the_error_of_a_loop_is_that_of_its_first_failed_iteration_in_order() -> None:
    played = loop("[1, 2, 3]", "{mode: parallel}", "{policy: {failure: {mode: best_effort}}}")
    while "each" in played.steps:
        command = list(played.open.values())[-1]
        played.iterate(command, results={i: error(f"e{i}") for i in todo(command)})

    assert played.events(StepFailed)[0].error.message == "iteration 0 failed: e0"


def test_a_poison_chunk_is_given_up() -> None:
    played = loop("[1, 2]")
    for _ in range(2 * DELIVERIES_MAX):
        if played.steps == ["each"]:
            played.lapse("each")

    assert played.steps == ["failed"]
    [failed] = played.events(StepFailed)
    assert "iteration 0 failed: given up after 20 deliveries" in failed.error.message


@pytest.mark.parametrize("poison", [0, 13, 29])
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_an_iteration_that_kills_its_workers_fails_alone(poison: int, mode: str) -> None:
    played = loop("{from: 0, to: 30}", f"{{mode: {mode}, on_error: continue}}")
    losses = 0
    while "each" in played.steps:
        command = played["each"]
        if poison in todo(command):
            played.lapse(command)
            losses += 1
        else:
            played.iterate(command)

    result = played.state.results["each"].value
    assert result["results"] == [None if n == poison else n for n in range(30)]
    assert result["stats"] == {"total": 30, "success": 29, "failed": 1}
    assert losses < 2 * DELIVERIES_MAX, "halving finds it soon"


def test_a_waiting_iteration_that_kills_its_workers_fails_alone() -> None:
    played = loop("[1, 2]", "{on_error: continue}")
    played.suspend("each", iteration=0, until=played.at + 60)
    played.fire()
    for _ in range(DELIVERIES_MAX):
        played.lapse(next(one for one in played.open.values() if one.iteration == 0))
    while "each" in played.steps:
        played.iterate("each")

    assert played.state.results["each"].value["results"] == [None, 2]


def test_a_worker_that_breaks_on_a_chunk_fails_the_loop() -> None:
    played = loop("{from: 0, to: 100}", "{mode: parallel}")

    played.fail("each", "the worker failed")

    assert played.steps == ["failed"]


def test_a_report_of_a_loop_is_heard_once() -> None:
    played = loop("[1, 2]")
    command = played["each"]
    names: dict[str, Any] = {"at": 1.0, "step_run_id": command.step_run_id, "step": "each"}
    report = played.report(
        command,
        IterationStarted(iteration=0, **names),
        TaskDone(iteration=0, task="t", outcome=ok(), **names),
    )
    seq = played.state.seq
    played.happen(Reported, report=report)

    assert played.state.seq == seq
    assert played.state.steps["each"].attempts == 1


def test_a_loop_step_keeps_vars_and_ctx_and_can_be_undone() -> None:
    played = play(
        """
workflow:
- step: start
  loop: {in: [1, 2], iterator: x}
  spec: {compensate: undo}
  tool: {kind: noop}
  vars: {total: "{{ result.stats.total }}"}
  set: {ctx.first: "{{ result.results[0] }}"}
  next: bad
- {step: bad, tool: {kind: noop}}
- {step: undo, tool: {kind: noop}}
"""
    )
    played.iterate("start")

    assert (played.state.vars, played.state.ctx) == ({"total": 2}, {"first": 1})
    assert played.events(StepDone)[0].undo == "undo"


# --- Writes of iterations ---

REDUCE = "{mode: parallel, policy: {reduce: {total: sum, seen: append}}}"


@pytest.mark.parametrize("seed", range(5))
def test_writes_of_iterations_are_folded_at_the_end_in_iteration_order(seed: int) -> None:
    played = loop("{from: 0, to: 20}", REDUCE)
    while "each" in played.steps:
        command = random.Random(seed).choice(list(played.open.values()))
        indices = todo(command)
        random.Random(seed).shuffle(indices)
        ended = [played.iteration(command, i, i, total=i, seen=i) for i in indices]
        assert played.state.ctx == {}
        played.report(command, *ended, closes=True)

    assert played.state.ctx == {"total": 190, "seen": list(range(20))}


def test_a_conflict_fails_the_step_with_both_iterations_named() -> None:
    played = loop("[1, 2, 3]", "{mode: parallel, max_in_flight: 1}")
    while "each" in played.steps:
        command = played["each"]
        ended = [
            played.iteration(command, i, i, **({"k": i} if i != 1 else {})) for i in todo(command)
        ]
        played.report(command, *ended, closes=True)

    assert played.steps == ["failed"]
    [failed] = played.events(StepFailed)
    assert failed.error.code == "ctx_conflict"
    assert "iterations 0 and 2 both wrote ctx.k" in failed.error.message


def test_a_failed_iteration_is_the_cause_even_if_there_is_a_conflict_as_well() -> None:
    played = loop("[1, 2, 3]", "{mode: parallel, max_in_flight: 3}")
    command = played["each"]
    if len(todo(command)) < 3:
        played.report(command, *[played.iteration(command, i, i, k=i) for i in todo(command)])
    other = list(played.open.values())[-1]
    played.report(other, played.iteration(other, todo(other)[-1], error("cause"), k=9))

    assert "cause" in played.events(StepFailed)[0].error.message


# --- Iterations that wait ---


def test_a_waiting_iteration_is_in_flight_so_a_sequential_loop_waits_for_it() -> None:
    played = loop("[1, 2, 3]")
    command = played["each"]
    played.report(command, played.iteration(command, 0, 1))
    played.suspend(command, iteration=1, until=played.at + 60)

    assert played.open == {}
    played.fire()
    alone = played["each"]
    assert (alone.iteration, todo(alone)) == (1, [1])
    assert alone.progress is not None
    played.report(alone, played.iteration(alone, 1, 2), closes=True)

    assert todo(played["each"]) == [2]
    assert run_all(played)["results"] == [1, 2, 3]


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("mode", ["child", "moment"])
def test_waiting_iterations_never_exceed_max_in_flight(limit: int, mode: str) -> None:
    played = loop("{from: 0, to: 12}", f"{{mode: parallel, max_in_flight: {limit}}}")

    def wait(command: Command) -> None:
        """As a worker does: each lane ends with the iteration that waits."""
        assert command.chunk is not None
        for index in todo(command)[: command.chunk.concurrency]:
            kind: dict[str, Any] = {"child": "p"} if mode == "child" else {"until": played.at + 5}
            played.suspend(command, iteration=index, closes=False, **kind)
            assert in_flight(played) <= limit
        played.report(command, closes=True)

    while played.status != "COMPLETED" and "last" not in played.steps:
        for command in list(played.open.values()):
            if command.iteration is None:
                wait(command)
            else:
                index = command.iteration
                value = element_of(played, command, index)
                played.report(command, played.iteration(command, index, value), closes=True)
            if played.state.runs and "each" in {run.step for run in played.state.runs.values()}:
                assert in_flight(played) <= limit
        if played.children:
            played.end_child(next(iter(played.children)))
        elif played.state.timers:
            played.fire()

    assert played.state.results["each"].value["results"] == list(range(12))


def test_a_chunk_that_is_lost_while_its_iterations_wait_does_not_run_them_twice() -> None:
    played = loop("[1, 2]", "{mode: parallel, max_in_flight: 2, batch_size: 1}")
    first = played["each"]
    played.suspend(first, iteration=0, until=played.at + 60, closes=False)
    played.lapse(first)

    assert [todo(command) for command in played.open.values()] == [[1]]
    played.fire()
    assert sorted(i for command in played.open.values() for i in todo(command)) == [0, 1]
    while "each" in played.steps:
        played.iterate("each")
    assert played.state.results["each"].value["results"] == [1, 2]


def test_a_lost_iteration_that_went_on_alone_goes_on_alone_again() -> None:
    played = loop("[1, 2]")
    played.suspend("each", iteration=0, until=played.at + 60)
    played.fire()
    played.lapse("each")

    [command] = played.open.values()
    assert command.iteration == 0
    assert command.progress is not None


def test_an_iteration_that_wakes_up_in_a_paused_execution_goes_on_when_it_is_resumed() -> None:
    played = loop("[1, 2]")
    played.suspend("each", iteration=0, child="p")
    played.pause()
    played.end_child(next(iter(played.children)))
    assert played.open == {}
    played.resume()

    assert played["each"].iteration == 0
    assert run_all(played)["results"] == [1, 2]


# --- The window of open commands -----------------------------------------------------------------

SINGLES = """
workflow:
- step: each
  loop: {{in: {{from: 0, to: {total}}}, iterator: x, spec: {{mode: parallel, max_in_flight: {total},
    batch_size: 1, policy: {policy}}}}}
  tool: {{kind: noop}}
"""
TOTAL = OPEN_MAX + 200


def singles(policy: str = "{}") -> Play:
    """A loop that would have all of its iterations in flight, each with a command of its own."""
    return Play(SINGLES.format(total=TOTAL, policy=policy), checked=False).start()


def test_a_loop_opens_a_window_of_commands_and_each_that_ends_opens_the_next() -> None:
    played = singles()
    assert len(played.open) == OPEN_MAX

    done = 0
    while played.open:
        played.iterate("each")
        done += 1
        assert len(played.open) == min(OPEN_MAX, TOTAL - done)

    assert done == TOTAL
    assert played.status == "COMPLETED"
    assert played.result("each")["results"] == list(range(TOTAL))


def test_iterations_that_wait_are_beside_the_window_and_wake_up_through_it() -> None:
    played = singles()
    while command := next(iter(played.open.values()), None):
        [index] = todo(command)
        played.suspend(command, iteration=index, until=played.at + 60)
    assert len(played.state.timers) == TOTAL, "waiting holds no command: all are in flight"

    played.pause()
    while played.state.timers:
        played.fire()
    played.resume()
    assert len(played.open) == OPEN_MAX
    run_all(played)

    assert played.status == "COMPLETED"
    assert played.state.steps["each"].loop_success == TOTAL


def test_a_partitioned_loop_opens_no_more_commands_than_any_other() -> None:
    played = singles('{partition: {key: "{{ iter.x }}"}}')
    most = 0
    ended: list[int] = []
    while played.open:
        most = max(most, len(played.open))
        commands = list(played.open.values())
        keying = [one for one in commands if one.chunk is not None and one.chunk.keys]
        for command in keying or commands[:1]:
            chunk = command.chunk
            assert chunk is not None
            if chunk.keys:
                keys = tuple(str(index) for index in range(chunk.start, chunk.stop))
                found = IterationsKeyed(
                    at=played.at,
                    step_run_id=command.step_run_id,
                    step="each",
                    start=chunk.start,
                    keys=keys,
                )
                played.report(command, found, closes=True)
            else:
                indexes = [one for chain in chunk.chains for one in chain]
                done = [played.iteration(command, index, index) for index in indexes]
                played.report(command, *done, closes=True)
                ended += indexes

    assert most == OPEN_MAX
    assert sorted(ended) == list(range(TOTAL))
    assert played.status == "COMPLETED"


@pytest.mark.parametrize("kind", [{"until": 0.0}, {"child": "p"}])
def test_an_iteration_that_waits_again_is_woken_before_its_worker_has_said_its_last_word(kind):
    """The wake-up was ignored because the iteration had a command, and came only once."""
    played = play("workflow: [{step: each, loop: {in: [1], iterator: x}, tool: {kind: noop}}]")
    played.suspend("each", iteration=0, until=played.at + 60)
    played.fire()
    [again] = played.open.values()

    played.suspend(again, iteration=0, closes=False, **kind)
    if "child" in kind:
        played.end_child(next(iter(played.children)), "COMPLETED", 1)
    else:
        played.fire()

    [goes_on] = played.open.values()
    assert goes_on.command_id != again.command_id
    assert goes_on.iteration == 0
