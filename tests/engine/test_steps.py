"""Steps: admission, time limits, failures and their handling, what a step keeps."""

from __future__ import annotations

import pytest

from noetl.model.events import (
    StepCancelled,
    StepFailed,
    StepSkipped,
    WorkflowFailing,
)
from tests.engine.playing import play

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
        ('{when: "{{ event.data.m is undefined }}", then: {allow: true}}', 1, True),
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


def test_a_command_that_carries_everything_does_not_change_either() -> None:
    played = play(
        """
workflow:
- {step: start, next: [reads, other]}
- {step: reads, tool: {kind: shell, cmd: "echo {{ ctx | tojson }}"}}
- {step: other, tool: {kind: noop}, set: {ctx.x: 2}}
"""
    )
    command = played["reads"]
    played.done("other")

    assert (command.ctx, played.state.ctx) == ({}, {"x": 2})


def test_what_is_started_and_stopped_in_one_decision_is_never_handed_out() -> None:
    played = play(
        """
workload: {}
workflow:
- {step: start, next: [a, b]}
- {step: a, tool: {kind: noop}}
- {step: b, args: {x: "{{ workload.missing }}"}, tool: {kind: noop}}
"""
    )

    assert played.status == "FAILED"
    assert played.ran() == ["start", "a", "b"]
    assert played.issued == []


ALL_RULES = """
workflow:
- {step: start, next: {arcs: [{step: a, args: {n: %s, who: token}}]}}
- step: a
  spec:
    policy:
      admit:
        mode: inclusive
        rules:
        - {when: "{{ args.n > 0 }}", then: {allow: true, set: {who: first, x: "{{ args.n }}"}}}
        - {when: "{{ args.n > 1 }}", then: {allow: true, set: {who: second}}}
        - {when: "{{ args.n > 2 }}", then: {allow: false, set: {who: nobody}}}
        - {else: {then: {allow: %s, set: {who: else}}}}
  tool: {kind: noop}
"""


@pytest.mark.parametrize(
    ("n", "otherwise", "args"),
    [
        (1, "true", {"n": 1, "who": "first", "x": 1}),
        (2, "true", {"n": 2, "who": "second", "x": 2}),
        (3, "true", None),
        (0, "true", {"n": 0, "who": "else"}),
        (0, "false", None),
    ],
)
def test_with_inclusive_admission_all_rules_that_hold_apply(
    n: int, otherwise: str, args: dict[str, object] | None
) -> None:
    played = play(ALL_RULES % (n, otherwise))

    assert [run.args for run in played.state.runs.values()] == ([args] if args else [])
    assert len(played.events(StepSkipped)) == (0 if args else 1)


def test_a_set_of_an_exclusive_rule_adds_to_the_args_too() -> None:
    played = play(ALL_RULES.replace("inclusive", "exclusive") % (2, "true"))

    assert [run.args["who"] for run in played.state.runs.values()] == ["first"]
