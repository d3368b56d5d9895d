"""What a template reads, without evaluating it.

A read is the path from a root down to the last plain key: `ctx.a[0].b` and `ctx.a[i]` both read
`("ctx", "a")`, since a value below an index is passed on as a whole. A name that the template binds
only sometimes counts as read, so the reads are always enough to evaluate the template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jinja2 import nodes

Path = tuple[str, ...]
Lookup = tuple[str | None, ...]
"""A path that continues past indexes: None is an element by its number or by a computed key."""


class Reads:
    """Collects the paths that a tree reads, statement by statement."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self.lookups: set[Lookup] = set()
        self.filters: set[str] = set()
        self.called: set[str] = set()

    def collect(self, node: nodes.Node, bound: set[str]) -> None:
        """Add what the node reads; `bound` are the names that certainly have a local value here."""
        if isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem):
            self._collect_path(node, bound)
        elif isinstance(node, nodes.For):
            self._collect_for(node, bound)
        elif isinstance(node, nodes.If):
            self._collect_if(node, bound)
        elif isinstance(node, nodes.With):
            self._collect_with(node, bound)
        elif isinstance(node, nodes.Assign):
            self.collect(node.node, bound)
            bound.update(targets(node.target))
        elif isinstance(node, nodes.AssignBlock | nodes.FilterBlock):
            self._collect_all(node.body, set(bound))
            if node.filter is not None:
                self.collect(node.filter, bound)
            if isinstance(node, nodes.AssignBlock):
                bound.update(targets(node.target))
        else:
            self._collect_plain(node, bound)

    def _collect_all(self, parts: list[nodes.Node], bound: set[str]) -> None:
        for part in parts:
            self.collect(part, bound)

    def _collect_plain(self, node: nodes.Node, bound: set[str]) -> None:
        if isinstance(node, nodes.Filter):
            self.filters.add(node.name)
            self.filters.update(_applied(node))
        if isinstance(node, nodes.Call):
            self._collect_call(node, bound)
            return
        for child in node.iter_child_nodes():
            self.collect(child, bound)

    def _collect_call(self, node: nodes.Call, bound: set[str]) -> None:
        callee = node.node
        if isinstance(callee, nodes.Name):
            self.called.add(callee.name)
        elif isinstance(callee, nodes.Getattr):
            self.called.add(f".{callee.attr}")
            self.collect(callee.node, bound)
        self._collect_all([*node.args, *node.kwargs], bound)

    def _collect_path(self, node: nodes.Expr, bound: set[str]) -> None:
        """Note the static part of a path, and whatever its computed indexes read."""
        keys: list[str | None] = []
        known = 0
        while isinstance(node, nodes.Getattr | nodes.Getitem):
            if isinstance(node, nodes.Getattr):
                keys.append(node.attr)
            else:
                keys.append(_constant_key(node.arg))
                if keys[-1] is None:
                    self.collect(node.arg, bound)
                if isinstance(node.arg, nodes.Slice):
                    known = len(keys)
            node = node.node
        if not isinstance(node, nodes.Name):
            self.collect(node, bound)
        elif node.name not in bound and node.ctx == "load":
            self.paths.add((node.name, *_until_none(reversed(keys))))
            self.lookups.add((node.name, *reversed(keys[known:])))

    def _collect_for(self, node: nodes.For, bound: set[str]) -> None:
        self.collect(node.iter, bound)
        inner = {*bound, *targets(node.target), "loop"}
        if node.test is not None:
            self.collect(node.test, inner - {"loop"} | (bound & {"loop"}))
        self._collect_all(node.body, set(inner))
        self._collect_all(node.else_, set(bound))

    def _collect_if(self, node: nodes.If, bound: set[str]) -> None:
        self.collect(node.test, bound)
        for branch in (node.body, node.else_):
            self._collect_all(branch, set(bound))
        for other in node.elif_:
            self.collect(other, set(bound))

    def _collect_with(self, node: nodes.With, bound: set[str]) -> None:
        self._collect_all([*node.values], bound)
        inner = set(bound)
        for target in node.targets:
            inner.update(targets(target))
        self._collect_all(node.body, inner)


def targets(node: nodes.Node) -> list[str]:
    """The names that a target binds: one, or those of a tuple."""
    if isinstance(node, nodes.Name):
        return [node.name]
    return [name for child in node.iter_child_nodes() for name in targets(child)]


def _applied(node: nodes.Filter) -> list[str]:
    """The filter that `map` applies to each item."""
    first = node.args[0] if node.name == "map" and node.args else None
    return [first.value] if isinstance(first, nodes.Const) else []


def _constant_key(node: nodes.Node) -> str | None:
    return node.value if isinstance(node, nodes.Const) and type(node.value) is str else None


def _until_none(keys: Iterator[str | None]) -> Iterator[str]:
    for key in keys:
        if key is None:
            return
        yield key


def path_of(node: nodes.Node) -> Path | None:
    """The path of a node that consists of a name and plain keys; None for any other."""
    keys: list[str] = []
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        key = node.attr if isinstance(node, nodes.Getattr) else _constant_key(node.arg)
        if key is None:
            return None
        keys.append(key)
        node = node.node
    return (node.name, *reversed(keys)) if isinstance(node, nodes.Name) else None


def required_texts(node: nodes.Node, path: Path) -> frozenset[str] | None:
    """The expression holds only if the value at `path` equals one of these texts.

    None: it may hold for any value, or this cannot be determined.
    """
    if isinstance(node, nodes.Const):
        return None if node.value else frozenset()
    if isinstance(node, nodes.And | nodes.Or):
        left, right = required_texts(node.left, path), required_texts(node.right, path)
        if isinstance(node, nodes.Or):
            return left | right if left is not None and right is not None else None
        # Not the intersection: an event's name equals each of its aliases at once.
        known = [texts for texts in (left, right) if texts is not None]
        return min(known, key=len, default=None)
    if isinstance(node, nodes.Compare) and len(node.ops) == 1:
        operand = node.ops[0]
        return _compared_texts(node.expr, operand.op, operand.expr, path)
    if isinstance(node, nodes.Test) and node.args:
        sign = {"eq": "eq", "==": "eq", "equalto": "eq", "in": "in"}.get(node.name, "")
        return _compared_texts(node.node, sign, node.args[0], path)
    return None


LIST_FILTERS = frozenset(
    {
        *("batch", "count", "first", "groupby", "join", "last", "length", "list", "map", "max"),
        *("min", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort"),
        *("sum", "unique"),
    }
)
"""Filters that go over the items of a list, and over the keys of a mapping."""


def paths_as_lists(tree: nodes.Node) -> Iterator[Path]:
    """The plain paths whose items the tree goes over."""
    for node in tree.find_all((nodes.Filter, nodes.For)):
        over = node.iter if isinstance(node, nodes.For) else None
        if isinstance(node, nodes.Filter) and node.name in LIST_FILTERS:
            over = node.node
        path = path_of(over) if over is not None else None
        if path:
            yield path


def compared_texts(tree: nodes.Node) -> Iterator[tuple[Path, str]]:
    """The texts that the tree compares with values at plain paths, wherever it does so."""
    for node in tree.find_all(nodes.Compare):
        left = node.expr
        for operand in node.ops:
            right = operand.expr
            pairs: list[tuple[nodes.Expr, nodes.Expr]] = []
            if operand.op in ("eq", "ne"):
                pairs = [(left, right), (right, left)]
            elif operand.op in ("in", "notin") and isinstance(right, nodes.List | nodes.Tuple):
                pairs = [(left, item) for item in right.items]
            for value, text in pairs:
                path = path_of(value)
                if path and isinstance(text, nodes.Const) and isinstance(text.value, str):
                    yield path, text.value
            left = right


def _compared_texts(
    left: nodes.Node, sign: str, right: nodes.Node, path: Path
) -> frozenset[str] | None:
    if sign == "eq" and path_of(right) == path:
        left, right = right, left
    if path_of(left) != path:
        return None
    if sign == "eq":
        return _texts([right])
    if sign == "in" and isinstance(right, nodes.List | nodes.Tuple):
        return _texts(right.items)
    return None


def _texts(constants: Sequence[nodes.Node]) -> frozenset[str] | None:
    texts = {node.value for node in constants if isinstance(node, nodes.Const)}
    if len(texts) < len(constants) or not all(isinstance(text, str) for text in texts):
        return None
    return frozenset(texts)
