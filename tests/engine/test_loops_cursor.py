"""Cursor loops: frames that claim until nothing is left, whoever loses them meanwhile."""

from __future__ import annotations

from typing import Any

from noetl.engine.loops import OPEN_MAX
from noetl.model.commands import Command
from noetl.model.events import FrameClaimed, IterationDone, LoopDone, StepFailed
from tests.engine.playing import Play, error, play

CURSOR = """
workflow:
- step: each
  loop:
    cursor: {{kind: postgres, auth: db, claim: "UPDATE … RETURNING *"}}
    iterator: row
    spec: {{mode: cursor, max_in_flight: {frames}, on_error: {on_error}}}
  tool: {{kind: noop}}
  next: {{arcs: [{{step: failed, when: "{{{{ error }}}}"}}, {{step: last}}]}}
- {{step: last, tool: {{kind: noop}}}}
- {{step: failed, tool: {{kind: noop}}}}
"""


def cursor(frames: int = 2, on_error: str = "fail") -> Play:
    return play(CURSOR.format(frames=frames, on_error=on_error))


def claimed(played: Play, command: Command, count: int, **fields: Any) -> FrameClaimed:
    return FrameClaimed(
        at=played.at,
        step_run_id=command.step_run_id,
        step="each",
        iterations=count,
        **fields,
    )


def frame(played: Play, command: Command, *results: Any) -> None:
    """A worker claims, runs all rows and lets go."""
    ended = [played.iteration(command, index, one) for index, one in enumerate(results)]
    played.report(command, claimed(played, command, len(results)), *ended, closes=True)


def frames(played: Play) -> list[Command]:
    return [command for command in played.open.values() if command.step == "each"]


def test_frames_claim_until_each_of_them_finds_nothing() -> None:
    played = cursor()
    assert [command.chunk.claims for command in frames(played)] == [True, True]
    first, second = frames(played)
    frame(played, second, "a", "b")
    frame(played, first, "c")
    frame(played, frames(played)[0])
    assert len(frames(played)) == 1, "one frame has found nothing, the other goes on"
    frame(played, frames(played)[0], "d")
    frame(played, frames(played)[0])

    assert played.steps == ["last"]
    result = played.state.results["each"].value
    assert result["results"] == ["a", "b", "c", "d"]
    assert result["stats"] == {"total": 4, "success": 4, "failed": 0}
    [done] = played.events(LoopDone)
    assert done.total == 4


def test_however_many_frames_are_asked_for_only_a_window_of_them_claims() -> None:
    played = Play(CURSOR.format(frames=100_000, on_error="fail"), checked=False).start()

    assert len(frames(played)) == OPEN_MAX
    for command in frames(played):
        frame(played, command)
    assert played.steps == ["last"], "each has found nothing"


def test_a_cursor_over_nothing_ends_at_once() -> None:
    played = cursor(frames=1)
    frame(played, frames(played)[0])

    assert played.state.results["each"].value["results"] == []
    assert played.steps == ["last"]


def test_iterations_of_different_frames_have_different_numbers() -> None:
    played = cursor()
    first, second = frames(played)
    played.report(first, claimed(played, first, 2))
    played.report(second, claimed(played, second, 2))
    played.report(first, played.iteration(first, 1, "f1"))
    played.report(second, played.iteration(second, 0, "s0"))

    assert [event.iteration for event in played.events(IterationDone)] == [1, 2]


def test_a_lost_frame_claims_anew_and_what_it_recorded_counts() -> None:
    played = cursor(frames=1)
    [first] = frames(played)
    played.report(first, claimed(played, first, 3), played.iteration(first, 0, "a"))
    played.lapse(first)
    [again] = frames(played)
    assert again.command_id != first.command_id
    assert again.chunk is not None
    assert again.chunk.claims
    frame(played, again, "b", "c")
    frame(played, frames(played)[0])

    result = played.state.results["each"].value
    assert result["results"] == ["a", None, None, "b", "c"], "lost rows leave their places empty"
    assert result["stats"] == {"total": 3, "success": 3, "failed": 0}


def test_a_frame_that_is_lost_after_it_found_nothing_is_asked_again() -> None:
    played = cursor(frames=2)
    first, second = frames(played)
    played.report(first, claimed(played, first, 0))
    played.lapse(first)
    again = next(command for command in frames(played) if command is not second)
    frame(played, again)
    frame(played, second, "a")
    assert len(frames(played)) == 1, "the second frame goes on although the first was dry twice"
    frame(played, frames(played)[0])

    assert played.state.results["each"].value["results"] == ["a"]


def test_a_row_that_waits_keeps_the_loop_open_and_goes_on_alone() -> None:
    played = cursor(frames=1)
    [first] = frames(played)
    played.report(first, claimed(played, first, 2), played.iteration(first, 0, "a"))
    played.suspend(first, iteration=1, child="p")
    frame(played, frames(played)[0])
    assert frames(played) == []
    assert played.state.runs
    played.end_child(next(iter(played.children)))
    [alone] = frames(played)
    assert alone.iteration == 1
    played.report(alone, played.iteration(alone, 1, "b"), closes=True)

    assert played.state.results["each"].value["results"] == ["a", "b"]


def test_a_failed_row_fails_the_loop_and_stops_the_other_frames() -> None:
    played = cursor(frames=2)
    first, second = frames(played)
    frame(played, first, "a", error("no"))

    assert played.closed == [second.command_id]
    assert played.steps == ["failed"]


def test_with_on_error_continue_failed_rows_are_counted() -> None:
    played = cursor(frames=1, on_error="continue")
    frame(played, frames(played)[0], "a", error("no"))
    frame(played, frames(played)[0])

    assert played.state.results["each"].value["stats"] == {"total": 2, "success": 1, "failed": 1}


def test_a_claim_that_keeps_failing_fails_the_step() -> None:
    played = cursor(frames=1, on_error="continue")
    [first] = frames(played)
    played.report(first, claimed(played, first, 0, error=error("no connection")), closes=True)

    [failed] = played.events(StepFailed)
    assert failed.error.message == "no connection"
    assert played.steps == ["failed"]


def test_a_paused_cursor_claims_nothing_until_it_is_resumed() -> None:
    played = cursor(frames=1)
    [first] = frames(played)
    played.pause()
    frame(played, first, "a")
    assert frames(played) == []
    played.resume()

    assert len(frames(played)) == 1


def bounded(frames: int = 3, pending: int = 3) -> Play:
    text = CURSOR.format(frames=frames, on_error="continue")
    policy = f", policy: {{backpressure: {{max_pending: {pending}}}}}}}"
    return play(text.replace("on_error: continue}", f"on_error: continue{policy}"))


def test_with_backpressure_one_frame_claims_at_a_time_and_none_while_too_many_are_unfinished() -> (
    None
):
    played = bounded()
    [first] = frames(played)
    played.report(first, claimed(played, first, 2))
    [_, second] = frames(played)
    played.report(second, claimed(played, second, 2))
    assert len(frames(played)) == 2, "four rows have not ended"

    played.report(first, played.iteration(first, 0, "a"))
    assert len(frames(played)) == 2, "three are as many as may be"
    played.report(second, played.iteration(second, 1, "b"))
    assert len(frames(played)) == 3, "two have not ended"


def test_rows_that_wait_count_and_those_of_a_lost_frame_do_not() -> None:
    played = bounded(frames=2, pending=2)
    [first] = frames(played)
    played.report(first, claimed(played, first, 2))
    assert len(frames(played)) == 1
    played.suspend(first, iteration=0, until=played.at + 10, closes=False)
    assert len(frames(played)) == 1, "one waits, one runs"
    played.report(first, played.iteration(first, 1, "b"), closes=True)
    [second] = frames(played)
    played.report(second, claimed(played, second, 5))
    assert frames(played) == [second]
    played.lapse(second)

    [again] = frames(played)
    assert again.command_id != second.command_id, "it claims anew, and its rows are forgotten"
    played.report(again, claimed(played, again, 0), closes=True)
    played.fire()
    [woken] = frames(played)[:1]
    while frames(played):
        [one, *_] = frames(played)
        if one.iteration is not None:
            played.report(one, played.iteration(one, one.iteration, "a"), closes=True)
        else:
            frame(played, one)
    assert played.steps == ["last"]
    assert woken
