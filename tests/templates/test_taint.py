"""A value computed from a secret is a secret, whichever way it was computed."""

# ruff: noqa: E501  the tables read better with one long line than with many short ones

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given

from noetl.errors import EvaluationFailed, NoetlError, UndefinedValue
from noetl.templates import (
    Scope,
    Tainted,
    compile_condition,
    compile_text,
    compile_value,
    mask,
    reveal,
    view,
)
from noetl.templates.filters import FILTERS
from noetl.templates.functions import METHODS
from noetl.templates.operators import TESTS
from noetl.templates.views import ResultView
from tests.effort import generated
from tests.templates.generated import expressions
from tests.templates.scopes import NOON, outcome

SECRET = "s3cret-canary"


def holds_taint(structure: object) -> bool:
    """Whether a tainted value stands anywhere in the structure."""
    pending = [structure]
    while pending:
        part = pending.pop()
        if isinstance(part, Tainted):
            return True
        if isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)
    return False


def around(**more: object) -> Scope:
    roots = {
        "keychain": {
            "token": Tainted(SECRET),
            "number": Tainted(41),
            "pair": Tainted([SECRET, "b"]),
            "db": {"host": "h", "password": Tainted(SECRET)},
            "list": ["open", Tainted(SECRET)],
            "map": Tainted({"user": "u", "password": SECRET}),
            "json": Tainted(f'{{"a": "{SECRET}"}}'),
            "base64": Tainted("czNjcmV0LWNhbmFyeQ=="),
            "time": Tainted("2024-01-02T03:04:05"),
        },
        "ctx": {"n": 1, "name": "open"},
    }
    return Scope(roots | more, now=NOON, tainted={"keychain"})


def evaluate(expression: str) -> object:
    return compile_text(f"{{{{ {expression} }}}}").evaluate(around())


ARGUMENTS = {
    "b64decode": ("keychain.base64", ""),
    "batch": ("keychain.pair", "(1)"),
    "dictsort": ("keychain.map", ""),
    "format": ("keychain.token", "()"),
    "fromjson": ("keychain.json", ""),
    "groupby": ("[keychain.map]", "('user')"),
    "items": ("keychain.map", ""),
    "map": ("keychain.pair", "('upper')"),
    "regex_replace": ("keychain.token", "('3', 'e')"),
    "regex_search": ("keychain.token", "('can')"),
    "rejectattr": ("[keychain.map]", "('nope')"),
    "replace": ("keychain.token", "('3', 'e')"),
    "selectattr": ("[keychain.map]", "('user')"),
    "slice": ("keychain.pair", "(2)"),
    "strftime": ("(keychain.time | to_datetime)", "('%Y')"),
    "to_datetime": ("keychain.time", ""),
    "abs": ("keychain.number", ""),
    "round": ("keychain.number", ""),
    "sum": ("[keychain.number]", ""),
    "filesizeformat": ("keychain.number", ""),
}


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_gives_a_secret_for_a_secret(name):
    subject, arguments = ARGUMENTS.get(name, ("keychain.token", ""))

    result = compile_text(f"{{{{ {subject} | {name}{arguments} }}}}").evaluate(around())

    assert isinstance(result, Tainted)


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_with_a_secret_argument_gives_a_secret_or_an_error_without_it(name):
    given = {"batch": "(1, keychain.token)", "slice": "(1, keychain.token)"}
    arguments = given.get(name, "(keychain.token)")

    result = outcome(evaluate, f"ctx.name | {name}{arguments}")

    assert SECRET not in str(result)
    assert isinstance(result, Tainted | NoetlError) or name in ("default", "d")


@pytest.mark.parametrize(
    "expression",
    [
        "keychain.token", "keychain['token']", "keychain.token ~ 'x'", "'x' ~ keychain.token",
        "keychain.token + 'x'", "keychain.number + 1", "-keychain.number", "keychain.number * 2",
        "'%s' % keychain.token", "keychain.token * 2", "keychain.token[0]", "keychain.token[1:]",
        "keychain.pair[1]", "keychain.pair | length", "[keychain.token]", "[1, [keychain.token]]",
        "{'a': keychain.token}", "{keychain.token: 1}", "(keychain.token, 1)", "keychain.db",
        "keychain.db.password", "keychain.list", "keychain.list | first", "keychain.list[1]", "keychain",
        "keychain | tojson", "keychain.list | join(',')", "keychain.map.user", "keychain.map.items()",
        "keychain.token == 'x'", "keychain.token in ['x']", "'3' in keychain.token", "not keychain.token",
        "keychain.token and 1", "keychain.token or 1", "1 if keychain.token else 2",
        "keychain.token if true else 2", "keychain.token is string", "keychain.token.split('-')",
        "'-'.join(keychain.pair)", "ctx.name.replace('o', keychain.token)", "range(keychain.number)",
        "ctx[keychain.token] | default(1)", "ctx.nope | default(keychain.token)",
        "keychain.token | default('x')", "keychain.nope | default(keychain.token)",
        "[ctx.n, keychain.list] | length", "keychain.map == {}", "'open' in keychain.list",
        "keychain.db.host if keychain.token", "1 < keychain.number < 50",
    ],
)  # fmt: skip
def test_every_way_to_read_a_secret_makes_the_result_secret(expression):
    result = compile_text(f"{{{{ {expression} }}}}").evaluate(around())
    as_text = compile_text(f"<{{{{ {expression} }}}}>").evaluate(around())

    assert isinstance(result, Tainted)
    assert isinstance(as_text, Tainted)
    revealed = reveal(result)
    assert mask(revealed) == revealed, "nothing is left to mask"


@pytest.mark.parametrize(
    "text",
    [
        "{% if keychain.token %}yes{% endif %}",
        "{% for c in keychain.pair %}{{ ctx.n }}{% endfor %}",
        "{% for c in keychain.list %}{{ c }}{% endfor %}",
        "{% for c in [1] if keychain.token %}{{ c }}{% endfor %}",
        "{% set t = keychain.token %}{{ t }}",
        "{% set t = keychain %}{{ t.db.password }}",
        "{% set t %}{{ keychain.token }}{% endset %}{{ t }}",
        "{% with t = keychain.token %}{{ t }}{% endwith %}",
        "{% filter upper %}{{ keychain.token }}{% endfilter %}",
    ],
)
def test_statements_carry_the_taint(text):
    assert isinstance(compile_text(text).evaluate(around()), Tainted)


@pytest.mark.parametrize(
    "expression",
    ["ctx.n", "ctx.name ~ 'x'", "ctx", "keychain.db.host", "keychain.list[0]", "'a' if true"],
)
def test_what_read_no_secret_is_not_secret(expression):
    assert not isinstance(compile_text(f"{{{{ {expression} }}}}").evaluate(around()), Tainted)


def test_bare_names_find_secrets_in_tainted_layers():
    plain = Scope({"args": {"t": Tainted(SECRET)}, "ctx": {"n": 1}}, tainted={"args"})
    whole = Scope({"args": Tainted({"t": SECRET}), "ctx": {"n": 1}}, tainted={"args"})

    for scope in (plain, whole):
        assert reveal(compile_text("{{ t }}").evaluate(scope)) == SECRET
        assert isinstance(compile_text("{{ t ~ 1 }}").evaluate(scope), Tainted)
        assert compile_text("{{ n }}").evaluate(scope) == 1


def test_views_of_secrets_are_secret():
    scope = around(step=view(ResultView, Tainted({"value": SECRET})))
    scope = Scope(scope.roots, tainted={"step"})

    assert reveal(compile_text("{{ step.value }}").evaluate(scope)) == SECRET
    assert reveal(compile_text("{{ step.data.value }}").evaluate(scope)) == SECRET
    assert reveal(compile_text("{{ step }}").evaluate(scope)) == {"value": SECRET}


def test_a_structure_has_secret_leaves_that_are_revealed_or_masked():
    compiled = compile_value(
        {
            "url": "http://{{ ctx.name }}",
            "auth": ["Bearer {{ keychain.token }}", 1],
            "n": "{{ ctx.n }}",
        }
    )

    made = compiled.render(around())

    assert mask(made) == {"url": "http://open", "auth": ["***", 1], "n": 1}
    assert reveal(made) == {"url": "http://open", "auth": [f"Bearer {SECRET}", 1], "n": 1}
    assert SECRET not in repr(made)


def test_a_condition_on_a_secret_gives_a_plain_answer():
    scope = around()

    assert compile_condition(f"{{{{ keychain.token == '{SECRET}' }}}}").holds(scope) is True
    assert compile_condition("{{ keychain.token == 'other' }}").holds(scope) is False
    assert compile_condition("{{ keychain.db.password }}").holds(scope) is True


@pytest.mark.parametrize(
    "expression",
    [
        "keychain.token.nope", "keychain.map.nope", "keychain.db.nope", "ctx[keychain.token]",
        "keychain.token + 1", "keychain.token | abs", "keychain.token | fromjson", "[keychain.map, keychain.map] | sort",
        "keychain.token | to_datetime", "keychain.token | b64decode", "keychain.token > 1",
        "keychain.token | int(keychain.token) + 1", "'%d' % keychain.token", "keychain.token.get('a')",
        "keychain.token | regex_search('(')", "'a' | regex_search(keychain.token ~ '(')",
        "keychain.pair | map(keychain.token)", "keychain.pair | select(keychain.token)", "1 in keychain.token",
        "keychain.token | center(keychain.number * 100000000)", "keychain.token * 10000000",
        "{}[keychain.map]", "keychain.token | strftime", "keychain.map | map(attribute=keychain.token)",
        "[{'a': 1}] | map(attribute=keychain.token)", "[{'a': 1}] | sum(attribute=keychain.token)",
    ],
)  # fmt: skip
def test_errors_do_not_show_the_secret(expression):
    with pytest.raises(EvaluationFailed) as caught:
        compile_text(f"{{{{ {expression} }}}}").evaluate(around())

    error: BaseException | None = caught.value
    assert SECRET not in str(error)
    assert "password" not in str(error).replace(expression, "")
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_a_missing_key_beside_secrets_lists_no_keys():
    with pytest.raises(UndefinedValue) as caught:
        compile_text("{{ keychain.map.usr }}").evaluate(around())

    assert "user" not in str(caught.value)


def test_a_tainted_value_shows_itself_to_nobody():
    secret = Tainted(Tainted(SECRET))

    assert f"{secret} {secret!r} {[secret]}" == "*** *** [***]"
    assert secret != Tainted(SECRET)
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(secret)


def test_a_secret_under_an_undeclared_root_still_does_not_show():
    scope = Scope({"ctx": {"t": Tainted(SECRET), "l": [Tainted(SECRET)]}})
    for text in ["{{ ctx.t }}", "a{{ ctx.t }}", "{{ ctx }}", "a{{ ctx.l }}", "{{ ctx | tojson }}"]:
        result = outcome(compile_text(text).evaluate, scope)

        assert SECRET not in f"{result} {result!r}"


def test_reveal_and_mask_keep_what_holds_no_secret():
    structure = {"a": [1, {"b": (2,)}]}

    assert reveal(structure) is structure
    assert mask(structure) is structure
    assert mask([Tainted(1), structure])[1] is structure


@generated(60, long=1000)
@given(expressions)
def test_no_expression_gets_a_secret_out(expression):
    scope = Scope(dict.fromkeys("abcd", Tainted({"k": SECRET, "n": [SECRET]})), tainted=set("abcd"))

    result = outcome(compile_text(f"{{{{ {expression} }}}}").evaluate, scope)

    assert SECRET not in f"{result} {result!r}"


def test_tests_and_methods_on_secrets_are_secret():
    for name in TESTS:
        if name.isalpha():
            for arguments in ("", "(2)", "(['a'])"):
                _check_tainted(f"keychain.number is {name}{arguments}")
    for name in METHODS:
        for subject in ("keychain.token", "keychain.map"):
            for arguments in ("()", "('a')", "('a', 'b')"):
                _check_tainted(f"{subject}.{name}{arguments}")


def _check_tainted(expression: str) -> None:
    result = outcome(evaluate, expression)

    assert isinstance(result, Tainted | NoetlError)
    assert SECRET not in str(result)
