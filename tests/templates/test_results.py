"""What a template gives: native values, text, conditions, whole structures."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from noetl.errors import EvaluationFailed, UndefinedValue
from noetl.templates import (
    TemplateRefused,
    compile_condition,
    compile_text,
    compile_value,
    is_template,
)
from tests.templates.scopes import NOON, holds, scope, value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ ctx.n }}", 3),
        ("{{ ctx.f }}", 2.5),
        ("{{ ctx.t }}", True),
        ("{{ ctx.nothing }}", None),
        ("{{ ctx.xs }}", [1, 2, 3]),
        ("{{ ctx.m }}", {"k": "v"}),
        ("  {{ ctx.n }}\n", 3),
        ("{{- ctx.n -}}", 3),
        ("{# why #}{{ ctx.n }}", 3),
        ("{{ ctx.n }}{{ ctx.n }}", "33"),
        ("n={{ ctx.n }}", "n=3"),
        ("{{ ctx.n }}.", "3."),
        ("{{ ctx.xs }}!", "[1, 2, 3]!"),
        ("{{ ctx.t }} {{ ctx.nothing }} {{ ctx.f }}", "True None 2.5"),
        ("{{ ctx.m }}!", "{'k': 'v'}!"),
        ("{{ '3' }}", "3"),
        ("{{ '[1]' }}", "[1]"),
        ("{{ 1, 2 }}", [1, 2]),
        ("{{ (1, (2, 3)) }}", [1, [2, 3]]),
        ("{{ {'a': (1,)} }}", {"a": [1]}),
        ("{% if ctx.t %}3{% endif %}", "3"),
        ("a\n", "a\n"),
        ("{{ ctx.n }} b\n", "3 b\n"),
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("{{ ctx.looks }}", "{{ ctx.n }}"),
        ("<{{ ctx.looks }}>", "<{{ ctx.n }}>"),
    ],
)
def test_one_expression_gives_its_value_and_anything_else_gives_text(text, expected):
    ctx = {
        "n": 3,
        "f": 2.5,
        "t": True,
        "nothing": None,
        "xs": [1, 2, 3],
        "m": {"k": "v"},
        "looks": "{{ ctx.n }}",
    }

    result = value(text, ctx=ctx)

    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (True, True),
        (False, False),
        (None, False),
        (0, False),
        (1, True),
        ([], False),
        ([0], True),
        ("", False),
        ("false", False),
        ("False", False),
        (" no ", False),
        ("0", False),
        ("none", False),
        ("None", False),
        ("yes", True),
        ("FALSE", True),
        ("{{ 'false' }}", False),
        ("{{ 'no' }}", False),
        ("{{ false }}", False),
        ("{{ 0 }}", False),
        ("{{ none }}", False),
        ("{{ [] }}", False),
        ("{{ [0] }}", True),
        ("{{ 'x' }}", True),
        ("{{ ctx.missing }}", False),
        ("{{ ctx.missing.deeper[3] }}", False),
        ("{% if ctx.yes %}true{% else %}false{% endif %}", True),
        ("{% if not ctx.yes %}true{% else %} false {% endif %}", False),
        ("{{ ctx.missing }} ", False),
        ("a {{ ctx.missing }}", True),
    ],
)
def test_conditions_are_true_by_truth_and_text_by_its_meaning(condition, expected):
    assert holds(condition, ctx={"yes": True}) is expected


def test_bare_names_are_looked_up_in_args_then_ctx_then_iter_then_workload():
    layers = {
        "workload": {"a": "workload", "b": "workload", "c": "workload", "d": "workload"},
        "iter": {"a": "iter", "b": "iter", "c": "iter"},
        "ctx": {"a": "ctx", "b": "ctx"},
        "args": {"a": "args"},
    }

    assert [value(f"{{{{ {name} }}}}", **layers) for name in "abcd"] == [
        "args",
        "ctx",
        "iter",
        "workload",
    ]
    assert value("{{ a }}", **layers, a="step") == "step"


def test_a_none_in_an_earlier_layer_is_a_value():
    assert value("{{ a }}", args={"a": None}, ctx={"a": 1}) is None


def test_names_with_two_underscores_and_names_of_methods_are_ordinary_keys():
    ctx = {"__class__": "mine", "items": [1], "keys": "k", "get": "g"}

    assert value("{{ ctx.__class__ }}", ctx=ctx) == "mine"
    assert value("{{ ctx.items }}", ctx=ctx) == [1]
    assert value("{{ ctx['keys'] ~ ctx.get }}", ctx=ctx) == "kg"
    assert value("{{ ctx.get('items') }}", ctx=ctx) == [1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ x[0] }}", 1),
        ("{{ x[-1] }}", 3),
        ("{{ x.0 }}", 1),
        ("{{ x[1:] }}", [2, 3]),
        ("{{ x[::-1] }}", [3, 2, 1]),
        ("{{ 'abc'[1] }}", "b"),
        ("{{ 'abc'[-2:] }}", "bc"),
        ("{{ m['a b'] }}", 1),
        ("{{ m[k] }}", 2),
        ("{{ m[7] }}", "seven"),
        ("{{ now().year }}-{{ now().minute }}", "2024-30"),
        ("{{ (now() - then).days }}", 2),
    ],
)
def test_attributes_and_items_are_the_same_lookup(text, expected):
    then = datetime(2024, 5, 15, 12, tzinfo=UTC)
    roots = {"x": [1, 2, 3], "m": {"a b": 1, "kk": 2, 7: "seven"}, "k": "kk", "then": then}

    assert value(text, **roots) == expected


def test_values_of_databases_pass_through_and_have_a_text():
    amount = Decimal("12.50")

    assert value("{{ x }}", x=amount) == amount
    assert value("{{ x }} EUR", x=amount) == "12.50 EUR"
    assert value("{{ x * 2 > 24 }}", x=amount) is True
    assert value("{{ x }}", x=b"ab") == b"ab"
    assert value("at {{ x }}", x=NOON) == "at 2024-05-17 12:30:15+00:00"


def test_a_structure_without_templates_is_given_back_itself():
    structure = {"a": [1, {"b": "text"}], "c": None}

    compiled = compile_value(structure)

    assert compiled.is_literal
    assert compiled.render(scope()) is structure
    assert compiled.reads == frozenset()


def test_a_structure_is_filled_in_and_its_literal_parts_are_kept():
    literal = {"deep": [1, 2]}
    compiled = compile_value(
        {"url": "{{ api }}/x", "n": ["{{ n }}", 5], "same": literal, "k": None}
    )

    made = compiled.render(scope(workload={"api": "http://a", "n": 2}))

    assert made == {"url": "http://a/x", "n": [2, 5], "same": {"deep": [1, 2]}, "k": None}
    assert made["same"] is literal
    assert compiled.reads == {("api",), ("n",)}


def test_an_error_in_a_structure_names_the_place_the_expression_and_the_cause():
    compiled = compile_value({"headers": {"auth": ["{{ ctx.tokn }}"]}})

    with pytest.raises(UndefinedValue) as caught:
        compiled.render(scope(ctx={"token_id": 1}), "args")

    assert str(caught.value).startswith("args.headers.auth[0]: {{ ctx.tokn }}: ")
    assert '"ctx" has no "tokn"' in str(caught.value)


def test_all_problems_of_a_structure_are_reported_at_once():
    with pytest.raises(TemplateRefused) as caught:
        compile_value({"a": "{{ x | uper }}", "b": ["{{ f() }}"], "c": "{{ ok }}"})

    assert [problem.code for problem in caught.value.problems] == [
        "unknown-filter",
        "unknown-function",
    ]


def test_the_same_text_is_compiled_once():
    assert compile_text("{{ a.b }}") is compile_text("{{ a.b }}")
    assert compile_condition("{{ a.b }}") is compile_condition("{{ a.b }}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", False),
        ("{ x }", False),
        ("{{ x }}", True),
        ("{% if x %}{% endif %}", True),
        ("{# c #}", True),
        ("${#array[@]}", False),
        ("#} {#", False),
    ],
)
def test_only_text_with_something_to_evaluate_is_a_template(text, expected):
    assert is_template(text) is expected


def test_uuid_is_new_at_each_call_and_the_same_when_done_again():
    first, second = value("{{ [uuid(), uuid()] }}")
    compiled = compile_value({"a": "{{ uuid() }}", "b": "{{ uuid() }}"})
    made = compiled.render(scope())

    assert first != second
    assert value("{{ [uuid(), uuid()] }}") == [first, second]
    assert made["a"] != made["b"]
    assert compiled.render(scope()) == made


def test_now_is_the_time_it_was_given_and_an_error_without_one():
    from noetl.templates import Scope

    assert value("{{ now() }}") == "2024-05-17T12:30:15Z"
    with pytest.raises(EvaluationFailed, match="no time"):
        compile_text("{{ now() }}").evaluate(Scope({}))
