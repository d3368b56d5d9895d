"""What playbooks in the field rely on: results by their own names, args, retries, children."""

# ruff: noqa: E501  lines of playbooks

from __future__ import annotations

import asyncio

import pytest

from noetl.model.events import CaseEvaluated, ChildStarted, LoopDone, NextUnmatched, TaskDone
from tests.examples.conftest import Shop
from tests.examples.system import Bench, Run, on_bench, playbook, ran
from tests.stopwatch import PATIENCE

ROUND = """
- step: start
  tool: { kind: noop, result: "{{ (start | default(0)) + 1 }}" }
  %s
  next: { arcs: [{ step: start, when: "{{ start < 3 }}" }, { step: end }] }
- { step: end, tool: { kind: noop, result: "{{ %s }}" } }
"""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('set: { ctx.seen: "{{ (ctx.seen | default([])) + [start] }}" }', "ctx.seen"),
        ('set: { ctx.seen: "{{ (ctx.seen | default([])) + [steps.start] }}" }', "ctx.seen"),
        ('vars: { seen: "{{ (vars.seen | default([])) + [start] }}" }', "vars.seen"),
        (
            "case: [{ when: \"{{ event.name == 'step.exit' }}\", then: { set:"
            ' { ctx.seen: "{{ (ctx.seen | default([])) + [start] }}" } } }]',
            "ctx.seen",
        ),
        (
            "case: [{ when: \"{{ event.name == 'call.done' }}\", then: { set:"
            ' { ctx.seen: "{{ (ctx.seen | default([])) + [start] }}" } } }]',
            "ctx.seen",
        ),
    ],
)
def test_in_a_cycle_a_step_reads_the_result_that_has_just_come(written: str, read: str) -> None:
    assert ran(playbook(ROUND % (written, read))).result == [1, 2, 3]


@pytest.mark.parametrize(
    "rule",
    [
        'set: { ctx.seen: "{{ (ctx.seen | default([])) + [start] }}" }',
        "spec: { policy: { rules: [{ else: { then: { do: continue, set_ctx: { seen:"
        ' "{{ (ctx.seen | default([])) + [start] }}" } } } }] } }',
    ],
)
def test_the_only_task_of_a_step_reads_its_own_result_under_the_steps_name(rule: str) -> None:
    flow = f"""
- step: start
  tool: {{ kind: noop, result: "{{{{ (start | default(0)) + 1 }}}}", {rule} }}
  next: {{ arcs: [{{ step: start, when: "{{{{ start < 3 }}}}" }}, {{ step: end }}] }}
- {{ step: end, tool: {{ kind: noop, result: "{{{{ ctx.seen }}}}" }} }}
"""
    assert ran(playbook(flow)).result == [1, 2, 3]


def test_a_name_that_rules_collect_into_wins_over_the_steps_own() -> None:
    flow = """
- step: start
  tool: { kind: noop, result: 7 }
  case:
    - when: "{{ event.name == 'call.done' }}"
      then: { collect: { from: result, into: start }, result: { from: start } }
"""
    assert ran(playbook(flow)).result == [7]


FAILS = 'kind: shell, cmd: "exit {{ workload.code }}"'


def test_a_guard_may_read_the_outcome_of_the_step_also_of_a_failed_one() -> None:
    flow = f"""
- step: start
  tool: {{ {FAILS} }}
  next:
    arcs:
      - {{ step: failed, when: "{{{{ outcome.status == 'error' }}}}", args: {{ kind: "{{{{ output.error.kind }}}}" }} }}
      - {{ step: fine, when: "{{{{ outcome.status == 'ok' }}}}", args: {{ code: "{{{{ outcome.result.exit_code }}}}" }} }}
- {{ step: failed, tool: {{ kind: noop, result: "{{{{ args.kind }}}}" }} }}
- {{ step: fine, tool: {{ kind: noop, result: "fine {{{{ args.code }}}}" }} }}
"""
    text = playbook(flow, workload="code: 0")

    assert ran(text).result == "fine 0"
    failed = ran(text, {"code": 4})
    assert failed.document["status"] == "COMPLETED"
    assert failed.result == "exception"


def test_set_applies_after_a_tolerated_error_without_what_reads_the_result() -> None:
    flow = """
- step: start
  tool:
    - name: broken
      kind: shell
      cmd: exit 3
      set: { ctx.tried: true, ctx.out: "{{ output.data.stdout }}", ctx.whole: "{{ output }}" }
      spec: { policy: { rules: [{ when: "{{ outcome.status == 'error' }}", then: { do: continue } }] } }
    - { name: last, kind: noop }
  next: end
- { step: end, tool: { kind: noop, result: "{{ [ctx.tried, ctx.out is defined, ctx.whole.status, ctx.whole.error.code] }}" } }
"""
    assert ran(playbook(flow)).result == [True, False, "error", 3]


def test_set_does_not_apply_to_a_task_that_fails_or_is_tried_again() -> None:
    flow = """
- step: start
  tool: { kind: shell, cmd: exit 3, set: { ctx.tried: true }, retry: { max_attempts: 2 } }
  next: { arcs: [{ step: end, when: "{{ error }}" }] }
- { step: end, tool: { kind: noop, result: "{{ ctx.tried is defined }}" } }
"""
    assert ran(playbook(flow)).result is False


def test_literal_args_of_a_workbook_entry_are_defaults_and_computed_ones_win() -> None:
    book = """
as_task: { kind: python, args: { a: 1, b: 2, c: "{{ workload.x }}" }, code: "result = [a, b, c]" }
as_entry: { args: { a: 1, b: 2, c: "{{ workload.x }}" }, tool: { kind: python, code: "result = [a, b, c]" } }
"""
    flow = """
- step: end
  tool:
    - { name: one, kind: workbook, task: as_task, args: { b: 20, c: 30 } }
    - { name: two, kind: workbook, task: as_entry, args: { b: 20, c: 30 } }
    - { name: both, kind: noop, result: ["{{ one }}", "{{ two }}"] }
"""
    assert ran(playbook(flow, workload="x: 3", workbook=book)).result == [[1, 20, 3], [1, 20, 3]]


def test_a_steps_args_are_variables_of_its_code_beneath_the_tasks_own() -> None:
    flow = """
- step: start
  next: { arcs: [{ step: end, args: { b: token, c: token } }] }
- step: end
  args: { a: step, b: step }
  tool: { kind: python, args: { c: task }, code: "result = [a, b, c, args['a'], input_data['b']]" }
"""
    assert ran(playbook(flow)).result == ["step", "token", "task", "step", "token"]


def test_context_holds_results_and_then_keys_and_earlier_ones_win() -> None:
    flow = """
- { step: start, tool: { kind: noop, result: { n: 1 } }, set: { ctx.both: ctx, ctx.c: 3 }, next: end }
- step: end
  args: { both: args, w: args }
  tool:
    kind: python
    code: |
      c = context
      assert c["job"] == {"uuid": c["execution_id"], "execution_id": c["execution_id"], "id": c["execution_id"]}
      result = [c["start"], c["both"], c["c"], c["w"], c["only"], c["step"], c["workload"]["w"]]
"""
    found = ran(playbook(flow, workload="{w: workload, only: yes it is}"))

    assert found.result == [{"n": 1}, "args", 3, "args", "yes it is", "end", "workload"]


def test_args_that_read_the_iteration_are_rendered_for_each() -> None:
    flow = """
- step: start
  next: { arcs: [{ step: each, args: { given: token } }] }
- step: each
  args: { double: "{{ n * 2 }}", at: "{{ loop.index }}", once: "{{ workload.x }}", given: "{{ n }}" }
  loop: { in: [1, 2], iterator: n, spec: { mode: parallel } }
  tool: { kind: noop, result: "{{ [args.double, at, once, given] }}" }
  next: end
- { step: end, tool: { kind: noop, result: "{{ each.results }}" } }
"""
    assert ran(playbook(flow, workload="x: 9")).result == [[2, 0, 9, "token"], [4, 1, 9, "token"]]


def test_args_of_an_iteration_that_cannot_be_rendered_fail_that_iteration() -> None:
    flow = """
- step: end
  args: { half: "{{ 1 / n }}" }
  loop: { in: [1, 0], iterator: n, spec: { on_error: continue } }
  tool: { kind: noop, result: "{{ args.half }}" }
"""
    found = ran(playbook(flow)).result

    assert found["stats"] == {"total": 2, "success": 1, "failed": 1}
    assert "by zero" in found["errors"][0]["error"]["message"]


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_step_exit_in_a_loop_is_the_end_of_each_iteration_and_loop_done_that_of_the_loop(
    mode: str,
) -> None:
    flow = f"""
- step: start
  loop: {{ in: [1, 2, 3], iterator: n, spec: {{ mode: {mode}, policy: {{ reduce: {{ seen: append }} }} }} }}
  tool: {{ kind: noop, result: "{{{{ n * 10 }}}}" }}
  case:
    - when: "{{{{ event.name == 'step.exit' }}}}"
      then: {{ set: {{ ctx.seen: "{{{{ start }}}}" }} }}
    - when: "{{{{ event.name == 'loop.done' }}}}"
      then: {{ next: [{{ step: end, args: {{ total: "{{{{ result.stats.total }}}}" }} }}] }}
- {{ step: end, tool: {{ kind: noop, result: "{{{{ [ctx.seen, args.total] }}}}" }} }}
"""
    done = ran(playbook(flow))

    assert done.result == [[10, 20, 30], 3]
    answered = [(fact.trigger_event, fact.iteration) for fact in done.of(CaseEvaluated)]
    assert sorted(answered, key=str) == [
        ("loop.done", None),
        *(("step.done", n) for n in range(3)),
    ]


def test_a_next_on_step_exit_ends_a_loop_early() -> None:
    flow = """
- step: start
  loop: { in: [1, 2, 3], iterator: n }
  tool: { kind: noop, result: "{{ n }}" }
  case:
    - when: "{{ event.name == 'step.exit' and result == 2 }}"
      then: { next: end }
- { step: end, tool: { kind: noop, result: "{{ start.stats }}" } }
"""
    done = ran(playbook(flow))

    assert done.result == {"total": 3, "success": 2, "failed": 0}
    assert len(done.of(LoopDone)) == 1


def test_a_rule_for_the_failure_of_an_iteration_sees_it() -> None:
    flow = """
- step: start
  loop: { in: [1, 0], iterator: n, spec: { on_error: continue } }
  tool: { kind: noop, result: "{{ 1 / n }}" }
  case:
    - when: "{{ event.name == 'step.exit' and error is defined }}"
      then: { set: { ctx.kind: "{{ error.kind }}" } }
  next: end
- { step: end, tool: { kind: noop, result: "{{ [ctx.kind, start.stats.failed] }}" } }
"""
    assert ran(playbook(flow)).result == ["schema", 1]


PAGES = """
- step: start
  tool:
    kind: python
    args: { page: 1, size: 2 }
    code: "result = {'page': page, 'size': size, 'more': page < 3}"
  %s
- { step: end, tool: { kind: noop, result: "{{ [start, ctx.pages | default([])] }}" } }
"""


@pytest.mark.parametrize("word", ["args", "input", "with"])
def test_call_and_next_call_override_inputs_of_any_kind(word: str) -> None:
    """000 and 003 §6: paging with code."""
    by_case = PAGES % (
        "case: [{ when: \"{{ event.name == 'call.done' and result.more }}\", then:"
        f' {{ call: {{ {word}: {{ page: "{{{{ result.page + 1 }}}}" }} }} }} }},'
        " { when: \"{{ event.name == 'call.done' }}\", then: { next: end } }]"
    )
    by_retry = PAGES % (
        'retry: [{ when: "{{ response.more }}", then: { max_attempts: 9, next_call:'
        f' {{ {word}: {{ page: "{{{{ response.page + 1 }}}}" }} }},'
        " collect: { from: response.page, into: pages } } }]\n  next: end"
    )

    assert ran(playbook(by_case)).result[0] == {"page": 3, "size": 2, "more": False}
    assert ran(playbook(by_retry)).result[0] == {"page": 3, "size": 2, "more": False}


def test_max_calls_bounds_a_call() -> None:
    flow = PAGES % (
        "case: [{ when: \"{{ event.name == 'call.done' and result.more }}\", then: { call:"
        ' { args: { page: "{{ result.page + 1 }}" }, max_calls: 2 } } }]\n  next: end'
    )

    assert ran(playbook(flow)).result[0]["page"] == 2


def test_a_rule_writes_variables() -> None:
    flow = """
- step: start
  tool:
    kind: noop
    result: 5
    spec: { policy: { rules: [{ else: { then: { do: continue, set: { vars.n: "{{ outcome.result }}" } } } }] } }
  case:
    - { when: "{{ event.name == 'step.exit' }}", then: { set: [{ name: m, value: "{{ vars.n + 1 }}" }] } }
  next: each
- step: each
  loop: { in: [1, 2], iterator: i }
  tool: { kind: noop, set: { vars.last: "{{ i }}" } }
  next: end
- { step: end, tool: { kind: noop, result: "{{ [vars.n, vars.m, vars.last] }}" } }
"""
    assert ran(playbook(flow)).result == [5, 6, 2]


def test_assert_names_what_is_missing() -> None:
    def flow(inputs: str, code: str) -> str:
        return playbook(
            f"- {{step: end, tool: {{kind: python, args: {inputs}, code: '{code}',"
            " assert: {expects: [a, b], returns: [x, y]}}}"
        )

    fine = ran(flow("{a: 1, b: 2}", "result = dict(x=a, y=b)"))
    lacks_input = ran(flow("{a: 1}", "result = dict(x=a, y=1)"))
    lacks_key = ran(flow("{a: 1, b: 2}", "result = dict(x=a)"))

    assert fine.result == {"x": 1, "y": 2}
    assert (lacks_input.error["kind"], lacks_key.error["kind"]) == ("schema", "schema")
    assert "`b`" in lacks_input.error["message"]
    assert "`y`" in lacks_key.error["message"]


def test_assert_of_a_workbook_entry_holds_for_its_inputs_and_its_result() -> None:
    book = """
add: { assert: { expects: [a], returns: [sum] }, tool: [{ name: one, kind: noop }, { name: two, kind: noop, result: { sum: "{{ args.a }}" } }] }
"""
    flow = "- {step: end, tool: {kind: workbook, task: add, args: %s}}"

    assert ran(playbook(flow % "{a: 1}", workbook=book)).result == {"sum": 1}
    assert "`a`" in ran(playbook(flow % "{}", workbook=book)).error["message"]


def test_output_in_a_later_task_is_the_outcome_of_the_one_before() -> None:
    flow = """
- step: end
  tool:
    - { name: one, kind: noop, result: { n: 1 } }
    - { name: two, kind: noop, result: "{{ [output.status, output.data.n] }}" }
    - { name: three, kind: noop, result: "{{ output.data }}" }
"""
    assert ran(playbook(flow)).result == ["ok", 1]


def test_quiet_says_nothing_and_is_no_error() -> None:
    flow = """
- step: start
  tool: { kind: noop, result: 1 }
  next: { spec: { on_no_match: quiet }, arcs: [{ step: end, when: "{{ start > 5 }}" }] }
- { step: end }
"""
    text = playbook(flow).replace(
        "workflow:", "executor: {spec: {no_next_is_error: true}}\nworkflow:"
    )
    done = ran(text)

    assert (done.document["status"], done.of(NextUnmatched)) == ("COMPLETED", [])
    assert ran(text.replace("on_no_match: quiet", "mode: exclusive")).document["status"] == "FAILED"


def test_names_of_libs_are_bound_and_lines_stay_where_they_are() -> None:
    flow = """
- step: end
  tool:
    kind: python
    libs: { j: json, when: { from: datetime, import: date } }
    code: |
      def main():
          return [j.loads("[1]"), when(2030, 1, 2).isoformat(), missing]
"""
    broken = ran(playbook(flow))
    fine = ran(playbook(flow.replace(", missing", "")))
    lacking = ran(playbook(flow.replace("j: json", "j: no_such_module_at_all")))

    assert fine.result == [[1], "2030-01-02"]
    assert broken.error["details"]["line"] == 2
    assert lacking.error["kind"] == "client_error"
    assert "no_such_module_at_all" in lacking.error["message"]


def test_an_answer_handed_whole_to_code_has_its_body_under_both_names(shop: Shop) -> None:
    flow = f"""
- {{ step: start, tool: {{ kind: http, url: "{shop.url}/orders" }}, next: end }}
- step: end
  tool:
    kind: python
    args: {{ answer: "{{{{ start }}}}", same: "{{{{ start.body == start.data }}}}" }}
    code: "result = [answer['body'] == answer['data'], same, context['start']['body'] == answer['data']]"
"""
    done = ran(playbook(flow))

    assert done.result == [True, True, True]
    assert "body" not in done.step("start")["result"]


SLOW = playbook(
    "- {step: start, tool: {kind: shell, cmd: 'sleep 600'}}",
).replace("tried", "slow")


def test_a_child_that_takes_too_long_is_cancelled_and_the_task_is_a_timeout() -> None:
    flow = """
- step: start
  tool: { kind: playbook, path: slow, spec: { timeout: 0.3 }, retry: { max_attempts: 2 } }
  next: { arcs: [{ step: end, when: "{{ error.kind == 'timeout' and error.retryable }}" }] }
- { step: end, tool: { kind: noop, result: "{{ args }}" } }
"""

    async def work(bench: Bench) -> tuple[Run, list[str]]:
        await bench.system.catalog.register(SLOW)
        done = await bench.run(playbook(flow))
        children = [fact.child for fact in done.of(ChildStarted)]
        states = []
        for child in children:
            document = await asyncio.wait_for(bench.system.executions.wait(child), PATIENCE)
            states.append(document["status"])
        return done, states

    done, children = on_bench(work)

    assert done.document["status"] == "COMPLETED"
    assert children == ["CANCELLED", "CANCELLED"]
    kinds = [fact.outcome.error.kind for fact in done.of(TaskDone) if fact.outcome.error]
    assert kinds == ["timeout", "timeout"]


def test_small_results_are_kept_by_reference_where_the_task_says_so() -> None:
    flow = """
- step: start
  tool: { kind: noop, result: "{{ workload.text }}", output: { inline_max_bytes: 10 } }
  next: end
- { step: end, tool: { kind: noop, result: "{{ start | length }}" } }
"""
    done = ran(playbook(flow, workload=f"text: {'x' * 50}"))

    assert done.result == 50
    assert "_ref" in done.step("start")["result"]


def test_reference_first_keeps_what_is_larger_than_a_kibibyte_by_reference() -> None:
    """002 §5.1: the executor says it for all tasks."""
    flow = """
- { step: start, tool: { kind: noop, result: "{{ workload.text }}" }, next: end }
- { step: end, tool: { kind: noop, result: "{{ start | length }}" } }
"""
    first = "executor: {spec: {policy: {results: {reference_first: true}}}}\n"
    done = ran(playbook(flow, workload=f"text: {'x' * 2000}") + first)

    assert done.result == 2000
    assert "_ref" in done.step("start")["result"]


SELECTS = """
- step: start
  tool:
    kind: noop
    result: { items: "{{ workload.items }}", page: { total: 3 } }
    output: { select: [{ path: "items[0].id", as: first }, { path: page.total }, { path: no.such }] }
  next: { arcs: [{ step: end, when: "{{ start.first == 'a' }}", args: { in_arc: "{{ start.total }}" } }] }
- { step: end, tool: { kind: noop, result: "{{ [start.first, start.total, args.in_arc, start.page.total, start.such is defined] }}" } }
"""


@pytest.mark.parametrize("width", [1, 100_000])
def test_selected_fields_go_by_their_names_whether_the_result_is_large_or_not(width: int) -> None:
    items = [{"id": "a"}, {"id": "b" * width}]
    done = ran(playbook(SELECTS), {"items": items})

    assert done.result == ["a", 3, 3, 3, False]
    kept = done.step("start")["result"]
    assert ("_ref" in kept) == (width > 1)
    if width > 1:
        assert {key: kept[key] for key in kept if key not in ("_ref", "_preview")} == {
            "first": "a",
            "total": 3,
            "_store": "kv",
        }


def test_a_later_task_reads_what_the_one_before_selected() -> None:
    flow = """
- step: end
  tool:
    - { name: big, kind: noop, result: { text: "{{ workload.text }}", n: 1 }, output_select: [{ path: n, as: count }] }
    - { name: use, kind: noop, result: "{{ [big.count, big.text | length] }}" }
"""
    assert ran(playbook(flow), {"text": "x" * 100_000}).result == [1, 100_000]


@pytest.mark.parametrize(("size", "place"), [(100_000, "kv"), (1_100_000, "disk")])
def test_the_class_of_place_of_a_large_result_goes_by_its_size(size: int, place: str) -> None:
    flow = """
- { step: start, tool: { kind: python, args: { n: "{{ workload.n }}" }, code: "result = 'x' * n" }, next: end }
- { step: end, tool: { kind: noop, result: "{{ start._store }}" } }
"""
    assert ran(playbook(flow), {"n": size}).result == place


def test_a_file_is_of_the_class_disk() -> None:
    flow = """
- step: start
  tool: { kind: sqlite, database: ":memory:", command: SELECT 1 AS n, result_as: parquet }
  next: end
- { step: end, tool: { kind: noop, result: "{{ start._store }}" } }
"""
    assert ran(playbook(flow)).result == "disk"


def test_a_later_task_reads_the_error_that_the_policy_tolerated() -> None:
    flow = """
- step: end
  tool:
    - name: broken
      kind: shell
      cmd: exit 3
      spec: { policy: { rules: [{ when: "{{ outcome.status == 'error' }}", then: { do: continue } }] } }
    - { name: older, kind: noop, result: ["{{ output.status }}", "{{ output.error.code }}"] }
    - { name: today, kind: noop, result: ["{{ outcome.status }}", "{{ outcome.result[1] }}"] }
"""
    assert ran(playbook(flow)).result == ["ok", 3]


def test_after_a_wait_a_later_task_still_reads_the_outcome_of_the_one_before(shop: Shop) -> None:
    """A long wait gives the worker back; whoever goes on knows of which kind the result was."""
    flow = f"""
- step: end
  tool:
    - {{ name: page, kind: http, url: "{shop.url}/orders" }}
    - name: first
      kind: noop
      result: "{{{{ [outcome.result.orders[0].id, _attempt] }}}}"
      spec: {{ policy: {{ rules: [{{ when: "{{{{ _attempt < 2 }}}}", then: {{ do: retry, attempts: 2, delay: 6 }} }}] }} }}
"""
    assert ran(playbook(flow)).result == [1, 2]


def test_each_answer_of_a_loop_has_its_body_under_both_names_in_code(shop: Shop) -> None:
    flow = f"""
- step: start
  loop: {{ in: [1, 2], iterator: page }}
  tool: {{ kind: http, url: "{shop.url}/orders", params: {{ page: "{{{{ page }}}}" }} }}
  next: end
- step: end
  tool:
    kind: python
    args: {{ answers: "{{{{ start.results }}}}", whole: "{{{{ start }}}}" }}
    code: "result = [a['body']['page'] for a in answers + whole['results'] + context['start']['results']]"
"""
    assert ran(playbook(flow)).result == [1, 2, 1, 2, 1, 2]
