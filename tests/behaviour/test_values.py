"""What templates see and what becomes of values: behaviour that other programs rely on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from noetl.model.events import TaskStarted
from noetl.tools import registry
from tests.examples.system import Bench, Run, on_bench, playbook, ran


def yields(template: Any, *, workload: str = "{}", before: str = "") -> Any:
    """The value of a template in the last step, after these steps."""
    last = f"- {{step: end, tool: {{kind: noop, result: {template!r}}}}}"
    return ran(playbook(f"{before}\n{last}", workload=workload)).result


START = "- {step: start, tool: {kind: noop, result: %s}, next: end}"


# --- Names -------------------------------------------------------------------------------------


def test_workload_keys_are_readable_bare():
    assert yields("{{ city }} {{ workload.city }}", workload="city: Oslo") == "Oslo Oslo"


def test_a_bare_name_is_looked_up_in_args_then_ctx_then_iter_then_workload():
    flow = """
- step: start
  tool: { kind: noop }
  set: { ctx.a: ctx, ctx.b: ctx }
  next: { arcs: [{ step: end, args: { a: args } }] }
- step: end
  tool:
    - name: write
      kind: noop
      set: { iter.c: iter, iter.b: iter }
    - { name: read, kind: noop, result: ["{{ a }}", "{{ b }}", "{{ c }}", "{{ d }}"] }
"""
    workload = "a: workload\nb: workload\nc: workload\nd: workload"

    assert ran(playbook(flow, workload=workload)).result == ["args", "ctx", "iter", "workload"]


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ("{{ %s }}", lambda one: one),
        ("{{ [%s] }}", lambda one: [one]),
        ("{{ {'all': %s} }}", lambda one: {"all": one}),
    ],
)
def test_what_is_written_into_itself_is_what_it_was_before(shape: str, form: Callable[[Any], Any]):
    flow = f"""
- step: start
  tool:
    - {{ name: task, kind: noop, set: {{ iter.a: 1, ctx.a: 1 }} }}
    - name: again
      kind: noop
      set: {{ iter.b: "{shape % "iter"}", ctx.b: "{shape % "ctx"}" }}
    - {{ name: read, kind: noop, result: ["{{{{ iter.b }}}}", "{{{{ ctx.b }}}}"] }}
  vars: {{ v: "{shape % "vars"}" }}
  set: {{ ctx.c: "{shape % "ctx.b"}", ctx.d: "{shape % "ctx"}" }}
  next: end
- step: end
  tool: {{ kind: noop, result: {{ task: "{{{{ start }}}}", ctx: "{{{{ ctx }}}}" }} }}
"""
    done = ran(playbook(flow)).result
    first = form({"a": 1})

    assert done["task"] == [first, first]
    assert done["ctx"]["b"] == first
    assert done["ctx"]["c"] == form(first)
    assert done["ctx"]["d"] == form({"a": 1, "b": first})


def test_an_entry_yields_its_whole_scratchpad_with_the_one_around_it():
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: { name: pads, path: pads }
workbook:
  whole: { tool: { kind: noop, set: { iter.own: 1 }, result: "{{ iter }}" } }
  around: { tool: { kind: noop, result: "{{ parent }}" } }
workflow:
  - step: end
    tool:
      - { name: a, kind: workbook, task: whole, set: { iter.whole: "{{ result }}" } }
      - { name: b, kind: workbook, task: around, set: { iter.around: "{{ result }}" } }
      - { name: read, kind: noop, result: "{{ iter }}" }
"""
    whole = {"parent": {}}

    assert ran(text).result == {"whole": whole, "around": {"whole": whole}}


def test_the_request_is_merged_deeply_over_the_workload():
    text = playbook(
        "- {step: end, tool: {kind: noop, result: '{{ workload }}'}}",
        workload="db: {host: here, port: 1}\ntags: [a]",
    )

    done = ran(text, {"db": {"port": 2}, "tags": ["b"]})

    assert done.result == {"db": {"host": "here", "port": 2}, "tags": ["b"]}


def test_a_step_that_has_not_run_is_false_and_undefined():
    flow = """
- step: start
  tool: { kind: noop }
  next:
    spec: { mode: exclusive }
    arcs:
      - { step: other, when: "{{ other }}" }
      - { step: other, when: "{{ other.rows | length > 0 }}" }
      - { step: end, when: "{{ not other and other is undefined }}" }
- step: other
  tool: { kind: noop }
  next: end
- step: end
  tool: { kind: noop, result: "{{ other | default('never') }}" }
"""
    assert ran(playbook(flow)).result == "never"


def test_something_undefined_in_a_value_is_an_error_that_names_it():
    done = ran(
        playbook(
            "- {step: start, tool: {kind: noop, result: '{{ workload.cty }}'}}",
            workload="city: Oslo",
        )
    )

    assert done.error["kind"] == "schema"
    assert 'task start_task.result: {{ workload.cty }}: "workload.cty"' in done.error["message"]


def test_a_step_is_readable_by_its_name_and_below_steps():
    before = START % "{n: 5}"

    assert yields("{{ [start.n, steps.start.n, steps['start'].n] }}", before=before) == [5, 5, 5]


def test_the_last_result_counts_when_a_step_ran_several_times():
    flow = """
- step: start
  tool: { kind: noop, result: "{{ ctx.n | default(0) + 1 }}" }
  set: { ctx.n: "{{ result }}" }
  next:
    spec: { mode: exclusive }
    arcs: [{ step: start, when: "{{ start < 3 }}" }, { step: end }]
- { step: end, tool: { kind: noop, result: "{{ start }}" } }
"""
    done = ran(playbook(flow))

    assert done.result == 3
    assert done.step("start")["runs"] == 3


def test_the_execution_id_is_a_decimal_string_everywhere():
    done = ran(
        playbook(
            "- {step: end, tool: {kind: noop, result: ['{{ execution_id }}', '{{ job.uuid }}']}}"
        )
    )

    own = done.document["execution_id"]
    assert isinstance(own, str)
    assert own.isdecimal()
    assert 0 < int(own) < 2**63
    assert done.result == [own, own]


def test_vars_are_kept_from_a_result_and_readable_everywhere():
    flow = """
- step: start
  tool: { kind: noop, result: { token: 7, deep: { list: [1, 2] } } }
  vars: { number: "{{ result.token }}", last: "{{ result.deep.list[-1] }}" }
  next: end
- { step: end, tool: { kind: noop, result: "{{ vars }}" } }
"""
    done = ran(playbook(flow))

    assert done.result == {"number": 7, "last": 2}
    assert done.document["vars"] == {"number": 7, "last": 2}


def test_in_a_pipeline_prev_task_and_attempt_are_there():
    flow = """
- step: end
  tool:
    - { name: one, kind: noop, result: { n: 1 } }
    - name: two
      kind: noop
      result: { n: "{{ _prev.n }}", me: "{{ _task }}", try: "{{ _attempt }}" }
    - { name: three, kind: noop, result: "{{ [one.n, two.me, two.data.try, _prev.n] }}" }
"""
    done = ran(playbook(flow))

    assert done.result == [1, "two", 1, 1]


def test_a_step_of_several_tasks_yields_the_last_and_each_by_name():
    before = """
- step: start
  tool: [{ name: one, kind: noop, result: 1 }, { name: two, kind: noop, result: { x: 2 } }]
  next: end
"""
    template = "{{ [start.x, start.results.one, start.results.two.x, start.data.x] }}"

    assert yields(template, before=before) == [2, 1, 2, 2]


# --- Types -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ [1, 'a', none] }}", [1, "a", None]),
        ("{{ 1 + 1 }}", 2),
        ("  {{ 1.5 }}  ", 1.5),
        ("{{ true }}", True),
        ("{{ {'a': [1]} }}", {"a": [1]}),
        ("{{ '12' }}", "12"),
        ("{{ 1 }}{{ 2 }}", "12"),
        ("n={{ 12 }}", "n=12"),
        ("true", "true"),
    ],
)
def test_a_template_that_is_one_expression_keeps_its_type(template, value):
    found = yields(template)

    assert found == value
    assert type(found) is type(value)


def test_data_is_never_rendered_again():
    workload = "text: \"{{ '{{ 1 + 1 }}' }}\""

    assert yields("{{ workload.text }}", workload=workload) == "{{ '{{ 1 + 1 }}' }}"


@pytest.mark.parametrize("text", ["", "false", "False", "0", "no", "none", "None"])
def test_these_texts_are_false_as_a_condition(text):
    flow = """
- step: start
  tool: { kind: noop }
  next:
    spec: { mode: exclusive }
    arcs: [{ step: yes_, when: "{{ workload.text }}" }, { step: end, args: { went: "no" } }]
- { step: yes_, tool: { kind: noop }, next: end }
- { step: end, tool: { kind: noop, result: "{{ args.went | default('yes') }}" } }
"""
    text_of = playbook(flow, workload="text: ''")

    assert ran(text_of, {"text": text}).result == "no"


def test_a_time_is_recorded_as_text_and_is_the_same_after_a_replay():
    flow = """
- step: start
  tool:
    kind: noop
    result:
      now: "{{ now() }}"
      deep: "{{ [{'at': '2026-01-02' | to_datetime}, now() - now()] }}"
  next: end
- step: end
  tool:
    kind: noop
    result: "{{ [start.now, start.deep, (start.now | to_datetime).year > 2000] }}"
"""
    now, deep, is_time = ran(playbook(flow)).result

    assert datetime.fromisoformat(now).tzinfo is not None
    assert deep == [{"at": "2026-01-02T00:00:00Z"}, "P0D"]
    assert is_time


# --- Aliases -----------------------------------------------------------------------------------


def test_the_later_names_mean_the_same():
    flow = """
- step: start
  input: { x: 1 }
  tool:
    - first: { kind: noop, input: { y: "{{ args.x + 1 }}" } }
    - name: second
      kind: noop
      with: { z: "{{ first.y + 1 }}" }
      spec:
        policy:
          rules:
            - when: "{{ output.data.z == 3 and outcome.result.z == 3 and output.status == 'ok' }}"
              then: { do: continue, set: { ctx.seen: "{{ output.data.z }}", iter.own: 4 } }
            - else: { then: { do: fail } }
    - { name: third, kind: noop, result: "{{ iter.own }}", set: { ctx.whole: "{{ output }}" } }
  next: { arcs: [{ step: end, set: { ctx.arc: 5, plain: 6 } }] }
- step: end
  tool: { kind: noop, result: "{{ [ctx.seen, ctx.whole, ctx.arc, args.plain, start] }}" }
"""
    assert ran(playbook(flow)).result == [3, 4, 5, 6, 4]


# --- Results of tools --------------------------------------------------------------------------


def test_an_http_result_can_be_read_in_every_shape(shop):
    flow = f"""
- step: start
  tool: {{ kind: http, url: "{shop.url}/stock/hotels", params: {{ page: 1, pageSize: 2 }} }}
  next:
    spec: {{ mode: exclusive }}
    arcs:
      - step: end
        when: "{{{{ response.paging.hasMore and start.status_code == 200 }}}}"
        args: {{ page: "{{{{ start.paging.page }}}}" }}
- step: end
  tool:
    kind: noop
    result:
      page: "{{{{ args.page }}}}"
      body: "{{{{ start.data.paging.hasMore }}}}"
      through: "{{{{ start.paging.hasMore }}}}"
      first: "{{{{ start.data['items'][0].item_id }}}}"
      keys: "{{{{ start.keys() | sort }}}}"
      kind: "{{{{ start.headers['Content-Type'] | default(start.headers['content-type']) }}}}"
"""
    assert ran(playbook(flow)).result == {
        "page": 1,
        "body": True,
        "through": True,
        "first": "hotels-0",
        "keys": ["data", "elapsed", "headers", "status_code", "url"],
        "kind": "application/json",
    }


def test_a_sql_result_can_be_read_in_every_shape():
    flow = """
- step: start
  tool:
    kind: sqlite
    command: |
      CREATE TABLE t (id INTEGER, name TEXT);
      INSERT INTO t VALUES (1, 'a;b'), (2, 'c');
      SELECT count(*) AS n FROM t;
      SELECT id, name FROM t ORDER BY id
  next: end
- step: end
  tool:
    kind: noop
    result:
      first: "{{ start[0].name }}"
      rows: "{{ start.rows | length }}"
      count: "{{ start.row_count }}"
      columns: "{{ start.columns }}"
      written: "{{ start.command_1.row_count }}"
      n: "{{ start.command_2.rows[0].n }}"
      last: "{{ start.command_3.rows[1].id }}"
      keys: "{{ start.keys() | sort }}"
"""
    assert ran(playbook(flow)).result == {
        "first": "a;b",
        "rows": 2,
        "count": 2,
        "columns": ["id", "name"],
        "written": 2,
        "n": 2,
        "last": 2,
        "keys": ["columns", *(f"command_{n}" for n in range(4)), "row_count", "rows"],
    }


@pytest.mark.parametrize(
    "code",
    [
        "result = args['a'] + a",
        "return a + args['a']",
        "def main(a):\n    return 2 * a",
        "def main(**inputs):\n    return inputs['a'] * 2",
        "import asyncio\nasync def main(a):\n    await asyncio.sleep(0)\n    return a * 2",
        "if a:\n    return input_data['a'] * 2\nresult = None",
        "result = context['workload']['two'] * a",
        "result = json.loads('2') * a",
    ],
)
def test_python_code_sets_result_or_returns_or_defines_main(code):
    body = "\n".join(f"          {line}" for line in code.splitlines())
    text = playbook(
        f"""
- step: end
  tool:
    kind: python
    args: {{ a: "{{{{ workload.three }}}}" }}
    code: |
{body}
""",
        workload="three: 3\ntwo: 2",
    )

    assert ran(text).result == 6


# --- Loops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_loop_yields_results_in_order_and_counts_them(mode):
    flow = f"""
- step: start
  loop:
    in: [3, 1, 0, 2]
    iterator: n
    spec: {{ mode: {mode}, on_error: continue }}
  tool: {{ kind: noop, result: "{{{{ 6 / n }}}}" }}
  next: end
- {{ step: end, tool: {{ kind: noop, result: "{{{{ start }}}}" }} }}
"""
    result = ran(playbook(flow)).result
    [failed] = result.pop("errors")

    assert result == {
        "results": [2, 6, None, 3],
        "stats": {"total": 4, "success": 3, "failed": 1},
    }
    assert failed["index"] == 2
    assert "by zero" in failed["error"]["message"]


def test_why_iterations_failed_can_be_read_by_templates_and_code_and_is_bounded():
    flow = """
- step: start
  loop: { in: "{{ range(150) | list }}", iterator: n, spec: { mode: parallel, on_error: continue } }
  tool: { kind: noop, result: "{{ 1 / (n % 3) }}" }
  next: code
- step: code
  tool:
    kind: python
    args: { errors: "{{ start.errors }}" }
    code: "result = [len(errors), errors[1]['index'], errors[1]['error']['kind']]"
  next: end
- step: end
  loop: { in: [1], iterator: n }
  tool: { kind: noop, result: "{{ [start.stats.failed, code] }}" }
  next: { arcs: [{ step: last, when: "{{ end.errors == [] }}" }] }
- { step: last, next: { arcs: [{ step: end, when: false }] } }
"""
    done = ran(playbook(flow))

    assert done.step("last")["status"] == "done"
    assert done.result["results"] == [[50, [50, 3, "schema"]]]
    assert "errors" not in done.result
    reasons = done.step("start")["loop"]["errors"]
    assert [one["count"] for one in reasons] == [50]


def test_why_iterations_failed_is_in_one_order_whichever_of_them_ended_first():
    flow = """
- step: start
  loop:
    in: [rare-2, rare-1, often, often]
    iterator: why
    spec: { mode: sequential, on_error: continue }
  tool: { kind: python, args: { why: "{{ iter.why }}" }, code: "raise ValueError(why)" }
"""
    reasons = ran(playbook(flow)).step("start")["loop"]["errors"]

    assert [one["count"] for one in reasons] == [2, 1, 1]
    assert ["rare-1" in one["message"] for one in reasons] == [False, True, False]


def test_iterations_whose_children_failed_for_one_reason_are_counted_together():
    child = playbook("- {step: start, tool: {kind: shell, cmd: exit 9}}").replace("tried", "child")
    flow = """
- step: start
  loop: { in: [1, 2, 3], iterator: n, spec: { on_error: continue } }
  tool: { kind: playbook, path: child }
"""

    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(child)
        return await bench.run(playbook(flow))

    done = on_bench(work)

    [reason] = done.step("start")["loop"]["errors"]
    assert reason["count"] == 3
    assert reason["message"].startswith("child execution failed: ")
    told = [one["error"]["message"] for one in done.result["errors"]]
    assert len(set(told)) == 3  # each names its child


@pytest.mark.parametrize(
    ("collection", "results"),
    [
        ("[]", []),
        ("{ from: 2, to: 8, step: 3 }", [2, 5]),
        ("{ from: 3, to: 0, step: -1 }", [3, 2, 1]),
        ("{ a: 1, b: 2 }", [{"key": "a", "value": 1}, {"key": "b", "value": 2}]),
        ('"{{ range(3) }}"', [0, 1, 2]),
    ],
)
def test_what_a_loop_may_go_over(collection, results):
    flow = f"""
- step: start
  loop: {{ in: {collection}, iterator: x }}
  tool: {{ kind: noop, result: "{{{{ x }}}}" }}
  next: end
- {{ step: end, tool: {{ kind: noop, result: "{{{{ start.results }}}}" }} }}
"""
    assert ran(playbook(flow)).result == results


def test_positions_are_readable_in_a_loop():
    flow = """
- step: end
  loop: { in: [a, b], iterator: x }
  tool: { kind: noop, result: "{{ [iter.index, loop.index, loop_index, loop.length] }}" }
"""
    assert ran(playbook(flow)).result["results"] == [[0, 0, 0, 2], [1, 1, 1, 2]]


def test_the_outer_iteration_is_readable_as_parent_two_levels_down():
    book = """
hotels:
  args: { country: "" }
  loop:
    in: "{{ [args.country ~ '1', args.country ~ '2'] }}"
    iterator: hotel
    spec: { mode: parallel }
  tool: { kind: workbook, task: rooms, args: { rooms: [x, y] } }
rooms:
  loop: { in: "{{ args.rooms }}", iterator: room }
  tool:
    kind: noop
    result: "{{ iter.parent.parent.country }}/{{ iter.parent.hotel }}/{{ iter.room }}"
"""
    flow = """
- step: start
  loop: { in: [no, pt], iterator: country, spec: { mode: parallel } }
  tool: { kind: workbook, task: hotels, args: { country: "{{ iter.country }}" } }
  next: end
- step: end
  tool:
    kind: python
    args: { found: "{{ start.results }}" }
    code: result = [r for c in found for h in c["results"] for r in h["results"]]
"""
    done = ran(playbook(flow, workbook=book))

    assert done.result == [f"{c}/{c}{n}/{r}" for c in ("no", "pt") for n in "12" for r in "xy"]
    calls = [fact.action_id for fact in done.of(TaskStarted) if fact.task == "rooms_task"]
    assert len(calls) == len(set(calls)) == 8


# --- Config that comes out empty or as something else ------------------------------------------

NEEDY = [
    kind for kind, tool in registry.tools().items() if tool.needs and kind not in ("workbook",)
]


@pytest.mark.parametrize("kind", NEEDY)
def test_a_task_whose_config_comes_out_empty_says_what_its_kind_needs(kind: str):
    needs = registry.tools()[kind].needs
    config = ", ".join(f"{group[0]}: '{{{{ workload.nothing }}}}'" for group in needs)
    flow = f"- {{step: end, tool: {{kind: {kind}, {config}}}}}"

    error = ran(playbook(flow, workload="nothing: null")).error

    assert (error["kind"], error["code"]) == ("schema", "config")
    assert f"kind {kind} needs `{needs[0][0]}`" in error["message"]


@pytest.mark.parametrize("payload", ["[1, 2]", "text", "7"])
def test_inputs_of_a_sub_playbook_that_are_no_mapping_fail_the_task(payload: str):
    flow = "- {step: end, tool: {kind: playbook, path: child, payload: '{{ workload.given }}'}}"

    error = ran(playbook(flow, workload=f"given: {payload}")).error

    assert (error["kind"], error["code"]) == ("schema", "config")
    assert "`payload` of kind playbook: it must be a mapping, not" in error["message"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("http, url: '{{ workload.x }}'", "`url` of kind http: it must be a text, not a list."),
        (
            "http, url: /, method: '{{ workload.w }}'",
            "`method` of kind http: it cannot be 'w'. Write GET, POST, PUT, PATCH, DELETE, HEAD or"
            " OPTIONS.",
        ),
        (
            "http, url: /, headers: {a: '{{ workload.x }}'}",
            "`headers[...]` of kind http: it must be true or false, a number or a text, not a"
            " list.",
        ),
        (
            "http, url: /, timeout: '{{ workload.w }}'",
            "`timeout` of kind http: it is not written as it must be. Write it like 30s.",
        ),
        (
            "sqlite, table: t, rows: '{{ workload.x }}'",
            "`rows[0]` of kind sqlite: it must be a mapping, not a whole number.",
        ),
        (
            "sqlite, table: t, rows: [], batch_size: '{{ workload.x[1] }}'",
            "`batch_size` of kind sqlite: it must be a whole number >= 1.",
        ),
    ],
)
def test_config_that_comes_out_wrong_is_told_in_the_words_of_validate(task: str, said: str):
    flow = f"- {{step: end, tool: {{kind: {task}}}}}"

    error = ran(playbook(flow, workload="{x: [1, 0], w: w}")).error

    assert (error["kind"], error["code"]) == ("schema", "config")
    assert error["message"] == f"{said} Check its template."


def test_a_key_that_an_outcome_lacks_is_told_with_the_keys_that_it_has():
    task = "{kind: noop, result: {x: 1}, set: {ctx.z: '{{ output.x }}'}}"

    run = ran(playbook(f"- {{step: start, tool: {task}}}"))

    assert run.error is not None
    assert '"output" has no "x". It has status, error, meta, result.' in run.error["message"]
