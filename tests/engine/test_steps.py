"""Steps: admission, time limits, failures and their handling, what a step keeps."""

from __future__ import annotations

import pytest

from noetl.engine.advance import DELIVERIES_MAX
from noetl.model.events import (
    CommandLost,
    Progress,
    StepCancelled,
    StepFailed,
    StepSkipped,
    StepStarted,
    TaskDone,
    WorkflowFailing,
    WorkflowFinished,
)
from noetl.model.outcome import ok
from tests.engine.playing import Play, play

ADMIT = """
workload: {n: %s}
workflow:
- step: start
  next: [{step: a, args: {m: 2}}]
- step: a
  spec: {policy: {admit: {rules: [%s]}}}
  tool: {kind: noop}
  next: last
- {step: last, tool: {kind: noop}}
"""
ALLOW_ONE = '{when: "{{ workload.n == 1 }}", then: {allow: true}}'
DENY_TWO = '{when: "{{ workload.n == args.m }}", then: {allow: false}}'


@pytest.mark.parametrize(
    ("rules", "n", "admitted"),
    [
        (ALLOW_ONE, 1, True),
        (ALLOW_ONE, 5, False),
        (DENY_TWO, 2, False),
        (DENY_TWO, 5, False),
        (f"{DENY_TWO}, {{else: {{allow: true}}}}", 5, True),
        (f"{ALLOW_ONE}, {{when: true, then: {{allow: false}}}}", 1, True),
        ("{when: \"{{ event.name == 'step.done' }}\", then: {allow: true}}", 1, True),
        ("{when: \"{{ event.name == 'step.exit' }}\", then: {allow: true}}", 1, True),
        ("{when: \"{{ event.step == 'start' }}\", then: {allow: true}}", 1, True),
        ("{when: \"{{ event.data.m is undefined }}\", then: {allow: true}}", 1, True),
    ],
)
def test_the_first_admission_rule_that_holds_decides_and_none_denies(
    rules: str, n: int, admitted: bool
) -> None:
    played = play(ADMIT % (n, rules))

    assert played.steps == (["a"] if admitted else [])
    assert len(played.events(StepSkipped)) == (0 if admitted else 1)


def test_a_denied_tokens_arcs_are_not_taken_and_the_execution_can_complete() -> None:
    played = play(ADMIT % (5, ALLOW_ONE))

    assert played.status == "COMPLETED"
    assert played.state.steps["a"].status == "skipped"
    assert "last" not in played.state.steps


def test_a_skipped_run_and_the_next_run_of_the_step_have_different_ids() -> None:
    played = play(
        """
workflow:
- {step: start, next: a}
- step: a
  spec: {policy: {admit: {rules: [{when: "{{ ctx.n }}", then: {allow: true}}]}}}
  tool: {kind: noop}
- {step: b, tool: {kind: noop}, set: {ctx.n: 1}, next: a}
""".replace("next: a}\n- step: a", "next: [a, b]}\n- step: a").replace(
            "spec: {policy:", "spec: {join: each, policy:"
        )
    )
    played.done("b")

    assert played.events(StepSkipped)[0].step_run_id != played["a"].step_run_id


def test_admission_that_cannot_be_evaluated_fails_the_step() -> None:
    played = play(ADMIT % (1, '{when: "{{ workload.n / 0 }}", then: {allow: true}}'))

    assert played.status == "FAILED"
    assert played.events(StepFailed)[0].step == "a"


def test_args_of_a_step_that_cannot_be_evaluated_fail_the_step() -> None:
    played = play(
        """
workload: {}
workflow:
- step: start
  args: {x: "{{ workload.missing }}"}
  tool: {kind: noop}
  next: {arcs: [{step: last, when: "{{ error.kind == 'schema' }}"}]}
- {step: last, tool: {kind: noop}}
"""
    )

    assert played.steps == ["last"]


LIMITED = """
workload: {{t: 20}}
workflow:
- {{step: start, tool: {{kind: noop}}, next: a}}
- step: a
  spec: {limit}
  tool: {{kind: noop}}
  next: {{arcs: [{{step: last, when: "{{{{ error.kind == 'timeout' }}}}"}}]}}
- {{step: last, tool: {{kind: noop}}}}
"""


@pytest.mark.parametrize(
    ("limit", "after"),
    [
        ("{policy: {lifecycle: {timeout_s: 20}}}", 20),
        ("{timeout: 20}", 20),
        ("{timeout: 20s}", 20),
        ('{timeout: "{{ workload.t }}"}', 20),
        ('{timeout: "{{ workload.t }}s"}', 20),
        ("{policy: {lifecycle: {deadline_s: 20}}}", 13),
        ('{policy: {lifecycle: {deadline_s: "{{ workload.t }}"}}}', 13),
    ],
)
def test_a_step_that_takes_too_long_is_stopped_and_fails(limit: str, after: float) -> None:
    played = play(LIMITED.format(limit=limit))
    played.at += 7
    played.done("start")
    running = played["a"]

    assert played.next_timer().fires_at == played.at + after
    played.fire()

    assert played.closed == [running.command_id]
    assert played.steps == ["last"]


def test_a_step_that_ends_in_time_leaves_no_timer() -> None:
    played = play(LIMITED.format(limit="{timeout: 20}"))
    played.done("start")
    played.done("a")

    assert played.status == "COMPLETED"
    assert played.state.timers == {}


def test_a_timeout_that_is_no_duration_fails_the_step() -> None:
    played = play(LIMITED.format(limit='{timeout: "{{ workload }}"}'))
    played.done("start")

    assert played.status == "FAILED"
    assert played.state.failure is not None
    assert "timeout" in played.state.failure.message


def test_a_passed_deadline_stops_a_step_that_only_now_begins() -> None:
    played = play(LIMITED.format(limit="{policy: {lifecycle: {deadline_s: 20}}}"))
    played.at += 50
    played.done("start")

    assert played.next_timer().fires_at < played.at
    played.fire()
    assert played.steps == ["last"]


BRANCHES = """
workflow:
- {{step: start, next: [a, b, slow]}}
- {{step: a, spec: {spec}, tool: {{kind: noop}}, next: after_a}}
- {{step: b, tool: {{kind: noop}}, next: after_b}}
- step: slow
  tool: {{kind: noop}}
  next: {{arcs: [{{step: late, spec: {{delay: 60}}}}]}}
- {{step: late, tool: {{kind: noop}}}}
- {{step: after_a, tool: {{kind: noop}}}}
- {{step: after_b, tool: {{kind: noop}}}}
"""


def test_fail_fast_cancels_the_other_runs_and_tokens() -> None:
    played = play(BRANCHES.format(spec="{}"))
    played.done("slow")
    other = played["b"].command_id
    played.fail("a", "no luck")

    assert played.status == "FAILED"
    assert played.closed == [other]
    assert [event.step for event in played.events(StepCancelled)] == ["b"]
    assert played.state.timers == {}
    assert played.state.failure is not None
    assert played.state.failure.message == "no luck"


def test_best_effort_lets_the_others_finish_but_starts_nothing_new() -> None:
    played = play(BRANCHES.format(spec="{policy: {failure: {mode: best_effort}}}"))
    played.done("slow")
    played.fail("a")

    assert played.status == "RUNNING"
    assert played.steps == ["b"]
    assert played.state.timers == {}, "the delayed token is gone"
    played.done("b")

    assert played.status == "FAILED"
    assert "after_b" not in played.ran()


def test_on_error_ignore_takes_the_arcs_as_after_a_success() -> None:
    played = play(BRANCHES.format(spec="{on_error: ignore}"))

    played.fail("a")

    assert played.steps == ["b", "slow", "after_a"]
    assert played.state.steps["a"].status == "failed"


FAILURE_ARCS = """
workflow:
- step: start
  tool: {kind: noop}
  next:
    spec: {mode: inclusive}
    arcs:
    - {step: plain}
    - {step: guarded, when: "{{ true }}"}
    - {step: by_error, when: "{{ error.kind == 'timeout' }}"}
    - {step: by_event, when: "{{ event.name == 'call.error' and event.error.code == 7 }}"}
- {step: plain, tool: {kind: noop}}
- {step: guarded, tool: {kind: noop}}
- {step: by_error, tool: {kind: noop}}
- {step: by_event, tool: {kind: noop}}
"""


def test_a_failed_step_takes_only_arcs_whose_guard_reads_the_failure() -> None:
    played = play(FAILURE_ARCS)

    played.fail("start", kind="timeout", code=7)

    assert played.steps == ["by_error", "by_event"]
    played.done("by_error")
    played.done("by_event")
    assert played.status == "COMPLETED"
    assert played.events(WorkflowFailing) == []


def test_a_failure_that_no_arc_handles_fails_the_execution() -> None:
    played = play(FAILURE_ARCS)

    played.fail("start", kind="auth")

    assert played.status == "FAILED"
    assert played.state.failed_step == "start"


def test_a_success_does_not_take_arcs_that_read_an_error() -> None:
    played = play(FAILURE_ARCS)

    played.done("start")

    assert played.steps == ["plain", "guarded"]


@pytest.mark.parametrize("body", ["tool: {kind: noop}", "args: {v: 3}\n  next: last"])
def test_a_step_keeps_vars_and_ctx_of_its_result_also_without_a_tool(body: str) -> None:
    played = play(
        f"""
workflow:
- step: start
  {body}
  vars: {{first: "{{{{ result.v }}}}"}}
  set: {{ctx.second.deep: "{{{{ result.v + 1 }}}}"}}
- {{step: last, tool: {{kind: noop}}}}
"""
    )
    if "start" in played.steps:
        played.done("start", {"v": 3})

    assert played.state.vars == {"first": 3}
    assert played.state.ctx == {"second": {"deep": 4}}


def test_what_a_step_keeps_and_cannot_evaluate_fails_the_step() -> None:
    played = play(
        """
workflow:
- {step: start, tool: {kind: noop}, set: {ctx.x: "{{ result.nothing.there }}"}}
"""
    )
    played.done("start", {})

    assert played.status == "FAILED"
    assert played.state.ctx == {}


def test_a_command_carries_what_the_body_reads_as_it_was_when_it_was_issued() -> None:
    played = play(
        """
workload: {a: 1, b: 2}
workflow:
- {step: start, tool: {kind: noop}, set: {ctx.x: 1, ctx.y: 1}, next: [reads, other]}
- step: reads
  tool: {kind: shell, cmd: "echo {{ workload.a }} {{ ctx.x }} {{ start.v }}"}
- {step: other, tool: {kind: noop}, set: {ctx.x: 2}}
"""
    )
    played.done("start", {"v": 9})
    command = played["reads"]
    played.done("other")

    assert command.workload == {"a": 1}
    assert command.ctx == {"x": 1}
    command.steps["start"].value = "what a worker put there"
    assert played.state.results["start"].value == {"v": 9}


def test_a_run_has_started_when_a_worker_first_takes_one_of_its_commands() -> None:
    played = play("workflow: [{step: start, tool: {kind: noop}}]")
    run_id = played["start"].step_run_id

    for _ in range(3):
        played.happen("leased", run_id, "w-1")
    played.happen("leased", "unknown", "w-1")

    assert [event.worker for event in played.events(StepStarted)] == ["w-1"]


def lose(played: Play, times: int) -> None:
    for _ in range(times):
        played.lapse("start")


def test_lost_work_goes_on_from_where_it_was_recorded() -> None:
    played = play(
        "workflow: [{step: start, tool: [{name: a, kind: noop}, {name: b, kind: noop}]}]"
    )
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

    assert played.happen("reported", first).events == ()
    assert played.state.seq == seq
    assert played.state.steps["start"].attempts == 1


def test_a_worker_has_no_say_about_other_runs_or_the_execution() -> None:
    played = play(BRANCHES.format(spec="{}"))
    a, b = played["a"], played["b"]
    foreign = TaskDone(
        at=played.at, step_run_id=b.step_run_id, step="b", task="t", outcome=ok()
    )
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
    played.happen("reported", report)

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
    played.happen("child_ended", fact)

    pending = played["start"].progress.pending  # type: ignore[union-attr]
    assert pending is not None
    assert pending.is_ok == (status == "COMPLETED")
    assert len(played.open) == 1


def test_a_timeout_cancels_the_child() -> None:
    played = play("workflow: [{step: start, spec: {timeout: 5}, tool: {kind: playbook, path: p}}]")
    played.suspend("start", child="p")
    [child] = played.children
    played.fire()

    assert played.cancelled_children == [child]
    assert played.status == "FAILED"
