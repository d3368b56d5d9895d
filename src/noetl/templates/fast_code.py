"""The source text of the fast path: how each node of an expression is written as Python.

The text is made of our own fragments alone: keys and names go in as literals (`repr` of a str), all
other constants as variables. What `B`, `M`, `SCALARS` and the like stand for is said in `fast`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jinja2 import nodes

from noetl.templates.views import MISSING

DEPTH_MAX = 30
ITEMS_MAX = 16
TEXT_MAX = 65_536
CONVERTIBLE = frozenset({str, int, float, bool, type(None)})
"""The kinds of constants, and of values that become text or a number just so."""


class NotFast(Exception):
    """The expression has a part the fast path does not speak."""


class Writer:
    """Writes the function line by line. Each `emit` gives the name of the variable it filled."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.lines = ["def evaluate(scope):", " roots = scope.roots"]
        self.depth = 1
        self.count = 0
        self.constants: dict[str, object] = {}
        self.booleans: set[str] = set()
        """Variables that surely hold True or False."""

    def line(self, text: str) -> None:
        self.lines.append(" " * self.depth + text)

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        if self.depth > DEPTH_MAX:
            raise NotFast
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def emit(self, node: nodes.Node) -> str:
        emitter = EMITTERS.get(type(node))
        if emitter is None:
            raise NotFast
        return emitter(self, node)

    def require(self, name: str, kinds: str) -> None:
        """Leave the function unless the variable's class is one of these."""
        if name not in self.booleans:
            self.line(f"if {name}.__class__ not in {kinds}: return B")

    def finish(self, name: str) -> None:
        if name in self.booleans:
            self.line(f"return {name}")
        elif self.strict:
            self.require(name, "FINAL")
            self.line(f"return {name}")
        else:
            self.line(f"return holds({name})")

    def finish_text(self, parts: list[nodes.Node]) -> None:
        pieces = []
        for part in parts:
            if isinstance(part, nodes.TemplateData):
                name = self.constant(part.data)
            else:
                name = self.emit(part)
                self.require(name, "SCALARS")
            pieces.append(f"{{{name}}}")
        text = self.fresh()
        self.line(f"{text} = f'{''.join(pieces)}'")
        self.line(f"if len({text}) > {TEXT_MAX}: return B")
        self.line(f"return {text if self.strict else f'holds({text})'}")

    def constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def _emit_constant(writer: Writer, node: nodes.Const) -> str:
    if type(node.value) not in CONVERTIBLE:
        raise NotFast
    name = writer.constant(node.value)
    if isinstance(node.value, bool):
        writer.booleans.add(name)
    return name


def _emit_name(writer: Writer, node: nodes.Name) -> str:
    name = writer.fresh()
    writer.line(f"{name} = roots.get({node.name!r}, M)")
    writer.line(f"if {name} is M: {name} = scope.bare({node.name!r})")
    return name


def _emit_getattr(writer: Writer, node: nodes.Getattr) -> str:
    return _emit_key(writer, node.node, node.attr)


def _emit_getitem(writer: Writer, node: nodes.Getitem) -> str:
    key = node.arg.value if isinstance(node.arg, nodes.Const) else None
    if type(key) is str:
        return _emit_key(writer, node.node, key)
    container = writer.emit(node.node)
    index = writer.emit(node.arg)
    writer.require(index, "SCALARS")
    name = writer.fresh()
    writer.line(f"{name} = look({container}, {index})")
    return name


def _emit_key(writer: Writer, container: nodes.Node, key: str) -> str:
    inside = writer.emit(container)
    name = writer.fresh()
    writer.line(
        f"{name} = {inside}.get({key!r}, M) if {inside}.__class__ is dict"
        f" else look({inside}, {key!r})"
    )
    return name


def _emit_logic(writer: Writer, node: nodes.And | nodes.Or) -> str:
    left = writer.emit(node.left)
    writer.require(left, "PLAIN")
    name = writer.fresh()
    writer.line(f"{name} = {left}")
    with writer.block(f"if {left}:" if isinstance(node, nodes.And) else f"if not {left}:"):
        right = writer.emit(node.right)
        writer.line(f"{name} = {right}")
    if left in writer.booleans and right in writer.booleans:
        writer.booleans.add(name)
    return name


def _emit_not(writer: Writer, node: nodes.Not) -> str:
    operand = writer.emit(node.node)
    writer.require(operand, "PLAIN")
    return _emit_boolean(writer, f"not {operand}")


def _emit_boolean(writer: Writer, expression: str) -> str:
    name = writer.fresh()
    writer.line(f"{name} = {expression}")
    writer.booleans.add(name)
    return name


def _emit_conditional(writer: Writer, node: nodes.CondExpr) -> str:
    test = writer.emit(node.test)
    writer.require(test, "PLAIN")
    name = writer.fresh()
    with writer.block(f"if {test}:"):
        then = writer.emit(node.expr1)
        writer.line(f"{name} = {then}")
    with writer.block("else:"):
        otherwise = "M" if node.expr2 is None else writer.emit(node.expr2)
        writer.line(f"{name} = {otherwise}")
    if then in writer.booleans and otherwise in writer.booleans:
        writer.booleans.add(name)
    return name


COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">="}
ARITHMETIC = {
    nodes.Add: "+",
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
}


def _emit_compare(writer: Writer, node: nodes.Compare) -> str:
    if len(node.ops) != 1:
        raise NotFast
    operand = node.ops[0]
    left = writer.emit(node.expr)
    if operand.op in ("in", "notin"):
        return _emit_in(writer, left, operand)
    right = writer.emit(operand.expr)
    unknown = [side for side in (left, right) if not _is_known(writer, side)]
    name = writer.fresh()
    comparison = f"{name} = {left} {COMPARISONS[operand.op]} {right}"
    writer.booleans.add(name)
    if not unknown:
        writer.line(comparison)
        return name
    checks = " and ".join(f"{side}.__class__ in SCALARS" for side in unknown)
    lacks = f"{unknown[0]} is M"
    if len(unknown) > 1:
        harmless = " and ".join(f"{side}.__class__ is not T" for side in unknown)
        lacks = f"({lacks} or {unknown[1]} is M) and {harmless}"
    writer.line(f"if {checks}: {comparison}")
    writer.line(f"elif {lacks}: {name} = {operand.op == 'ne'}")
    writer.line("else: return B")
    return name


def _is_known(writer: Writer, name: str) -> bool:
    return name in writer.booleans or type(writer.constants.get(name, MISSING)) in CONVERTIBLE


def _emit_in(writer: Writer, left: str, operand: nodes.Operand) -> str:
    name = writer.fresh()
    writer.booleans.add(name)
    negated = operand.op == "notin"
    sign = "not in" if negated else "in"
    items = operand.expr.items if isinstance(operand.expr, nodes.List | nodes.Tuple) else None
    if items is not None and all(isinstance(item, nodes.Const) for item in items):
        choices = writer.constant(tuple(item.value for item in items))  # type: ignore[attr-defined]
        writer.line(f"if {left}.__class__ in SCALARS: {name} = {left} {sign} {choices}")
        writer.line(f"elif {left} is M: {name} = {negated}")
        writer.line("else: return B")
        return name
    right = writer.emit(operand.expr)
    writer.line(f"{name} = {'not ' if negated else ''}contains({left}, {right})")
    return name


def _emit_arithmetic(writer: Writer, node: nodes.BinExpr) -> str:
    left, right = writer.emit(node.left), writer.emit(node.right)
    name = writer.fresh()
    sign = ARITHMETIC[type(node)]
    with writer.block(f"if {left}.__class__ in NUMBERS and {right}.__class__ in NUMBERS:"):
        writer.line(f"{name} = {left} {sign} {right}")
        writer.line(f"if not -L < {name} < L: return B")
    if sign == "+":
        texts = f"{left}.__class__ is str and {right}.__class__ is str"
        writer.line(
            f"elif {texts} and len({left}) + len({right}) <= {TEXT_MAX}: {name} = {left} + {right}"
        )
    writer.line("else: return B")
    return name


def _emit_list(writer: Writer, node: nodes.List) -> str:
    if len(node.items) > ITEMS_MAX:
        raise NotFast
    items = [writer.emit(item) for item in node.items]
    for item in items:
        writer.require(item, "FINAL")
    name = writer.fresh()
    writer.line(f"{name} = [{', '.join(items)}]")
    return name


def _emit_dict(writer: Writer, node: nodes.Dict) -> str:
    if len(node.items) > ITEMS_MAX:
        raise NotFast
    pairs = []
    for pair in node.items:
        if not isinstance(pair.key, nodes.Const) or type(pair.key.value) is not str:
            raise NotFast
        value = writer.emit(pair.value)
        writer.require(value, "FINAL")
        pairs.append(f"{pair.key.value!r}: {value}")
    name = writer.fresh()
    writer.line(f"{name} = {{{', '.join(pairs)}}}")
    return name


def _emit_filter(writer: Writer, node: nodes.Filter) -> str:
    emitter = FILTERS.get(node.name)
    if emitter is None or node.node is None or node.kwargs:
        raise NotFast
    return emitter(writer, node)


def _emit_default(writer: Writer, node: nodes.Filter) -> str:
    flags = [part.value if isinstance(part, nodes.Const) else None for part in node.args[1:]]
    if not all(isinstance(flag, bool) for flag in flags):
        raise NotFast
    assert node.node is not None
    value = writer.emit(node.node)
    name = writer.fresh()
    writer.line(f"{name} = {value}")
    test = f"{value} is M"
    if True in flags:
        writer.require(value, "PLAIN")
        test = f"not {value}"
    with writer.block(f"if {test}:"):
        fallback = writer.emit(node.args[0]) if node.args else writer.constant("")
        writer.line(f"{name} = {fallback}")
    return name


def _emit_int(writer: Writer, node: nodes.Filter) -> str:
    assert node.node is not None
    if node.args:
        raise NotFast
    value = writer.emit(node.node)
    name = writer.fresh()
    writer.line(f"{name} = {value}")
    with writer.block(f"if {value}.__class__ is not int:"):
        writer.require(value, "CONVERTIBLE")
        writer.line(f"{name} = whole({value}, 0)")
    writer.line(f"if not -L < {name} < L: return B")
    return name


def _emit_length(writer: Writer, node: nodes.Filter) -> str:
    assert node.node is not None
    value = writer.emit(node.node)
    name = writer.fresh()
    kinds = " or ".join(f"{value}.__class__ is {kind}" for kind in ("list", "str", "dict"))
    writer.line(f"if {kinds}: {name} = len({value})")
    if not writer.strict:
        writer.line(f"elif {value} is M: {name} = 0")
    writer.line("else: return B")
    return name


def _emit_text(writer: Writer, node: nodes.Filter) -> str:
    """string, lower, upper and trim without arguments."""
    assert node.node is not None
    if node.args:
        raise NotFast
    value = writer.emit(node.node)
    writer.require(value, "CONVERTIBLE")
    name = writer.fresh()
    method = {"string": "", "trim": ".strip()"}.get(node.name, f".{node.name}()")
    writer.line(f"{name} = str({value}){method}")
    writer.line(f"if len({name}) > {TEXT_MAX}: return B")
    return name


FILTERS: dict[str, Callable[[Writer, nodes.Filter], str]] = {
    "default": _emit_default,
    "d": _emit_default,
    "int": _emit_int,
    "length": _emit_length,
    "count": _emit_length,
    "string": _emit_text,
    "lower": _emit_text,
    "upper": _emit_text,
    "trim": _emit_text,
}

TESTS = {
    "none": "{0} is None",
    "true": "{0} is True",
    "false": "{0} is False",
    "boolean": "{0}.__class__ is bool",
    "string": "{0}.__class__ is str or {0}.__class__ is A",
    "mapping": "{0}.__class__ is dict",
    "number": "{0}.__class__ in NUMBERS or {0} is True or {0} is False",
}


def _emit_test(writer: Writer, node: nodes.Test) -> str:
    value = writer.emit(node.node)
    if node.name in ("defined", "undefined"):
        writer.line(f"if {value}.__class__ is T: return B")
        return _emit_boolean(writer, f"{value} is {'not ' if node.name == 'defined' else ''}M")
    if node.name not in TESTS:
        raise NotFast
    writer.require(value, "PLAIN")
    return _emit_boolean(writer, TESTS[node.name].format(value))


EMITTERS: dict[type[nodes.Node], Callable[..., str]] = {
    nodes.Const: _emit_constant,
    nodes.Name: _emit_name,
    nodes.Getattr: _emit_getattr,
    nodes.Getitem: _emit_getitem,
    nodes.And: _emit_logic,
    nodes.Or: _emit_logic,
    nodes.Not: _emit_not,
    nodes.CondExpr: _emit_conditional,
    nodes.Compare: _emit_compare,
    nodes.List: _emit_list,
    nodes.Dict: _emit_dict,
    nodes.Filter: _emit_filter,
    nodes.Test: _emit_test,
    **dict.fromkeys(ARITHMETIC, _emit_arithmetic),
}
