"""What workers say and what becomes of it: reports, lost leases, waits, children."""

from __future__ import annotations

import pytest

from noetl.engine.advance import DELIVERIES_MAX
from noetl.model.events import CommandLost, Progress, StepStarted, TaskDone, WorkflowFinished
from noetl.model.inputs import ChildEnded, Leased, Reported
from noetl.model.outcome import ok
from tests.engine.playing import Play, play


def test_a_run_has_started_when_a_worker_first_takes_one_of_its_commands() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    run_id = played["start"].step_run_id

    for _ in range(3):
        played.happen(Leased, command_id="c", step_run_id=run_id, worker="w-1")
    played.happen(Leased, command_id="c", step_run_id="unknown", worker="w-1")

    assert [event.worker for event in played.events(StepStarted)] == ["w-1"]


def lose(played: Play, times: int) -> None:
    for _ in range(times):
        played.lapse("start")


def test_lost_work_goes_on_from_where_it_was_recorded() -> None:
    played = play("workflow: [{step: start, tool: [{name: a, kind: noop}, {name: b, kind: noop}]}]")
    command = played["start"]
    progress = Progress(position=1, results={"a": 1})
    played.report(
        command,
        TaskDone(
            at=played.at,
            step_run_id=command.step_run_id,
            step="start",
            task="a",
            outcome=ok(1),
            progress=progress,
        ),
    )
    played.lapse("start")

    again = played["start"]
    assert again.command_id != command.command_id
    assert again.progress == progress
    played.done(command, "a late word under the lost lease")
    assert played.status == "RUNNING"
    assert played.steps == ["start"]


def test_a_command_that_is_lost_too_often_is_given_up() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")

    lose(played, DELIVERIES_MAX - 1)
    assert played["start"].deliveries == DELIVERIES_MAX
    lose(played, 1)

    assert played.status == "FAILED"
    assert played.open == {}
    assert len(played.events(CommandLost)) == DELIVERIES_MAX
    assert played.state.failure is not None
    assert played.state.failure.code == "poison"


def test_a_command_that_is_given_back_is_no_poison_however_often() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    seen = {played["start"].command_id}

    for _ in range(3 * DELIVERIES_MAX):
        played.lapse("start", given_back=True)
        seen.add(played["start"].command_id)

    assert played["start"].deliveries == 1
    assert len(seen) == 3 * DELIVERIES_MAX + 1


def test_a_late_report_is_refused_and_noted_once() -> None:
    played = play("workflow: [{step: start, tool: [{name: a, kind: noop}, {name: b, kind: noop}]}]")
    command = played["start"]
    played.lapse("start")

    for _ in range(3):
        played.done(command, "late")

    assert [fact.refused for fact in played.events(CommandLost)] == [False, True]
    assert played.status == "RUNNING"


def test_a_command_that_gets_somewhere_between_losses_is_no_poison() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")

    for _ in range(3 * DELIVERIES_MAX):
        command = played["start"]
        done = TaskDone(
            at=played.at,
            step_run_id=command.step_run_id,
            step="start",
            task="start_task",
            outcome=ok(),
            progress=Progress(),
        )
        played.report(command, done)
        played.lapse("start")

    assert played.steps == ["start"]


def test_a_report_is_heard_once() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    command = played["start"]
    done = TaskDone(
        at=played.at, step_run_id=command.step_run_id, step="start", task="t", outcome=ok()
    )
    first = played.report(command, done)
    seq = played.state.seq

    assert played.happen(Reported, report=first).events == ()
    assert played.state.seq == seq
    assert played.state.steps["start"].attempts == 1


def test_a_worker_has_no_say_about_other_runs_or_the_execution() -> None:
    played = play(
        """
workflow:
- {step: start, next: [a, b]}
- {step: a, tool: {kind: noop}}
- {step: b, tool: {kind: noop}}
"""
    )
    a, b = played["a"], played["b"]
    foreign = TaskDone(at=played.at, step_run_id=b.step_run_id, step="b", task="t", outcome=ok())
    seq = played.state.seq
    played.report(a, foreign, WorkflowFinished(at=played.at, status="COMPLETED"))

    assert played.state.seq == seq
    assert played.status == "RUNNING"


def test_a_run_that_is_let_go_without_an_ending_fails() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")

    played.report("start", closes=True)

    assert played.status == "FAILED"


def test_a_run_that_waits_holds_no_command_and_goes_on_with_its_progress() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    played.suspend("start", until=played.at + 30, progress=Progress(attempt=2))

    assert played.open == {}
    assert played.next_timer().fires_at == played.at + 30
    played.fire()

    assert played["start"].progress == Progress(attempt=2)
    played.done("start")
    assert played.status == "COMPLETED"


def test_a_wait_that_is_reported_early_lets_go_of_the_command_at_once() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    first = played["start"]
    report = played.suspend(first, until=played.at + 30, closes=False)
    played.happen(Reported, report=report)

    assert played.closed == [first.command_id]
    played.fire()
    played.report(first, closes=True)
    assert len(played.open) == 1


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED"])
def test_a_run_waits_for_its_child_and_finds_its_outcome(status: str) -> None:
    played = play("workflow: [{step: start, tool: {kind: playbook, path: p}}]")
    played.suspend("start", child="p")
    [child] = played.children
    assert played.open == {}
    fact = played.end_child(child, status, {"v": 1})
    played.happen(ChildEnded, fact=fact)

    pending = played["start"].progress.pending  # type: ignore[union-attr]
    assert pending is not None
    assert pending.is_ok == (status == "COMPLETED")
    assert len(played.open) == 1


def test_of_a_moment_and_a_child_the_first_to_come_wakes_the_run() -> None:
    played = play("workflow: [{step: start, tool: {kind: playbook, path: p}}]")
    played.suspend("start", child="p", until=played.at + 5)
    played.end_child(next(iter(played.children)))
    command = played["start"]
    played.fire()

    assert list(played.open) == [command.command_id]
    assert len(played.issued) == 2


def test_a_timeout_cancels_the_child() -> None:
    played = play("workflow: [{step: start, spec: {timeout: 5}, tool: {kind: playbook, path: p}}]")
    played.suspend("start", child="p")
    [child] = played.children
    played.fire()

    assert played.cancelled_children == [child]
    assert played.status == "FAILED"


def test_s24_a_command_that_killed_two_workers_that_ran_nothing_else_is_given_up() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")

    played.lapse("start", alone=True)
    assert played.status == "RUNNING"
    played.lapse("start", given_back=True)
    assert played.status == "RUNNING"
    played.lapse("start", alone=True)

    assert played.status == "FAILED"
    assert played.state.failure is not None
    assert played.state.failure.code == "poison"
    assert "2 workers died while they ran this and nothing else" in played.state.failure.message


def test_s24_a_command_that_gets_somewhere_is_not_suspected_any_more() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")

    for _ in range(5):
        command = played["start"]
        done = TaskDone(
            at=played.at,
            step_run_id=command.step_run_id,
            step="start",
            task="start_task",
            outcome=ok(),
            progress=Progress(),
        )
        played.report(command, done)
        played.lapse("start", alone=True)

    assert played.status == "RUNNING"
