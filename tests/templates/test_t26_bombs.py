"""T26: no template costs more than a few seconds and some megabytes, whatever it says.

The bombs are set off in a child process under a timer and an address-space limit, so that a hang
or a flood fails a test and not the run.
"""

# ruff: noqa: E501  the tables read better with one long line than with many short ones

from __future__ import annotations

import json
import resource
import subprocess
import sys
from time import process_time

import pytest

from noetl.errors import BudgetExceeded, EvaluationFailed
from noetl.templates import Limits, Scope, TemplateRefused, compile_condition, compile_text
from noetl.templates.filters import FILTERS
from tests.dsl.attempts import time_limit
from tests.effort import IS_LONG
from tests.templates.scopes import outcome, scope

SECONDS_MAX = 15
MEMORY_MAX = 600 << 20

ROOTS = {
    "n": 10**9,
    "big": "x" * 1_000_000,
    "spaced": "x " * 500_000,
    "words": ["w" * 1000] * 1000,
    "xs": list(range(1000)),
    "rows": [{"k": i % 7, "v": "v" * 50} for i in range(1000)],
}


DOUBLING = "{% set a = [1, 2] %}" + "{% set a = [a, a] %}" * 60
TUPLES = "{% set a = (1, 2) %}" + "{% set a = (a, a) %}" * 60
TEXTS = "{% set t = 'xxxxxxxx' %}" + "{% set t = t ~ t %}" * 60
LONG = "{% set s = 'x' * 1000000 %}"

BOMBS = [
    # numbers
    "{{ 10 ** (10 ** 7) }}", "{{ 2 ** n }}", "{{ (2 ** 4000) ** 4000 }}",
    "{{ (-2) ** n }}", "{{ 2.5 ** n }}", "{{ n * n ** 100 * n ** 100 * n ** 100 * n ** 100 }}",
    "{{ [2 ** 4000, 2 ** 4000] | sum * 2 ** 200 }}", "{{ 5 | round(-n) }}", "{{ 5 | round(n) }}",
    "{{ ('9' * 1500) | int }}", "{{ ('f' * 500000) | int(0, 16) }}",
    "{{ 7 | round(n, 'floor') }}", "{{ 1e300 ** 5 }}",
    # repetition
    "{{ 'x' * n }}", "{{ n * 'x' }}", "{{ [1] * n }}", "{{ (1,) * n }}", "{{ big * 1000 }}",
    "{{ [big] * 1000 | join | length }}", "{{ ([big] * 1000) | join }}", "{{ [[1] * 1000] * 1000 * 1000 }}",
    "{{ [[[[[[1] * 99] * 99] * 99] * 99] * 99] * 99 }}",
    "{{ ([[[[[1] * 99] * 99] * 99] * 99] * 99) | tojson }}", "{{ ([[[[1] * 99] * 99] * 99] * 99) | string }}",
    "{{ [[[[[1] * 99] * 99] * 99] * 99] * 99 == [[[[[1] * 99] * 99] * 99] * 99] * 99 }}",
    "{{ [[[[1] * 99] * 99] * 99] * 99 in [[[[[1] * 99] * 99] * 99] * 99] * 99 }}",
    "{{ ([[[[1] * 99] * 99] * 99] * 999) | unique | list }}", "{{ ([[[[1] * 99] * 99] * 99] * 999) | sort }}",
    "{{ ([[[[1] * 99] * 99] * 99] * 999) | max }}", "{{ [(9,) * 999] * 999 * 999 }}",
    # shared parts
    DOUBLING + "{{ a }}", DOUBLING + "{{ a == a }}{{ a | tojson }}", DOUBLING + "{{ a | unique }}",
    DOUBLING + "{{ a | string | length }}", DOUBLING + "{{ a in [a] }}{{ [a] | sort | length }}{{ a ~ '' }}",
    DOUBLING + "{{ '%s' % a }}", DOUBLING + "{{ a | join }}", DOUBLING + "{{ a | urlencode }}",
    DOUBLING + "{{ a | map('string') | list }}", DOUBLING + "{{ a < a }}{{ {'k': a} | string }}",
    TUPLES + "{{ {'x': 1}[a] | default(1) }}{{ a in {} }}{{ {a: 1} }}", TUPLES + "{{ a | unique }}",
    TUPLES + "{{ a | string }}", TEXTS + "{{ t }}", "{% set t = 'ab' %}" + "{% set t = t + t %}" * 60,
    "{% set t %}{{ big }}{{ big }}{% endset %}" + "{% set t %}{{ t }}{{ t }}{% endset %}" * 60,
    # loops
    "{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}",
    "{% for a in xs %}{% for b in xs %}{% for c in xs %}{{ c }}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in xs %}{% for b in xs %}{% for c in xs %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(900000) %}" + "{% set x = 1 + 1 %}" * 3000 + "{% endfor %}",
    "{% for a in range(900000) if " + " and ".join(["a"] * 90) + " %}{% endfor %}{{ 1 / 0 }}",
    "{% for a in range(900000) %}" + "".join(f"{{% set x{i} = 1 %}}" for i in range(900)) + "{% endfor %}",
    "{% for a in xs %}{% for b in xs %}{{ big }}{% endfor %}{% endfor %}",
    "{% for a in xs %}{{ xs | sort | join | length }}{{ xs | tojson | length }}{% endfor %}",
    "{% for a in range(900000) %}{{ 'y' in big }}{% endfor %}",
    "{% for a in range(900000) %}{{ big == big ~ 'a' }}{% endfor %}",
    "{% for a in range(900000) %}{{ big | sha256 }}{% endfor %}",
    "{% for a in range(900000) %}{{ big | wordcount }}{% endfor %}",
    "{% for a in range(900000) %}{{ spaced.split() | length }}{% endfor %}",
    "{% for a in range(900000) %}{{ big | regex_search('y') }}{% endfor %}",
    "{% for a in range(900000) %}{{ big | replace('y', 'z') | length }}{% endfor %}",
    "{% for a in range(900000) %}{{ xs[1:] | length }}{% endfor %}",
    "{{ range(n) }}", "{{ range(0, n * n, 1) }}", "{{ range(-n, n) | length }}", "{{ range(10 ** 30) }}",
    # comparisons of long texts, again and again
    LONG + "{{ (s ~ 'a') in [s ~ 'b'] * 1000000 }}", LONG + "{{ [s ~ 'a'] * 100000 == [s ~ 'a'] * 100000 }}",
    LONG + "{{ [s ~ 'a', s ~ 'b'] * 100000 | sort | length }}",
    LONG + "{{ ([s ~ 'a', s ~ 'b'] * 100000) | sort | length }}",
    LONG + "{{ ([s ~ 'a', s ~ 'b'] * 100000) | unique | length }}",
    LONG + "{{ ([s ~ 'a', s ~ 'b'] * 100000) | max | length }}",
    LONG + "{{ s.startswith([s ~ 'a'] * 1000000) }}", LONG + "{{ ([s] * 100000) | map('upper') | list | length }}",
    LONG + "{{ ([s] * 100000) | join | length }}", LONG + "{{ ([s] * 100000) | map('lower') | map('length') | sum }}",
    # filters with sizes
    "{{ 'a' | center(n) }}", "{{ big | indent(n) }}", "{{ ('a\n' * 100000) | indent(100000) }}",
    "{{ 'a' | indent(n, true) }}", "{{ [1] | batch(n, 1) }}", "{{ [1] | slice(n) }}", "{{ [1] | slice(1000001, 1) }}",
    "{{ big | replace('x', big) }}", "{{ big | replace('', big) }}", "{{ big.replace('x', big) }}",
    "{{ big | wordwrap(1) }}", "{{ spaced | wordwrap(1) }}", "{{ ('a-' * 30000) | wordwrap(1) }}",
    "{{ ('a ' * 30000) | wordwrap(1, wrapstring=big) }}", "{{ 'a' | truncate(n * n) }}x{{ 1 / 0 }}",
    "{{ big.strip('x' * 1000000) }}", "{{ big | trim(big) }}", "{{ xs | tojson(n) }}", "{{ big.join(words) }}",
    "{{ words | join(big) }}", "{{ ('<' * 500000) | striptags }}{{ 1 / 0 }}",
    "{{ ('<!--' * 200000) | striptags }}{{ 1 / 0 }}", "{{ ('<!-- -->' * 200000) | striptags }}{{ 1 / 0 }}",
    "{{ ('- ' * 900000) | title }}{{ 1 / 0 }}", "{{ ('&' * 900000) | escape | escape | escape | escape }}",
    "{{ ('[' * 900000) | fromjson }}", "{{ ('[1,' * 900 ~ '1' ~ ']' * 900) | fromjson }}{{ 1 / 0 }}",
    "{{ ('[' ~ '[],' * 2000000 ~ '1]') | fromjson }}", "{{ '%s' | format(big) * 9 }}",
    # formats
    "{{ '%1000000000d' % 1 }}", "{{ '%.1000000000f' % 1 }}", "{{ '%*d' % (n, 1) }}", "{{ '%0999999999d' | format(1) }}",
    "{{ ('%9999d' * 10000) % 1 }}", "{{ ('%(a)s' * 10000) % {'a': big} }}", "{{ ('%(a)s' * 100000) | format(a=big) }}",
    "{{ '%c' % n }}", "{{ '%-----9999999999d' % 1 }}", "{{ now() | strftime('%1000000Y') }}",
    "{{ now() | strftime('%Y' * 100000) }}", "{{ '1' | to_datetime('%f' * 90) }}", "{{ big | to_datetime }}",
    # patterns
    "{{ (big ~ '!') | regex_search('(x+x+)+y') }}{{ 1 / 0 }}", "{{ (big ~ '!') | regex_search('(x|xx)*$') }}{{ 1 / 0 }}",
    "{{ 'a' | regex_search('((a{1000}){1000}){1000}') }}", "{{ 'a' | regex_search('a{1,1000}' * 400) }}{{ 1 / 0 }}",
    "{{ big | regex_replace('x.*y|x', 'z') }}", "{{ big | regex_replace('x', big) }}", "{{ big | regex_replace('', 'ab' * 1000) }}",
    "{{ big | regex_replace('(x)', '\\\\1' * 1000) }}", "{{ big | regex_search('x' * 5000) }}",
    "{{ 'a' | regex_search('(' * 2000 ~ ')' * 2000) }}{{ 1 / 0 }}",
]  # fmt: skip


def explosions() -> list[dict[str, object]]:
    """Every bomb set off, one after the other, in a process with little memory to spare."""
    done = subprocess.run(
        [sys.executable, "-c", "import tests.templates.test_t26_bombs as t; t.set_off_all()"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def around() -> Scope:
    """A tenth of the steps shows as well that each is counted, and takes a tenth of the time."""
    return Scope(ROOTS, limits=Limits(ticks=Limits().ticks // (1 if IS_LONG else 10)))


def set_off_all() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    for text in BOMBS:
        start = process_time()
        try:
            with time_limit(SECONDS_MAX):
                compile_text(text).evaluate(around())
            error = ""
        except (EvaluationFailed, TemplateRefused) as refusal:
            error = str(refusal)
        print(json.dumps({"error": error, "seconds": process_time() - start}), flush=True)


def test_t26_every_bomb_is_refused_in_time_and_memory_with_a_clear_error():
    for bomb, found in zip(BOMBS, explosions(), strict=True):
        error, seconds = found["error"], found["seconds"]

        assert error, bomb[:200]
        assert "MemoryError" not in error, bomb[:200]
        assert len(error) < 1000, bomb[:200]
        assert seconds < SECONDS_MAX / (2 if IS_LONG else 6), bomb[:200]


@pytest.mark.parametrize("text", BOMBS[::8])
def test_t26_a_bomb_as_a_condition_ends_in_time(text):
    with time_limit(SECONDS_MAX):
        result = outcome(lambda: compile_condition(text).holds(Scope(ROOTS)))

    assert len(str(result)) < 1000


def many(count: int, least: int = 0) -> int:
    """So many in `make test-long`; a tenth is far too deep, too, and too long from `least` on."""
    return count if IS_LONG else max(count // 10, least)


DEEP = [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "{{ " + "{'a':" * 5000 + "1" + "}" * 5000 + " }}",
    "{{ " + "not " * 5000 + "1 }}",
    "{{ " + "- " * 5000 + "1 }}",
    "{{ " + "-+" * 5000 + "1 }}",
    "{{ " + "a if b else " * 5000 + "c }}",
    "{{ " + "(not " * 40 + "1" + ")" * 40 + " }}",
    "{{ " + "1 + " * many(20000) + "1 }}",
    "{{ " + "1 ** " * many(20000) + "1 }}",
    "{{ " + "a and " * many(20000) + "a }}",
    "{{ a" + ".b" * many(30000) + " }}",
    "{{ a" + "[0]" * many(30000) + " }}",
    "{{ a" + " | upper" * many(15000) + " }}",
    "{{ a" + ".upper()" * many(15000) + " }}",
    "{{ a" + "[a" * 5000 + "]" * 5000 + " }}",
    "{{ a" + " | default(a" * 5000 + ")" * 5000 + " }}",
    "{% if a %}" * 5000 + "{% endif %}" * 5000,
    "{% for a in b %}" * 3000 + "{% endfor %}" * 3000,
    "{% set a %}" * 5000 + "{% endset %}" * 5000,
    "{% with %}" * 5000 + "{% endwith %}" * 5000,
    "{% filter upper %}" * 3000 + "{% endfilter %}" * 3000,
    "{% block a %}" * 5000,
    "{% set " + "(" * 5000,
    "{% for " + "(" * 5000,
    "{{ a is " + "not " * 5000,
    "{{ a is b " * 5000,
    "{{ '" + "\\" * 100_000,
    "{{ '" + "a" * 100_000,
    "{# " * 30000,
    "{% raw %}" * 10000,
    "{%" * 60000,
    "{{" * 60000,
    "{" * 120_000,
    "{{ " + " " * 120_000,
    "{{ " + "1" * 120_000 + " }}",
    "{{ " + "1_" * 60_000 + " }}",
    "{{ 1" + "e" * 100_000 + " }}",
    "{{ a(" + "b=1," * many(20000, 10_000) + ") }}",
    "{{ a | default(" + "1," * 20000 + ") }}",
    "{{ " + "a." * many(60_000),
    "{{ " + "\\" * 100_000 + " }}",
    "x" * 200_000 + "{{ a }}",
    "{% if a %}" + "{% elif a %}" * many(8000),
    "\n" * 120_000 + "{{ a b }}",
    "{{a}}" * many(26_000, 20_001),
    "{{ [" + "a," * many(60_000, 20_001) + "] }}",
    "{% set x = a + 1 %}" * many(6_000, 4_001),
]


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_t26_text_too_deep_or_too_long_is_refused_in_time(text):
    with time_limit(SECONDS_MAX), pytest.raises(TemplateRefused) as caught:
        compile_text(text)

    assert all(len(problem.message) < 1000 for problem in caught.value.problems)


def nested(depth: int) -> list[object]:
    made: list[object] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize("expression", ["x", "x | string", "x | tojson", "x == y", "x | unique"])
def test_t26_data_nested_too_deeply_is_an_error_at_most(expression):
    around = scope(x=nested(100_000), y=nested(100_000))

    with time_limit(SECONDS_MAX):
        result = outcome(compile_text(f"{{{{ {expression} }}}}").evaluate, around)

    assert expression == "x" or "nested" in str(result)


def test_t26_limits_are_those_of_the_scope():
    small = Scope({"xs": list(range(100))}, limits=Limits(ticks=50, text=20))

    with pytest.raises(BudgetExceeded, match="50 steps"):
        compile_text("{% for x in xs %}{% endfor %}").evaluate(small)
    with pytest.raises(BudgetExceeded, match="20 characters"):
        compile_text("{{ 'abcdefghijk' ~ 'abcdefghijk' }}").evaluate(small)


def test_t26_honest_work_is_well_within_the_limits():
    rows = [{"id": i, "name": f"name {i % 97}", "tags": ["a", "b"]} for i in range(20_000)]
    around = scope(rows=rows)

    assert len(compile_text("{{ rows | sort(attribute='name') }}").evaluate(around)) == 20_000
    assert len(compile_text("{{ rows | groupby('name') }}").evaluate(around)) == 97
    assert compile_text("{{ rows | map(attribute='id') | sum }}").evaluate(around) == 199_990_000
    assert len(compile_text("{{ rows | tojson }}").evaluate(around)) > 1_000_000
    assert compile_text("{{ rows | tojson | fromjson == rows }}").evaluate(around) is True
    text = compile_text("{% for r in rows %}{{ r.id }},{{ r.name }}\n{% endfor %}").evaluate(around)
    assert text.count("\n") == 20_000


# --- What is paid for ------------------------------------------------------------------------------

SMALL = Limits(ticks=300, text=2000)
PAID_ROOTS = {
    "big": "x" * 100_000,
    "alike": "x" * 99_999 + "y",
    "tags": "<b>" * 5_000,
    "spaced": "x " * 5_000,
    "json": "[" + "1," * 5_000 + "1]",
    "coded": "QUJD" * 20_000,
    "few": ["x" * 50_000, "y" * 50_000],
    "rows": [{"k": "x" * 50_000}, {"k": "y" * 50_000}],
    "pairs": {"x" * 50_000: 1, "y" * 50_000: 2},
    "many": [1] * 2_000,
    "wide": {f"k{n}": n for n in range(1_000)},
    "shared": [["x" * 1_000] * 10] * 10,
    "ctx": dict.fromkeys(map(str, range(50_000))),
}
PAID = {
    "capitalize": "big | capitalize", "lower": "big | lower", "upper": "big | upper",
    "title": "big | title", "string": "shared | string", "trim": "big | trim",
    "center": "'x' | center(100000)", "indent": "big | indent", "replace": "big | replace('x', 'yy')",
    "truncate": "big | truncate(50000)", "wordwrap": "spaced | wordwrap(10)", "wordcount": "big | wordcount",
    "escape": "tags | escape", "e": "tags | e", "striptags": "tags | striptags",
    "urlencode": "big | urlencode", "format": "'%s' | format(shared)", "tojson": "shared | tojson",
    "fromjson": "json | fromjson", "b64encode": "big | b64encode", "b64decode": "coded | b64decode",
    "sha256": "big | sha256", "regex_search": "big | regex_search('y')",
    "regex_replace": "tags | regex_replace('b', 'y')", "int": "big | int", "reverse": "big | reverse",
    "list": "many | list", "items": "wide | items", "dictsort": "pairs | dictsort",
    "batch": "[1] | batch(1000, 0)", "slice": "[] | slice(1000)", "sum": "many | sum",
    "join": "few | join", "sort": "few | sort", "groupby": "rows | groupby('k')",
    "unique": "few | unique", "min": "few | min", "max": "few | max", "map": "many | map('abs')",
    "select": "many | select", "reject": "many | reject('odd')",
    "selectattr": "many | selectattr('a', 'undefined')", "rejectattr": "many | rejectattr('a')",
}  # fmt: skip
"""Filters whose work grows with what they are given, each with more than a small budget pays for."""
FREE = {
    "abs", "count", "d", "default", "filesizeformat", "first", "float", "last", "length", "round",
    "strftime", "to_datetime",
}  # fmt: skip
"""Their work does not grow, or its limit is their own."""
PAID_OTHERWISE = [
    "many | reverse", "pairs | dictsort(by='key', case_sensitive=true)", "few | sort(case_sensitive=true)",
    "few | unique(case_sensitive=true)", "few | min(case_sensitive=true)",
    "range(1000)", "big.split('x')", "big.split('y')", "big.upper()", "big.lower()", "big.strip()",
    "big.replace('x', 'yy')", "','.join(few)", "wide.items()", "wide.keys()", "wide.values()",
    "big.startswith(few * 200)", "'y' in big", "1 in many", "few == few", "big ~ big", "many + many",
    "big < alike", "'x' * 100000", "[1] * 1000", "'%s' % shared", "'%s' % big", "'%2000s' % 'x' ~ 'x' * 1000",
    "1 if ctx else 0",
]  # fmt: skip


def test_t26_every_filter_is_paid_for_or_free():
    assert PAID.keys() | FREE == FILTERS.keys()
    assert not PAID.keys() & FREE


@pytest.mark.parametrize("expression", [*PAID.values(), *PAID_OTHERWISE])
def test_t26_work_that_grows_is_paid_for(expression: str):
    template = compile_text(f"{{{{ {expression} }}}}")

    template.evaluate(Scope(PAID_ROOTS))
    with pytest.raises(BudgetExceeded):
        template.evaluate(Scope(PAID_ROOTS, limits=SMALL))
