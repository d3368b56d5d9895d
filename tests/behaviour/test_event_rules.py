"""Event rules in a whole system: what they do, where tokens go, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from noetl.model.events import (
    BranchSuppressed,
    CaseEvaluated,
    ChainRestarted,
    NextEvaluated,
    PollFinished,
    PollIteration,
    PollStarted,
    RetryProcessed,
    RetryStarted,
    SinkProcessed,
    StepDone,
    StepFailed,
    TaskDone,
    TokenCreated,
)
from tests.documents.services import Services, serving
from tests.examples.system import Run, playbook, ran


class Web(NamedTuple):
    services: Services
    url: str

    @property
    def paths(self) -> list[str]:
        return [asked.path for asked in self.services.asked]


@pytest.fixture
def web() -> Iterator[Web]:
    services = Services()
    with serving(services) as url:
        yield Web(services, url)


def calls(run: Run) -> list[str]:
    """The tasks that were called, in order."""
    return [fact.task for fact in run.of(TaskDone)]


def tokens(run: Run) -> list[str]:
    """Where tokens were placed, the entry left out."""
    return [fact.step for fact in run.of(TokenCreated)][1:]


def answered(run: Run) -> list[tuple[str, str]]:
    return [(fact.trigger_event, " ".join(fact.order)) for fact in run.of(CaseEvaluated)]


END = """
- { step: end, tool: { kind: noop, result: "{{ args }}" } }
- { step: other, tool: { kind: noop, result: "{{ args }}" } }
"""


# --- Calls: retry, pages -----------------------------------------------------------------------


FLAKY = """
- step: start
  tool: {{ kind: http, url: "{{{{ workload.url }}}}/flaky" }}
  case:
    - when: "{{{{ event.name == 'call.done' and error is defined and error.status in [503] }}}}"
      then:
        retry: {{ max_attempts: {tries}, initial_delay: 0.01, backoff_multiplier: 2 }}
    - when: "{{{{ event.name == 'call.error' }}}}"
      then: {{ next: [{{ step: end, args: {{ status: "{{{{ error.status }}}}" }} }}] }}
  next: other
"""


def test_a_rule_retries_on_503_until_the_call_succeeds(web):
    run = ran(playbook(FLAKY.format(tries=3) + END), {"url": web.url})

    assert web.paths == ["/flaky"] * 3
    assert tokens(run) == ["other"]
    assert [fact.attempt for fact in run.of(RetryStarted)] == [2, 3]
    assert [(fact.status, fact.attempts) for fact in run.of(RetryProcessed)] == [("ok", 3)]
    assert len({fact.action_id for fact in run.of(TaskDone) if fact.task == "start_task"}) == 1


def test_when_the_tries_are_used_up_the_next_rule_answers(web):
    run = ran(playbook(FLAKY.format(tries=2) + END), {"url": web.url})

    assert web.paths == ["/flaky"] * 2
    assert answered(run) == [("call.error", "case_0"), ("call.error", "case_1")]
    assert run.result == {"status": 503}
    assert [fact.step for fact in run.of(StepFailed)] == ["start"]


def test_pages_are_collected_and_called_until_there_are_no_more(web):
    flow = """
- step: start
  tool: { kind: http, url: "{{ workload.url }}/items", params: { page: 1, pageSize: 7 } }
  case:
    - when: "{{ event.name == 'call.done' and response.paging.hasMore }}"
      then:
        collect: { from: response.data.data, into: pages, mode: extend }
        call: { params: { page: "{{ response.paging.page + 1 }}" } }
    - when: "{{ event.name == 'call.done' }}"
      then:
        - collect: { from: response.data.data, into: pages, mode: extend }
        - result: { from: pages }
        - next: { to: [{ step: end, args: { ids: "{{ result | map(attribute='id') | list }}" } }] }
"""
    run = ran(playbook(flow + END), {"url": web.url})

    assert web.paths == [f"/items?page={page}&pageSize=7" for page in (1, 2, 3)]
    assert run.result == {"ids": [10, 11, 20, 21, 30, 31]}
    [done] = [fact for fact in run.of(StepDone) if fact.step == "start"]
    assert [item["id"] for item in done.result] == [10, 11, 20, 21, 30, 31]
    pages = [fact for fact in run.of(TaskDone) if fact.task == "start_task"]
    assert [fact.page for fact in pages] == [0, 1, 2]
    assert len({fact.action_id for fact in pages}) == 3


def test_a_page_that_fails_is_tried_again_as_that_page(tmp_path):
    seen = tmp_path / "seen"
    flow = f"""
- step: start
  tool:
    kind: shell
    cmd: 'echo $PAGE >> {seen}; [ $PAGE = 1 ] || [ $(grep -c 2 {seen}) -gt 1 ]'
    env: {{ PAGE: "1" }}
  retry:
    - when: "{{{{ error is defined }}}}"
      then: {{ max_attempts: 3, initial_delay: 0 }}
    - when: "{{{{ _retry.index < 2 }}}}"
      then: {{ max_attempts: 10, next_call: {{ env: {{ PAGE: "2" }} }} }}
"""
    run = ran(playbook(flow))

    assert seen.read_text().split() == ["1", "2", "2"]
    assert run.document["status"] == "COMPLETED"
    assert [(fact.page, fact.attempt) for fact in run.of(TaskDone)] == [(0, 1), (1, 1), (1, 2)]


def test_a_list_of_retry_policies_pages_collects_and_stores_each_page(web):
    flow = """
- step: start
  tool: { kind: http, url: "{{ workload.url }}/pages", params: { page: 1 } }
  retry:
    - when: "{{ response.data.has_more }}"
      then:
        max_attempts: 100
        next_call: { params: { page: "{{ _retry.index + 1 }}" } }
        collect: { strategy: append, path: data.page, into: pages }
        sink:
          tool: { kind: noop, result: "{{ [page.page, _retry.index, _retry.count] }}" }
  vars: { pages: "{{ pages }}" }
"""
    run = ran(playbook(flow), {"url": web.url})

    assert web.paths == [f"/pages?page={page}" for page in (1, 2, 3)]
    assert [fact.outcome.result for fact in run.of(SinkProcessed)] == [[1, 1, 1], [2, 2, 2]]
    assert run.document["vars"] == {"pages": [1, 2]}
    assert run.result["data"]["page"] == 3


# --- Where tokens go ---------------------------------------------------------------------------


def test_a_conditional_transition_carries_args_and_the_structural_next_is_the_fallback():
    flow = """
- step: start
  tool: { kind: noop, result: { n: "{{ workload.n }}" } }
  case:
    - when: "{{ event.name == 'step.exit' and result.n > 5 }}"
      then: { next: [{ step: end, args: { n: "{{ result.n }}" } }] }
  next: [{ step: other, args: { fallback: true } }]
"""
    many = ran(playbook(flow + END, workload="n: 9"))
    few = ran(playbook(flow + END, workload="n: 1"))

    assert (tokens(many), many.result) == (["end"], {"n": 9})
    assert (tokens(few), few.result) == (["other"], {"fallback": True})


BRANCHES = """
- step: start
  spec: {{ case_mode: inclusive, next_policy: {policy} }}
  tool: {{ kind: noop }}
  case:
    - when: "{{{{ event.name == 'call.done' }}}}"
      then:
        - a1: {{ tool: {{ kind: noop }} }}
        - next: {{ to: [{{ step: end }}] }}
        - a2: {{ tool: {{ kind: noop }} }}
    - when: "{{{{ event.name == 'call.done' }}}}"
      then:
        - b1: {{ tool: {{ kind: noop }} }}
        - next: {{ to: [{{ step: other }}], priority: 10 }}
        - b2: {{ tool: {{ kind: noop }} }}
"""


@pytest.mark.parametrize(
    ("policy", "called", "to", "lost"),
    [
        ("end_step", ["start_task", "a1"], "end", "case_1"),
        ("break_chain", ["start_task", "a1", "b1"], "end", "case_1"),
        ("defer", ["start_task", "a1", "a2", "b1", "b2"], "other", "case_0"),
    ],
)
def test_a_reached_next_ends_the_step_the_chain_or_nothing_yet(policy, called, to, lost):
    run = ran(playbook(BRANCHES.format(policy=policy) + END))

    assert calls(run)[:-1] == called
    assert tokens(run) == [to]
    assert [(fact.branch, fact.winner != lost) for fact in run.of(BranchSuppressed)] == [
        (lost, True)
    ]
    [decided] = run.of(NextEvaluated)
    assert (decided.policy, decided.suppressed_branches) == (policy, (lost,))
    assert [goal.step for goal in decided.selected] == [to]


def test_branches_are_followed_by_priority_and_equal_ones_in_source_order():
    flow = """
- step: start
  spec: { case_mode: inclusive, branch_order: priority }
  tool: { kind: noop }
  case:
    - { when: "{{ true }}", priority: 1, then: [{ low: { tool: { kind: noop } } }] }
    - { when: "{{ true }}", priority: 5, then: [{ high: { tool: { kind: noop } } }] }
    - { when: "{{ true }}", priority: 5, then: [{ high_too: { tool: { kind: noop } } }] }
"""
    run = ran(playbook(flow))

    assert calls(run) == ["start_task", "high", "high_too", "low"]
    [evaluated] = run.of(CaseEvaluated)
    assert evaluated.matched == ("case_0", "case_1", "case_2")
    assert evaluated.order == ("case_1", "case_2", "case_0")
    assert (evaluated.case_mode, evaluated.trigger_event) == ("inclusive", "call.done")


def test_a_templated_target_that_is_no_step_fails_the_step_and_says_so():
    flow = """
- step: start
  tool: { kind: noop, result: ende }
  case:
    - when: "{{ event.name == 'call.done' }}"
      then: { next: [{ step: "{{ result }}" }] }
"""
    run = ran(playbook(flow + END))

    assert 'rule case_0 of step "start" sends its token to "ende"' in run.error["message"]
    assert 'Did you mean "end"?' in run.error["message"]


def test_else_answers_what_no_rule_does():
    flow = """
- step: start
  tool: { kind: noop, result: 1 }
  case:
    - { when: "{{ result == 2 }}", then: { next: other } }
    - { else: { then: { next: end } } }
"""
    assert tokens(ran(playbook(flow + END))) == ["end"]


def test_a_rule_that_says_what_a_failed_step_yields_makes_it_a_success():
    flow = """
- step: start
  tool: { kind: shell, cmd: "exit 3" }
  case:
    - when: "{{ event.name == 'call.error' }}"
      then: { result: { value: { code: "{{ this.error.code }}" } } }
  next: [{ step: end, args: { got: "{{ start }}" } }]
"""
    run = ran(playbook(flow + END))

    assert run.step("start")["status"] == "done"
    assert list(run.result["got"]) == ["code"]


# --- Chains ------------------------------------------------------------------------------------


def test_a_chain_retry_begins_the_whole_chain_again(web):
    flow = """
- step: start
  tool: { kind: noop }
  case:
    - when: "{{ event.name == 'call.done' }}"
      retry: { scope: chain, max_attempts: 3, backoff: { type: fixed, delay_seconds: 0.01 } }
      then:
        - count: { tool: { kind: noop, result: 1 } }
        - collect: { from: count.result, into: counts }
        - fetch: { tool: { kind: http, url: "{{ workload.url }}/flaky" } }
        - result: { value: "{{ [counts, fetch.result.data] }}" }
"""
    run = ran(playbook(flow), {"url": web.url})

    assert calls(run) == ["start_task", *["count", "fetch"] * 3]
    assert [fact.attempt for fact in run.of(ChainRestarted)] == [2, 3]
    assert run.result == [[1], {"try": 3}]
    fetches = {fact.action_id for fact in run.of(TaskDone) if fact.task == "fetch"}
    assert len(fetches) == 1


def test_a_task_of_a_chain_that_fails_fails_the_step():
    flow = """
- step: start
  tool: { kind: noop }
  case:
    - when: "{{ event.name == 'call.done' }}"
      then:
        - breaks: { tool: { kind: shell, cmd: "exit 3" } }
        - never: { tool: { kind: noop } }
        - next: end
"""
    run = ran(playbook(flow + END))

    assert run.error["kind"]
    assert calls(run) == ["start_task", "breaks"]
    assert tokens(run) == []


def test_poll_looks_until_it_is_there_and_says_so(web):
    flow = """
- step: start
  tool: { kind: http, url: "{{ workload.url }}/status",
          poll: { until: "{{ result.status == 'ready' }}", interval: 0.01, max_attempts: 9 } }
"""
    run = ran(playbook(flow), {"url": web.url})

    assert run.result["data"] == {"status": "ready"}
    assert len(run.of(PollStarted)) == 1
    assert [fact.number for fact in run.of(PollIteration)] == [1, 2]
    assert [(fact.status, fact.number) for fact in run.of(PollFinished)] == [("reached", 3)]
    assert len({fact.action_id for fact in run.of(TaskDone)}) == 3


def test_a_poll_that_never_sees_it_fails(web):
    flow = """
- step: start
  tool: { kind: http, url: "{{ workload.url }}/anything",
          poll: { until: "{{ result.ready }}", interval: 0.01, max_attempts: 3 } }
"""
    run = ran(playbook(flow), {"url": web.url})

    assert run.error["code"] == "poll_exhausted"
    assert len(web.paths) == 3
    assert [fact.status for fact in run.of(PollFinished)] == ["exhausted"]


NEVER = """
- step: start
  tool:
    kind: noop
    result: {{ ready: false }}
    poll: {{ until: "{{{{ result.ready }}}}", interval: 0.01, max_attempts: 2 }}
    {policy}
  {case}
  next: end
- {{ step: end, tool: {{ kind: noop, result: "{{{{ ctx.why | default('ok') }}}}" }} }}
"""


@pytest.mark.parametrize("do", ["continue", "break"])
def test_a_policy_may_tolerate_a_poll_that_gave_up(do):
    policy = f"""spec: {{ policy: {{ rules: [
      {{ when: "{{{{ outcome.error.code == 'poll_exhausted' }}}}",
        then: {{ do: {do}, set_ctx: {{ why: "{{{{ outcome.error.kind }}}}" }} }} }},
      {{ else: {{ then: {{ do: continue }} }} }}] }} }}"""
    run = ran(playbook(NEVER.format(policy=policy, case="")))

    assert run.result == "timeout"
    assert [fact.status for fact in run.of(PollFinished)] == ["exhausted"]
    last = run.of(TaskDone)[1]
    assert last.outcome.status == "error"
    assert last.outcome.error.code == "poll_exhausted"
    assert last.outcome.result == {"ready": False}


@pytest.mark.parametrize(
    "rules",
    [
        "{ when: \"{{ outcome.status == 'error' }}\", then: { do: retry, attempts: 5 } }",
        '{ when: "{{ outcome.http.status == 404 }}", then: { do: continue } }',
        "{ else: { then: { do: continue } } }",
    ],
)
def test_a_poll_that_gave_up_is_neither_repeated_nor_tolerated_by_accident(rules):
    policy = f"spec: {{ policy: {{ rules: [{rules}] }} }}"
    run = ran(playbook(NEVER.format(policy=policy, case="")))

    assert run.error["code"] == "poll_exhausted"
    assert calls(run) == ["start_task"] * 2


def test_a_poll_that_gave_up_is_an_error_to_event_rules():
    case = """case:
    - { when: "{{ event.name == 'call.done' and response is defined }}", then: { next: other } }
    - { when: "{{ event.name == 'call.error' }}", then: { set: { ctx.why: "{{ error.code }}" } } }
    - { when: "{{ event.name == 'step.exit' and error is defined }}", then: { next: end } }"""
    run = ran(playbook(NEVER.format(policy="", case=case) + "- { step: other, next: end }"))

    assert run.result == "poll_exhausted"
    assert tokens(run) == ["end"]


def test_a_retry_repeats_a_workbook_entry_whose_poll_gave_up():
    """Only the task that polls is not tried again."""
    flow = """
- step: start
  tool: { kind: workbook, task: look, retry: { max_attempts: 3, initial_delay: 0.01 } }
"""
    book = """
  look:
    kind: noop
    result: { ready: false }
    poll: { until: "{{ result.ready }}", interval: 0.01, max_attempts: 2 }
"""
    run = ran(playbook(flow) + "workbook:" + book)

    assert run.error["code"] == "poll_exhausted"
    assert len(run.of(RetryStarted)) == 2


# --- Enter, exit, sinks, loops -----------------------------------------------------------------


def test_rules_on_enter_set_values_route_skip_and_run_tasks_before_the_body():
    flow = """
- step: start
  tool: { kind: noop, result: "{{ [color, prepare.result, ctx.n] }}" }
  case:
    - when: "{{ event.name == 'step.enter' }}"
      then:
        - set: { color: red, ctx.n: 1 }
        - prepare: { tool: { kind: noop, result: "{{ color }} paint" } }
    - when: "{{ event.name == 'step.exit' }}"
      then:
        - tell: { tool: { kind: noop, result: "{{ result[0] }}" } }
        - next: { to: [{ step: passed_by, args: { said: "{{ tell.result }}" } }] }
- step: passed_by
  tool: { kind: shell, cmd: "exit 1" }
  case:
    - when: "{{ event.name == 'step.enter' }}"
      then: { next: [{ step: end, args: { said: "{{ args.said }}" } }] }
"""
    run = ran(playbook(flow + END))

    assert run.result == {"said": "red"}
    [done] = [fact for fact in run.of(StepDone) if fact.step == "start"]
    assert done.result == ["red", "red paint", 1]
    assert calls(run) == ["prepare", "start_task", "tell", "end_task"]


def test_a_skipped_step_takes_none_of_its_arcs():
    flow = """
- step: start
  tool: { kind: noop }
  case:
    - { when: "{{ event.name == 'step.enter' }}", then: { skip: true } }
  next: end
"""
    run = ran(playbook(flow + END))

    assert run.step("start")["status"] == "skipped"
    assert calls(run) == []
    assert tokens(run) == []


def test_a_sink_stores_each_success_and_changes_nothing_about_the_result(tmp_path):
    flow = f"""
- step: start
  loop: {{ in: [1, 2, 3], iterator: n }}
  tool: {{ kind: noop, result: {{ n: "{{{{ n * 10 }}}}" }} }}
  sink:
    tool: {{ kind: sqlite, database: "{tmp_path}/kept.db", table: kept }}
    args: {{ n: "{{{{ result.n }}}}" }}
  next: look
- step: look
  tool: {{ kind: sqlite, database: "{tmp_path}/kept.db", query: "select n from kept order by n" }}
"""
    table = f"""
- step: make
  tool: {{ kind: sqlite, database: "{tmp_path}/kept.db", command: "create table kept (n int)" }}
  next: start
"""
    run = ran(playbook(table + flow, executor="spec: { entry_step: make }"))

    assert [row["n"] for row in run.result["rows"]] == [10, 20, 30]
    [done] = [fact for fact in run.of(StepDone) if fact.step == "start"]
    assert done.result["results"] == [{"n": 10}, {"n": 20}, {"n": 30}]


@pytest.mark.parametrize("name", ["count", "steps.count", "result"])
def test_a_sink_reads_what_its_step_just_yielded_by_the_name_of_the_step(name):
    flow = f"""
- step: count
  tool: {{ kind: noop, result: {{ n: "{{{{ ctx.n | default(0) + 1 }}}}" }} }}
  sink:
    tool: {{ kind: python, code: "result = seen" }}
    args: {{ seen: "{{{{ {name}.n }}}}" }}
  set: {{ ctx.n: "{{{{ count.n }}}}" }}
  next:
    arcs:
      - {{ step: count, when: "{{{{ ctx.n < 2 }}}}" }}
"""
    run = ran(playbook(flow))

    assert run.result == {"n": 2}
    assert [fact.outcome.result for fact in run.of(SinkProcessed)] == [1, 2]


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_next_in_an_iteration_ends_the_loop_early(mode):
    flow = """
- step: start
  loop: { in: { from: 0, to: 1000 }, iterator: n, spec: { mode: MODE, max_in_flight: 4 } }
  tool: { kind: noop, result: "{{ n }}" }
  case:
    - when: "{{ event.name == 'call.done' and n == 3 }}"
      then: { next: [{ step: end, args: { at: "{{ result }}" } }] }
  next: other
"""
    run = ran(playbook(flow.replace("MODE", mode) + END))

    assert run.result == {"at": 3}
    assert tokens(run) == ["end"]
    assert run.step("start")["status"] == "done"
    assert len([task for task in calls(run) if task == "start_task"]) < 1000


def test_each_iteration_has_accumulators_of_its_own_and_loop_done_is_heard_once():
    flow = """
- step: start
  loop: { in: [1, 2], iterator: n }
  tool: { kind: noop, result: { n: "{{ n }}", page: 1 } }
  case:
    - when: "{{ event.name == 'call.done' and result.page < 3 }}"
      then:
        collect: { from: result.page, into: pages }
        call: { result: { n: "{{ n }}", page: "{{ result.page + 1 }}" } }
    - when: "{{ event.name == 'call.done' }}"
      then: { result: { value: "{{ [n, pages] }}" } }
    - when: "{{ event.name == 'loop.done' }}"
      then: { next: [{ step: end, args: { all: "{{ result.results }}" } }] }
"""
    run = ran(playbook(flow + END))

    assert run.result == {"all": [[1, [1, 2]], [2, [1, 2]]]}
    assert answered(run)[-1] == ("loop.done", "case_2")
    assert [event for event, _ in answered(run)].count("loop.done") == 1


def test_a_failed_call_is_shown_only_to_rules_that_read_the_error():
    flow = """
- step: start
  tool: { kind: shell, cmd: "exit 3" }
  case:
    - { when: "{{ event.name == 'call.done' }}", then: { next: other } }
    - { when: "{{ workload.always }}", then: { next: other } }
    - { when: "{{ event.name == 'step.exit' and error }}", then: { next: end } }
"""
    run = ran(playbook(flow + END, workload="always: true"))

    assert tokens(run) == ["end"]
    assert answered(run) == [("step.failed", "case_2")]
    assert run.step("start")["status"] == "failed"


def test_large_accumulators_stay_out_of_the_events():
    flow = """
- step: start
  tool: { kind: noop, result: { page: 1, text: "{{ 'x' * 20000 }}" } }
  case:
    - when: "{{ event.name == 'call.done' and result.page < 10 }}"
      then:
        collect: { from: result.text, into: texts }
        call: { result: { page: "{{ result.page + 1 }}", text: "{{ 'x' * 20000 }}" } }
    - when: "{{ event.name == 'call.done' }}"
      then: { result: { value: "{{ texts | length }}" } }
"""
    run = ran(playbook(flow))

    assert run.result == 9
    assert max(len(str(fact.progress.local)) for fact in run.of(TaskDone)) < 100_000
