"""What is refused when a template is compiled, and how the refusal helps."""

from __future__ import annotations

import pytest

from noetl.templates import TemplateRefused, compile_text


def problems(text: str):
    with pytest.raises(TemplateRefused) as caught:
        compile_text(text)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("{{ x | uper }}", "unknown-filter", 'Did you mean "upper"?'),
        ("{{ x | attr('a') }}", "unknown-filter", '"attr"'),
        ("{{ x | date }}", "unknown-filter", "Write `| strftime('%Y-%m-%d')`."),
        ("{{ x | len }}", "unknown-filter", "Write `| length`."),
        ("{{ x.date() }}", "template-unsupported", "Write `| strftime('%Y-%m-%d')`."),
        ("{{ x | random }}", "unknown-filter", '"random"'),
        ("{{ x | safe }}", "unknown-filter", '"safe"'),
        ("{{ x | map('uper') }}", "unknown-filter", 'Did you mean "upper"?'),
        ("{% filter uper %}{% endfilter %}", "unknown-filter", 'Did you mean "upper"?'),
        ("{{ x is defned }}", "unknown-test", 'Did you mean "defined"?'),
        ("{{ x | select('od') }}", "unknown-test", 'Did you mean "odd"?'),
        ("{{ x | rejectattr('a', 'eqq', 1) }}", "unknown-test", 'Did you mean "eq"?'),
        ("{{ rnge(3) }}", "unknown-function", 'Did you mean "range"?'),
        ("{{ len(x) }}", "unknown-function", "Write `| length`"),
        ("{{ dict(a=1) }}", "unknown-function", "Write `{…}`"),
        ("{{ env('HOME') }}", "unknown-function", "keychain"),
        ("{{ namespace() }}", "unknown-function", "python task"),
        ("{{ super() }}", "unknown-function", ""),
        ("{{ x.append(1) }}", "template-unsupported", "Write `list + [item]`"),
        ("{{ x.format(1) }}", "template-unsupported", "join texts with `~`"),
        ("{{ x.uper() }}", "template-unsupported", 'Did you mean "upper"?'),
        ("{{ x is null }}", "unknown-test", "Write `is none`"),
        ("{{ x.title() }}", "template-unsupported", "Write `| title`"),
        ("{{ x['upper']() }}", "template-unsupported", "can be called"),
        ("{{ range(3)() }}", "template-unsupported", "can be called"),
        ("{{ range(*x) }}", "template-unsupported", "`*`"),
        ("{{ x | default(**y) }}", "template-unsupported", "`**`"),
        ("{{ x.split(sep=',') }}", "template-unsupported", "in order"),
        ("{% macro f() %}{% endmacro %}", "template-unsupported", "workbook"),
        ("{% call f() %}{% endcall %}", "template-unsupported", "workbook"),
        ("{% include 'a' %}", "template-unsupported", "no files"),
        ("{% import 'a' as b %}", "template-unsupported", "no files"),
        ("{% from 'a' import b %}", "template-unsupported", "no files"),
        ("{% extends 'a' %}", "template-unsupported", "no files"),
        ("{% block a %}{% endblock %}", "template-unsupported", "directly"),
        ("{% set ns.a = 1 %}", "template-unsupported", "namespaces"),
        ("{% autoescape true %}{% endautoescape %}", "template-unsupported", "escape"),
        ("{% do x %}", "template-unsupported", "{% do %}"),
        ("{% break %}", "template-unsupported", "{% break %}"),
        ("{% trans %}a{% endtrans %}", "template-unsupported", "{% trans %}"),
        ("{% for x in y recursive %}{% endfor %}", "template-unsupported", "recursive"),
        ("{% for loop in y %}{% endfor %}", "template-syntax", "loop"),
        ("{{ }}", "template-syntax", "expression"),
        ("{{ a", "template-syntax", "Write `}}` where it ends"),
        ("{% if a", "template-syntax", "Write `%}` where it ends"),
        ("{{ a }", "template-syntax", "`{{` is not closed"),
        ("{{ a b }}", "template-syntax", "`b` is not expected here"),
        ("{{ a = 1 }}", "template-syntax", "Write `==`"),
        ("{{ a && b }}", "template-syntax", "Write `and`"),
        ("{{ !a }}", "template-syntax", "Write `not`"),
        ("{{ a ? 1 : 2 }}", "template-syntax", "Write `A if CONDITION else B`"),
        ("{{ 1 + }}", "template-syntax", "something is missing before `}}`"),
        ("{% if %}{% endif %}", "template-syntax", "is missing"),
        ("{{ a. }}", "template-syntax", "the name behind the dot is missing"),
        ("{{ (a }}", "template-syntax", "Write `)`"),
        ("{% if a %}", "template-syntax", "Write `{% endif %}` where it ends"),
        ("{% endif %}", "template-syntax", ""),
        ("{% if a %}{% endfor %}{% endif %}", "template-syntax", "endfor"),
        ("{{ 'a }}", "template-syntax", "a text is not closed"),
        ("{# {{ a }}", "template-syntax", ""),
        ("{{ x | replace }}", "template-syntax", "old"),
        ("{{ x | upper(1) }}", "template-syntax", "takes ()"),
        ("{{ x | default(vlue=1) }}", "template-syntax", "default_value"),
        ("{{ x | default(1, default_value=2) }}", "template-syntax", "multiple values"),
        ("{{ x | format(a=1, a=2) }}", "template-syntax", "twice"),
        ("{{ x is divisibleby }}", "template-syntax", "num"),
        ("{{ now(1) }}", "template-syntax", "takes ()"),
        ("{{ x.get() }}", "template-syntax", "key"),
        ("{{ " + "9" * 5000 + " }}", "template-syntax", "too long"),
        ("{{ " + "9" * 1500 + " }}", "template-too-large", "4096 bits"),
        ("{{ x }}" + " " * 140_000, "template-too-large", "at most 131,072"),
        ("{{ " + "(" * 60 + "1" + ")" * 60 + " }}", "template-too-large", "deeply"),
        ("{{ " + " + ".join("1" * 200) + " }}", "template-too-large", "deeply"),
    ],
)
def test_a_refusal_has_a_code_and_says_what_to_do(text, code, part):
    [problem, *_] = problems(text)

    assert problem.code == code
    assert part in problem.message


def test_all_problems_of_a_text_are_reported_at_once_in_the_order_of_the_text():
    found = problems("ok {{ a | uper }}\n  {{ b.c() }} and {{ d is nume }}\n")

    assert [each.code for each in found] == [
        "unknown-filter",
        "template-unsupported",
        "unknown-test",
    ]


def test_ordinary_nesting_is_far_from_the_limits():
    compile_text("{{ " + "(" * 30 + "1" + ")" * 30 + " }}")
    compile_text("{{ " + " + ".join("1" * 60) + " }}")
    compile_text("{% if a %}" * 20 + "x" + "{% endif %}" * 20)
    compile_text("{% if a %}1" + "{% elif b %}2" * 500 + "{% endif %}")
    compile_text("{{ [" + ", ".join("1" * 5000) + "] }}")
    compile_text("{{ " + " ~ ".join("a" * 5000) + " }}")
