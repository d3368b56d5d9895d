"""What a template reads and requires, found without evaluating it."""

from __future__ import annotations

import pytest
from hypothesis import given

from noetl.errors import EvaluationFailed
from noetl.templates import compile_condition, compile_text
from tests.effort import generated
from tests.templates.generated import expressions, scopes
from tests.templates.scopes import scope


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", set()),
        ("{{ 1 + 2 }}", set()),
        ("{{ ctx.a.b }}", {("ctx", "a", "b")}),
        ("{{ ctx['a']['b c'] }}", {("ctx", "a", "b c")}),
        ("{{ ctx.a[0].b }}", {("ctx", "a")}),
        ("{{ ctx.a[i.j].b }}", {("ctx", "a"), ("i", "j")}),
        ("{{ ctx[k] }}", {("ctx",), ("k",)}),
        ("{{ ctx.a[1:n] }}", {("ctx", "a"), ("n",)}),
        ("{{ a.b | default(c.d) }}", {("a", "b"), ("c", "d")}),
        ("{{ (a or b).c }}", {("a",), ("b",)}),
        ("{{ a.get('x') }}", {("a",)}),
        ("{{ range(n) }}", {("n",)}),
        ("{{ now().year }}", set()),
        ("{{ a }} {{ b.c }}", {("a",), ("b", "c")}),
        ("{% for x in a.b %}{{ x.c }}{{ y }}{{ loop.index }}{% endfor %}", {("a", "b"), ("y",)}),
        ("{% for x in x %}{{ x }}{% endfor %}", {("x",)}),
        ("{% for x in a %}{% endfor %}{{ x }}{{ loop.b }}", {("a",), ("x",), ("loop", "b")}),
        ("{% for x in a if x.k == y %}{% else %}{{ x }}{% endfor %}", {("a",), ("y",), ("x",)}),
        ("{% for x, (y, z) in a %}{{ x }}{{ y }}{{ z }}{% endfor %}", {("a",)}),
        ("{% set x = a.b %}{{ x.c }}", {("a", "b")}),
        ("{% set x = x.y %}{{ x.c }}", {("x", "y")}),
        ("{% if c %}{% set x = a %}{% endif %}{{ x.d }}", {("c",), ("a",), ("x", "d")}),
        (
            "{% if c %}{% set x = a %}{{ x }}{% elif x %}{{ d }}{% endif %}",
            {("c",), ("a",), ("x",), ("d",)},
        ),
        ("{% set x %}{{ a }}{% endset %}{{ x }}", {("a",)}),
        ("{% with x = a, y = b %}{{ x }}{{ y }}{% endwith %}{{ x }}", {("a",), ("b",), ("x",)}),
        ("{% filter replace(a, b) %}{{ c }}{% endfilter %}", {("a",), ("b",), ("c",)}),
    ],
)
def test_reads_are_the_paths_from_a_root_down_to_the_last_plain_key(text, expected):
    assert compile_text(text).reads == expected


def test_filters_and_calls_are_listed():
    template = compile_text("{{ a | map('upper') | join(',') }}{{ now() }}{{ b.get('c') }}")

    assert template.filters == {"map", "upper", "join"}
    assert template.called == {"now", ".get"}


@generated(50, long=1000)
@given(expressions, scopes)
def test_the_roots_that_are_read_are_enough_to_evaluate_with(expression, roots):
    template = compile_text(f"{{{{ {expression} }}}}")
    needed = {path[0] for path in template.reads}

    assert _outcome(template, roots) == _outcome(
        template, {name: part for name, part in roots.items() if name in needed}
    )


def _outcome(template, roots):
    try:
        return repr(template.evaluate(scope(**roots)))
    except EvaluationFailed as error:
        return type(error)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("{{ event.name == 'a' }}", {"a"}),
        ("{{ 'a' == event.name }}", {"a"}),
        ("{{ event['name'] == 'a' }}", {"a"}),
        ("{{ event.name in ['a', 'b'] }}", {"a", "b"}),
        ("{{ event.name in ('a', 'b') }}", {"a", "b"}),
        ("{{ event.name is eq('a') }}", {"a"}),
        ("{{ event.name is in(['a']) }}", {"a"}),
        ("{{ event.name == 'a' and ctx.x }}", {"a"}),
        ("{{ ctx.x and event.name == 'a' }}", {"a"}),
        ("{{ event.name == 'a' or event.name == 'b' }}", {"a", "b"}),
        ("{{ event.name == 'a' or ctx.x }}", None),
        ("{{ (event.name == 'a' or event.name == 'b') and event.name in ['a'] }}", {"a"}),
        ("{{ event.name == 'a' and event.name == 'b' }}", {"a"}),
        ("{{ event.name != 'a' }}", None),
        ("{{ event.name not in ['a'] }}", None),
        ("{{ not event.name == 'a' }}", None),
        ("{{ event.name == ctx.x }}", None),
        ("{{ event.name in ['a', ctx.x] }}", None),
        ("{{ event.name == 5 }}", None),
        ("{{ event.step == 'a' }}", None),
        ("{{ event.name == 'a' == 'b' }}", None),
        ("{{ true }}", None),
        ("{{ false }}", set()),
        ("{{ false and ctx.x }}", set()),
        ("{% if event.name == 'a' %}1{% endif %}", None),
        (True, None),
        (False, set()),
        ("text", None),
        ("false", set()),
    ],
)
def test_the_events_a_condition_is_about(condition, expected):
    assert compile_condition(condition).required_texts("event", "name") == expected
