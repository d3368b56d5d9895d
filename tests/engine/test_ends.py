"""The end of an execution: its result, compensation, cancel, pause; and finished is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from noetl.engine import signals
from noetl.model.commands import Command
from noetl.model.events import (
    ExecutionProcessed,
    Parent,
    StepCancelled,
    StepDone,
    StepFailed,
    StepScheduled,
    WorkflowFinished,
)
from noetl.model.facts import Actor
from noetl.model.inputs import Lapsed, Leased, Signalled, TimerDue
from tests.engine.playing import Play, play

SEQUENCE = """
workflow:
- {step: start, tool: {kind: noop}, next: middle}
- {step: middle, tool: {kind: noop}, next: %s}
- {step: end, tool: {kind: noop}, next: after}
- {step: after, tool: {kind: noop}}
"""


def test_the_result_is_that_of_the_last_run_to_finish() -> None:
    played = play(SEQUENCE % "after")
    for number, step in enumerate(("start", "middle", "after")):
        played.done(step, number)

    assert (played.status, played.state.result) == ("COMPLETED", 2)


def test_the_result_is_that_of_the_step_named_end_if_it_ran() -> None:
    played = play(SEQUENCE % "end")
    for step in ("start", "middle", "end", "after"):
        played.done(step, step)

    assert played.state.result == "end"
    assert played.state.last_step == "after"


def test_of_parallel_branches_the_last_to_finish_gives_the_result() -> None:
    text = """
workflow:
- {step: start, next: [a, b]}
- {step: a, tool: {kind: noop}}
- {step: b, tool: {kind: noop}}
"""
    for order in ("ab", "ba"):
        played = play(text)
        for step in order:
            played.done(step, step)
        assert played.state.result == order[-1]


def test_a_failed_execution_has_an_error_and_no_result() -> None:
    played = play(SEQUENCE % "end")
    played.done("start", 1)
    played.fail("middle", "no")

    [finished] = played.events(WorkflowFinished)
    assert (finished.status, finished.result) == ("FAILED", None)
    assert finished.error.message == "no"
    assert isinstance(played.history[-1], ExecutionProcessed)


def test_an_execution_starts_once() -> None:
    played = play(SEQUENCE % "end")
    seq = played.state.seq

    played.start()

    assert played.state.seq == seq


def test_whoever_waits_for_an_execution_is_told_its_end_once() -> None:
    parent = Parent(execution_id="1", step_run_id="r", iteration=3)
    for ends in (True, False):
        played = Play("workflow: [{step: start, tool: {kind: noop}}]").start(parent=parent)
        if ends:
            played.done("start", 5)
        played.cancel()
        [told] = played.told
        expected = ("COMPLETED", 5) if ends else ("CANCELLED", None)
        assert (told.parent, told.status, told.result) == (parent, *expected)


def test_a_parent_may_ask_for_the_result_of_one_step() -> None:
    parent = Parent(execution_id="1", step_run_id="r", return_step="start")
    played = Play(SEQUENCE % "after").start(parent=parent)
    for step in ("start", "middle", "after"):
        played.done(step, step)

    [told] = played.told
    assert told.result == "start"
    assert played.state.result == "after"


def test_the_names_a_step_emits_are_recorded_with_its_end() -> None:
    for broken in (False, True):
        played = play(
            """
workflow:
- step: start
  spec: {policy: {emit: {events: [order.paid, order.closed]}}}
  tool: {kind: noop}
"""
        )
        (played.fail if broken else played.done)("start")
        [ended] = played.events(StepFailed if broken else StepDone)
        assert ended.emitted == ("order.paid", "order.closed")


# --- Finished is final ---


def lease(played: Play, command: Command) -> None:
    ids = {"command_id": command.command_id, "step_run_id": command.step_run_id}
    played.happen(Leased, **ids, worker="w")


EVERYTHING: list[Callable[[Play], Any]] = [
    lambda played: played.cancel(),
    lambda played: played.pause(),
    lambda played: played.resume(),
    lambda played: played.start(),
    lambda played: played.done(played.issued[0], "late"),
    lambda played: played.happen(Lapsed, command_id=played.issued[0].command_id, worker="w"),
    lambda played: lease(played, played.issued[0]),
    lambda played: played.happen(TimerDue, timer_id="no timer"),
]


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "CANCELLED"])
@pytest.mark.parametrize("late", EVERYTHING)
def test_nothing_happens_to_an_execution_that_has_ended(
    end: str, late: Callable[[Play], Any]
) -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    {"COMPLETED": played.done, "FAILED": played.fail}.get(end, lambda _: played.cancel())("start")
    seq = played.state.seq

    late(played)

    assert played.status == end
    assert played.state.seq == seq


# --- Cancel ---

SITUATIONS: dict[str, tuple[str, Callable[[Play], Any]]] = {
    "queued": ("tool: {kind: noop}", lambda played: None),
    "running": (
        "tool: {kind: noop}",
        lambda played: lease(played, played["a"]),
    ),
    "lost and requeued": ("tool: {kind: noop}", lambda played: played.lapse("a")),
    "waiting for a moment": (
        "tool: {kind: noop}",
        lambda played: played.suspend("a", until=played.at + 60),
    ),
    "waiting for a child": (
        "tool: {kind: playbook, path: p}",
        lambda played: played.suspend("a", child="p"),
    ),
    "in a loop": ("{loop: {in: [1, 2, 3], iterator: x}, tool: {kind: noop}}", lambda played: None),
    "in a loop with waiting iterations": (
        "{loop: {in: [1, 2, 3], iterator: x}, tool: {kind: noop}}",
        lambda played: played.suspend("a", iteration=0, child="p"),
    ),
    "paused": ("tool: {kind: noop}", lambda played: played.pause()),
    "under a time limit": ("{spec: {timeout: 5}, tool: {kind: noop}}", lambda played: None),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_cancel_stops_everything_in_every_situation(situation: str) -> None:
    body, act = SITUATIONS[situation]
    body = body.removeprefix("{").removesuffix("}") if body.startswith("{") else body
    played = play(
        f"""
workflow:
- step: start
  next: {{spec: {{mode: inclusive}}, arcs: [{{step: a}}, {{step: b, spec: {{delay: 60}}}}]}}
- {{step: a, {body}, next: join}}
- {{step: b, tool: {{kind: noop}}, next: join}}
- {{step: join, tool: {{kind: noop}}}}
"""
    )
    act(played)
    played.cancel("enough")

    assert played.status == "CANCELLED"
    assert not played.owners()
    assert not played.state.tokens
    assert [event.step for event in played.events(StepCancelled)] == ["a"]
    [finished] = played.events(WorkflowFinished)
    assert finished.error.kind == "cancelled"


def test_cancel_while_compensating_stops_the_compensation() -> None:
    played = play(SAGA)
    played.done("book")
    played.fail("pay")
    assert played.steps == ["unbook"]
    played.cancel()

    assert played.status == "CANCELLED"
    assert played.open == {}


ON_CANCEL = "executor: {spec: {policy: {compensate_on: [failure, cancel]}}}\n"


def test_a_cancelled_execution_undoes_what_is_done_where_the_playbook_says_so() -> None:
    played = play(ON_CANCEL + SAGA)
    played.done("book", {"id": 1})
    played.pause()
    played.cancel()

    assert played.status == "RUNNING"
    assert played["unbook"].args == {"step": "book", "result": {"id": 1}, "fee": 3}
    played.cancel()  # a replacement of it, or its parent, says so again
    played.at += 1
    played.cancel(actor=Actor(kind="schedule", name="t/nightly"))
    assert played.steps == ["unbook"]
    played.done("unbook")

    assert played.status == "CANCELLED"
    [finished] = played.events(WorkflowFinished)
    assert finished.error.kind == "cancelled"
    assert played.ran() == ["book", "pay", "unbook"]


def test_a_person_who_cancels_again_stops_the_undoing() -> None:
    played = play(ON_CANCEL + SAGA)
    played.done("book")
    played.cancel()
    played.cancel(actor=Actor(kind="user", name="ada"))

    assert (played.status, played.open) == ("CANCELLED", {})


def test_a_cancellation_that_is_decided_again_does_not_stop_the_undoing() -> None:
    """Its commit was stored, the answer lost: it is sent again, and finds that the log moved."""
    played = play(ON_CANCEL + SAGA)
    played.done("book")
    for _ in range(2):
        played.cancel(actor=Actor(kind="user", name="ada"))

    assert (played.status, played.steps) == ("RUNNING", ["unbook"])
    played.at += 1
    played.cancel(actor=Actor(kind="user", name="ada"))
    assert (played.status, played.open) == ("CANCELLED", {})


def test_a_cancellation_that_is_sent_again_under_its_key_does_not_stop_the_undoing() -> None:
    ada = Actor(kind="user", name="ada")
    played = play(ON_CANCEL + SAGA)
    played.done("book")
    for _ in range(2):
        played.at += 1
        played.cancel(actor=ada, key="one")

    assert (played.status, played.steps) == ("RUNNING", ["unbook"])
    played.cancel(actor=ada, key="another")
    assert (played.status, played.open) == ("CANCELLED", {})


def test_nothing_done_is_nothing_to_undo_and_the_end_decides_who_undoes() -> None:
    early = play(ON_CANCEL + SAGA)
    early.cancel()
    assert early.status == "CANCELLED"

    failed = play(ON_CANCEL.replace("failure, ", "") + SAGA)
    failed.done("book")
    failed.fail("pay")
    assert (failed.status, failed.open) == ("FAILED", {})

    never = play(ON_CANCEL.replace("failure, cancel", "") + SAGA)
    never.done("book")
    never.cancel()
    assert (never.status, never.open) == ("CANCELLED", {})


# --- Pause ---


def test_a_paused_execution_lets_running_work_end_and_starts_nothing() -> None:
    played = play(SEQUENCE % "end")
    played.pause()
    played.pause()
    played.done("start", 1)

    assert (played.status, played.open) == ("PAUSED", {})
    assert played.ran() == ["start"]
    played.resume()
    played.resume()

    assert (played.status, played.steps) == ("RUNNING", ["middle"])


def test_the_time_of_a_step_does_not_run_while_it_is_held_back() -> None:
    played = play(
        """
workflow:
- {step: start, tool: {kind: noop}, next: a}
- {step: a, spec: {timeout: 5}, tool: {kind: noop}}
"""
    )
    played.pause()
    played.done("start")
    assert played.state.timers == {}
    played.at += 1000
    played.resume()

    assert played.next_timer().fires_at == played.at + 5


def test_a_wait_that_ends_in_a_paused_execution_goes_on_when_it_is_resumed() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    played.suspend("start", until=played.at + 5)
    played.pause()
    played.fire()
    assert played.open == {}
    played.resume()

    assert played.steps == ["start"]


def test_a_paused_loop_hands_out_nothing_until_it_is_resumed() -> None:
    played = play(
        """
workflow:
- step: start
  loop: {in: {from: 0, to: 10}, iterator: x, spec: {mode: parallel, max_in_flight: 1}}
  tool: {kind: noop}
"""
    )
    played.pause()
    played.iterate("start")
    assert played.open == {}
    played.resume()
    while played.open:
        played.iterate("start")

    assert played.state.result["stats"]["success"] == 10


def test_a_paused_execution_can_end_but_compensates_only_when_it_is_resumed() -> None:
    ended = play("workflow: [{step: start, tool: {kind: noop}}]")
    ended.pause()
    ended.done("start")
    assert ended.status == "COMPLETED"

    played = play(SAGA)
    played.done("book")
    played.pause()
    played.fail("pay")
    assert (played.status, played.open) == ("PAUSED", {})
    played.resume()
    assert played.steps == ["unbook"]


# --- Compensation ---

SAGA = """
workload: {fee: 3}
workflow:
- step: book
  spec: {compensate: unbook}
  tool: {kind: noop}
  next: {arcs: [{step: book, when: "{{ book.again }}"}, {step: pay}]}
- {step: pay, spec: {compensate: refund}, tool: {kind: noop}}
- {step: unbook, args: {fee: "{{ workload.fee }}"}, tool: {kind: noop}, next: never}
- {step: refund, tool: {kind: noop}}
- {step: never, tool: {kind: noop}}
"""
BLOCKS = (
    SAGA.replace("{step: pay}]", "{step: reserve}]")
    + """
- {step: reserve, spec: {compensate: release}, tool: {kind: noop}, next: pay}
workbook:
  release: {tool: {kind: noop}}
"""
)


def test_compensation_runs_newest_first_and_then_the_execution_fails() -> None:
    played = play(BLOCKS)
    played.done("book", {"id": 1})
    played.done("reserve", {"id": 2})
    played.fail("pay", "no money")

    release = played["reserve"]
    assert release.block == "release"
    assert release.args == {"step": "reserve", "result": {"id": 2}}
    assert release.workload == {"fee": 3}, "a workbook entry may read anything"
    played.done("reserve", "released")
    unbook = played["unbook"]
    assert unbook.args == {"step": "book", "result": {"id": 1}, "fee": 3}
    played.done("unbook")

    assert played.status == "FAILED"
    assert played.ran() == ["book", "reserve", "pay", "reserve", "unbook"]
    assert played.state.failure is not None
    assert played.state.failure.message == "no money"
    assert played.state.results["reserve"].value == {"id": 2}


def test_each_run_of_a_step_is_compensated_with_its_own_result() -> None:
    played = play(SAGA)
    played.done("book", {"id": 1, "again": True})
    played.done("book", {"id": 2})
    played.fail("pay")

    undone = []
    while "unbook" in played.steps:
        undone.append(played["unbook"].args["result"]["id"])
        played.done("unbook")
    assert undone == [2, 1]


def test_a_run_that_failed_or_did_not_run_is_not_compensated() -> None:
    played = play(SAGA)
    played.fail("book")

    assert played.status == "FAILED"
    assert played.ran() == ["book"]


def test_a_compensation_that_fails_or_is_lost_for_good_does_not_stop_the_others() -> None:
    played = play(SAGA)
    played.done("book", {"again": True})
    played.done("book", {})
    played.fail("pay", "first")
    played.fail("unbook", "second")
    assert played.steps == ["unbook"]
    while played.open:
        played.lapse("unbook")

    assert played.status == "FAILED"
    assert played.state.failure is not None
    assert played.state.failure.message == "first"


def test_a_lost_compensation_by_a_workbook_entry_goes_on_with_the_entry() -> None:
    played = play(BLOCKS)
    played.done("book")
    played.done("reserve")
    played.fail("pay")
    played.lapse("reserve")

    assert played["reserve"].block == "release"


def test_a_completed_execution_compensates_nothing() -> None:
    played = play(SAGA)
    played.done("book")
    played.done("pay")

    assert played.status == "COMPLETED"


UNDO_BY = """
workflow:
- {step: start, spec: {compensate: undo}, tool: {kind: noop}, next: bad}
- {step: bad, tool: {kind: noop}}
"""


def test_a_compensation_step_may_be_a_loop() -> None:
    played = play(
        UNDO_BY
        + '- {step: undo, loop: {in: "{{ args.result.ids }}", iterator: x}, tool: {kind: noop}}\n'
    )
    played.done("start", {"ids": [7, 8]})
    played.fail("bad")

    played.iterate("undo")

    assert played.status == "FAILED"
    assert played.events(StepDone)[-1].result["results"] == [7, 8]


def test_a_compensation_step_may_have_no_tasks_and_routes_nowhere() -> None:
    played = play(UNDO_BY + "- {step: undo, next: more}\n- {step: more, tool: {kind: noop}}\n")
    played.done("start", 1)
    played.fail("bad")

    assert played.status == "FAILED"
    assert played.ran() == ["start", "bad", "undo"]


def test_a_compensation_step_waits_hears_its_rules_and_writes_what_it_says() -> None:
    played = play(
        UNDO_BY
        + """
- step: undo
  spec: {eval_mode: on_event, timers: [{id: late, after: 60}]}
  tool: {kind: noop}
  set: {ctx.given_back: "{{ result.amount }}"}
  case: [{when: "{{ event.name == 'money.sent' }}", then: {result: {from: event.data}}}]
"""
    )
    played.done("start", 1)
    played.fail("bad")
    played.done("undo")
    assert (played.status, played.steps) == ("RUNNING", [])

    sent = signals.received(played.at, "s1", "money.sent", {"amount": 5}, None)
    played.happen(Signalled, signal=sent)

    assert played.status == "FAILED"
    assert played.state.steps["start"].undone == 1
    assert played.state.ctx == {"given_back": 5}


def test_a_compensation_step_has_its_time_limits_and_may_fail_on_its_args() -> None:
    limited = play(UNDO_BY + "- {step: undo, spec: {timeout: 5}, tool: {kind: noop}}\n")
    limited.done("start", 1)
    limited.fail("bad")
    limited.fire()
    assert limited.status == "FAILED"

    broken = play(UNDO_BY + "- {step: undo, args: {x: '{{ args.no.such }}'}, tool: {kind: noop}}\n")
    broken.done("start", 1)
    broken.fail("bad")
    assert broken.status == "FAILED"
    assert [event.step for event in broken.events(StepFailed)] == ["bad", "undo"]


def test_a_step_without_tasks_can_be_compensated() -> None:
    played = play(
        """
workflow:
- {step: start, spec: {compensate: undo}, args: {n: 1}, next: bad}
- {step: bad, tool: {kind: noop}}
- {step: undo, tool: {kind: noop}}
"""
    )
    played.fail("bad")

    assert played["undo"].args == {"step": "start", "result": {"n": 1}}
    [scheduled] = [event for event in played.events(StepScheduled) if event.compensates]
    assert scheduled.step == "undo"


def test_best_effort_waits_for_the_others_and_undoes_them_too() -> None:
    played = play(
        """
workflow:
- {step: start, next: [a, bad]}
- {step: a, spec: {compensate: undo}, tool: {kind: noop}}
- step: bad
  spec: {policy: {failure: {mode: best_effort}}}
  tool: {kind: noop}
- {step: undo, tool: {kind: noop}}
"""
    )
    played.fail("bad")
    played.done("a", 4)

    assert played["undo"].args["result"] == 4
