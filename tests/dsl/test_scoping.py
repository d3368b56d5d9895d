"""Names in templates: which exist where, which nothing defines, and what a step needs of them."""

import json
import sys

import pytest

from noetl.model.net import Patch
from noetl.tools.registry import tools
from noetl.tools.sql.config import SqlConfig
from tests.dsl.compiling import codes, found, messages, step_of

TOOLS = tools()

# --- Names: reserved ones, place by place ------------------------------------------------------

AT = "@"
PLACES = {
    "workload": ("- {step: start, tool: {kind: noop}}", 'workload: {x: "@"}\n'),
    "step args": ('- {step: start, args: {x: "@"}, tool: {kind: noop}}', ""),
    "admission": (
        '- {step: start, spec: {policy: {admit: {rules: [{when: "@", then: {allow: true}}]}}},'
        " tool: {kind: noop}}",
        "",
    ),
    "collection": ('- {step: start, loop: {in: "@", iterator: one}, tool: {kind: noop}}', ""),
    "task": (
        '- {step: start, loop: {in: [1], iterator: one}, tool: {kind: noop, result: "@"}}',
        "",
    ),
    "inputs": ('- {step: start, tool: {kind: noop, args: {x: "@"}}}', ""),
    "later task": (
        '- {step: start, tool: [{name: a, kind: noop}, {name: b, kind: noop, args: {x: "@"}}]}',
        "",
    ),
    "policy": (
        "- {step: start, tool: {kind: noop, spec: {policy: {rules:"
        ' [{when: "@", then: {do: break}}]}}}}',
        "",
    ),
    "set_ctx": (
        "- {step: start, tool: {kind: noop, spec: {policy: {rules:"
        ' [{else: {then: {do: break, set_ctx: {x: "@"}}}}]}}}}',
        "",
    ),
    "retry": ('- {step: start, tool: {kind: noop, retry: {when: "@"}}}', ""),
    "poll": ('- {step: start, tool: {kind: noop, poll: {until: "@", max_attempts: 2}}}', ""),
    "task set": ('- {step: start, tool: {kind: noop, set: {ctx.x: "@"}}}', ""),
    "sink": ('- {step: start, tool: {kind: noop}, sink: {tool: {kind: noop}, args: {x: "@"}}}', ""),
    "vars": ('- {step: start, tool: {kind: noop}, vars: {x: "@"}}', ""),
    "step set": ('- {step: start, tool: {kind: noop}, set: {ctx.x: "@"}}', ""),
    "case": ('- {step: start, tool: {kind: noop}, case: [{when: "@", then: {skip: true}}]}', ""),
    "step.enter": (
        "- {step: start, tool: {kind: noop}, case:"
        ' [{when: "{{ event.name == \'step.enter\' }}", then: {set: {ctx.x: "@"}}}]}',
        "",
    ),
    "step.exit": (
        "- {step: start, tool: {kind: noop}, case:"
        ' [{when: "{{ event.name == \'step.exit\' }}", then: {set: {ctx.x: "@"}}}]}',
        "",
    ),
    "loop.done": (
        "- {step: start, loop: {in: [1], iterator: one}, tool: {kind: noop}, case:"
        ' [{when: "{{ event.name == \'loop.done\' }}", then: {result: {value: "@"}}}]}',
        "",
    ),
    "end of an iteration": (
        "- {step: start, loop: {in: [1], iterator: one}, tool: {kind: noop}, case:"
        ' [{when: "{{ event.name == \'step.exit\' }}", then: {result: {value: "@"}}}]}',
        "",
    ),
    "case task": (
        "- {step: start, tool: {kind: noop}, case: [{when: true, then:"
        ' [{also: {tool: {kind: noop, result: "@"}}}]}]}',
        "",
    ),
    "case next": (
        "- {step: start, tool: {kind: noop}, case: [{when: true, then:"
        ' {next: [{step: end, args: {x: "@"}}]}}]}\n- {step: end, tool: {kind: noop}}',
        "",
    ),
    "guard": (
        '- {step: start, tool: {kind: noop}, next: {arcs: [{step: end, when: "@"}]}}\n'
        "- {step: end, tool: {kind: noop}}",
        "",
    ),
    "arc args": (
        '- {step: start, tool: {kind: noop}, next: {arcs: [{step: end, args: {x: "@"}}]}}\n'
        "- {step: end, tool: {kind: noop}}",
        "",
    ),
}
"""Where a template may stand: a playbook with `@` in its place."""

ALL = set(PLACES)
ON_THE_SERVER = {"step.enter", "step.exit", "loop.done"}
RUNNING = {"task", "inputs", "later task", "policy", "set_ctx", "retry", "poll", "sink", "case"} | {
    *("task set", "case task", "end of an iteration"),
}
AFTER_A_CALL = {"retry", "poll", "task set", "sink", "vars", "step set", "case", "case task"} | {
    *(*ON_THE_SERVER, "end of an iteration"),
}
ROUTING = {"case next", "guard", "arc args"}
VISIBLE = {
    "workload.x | default(0)": ALL,
    "execution_id": ALL,
    "ctx.x | default(0)": ALL - {"workload"},
    "vars.x | default(0)": ALL - {"workload"},
    "steps.start | default(0)": ALL - {"workload"},
    "args.x | default(0)": ALL - {"workload"},
    "iter.index": RUNNING,
    "_attempt": RUNNING,
    "_prev": RUNNING,
    "outcome.status": {"policy", "set_ctx", "later task", *AFTER_A_CALL, *ROUTING},
    "output.status": {"policy", "set_ctx", "later task", *AFTER_A_CALL, *ROUTING},
    "event.name": {"step args", "admission", "collection"} | AFTER_A_CALL | ROUTING,
    "error.kind": AFTER_A_CALL | ROUTING,
    "result.x": AFTER_A_CALL | ROUTING,
    "response.x": AFTER_A_CALL | ROUTING,
    "this.x": AFTER_A_CALL | ROUTING,
    "keychain.key": {"task", "inputs", "later task", "sink", "case task"},
}
"""Which of the reserved names exists where."""
KEYCHAIN = "keychain: [{name: key, kind: credential}]\n"


def complaints(place: str, expression: str) -> list[str]:
    workflow, root = PLACES[place]
    template = "{{ " + expression + " }}"
    return codes(workflow.replace(AT, template), KEYCHAIN + root.replace(AT, template))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("expression", VISIBLE)
def test_a_reserved_name_exists_exactly_where_the_scope_table_says(expression, place):
    complaint = "secret-outside-tool" if expression.startswith("keychain") else "not-in-scope"
    if "default" in expression:
        # Every use is guarded: it is undefined, which is worth a warning.
        complaint = "guarded-name"
    expected = [] if place in VISIBLE[expression] else [complaint]
    if expression.startswith("output") and place == "later task":
        expected = ["older-form"]

    assert complaints(place, expression) == expected


@pytest.mark.parametrize("place", ["guard", "arc args", "case next"])
@pytest.mark.parametrize("name", ["iter.one", "one"])
def test_the_element_of_a_loop_is_gone_when_the_step_is_left(name, place):
    workflow, _ = PLACES[place]
    looped = workflow.replace(
        "step: start,", "step: start, loop: {in: [1], iterator: one},"
    ).replace(AT, "{{ " + name + " }}")

    assert codes(looped) == ["not-in-scope"]


def test_the_element_of_a_loop_is_readable_by_its_bare_name_inside():
    workflow, _ = PLACES["task"]

    assert codes(workflow.replace(AT, "{{ one }}")) == []
    assert codes(workflow.replace(AT, "{{ iter.one }}")) == []


def test_a_workbook_loop_sees_the_iteration_of_its_caller():
    root = "workbook: {e: {loop: {in: '{{ iter.city }}', iterator: hotel}, tool: {kind: noop}}}\n"

    assert (
        codes(
            "- {step: start, loop: {in: [1], iterator: city}, tool: {kind: workbook, name: e}}",
            root,
        )
        == []
    )


# --- Names: those the playbook defines ---------------------------------------------------------


def reading(name: str, rest: str = "") -> str:
    return f"- {{step: start, {rest}tool: {{kind: noop, result: '{{{{ {name} }}}}'}}}}"


def test_a_name_that_nothing_defines_is_pointed_out_at_its_place():
    assert found(reading("citty")) == [("unknown-name", "'{{ citty }}'}}")]


def test_a_misspelt_name_is_recognised():
    assert 'Did you mean "city"?' in messages(reading("citty"), "workload: {city: Oslo}\n")


def test_a_name_that_resembles_nothing_gets_another_hint():
    assert "Declare it under `workload`" in messages(reading("zzz"))


@pytest.mark.parametrize(
    ("name", "written_here"),
    [
        ("null", "`none`"),
        ("inputs.day", "workload.NAME"),
        ("outputs.fetch", "goes by its name"),
        ("env.HOME", "no environment variables"),
    ],
)
def test_names_that_exist_elsewhere_are_answered_with_what_to_write(name, written_here):
    assert written_here in messages(reading(name))


@pytest.mark.parametrize(
    "expression",
    [
        "citty | default('x')",
        "citty is defined",
        "citty | d(1)",
        "'y' if citty is defined else 'n'",
    ],
)
def test_a_name_that_may_be_missing_is_not_complained_about(expression):
    workflow = f'- {{step: start, tool: {{kind: noop, result: "{{{{ {expression} }}}}"}}}}'

    assert codes(workflow) == []


def test_a_default_for_one_name_does_not_excuse_another():
    assert codes(reading("one | default(two)")) == ["unknown-name"]


@pytest.mark.parametrize(
    ("workflow", "root"),
    [
        pytest.param(reading("city"), "workload: {city: 1}\n", id="workload"),
        pytest.param(reading("city", "args: {city: 1}, "), "", id="args of the step"),
        pytest.param(
            "- {step: start, tool: {kind: noop}, next: [{step: end, args: {city: 1}}]}\n"
            "- {step: end, tool: {kind: noop, result: '{{ city }}'}}",
            "",
            id="args of an arc",
        ),
        pytest.param(
            "- {step: start, tool: {kind: noop, set: {ctx.city: 1}}, next: end}\n"
            "- {step: end, tool: {kind: noop, result: '{{ city }}'}}",
            "",
            id="ctx",
        ),
        pytest.param(
            "- {step: start, tool: [{kind: noop, set: {iter.city: 1}},"
            " {kind: noop, result: '{{ city }}'}]}",
            "",
            id="iter",
        ),
        pytest.param(
            "- {step: start, tool: [{name: city, kind: noop}, {kind: noop, result: '{{ city }}'}]}",
            "",
            id="a task",
        ),
        pytest.param(
            "- {step: start, tool: {kind: noop}, next: end}\n"
            "- {step: end, tool: {kind: noop, result: '{{ start.x }}'}}",
            "",
            id="a step",
        ),
        pytest.param(
            "- {step: start, tool: {kind: noop}, case: [{when: '{{ event.name }}',"
            " then: {collect: {from: response.x, into: city}, result: {value: '{{ city }}'}}}]}",
            "",
            id="an accumulator",
        ),
        pytest.param(
            "- step: start\n"
            "  spec: {policy: {admit: {rules: [{else: {allow: true, set: {city: 1}}}]}}}\n"
            "  tool: {kind: noop, result: '{{ city }}{{ args.city }}'}",
            "",
            id="what an admission rule adds",
        ),
        pytest.param(
            "- {step: start, spec: {compensate: undo}, tool: {kind: noop}}\n"
            "- {step: undo, tool: {kind: noop, result: '{{ step }}{{ args.result }}'}}",
            "",
            id="what a compensation is given",
        ),
        pytest.param(
            "- {step: start, args: {city: 1}, tool: {kind: workbook, task: look}}",
            "workbook: {look: {kind: noop, result: '{{ city }}{{ args.city }}'}}\n",
            id="what the step of a workbook task has",
        ),
        pytest.param(
            "- {step: start, spec: {compensate: undo}, tool: {kind: noop}}",
            "workbook: {undo: {kind: noop, result: '{{ step }}{{ args.result }}'}}\n",
            id="what a compensating workbook entry is given",
        ),
        pytest.param(
            "- {step: start, tool: {kind: noop}}\n"
            "- {step: tell, tool: {kind: noop, result: '{{ failed_step }}{{ args.error }}'}}",
            "executor: {spec: {on_failure: tell}}\n",
            id="what on_failure is given",
        ),
    ],
)
def test_a_name_that_something_defines_is_known(workflow, root):
    assert codes(workflow, root) == []


@pytest.mark.parametrize("read", ["city", "args.city"])
@pytest.mark.parametrize(
    ("workflow", "root"),
    [
        ("- {step: start, tool: {kind: noop, args: {city: 1}, result: '{{ @ }}'}}", ""),
        (
            "- {step: start, tool: {kind: noop},"
            " sink: {tool: {kind: noop, result: '{{ @ }}'}, args: {city: '{{ result }}'}}}",
            "",
        ),
        (
            "- {step: start, tool: {kind: workbook, name: look}}",
            "workbook: {look: {kind: noop, args: {city: '{{ ctx }}'}, result: '{{ @ }}'}}\n",
        ),
    ],
)
def test_what_a_task_gives_to_its_tool_is_no_name_for_templates(workflow, root, read):
    said = messages(workflow.replace(AT, read), root.replace(AT, read))

    assert "An input of a task is given to its tool" in said


def test_an_arg_that_nothing_brings_is_reported():
    said = messages("- {step: start, args: {city: 1}, tool: {kind: noop, result: '{{ args.x }}'}}")

    assert said == (
        '`args` has no "x". The `args` of the step itself, or of what leads to it, can bring it.'
    )


@pytest.mark.parametrize(
    ("workflow", "workbook"),
    [
        ("tool: {kind: playbook, path: a/b, args: {key: '{{ keychain.k.v }}'}}", ""),
        ("tool: {kind: playbook, path: a/b, payload: {key: '{{ keychain.k.v }}'}}", ""),
        ("tool: {kind: workbook, task: look, args: {key: '{{ keychain.k.v }}'}}", ""),
        ("tool: {kind: workbook, task: look}", "args: {key: '{{ keychain.k.v }}'}, "),
    ],
)
def test_a_secret_is_not_handed_to_a_playbook_or_a_workbook_entry(workflow, workbook):
    root = f"""
keychain: [{{name: k, kind: static, data: {{v: 1}}}}]
workbook: {{look: {{{workbook}tool: {{kind: noop}}}}}}
"""

    said = messages(f"- {{step: start, {workflow}}}", root)

    assert said.startswith("a secret is not handed to a playbook or a workbook entry.")


def test_args_of_a_looped_entry_do_not_see_its_element():
    entry = "{args: {n: '{{ z }}'}, loop: {in: [1], iterator: z}, tool: {kind: noop}}"

    assert codes(
        "- {step: start, tool: {kind: workbook, name: look}}", f"workbook: {{look: {entry}}}\n"
    ) == ["unknown-name"]


def test_names_of_one_step_are_not_known_in_another():
    workflow = """
        - {step: start, args: {city: 1}, tool: {kind: noop}, next: end}
        - {step: end, tool: {kind: noop, result: "{{ city }}"}}
        """

    assert codes(workflow) == ["unknown-name"]


def test_what_a_result_is_taken_from_is_checked_like_any_template():
    taken = "- {step: start, case: [{when: true, then: {result: {from: '@'}}}]}"

    assert codes(taken.replace(AT, "nowhere")) == ["unknown-name"]
    assert codes(taken.replace(AT, "{{ broken( }}")) == ["template-syntax"]


def test_a_template_in_a_knob_is_checked_like_any_template():
    knob = "- {step: start, tool: {kind: noop, spec: {timeout: '{{ @ }}'}}}"

    assert codes(knob.replace(AT, "nowhere")) == ["unknown-name"]
    assert codes(knob.replace(AT, "broken(")) == ["template-syntax"]


# --- Secrets -----------------------------------------------------------------------------------


def test_a_secret_that_is_not_declared_is_pointed_out_with_the_nearest_one():
    workflow = "- {step: start, tool: {kind: noop, result: '{{ keychain.kee }}'}}"

    assert codes(workflow, KEYCHAIN) == ["undeclared-keychain"]
    assert 'Did you mean "key"?' in messages(workflow, KEYCHAIN)


def test_a_secret_in_a_guard_is_refused():
    workflow, _ = PLACES["guard"]

    assert codes(workflow.replace(AT, "{{ keychain.key == 'x' }}"), KEYCHAIN) == [
        "secret-outside-tool"
    ]


# --- What the net says of its templates --------------------------------------------------------


@pytest.mark.parametrize(
    ("guard", "may_follow_failure"),
    [
        ("{{ event.name == 'step.failed' }}", True),
        ("{{ event.error is defined }}", True),
        ("{{ error }}", True),
        ("{{ ctx.count | default(0) > 3 or error.kind == 'timeout' }}", True),
        ("{{ ctx.error | default(0) }}", False),
        ("{{ workload.event | default(0) }}", False),
        ("{{ start.error }}", False),
        ("{{ 'error' == 'event' }}", False),
    ],
)
def test_an_arc_is_for_failures_when_its_guard_reads_event_or_error(guard, may_follow_failure):
    step = step_of(PLACES["guard"][0].replace(AT, guard))

    assert step.router.arcs[0].on_failure is may_follow_failure


OPEN_ARC = "- {step: start, tool: {kind: noop}, next: end}\n- {step: end, tool: {kind: noop}}"


def test_an_arc_without_guard_is_not_for_failures():
    assert [arc.on_failure for arc in step_of(OPEN_ARC).router.arcs] == [False]


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("{{ event.name == 'call.done' }}", ("call.done",)),
        ("{{ 'call.done' == event.name }}", ("call.done",)),
        ("{{ event.name == 'call.done' and response.x }}", ("call.done",)),
        ("{{ event.name in ['step.exit', 'call.done'] }}", ("call.done", "step.exit")),
        ("{{ event.name == 'a' or event.name == 'b' }}", ("a", "b")),
        ("{{ event.name == 'a' and event.name in ['a', 'b'] }}", ("a",)),
        ("{{ event.name == 'a' or response.x }}", None),
        ("{{ event.name != 'a' }}", None),
        ("{{ not event.name == 'a' }}", None),
        ("{{ response.x }}", None),
        ("{{ event.name == workload.name | default('') }}", None),
    ],
)
def test_an_event_rule_knows_the_events_it_can_hold_for(condition, names):
    assert step_of(PLACES["case"][0].replace(AT, condition)).rules[0].events == names


def test_a_rule_without_event_in_its_condition_is_open_to_all():
    rules = step_of(
        "- {step: start, tool: {kind: noop}, case: [{when: true, then: {skip: true}},"
        " {else: {skip: true}}]}"
    ).rules

    assert [rule.events for rule in rules] == [None, None]


def test_a_step_needs_what_its_body_reads_and_no_more():
    needs = step_of(
        """
        - step: start
          spec: {policy: {admit: {rules: [{when: "{{ ctx.at_the_door }}", then: {allow: true}}]}}}
          args: {a: "{{ workload.city.name }}"}
          loop: {in: "{{ ctx.todo }}", iterator: one}
          tool:
            - name: first
              kind: noop
              result: "{{ steps.before.x }}{{ vars.seen }}{{ keychain.key }}"
              set: {ctx.done: 1, ctx.todo: [], ctx.at_the_door: 1, ctx.later: 1, ctx.count: 1}
            - name: second
              kind: noop
              spec: {policy: {rules: [{when: "{{ ctx.count > 3 }}", then: {do: break}}]}}
          next: {arcs: [{step: end, when: "{{ ctx.later }}", args: {x: "{{ workload.y }}"}}]}
        - {step: end, tool: {kind: noop}}
        """,
        root=KEYCHAIN + "workload: {city: {name: Oslo}, y: 1}\n",
    ).needs

    assert needs.ctx == ("count", "todo")
    assert needs.workload == ("city",)
    assert needs.steps == ("before",)
    assert needs.vars == ("seen",)
    assert needs.keychain == ("key",)


@pytest.mark.parametrize(
    "whole", ["ctx", "ctx | tojson", "ctx[workload.key]", "ctx | items | list"]
)
def test_a_step_that_reads_a_whole_scope_needs_all_of_it(whole):
    needs = step_of(
        PLACES["inputs"][0].replace(AT, "{{ " + whole + " }}"), root="workload: {key: a}\n"
    ).needs

    assert needs.ctx == ("*",)


def test_bare_names_are_needed_under_their_own_name():
    needs = step_of(
        PLACES["inputs"][0].replace(AT, "{{ city.name }}"), root="workload: {city: {}}\n"
    ).needs

    assert (needs.bare, needs.workload) == (("city",), ())


def test_a_step_needs_what_the_workbook_entry_it_calls_reads():
    root = "workbook: {entry: {kind: noop, args: {a: '{{ ctx.x | default(1) }}'}}}\n"

    assert step_of("- {step: start, tool: {kind: workbook, name: entry}}", root=root).needs.ctx == (
        "x",
    )


# --- Keys: what the workload, args and results certainly have ----------------------------------

SQL_KINDS = sorted(kind for kind, tool in TOOLS.items() if issubclass(tool.config, SqlConfig))


def read_after(tool: str, template: str) -> str:
    """What is said of a template that reads the result of this tool; empty: nothing."""
    return messages(f"""
- step: q
  tool: {tool}
  next: {{arcs: [{{step: end}}]}}
- step: end
  tool: {{kind: noop, result: "{template}"}}
""")


def query(sql: str, kind: str = "sqlite") -> str:
    where = "database: a.db" if kind in ("sqlite", "duckdb") else "auth: db"
    return f"{{kind: {kind}, {where}, command: {json.dumps(sql)}}}"


@pytest.mark.parametrize("kind", SQL_KINDS)
def test_a_column_that_the_statement_does_not_yield_is_reported_for_every_sql_kind(kind):
    tool = query("SELECT id, sum(amount) AS total FROM orders GROUP BY id", kind)

    said = read_after(tool, "{{ q.rows[0].totl }}")

    assert said == 'a row of the result of step "q" has no "totl". Did you mean "total"?'
    assert read_after(tool, "{{ q.rows[0].total }}") == ""


@pytest.mark.parametrize(
    "template",
    [
        "{{ q[0].totl }}",
        "{{ q.data[0].totl }}",
        "{{ q.result.rows[-1].totl }}",
        "{{ q.rows[workload.n].totl }}",
        "{{ q.command_1.rows[0].totl }}",
        "{{ steps.q.rows[0]['totl'] + 1 }}",
    ],
)
def test_rows_are_read_in_all_the_ways_of_a_result(template):
    tool = query("DELETE FROM old; SELECT id, total FROM orders")

    assert 'Did you mean "total"?' in read_after(tool, template)


def test_who_reads_a_column_of_the_whole_result_is_told_where_the_rows_are():
    tool = query("SELECT count(*) AS total FROM orders")

    for template in ("{{ q.total > 2 }}", "{{ q.rows.total }}", "{{ q.command_0.total }}"):
        assert "write `rows[0].total`" in read_after(tool, template)
    assert "It has rows, row_count, columns" in read_after(tool, "{{ q.nothing_like_it }}")


def test_a_loop_over_rows_knows_their_columns():
    def loop(template: str) -> str:
        return messages(f"""
- step: q
  tool: {query("SELECT id, total FROM orders")}
  next: {{arcs: [{{step: each}}]}}
- step: each
  loop: {{in: "{{{{ q.rows }}}}", iterator: order}}
  tool: {{kind: noop, result: "{template}"}}
""")

    assert loop("{{ order.totl }}") == '`order` has no "totl". Did you mean "total"?'
    assert loop("{{ order.total }}") == ""


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM orders",
        "SELECT o.*, 1 AS a FROM orders o",
        "SELECT id, count(*) FROM orders",
        "SELECT id, total totl2 FROM orders",
        "SELECT id, id FROM orders",
        "SELECT id, current_date FROM orders",
        "SELECT id FROM a UNION ALL SELECT id FROM b",
        "SELECT id FROM a FOR JSON AUTO",
        "SELECT id INTO b FROM a",
        "SELECT AS STRUCT id FROM a",
        "SELECT TOP 5 id FROM a",
        "SELECT DISTINCT ON (id) id FROM a",
        "SELECT unnest(x) AS id FROM a",
        "SELECT id FROM a |> EXTEND 1 AS totl",
        "WITH a AS (SELECT 1 AS id) INSERT INTO b SELECT id FROM a",
        "INSERT INTO b SELECT id FROM a",
        "INSERT INTO b VALUES (1)",
        "FROM a SELECT id",
        "SELECT id, FROM a",
        "SELECT 'it\\'s' AS id FROM a",
        "PRAGMA table_info(a)",
        "SELECT id FROM {{ workload.table }}",
        "SELECT (id FROM a",
        "",
    ],
)
def test_nothing_is_said_of_columns_that_are_not_certain(sql):
    assert "has no" not in read_after(query(sql), "{{ q.rows[0].totl }}")


@pytest.mark.parametrize(
    "sql",
    [
        "select o.id, o.total -- comment, with * and FROM\nfrom orders o",
        'SELECT DISTINCT "id", x AS "total" FROM orders',
        "WITH a AS (SELECT * FROM b) SELECT id, total FROM a ORDER BY 1 LIMIT 3",
        "SELECT id, CASE WHEN x > 1 THEN (SELECT max(y) FROM z) ELSE 0 END AS total FROM a",
        "SELECT id, ', FROM *' AS total FROM a FOR UPDATE",
        "INSERT OR REPLACE INTO a (id, total) VALUES (1, 2) RETURNING id, total",
        "SELECT 1 AS id, 2 AS total",
    ],
)
def test_columns_are_found_in_ordinary_statements(sql):
    tool = query(sql)

    assert 'Did you mean "total"?' in read_after(tool, "{{ q.rows[0].totl }}")
    assert "has no" not in read_after(tool, "{{ q.rows[0].TOTAL }}{{ q.rows[0].id }}")


@pytest.mark.parametrize(
    "rest",
    [
        "table: t",
        "result_as: parquet",
        "spec: {policy: {rules: [{else: {then: {do: continue}}}]}}",
    ],
)
def test_a_task_that_yields_something_else_than_its_rows_is_left_alone(rest):
    tool = f"{{kind: sqlite, database: a.db, command: SELECT id FROM a, {rest}}}"

    assert "has no" not in read_after(tool, "{{ q.rows[0].totl }}")


PYTHON = {
    "returned": "return {'total': 1}",
    "result": "x = 1\nresult = {'total': x}",
    "main": "def main(x=1):\n    if x:\n        return {'total': 2}\n    return {'other': 1}",
    "async": "async def main():\n    return {'total': len('a')}",
    "nested": "return {'data': {'total': 1}}",
}


@pytest.mark.parametrize("code", PYTHON.values(), ids=PYTHON)
def test_a_key_that_python_code_never_yields_is_reported(code):
    tool = f"{{kind: python, code: {json.dumps(code)}}}"

    said = read_after(tool, "{{ q.data.totl }}")

    assert said == 'the result of step "q" has no "totl". Did you mean "total"?'
    assert read_after(tool, "{{ q.data.total }}") == ""


@pytest.mark.parametrize(
    "code",
    [
        "result = {'total': 1}\nresult['totl'] = 2",
        "result = {'total': 1}\nglobals()['result'] = {'totl': 2}",
        "if args:\n    return {'total': 1}\nresult = {'totl': 1}",
        "if args:\n    return {'total': 1}\ndef main():\n    return {'totl': 2}",
        "return {'total': 1, **args}",
        "return {name: 1 for name in args}",
        "return dict(total=1)",
        "def main():\n    yield {'total': 1}",
        "def main():\n    if 1:\n        return found()\n    return {'total': 1}",
        "@wrapped\ndef main():\n    return {'total': 1}",
        "from elsewhere import result\ndef main():\n    return {'total': 1}",
        "def main(result):\n    return {'total': 1}",
        "{{ workload.code }}",
    ],
)
def test_nothing_is_said_of_python_code_that_may_yield_more(code):
    tool = f"{{kind: python, code: {json.dumps(code)}}}"

    assert "has no" not in read_after(tool, "{{ q.totl }}")


def test_answers_of_http_are_not_known():
    assert read_after("{kind: http, url: 'http://a'}", "{{ q.anything.at[0].all }}") == ""


def test_what_a_template_expects_to_be_missing_is_not_reported():
    tool = query("SELECT id FROM orders")

    assert read_after(tool, "{{ q.rows[0].totl | default(1) }}") == ""
    assert read_after(tool, "{{ q.rows[0].totl is defined }}") == ""
    assert read_after(tool, "{{ q['rows'][0]['totl'] | default(1) }}") == ""
    assert read_after(tool, "{{ ctx['x'] | default(1) }}{{ args['x'] is defined }}") == ""


def test_a_misspelt_arg_is_reported():
    said = messages("""
- step: start
  tool: {kind: noop}
  next: {arcs: [{step: end, args: {customer: 1}}]}
- step: end
  tool: {kind: noop, result: "{{ args.custmer }}{{ args.customer }}"}
""")

    assert said == '`args` has no "custmer". Did you mean "customer"?'


@pytest.mark.parametrize("name", ["page", "status_code"])
def test_names_of_pages_are_free_where_no_page_is_read(name):
    loop = (
        "- {step: start, loop: {in: [1], iterator: NAME}, tool: {kind: noop, result: '{{ NAME }}'}}"
    )
    arriving = (
        "- {step: start, next: {arcs: [{step: end, args: {NAME: 2}}]}}\n"
        "- {step: end, tool: {kind: noop, result: '{{ NAME }}'}}"
    )

    assert codes(loop.replace("NAME", name)) == []
    assert codes(arriving.replace("NAME", name)) == []
    assert codes(
        "- {step: start, tool: {kind: noop, result: '{{ NAME }}'}}".replace("NAME", name)
    ) == ["unknown-name"]


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("outcome.http.status == 404", "error.status"),
        ("outcome.status == 'error' and outcome.sh.exit_code == 3", "error.code"),
        ("output.pg.code == '23505'", "error.code"),
        ("outcome.py.exception_type == 'ValueError'", "error.message"),
    ],
)
def test_an_arc_that_reads_of_its_step_what_only_calls_have_is_told_what_to_read(guard, instead):
    text = f"""
- step: start
  tool: {{kind: noop}}
  next: {{arcs: [{{step: end, when: "{{{{ {guard} }}}}"}}]}}
- step: end
"""
    assert [code for code, _ in found(text)] == ["undefined-key"]
    assert instead in messages(text)


def test_an_arc_may_ask_whether_its_outcome_has_something():
    guard = "outcome.http is defined or outcome.sh.exit_code | default(0)"
    text = f"""
- step: start
  tool: {{kind: noop}}
  next: {{arcs: [{{step: end, when: "{{{{ {guard} }}}}"}}]}}
- step: end
"""
    assert found(text) == []


@pytest.mark.parametrize("key", ["_ref", "_store", "_preview"])
def test_any_result_may_be_asked_whether_it_is_kept_by_reference(key):
    """It is if it is large, whatever keys it has of its own."""
    text = f"""
- step: start
  tool: {{kind: noop, result: {{rows: [1]}}}}
  next: {{arcs: [{{step: end, args: {{place: "{{{{ start.{key} }}}}"}}}}]}}
- step: end
"""
    assert codes(text) == []
    assert codes(text.replace(key, "_refs")) == ["undefined-key"]


def test_many_unknown_names_cost_in_proportion():
    """Each looked at every step for a task of that name."""

    def calls(steps: int) -> int:
        made = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal made
            made += event == "call"

        text = "".join(
            f'- {{step: s{n}, tool: {{kind: noop, result: "{{{{ x{n} }}}}"}}}}\n'
            for n in range(steps)
        )
        sys.setprofile(count)
        try:
            codes(text)
        finally:
            sys.setprofile(None)
        return made

    assert calls(800) < 5 * calls(200)


# --- Names that our own code has, too ----------------------------------------------------------


@pytest.mark.parametrize("name", ["place", "thing", "self", "node", "where", "path"])
def test_a_value_may_have_any_name(name):
    step = step_of(
        f"- {{step: start, tool: {{kind: noop, args: {{{name}: 1}}, set: {{{name}: 2}}}},"
        f" set: {{{name}: 3}}, vars: {{{name}: 4}}, args: {{{name}: 5}}}}",
        root=f"workload: {{{name}: 6}}\n",
    )

    assert (step.args, step.vars, step.tasks[0].inputs) == ({name: 5}, {name: 4}, {name: 1})
    assert (step.patch, step.tasks[0].patch) == (Patch(local={name: 3}), Patch(local={name: 2}))


@pytest.mark.parametrize(
    "heard", ["case: [{when: @, then: {next: end}}]", "next: {arcs: [{step: end, when: @}]}"]
)
@pytest.mark.parametrize("name", ["timer.fired", "message.received", "order.paid"])
def test_an_event_of_the_world_is_heard_only_by_steps_that_wait(heard, name):
    written = heard.replace(AT, f"\"{{{{ event.name == '{name}' }}}}\"")

    said = messages(f"- {{step: start, tool: {{kind: noop}}, {written}}}\n- {{step: end}}")

    assert said == (
        f'`event.name` is never "{name}" here.'
        " A step hears other events in `case`, if it waits: `eval_mode: on_event`."
    )


def test_a_timer_is_told_by_its_id_not_by_the_name_of_its_event():
    said = messages("""
- step: start
  spec: {eval_mode: on_event, timers: [{id: nap, after: 1s}]}
  case: [{when: "{{ event.name == 'nap' }}", then: {next: end}}]
- step: end
""")

    assert said == "a timer comes as \"timer.fired\": write `event.data.timer_id == 'nap'`."


def test_what_is_to_be_written_instead_can_be_written():
    said = messages("- {step: start, tool: {kind: noop}, set: {workload.n: 1, steps.a.b: 2}}")

    assert "Write `ctx.n`." in said
    assert "Write `ctx.a.b`." in said


def test_a_loop_whose_element_has_another_word_is_told_once():
    loop = "loop: {in: [1], as: row}, tool: {kind: noop, result: '{{ row }}'}"

    assert codes(f"- {{step: start, {loop}}}") == ["removed-key"]


def test_a_key_under_the_name_of_another_program_is_not_missing_as_well():
    assert codes("- {step: start, tool: {kind: postgres, auth: pg, sql: select 1}}") == [
        "unknown-key"
    ]
