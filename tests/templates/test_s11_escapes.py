"""S11: the public corpus of ways out of Jinja. None of them leads anywhere.

Each payload is refused, or gives plain data that tells nothing about Python, the process or the
machine. They are taken from the well-known collections of server-side template injection.
"""

# ruff: noqa: E501  the tables read better with one long line than with many short ones

from __future__ import annotations

import pytest

from noetl.errors import EvaluationFailed
from noetl.templates import EventView, Scope, TemplateRefused, compile_condition, compile_text, view
from noetl.templates.views import AnswerView
from tests.templates.scopes import NOON

PAYLOADS = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__.__mro__[2].__subclasses__()[40]('/etc/passwd').read() }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ [].__class__.__base__.__subclasses__() }}",
    "{{ {}.__class__.__bases__[0].__subclasses__() }}",
    "{{ ().__class__.__bases__[0].__subclasses__()[59].__init__.__globals__ }}",
    "{{ (1).__class__.__base__ }}",
    "{{ true.__class__.__mro__ }}",
    "{{ none.__class__ }}",
    "{{ x.__class__.__init__.__globals__ }}",
    "{{ x.__init__.__globals__['os'].popen('id').read() }}",
    "{{ x['__class__']['__mro__'][1]['__subclasses__']() }}",
    "{{ x['__cla' ~ 'ss__'] }}",
    "{{ x['__cla' + 'ss__']['__mro__'] }}",
    "{{ x['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ x['\\u005f\\u005fclass\\u005f\\u005f']['\\u005f\\u005fmro\\u005f\\u005f'] }}",
    "{{ x[('_' * 2) ~ 'class' ~ ('_' * 2)] }}",
    "{{ x[['__cla', 'ss__'] | join] }}",
    "{{ x['__ssalc__' | reverse] }}",
    "{{ x['__ssalc__'[::-1]] }}",
    "{{ x['%c%cclass%c%c' | format(95, 95, 95, 95)] }}",
    "{{ x['X5f5f' | replace('X5f5f', '__class__')] }}",
    "{{ x[('X19fY2xhc3NfXw==' | replace('X', 'X')) | b64decode] }}",
    "{{ x | attr('__class__') }}",
    "{{ x | attr('__cl' ~ 'ass__') | attr('__mro__') }}",
    "{{ x | attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ request | attr('application') | attr('\\x5f\\x5fglobals\\x5f\\x5f') }}",
    "{{ request.application.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "{{ request['application']['__globals__'] }}",
    "{{ request | attr(request.args.param) }}",
    "{{ config }}",
    "{{ config.items() }}",
    "{{ config.__class__.__init__.__globals__['os'].popen('id').read() }}",
    "{{ config.from_object('os') }}",
    "{{ config.SECRET_KEY }}",
    "{{ self }}",
    "{{ self.__dict__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__.__builtins__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ cycler('a', 'b').next() }}",
    "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner(', ') }}",
    "{{ namespace.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace(a=1) }}",
    "{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}",
    "{{ lipsum.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ lipsum() }}",
    "{{ lipsum | string | list }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ dict(__class__=1) | list }}",
    "{{ dict.mro()[-1].__subclasses__() }}",
    "{{ range.__class__ }}",
    "{{ range.__init__.__self__ }}",
    "{{ range(1).__class__ }}",
    "{{ range(1).__iter__().__class__ }}",
    "{{ now.__globals__ }}",
    "{{ now().__class__ }}",
    "{{ now().__reduce__() }}",
    "{{ now().tzinfo }}",
    "{{ uuid.__globals__ }}",
    "{{ url_for.__globals__.os.popen('id').read() }}",
    "{{ get_flashed_messages.__globals__.__builtins__.open('/etc/passwd').read() }}",
    "{{ g.pop.__globals__.__builtins__ }}",
    "{{ session }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ __import__('os').system('id') }}",
    "{{ __builtins__ }}",
    "{{ _ }}",
    "{{ loop }}",
    "{{ caller }}",
    "{{ varargs }}",
    "{{ kwargs }}",
    "{{ context }}",
    "{{ environment }}",
    "{{ resolve }}",
    "{{ undefined_name.__init__.__globals__ }}",
    "{{ nope.__class__ }}",
    "{{ nope.x.y.__init__ }}",
    "{{ '{0.__class__}'.format(x) }}",
    "{{ '{0.__class__.__mro__[1].__subclasses__}'.format('') }}",
    "{{ '{x.__init__.__globals__}'.format_map({'x': x}) }}",
    "{{ '%s' % x.__class__ }}",
    "{{ '{0.__class__}' | format(x) }}",
    "{{ '%(a.__class__)s' % {'a': x} }}",
    "{{ 'a'.format.__globals__ }}",
    "{{ ''.join.__self__ }}",
    "{{ x.get.__self__ }}",
    "{{ x.items.__func__ }}",
    "{{ x.upper.__class__ }}",
    "{{ x.get('__class__') }}",
    "{{ x.pop('a') }}",
    "{{ x.update({'a': 2}) }}",
    "{{ x.setdefault('b', 1) }}",
    "{{ x.clear() }}",
    "{{ [].append(1) }}",
    "{{ [1].sort() }}",
    "{{ 'a'.encode() }}",
    "{{ 'a'.translate({97: 98}) }}",
    "{{ (x for x in y).gi_frame }}",
    "{{ ([1] | map('string')).gi_frame.f_globals }}",
    "{{ ([1] | select).gi_frame.f_back.f_globals }}",
    "{{ [1] | map('attr', '__class__') | list }}",
    "{{ [x] | map(attribute='__class__') | list }}",
    "{{ [x] | map(attribute='__class__.__mro__.1') | list }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ [x] | groupby('__class__') }}",
    "{{ [x] | sort(attribute='__class__') }}",
    "{{ [x] | sum(attribute='__class__') }}",
    "{{ [x] | selectattr('__class__') | list }}",
    "{{ [x] | rejectattr('__class__', 'defined') | list | length }}",
    "{{ [x] | max(attribute='__init__') }}",
    "{{ [x] | unique(attribute='__class__') | list }}",
    "{{ [x] | join(attribute='__class__') }}",
    "{{ x | map('__class__') }}",
    "{{ x is callable }}",
    "{{ x is sameas(x) }}",
    "{{ x | pprint }}",
    "{{ x | xmlattr }}",
    "{{ 'a' | urlize }}",
    "{{ '<b>' | safe }}",
    "{{ '<b>' | forceescape }}",
    "{{ [1, 2] | random }}",
    "{{ event.__class__ }}",
    "{{ event._plain }}",
    "{{ event._name.aliases }}",
    "{{ event.name.aliases }}",
    "{{ event.name.__class__ }}",
    "{{ event.get }}",
    "{{ event.plain }}",
    "{{ result._plain }}",
    "{{ result.plain.__class__ }}",
    "{{ result.get('a').__class__ }}",
    "{{ result.part }}",
    "{{ ([x] | groupby('a'))[0].__class__ }}",
    "{{ ([x] | groupby('a'))[0]._fields }}",
    "{{ 1.__class__ }}",
    "{{ 1.5.__class__.__mro__ }}",
    "{{ (1).real.__class__ }}",
    "{{ 'a'.__len__() }}",
    "{{ x.__getitem__('a') }}",
    "{{ x.__contains__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.popen('id') }}",
    "{% from 'os' import popen %}{{ popen('id') }}",
    "{% extends '/etc/passwd' %}",
    "{% extends x.__class__ %}",
    "{% block a %}{{ super.__init__ }}{% endblock %}",
    "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{{ m.__class__ }}",
    "{% macro m() %}x{% endmacro %}{{ m._func.__globals__ }}",
    "{% call(a) m() %}{% endcall %}",
    "{% for c in [].__class__.__base__.__subclasses__() %}{{ c.__name__ }}{% endfor %}",
    "{% for c in x.__class__.__mro__ %}{{ c }}{% endfor %}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for i in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% for i in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for i in [1] %}{{ loop.cycle.__globals__ }}{% endfor %}",
    "{% set x = cycler.__init__ %}{{ x.__globals__ }}",
    "{% with a = x.__class__ %}{{ a.__mro__ }}{% endwith %}",
    "{% filter attr('__class__') %}a{% endfilter %}",
    "{% set a | attr('__class__') %}b{% endset %}{{ a }}",
    "{% if x.__class__ %}{{ x.__class__.__mro__ }}{% endif %}leak",
    "{% do x.__class__ %}",
    "{% debug %}",
    "{% autoescape x.__class__ %}{{ x }}{% endautoescape %}",
    "{% print(x.__class__) %}",
    "{%print(''.__class__.__base__)%}",
    "{{ x.a if x.__class__ else x.__class__.__mro__ }}",
    "{{ (x, x.__class__ | default('safe'))[1] }}",
    "{{ x.__class__ | default('safe') }}",
    "{{ x.__class__ ~ '' }}",
    "{{ x.__class__ == 1 }}",
    "{{ x.__class__ is defined }}",
    "{{ x.__class__ is mapping }}",
    "{{ {}.get.__self__.__class__ }}",
    "{{ {'__class__': x}.__class__.__class__ }}",
    "{{ x[0:1].__class__ }}",
    "{{ x['a', 'b'] }}",
    "{{ 'a'.split.__call__('a') }}",
    "{{ 'os' | map('int') | attr('gi_code') }}",
    "{{ ''['__class__'] }}",
    "{{ []['__class__']['__base__'] }}",
    "{{ x.a.__class__.__base__.__subclasses__()[0].__init__.__globals__ }}",
    "{{ async_def.cr_frame }}",
    "{{ x.__builtins__.eval('1') }}",
    "{{ eval('1+1') }}",
    "{{ exec('import os') }}",
    "{{ getattr(x, '__class__') }}",
    "{{ type(x) }}",
    "{{ vars() }}",
    "{{ globals() }}",
    "{{ locals() }}",
    "{{ help }}",
    "{{ copyright._Printer__filenames }}",
    "${{ 7 * 7 }}",
    "#{ 7 * 7 }",
    "{{ 7 * '7' }}",
]

SIGNS = [
    "class ", "__", "object at", "function", "method", "module", "builtin", "root:", "uid=", "globals",
    "<", "noetl", "jinja", "Undefined", "aliases", "step.exit", "generator", "frozenset",
]  # fmt: skip


def around() -> Scope:
    return Scope(
        {
            "x": {"a": 1},
            "y": [1],
            "event": EventView({"name": "step.done"}, frozenset({"step.exit"})),
            "result": view(AnswerView, {"status_code": 200, "data": {"a": 1}}),
        },
        now=NOON,
        seed="s",
    )


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(part) for key, part in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_s11_no_payload_leads_out_of_plain_data(payload):
    try:
        template = compile_text(payload)
        values = [template.evaluate(around()) for _ in range(5)]
    except (TemplateRefused, EvaluationFailed):
        return
    for value in values:
        assert is_plain(value), value
        shown = repr(value).replace("<b>", "").replace("{0.__class__}", "")
        assert not any(sign in shown for sign in SIGNS), value


@pytest.mark.parametrize("payload", PAYLOADS)
def test_s11_no_payload_leads_out_through_a_condition(payload):
    try:
        condition = compile_condition(payload)
        answers = {condition.holds(around()) for _ in range(5)}
    except (TemplateRefused, EvaluationFailed):
        return
    assert answers in ({True}, {False})


def test_s11_the_corpus_is_large_and_most_of_it_is_refused_outright():
    refused = 0
    for payload in PAYLOADS:
        try:
            compile_text(payload).evaluate(around())
        except (TemplateRefused, EvaluationFailed):
            refused += 1

    assert len(PAYLOADS) > 180
    assert refused > 150


@pytest.mark.parametrize(
    "name",
    [
        "__class__",
        "__init__",
        "__globals__",
        "__dict__",
        "__mro__",
        "_plain",
        "get",
        "plain",
        "format",
    ],
)
def test_s11_python_attributes_of_data_are_not_there(name):
    for subject in ("x", "y", "''", "5", "1.5", "none", "event", "result", "event.name", "now()"):
        assert compile_text(f"{{{{ {subject}.{name} is defined }}}}").evaluate(around()) is False
        assert compile_text(f"{{{{ {subject}['{name}'] is defined }}}}").evaluate(around()) is False


def test_s11_a_template_cannot_change_the_data_it_reads():
    scope = around()
    before = repr(scope.roots["x"])
    for payload in PAYLOADS:
        try:
            compile_text(payload).evaluate(scope)
        except (TemplateRefused, EvaluationFailed):
            continue

    assert repr(scope.roots["x"]) == before
