"""Inlined code gives exactly what the code without inlining gives, errors included."""

# ruff: noqa: E501  the tables read better with one long line than with many short ones

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.errors import EvaluationFailed
from noetl.templates import (
    Condition,
    EventView,
    OutcomeView,
    Scope,
    Tainted,
    Template,
    compile_condition,
    compile_text,
    view,
)
from noetl.templates.views import AnswerView, ResultView, RowsView
from tests.effort import generated
from tests.templates.generated import COMPARISONS, data, expressions, literals, paths
from tests.templates.scopes import outcome, scope

FAST_FILTERS = [
    "default", "default(a)", "default([])", "default('x', true)", "d({})", "int", "length", "count",
    "string", "lower", "upper", "trim",
]  # fmt: skip
FAST_TESTS = [
    "defined", "undefined", "none", "true", "false", "boolean", "string", "mapping", "number",
]  # fmt: skip
CHOICES = ["[1, 2]", "['a', 'b', 3]", "(none, true)", "['step.done']", "[429, 500]", "b"]

AGREEABLE = Scope({"a": 1, "b": 2, "c": 3, "d": 4})


def _grown(inner):
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(COMPARISONS), inner),
        st.builds("({} in {})".format, inner, st.sampled_from(CHOICES)),
        st.builds("({} not in {})".format, inner, st.sampled_from(CHOICES)),
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/%"), inner),
        st.builds("({} // {})".format, inner, inner),
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} if {})".format, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'k': {}}}".format, inner),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({}).k".format, inner),
        st.builds("(({}) | {})".format, inner, st.sampled_from(FAST_FILTERS)),
        st.builds("({} is {})".format, inner, st.sampled_from(FAST_TESTS)),
        st.builds("({} is not {})".format, inner, st.sampled_from(FAST_TESTS)),
    )


simple = st.recursive(
    st.one_of(paths, paths, literals, st.sampled_from(["e", "e.f", "a.k.n.data", "event.name"])),
    _grown,
    max_leaves=6,
)
readable = st.one_of(
    data,
    data.map(lambda plain: view(ResultView, plain)),
    data.map(lambda plain: view(AnswerView, {"status_code": 200, "data": plain})),
    data.map(lambda plain: view(RowsView, {"rows": plain, "row_count": 1})),
    data.map(lambda plain: OutcomeView(AnswerView, {"status": "ok", "result": {"data": plain}})),
    st.just(EventView({"name": "step.done", "k": 1}, frozenset({"step.exit", "a"}))),
    st.integers(5000, 5001).map(lambda bits: 2**bits),
    st.just(Tainted("secret")),
    st.just("x" * 70_000),
)
roots = st.dictionaries(st.sampled_from([*"abcd", "args", "ctx", "event"]), readable, max_size=6)


def both_codes_agree(text: str, around: Scope) -> None:
    inlined, general = Template(text), Template(text, inline=False)
    for one, other in (
        (inlined.evaluate, general.evaluate),
        (Condition(text, inlined).holds, Condition(text, general).holds),
    ):
        # As text, so that nan equals nan and errors are compared with their messages.
        assert repr(outcome(one, around)) == repr(outcome(other, around))


@generated(75, long=1500)
@given(simple, roots)
def test_simple_expressions_agree_on_any_scope(expression, around):
    both_codes_agree(f"{{{{ {expression} }}}}", scope(**around))


@generated(50, long=1000)
@given(st.lists(st.one_of(simple, paths), min_size=1, max_size=3), roots)
def test_texts_agree_on_any_scope(parts, around):
    both_codes_agree("<" + "-".join(f"{{{{ {part} }}}}" for part in parts) + ">", scope(**around))


@generated(50, long=1000)
@given(expressions, roots)
def test_all_other_expressions_agree_too(expression, around):
    both_codes_agree(f"{{{{ {expression} }}}}", scope(**around))


STATEMENTS = [
    "{{% for x in {0} %}}{{{{ x.k }}}}{{{{ x == {1} }}}}{{{{ loop.last }}}}{{% else %}}-{{% endfor %}}",
    "{{% for x in [1, {0}] if x %}}{{{{ x or {1} }}}}{{% set y = x %}}{{% endfor %}}{{{{ y }}}}",
    "{{% if {0} %}}{{% set y = {1} %}}{{% elif {1} %}}{{% set y = 2 %}}{{% endif %}}{{{{ y | default(a) }}}}",
    "{{% with y = {0} %}}{{{{ y.k }}}}{{% set y = {1} %}}{{{{ y }}}}{{% endwith %}}{{{{ y is defined }}}}",
    "{{% filter upper %}}{{{{ {0} }}}}{{% endfilter %}}{{% set y %}}{{{{ {1} }}}}{{% endset %}}{{{{ y }}}}",
]


@generated(50, long=1000)
@given(st.sampled_from(STATEMENTS), simple, simple, roots)
def test_statements_agree_on_any_scope(text, one, other, around):
    both_codes_agree(text.format(one, other), scope(**around))


DEEP = [
    "{{ " + "a if b else " * 80 + "c }}",
    "{{ a" + " | default(a" * 30 + ")" * 30 + " }}",
    "{{ " + "(a and " * 30 + "d" + ")" * 30 + " }}",
    "{{ " + "[" * 30 + "a" + "]" * 30 + " }}",
    "{% if a %}" * 60 + "{% set y = d %}{{ c }}" + "{% endif %}" * 60 + "{{ y }}",
    "{% for x in [1] %}" * 40
    + "{% set y = x %}{{ y + d }}"
    + "{% endfor %}" * 40
    + "{{ y is defined }}",
    "{% with y = 3 %}" * 40 + "{{ y + d }}" + "{% endwith %}" * 40,
    "{% set y %}" * 40 + "{{ d }}" + "{% endset %}{{ y }}" * 40,
    "{% if no %}1" + "{% elif no %}2" * 300 + "{% elif d %}3{% endif %}",
    "{{ 0" + " < d - 3" * 1 + " <= 1" * 300 + " }}",
]


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_deep_nesting_gives_the_same_as_well(text):
    both_codes_agree(text, AGREEABLE)

    assert not isinstance(outcome(compile_text(text).evaluate, AGREEABLE), EvaluationFailed)


def test_names_of_a_deeply_nested_branch_are_seen_after_it():
    text = "{% if a %}" * 40 + "{% set y = d %}" + "{% endif %}" * 40 + "{{ y }}"

    assert compile_text(text).evaluate(AGREEABLE) == "4"


def test_a_secret_is_never_read_by_inlined_code():
    roots = {"keychain": {"k": Tainted("s3cret")}, "n": 1}
    declared, not_declared = Scope(roots, tainted={"keychain"}), Scope(roots)

    for around in (declared, not_declared):
        assert isinstance(compile_text("{{ keychain.k }}").evaluate(around), Tainted)
        assert isinstance(compile_text("{{ keychain.k is defined }}").evaluate(around), Tainted)
        assert isinstance(compile_text("{{ keychain.k.x | default(1) }}").evaluate(around), Tainted)
        assert isinstance(compile_text("<{{ keychain.k }}>").evaluate(around), Tainted)
        assert compile_condition("{{ keychain.k == 's3cret' }}").holds(around)


def test_a_list_made_by_an_expression_is_a_new_one_each_time():
    template = compile_text("{{ missing | default([]) }}")
    made = [template.evaluate(AGREEABLE) for _ in range(6)]

    assert len({id(each) for each in made}) == 6


def test_conditions_are_compiled_apart_from_values():
    text = "{{ nope.a }}"
    condition = compile_condition(text)

    assert [condition.holds(AGREEABLE) for _ in range(6)] == [False] * 6
    for _ in range(6):
        with pytest.raises(EvaluationFailed):
            compile_text(text).evaluate(AGREEABLE)
