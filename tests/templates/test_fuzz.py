"""Whatever text comes in: a template or problems. Whatever data it meets: a value or our errors."""

# ruff: noqa: E501  the tables read better with one long line than with many short ones

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from noetl.templates import (
    Scope,
    Template,
    TemplateRefused,
    compile_condition,
    compile_text,
    compile_value,
)
from noetl.templates.filters import FILTERS
from noetl.templates.functions import FUNCTIONS, METHODS
from noetl.templates.operators import TESTS
from tests.effort import generated
from tests.templates.generated import data
from tests.templates.scopes import outcome

TOKENS = [
    "{{", "}}", "{%", "%}", "{#", "#}", "{{-", "-}}", "{%-", "-%}", " ", "\n", "(", ")", "[", "]", "{", "}",
    ".", ",", ":", "|", "~", "+", "-", "*", "**", "/", "//", "%", "==", "!=", "<", ">", "<=", ">=", "=",
    "if", "elif", "else", "endif", "for", "in", "endfor", "set", "endset", "with", "endwith", "filter",
    "endfilter", "raw", "endraw", "macro", "endmacro", "call", "include", "import", "extends", "block",
    "not", "and", "or", "is", "recursive", "loop", "true", "false", "none", "a", "b", "a.k", "b[0]", "x y",
    "'", '"', "'a'", '"b"', "0", "1", "2.5", "1e5", "999999999999", "'%s'", "\\", "é", "\x00", "\ud800",
    "__class__", "_", "namespace", "autoescape", "do", "print", "'k'", "()", "[]", "{}", "'k': 1",
    *FILTERS, *TESTS, *FUNCTIONS, *(f".{name}(" for name in METHODS),
]  # fmt: skip

soups = st.lists(st.sampled_from(TOKENS), max_size=25).map(" ".join)
tight_soups = st.lists(st.sampled_from(TOKENS), max_size=25).map("".join)
tagged = st.one_of(
    soups.map("{{{{ {} }}}}".format),
    soups.map("{{% {} %}}".format),
    st.tuples(soups, soups).map(lambda pair: f"{{% for a in {pair[0]} %}}{pair[1]}{{% endfor %}}"),
    st.tuples(soups, soups).map(lambda pair: f"{{% if {pair[0]} %}}{pair[1]}{{% endif %}}"),
)
texts = st.one_of(st.text(max_size=60), soups, tight_soups, tagged, tagged)

argument = st.sampled_from(
    [
        "a",
        "b",
        "1",
        "-1",
        "0",
        "''",
        "'a'",
        "'k'",
        "[]",
        "{}",
        "none",
        "true",
        "1e9",
        "10 ** 12",
        "a.k",
    ]
)
arguments = st.lists(argument, max_size=3).map(", ".join)
calls = st.one_of(
    st.builds(
        "{{{{ {} | {}({}) }}}}".format, argument, st.sampled_from(sorted(FILTERS)), arguments
    ),
    st.builds(
        "{{{{ ({}).{}({}) }}}}".format, argument, st.sampled_from(sorted(METHODS)), arguments
    ),
    st.builds("{{{{ {}({}) }}}}".format, st.sampled_from(sorted(FUNCTIONS)), arguments),
    st.builds(
        "{{{{ {} is {}({}) }}}}".format,
        argument,
        st.sampled_from(sorted(name for name in TESTS if name.isalpha())),
        arguments,
    ),
    st.builds(
        "{{{{ [{}] | map('{}', {}) }}}}".format,
        argument,
        st.sampled_from(sorted(FILTERS)),
        argument,
    ),
)
strange = st.one_of(
    data,
    st.text(max_size=5),
    st.floats(),
    st.binary(max_size=3),
    st.datetimes(),
    st.decimals(),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.integers(),
    st.integers(4000, 4200).map(lambda digits: 10**digits),
    st.dictionaries(st.one_of(st.integers(), st.none(), st.text(max_size=3)), data, max_size=3),
    st.just({"k": "\ud800", "n": float("nan")}),
)
EVERYTHING = generated(125, long=2500)


@EVERYTHING
@given(texts, strange, strange)
def test_any_text_is_a_template_or_has_problems(text, a, b):
    scope = Scope({"a": a, "b": b}, seed="s")
    template = outcome(compile_text, text)
    if isinstance(template, TemplateRefused):
        assert template.problems
        assert all(each.code.startswith(("template-", "unknown-")) for each in template.problems)
        return

    assert isinstance(template, Template)
    outcome(compile_value([text]).render, scope)
    outcome(compile_condition(text).holds, scope)


@EVERYTHING
@given(calls, strange, strange)
def test_any_call_with_any_data_gives_a_value_or_our_error(text, a, b):
    scope = Scope({"a": a, "b": b}, seed="s")
    outcome(lambda: compile_text(text).evaluate(scope))
    outcome(lambda: compile_condition(text).holds(scope))
