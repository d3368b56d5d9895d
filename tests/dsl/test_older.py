"""Older forms: each is read as today's, warned about, rewritten by `migrate`, known to editors.

Each case is a pair of texts. Both must be the same net; the older one warns with the codes named,
today's in silence. What `noetl migrate` makes of the older text warns of nothing, and is the same
net again where migrating does nothing but rewrite forms.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jsonschema
import pytest

from noetl.dsl import Compiled, compile_text
from noetl.dsl.nodes import plain
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.schema import playbook_schema
from noetl.rewrite.migrate import migrate_text
from noetl.tools.registry import tools

TOOLS = tools()
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
NAMED = HEAD + "metadata: {name: older}\n"
PG = "kind: postgres, auth: pg"


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(playbook_schema(TOOLS))


class Case(NamedTuple):
    """An older text, today's, and what the older one is told."""

    older: str
    today: str
    codes: tuple[str, ...] = ("older-form",)
    migrates: bool = True


def step(body: str) -> str:
    return f"workflow: [{{step: start, {body}}}]"


def task(body: str) -> str:
    return step(f"tool: {{{body}}}")


CASES = {
    "timeout of a task": Case(
        task("kind: noop, timeout: 5"), task("kind: noop, spec: {timeout: 5}")
    ),
    "timeout_seconds of a task": Case(
        task("kind: noop, timeout_seconds: 5"), task("kind: noop, spec: {timeout: 5}")
    ),
    "tool config in spec": Case(
        task("kind: http, spec: {url: 'http://x', method: POST, args: {a: 1}}"),
        task("kind: http, url: 'http://x', method: POST, args: {a: 1}, spec: {}"),
        ("older-form",) * 3,
    ),
    "an alias of tool config in spec": Case(
        task("kind: http, spec: {endpoint: 'http://x', timeout: 3}"),
        task("kind: http, endpoint: 'http://x', spec: {timeout: 3}"),
    ),
    "set_ctx of a step": Case(
        step("tool: {kind: noop}, set_ctx: {a: '{{ start.x }}'}"),
        step("tool: {kind: noop}, set: {ctx.a: '{{ start.x }}'}"),
    ),
    "set_ctx and set_iter of a task": Case(
        task("kind: noop, set_ctx: {a: 1}, set_iter: {b: 2}"),
        task("kind: noop, set: {ctx.a: 1, iter.b: 2}"),
        ("older-form",) * 2,
        migrates=False,  # goes on to become policy rules, as any `set` of a task
    ),
    "output of a step": Case(
        step("tool: {kind: noop}, output: {select: [{path: a.b}]}"),
        task("kind: noop, output: {select: [{path: a.b}]}"),
    ),
    "output of a step belongs to its last task": Case(
        step("tool: [{name: a, kind: noop}, {name: b, kind: noop}], output: {select: [{path: x}]}"),
        step("tool: [{name: a, kind: noop}, {name: b, kind: noop, output: {select: [{path: x}]}}]"),
    ),
    "result of a step": Case(
        step("tool: {kind: noop}, result: {output_select: [{path: a, as: b}]}"),
        task("kind: noop, output: {select: [{path: a, as: b}]}"),
        ("older-form",) * 3,
    ),
    "paths to select": Case(
        task("kind: noop, output_select: [a.b, {path: c, as: d}]"),
        task("kind: noop, output_select: [{path: a.b}, {path: c, as: d}]"),
    ),
    "hints in output": Case(
        task(
            "kind: noop, output: {inline_max_bytes: 9, store: kv, scope: x, preview_max_bytes: 1}"
        ),
        task("kind: noop, output: {inline_max_bytes: 9}"),
        ("hint-ignored",) * 3,
    ),
    "a mapping to select": Case(
        task("kind: noop, output_select: {a: b}"), task("kind: noop"), ("hint-ignored",)
    ),
    "a script with its source": Case(
        task("kind: python, script: {uri: 's3://b/k.py', source: {type: s3, auth: aws}}"),
        task("kind: python, script: 's3://b/k.py', auth: aws"),
        ("older-form",) * 2,
    ),
    "a script's region": Case(
        task(
            "kind: python, script: {uri: 's3://b/k', source: {type: s3, region: eu, endpoint: e}}"
        ),
        task("kind: python, script: 's3://b/k'"),
        ("hint-ignored", "hint-ignored", "older-form"),
    ),
    "an inline script": Case(
        task("kind: python, script: {source: {type: inline, code: 'result = 1'}}"),
        task("kind: python, code: 'result = 1'"),
    ),
    "a script of SQL": Case(
        task(f"{PG}, script: {{uri: 'gs://b/k.sql', source: {{type: gcs, auth: g}}}}"),
        task(f"{PG}, script: 'gs://b/k.sql', store_auth: g"),
        ("older-form",) * 2,
    ),
    "artifact action and result_ref": Case(
        task("kind: artifact, action: get, result_ref: abc"),
        task("kind: artifact, ref: abc"),
        ("older-form",) * 2,
    ),
    "artifact uri in args": Case(
        task("kind: artifact, args: {uri: abc}"), task("kind: artifact, ref: abc")
    ),
    "hints of a frame": Case(
        step(
            "tool: {kind: noop}, loop: {iterator: r, cursor: {kind: sqlite, claim: SELECT 1}, spec:"
            " {frame: {max_rows: 2, max_seconds: 1, heartbeat_seconds: 1, verify_ipc: true}}}"
        ),
        step(
            "tool: {kind: noop}, loop: {iterator: r, cursor: {kind: sqlite, claim: SELECT 1}, spec:"
            " {frame: {max_rows: 2}}}"
        ),
        ("hint-ignored",) * 3,
    ),
    "on_no_match: complete": Case(
        "workflow: [{step: start, next: {spec: {on_no_match: complete}, arcs: [{step: end}]}},"
        " {step: end}]",
        "workflow: [{step: start, next: {arcs: [{step: end}]}}, {step: end}]",
    ),
    "type of transfer's ends": Case(
        task("kind: transfer, source: {type: file, path: a}, target: {type: file, path: b}"),
        task("kind: transfer, source: {kind: file, path: a}, target: {kind: file, path: b}"),
        ("older-form",) * 2,
    ),
    "mapping of transfer's target": Case(
        task(
            "kind: transfer, source: {kind: file, path: a}, target: {kind: file, path: b, mapping:"
            " {x: y}}"
        ),
        task(
            "kind: transfer, source: {kind: file, path: a}, target: {kind: file, path: b}, mapping:"
            " {x: y}"
        ),
    ),
    "a list to set": Case(
        task(
            "kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set: [{name: a,"
            " value: '{{ outcome.status }}'}]}}}]}}"
        ),
        task(
            "kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set: {vars.a:"
            " '{{ outcome.status }}'}}}}]}}"
        ),
    ),
    "an event_log sink": Case(
        step("tool: {kind: noop}, sink: {tool: {kind: event_log}, args: {a: 1}}"),
        step("tool: {kind: noop}, sink: {tool: {kind: noop}, args: {a: 1}}"),
    ),
    "statement of SQL": Case(task(f"{PG}, statement: SELECT 1"), task(f"{PG}, command: SELECT 1")),
    "data of one row": Case(
        task(f"{PG}, table: t, data: {{a: 1}}"), task(f"{PG}, table: t, args: {{a: 1}}")
    ),
    "data of several rows": Case(
        task(f"{PG}, table: t, data: [{{a: 1}}]"), task(f"{PG}, table: t, rows: [{{a: 1}}]")
    ),
    "auth with a type": Case(
        task("kind: postgres, auth: {type: postgres, credential: pg}, command: SELECT 1"),
        task(f"{PG}, command: SELECT 1"),
    ),
    "pool of a SQL task": Case(
        task(f"{PG}, command: SELECT 1, pool: {{name: p, max_size: 4, timeout: 3}}"),
        task(f"{PG}, command: SELECT 1, spec: {{timeout: {{connect: 3}}}}"),
        ("hint-ignored", "hint-ignored", "older-form"),
    ),
    "pool beside a timeout": Case(
        task(f"{PG}, command: SELECT 1, pool: {{timeout: 3}}, spec: {{timeout: 9}}"),
        task(f"{PG}, command: SELECT 1, spec: {{timeout: {{connect: 3, total: 9}}}}"),
    ),
    "a retry that pages": Case(
        step(
            "tool: {kind: http, url: 'http://x'}, case: [{when: \"{{ event.name == 'call.done'"
            ' }}",'
            " then: {retry: {params: {page: 2}, max_attempts: 5}}}]"
        ),
        step(
            "tool: {kind: http, url: 'http://x'}, case: [{when: \"{{ event.name == 'call.done'"
            ' }}",'
            " then: {call: {params: {page: 2}, max_calls: 5}}}]"
        ),
        ("older-form",) * 2,
    ),
    "collect into a key of ctx": Case(
        step(
            'tool: {kind: noop}, set: {ctx.pages: []}, case: [{when: "{{ event.name =='
            " 'call.done' }}\", then: {collect: {from: result, into: pages}}}]"
        ),
        step(
            'tool: {kind: noop}, set: {ctx.pages: []}, case: [{when: "{{ event.name =='
            " 'call.done' }}\", then: {collect: {from: result, into: ctx.pages}}}]"
        ),
    ),
    "task of a playbook": Case(
        task("kind: playbook, path: a/b, task: c"),
        task("kind: playbook, path: a/b"),
        ("hint-ignored",),
    ),
    "map of a static keychain entry": Case(
        "keychain: [{name: k, kind: static, map: {a: 1}}]\n" + task("kind: noop"),
        "keychain: [{name: k, kind: static, data: {a: 1}}]\n" + task("kind: noop"),
    ),
    "an oauth2 entry": Case(
        "keychain: [{name: k, kind: oauth2, endpoint: 'http://t', method: POST, auto_renew: true,"
        " headers: {Content-Type: application/x-www-form-urlencoded}, data: {client_id: a,"
        " client_secret: b, scope: s, audience: c, grant_type: client_credentials}}]\n"
        + task("kind: noop"),
        "keychain: [{name: k, kind: oauth2, token_url: 'http://t', client_id: a, client_secret: b,"
        " scopes: s, audience: c}]\n" + task("kind: noop"),
        ("older-form",) * 9,
    ),
    "retry_on": Case(
        task("kind: noop, retry: {retry_on: [timeout], max_attempts: 2}"),
        task("kind: noop, retry: {on: [timeout], max_attempts: 2}"),
        migrates=False,  # goes on to become a policy rule, as any `retry` of a task
    ),
    "retry_on_status": Case(
        task("kind: noop, retry: {retry_on_status: [429, 503], max_attempts: 2}"),
        task(
            "kind: noop, retry: {when: '{{ error.status in [429, 503] }}', max_attempts: 2}",
        ),
        ("older-form",) * 2,
        migrates=False,
    ),
    "backoff as a number": Case(
        task("kind: noop, retry: {backoff: 5, max_attempts: 2}"),
        task("kind: noop, retry: {delay: 5, max_attempts: 2}"),
        migrates=False,
    ),
    "backoff_seconds": Case(
        task("kind: noop, retry: {backoff_seconds: 5, max_attempts: 2}"),
        task("kind: noop, retry: {delay: 5, max_attempts: 2}"),
        migrates=False,
    ),
    "executor hints": Case(
        "executor: {kind: local, version: 2, requires: {tools: [http], features: [x]}}\n"
        + task("kind: noop"),
        "executor: {kind: local}\n" + task("kind: noop"),
        ("hint-ignored",) * 2,
    ),
    "executor's default timeout": Case(
        "executor: {defaults: {timeout_s: 5}}\n" + task("kind: noop"),
        "executor: {spec: {policy: {defaults: {timeouts: {step: 5}}}}}\n" + task("kind: noop"),
    ),
    "order of a loop's results": Case(
        step(
            "tool: {kind: noop}, loop: {in: [1], iterator: x, spec: {policy: {results:"
            " {preserve_order: true}}}}"
        ),
        step("tool: {kind: noop}, loop: {in: [1], iterator: x, spec: {policy: {}}}"),
    ),
    "then that names steps": Case(
        "workflow: [{step: start, tool: {kind: noop}, case: [{when: \"{{ event.name == 'step.exit'"
        ' }}", then: [{step: end}]}]}, {step: end}]',
        "workflow: [{step: start, tool: {kind: noop}, case: [{when: \"{{ event.name == 'step.exit'"
        ' }}", then: {next: [{step: end}]}}]}, {step: end}]',
        migrates=False,  # goes on to become an arc
    ),
    "an else beside its then": Case(
        task("kind: noop, spec: {policy: {rules: [{else: null, then: {do: break}}]}}"),
        task("kind: noop, spec: {policy: {rules: [{else: {then: {do: break}}}]}}"),
    ),
    "older config in spec": Case(
        task(
            "kind: postgres, spec: {auth: {type: postgres, credential: pg}, statement: SELECT 1,"
            " pool: {timeout: 3}}"
        ),
        task(f"{PG}, command: SELECT 1, spec: {{timeout: {{connect: 3}}}}"),
        ("older-form",) * 6,
    ),
    "order of results, of the loop itself": Case(
        step(
            "tool: {kind: noop}, loop: {in: [1], iterator: x, policy: {results: {preserve_order:"
            " true}}}"
        ),
        step("tool: {kind: noop}, loop: {in: [1], iterator: x}"),
    ),
    "a token request's method in small letters": Case(
        "keychain: [{name: k, kind: oauth2, token_url: u, method: post, client_id: a,"
        " client_secret: b}]\n" + task("kind: noop"),
        "keychain: [{name: k, kind: oauth2, token_url: u, client_id: a, client_secret: b}]\n"
        + task("kind: noop"),
    ),
    "a retry that pages by input": Case(
        step(
            "tool: {kind: noop}, case: [{when: \"{{ event.name == 'call.done' }}\", then:"
            " {retry: {input: {page: 2}, max_attempts: 5}}}]"
        ),
        step(
            "tool: {kind: noop}, case: [{when: \"{{ event.name == 'call.done' }}\", then:"
            " {call: {input: {page: 2}, max_calls: 5}}}]"
        ),
        ("older-form",) * 2,
    ),
    "auth of a cursor": Case(
        step(
            "tool: {kind: noop}, loop: {iterator: r, cursor: {kind: postgres, claim: SELECT 1,"
            " auth: {type: postgres, credential: pg}}}"
        ),
        step(
            "tool: {kind: noop}, loop: {iterator: r, cursor: {kind: postgres, claim: SELECT 1,"
            " auth: pg}}"
        ),
    ),
    "query and auth of a transfer's ends": Case(
        task(
            "kind: transfer, source: {kind: postgres, auth: {type: postgres, credential: pg},"
            " query: SELECT 1}, target: {kind: file, path: b}"
        ),
        task(
            "kind: transfer, source: {kind: postgres, auth: pg, command: SELECT 1}, target:"
            " {kind: file, path: b}"
        ),
        ("older-form",) * 2,
    ),
    "libs that name nothing": Case(
        task("kind: python, code: 'result = 1', libs: {}"), task("kind: python, code: 'result = 1'")
    ),
}
SILENT = {
    "an empty end": "workflow: [{step: start, next: end}, {step: end}]",
    "assert of a task": task("kind: noop, assert: {expects: [a], returns: [b]}"),
    "assert of a workbook entry": (
        "workbook: {w: {assert: {expects: [a]}, tool: {kind: noop}}}\n"
        + task("kind: workbook, task: w")
    ),
    "on_no_match: quiet": (
        "workflow: [{step: start, next: {spec: {on_no_match: quiet}, arcs: [{step: end, when:"
        " '{{ workload.x }}'}]}}, {step: end}]\nworkload: {x: 1}"
    ),
    "a script of SQL by its address": task(f"{PG}, script: a.sql"),
    "map of a secret": (
        "keychain: [{name: k, kind: secret_manager, provider: google, map: {user: a/b, key: c}}]\n"
        + task("kind: noop")
    ),
    "the outcome in an arc": (
        "workflow: [{step: start, tool: {kind: noop}, next: {arcs: [{step: end, when:"
        " \"{{ outcome.status == 'error' }}\"}]}}, {step: end}]"
    ),
    "args that read the iteration": step(
        "tool: {kind: noop}, loop: {in: [1], iterator: x}, args: {a: '{{ x }}', b: '{{ loop.index"
        " }}', c: '{{ iter.index }}'}"
    ),
}
REFUSED = {
    "a pool by name": (task(f"{PG}, command: SELECT 1, pool: big"), "unknown-key"),
    "another grant": (
        "keychain: [{name: k, kind: oauth2, grant_type: password}]\n" + task("kind: noop"),
        "bad-value",
    ),
    "another method": (
        "keychain: [{name: k, kind: oauth2, method: GET}]\n" + task("kind: noop"),
        "bad-value",
    ),
    "artifact put": (task("kind: artifact, action: put, ref: a"), "bad-value"),
    "a source that does not fit": (
        task("kind: python, script: {uri: 'http://x/y.py', source: {type: s3}}"),
        "bad-value",
    ),
    "a script without uri": (task("kind: python, script: {source: {type: s3}}"), "missing-key"),
    "a required tool that does not exist": (
        "executor: {requires: {tools: [htpp]}}\n" + task("kind: noop"),
        "unknown-tool",
    ),
    "credentials of the machine itself": (
        task(f"{PG.replace('pg', '{source: adc}')}, command: SELECT 1"),
        "bad-value",
    ),
    "results out of order": (
        step(
            "tool: {kind: noop}, loop: {in: [1], iterator: x, spec: {policy: {results:"
            " {preserve_order: false}}}}"
        ),
        "bad-value",
    ),
    "output where no task came before": (
        task("kind: noop, result: '{{ output.data }}'"),
        "not-in-scope",
    ),
    "an empty step of another name": ("workflow: [{step: start}]", "empty-step"),
    "an unknown key in spec": (task("kind: noop, spec: {colour: red}"), "unknown-key"),
    "both set and set_ctx": (
        task("kind: noop, set: {ctx.a: 1}, set_ctx: {b: 1}"),
        "conflicting-keys",
    ),
    "both statement and command": (
        task(f"{PG}, statement: SELECT 1, command: SELECT 2"),
        "conflicting-keys",
    ),
    "both endpoints of a token": (
        "keychain: [{name: k, kind: oauth2, endpoint: a, token_url: b}]\n" + task("kind: noop"),
        "conflicting-keys",
    ),
    "both retry_on and on": (
        task("kind: noop, retry: {retry_on: [timeout], on: [auth]}"),
        "conflicting-keys",
    ),
    "both retry_on_status and when": (
        task("kind: noop, retry: {retry_on_status: 503, when: '{{ error }}'}"),
        "conflicting-keys",
    ),
    "both output of step and task": (
        step("tool: {kind: noop, output: {select: []}}, output: {select: []}"),
        "conflicting-keys",
    ),
    "an inline script without its text": (
        task("kind: python, script: {source: {type: inline}, inline: 'result = 1'}"),
        "missing-key",
    ),
    "tools that are no list": (
        "executor: {requires: {tools: 5}}\n" + task("kind: noop"),
        "unknown-tool",
    ),
    "both script and its place": (
        task("kind: python, script: {source: {type: inline, code: a}}, code: b"),
        "conflicting-keys",
    ),
}


def compiled(text: str) -> Compiled:
    return compile_text(text if text.startswith("apiVersion") else NAMED + text, tools=TOOLS)


def codes(text: str) -> list[str]:
    return sorted(problem.code for problem in compiled(text).problems)


def told(text: str) -> str:
    return "\n".join(map(str, compiled(text).problems))


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_an_older_form_is_todays_with_a_warning(case: Case) -> None:
    assert codes(case.today) == [], told(case.today)
    assert codes(case.older) == sorted(case.codes), told(case.older)
    assert compiled(case.older).net == compiled(case.today).net


def test_a_required_tool_that_does_not_exist_is_the_only_problem_of_what_requires_it() -> None:
    text = "executor: {spec: {requires: {tools: [htpp]}}}\n" + task("kind: noop")
    assert codes(NAMED + text) == ["unknown-tool"], told(NAMED + text)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_migrating_leaves_nothing_to_warn_of(case: Case) -> None:
    found = migrate_text(NAMED + case.older, TOOLS)

    assert codes(found.text) == [], told(found.text)
    assert found.changes
    if case.migrates:
        assert compiled(found.text).net == compiled(case.today).net


@pytest.mark.parametrize("text", [*(c.older for c in CASES.values()), *SILENT.values()])
def test_editors_accept_it(text: str) -> None:
    root = read(NAMED + text, Report())

    assert [error.message for error in validator().iter_errors(plain(root))] == []


@pytest.mark.parametrize("text", SILENT.values(), ids=list(SILENT))
def test_what_has_no_other_form_is_accepted_in_silence(text: str) -> None:
    assert codes(text) == [], told(text)


@pytest.mark.parametrize(("text", "code"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_no_older_form_stays_refused(text: str, code: str) -> None:
    assert compiled(text).net is None
    assert code in codes(text), told(text)


def test_further_metadata_is_kept_and_a_near_miss_refused() -> None:
    text = HEAD + "metadata: {name: older, contact: ann, team: data}\n" + task("kind: noop")

    found = compiled(text)

    assert codes(text) == ["hint-ignored", "hint-ignored"]
    assert found.net is not None
    assert found.net.labels == {"contact": "ann", "team": "data"}
    for slip in ("ownr", "tag", "Name", "lables", "desciption"):
        assert codes(text.replace("contact", slip)) == ["hint-ignored", "unknown-key"], slip
    for key in ("author", "stage", "lab", "title", "created", "type", "date"):
        assert codes(text.replace("contact", key)) == ["hint-ignored", "hint-ignored"], key
    assert codes(migrate_text(text, TOOLS).text) == []


def test_a_name_of_libs_is_imported_by_the_code_that_migrate_writes() -> None:
    text = NAMED + (
        "workflow:\n- step: start\n  tool:\n    kind: python\n"
        "    libs: {np: json, when: {from: datetime, import: datetime}}\n"
        "    code: |\n      # keep me\n      result = np.dumps(1)\n"
    )

    found = migrate_text(text, TOOLS)

    assert codes(text) == ["older-form"]
    assert codes(found.text) == []
    code = compiled(found.text).unwrap().steps[0].tasks[0].config["code"]
    assert code.splitlines() == [
        "import json as np",
        "from datetime import datetime as when",
        "# keep me",
        "result = np.dumps(1)",
    ]


def test_a_problem_names_the_path_where_the_older_form_was_written() -> None:
    [problem] = compiled(task("kind: noop, timeout: 5")).problems

    assert problem.path == "workflow[0].tool.timeout"


def test_a_reserved_name_that_is_guarded_everywhere_is_only_warned_about() -> None:
    guarded = step("args: {a: \"{{ outcome.x | default('none') }}\"}, tool: {kind: noop}")

    assert codes(guarded) == ["guarded-name"]
    assert codes(guarded.replace(" | default('none')", "")) == ["not-in-scope"]


def test_a_required_key_is_missed_though_another_is_a_template() -> None:
    """A mapping that is a template as a whole may have any key; one that is written out may not."""
    ends = "target: {kind: file, path: b}"

    assert "missing-key" in codes(
        task(f"kind: transfer, source: {{kind: http, method: '{{{{ workload.m }}}}'}}, {ends}")
        + "\nworkload: {m: GET}"
    )
    assert (
        codes(
            task(f"kind: transfer, source: '{{{{ workload.s }}}}', {ends}") + "\nworkload: {s: 1}"
        )
        == []
    )


def test_output_in_a_later_task_is_the_outcome_of_the_one_before() -> None:
    older = step(
        "tool: [{name: a, kind: noop}, {name: b, kind: noop, result: '{{ [output.status,"
        " output.data.x, output.error] }}'}]"
    )
    today = step(
        "tool: [{name: a, kind: noop}, {name: b, kind: noop, result: '{{ [outcome.status,"
        " outcome.result.x, outcome.error] }}'}]"
    )

    assert codes(older) == ["older-form"]
    assert codes(today) == []
    assert compiled(migrate_text(NAMED + older, TOOLS).text).net == compiled(today).net


def test_a_misspelt_network_of_a_sandbox_is_said() -> None:
    text = task("kind: python, code: result = 1, spec: {sandbox: {netwrk: true}}")

    assert codes(text) == ["hint-ignored"]
    assert 'Did you mean "network"?' in told(text)
    assert codes(text.replace("netwrk", "network")) == []


def test_variables_that_a_rule_sets_twice_are_no_older_form():
    rule = "{when: true, then: {set: [{name: a, value: 1}, {name: a, value: 2}]}}"
    task = f"{{kind: noop, spec: {{policy: {{rules: [{rule}]}}}}}}"
    text = f"{NAMED}workflow:\n  - {{step: start, tool: {task}}}\n"

    assert [one.code for one in compile_text(text, tools=TOOLS).problems] == ["wrong-type"]
    migrated = migrate_text(text, TOOLS).text
    assert migrate_text(migrated, TOOLS).text == migrated
