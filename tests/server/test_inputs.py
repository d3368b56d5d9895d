"""Typed inputs of playbooks: checked at every start, wherever it comes from."""

from __future__ import annotations

import jsonschema
import pytest

from noetl.dsl import compile_text
from noetl.model.fields import Unfit, fitted, json_schema
from noetl.model.net import FormField
from noetl.tools.registry import tools

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
TYPED = (
    HEAD
    + """\
metadata: {name: typed, path: inputs/typed}
executor:
  spec:
    inputs:
      day: {type: date}
      count: {type: integer, default: 3, min: 1, max: 10}
      ratio: {type: number, required: false}
      shop: {type: enum, options: [north, south], default: north}
      code: {type: string, default: a1, pattern: "[a-z][0-9]", max: 2}
      until: {type: datetime, required: false}
      rows: {type: list, default: [1], max: 3}
      deep: {type: object, default: {a: 1}}
      sure: {type: boolean, default: false}
      db: {type: secret, required: false}
workload: {free: 1}
workflow: [{step: start, tool: {kind: python, args: {w: "{{ workload }}"}, code: "result = w"}}]
"""
)
CALLS = (
    HEAD
    + """\
metadata: {name: calls, path: inputs/calls}
workload: {day: never, count: 99}
workflow:
  - step: start
    tool:
      kind: playbook
      path: inputs/typed
      args: {day: "{{ workload.day }}", count: "{{ workload.count }}"}
"""
)


@pytest.fixture(scope="module")
def typed(dev):
    dev.post("/api/catalog/register", {"content": TYPED})
    return dev


def test_texts_become_what_their_types_want_and_defaults_fill_the_rest(typed):
    given = {"day": "2026-01-31", "count": "5", "sure": "yes", "rows": "[1, 2]", "deep": {"b": 2}}
    until = {"until": "2026-01-31T12:00:00+00:00"}
    started = typed.post("/api/execute", {"path": "inputs/typed", "workload": given | until})

    ended = typed.ended(started["execution_id"])
    assert ended["workload"] == {
        "day": "2026-01-31",
        "count": 5,
        "ratio": None,
        "shop": "north",
        "code": "a1",
        "until": "2026-01-31T12:00:00Z",
        "rows": [1, 2],
        "deep": {"a": 1, "b": 2},
        "sure": True,
        "db": None,
        "free": 1,
    }
    assert ended["result"]["count"] == 5


def test_all_that_does_not_fit_is_said_at_once_and_nothing_starts(typed):
    before = typed.get("/api/executions", path="inputs/typed")["executions"]
    given = {
        "count": 11,
        "shop": "east",
        "code": "a11",
        "rows": [1, 2, 3, 4],
        "cuont": 1,
        "free": 2,
    }

    reply = typed.ask("POST", "/api/execute", {"path": "inputs/typed", "workload": given})

    assert (reply.status, reply.code) == (422, "bad_inputs")
    problems = reply.json["error"]["details"]["problems"]
    assert [said.split('"')[1] for said in problems] == [
        "cuont",
        "day",
        "count",
        "shop",
        "code",
        "rows",
    ]
    assert 'Did you mean "count"?' in problems[0]
    assert "is missing" in problems[1]
    assert typed.get("/api/executions", path="inputs/typed")["executions"] == before


def test_a_secret_is_the_name_of_a_credential_and_what_was_given_is_not_repeated(typed):
    given = {"day": "2026-01-31", "db": "hunter2-the-password"}

    reply = typed.ask("POST", "/api/execute", {"path": "inputs/typed", "workload": given})

    assert reply.status == 422
    assert "name of a stored credential" in reply.json["error"]["message"]
    assert "hunter2" not in reply.raw.decode()
    odd = typed.ask(
        "POST", "/api/execute", {"path": "inputs/typed", "workload": given | {"db": "p w!"}}
    )
    assert odd.status == 422
    assert "p w!" not in odd.raw.decode()
    body = {"name": "inputs-db", "type": "generic", "data": {"a": "b"}}
    typed.post("/api/credentials", body)
    named = {**given, "db": "inputs-db"}
    started = typed.post("/api/execute", {"path": "inputs/typed", "workload": named})
    assert typed.ended(started["execution_id"])["workload"]["db"] == "inputs-db"


def test_a_call_from_another_playbook_is_checked(typed):
    ended = typed.ended(typed.start(CALLS))

    assert ended["status"] == "FAILED"
    assert ended["error"]["code"] == "bad_inputs"
    assert '"count"' in ended["error"]["message"]
    assert '"day" takes a date' in ended["error"]["message"]


def test_a_rerun_is_checked(typed):
    started = typed.post(
        "/api/execute", {"path": "inputs/typed", "workload": {"day": "2026-01-31"}}
    )
    typed.ended(started["execution_id"])

    again = f"/api/executions/{started['execution_id']}/rerun"
    reply = typed.ask("POST", again, {"workload": {"count": "many"}})

    assert (reply.status, reply.code) == (422, "bad_inputs")


def test_the_catalog_has_the_inputs_and_their_schema(typed):
    shown = typed.get("/api/catalog/inputs/typed")

    assert [one["name"] for one in shown["inputs"]][:2] == ["day", "count"]
    schema = shown["inputs_schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"day": "2026-01-31", "count": 5, "ratio": None}, schema)
    assert schema["required"] == ["day"]
    for wrong in ({}, {"day": "2026-01-31", "count": 11}, {"day": "2026-01-31", "code": "1a"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize(
    ("written", "code", "word"),
    [
        ("{a: {type: integer, default: x}}", "bad-value", "whole number"),
        ("{a: {type: integer, default: 5, max: 3}}", "bad-value", "at most 3"),
        ("{a: {type: enum}}", "bad-value", "nothing to choose from"),
        ("{a: {type: enum, options: [x], default: y}}", "bad-value", "one of x"),
        ("{a: {type: string, pattern: '('}}", "bad-value", "regular expression"),
        ("{a: {type: boolean, min: 1}}", "bad-value", "means nothing"),
        ("{a: {type: date, min: soon}}", "bad-value", "date like"),
        ("{a: {type: integer, default: 2}}", "conflicting-keys", "Keep one"),
        ("{a-b: {type: integer}}", "bad-name", "letters, digits"),
        ("{a: {type: int}}", "bad-value", "integer"),
        ("{a: {tpye: integer}}", "unknown-key", "type"),
    ],
)
def test_what_makes_no_sense_is_said_where_it_stands(written, code, word):
    workload = "workload: {a: 7}\n" if code == "conflicting-keys" else ""
    text = (
        f"{HEAD}metadata: {{name: x}}\nexecutor: {{spec: {{inputs: {written}}}}}\n{workload}"
        "workflow: [{step: start, tool: {kind: noop}}]\n"
    )

    problems = compile_text(text, tools=tools()).problems

    assert [problem.code for problem in problems] == [code]
    assert word in problems[0].message
    assert problems[0].line == 4


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (
            {"type": "datetime", "min": "2026-01-01T00:00:00Z"},
            "2026-01-01T01:00:00+01:00",
            "2025-12-31T23:00:00Z",
        ),
        ({"type": "date", "max": "2026-01-01"}, "2026-01-01", "2026-01-02"),
        ({"type": "list", "min": 2}, [1, 2], [1]),
        ({"type": "file"}, "s3://bucket/x", ""),
        ({"type": "object"}, '{"a": 1}', "[1]"),
        ({"type": "number", "min": 0.5}, "0.5", 0.4),
        ({"type": "integer", "min": "5"}, 5, 4),
        ({"type": "number", "max": "2.5"}, "2.5", 3),
        ({"type": "text", "max": "2"}, "ab", "abc"),
    ],
)
def test_bounds_hold_for_every_type(field, good, bad):
    question = FormField(name="x", **field)

    fitted(question, good)
    with pytest.raises(Unfit):
        fitted(question, bad)


def test_a_schema_of_no_inputs_allows_anything():
    jsonschema.validate({"a": 1}, json_schema(()))
