"""What is not there: false in a condition, an error that explains itself in a value."""

from __future__ import annotations

import pytest

from noetl.errors import UndefinedValue
from tests.templates.scopes import holds, value

CTX = {"user": {"name": "Ann", "mail": "a@b"}, "n": 1, "xs": [{"a": 1}, {"b": 2}], "none": None}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("{{ ctx.x }}", False),
        ("{{ ctx.x.y.z }}", False),
        ("{{ nope }}", False),
        ("{{ not ctx.x }}", True),
        ("{{ ctx.x == 1 }}", False),
        ("{{ ctx.x != 1 }}", True),
        ("{{ ctx.x > 1 }}", False),
        ("{{ ctx.x <= 1 }}", False),
        ("{{ 1 < ctx.x }}", False),
        ("{{ ctx.x == ctx.y }}", False),
        ("{{ ctx.x == none }}", False),
        ("{{ ctx.x in [1] }}", False),
        ("{{ ctx.x not in [1] }}", True),
        ("{{ 1 in ctx.x }}", False),
        ("{{ 1 not in ctx.x }}", True),
        ("{{ 1 < ctx.x < 3 }}", False),
        ("{{ ctx.x + 1 }}", False),
        ("{{ ctx.x + 1 == 1 }}", False),
        ("{{ ctx.x ~ 'a' }}", False),
        ("{{ -ctx.x }}", False),
        ("{{ ctx.x | upper }}", False),
        ("{{ ctx.x | upper == 'A' }}", False),
        ("{{ ctx.x | length }}", False),
        ("{{ ctx.x | length == 0 }}", True),
        ("{{ ctx.x | count > 0 }}", False),
        ("{{ ctx.x | default(true) }}", True),
        ("{{ ctx.x | default(ctx.n) == 1 }}", True),
        ("{{ ctx.x is defined }}", False),
        ("{{ ctx.x is undefined }}", True),
        ("{{ ctx.none is defined }}", True),
        ("{{ ctx.x is none }}", False),
        ("{{ ctx.x is not none }}", True),
        ("{{ ctx.x is string }}", False),
        ("{{ ctx.x is odd }}", False),
        ("{{ ctx.x is ne(1) }}", True),
        ("{{ 1 is in(ctx.x) }}", False),
        ("{{ ctx.x and true }}", False),
        ("{{ ctx.x or true }}", True),
        ("{{ 'a' if ctx.x else '' }}", False),
        ("{{ 'a' if false }}", False),
        ("{{ ctx.n in [ctx.x, 1] }}", True),
        ("{{ [ctx.x] | length == 0 }}", True),
        ("{{ {'a': ctx.x} == {} }}", True),
        ("{{ ctx.xs[9].a == 1 }}", False),
        ("{{ ctx.xs[ctx.x] }}", False),
        ("{{ ctx.xs[ctx.x:] }}", False),
        ("{{ ctx.x.upper() }}", False),
        ("{{ ctx.n | replace(ctx.x, 'a') }}", False),
        ("{{ ctx.xs | map(attribute='a') | list }}", False),
        ("{{ ctx.xs | selectattr('a') | list | length == 1 }}", True),
        ("{{ ctx.xs | rejectattr('a') | list | length == 1 }}", True),
        ("{{ ctx.xs | selectattr('a', 'eq', 1) | list | length == 1 }}", True),
        ("{{ ctx.xs | sum(attribute='a') }}", False),
        ("{{ [] | first }}", False),
        ("{{ [] | max }}", False),
        ("{% for x in ctx.x %}a{% endfor %}", False),
    ],
)
def test_undefined_is_false_in_a_condition(condition, expected):
    assert holds(condition, ctx=CTX) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ ctx.x | default('d') }}", "d"),
        ("{{ ctx.x | default }}", ""),
        ("{{ ctx.x.y | d(none) }}", None),
        ("{{ ctx.none | default('d') }}", None),
        ("{{ ctx.none | default('d', true) }}", "d"),
        ("{{ ctx.none | default('d', boolean=true) }}", "d"),
        ("{{ ctx.x | default(ctx.y) | default(5) }}", 5),
        ("{{ ctx.x == 1 }}", False),
        ("{{ ctx.x is defined }}", False),
        ("{{ not ctx.x }}", True),
        ("{{ ctx.x or 3 }}", 3),
        ("{{ ctx.n or ctx.x }}", 1),
        ("{{ 'a' if ctx.x else 'b' }}", "b"),
        ("{{ ctx.x in [1] }}", False),
        ("{{ ctx.xs | map(attribute='a', default=0) | list }}", [1, 0]),
        ("{% if ctx.x %}a{% else %}b{% endif %}", "b"),
    ],
)
def test_a_value_may_ask_about_what_is_not_there(text, expected):
    assert value(text, ctx=CTX) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{{ ctx.x }}",
        "a {{ ctx.x }}",
        "{{ ctx.x + 1 }}",
        "{{ 1 + ctx.x }}",
        "{{ ctx.x ~ 'a' }}",
        "{{ -ctx.x }}",
        "{{ ctx.x | upper }}",
        "{{ ctx.x | length }}",
        "{{ 'a' | replace('a', ctx.x) }}",
        "{{ [ctx.x] }}",
        "{{ {'a': ctx.x} }}",
        "{{ {ctx.x: 1} }}",
        "{{ ctx.xs[ctx.x] }}",
        "{{ ctx.x.upper() }}",
        "{{ 'a'.split(ctx.x) }}",
        "{{ range(ctx.x) }}",
        "{{ ctx.x and 1 }}",
        "{{ ctx.x or ctx.y }}",
        "{{ 'a' if false }}",
        "{{ [] | first }}",
        "{{ [] | last }}",
        "{{ [] | min }}",
        "{{ ctx.xs | map(attribute='a') | list }}",
        "{{ ctx.xs | sort(attribute='a') }}",
        "{{ ctx.xs | groupby('a') }}",
        "{{ ctx.xs | map('first') | list }}{{ [[]] | map('first') }}",
        "{% for x in ctx.x %}{% endfor %}",
        "{% set y = ctx.x %}{{ y }}",
    ],
)
def test_undefined_is_an_error_in_a_value(text):
    with pytest.raises(UndefinedValue):
        value(text, ctx=CTX)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{{ ctx.user.nme }}", ['"ctx.user" has no "nme"', "name, mail", 'Did you mean "name"?']),
        ("{{ ctx.user.nme.x }}", ['"ctx.user.nme" is undefined', '"ctx.user" has no "nme"']),
        ("{{ ctx.n.x }}", ['"ctx.n" is a number and has no "x"']),
        ("{{ ctx.none.x }}", ['"ctx.none" is none']),
        ("{{ ctx.xs[7] }}", ['"ctx.xs" has no "7"']),
        ("{{ usr }}", ['"usr" is not defined', 'Did you mean "user"?']),
        ("{{ ctx.x + 1 }}", ["{{ ctx.x + 1 }}", "default("]),
        ("{{ [] | first }}", ["the first of nothing"]),
        ("{{ ctx.xs | map(attribute='a') | list }}", ['an item has no "a"']),
    ],
)
def test_the_error_says_what_is_missing_where_and_what_was_meant(text, parts):
    with pytest.raises(UndefinedValue) as caught:
        value(text, ctx=CTX)

    for part in parts:
        assert part in str(caught.value)


def test_a_long_expression_is_shortened_in_the_error():
    with pytest.raises(UndefinedValue) as caught:
        value("{{ " + " ~ ".join(["'" + "a" * 90 + "'"] * 40) + " ~ nope }}")

    assert len(str(caught.value)) < 400
