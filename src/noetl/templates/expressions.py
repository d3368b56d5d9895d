"""The general path: a syntax tree becomes a tree of closures, each a few lines long.

A closure may give a *raw* value: a view, an undefined, or data with tainted values inside.
`compile_raw` makes such closures, for lookups and for what passes values on unseen;
`compile_plain` settles the raw value first, for everything that uses one.
"""

from __future__ import annotations

from collections.abc import Callable

from jinja2 import nodes

from noetl.templates import operators
from noetl.templates.calls import FUNCTIONS, METHODS, call_method
from noetl.templates.errors import EvaluationFailed, shortened
from noetl.templates.evaluation import Evaluation, Lacks, Undefined, kind_of
from noetl.templates.filters import COUNT_UNDEFINED, FILTERS, TAKE_UNDEFINED
from noetl.templates.parse import keywords
from noetl.templates.predicates import ON_UNDEFINED, TESTS
from noetl.templates.taint import Tainted
from noetl.templates.views import MISSING, AliasedName, lookup, sliced

Run = Callable[[Evaluation], object]
Bound = frozenset[str]
"""The names that a statement of the template binds somewhere."""

BINARY: dict[type[nodes.BinExpr], operators.Operator] = {
    nodes.Add: operators.add,
    nodes.Sub: operators.subtract,
    nodes.Mul: operators.multiply,
    nodes.Div: operators.divide,
    nodes.FloorDiv: operators.floor_divide,
    nodes.Mod: operators.modulo,
    nodes.Pow: operators.power,
}


def compile_plain(node: nodes.Node, bound: Bound) -> Run:
    """A closure for a plain value, or Undefined."""
    raw = compile_raw(node, bound)
    if not isinstance(node, PASSING):
        return raw

    def settled(run: Evaluation) -> object:
        return run.settle(raw(run))

    return settled


def compile_raw(node: nodes.Node, bound: Bound) -> Run:
    """A closure for the value as it was found."""
    return COMPILERS[type(node)](node, bound)


def _compile_constant(node: nodes.Const, bound: Bound) -> Run:
    value = node.value
    return lambda run: value


def _compile_name(node: nodes.Name, bound: Bound) -> Run:
    name = node.name

    def from_scope(run: Evaluation) -> object:
        scope = run.scope
        found = scope.roots.get(name, MISSING)
        if found is MISSING:
            found = scope.bare(name)
            if found is MISSING:
                return run.undefined(name, scope)
        return run.take(found) if type(found) is Tainted else found

    if name not in bound:
        return from_scope

    def from_locals(run: Evaluation) -> object:
        return run.locals[name] if name in run.locals else from_scope(run)

    return from_locals


def _compile_getattr(node: nodes.Getattr, bound: Bound) -> Run:
    key = node.attr
    return _compile_lookup(node, compile_raw(node.node, bound), lambda run: key)


def _compile_getitem(node: nodes.Getitem, bound: Bound) -> Run:
    container = compile_raw(node.node, bound)
    if isinstance(node.arg, nodes.Slice):
        return _compile_slice(node, container, bound)
    return _compile_lookup(node, container, compile_plain(node.arg, bound))


def _compile_lookup(node: nodes.Getattr | nodes.Getitem, container: Run, key: Run) -> Run:
    path, where = source_of(node), source_of(node.node)

    def look(run: Evaluation) -> object:
        inside = container(run)
        if type(inside) is Undefined:
            return inside
        wanted = key(run)
        if type(wanted) is Undefined:
            return run.missing(wanted)
        found = lookup(inside, wanted)
        if found is MISSING:
            return run.undefined(path, inside, wanted, where)
        return run.take(found) if type(found) is Tainted else found

    return look


def _compile_slice(node: nodes.Getitem, container: Run, bound: Bound) -> Run:
    assert isinstance(node.arg, nodes.Slice)
    parts = [node.arg.start, node.arg.stop, node.arg.step]
    bounds = [compile_plain(part, bound) if part is not None else None for part in parts]
    path, where = source_of(node), source_of(node.node)

    def cut(run: Evaluation) -> object:
        inside = container(run)
        if type(inside) is Undefined:
            return inside
        values = [part(run) if part is not None else None for part in bounds]
        for value in values:
            if type(value) is Undefined:
                return run.missing(value)
            if value is not None and not isinstance(value, int):
                raise EvaluationFailed(f"a slice needs whole numbers, not {kind_of(value)}")
        if values[2] == 0:
            raise EvaluationFailed("the step of a slice must not be 0")
        found = sliced(inside, slice(*values))
        if found is MISSING:
            return run.undefined(path, inside, None, where)
        assert isinstance(found, list | tuple | str)
        run.charge(1 + len(found) // (100 if isinstance(found, str) else 1))
        return found

    return cut


def _compile_conditional(node: nodes.CondExpr, bound: Bound) -> Run:
    test = compile_plain(node.test, bound)
    then = compile_raw(node.expr1, bound)
    path = source_of(node)
    if node.expr2 is None:
        return lambda run: then(run) if test(run) else Undefined(f"{path} has no else")
    otherwise = compile_raw(node.expr2, bound)
    return lambda run: then(run) if test(run) else otherwise(run)


def _compile_and(node: nodes.And, bound: Bound) -> Run:
    left, right = compile_raw(node.left, bound), compile_raw(node.right, bound)

    def both(run: Evaluation) -> object:
        first = left(run)
        return right(run) if run.settle(first) else first

    return both


def _compile_or(node: nodes.Or, bound: Bound) -> Run:
    left, right = compile_raw(node.left, bound), compile_raw(node.right, bound)

    def either(run: Evaluation) -> object:
        first = left(run)
        return first if run.settle(first) else right(run)

    return either


def _compile_not(node: nodes.Not, bound: Bound) -> Run:
    value = compile_plain(node.node, bound)
    return lambda run: not value(run)


def _compile_sign(node: nodes.Neg | nodes.Pos, bound: Bound) -> Run:
    operand = compile_plain(node.node, bound)
    work = operators.negative if isinstance(node, nodes.Neg) else operators.positive

    def signed(run: Evaluation) -> object:
        value = operand(run)
        return run.missing(value) if type(value) is Undefined else work(run, value)

    return signed


def _compile_binary(node: nodes.BinExpr, bound: Bound) -> Run:
    left, right = compile_plain(node.left, bound), compile_plain(node.right, bound)
    work = BINARY[type(node)]

    def reckon(run: Evaluation) -> object:
        first, second = left(run), right(run)
        if type(first) is Undefined:
            return run.missing(first)
        if type(second) is Undefined:
            return run.missing(second)
        return work(run, first, second)

    return reckon


def _compile_concat(node: nodes.Concat, bound: Bound) -> Run:
    parts = [compile_plain(part, bound) for part in node.nodes]

    def concatenate(run: Evaluation) -> object:
        texts = []
        for part in parts:
            value = part(run)
            if type(value) is Undefined:
                return run.missing(value)
            text = run.text(value)
            run.charge_text(len(text))
            texts.append(text)
        return "".join(texts)

    return concatenate


def _compile_compare(node: nodes.Compare, bound: Bound) -> Run:
    first = compile_plain(node.expr, bound)
    steps = [
        (
            operators.COMPARISONS[step.op],
            step.op in ("ne", "notin"),
            compile_plain(step.expr, bound),
        )
        for step in node.ops
    ]

    def compare(run: Evaluation) -> object:
        left = first(run)
        for work, on_undefined, operand in steps:
            right = operand(run)
            if type(left) is Undefined or type(right) is Undefined:
                holds: object = on_undefined
            else:
                holds = work(run, left, right)
            if not holds:
                return False
            left = right
        return True

    return compare


def _compile_list(node: nodes.List | nodes.Tuple, bound: Bound) -> Run:
    parts = [compile_plain(part, bound) for part in node.items]
    kind = list if isinstance(node, nodes.List) else tuple

    def build(run: Evaluation) -> object:
        values = (_owned(run, part(run)) for part in parts)
        return kind(value for value in values if type(value) is not Undefined)

    return build


def _compile_dict(node: nodes.Dict, bound: Bound) -> Run:
    pairs = [
        (compile_plain(pair.key, bound), compile_plain(pair.value, bound)) for pair in node.items
    ]

    def build(run: Evaluation) -> object:
        made = {}
        for make_key, make_value in pairs:
            key, value = _owned(run, make_key(run)), _owned(run, make_value(run))
            if type(key) is Undefined or type(value) is Undefined:
                continue
            if not isinstance(key, str | int | float | None):
                raise EvaluationFailed(f"a key must be text or a number, not {kind_of(key)}")
            made[key] = value
        return made

    return build


def _owned(run: Evaluation, value: object) -> object:
    """A value on its way into a new container; a condition leaves out what is undefined."""
    if type(value) is Undefined:
        return run.missing(value)
    return str(value) if type(value) is AliasedName else value


def arguments(
    node: nodes.Filter | nodes.Test | nodes.Call, bound: Bound
) -> Callable[[Evaluation], tuple[list[object], dict[str, object]]]:
    """A closure for the arguments of a call, in order and by name."""
    ordered = [compile_plain(part, bound) for part in node.args]
    named = [(key, compile_plain(value, bound)) for key, value in keywords(node)]

    def gather(run: Evaluation) -> tuple[list[object], dict[str, object]]:
        return [part(run) for part in ordered], {key: part(run) for key, part in named}

    return gather


def _undefined_among(values: list[object], named: dict[str, object]) -> Undefined | None:
    for value in (*values, *named.values()):
        if type(value) is Undefined:
            return value
    return None


def _compile_filter(node: nodes.Filter, bound: Bound) -> Run:
    assert node.node is not None
    if node.name in TAKE_UNDEFINED:
        return _compile_default(node, compile_raw(node.node, bound), bound)
    return apply_filter(node, compile_plain(node.node, bound), bound)


def _compile_default(node: nodes.Filter, value: Run, bound: Bound) -> Run:
    """`default` passes on what it is given, so that a view stays one."""
    given = {"default_value": _compile_constant(nodes.Const(""), bound)}
    given |= zip(
        ("default_value", "boolean"), [compile_raw(part, bound) for part in node.args], strict=False
    )
    given |= {key: compile_raw(value, bound) for key, value in keywords(node)}
    fallback, boolean = given["default_value"], given.get("boolean")

    def choose(run: Evaluation) -> object:
        found = value(run)
        if type(found) is Undefined:
            return fallback(run)
        if boolean is not None and run.settle(boolean(run)) and not run.settle(found):
            return fallback(run)
        return found

    return choose


def apply_filter(node: nodes.Filter, value: Run, bound: Bound) -> Run:
    """A closure for a filter on the value of another closure."""
    gather = arguments(node, bound)
    work = FILTERS[node.name]
    counts = node.name in COUNT_UNDEFINED
    takes = node.name in TAKE_UNDEFINED

    def apply(run: Evaluation) -> object:
        subject = value(run)
        if type(subject) is Undefined and not takes:
            return 0 if counts and not run.strict else run.missing(subject)
        ordered, named = gather(run)
        lacking = _undefined_among(ordered, named)
        if lacking is not None:
            return run.missing(lacking)
        try:
            return work(run, subject, *ordered, **named)
        except Lacks as lack:
            return run.missing(lack.undefined)

    return apply


def _compile_test(node: nodes.Test, bound: Bound) -> Run:
    subject, gather = compile_plain(node.node, bound), arguments(node, bound)
    work, name = TESTS[node.name], node.name

    def test(run: Evaluation) -> object:
        value = subject(run)
        ordered, named = gather(run)
        if name == "defined":
            return type(value) is not Undefined
        if type(value) is Undefined or _undefined_among(ordered, named) is not None:
            return ON_UNDEFINED.get(name, False)
        return work(run, value, *ordered, **named)

    return test


def _compile_call(node: nodes.Call, bound: Bound) -> Run:
    gather = arguments(node, bound)
    if isinstance(node.node, nodes.Name):
        function = FUNCTIONS[node.node.name]

        def call(run: Evaluation) -> object:
            ordered, named = gather(run)
            lacking = _undefined_among(ordered, named)
            return function(run, *ordered, **named) if lacking is None else run.missing(lacking)

        return call

    assert isinstance(node.node, nodes.Getattr)
    subject, method = compile_plain(node.node.node, bound), node.node.attr
    assert method in METHODS

    def call_on(run: Evaluation) -> object:
        value = subject(run)
        ordered, _ = gather(run)
        lacking = value if type(value) is Undefined else _undefined_among(ordered, {})
        return call_method(run, method, value, ordered) if lacking is None else run.missing(lacking)

    return call_on


PASSING = (
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.CondExpr,
    nodes.And,
    nodes.Or,
    nodes.Filter,
)
"""Nodes whose value may be one they were given, unsettled."""

COMPILERS: dict[type[nodes.Node], Callable[..., Run]] = {
    nodes.Const: _compile_constant,
    nodes.Name: _compile_name,
    nodes.Getattr: _compile_getattr,
    nodes.Getitem: _compile_getitem,
    nodes.CondExpr: _compile_conditional,
    nodes.And: _compile_and,
    nodes.Or: _compile_or,
    nodes.Not: _compile_not,
    nodes.Neg: _compile_sign,
    nodes.Pos: _compile_sign,
    nodes.Concat: _compile_concat,
    nodes.Compare: _compile_compare,
    nodes.List: _compile_list,
    nodes.Tuple: _compile_list,
    nodes.Dict: _compile_dict,
    nodes.Filter: _compile_filter,
    nodes.Test: _compile_test,
    nodes.Call: _compile_call,
    **dict.fromkeys(BINARY, _compile_binary),
}


def source_of(node: nodes.Node) -> str:
    """How a path is written, for messages; other expressions are `(…)`."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return f"{source_of(node.node)}.{node.attr}"
    if isinstance(node, nodes.Getitem):
        index = repr(node.arg.value) if isinstance(node.arg, nodes.Const) else "…"
        return f"{source_of(node.node)}[{shortened(index, 60)}]"
    return "(…)"
