"""Steps that wait for the world: what they hear, in which order, and what ends them."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.engine.evolve import HEARD_MAX, KEPT_MAX
from noetl.engine.signals import DATA_BYTES_MAX, received
from noetl.errors import Finished, SignalRefused
from noetl.model.commands import Ending
from noetl.model.events import (
    MessageReceived,
    SignalConsidered,
    StepDone,
    StepFailed,
    StepWaiting,
    TimerSet,
)
from noetl.model.inputs import Signalled
from tests.engine.playing import Play, play, snapshot

APPROVAL = """
workload: {patience: 2h}
workflow:
  - step: start
    spec:
      eval_mode: on_event
      timers: [{id: late, after: "{{ workload.patience }}"}]
      form:
        - {name: approved, type: boolean, label: "Pay within {{ workload.patience }}?"}
        - {name: comment, required: false}
    case:
      - when: "{{ event.name == 'approval.received' and event.data.approved }}"
        then: {next: pay}
      - when: "{{ event.name == 'approval.received' }}"
        then: {next: refuse}
      - when: "{{ event.name == 'timer.fired' and event.data.timer_id == 'late' }}"
        then: {next: remind}
  - {step: pay, tool: {kind: noop}}
  - {step: refuse, tool: {kind: noop}}
  - {step: remind, tool: {kind: noop}}
"""
MESSAGES = """
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case:
      - when: "{{ event.name == 'vote' }}"
        then: {set: {ctx.votes: "{{ (ctx.votes | default([])) + [event.data.by] }}"}}
      - when: "{{ event.name == 'closed' }}"
        then: {result: {value: "{{ ctx.votes | default([]) }}"}}
    next: end
  - {step: end, tool: {kind: noop}}
"""
FORK = """
workflow:
  - step: start
    next: [left, right]
  - step: left
    spec: {eval_mode: on_event, match: "{{ event.data.side != 'right' }}"}
    case: [{when: "{{ event.name == 'go' }}", then: {next: left_end}}]
  - step: right
    spec: {eval_mode: on_event, match: "{{ event.data.side != 'left' }}"}
    case: [{when: "{{ event.name == 'go' }}", then: {next: right_end}}]
  - {step: left_end, tool: {kind: noop}}
  - {step: right_end, tool: {kind: noop}}
"""
TWO_WAITS = """
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'first' }}", then: {next: second}}]
  - step: second
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'second' }}", then: {next: end}}]
  - {step: end, tool: {kind: noop}}
"""
AFTER_WORK = """
workflow:
  - step: start
    tool: {kind: noop}
    next: ask
  - step: ask
    spec: {eval_mode: on_event}
    tool: {kind: noop}
    case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
  - {step: end, tool: {kind: noop}}
"""
FORM_ALONE = """
workflow:
  - step: ask
    spec: {form: [{name: approved, type: boolean}]}
    next: {arcs: [{step: pay, when: "{{ ask.approved }}"}, {step: refuse}]}
  - {step: pay, tool: {kind: noop}}
  - {step: refuse, tool: {kind: noop}}
"""
WORKS = """
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case:
      - when: "{{ event.name == 'item' }}"
        then:
          - keep: {tool: {kind: noop}, args: {item: "{{ event.data }}"}}
      - when: "{{ event.name == 'stop' }}"
        then: [{next: end}]
  - {step: end, tool: {kind: noop}}
"""


def say(
    played: Play, name: str, data: Any = None, *, step: str | None = None, as_: str = ""
) -> MessageReceived:
    """The world says something, under an id of its own unless it is given one."""
    signal = received(played.at, as_ or f"s{len(played.history)}", name, data, step)
    played.happen(Signalled, signal=signal)
    return signal


def waits_at(played: Play) -> list[str]:
    return [run.step for run in played.state.runs.values() if run.listens is not None]


def taken(played: Play) -> list[tuple[str, bool]]:
    return [(fact.step, fact.taken) for fact in played.events(SignalConsidered)]


# --- Waiting -----------------------------------------------------------------------------------


def test_a_waiting_step_holds_no_worker_and_knows_what_it_waits_for():
    played = play(APPROVAL)

    assert played.open == {}
    [waiting] = played.events(StepWaiting)
    assert waiting.listens.events == ("approval.received",)
    assert waiting.listens.form[0].label == "Pay within 2h?"
    assert played.status == "RUNNING"


def test_a_step_with_a_tool_works_first_and_then_waits():
    played = play(AFTER_WORK)
    played.done("start")

    say(played, "go")
    assert played.steps == ["ask"], "it was heard before the step was through with its tool"
    played.done("ask", {"sent": True})

    assert played.steps == ["end"]
    [_, ask] = played.events(StepDone)
    assert (ask.step, ask.result) == ("ask", {"sent": True})


def test_a_tool_that_fails_fails_its_step_and_nothing_is_waited_for():
    played = play(AFTER_WORK)
    played.done("start")
    played.fail("ask")

    assert played.status == "FAILED"
    assert played.events(StepWaiting) == []


# --- Answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "then"), [(True, "pay"), ("yes", "pay"), (False, "refuse"), ("no", "refuse")]
)
def test_an_answer_ends_the_wait_and_is_what_the_step_yields(answer, then):
    played = play(APPROVAL)

    say(played, "approval.received", {"approved": answer})

    assert played.steps == [then]
    [done] = played.events(StepDone)
    assert done.result == {"approved": then == "pay", "comment": None}
    assert played.state.timers == {}, "the timer went with the step"
    assert played.state.signals == {}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"approved": "perhaps"}, "field \"approved\" takes true or false, not 'perhaps'"),
        ({"comment": "fine"}, 'field "approved" is missing; it takes true or false'),
        ({"approvd": True}, 'there is no field "approvd". Did you mean "approved"?'),
        (None, 'field "approved" is missing'),
        ([1], "an answer is a mapping of fields to values"),
    ],
)
def test_a_bad_answer_is_refused_by_its_field_and_nothing_is_lost(answer, says):
    played = play(APPROVAL)
    before = snapshot(played.state)

    with pytest.raises(SignalRefused, match=says.replace("[", r"\[")):
        say(played, "approval.received", answer)

    assert snapshot(played.state) == before
    say(played, "approval.received", {"approved": True})
    assert played.steps == ["pay"]


@pytest.mark.parametrize(("answer", "then"), [("yes", "pay"), ("no", "refuse")])
def test_a_form_makes_its_step_wait_and_its_answer_is_what_the_step_yields(answer, then):
    played = play(FORM_ALONE)
    assert waits_at(played) == ["ask"]

    say(played, "order.shipped", {"approved": True})
    assert waits_at(played) == ["ask"]
    say(played, "approval.received", {"approved": answer})

    [done] = played.events(StepDone)
    assert (done.step, done.result) == ("ask", {"approved": answer == "yes"})
    assert [command.step for command in played.open.values()] == [then]


def test_an_answer_that_came_too_early_is_held_against_the_form_when_the_step_waits():
    early = APPROVAL.replace(
        "- step: start\n", "- {step: start, tool: {kind: noop}, next: ask}\n  - step: ask\n"
    )
    played = play(early)
    say(played, "approval.received", {"approved": "perhaps"})
    say(played, "approval.received", {"approved": "yes"})
    played.done("start")

    assert played.steps == ["pay"]
    first, second = played.events(SignalConsidered)
    assert (first.taken, second.taken) == (False, True)
    assert 'field "approved" takes true or false' in first.reason


def test_with_two_forms_open_an_answer_must_name_its_step():
    two = """
workflow:
  - {step: start, next: [left, right]}
  - step: left
    spec: &ask {eval_mode: on_event, form: [{name: ok, type: boolean}]}
    case: [{when: "{{ event.name == 'approval.received' }}", then: {next: end}}]
  - step: right
    spec: *ask
    case: [{when: "{{ event.name == 'approval.received' }}", then: {next: end}}]
  - {step: end, tool: {kind: noop}}
"""
    played = play(two)

    with pytest.raises(SignalRefused, match="several steps wait for an answer: left, right"):
        say(played, "approval.received", {"ok": True})
    say(played, "approval.received", {"ok": True}, step="right")

    assert waits_at(played) == ["left"]


# --- Timers and limits -------------------------------------------------------------------------


def test_a_timer_is_counted_from_the_beginning_of_the_step():
    timed = AFTER_WORK.replace(
        "{eval_mode: on_event}", "{eval_mode: on_event, timers: [{id: t, after: 10}]}"
    )
    played = play(timed)
    played.done("start")
    begun = played.at
    played.at += 7
    played.done("ask")

    [timer] = played.events(TimerSet)
    assert (timer.name, timer.fires_at, timer.purpose) == ("t", begun + 10, "listener")


def test_the_timer_fires_and_what_comes_after_it_changes_nothing():
    played = play(APPROVAL)
    played.fire()

    assert played.steps == ["remind"]
    say(played, "approval.received", {"approved": True})
    assert played.steps == ["remind"]
    played.done("remind")
    assert played.status == "COMPLETED"
    with pytest.raises(Finished):
        say(played, "approval.received", {"approved": True})


def test_a_timer_at_a_moment_may_be_computed_and_must_be_a_moment():
    text = """
workload: {when: "1970-01-01T01:00:00Z"}
workflow:
  - step: start
    spec: {eval_mode: on_event, timers: [{id: t, at: "{{ workload.when }}"}]}
    case: [{when: "{{ event.name == 'timer.fired' }}", then: {next: end}}]
  - {step: end, tool: {kind: noop}}
"""
    played = play(text)
    [timer] = played.events(TimerSet)
    assert timer.fires_at == 3600
    played.fire()
    assert played.steps == ["end"]

    failed = play(text, when="tomorrow")
    [failure] = failed.events(StepFailed)
    assert "is to fire at 'tomorrow', which is not a moment" in failure.error.message


def test_a_step_that_waits_too_long_times_out():
    played = play(APPROVAL.replace("eval_mode", "timeout: 5m\n      eval_mode"))
    played.fire()

    assert played.status == "FAILED"
    assert "took longer than its timeout" in played.state.failure.message
    assert played.state.timers == {}


# --- Messages ----------------------------------------------------------------------------------


def test_a_rule_that_only_writes_leaves_the_step_waiting():
    played = play(MESSAGES)
    for who in ("ann", "bob"):
        say(played, "vote", {"by": who})

    assert waits_at(played) == ["start"]
    assert played.state.ctx == {"votes": ["ann", "bob"]}
    say(played, "closed")
    assert played.steps == ["end"]
    assert played.events(StepDone)[0].result == ["ann", "bob"]


def test_the_same_id_again_changes_nothing_even_after_it_was_taken():
    played = play(MESSAGES)
    signal = say(played, "vote", {"by": "ann"}, as_="once")
    before = snapshot(played.state)

    decision = played.happen(Signalled, signal=signal)

    assert decision.events == ()
    assert snapshot(played.state) == before


def test_ids_are_remembered_for_a_while_and_not_for_ever():
    played = Play(MESSAGES, checked=False).start()
    for number in range(HEARD_MAX + 1):
        say(played, "vote", {"by": "x"}, as_=f"v{number}")

    assert len(played.state.heard) == HEARD_MAX
    assert "v0" not in played.state.heard


def test_what_comes_before_the_wait_is_heard_when_it_begins_in_order():
    played = play(AFTER_WORK.replace("tool: {kind: noop}\n    case", "case"))
    say(played, "go", {"n": 1})
    say(played, "go", {"n": 2})
    played.done("start")

    assert played.steps == ["end"]
    assert played.events(StepDone)[1].result == {"n": 1}
    assert [signal.data for signal in played.state.signals.values()] == [{"n": 2}], "kept"


def test_what_one_wait_does_not_want_is_kept_for_the_next():
    played = play(TWO_WAITS)
    say(played, "second")
    assert waits_at(played) == ["start"]

    say(played, "first")

    assert played.steps == ["end"]
    assert taken(played) == [("start", False), ("start", True), ("second", True)]


def test_a_signal_goes_to_every_step_that_waits_and_whose_match_holds():
    both, left, named = play(FORK), play(FORK), play(FORK)

    say(both, "go")
    say(left, "go", {"side": "left"})
    say(named, "go", step="right")

    assert both.steps == ["left_end", "right_end"]
    assert waits_at(left) == ["right"]
    assert left.events(SignalConsidered)[1].reason == "`match` does not hold"
    assert waits_at(named) == ["left"]


def test_a_message_that_a_condition_cannot_read_fails_nobody():
    played = play(
        MESSAGES.replace("event.name == 'vote'", "event.name == 'vote' and event.data.by > 3")
    )
    say(played, "vote", {"by": {"not": "a number"}})

    assert waits_at(played) == ["start"]
    [considered] = played.events(SignalConsidered)
    assert considered.reason
    say(played, "closed")
    assert played.steps == ["end"]


def test_rules_that_need_a_tool_get_a_worker_and_signals_wait_for_their_turn():
    played = play(WORKS)
    say(played, "item", 1)
    say(played, "item", 2)
    say(played, "stop")

    assert played.steps == ["start"], "one at a time"
    played.report("start", ending=Ending())
    assert played.steps == ["start"]
    assert waits_at(played) == ["start"]
    played.report("start", ending=Ending())

    assert played.steps == ["end"]
    assert [fact.taken for fact in played.events(SignalConsidered)] == [True, True, True]


# --- Limits and manners ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["step.done", "timer.fired", "call.done", "StepStarted", "", "a b"]
)
def test_strangers_cannot_speak_for_the_system(name):
    played = play(MESSAGES)

    with pytest.raises(SignalRefused):
        say(played, name)


def test_a_step_that_does_not_exist_is_pointed_out():
    with pytest.raises(SignalRefused, match=r'no step "strat"\. Did you mean "start"'):
        say(play(MESSAGES), "vote", step="strat")


def test_data_has_a_limit():
    with pytest.raises(SignalRefused, match="send its address"):
        say(play(MESSAGES), "vote", "x" * DATA_BYTES_MAX)


def test_so_many_are_kept_and_the_next_is_refused_until_somebody_waits():
    played = Play(AFTER_WORK, checked=False).start()
    for number in range(KEPT_MAX):
        say(played, "noise", number)

    with pytest.raises(SignalRefused, match=f"keeps {KEPT_MAX} events"):
        say(played, "noise")
    played.done("start")
    played.done("ask")
    say(played, "noise")
    assert len(played.state.signals) == KEPT_MAX, "offered, not wanted, and not kept"
    say(played, "go")
    assert played.steps == ["end"]


# --- Pause, cancel, resume ---------------------------------------------------------------------


def test_while_paused_signals_and_timers_come_in_and_nothing_follows():
    played = play(APPROVAL)
    played.pause()
    played.fire()
    say(played, "approval.received", {"approved": True})
    assert waits_at(played) == ["start"]

    played.resume()

    assert played.steps == ["remind"], "the timer was first"


def test_a_pause_while_waiting_hands_out_nothing_when_it_is_lifted():
    played = play(WORKS)
    say(played, "item", 1)
    played.report("start", ending=Ending())
    played.pause()
    played.resume()

    assert played.open == {}
    assert waits_at(played) == ["start"]


def test_cancelling_ends_the_wait_and_its_timers():
    played = play(APPROVAL)
    played.cancel()

    assert played.status == "CANCELLED"
    assert played.state.timers == {}
    assert played.state.signals == {}
