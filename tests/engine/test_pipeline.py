"""Task policy: what an outcome leads to."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.engine.pipeline.rules import Directive, TaskProgram, decide
from noetl.errors import EvaluationFailed
from noetl.model.chains import Tries
from noetl.model.net import Limits
from noetl.model.outcome import Outcome, failed, ok
from noetl.templates import OutcomeView, Scope
from noetl.templates.views import ResultView
from tests.engine.playing import program_of

FAILED = failed("connection", "no answer")


def policy(rules: str = "", retry: str = "") -> TaskProgram:
    """The first of two tasks, with these rules."""
    spec = f"spec: {{policy: {{rules: {rules}}}}}" if rules else ""
    text = f"""
workflow:
- step: start
  tool:
  - name: first
    kind: noop
    {spec}
    {retry}
  - {{name: second, kind: noop}}
"""
    return TaskProgram(program_of(text).steps["start"].step.tasks[0])


def judge(
    task: TaskProgram,
    outcome: Outcome,
    *,
    attempt: int = 1,
    limits: Limits | None = None,
    tries: Tries | None = None,
    at: float = 0.0,
    **names: Any,
) -> Directive:
    plain: dict[str, object] = {"status": outcome.status, "result": outcome.result}
    if outcome.error is not None:
        plain["error"] = {"kind": outcome.error.kind, "retryable": outcome.error.retryable}
    scope = Scope({"outcome": OutcomeView(ResultView, plain), "ctx": {}, "iter": {}, **names})
    tries = tries or Tries(attempt=attempt)
    return decide(task, outcome, scope, tries=tries, seed="s", limits=limits or Limits(), at=at)


def test_without_rules_success_goes_on_and_an_error_fails_as_it_is() -> None:
    task = policy()

    assert judge(task, ok(1)) == Directive(kind="continue")
    assert judge(task, FAILED) == Directive(kind="fail", error=FAILED.error)


@pytest.mark.parametrize(
    ("then", "kind", "to"),
    [
        ("{do: continue}", "continue", ""),
        ("{do: break}", "break", ""),
        ("{do: jump, to: second}", "jump", "second"),
        ("{do: retry, attempts: 3}", "retry", ""),
        ("{do: fail}", "fail", ""),
    ],
)
def test_each_directive_is_followed(then: str, kind: str, to: str) -> None:
    task = policy(f"[{{when: '{{{{ outcome.status == \"error\" }}}}', then: {then}}}]")

    directive = judge(task, FAILED)

    assert (directive.kind, directive.to, directive.unmatched) == (kind, to, False)


def test_the_first_rule_that_holds_decides() -> None:
    task = policy(
        """[{when: "{{ outcome.result == 1 }}", then: {do: break}},
            {when: "{{ outcome.status == 'ok' }}", then: {do: jump, to: second}},
            {else: {then: {do: fail}}}]"""
    )

    assert judge(task, ok(1)).kind == "break"
    assert judge(task, ok(2)).kind == "jump"
    assert judge(task, FAILED).kind == "fail"


def test_rules_of_which_none_holds_go_on_and_say_so() -> None:
    task = policy('[{when: "{{ outcome.result == 1 }}", then: {do: break}}]')

    assert judge(task, ok(2)) == Directive(kind="continue", unmatched=True)
    assert judge(task, FAILED) == Directive(kind="continue", unmatched=True)


RETRY_THEN = """[{when: "{{ outcome.status == 'error' }}",
                  then: {do: retry, attempts: 3, backoff: linear, delay: 2}},
                 %s]"""


def test_a_retry_whose_tries_are_used_up_leaves_the_decision_to_the_next_rule() -> None:
    task = policy(
        RETRY_THEN % """{when: "{{ outcome.status == 'error' }}", then: {do: jump, to: second}}"""
    )

    directives = [judge(task, FAILED, attempt=attempt) for attempt in (1, 2, 3, 4)]

    assert [one.kind for one in directives] == ["retry", "retry", "jump", "jump"]
    assert [one.delay for one in directives] == [2, 4, 0, 0]


def test_a_retry_whose_tries_are_used_up_fails_if_no_rule_says_otherwise() -> None:
    task = policy(RETRY_THEN % '{when: "{{ outcome.result == 1 }}", then: {do: break}}')

    assert judge(task, FAILED, attempt=3) == Directive(kind="fail", error=FAILED.error)


def test_a_success_that_the_rules_would_try_for_ever_fails_in_the_end() -> None:
    task = policy("[{when: \"{{ outcome.result != 'ready' }}\", then: {do: retry, attempts: 2}}]")

    assert judge(task, ok("not yet"), attempt=1).kind == "retry"
    last = judge(task, ok("not yet"), attempt=2)
    assert last.kind == "fail"
    assert last.error is not None
    assert last.error.code == "retries_exhausted"
    assert judge(task, ok("ready"), attempt=2).kind == "continue"


def test_the_operators_limit_on_attempts_wins() -> None:
    task = policy(RETRY_THEN % "{else: {then: {do: continue}}}")

    assert judge(task, FAILED, attempt=2, limits=Limits(max_attempts=2)).kind == "fail"
    assert judge(task, FAILED, attempt=2, limits=Limits(max_attempts=9)).kind == "retry"


def test_amounts_may_be_templates() -> None:
    task = policy(
        """[{when: "{{ outcome.status == 'error' }}",
             then: {do: retry, attempts: "{{ ctx.tries }}", delay: "{{ ctx.wait }}"}}]"""
    )

    assert judge(task, FAILED, attempt=4, ctx={"tries": 5, "wait": 3}).delay == 3
    assert judge(task, FAILED, attempt=5, ctx={"tries": 5, "wait": 3}).kind == "fail"
    with pytest.raises(EvaluationFailed, match="attempts"):
        judge(task, FAILED, ctx={"tries": "many", "wait": 3})


def test_what_the_other_side_asks_for_is_the_least_we_wait() -> None:
    task = policy(RETRY_THEN % "{else: {then: {do: continue}}}")

    assert judge(task, failed("rate_limit", "slow down", retry_after=30)).delay == 30


def test_a_rule_writes_on_its_way_whatever_it_decides() -> None:
    task = policy(
        """[{when: "{{ outcome.status == 'error' }}",
             then: {do: retry, attempts: 2, set_ctx: {tries: "{{ outcome.status }}"}}},
            {else: {then: {do: break, set_iter: {page: "{{ outcome.result + 1 }}"}}}}]"""
    )

    assert judge(task, FAILED).writes.ctx == {"tries": "error"}
    assert judge(task, ok(6)).writes.iter == {"page": 7}


def test_a_fail_rule_may_say_what_went_wrong() -> None:
    worded = policy('[{else: {then: {do: fail, error: "got {{ outcome.result }}"}}}]')
    coded = policy('[{else: {then: {do: fail, error: {code: E7, message: "bad"}}}}]')
    silent = policy("[{else: {then: {do: fail}}}]")

    said = judge(worded, ok(3)).error
    assert said is not None
    assert said.message == "got 3"
    with_code = judge(coded, ok(3)).error
    assert with_code is not None
    assert (with_code.code, with_code.message) == ("E7", "bad")
    assert judge(silent, FAILED).error == FAILED.error
    quiet = judge(silent, ok(3)).error
    assert quiet is not None
    assert quiet.code == "failed_by_rule"


def test_the_tasks_own_retry_comes_before_its_rules_and_its_end_is_theirs_to_judge() -> None:
    task = policy(
        "[{when: \"{{ outcome.status == 'error' }}\", then: {do: break}}]",
        retry="retry: {max_attempts: 2, initial_delay: 1}",
    )

    assert judge(task, FAILED, attempt=1).kind == "retry"
    assert judge(task, FAILED, attempt=2).kind == "break"


@pytest.mark.parametrize(
    ("limits", "looks", "waited", "expected"),
    [
        ("", 1_000, 1e9, 5.0),
        ("max_attempts: 3", 2, 0.0, 5.0),
        ("max_attempts: 3", 3, 0.0, None),
        ("deadline: 60s", 1_000, 55.0, 5.0),
        ("deadline: 60s", 1, 55.1, None),
    ],
)
def test_a_poll_looks_again_until_it_has_looked_often_or_waited_long_enough(
    limits: str, looks: int, waited: float, expected: float | None
) -> None:
    """001 §4.3: the next look would come after the deadline, so there is none."""
    task = policy(retry=f'poll: {{until: "{{{{ result }}}}", interval: 5s, {limits}}}')

    directive = judge(task, ok(), tries=Tries(polls=looks - 1, poll_began=1.0), at=1.0 + waited)

    assert directive.poll
    assert (directive.delay if directive.kind == "retry" else None) == expected


def test_a_rule_that_cannot_be_evaluated_is_an_error_of_the_playbook() -> None:
    task = policy('[{else: {then: {do: fail, error: "{{ ctx.nowhere }}"}}}]')

    with pytest.raises(EvaluationFailed):
        judge(task, ok(1))
