"""The filters, functions and methods that Jinja does not have, or has otherwise."""

from __future__ import annotations

import json
from decimal import Decimal
from uuid import UUID

import pytest

from noetl.errors import EvaluationFailed
from tests.templates.scopes import value

X = {"a": [1, None, True, 1.5, "é\"'<"], "b": {}}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x | tojson", json.dumps(X, ensure_ascii=False)),
        ("x | tojson | fromjson", X),
        ("x | tojson(2)", json.dumps(X, ensure_ascii=False, indent=2)),
        ("x | tojson(indent=0)", json.dumps(X, ensure_ascii=False, indent=0)),
        ("now() | tojson", '"2024-05-17T12:30:15+00:00"'),
        ("d | tojson", '["1.50", "00000000-0000-0000-0000-000000000007", "YWI="]'),
        ("'[1, 2.5, null]' | fromjson", [1, 2.5, None]),
        ("'héllo' | b64encode", "aMOpbGxv"),
        ("'aMOpbGxv' | b64decode", "héllo"),
        ("'abc' | sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("'order-17-x' | regex_search('[0-9]+')", "17"),
        ("'order-17-x' | regex_search('([a-z]+)-([0-9]+)', 2)", "17"),
        ("'order-17' | regex_search('(?P<what>[a-z]+)', 'what')", "order"),
        ("'order' | regex_search('[0-9]+')", None),
        ("'order' | regex_search('(x)?order', 1)", None),
        ("'a1b22' | regex_replace('[0-9]+', '#')", "a#b#"),
        ("'a1b22' | regex_replace('[0-9]', '#', 1)", "a#b22"),
        ("'john smith' | regex_replace('(\\\\w+) (\\\\w+)', '\\\\2, \\\\1')", "smith, john"),
        ("'ab' | regex_replace('(?P<x>a)', '<\\\\g<x>>')", "<a>b"),
        ("'ab' | regex_replace('', '-')", "-a-b-"),
        ("'a.b' | regex_replace('\\\\.', '\\\\\\\\')", "a\\b"),
        ("'2024-01-02' | to_datetime", "2024-01-02T00:00:00Z"),
        ("'2024-01-02T03:04:05Z' | to_datetime", "2024-01-02T03:04:05Z"),
        ("'02.01.2024' | to_datetime('%d.%m.%Y')", "2024-01-02T00:00:00Z"),
        ("0 | to_datetime", "1970-01-01T00:00:00Z"),
        ("1.5 | to_datetime", "1970-01-01T00:00:01.500000Z"),
        ("now() | to_datetime", "2024-05-17T12:30:15Z"),
        ("now() | strftime('%Y/%m/%d %H:%M')", "2024/05/17 12:30"),
        ("now() | strftime", "2024-05-17T12:30:15+0000"),
        ("'2024-01-02' | to_datetime < now()", True),
        ("('2024-01-02' | to_datetime).month", 1),
        ("[{'a': 1}, {'a': 1}, [2], [2], 1, true] | unique | list", [{"a": 1}, [2], 1]),
        ("[[1], (1,), [1], {'a': [1]}, {'a': (1,)}] | unique | list | length", 4),
        ("range(4)", [0, 1, 2, 3]),
        ("range(2, 8, 3)", [2, 5]),
        ("range(3, 0, -1)", [3, 2, 1]),
        ("range(0)", []),
        ("'a-b'.split('-') | last", "b"),
        ("{'a': 1}.keys()", ["a"]),
        ("{'a': 1}.values()", [1]),
        ("{'a': 1}.items()", [["a", 1]]),
        ("{'a': 1}.get('b')", None),
        ("{'upper': 1}.get('upper')", 1),
        ("[3, 4] | map('string') | list", ["3", "4"]),
        ("none | string", "None"),
        ("'a,b' | replace(',', ';') | upper", "A;B"),
        ("d.0 * 2", Decimal("3.00")),
        ("d.0 + 1.5", 3.0),
    ],
)
def test_an_expression_gives(expression, expected):
    d = [Decimal("1.50"), UUID(int=7), b"ab"]

    assert value(f"{{{{ {expression} }}}}", x=X, d=d) == expected


@pytest.mark.parametrize(
    ("expression", "cause"),
    [
        ("1 + 'a'", "Convert with"),
        ("'a' + 1", "does not fit text and a number"),
        ("none > 3", "does not fit none and a number"),
        ("[] > 3", "a list and a number"),
        ("1 in 5", "`in` does not fit"),
        ("1 in 'a'", "`in` does not fit"),
        ("1 / 0", "by zero"),
        ("1 % 0", "by zero"),
        ("{} + {}", "a mapping and a mapping"),
        ("-'a'", "needs a number, not text"),
        ("5 | length", "length needs"),
        ("5 | join", "join needs a list, not a number"),
        ("'x' | abs", "abs needs a number"),
        ("[1, 'a'] | sort", "cannot be compared"),
        ("[1, 'a'] | max", "cannot be compared"),
        ("{'a': 1} | tojson(99)", "the indent must be from"),
        ("'{' | fromjson", "not JSON at line 1"),
        ("'NaN' | fromjson", "not JSON"),
        ("5 | fromjson", "needs text"),
        ("'é' | b64decode", "base64"),
        ("'/w==' | b64decode", "base64"),
        ("'a' | regex_search('(')", "RE2"),
        ("'a' | regex_search('(?=a)')", "RE2"),
        ("'a' | regex_search('a', 3)", "no such group"),
        ("'a' | regex_replace('a', '\\\\3')", "no such group"),
        ("'a' | to_datetime", "not a time"),
        ("'a' | strftime", "to_datetime"),
        ("now() | strftime('%1000000d')", "time format"),
        ("'a' | items", "items needs a mapping"),
        ("'a'.get('b')", ".get() needs a mapping, not text"),
        ("{}.upper()", ".upper() needs text, not a mapping"),
        ("'a'.split('')", "split() needs"),
        ("range(0, 1, 0)", "must not be 0"),
        ("range(1000001)", "range() gives at most 1,000,000 numbers"),
        ("range(0, -2000002, -2)", "range() gives at most 1,000,000 numbers"),
        ("[1e308 * 10] | tojson", "cannot be written as JSON"),
        ("[1][::0]", "must not be 0"),
        ("[1]['a':]", "whole numbers"),
        ("{[]: 1}", "a key must be"),
        ("'%d' % 'a'", "do not fit the format"),
        ("'%' % 1", "write `%%`"),
        ("[1] | batch(0)", "must be from"),
        ("(-8) ** 0.5", "not a real number"),
        ("[1] | map('nope' ~ '')", "no such filter"),
        ("[1] | select('nope' ~ '')", "no such test"),
        ("[1] | map('replace')", 'takes (old, new'),
        ("'a' | trim('b' * 101)", "at most 100"),
        ("now() + now()", "does not fit"),
        ("now() < 5", "a time and a number"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained(expression, cause):
    with pytest.raises(EvaluationFailed) as caught:
        value(f"{{{{ {expression} }}}}")

    assert cause in str(caught.value)
    assert str(caught.value).startswith("{{ ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for n, g in x | groupby('n') %}{{ n }}:{{ g | length }} {% endfor %}", "1:1 2:2 "),
        (
            "{% for g in x | groupby('n') %}{{ g.grouper }}:{{ g.list | length }} {% endfor %}",
            "1:1 2:2 ",
        ),
        ("{% for i in [1] %}{{ loop.index }}{% endfor %}{{ loop.index }}", "1outer"),
    ],
)
def test_statements_take_our_filters_and_scope(text, expected):
    rows = [{"n": "1"}, {"n": "2"}, {"n": "2"}]

    assert value(text, x=rows, loop={"index": "outer"}) == expected


def test_several_names_need_a_list_of_that_size():
    with pytest.raises(EvaluationFailed, match="2 names need a list of 2, not a list of 3"):
        value("{% for a, b in [[1, 2, 3]] %}{% endfor %}")
    with pytest.raises(EvaluationFailed, match="not a number"):
        value("{% set a, b = 5 %}")


def test_only_plain_data_has_a_text():
    with pytest.raises(EvaluationFailed, match="not plain data"):
        value("a {{ x }}", x=object())
    with pytest.raises(EvaluationFailed, match="not plain data"):
        value("{{ [x] | tojson }}", x=object())
