"""The fast path gives exactly what the general path gives, errors included."""

# ruff: noqa: E501  the tables read better with one long line than with many short ones

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.templates import (
    EvaluationFailed,
    EventView,
    OutcomeView,
    Scope,
    Tainted,
    compile_condition,
    compile_text,
    view,
)
from noetl.templates.template import Condition, Template
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
    data.map(lambda plain: view("python", plain)),
    data.map(lambda plain: view("http", {"status_code": 200, "data": plain})),
    data.map(lambda plain: view("postgres", {"rows": plain, "row_count": 1})),
    data.map(lambda plain: OutcomeView("http", {"status": "ok", "result": {"data": plain}})),
    st.just(EventView({"name": "step.done", "k": 1}, frozenset({"step.exit", "a"}))),
    st.integers(5000, 5001).map(lambda bits: 2**bits),
    st.just(Tainted("secret")),
    st.just("x" * 70_000),
)
roots = st.dictionaries(st.sampled_from([*"abcd", "args", "ctx", "event"]), readable, max_size=6)


def both_paths_agree(text: str, around: Scope) -> None:
    template, condition = Template(text), Condition(text)
    template._fast = template.fast_function(strict=True)
    condition._fast = template.fast_function(strict=False)
    for fast, general in (
        (template.evaluate, template.evaluate_generally),
        (condition.holds, condition.holds_generally),
    ):
        # As text, so that nan equals nan and errors are compared with their messages.
        assert repr(outcome(fast, around)) == repr(outcome(general, around))


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(simple, roots)
def test_simple_expressions_agree_on_any_scope(expression, around):
    both_paths_agree(f"{{{{ {expression} }}}}", scope(**around))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(simple, paths), min_size=1, max_size=3), roots)
def test_texts_agree_on_any_scope(parts, around):
    both_paths_agree("<" + "-".join(f"{{{{ {part} }}}}" for part in parts) + ">", scope(**around))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions, roots)
def test_all_other_expressions_agree_too(expression, around):
    both_paths_agree(f"{{{{ {expression} }}}}", scope(**around))


@pytest.mark.parametrize(
    "expression",
    [
        "workload.api_url", "order_id", "ctx.items[0].sku", "ctx.a.b > 3", "x | default([])",
        "outcome.status == 'error' and outcome.http.status in [429, 500]", "(iter.page | int) + 1",
        "event.name == 'loop.done'", "event.name == 'call.done' and not response.paging.hasMore",
        "outcome.result.data.paging.page | default(iter.page)", "iter.has_more == true",
        "result.rows | length > 0", "'success' if result.valid else 'failure'", "total > 1000",
        "response.state in ['QUEUED', 'RUNNING']", "ctx.a is defined and ctx.a != 'x'", "a.b ~ '' == ''",
    ],
)  # fmt: skip
def test_the_common_shapes_do_take_the_fast_path(expression):
    is_fast = compile_text(f"{{{{ {expression} }}}}").fast_function(strict=False) is not None

    assert is_fast is ("~" not in expression)


def test_the_fast_path_is_taken_after_a_few_uses_and_only_then():
    template, condition = Template("{{ a + 1 }}"), Condition("{{ a > 1 }}")

    assert (template._fast, condition._fast) == (None, None)
    results = [(template.evaluate(AGREEABLE), condition.holds(AGREEABLE)) for _ in range(6)]

    assert results == [(2, False)] * 6
    assert template._fast is not None
    assert condition._fast is not None


def test_the_fast_path_is_not_taken_where_a_secret_may_be_read():
    around = Scope({"keychain": {"k": Tainted("s3cret")}, "n": 1}, tainted={"keychain"})
    template, condition = Template("{{ keychain.k }}"), Condition("{{ keychain.k == 's3cret' }}")
    template._fast = condition._fast = lambda scope: pytest.fail("took the fast path")

    assert isinstance(template.evaluate(around), Tainted)
    assert condition.holds(around)


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
