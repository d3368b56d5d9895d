"""Hypothesis strategies: expressions as people could write them, and data to try them on."""

# ruff: noqa: E501  the tables read better with one long line than with many short ones

from __future__ import annotations

from hypothesis import strategies as st

NAMES = ["a", "b", "c", "d"]
KEYS = ["k", "n", "x y", "data", "rows", "status"]

texts = st.text(st.sampled_from("ab AB1.,-_é\n<&"), max_size=8)
numbers = st.one_of(
    st.integers(-20, 20),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
data = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=10,
)
scopes = st.fixed_dictionaries(dict.fromkeys(NAMES, data))

literals = st.one_of(
    st.sampled_from(["true", "false", "none", "''", "'a'", "'3'", "'a b'", "[]", "{}", "0", "1.5"]),
    st.integers(-9, 99).map(str),
    st.sampled_from(["'%s'", "'%d-%s'", "'é<b>x</b>'", "[1, 2, 3]", "['b', 'A', 'a']", "{'k': 1}"]),
)

COMPARISONS = ["==", "!=", "<", "<=", ">", ">=", "in", "not in"]
ARITHMETIC = ["+", "-", "*", "/", "//", "%", "**", "~"]
SIMPLE_FILTERS = [
    "abs", "capitalize", "count", "default", "default(1)", "default([], true)", "d('x')", "dictsort",
    "dictsort(by='value')", "e", "escape", "filesizeformat", "filesizeformat(true)", "first", "float",
    "float(2.5)", "indent", "indent(2, true)", "int", "int(7)", "items", "join", "join('-')", "last",
    "length", "list", "lower", "max", "min", "reverse", "round", "round(1)", "round(1, 'floor')",
    "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "string", "striptags", "sum", "title",
    "trim", "trim('a')", "string | truncate(5)", "string | truncate(5, true, '')", "unique", "upper", "urlencode",
    "wordcount", "wordwrap(4)", "center(9)", "replace('a', 'bb')", "replace('a', 'b', 1)",
    "batch(2)", "batch(2, 0)", "slice(2)", "slice(3, 0)", "format(1, 'a')", "map('upper')",
    "map('int')", "select", "reject", "select('string')", "reject('number')", "select('gt', 1)",
    "map(attribute='k', default=0)", "selectattr('k')", "groupby('k', default='')", "sort(attribute='k')",
    "sum(attribute='k')", "join(', ', attribute='k')", "unique(attribute='k')", "min(attribute='n')",
]  # fmt: skip
SIMPLE_TESTS = [
    "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string",
    "mapping", "sequence", "iterable", "odd", "even", "divisibleby(3)", "lower", "upper", "in([1, 'a'])",
    "eq(1)", "ne('a')", "lt(3)", "gt(3)", "le(3)", "ge(3)",
]  # fmt: skip


def _filtered(inner):
    return st.builds("({}) | {}".format, inner, st.sampled_from(SIMPLE_FILTERS))


def _composed(inner):
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(COMPARISONS), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(ARITHMETIC), inner),
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("(-({}))".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} < {} <= {})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'k': {}, 'n': {}}}".format, inner, inner),
        st.builds("({} is {})".format, inner, st.sampled_from(SIMPLE_TESTS)),
        st.builds("({} is not {})".format, inner, st.sampled_from(SIMPLE_TESTS)),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({})[{}:{}]".format, inner, inner, inner),
        st.builds("({}).k".format, inner),
        st.builds("({})['x y']".format, inner),
        _filtered(inner),
        _filtered(inner),
        _filtered(inner),
    )


paths = st.builds(
    lambda name, keys: name + "".join(keys),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from([".k", ".n", "['x y']", "[0]", "[-1]", ".data", ".rows"]), max_size=3),
)
expressions = st.recursive(st.one_of(literals, paths, paths), _composed, max_leaves=6)
