"""Event rules in the engine: which answer, what the server decides, what a worker is asked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from noetl.engine import signals
from noetl.engine.pipeline.actions import winner
from noetl.engine.pipeline.rules import ENTER, CaseProgram, StepEvent, called, exiting, outside
from noetl.model.chains import Goal, Progress, Routing
from noetl.model.commands import Ending
from noetl.model.events import (
    BranchSuppressed,
    CaseEvaluated,
    CaseProcessed,
    CtxPatched,
    NextEvaluated,
    StepDone,
    StepFailed,
    StepPatched,
    StepSkipped,
    TaskDone,
    TimerSet,
    TokenCreated,
    decode,
)
from noetl.model.inputs import Signalled
from noetl.model.net import CALL_ENDS, LOOP_ENDS, STEP_ENDS, STEP_STARTS, encode
from noetl.model.outcome import ok
from noetl.templates import Scope
from tests.engine.playing import Play, error, play, program_of

# --- Which rules answer ------------------------------------------------------------------------


def both(*happenings: StepEvent) -> frozenset[str]:
    return frozenset().union(*(one.every for one in happenings))


def test_the_compiler_knows_the_names_of_all_that_happens_to_a_step():
    exits = [exiting(ok=well, looped=looped) for looped in (False, True) for well in (True, False)]

    assert ENTER.every == STEP_STARTS
    assert both(called(ok=True, last=True), called(ok=False, last=True)) == CALL_ENDS
    assert both(*exits[:2]) == STEP_ENDS
    assert both(*exits[2:]) == LOOP_ENDS


def answering(rules: str, happening: StepEvent, spec: str = "{}", **names: Any) -> list[str]:
    """The rules that answer, by name."""
    text = f"""
workflow:
- step: start
  spec: {spec}
  tool: {{kind: noop}}
  case: {rules}
- {{step: end, tool: {{kind: noop}}}}
"""
    case = program_of(text).steps["start"].case
    assert isinstance(case, CaseProgram)
    event = {"step": "start", "data": None, "payload": None, "error": names.get("error")}
    found = case.selected(happening, Scope(names), event, lambda _: False)
    return [rule.rule.label for rule in found]


DONE, FAILED = called(ok=True, last=True), called(ok=False, last=True)
ENDED, BROKEN = exiting(ok=True, looped=False), exiting(ok=False, looped=False)
ON_DONE = "{when: \"{{ event.name == 'call.done' }}\", then: {next: end}}"
ON_ERROR = "{when: \"{{ event.name == 'call.error' }}\", then: {next: end}}"
READS_ERROR = "{when: \"{{ event.name == 'call.done' and error is defined }}\", then: {next: end}}"
ON_COMPLETED = "{when: \"{{ event.name == 'ToolCompleted' }}\", then: {next: end}}"
ON_EXIT = "{when: \"{{ event.name == 'step.exit' }}\", then: {next: end}}"
UNNAMED = '{when: "{{ true }}", then: {next: end}}'
ELSE = "{else: {then: {next: end}}}"


@pytest.mark.parametrize(
    ("rules", "happening", "expected"),
    [
        (f"[{ON_DONE}]", DONE, ["case_0"]),
        (f"[{ON_DONE}]", FAILED, []),
        (f"[{ON_ERROR}]", FAILED, ["case_0"]),
        (f"[{READS_ERROR}]", FAILED, ["case_0"]),
        (f"[{READS_ERROR}]", DONE, []),
        (f"[{ON_EXIT}]", ENDED, ["case_0"]),
        (f"[{ON_EXIT}]", exiting(ok=True, looped=True), []),
        (f"[{ON_EXIT}]", BROKEN, []),
        (f"[{UNNAMED}]", ENTER, []),
        (f"[{UNNAMED}]", DONE, ["case_0"]),
        (f"[{UNNAMED}]", called(ok=True, last=False), []),
        (f"[{UNNAMED}]", FAILED, []),
        (f"[{UNNAMED}]", ENDED, []),
        (f"[{ON_DONE}, {ELSE}]", DONE, ["case_0"]),
        (f"[{ON_DONE}, {ELSE}]", FAILED, ["case_1"]),
        (f"[{ON_DONE}, {ELSE}]", ENDED, []),
        (f"[{ON_COMPLETED}, {ELSE}]", DONE, ["case_0"]),
        (f"[{ON_COMPLETED}, {ELSE}]", FAILED, ["case_1"]),
        (f"[{ON_EXIT}, {ELSE}]", DONE, []),
        (f"[{ON_EXIT}, {ELSE}]", BROKEN, ["case_1"]),
    ],
)
def test_a_rule_answers_the_events_it_names_and_failures_only_if_it_reads_them(
    rules, happening, expected
):
    names = {"error": {"status": 503}} if happening.failed else {}

    assert answering(rules, happening, **names) == expected


def test_the_first_rule_that_holds_answers_and_inclusive_all_of_them():
    rules = f"[{ON_DONE}, {UNNAMED}]"

    assert answering(rules, DONE) == ["case_0"]
    assert answering(rules, DONE, "{case_mode: inclusive}") == ["case_0", "case_1"]


def test_mapping_form_rules_of_different_events_do_not_exclude_each_other():
    loop = "{when: \"{{ event.name == 'loop.done' }}\", then: {next: end}}"
    both = "{when: \"{{ event.name in ['loop.done', 'step.exit'] }}\", then: {next: end}}"

    assert answering(f"[{loop}, {ON_EXIT}]", exiting(ok=True, looped=True)) == ["case_0"]
    assert answering(f"[{loop}, {both}]", exiting(ok=True, looped=False)) == ["case_1"]
    assert answering(f"[{READS_ERROR}, {ON_ERROR}]", FAILED, error={}) == ["case_0"]


@pytest.mark.parametrize("reading_first", [True, False])
@pytest.mark.parametrize(
    ("happening", "one", "other"),
    [
        (BROKEN, "StepFailed", "step.exit"),
        (BROKEN, "step.failed", "StepFinished"),
        (FAILED, "ToolErrored", "task.done"),
        (exiting(ok=False, looped=True), "loop.failed", "loop.done"),
        (ENTER, "StepStarted", "step.enter"),
    ],
)
def test_rules_that_name_one_event_differently_exclude_each_other(
    happening: StepEvent, one: str, other: str, reading_first: bool
):
    reads = " and error is defined" if happening.failed else ""
    rules = [
        f"{{when: \"{{{{ event.name == '{name}'{more} }}}}\", then: {{next: end}}}}"
        for name, more in ((one, ""), (other, reads))
    ]
    if reading_first:
        rules.reverse()

    names = {"error": {}} if happening.failed else {}
    assert answering(f"[{', '.join(rules)}]", happening, **names) == ["case_0"]


def test_a_step_that_waits_hears_the_world_and_one_that_does_not_does_not():
    rules = "[{when: \"{{ event.name == 'message.received' }}\", then: {next: end}}]"

    waiting = "{eval_mode: on_event}"
    assert answering(rules, outside("message.received"), waiting) == ["case_0"]
    assert answering(rules, outside("order.shipped"), waiting) == []


# --- What the server decides -------------------------------------------------------------------


def one_step(case: str, more: str = "") -> str:
    return f"""
workflow:
- step: start
  tool: {{kind: noop}}
  {more}
  case: {case}
  next: plain
- {{step: plain, tool: {{kind: noop}}}}
- {{step: chosen, tool: {{kind: noop}}}}
"""


def rule(event: str, then: str) -> str:
    return f"[{{when: \"{{{{ event.name == '{event}' }}}}\", then: {then}}}]"


def tokens(played: Play) -> list[str]:
    return [event.step for event in played.events(TokenCreated)][1:]


def test_rules_for_the_beginning_write_before_the_body_runs():
    played = play(one_step(rule("step.enter", "{set: {ctx.a: 1, own: 2}}")))

    assert played.state.ctx == {"a": 1}
    assert played["start"].local == {"own": 2}
    assert [type(event) for event in played.history[-4:-1]] == [
        CaseEvaluated,
        CtxPatched,
        StepPatched,
    ]


def test_a_next_at_the_beginning_passes_the_body_by():
    played = play(one_step(rule("step.enter", "{next: [{step: chosen, args: {a: 1}}]}")))

    assert played.steps == ["chosen"]
    assert played["chosen"].args == {"a": 1}
    [decided] = played.events(NextEvaluated)
    assert decided.selected == (
        Goal(step="chosen", args={"a": 1}, label=decided.selected[0].label),
    )
    assert (decided.policy, decided.winner_branch) == ("end_step", "case_0")


def test_a_next_at_the_end_takes_the_place_of_the_arcs():
    played = play(
        one_step(rule("step.exit", '{next: [{step: chosen, args: {a: "{{ result }}"}}]}'))
    )
    played.done("start", 7)

    assert played.steps == ["chosen"]
    assert played["chosen"].args == {"a": 7}


def test_without_a_rule_that_answers_the_arcs_are_taken():
    played = play(one_step(rule("step.exit", "{set: {ctx.a: 1}}")))
    played.done("start", 7)

    assert tokens(played) == ["plain"]
    assert played.state.ctx == {"a": 1}


def test_a_failed_step_whose_rule_sends_tokens_is_handled():
    case = "[{when: \"{{ event.name == 'step.exit' and error }}\", then: {next: chosen}}]"
    played = play(one_step(case))
    played.fail("start")
    played.done("chosen")

    assert played.status == "COMPLETED"
    assert played.state.steps["start"].status == "failed"


def test_skip_ends_the_run_and_takes_no_arc():
    played = play(one_step(rule("step.enter", "{skip: true}")))

    assert played.status == "COMPLETED"
    assert [event.step for event in played.events(StepSkipped)] == ["start"]
    assert tokens(played) == []


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("true", "a rule skipped it"),
        ('""', "a rule skipped it"),
        ("out of season", "out of season"),
        ('"{{ event.name }} came"', "step.enter came"),
        ("{reason: out of season}", "out of season"),
        ("{}", "a rule skipped it"),
    ],
)
def test_the_reason_of_a_skip_is_recorded(written, reason):
    played = play(one_step(rule("step.enter", f"{{skip: {written}}}")))

    assert [event.reason for event in played.events(StepSkipped)] == [reason]


@pytest.mark.parametrize(
    ("written", "message", "code"),
    [
        ("no stock", "no stock", "failed_by_rule"),
        ("{message: no stock}", "no stock", "failed_by_rule"),
        ("{message: no stock, code: E7}", "no stock", "E7"),
        ('{message: "no {{ event.name }}", code: 7}', "no step.enter", 7),
        ("{error: no stock, code: E7}", "no stock", "E7"),
        ("{error: {message: no stock, code: E7}}", "no stock", "E7"),
        ("{message: no stock, code: true}", "no stock", "True"),
        ("{message: no stock, shelf: 3}", "no stock", "failed_by_rule"),
    ],
)
def test_the_message_and_the_code_of_a_fail_are_recorded(written, message, code):
    played = play(one_step(rule("step.enter", f"{{fail: {written}}}")))

    [failed] = played.events(StepFailed)
    assert (failed.error.message, failed.error.code) == (message, code)
    assert decode(msgspec.json.encode(failed)) == failed


def test_nets_without_reasons_and_codes_have_the_bytes_of_before():
    skips = encode(program_of(one_step(rule("step.enter", "{skip: true}"))).net)
    fails = encode(program_of(one_step(rule("step.enter", "{fail: {message: no stock}}"))).net)

    assert b'"actions":[{"do":"skip"}]' in skips
    assert b'"actions":[{"do":"fail","error":"no stock"}]' in fails


def test_a_worker_that_decided_on_a_step_that_is_none_fails_the_step():
    played = play(one_step(rule("call.done", "{next: chosen}")))
    played.report("start", ending=Ending(next=Routing(branch="case_0", goals=(Goal(step="x"),))))

    assert played.status == "FAILED"
    assert 'sends its token to "x"' in str(played.state.failure)


def test_the_first_next_stands_and_a_later_one_is_suppressed():
    played = play(one_step(rule("step.exit", "{next: plain}")))
    chosen = Routing(branch="case_9", goals=(Goal(step="chosen"),))
    played.report("start", ending=Ending(result=1, next=chosen))

    assert played.steps == ["chosen"]
    assert [(event.branch, event.winner) for event in played.events(BranchSuppressed)] == [
        ("case_0", "case_9")
    ]


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        ((("break_chain", 0), ("break_chain", 9)), 0),
        ((("defer", 0), ("defer", 9)), 1),
        ((("defer", 9), ("defer", 9)), 0),
        ((("defer", 0), ("break_chain", 9)), 1),
        ((("break_chain", 0), ("defer", 9)), 0),
    ],
)
def test_the_first_next_reached_wins_and_of_deferred_ones_the_highest_priority(reached, expected):
    """001 §2.2 and §2.3."""
    routes = tuple(
        Routing(branch=f"case_{index}", policy=policy, priority=priority)
        for index, (policy, priority) in enumerate(reached)
    )

    assert winner(routes) is routes[expected]


def test_a_delayed_next_of_the_server_holds_its_token_back():
    then = "{next: {to: [{step: chosen}], spec: {delay: 5s}}}"
    played = play(one_step(rule("step.exit", then)))
    played.done("start")

    assert played.steps == []
    [decided] = played.events(NextEvaluated)
    assert decided.delay == 5.0
    played.fire()
    assert played.steps == ["chosen"]


@pytest.mark.parametrize(
    ("step", "chain", "task", "expected"),
    [(2, 3, 5, 5), (2, 3, None, 3), (2, None, None, 2), (2, None, 5, 5), (None, 3, None, 3)],
)
def test_a_tasks_own_retry_goes_before_its_rules_and_that_before_its_steps(
    step, chain, task, expected
):
    """001 §4.2."""

    def retry(attempts: int | None) -> str:
        return f"retry: {{max_attempts: {attempts}}}," if attempts else ""

    case = f"""[{{when: "{{{{ event.name == 'call.done' }}}}", {retry(chain)}
      then: [{{ask: {{{retry(task)} tool: {{kind: noop}}}}}}]}}]"""
    written = one_step(case, retry(step).rstrip(","))
    [action] = program_of(written).steps["start"].step.rules[0].actions

    [policy] = action.task.retries
    assert policy.actions[-1].attempts == expected


# --- What a worker is asked --------------------------------------------------------------------

TASK = "[{note: {tool: {kind: noop}}}, {next: chosen}]"


@pytest.mark.parametrize(("event", "before"), [("step.enter", False), ("step.exit", True)])
def test_rules_that_take_a_tool_are_handed_to_a_worker(event, before):
    played = play(one_step(rule(event, TASK)))
    if before:
        played.done("start", 7)
    command = played["start"]

    assert command.progress is not None
    assert command.progress.chain is not None
    assert command.progress.chain.rules == ("case_0",)
    played.report(command, ending=Ending())
    assert len(played.events(CaseProcessed)) == 1
    assert played.steps == (["plain"] if before else ["start"])


def test_what_the_rules_said_comes_back_with_the_report():
    played = play(one_step(rule("step.exit", TASK)))
    played.done("start", 7)
    routing = Routing(branch="case_0", goals=(Goal(step="chosen", args={"a": 1}),), delay=60.0)
    played.report("start", ending=Ending(next=routing))

    assert played.state.results["start"].value == 7
    assert [timer.purpose for timer in played.events(TimerSet)] == ["token"]
    played.fire()
    assert played.steps == ["chosen"]


def test_a_lost_worker_loses_nothing_of_a_chain():
    played = play(one_step(rule("step.exit", TASK)))
    played.done("start", 7)
    command = played["start"]
    assert command.progress is not None
    assert command.progress.chain is not None
    further = msgspec.structs.replace(command.progress.chain, action=1)
    done = TaskDone(
        at=played.at,
        step_run_id=command.step_run_id,
        step="start",
        task="note",
        outcome=ok(1),
        progress=Progress(chain=further),
    )
    played.report(command, done)
    played.lapse(command)

    assert played["start"].progress == Progress(chain=further)


def test_the_end_of_a_loop_is_heard_once_and_its_chain_is_no_chunk():
    text = one_step(rule("loop.done", TASK), "loop: {in: [1, 2], iterator: x}")
    played = play(text)
    played.iterate("start")

    assert played["start"].chunk is None
    played.suspend("start", until=played.at + 60, progress=played["start"].progress)
    played.fire()
    assert played["start"].chunk is None
    played.report("start", ending=Ending())
    assert played.steps == ["plain"]
    assert played.state.results["start"].value["results"] == [1, 2]


def test_a_next_in_an_iteration_ends_the_loop():
    text = one_step(
        rule("call.done", "{next: chosen}"),
        "loop: {in: {from: 0, to: 100}, iterator: x, spec: {mode: parallel}}",
    )
    played = play(text)
    command = played["start"]
    routing = Routing(branch="case_0", goals=(Goal(step="chosen"),))
    ended = msgspec.structs.replace(played.iteration(command, 0, "first"), next=routing)
    played.report(command, ended)

    assert played.steps == ["chosen"]
    assert played.state.results["start"].value["results"][:2] == ["first", None]


def test_a_paused_execution_hands_out_a_chain_when_it_is_resumed():
    played = play(one_step(rule("step.exit", TASK)))
    played.pause()
    played.done("start", 7)
    assert played.steps == []

    played.resume()
    assert played.steps == ["start"]


def test_the_rules_of_a_step_do_not_answer_a_workbook_entry_that_undoes_it():
    text = """
workbook:
  refund: {kind: noop}
workflow:
- step: start
  tool: {kind: noop}
  spec: {compensate: refund, eval_mode: on_event, policy: {emit: {events: [paid]}}}
  set: {ctx.paid: "{{ result }}"}
  case:
  - {when: "{{ event.name == 'step.enter' and ctx.paid is defined }}", then: {skip: true}}
  - {when: "{{ event.name == 'order.paid' }}", then: {next: breaks}}
- {step: breaks, tool: {kind: noop}}
"""
    played = play(text)
    played.done("start", 7)
    played.happen(Signalled, signal=signals.received(played.at, "s1", "order.paid", None, None))
    played.report("breaks", ending=Ending(error=error()))
    played.done("start", "given back")

    assert played.status == "FAILED"
    paid, undone = [one for one in played.events(StepDone) if one.step == "start"]
    assert (paid.emitted, undone.emitted) == (("paid",), ())
    assert played.state.ctx == {"paid": 7}
