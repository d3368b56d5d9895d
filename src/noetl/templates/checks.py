"""What a parsed template may contain. Everything that is not listed here is refused.

All problems of a template are found at once, and each message says what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from jinja2 import nodes

from noetl.model.spelling import did_you_mean
from noetl.templates.analysis import targets
from noetl.templates.calls import FUNCTIONS, INSTEAD, METHODS
from noetl.templates.errors import TemplateProblem
from noetl.templates.filters import FILTERS, misfit
from noetl.templates.operators import INTEGER_BITS_MAX
from noetl.templates.parse import keywords, problem_at
from noetl.templates.predicates import TESTS

Found = tuple[str, str, str]
"""Code, message, and the word to point at."""

ALLOWED: frozenset[type[nodes.Node]] = frozenset(
    {
        nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign,
        nodes.AssignBlock, nodes.With, nodes.FilterBlock, nodes.Name, nodes.Const, nodes.Tuple,
        nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test,
        nodes.Call, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Concat, nodes.Compare,
        nodes.Operand, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod,
        nodes.Pow, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos,
    }
)  # fmt: skip

REFUSED: dict[type[nodes.Node], tuple[str, str]] = {
    nodes.Macro: ("macro", "write the expression where it is used, or use a workbook task"),
    nodes.CallBlock: ("call", "write the expression where it is used, or use a workbook task"),
    nodes.Include: ("include", "a template sees no files; use a workbook task"),
    nodes.Import: ("import", "a template sees no files; use a workbook task"),
    nodes.FromImport: ("from", "a template sees no files; use a workbook task"),
    nodes.Extends: ("extends", "a template sees no files; write the whole text"),
    nodes.Block: ("block", "write the text directly"),
    nodes.NSRef: ("set", "namespaces are not supported; use a filter such as `sum` or `join`"),
    nodes.Scope: ("autoescape", "write `| escape` where it is needed"),
    nodes.ScopedEvalContextModifier: ("autoescape", "write `| escape` where it is needed"),
    nodes.EvalContextModifier: ("autoescape", "write `| escape` where it is needed"),
}


def problems_of(tree: nodes.Template, source: str) -> tuple[TemplateProblem, ...]:
    """Everything in the tree that we would not run, in the order of the text."""
    found: list[tuple[int, Found]] = []
    pending: list[nodes.Node] = [tree]
    while pending:
        node = pending.pop()
        # Some nodes carry no line, whatever Jinja's types say.
        found += [(node.lineno or 1, each) for each in _complaints(node)]
        if type(node) in ALLOWED:
            pending.extend(node.iter_child_nodes())
    found.sort()
    return tuple(
        problem_at(source, line, word, code, message) for line, (code, message, word) in found
    )


def _complaints(node: nodes.Node) -> Iterator[Found]:
    kind = type(node)
    if kind in CHECKS:
        yield from CHECKS[kind](node)
    elif kind not in ALLOWED:
        word, remedy = REFUSED.get(kind, ("", "use a python task"))
        shown = f"{{% {word} %}}" if word else kind.__name__
        yield "template-unsupported", f"`{shown}` is not supported: {remedy}.", word


def _check_filter(node: nodes.Filter) -> Iterator[Found]:
    if node.name not in FILTERS:
        yield (
            "unknown-filter",
            f'there is no filter "{node.name}".' + did_you_mean(node.name, FILTERS),
            node.name,
        )
        return
    yield from _check_arguments(node.name, FILTERS[node.name], node)
    first = node.args[0] if node.args else None
    if node.name == "map" and isinstance(first, nodes.Const):
        yield from _check_named("filter", first.value, FILTERS)
    tested = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}.get(node.name)
    if tested is not None and len(node.args) > tested:
        argument = node.args[tested]
        if isinstance(argument, nodes.Const):
            yield from _check_named("test", argument.value, TESTS)


def _check_named(
    what: str, name: object, known: Mapping[str, Callable[..., object]]
) -> Iterator[Found]:
    if not isinstance(name, str) or name not in known:
        yield (
            f"unknown-{what}",
            f'there is no {what} "{name}".' + did_you_mean(str(name), known),
            str(name),
        )


def _check_test(node: nodes.Test) -> Iterator[Found]:
    if node.name in TESTS:
        yield from _check_arguments(node.name, TESTS[node.name], node)
    else:
        yield from _check_named("test", node.name, TESTS)


def _check_arguments(
    name: str, function: Callable[..., object], node: nodes.Filter | nodes.Test | nodes.Call
) -> Iterator[Found]:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        yield "template-unsupported", "`*` and `**` in arguments are not supported.", name
        return
    named = dict(keywords(node))
    if len(named) < len(node.kwargs):
        yield "template-syntax", f'"{name}" is given an argument twice', name
    elif fault := misfit(name, function, len(node.args), named):
        yield "template-syntax", fault, name


_DECLARED = dict.fromkeys(
    ("token", "secret", "credential"),
    " What a playbook needs is declared: write `auth: name`, or `{{ keychain.name }}`.",
)


def _check_call(node: nodes.Call) -> Iterator[Found]:
    callee = node.node
    if isinstance(callee, nodes.Name):
        if callee.name in FUNCTIONS:
            yield from _check_arguments(callee.name, FUNCTIONS[callee.name], node)
        else:
            yield (
                "unknown-function",
                f'there is no function "{callee.name}": templates have now(), uuid() and range().'
                + (_DECLARED.get(callee.name) or _instead(callee.name, FUNCTIONS)),
                callee.name,
            )
    elif isinstance(callee, nodes.Getattr):
        yield from _check_method(callee.attr, node)
    else:
        yield (
            "template-unsupported",
            "only the listed functions and methods can be called, not a value.",
            "",
        )


def _check_method(name: str, node: nodes.Call) -> Iterator[Found]:
    if name not in METHODS:
        yield (
            "template-unsupported",
            f'there is no method ".{name}()" on plain data.' + _instead(name, METHODS),
            name,
        )
    elif node.kwargs:
        yield "template-unsupported", f".{name}() takes its arguments in order only.", name
    else:
        yield from _check_arguments(name, METHODS[name][1], node)


def _instead(name: str, known: object) -> str:
    assert isinstance(known, dict)
    if name in INSTEAD:
        return f" {INSTEAD[name][0].upper()}{INSTEAD[name][1:]}."
    if name in FILTERS:
        return f" Write `| {name}`."
    return did_you_mean(name, known)


def _check_for(node: nodes.For) -> Iterator[Found]:
    if node.recursive:
        yield "template-unsupported", "`recursive` loops are not supported.", "recursive"
    if "loop" in targets(node.target):
        yield "template-syntax", "`loop` is the loop itself; name its items otherwise.", "loop"


def _check_constant(node: nodes.Const) -> Iterator[Found]:
    if isinstance(node.value, int) and node.value.bit_length() > INTEGER_BITS_MAX:
        yield "template-too-large", f"a number may have at most {INTEGER_BITS_MAX} bits.", ""


CHECKS: dict[type[nodes.Node], Callable[..., Iterator[Found]]] = {
    nodes.Filter: _check_filter,
    nodes.Test: _check_test,
    nodes.Call: _check_call,
    nodes.For: _check_for,
    nodes.Const: _check_constant,
}
