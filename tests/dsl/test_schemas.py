"""Schemas of results: what fits, what is refused, and which new versions break their readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from noetl.dsl import compile_beside, compile_text
from noetl.dsl.assist import offers
from noetl.dsl.building import Known
from noetl.dsl.triggers import compile_document, trigger_schema
from noetl.errors import PlaybookRejected
from noetl.model import schemas
from noetl.rewrite.fmt import format_text, read_data
from noetl.tools.registry import tools
from tests.effort import generated

TOOLS = tools()
ROOT = Path(__file__).parents[2]
ORDER = {
    "type": "object",
    "required": ["id", "lines"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "note": {"type": ["string", "null"], "maxLength": 5},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
        "state": {"enum": ["open", "paid"]},
    },
    "$defs": {"line": {"type": "object", "properties": {"price": {"type": "number"}}}},
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"id": 1, "lines": [{"price": 2.5}]}, None),
        ({"id": 1.0, "lines": [{}], "note": None, "state": "paid"}, None),
        ({"lines": [{}]}, "the value lacks `id`."),
        ({"id": True, "lines": [{}]}, "`id` is boolean, not integer."),
        ({"id": 0, "lines": [{}]}, "`id` is 0, which breaks `minimum: 1`."),
        ({"id": 1, "lines": []}, "`lines` has 0 elements; the minimum is 1."),
        ({"id": 1, "lines": [{}, {"price": "3"}]}, "`lines[1].price` is string, not number."),
        ({"id": 1, "lines": [{}], "nte": ""}, '`nte` is not in the schema. Did you mean "note"?'),
        ({"id": 1, "lines": [{}], "state": "lost"}, '`state` is not one of "open", "paid".'),
    ],
)
def test_what_is_wrong_with_a_value_is_told_with_its_place(value: Any, said: str | None) -> None:
    assert schemas.compiled(ORDER).wrong(value) == said


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "a", "bb", ""])
DATA = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


def _schemas() -> st.SearchStrategy[Any]:
    def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        some, names = st.lists(inner, min_size=1, max_size=2), st.sampled_from("abc")
        by_name = st.dictionaries(names, inner, max_size=2)
        return st.fixed_dictionaries(
            {},
            optional={
                "properties": by_name,
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner),
                "additionalProperties": inner,
                "propertyNames": inner,
                "items": inner,
                "prefixItems": some,
                "contains": inner,
                "minContains": st.integers(0, 2),
                "allOf": some,
                "anyOf": some,
                "oneOf": some,
                "not": inner,
                "if": inner,
                "then": inner,
                "else": inner,
                "required": st.lists(names, max_size=2, unique=True),
                "dependentRequired": st.dictionaries(names, st.lists(names, max_size=1)),
                "dependentSchemas": by_name,
                "$ref": st.just("#/$defs/x"),
            },
        )

    kinds = st.sampled_from(schemas.TYPES)
    plain = st.booleans() | st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, unique=True),
            "enum": st.lists(LEAVES, min_size=1, max_size=3, unique_by=repr),
            "const": DATA,
            "minimum": st.integers(-2, 2),
            "exclusiveMaximum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "minLength": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "minProperties": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "pattern": st.sampled_from(["^a", "b"]),
        },
    )
    return st.recursive(plain, wider, max_leaves=5)


@generated(100)
@given(schema=_schemas(), leaf=_schemas(), value=DATA)
def test_we_agree_with_an_independent_validator(schema: Any, leaf: Any, value: Any) -> None:
    schema = {"allOf": [schema], "$defs": {"x": leaf if "$ref" not in repr(leaf) else True}}
    assert list(schemas.problems(schema)) == []

    fits = schemas.Schema(schema).wrong(value) is None

    assert fits == Draft202012Validator(schema).is_valid(value), (schema, value)


def test_what_others_add_to_a_schema_is_no_bound() -> None:
    added = {"x--Items": 1, "x--Length": "long", "x--Properties": 0}

    assert list(schemas.problems(added)) == []
    for value in ([1, 2], "long", {"a": 1}):
        assert schemas.Schema(added).wrong(value) is None


def test_a_schema_that_never_ends_or_a_value_that_is_too_much_is_an_answer_and_no_hang() -> None:
    endless = schemas.Schema({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}})
    wide = {"anyOf": [{"$ref": "#"}] * 8, "type": "object"}

    assert endless.wrong(1) == "it is too large or too deep to be checked."
    assert schemas.Schema(wide).wrong({}) == "it is too large or too deep to be checked."
    assert next(schemas.problems({"enum": ["x" * schemas.BYTES_MAX]}))[1].startswith("the schema")
    assert schemas.Schema({"pattern": "^(a+)+$"}).wrong("a" * 5000 + "b") is not None


@pytest.mark.parametrize("reference", ["#name", "name", "https://example.com/x.json", 3])
def test_a_reference_to_anything_but_a_path_of_the_schema_is_refused(reference: Any) -> None:
    [(place, told)] = schemas.problems({"properties": {"a": {"$ref": reference}}})

    assert schemas.place_in(place) == "`properties.a.$ref`"
    assert told.startswith("`$ref` refers to this document only: `#/$defs/name`.")


def test_a_wrong_pattern_is_told_by_us_alone(capfd: pytest.CaptureFixture[str]) -> None:
    [(_, told)] = schemas.problems({"pattern": "a(b"})

    assert told.startswith("the pattern cannot be used (RE2): missing ): a(b")
    assert capfd.readouterr().err == "", "RE2 has a log of its own"


PRICES = {"additionalProperties": {"type": "integer"}}
SHORT = {"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": {"type": "string"}}}
BROKEN = [
    ({"properties": {"a": {}}}, {"properties": {}}, "`a` is no longer in the schema."),
    ({"required": ["a"]}, {}, "`a` is no longer required."),
    (
        {"type": "string"},
        {"type": ["string", "null"]},
        "the value may be null now, not only string",
    ),
    ({"type": "integer"}, {"type": "number"}, "the value may be number now, not only integer."),
    ({"enum": [1, 2]}, {"enum": [1, 3]}, "the value may be 3 now."),
    ({"enum": [1]}, {}, "the value may have values that were not listed before."),
    ({"minimum": 3}, {"minimum": 2}, "the value has a weaker `minimum`."),
    ({"maxLength": 3}, {}, "the value has a weaker `maxLength`."),
    ({"items": {"type": "string"}}, {"items": {}}, "`[0]` may be"),
    ({"anyOf": [{"type": "string"}]}, {}, "the value has a different `anyOf`"),
    (PRICES, {"additionalProperties": {"type": ["integer", "null"]}}, "`*` may be null now"),
    (PRICES, {**PRICES, "properties": {"a": {"type": ["integer", "null"]}}}, "`*` may be null now"),
    (SHORT, {**SHORT, "maxLength": 4}, "the value has a weaker `maxLength`."),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"type": "string"}}}}},
        {"properties": {"b": {"type": "integer"}}},
        "`b` may be integer now",
    ),
]
KEPT = [
    ({"required": ["a"]}, {"required": ["a", "b"]}),
    ({"properties": {"a": {}}}, {"properties": {"a": {}, "b": {}}}),
    ({"type": ["string", "null"]}, {"type": "string"}),
    ({"type": "number"}, {"type": "integer"}),
    ({"enum": [1, 2]}, {"const": 2}),
    ({"minimum": 2}, {"minimum": 3}),
    (ORDER, ORDER),
    (PRICES, {**PRICES, "properties": {"a": {"const": 3}}}),
    (SHORT, {"type": "string", "maxLength": 3}),
    ({"properties": {"a": {}}, "items": {}}, {"properties": {"a": True}}),
    ({}, {"anyOf": [{"type": "string"}]}),
]


@pytest.mark.parametrize(("old", "new", "said"), BROKEN)
def test_what_readers_would_lose_breaks_them(old: Any, new: Any, said: str) -> None:
    [found] = schemas.breaks(old, new)

    assert f"{schemas.place_in(found[0])} {found[1]}".startswith(said)


@pytest.mark.parametrize(("old", "new"), KEPT)
def test_who_promises_more_breaks_nobody(old: Any, new: Any) -> None:
    assert list(schemas.breaks(old, new)) == []


# --- In playbooks ------------------------------------------------------------------------------

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a, path: tests/a}\n"
TYPED = """
executor: {spec: {result: {schema: {type: integer}}}}
workflow:
- step: start
  tool: {kind: python, code: "result = load()"}
  output: {schema: {properties: {orders: {type: array, items: {properties: {price: {}}}}}}}
  next: each
- step: each
  loop: {in: "{{ start.orders }}", iterator: order}
  tool: {kind: noop, result: "{{ iter.order.price }} {{ start.ordrs }}"}
"""


def test_a_name_that_the_schema_of_a_result_lacks_is_a_warning_with_a_remedy() -> None:
    compiled = compile_text(HEAD + TYPED, tools=TOOLS)

    [problem] = compiled.problems
    assert (problem.code, problem.severity, problem.line) == ("undefined-key", "warning", 13)
    assert 'the result of step "start" has no "ordrs". Did you mean "orders"?' in problem.message
    assert compiled.net is not None
    assert compiled.net.steps[0].tasks[-1].schema is not None


CALLED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: b, path: tests/b}
executor: {spec: {inputs: {count: {type: integer}}}}
workflow: [{step: start, tool: {kind: noop}}]
"""
CALLER = HEAD + "workflow:\n- {step: start, tool: {kind: playbook, path: tests/b, args: ARGS}}\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("{count: 3}", ""),
        ('{count: "{{ workload.n | default(1) }}"}', ""),
        ("{count: three}", 'input "count" takes'),
        ("{}", 'needs the input "count"'),
        ("{count: 3, cout: 1}", 'has no input "cout". Did you mean "count"?'),
    ],
)
def test_a_call_of_a_playbook_beside_it_is_checked(args: str, said: str) -> None:
    def compiler(text: str, known: Known | None = None) -> Any:
        return compile_text(text, tools=TOOLS, known=known)

    alone = compiler(CALLER.replace("ARGS", args))
    beside = compile_beside(CALLER.replace("ARGS", args), compiler, {"tests/b": CALLED})

    assert alone.problems == ()
    assert [one.code for one in beside.problems] == (["bad-call"] if said else [])
    assert said in "".join(one.message for one in beside.problems)


def test_a_call_of_a_playbook_beside_it_is_told_of_misspelt_keys_of_its_workload_and_steps() -> (
    None
):
    def compiler(text: str, known: Known | None = None) -> Any:
        return compile_text(text, tools=TOOLS, known=known)

    called = CALLED.replace(
        "executor: {spec: {inputs: {count: {type: integer}}}}", "workload: {name: Ada}"
    )
    caller = CALLER.replace("ARGS", "{nmae: Bob, more: 1}, return_step: strat")

    told = [one.message for one in compile_beside(caller, compiler, {"tests/b": called}).problems]

    assert compiler(caller).problems == ()
    assert sorted(told) == [
        '`return_step`: the playbook tests/b has no step "strat". Did you mean "start"?',
        'the workload of "tests/b" has no "nmae". Did you mean "name"?',
    ]


DOCUMENT = (ROOT / "examples" / "schemas" / "order.yaml").read_text()


def test_a_document_of_kind_schema_is_compiled_formatted_and_found_beside_a_playbook() -> None:
    written = (
        HEAD
        + """workflow:
- step: start
  tool: {kind: noop, result: {id: 1, price: 2}}
  output: {schema: examples/schemas/order}
  next: {arcs: [{step: end, when: "{{ start.prize > 1 }}"}]}
- {step: end, tool: {kind: noop}}
"""
    )

    def compiler(text: str, known: Known | None = None) -> Any:
        return compile_document(text, tools=TOOLS, known=known)

    document = compiler(DOCUMENT)
    alone = compiler(written)
    beside = compile_beside(written, compiler, {"examples/schemas/order": DOCUMENT})

    assert (document.problems, document.trigger.kind) == ((), "Schema")
    assert format_text(DOCUMENT) == DOCUMENT
    jsonschema.validate(read_data(DOCUMENT), trigger_schema("Schema"))
    assert "unknown-schema" in [one.code for one in alone.problems]
    with pytest.raises(PlaybookRejected):
        alone.unwrap()
    assert [one.code for one in beside.problems] == ["undefined-key"]
    assert beside.unwrap().steps[0].tasks[0].schema.name == "examples/schemas/order"
    assert beside.digest != alone.digest


def test_the_editor_offers_the_keys_that_a_schema_lists() -> None:
    text = HEAD + TYPED.replace("start.ordrs", "start.")
    line = next(n for n, one in enumerate(text.splitlines()) if "start. }}" in one)
    column = text.splitlines()[line].index("start. }}") + len("start.")

    offered = offers(text, line + 1, column + 1, {})

    assert [one.text for one in offered] == ["orders"]
