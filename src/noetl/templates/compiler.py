"""The compiler: a checked syntax tree becomes one Python function.

Each node becomes a line or two of Python that call the functions at the end of this file. Those
hold the rules of the language: they settle views and secrets, handle undefined values, and charge
the budget of the evaluation before they do any work. The generated source consists of our own
fragments only: names and keys enter it as literals (`repr` of a str) or as constants, so nothing
that a template says becomes code.

*Inlined* code first tests whether the operands are of the usual kinds (texts, numbers, plain
mappings) and computes that case on the spot; for everything else it calls the same function. It
creates no `Evaluation` until it needs one. Large templates, templates that may read a secret, and
evaluations that report missing lookups are not inlined. Both kinds of code give the same results
and the same errors; `tests/templates/test_inlined.py` compares them.

Variables of the generated code:

* `run`, `scope`, `roots`, `place`, `strict`: the evaluation and its arguments; inlined code starts
  with `run` None and writes `RUN` where it needs one.
* `v1`, `v2`, …: values. A *raw* value is as it was found: a view, an `Undefined`, data with secrets
  inside. A *plain* value is settled: plain data or `Undefined`. An inlined lookup of a path leaves
  `MISSING` in the variable, and makes an `Undefined` of it only when it is used.
* `n1`, `n2`, …: names that the template binds, `MISSING` while unbound. Each block with names of
  its own (`for`, `with`, `filter`, the block form of `set`) has its own variables, set from those
  around it; `if` shares the names around it, as in Jinja.
* `o1`, …: lists of the texts written so far. `c0`, `c1`, …: constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, cast

from jinja2 import nodes

from noetl.errors import EvaluationFailed
from noetl.templates import operators
from noetl.templates.analysis import targets
from noetl.templates.errors import shortened
from noetl.templates.evaluation import Evaluation, Lacks, Undefined, items_of, kind_of
from noetl.templates.filters import COUNT_UNDEFINED, FILTERS, TAKE_UNDEFINED, whole_of
from noetl.templates.functions import FUNCTIONS, call_method
from noetl.templates.operators import INTEGER_BITS_MAX
from noetl.templates.parser import keywords
from noetl.templates.scope import WRITTEN_TO, Scope
from noetl.templates.taint import Tainted
from noetl.templates.views import MISSING, AliasedName, Missing, lookup, sliced

Begin = Callable[[Scope, str, bool], Evaluation]
Finish = Callable[[Evaluation, object], object]


class Code(Protocol):
    """The compiled function. Unless `strict`, an undefined value is false instead of an error."""

    def __call__(
        self, scope: Scope, place: str, strict: bool, run: Evaluation | None = None, /
    ) -> object: ...


INLINED_NODES_MAX = 300
INLINED_ITEMS_MAX = 16
INLINED_TEXT_MAX = 100
"""Characters that inlined code makes at once: no more than one tick of the budget pays for."""
INLINED_RESULT_MAX = 65_536
"""Characters of a text that inlined code may return."""
DEPTH_MAX = 12
"""Nested blocks before the rest becomes a function of its own; Python allows 20 of them."""

RUN = "(run := run or begin(scope, place, strict))"


def compile_tree(
    tree: nodes.Template,
    expression: nodes.Expr | None,
    *,
    begin: Begin,
    finish: Finish,
    checks: bool,
    inline: bool,
) -> Code:
    """The function of a template: it returns the value of its one expression, or its text.

    `begin` makes the evaluation, `finish` makes the final value. Inlined code skips both where it
    can: `finish` for plain scalars, and for containers, too, unless `checks` is set.
    """
    writer = _Writer(inline and sum(1 for _ in _tree_nodes(tree)) <= INLINED_NODES_MAX)
    with writer.function("evaluate(scope, place, strict, run=None)"):
        writer.line("roots = scope.roots")
        if not writer.inline:
            writer.line(f"run = {RUN}")
        if expression is not None:
            writer.finish(writer.emit(expression))
        else:
            writer.text(tree.body)
    final = _UNCHECKED if checks else _FINAL
    return writer.made({"begin": begin, "finish": finish, "FINAL": final})


def source_of(node: nodes.Node) -> str:
    """A path as text, for messages; other expressions are `(…)`."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return f"{source_of(node.node)}.{node.attr}"
    if isinstance(node, nodes.Getitem):
        index = repr(node.arg.value) if isinstance(node.arg, nodes.Const) else "…"
        return f"{source_of(node.node)}[{shortened(index, 60)}]"
    return "(…)"


def _tree_nodes(node: nodes.Node) -> Iterator[nodes.Node]:
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.iter_child_nodes())


class _Path(NamedTuple):
    """A name of the scope and the constant keys after it: `ctx.user["name"]`."""

    name: str
    keys: list[object]
    lookups: list[nodes.Expr]


class _Writer:
    """Writes the function line by line. `emit` returns the variable with a node's value."""

    def __init__(self, inline: bool) -> None:
        self.inline = inline
        self.run = RUN if inline else "run"
        self.constants: dict[str, object] = {}
        self.functions: list[str] = []
        self.lines: list[str] = []
        self.depth = 0
        self.count = 0
        self.booleans: set[str] = set()
        """Variables that certainly hold True or False."""
        self.settled: set[str] = set()
        """Variables that certainly hold a plain value or Undefined."""
        self.paths: dict[str, str] = {}
        """Variable that may hold MISSING → the constant with the path it was read from."""
        self.names: dict[str, str] = {}
        """Name bound here or around here → its variable."""
        self.own: list[str] = []
        """The variables of names that the innermost block binds."""
        self.out = ""
        self.in_loop = False

    # --- Lines -------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append(" " * self.depth + text)

    def fresh(self, letter: str = "v") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def set(self, expression: str, *, plain: bool = False, boolean: bool = False) -> str:
        """A new variable with this value."""
        name = self.fresh()
        self.line(f"{name} = {expression}")
        if boolean:
            self.booleans.add(name)
        if plain or boolean:
            self.settled.add(name)
        return name

    def constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def function(self, signature: str) -> Iterator[None]:
        """Write a function beside the current one."""
        lines, depth = self.lines, self.depth
        self.lines, self.depth = [], 0
        with self.block(f"def {signature}:"):
            yield
        self.functions += self.lines
        self.lines, self.depth = lines, depth

    def made(self, given: dict[str, object]) -> Code:
        namespace = {**_GLOBALS, **self.constants, **given}
        code = compile("\n".join(self.functions), "<template>", "exec")
        exec(code, namespace)  # noqa: S102  our own source, see above
        return cast(Code, namespace["evaluate"])

    def begin(self) -> None:
        """Make sure that `run` is an Evaluation from here on."""
        if self.inline and self.run == RUN:
            self.line(f"run = {RUN}")
            self.run = "run"

    def _call_apart(self, name: str) -> str:
        """The call of a function that sees every name bound here."""
        variables = "".join(f", {each}" for each in self.names.values())
        return f"{name}(scope, roots, place, strict, run{variables}{{}})"

    # --- Expressions ---------------------------------------------------------------------------

    def emit(self, node: nodes.Node) -> str:
        if self.depth <= DEPTH_MAX or isinstance(node, nodes.Const):
            return _EMITTERS[type(node)](self, node)
        started = self.run
        if self.inline:
            self.line(f"run = {self.run}")
        self.run = "run"
        call = self._call_apart(self.fresh("f")).format("")
        with self.function(call):
            self.line(f"return {self.raw(self.emit(node))}")
        self.run = started
        return self.set(call)

    def raw(self, name: str) -> str:
        """The variable with its raw value; a MISSING becomes an Undefined first."""
        if name in self.paths:
            self.line(f"if {name} is M: {name} = find({self.run}, {self.paths.pop(name)})")
        return name

    def plain(self, name: str, run: str = "run") -> str:
        """The expression for the settled value of a variable, as an argument after `run`."""
        if name in self.settled or name in self.constants:
            return name
        path = f", {self.paths[name]}" if name in self.paths else ""
        return f"settle({run}, {name}{path})"

    def known(self, name: str) -> bool:
        """Whether the variable certainly holds a plain scalar."""
        return name in self.booleans or name in self.constants

    def guard(self, names: Sequence[str], kinds: str) -> str:
        """The test that these variables hold values of these kinds."""
        unknown = [name for name in names if not self.known(name)]
        return " and ".join(f"{name}.__class__ in {kinds}" for name in unknown) or "True"

    def numbers(self, *names: str) -> str:
        """The test that these variables hold numbers; booleans do not count."""
        unknown = [name for name in names if type(self.constants.get(name)) not in (int, float)]
        return " and ".join(f"{name}.__class__ in NUMBERS" for name in unknown) or "True"

    def truth(self, name: str) -> str:
        """A variable with the truth of the value."""
        if name in self.settled or self.known(name):
            return name
        if self.inline:
            settled = self.plain(name, self.run)
            return self.set(f"{name} if {name}.__class__ in PLAIN else {settled}")
        return self.set(self.plain(name), plain=True)

    def arguments(self, node: nodes.Filter | nodes.Test | nodes.Call) -> str:
        """The expressions for the arguments in order and by name."""
        ordered = [self.emit(part) for part in node.args]
        named = [(key, self.emit(value)) for key, value in keywords(node)]
        in_order = "".join(f"{self.plain(name)}, " for name in ordered)
        by_name = ", ".join(f"{key!r}: {self.plain(name)}" for key, name in named)
        return f"({in_order}), {{{by_name}}}"

    # --- Results and text ----------------------------------------------------------------------

    def finish(self, name: str) -> None:
        """Return the value of the one expression."""
        if self.inline:
            lacks = f" or ({name} is M and not strict)" if name in self.paths else ""
            known = "" if self.known(name) else f" and ({name}.__class__ in FINAL{lacks})"
            self.line(f"if run is None{known}: return {name}")
        self.line(f"return finish({self.run}, {self.plain(name)})")

    def text(self, body: list[nodes.Node]) -> None:
        """Return the text that the statements write."""
        if all(isinstance(part, nodes.Output) for part in body):
            self.joined([part for output in body for part in output.nodes])  # type: ignore[attr-defined]
            return
        self.begin()
        self.out = self.fresh("o")
        self.line(f"{self.out} = []")
        with self.scope([], body):
            self.body(body)
        self.line(f"return finish(run, ''.join({self.out}))")

    def joined(self, parts: list[nodes.Node]) -> None:
        """Return texts and values, one after the other."""
        names = [self.part(part) for part in parts]
        if self.inline:
            with self.block(f"if run is None and {self.guard(names, 'SCALARS')}:"):
                text = self.set("f'" + "".join(f"{{{name}}}" for name in names) + "'")
                self.line(f"if len({text}) <= {INLINED_RESULT_MAX}: return {text}")
        self.line(f"{(out := self.fresh('o'))} = []")
        values = "".join(f"{self.plain(name)}, " for name in names)
        self.line(f"write({self.run}, {out}, ({values}))")
        self.line(f"return finish(run, ''.join({out}))")

    def part(self, node: nodes.Node) -> str:
        return self.constant(node.data) if isinstance(node, nodes.TemplateData) else self.emit(node)

    # --- Statements ----------------------------------------------------------------------------

    def body(self, statements: list[nodes.Node]) -> None:
        """Write statements; deeply nested ones move into a function of their own."""
        if self.depth <= DEPTH_MAX:
            for statement in statements:
                _STATEMENTS[type(statement)](self, statement)
            if not statements:
                self.line("pass")
            return
        call = self._call_apart(self.fresh("f")).format(f", {self.out}")
        changed = "".join(f"{name}, " for name in self.own)
        with self.function(call):
            self.body(statements)
            self.line(f"return ({changed})")
        self.line(f"{changed and f'({changed}) = '}{call}")

    @contextmanager
    def scope(self, bound: list[nodes.Node], body: list[nodes.Node]) -> Iterator[None]:
        """A block with names of its own: its targets, and those that its body sets."""
        names, own = self.names, self.own
        inside = [name for target in bound for name in targets(target)] + list(_set_by(body))
        self.names = dict(names)
        self.own = []
        for name in dict.fromkeys(inside):
            self.names[name] = self.fresh("n")
            self.own.append(self.names[name])
            self.line(f"{self.names[name]} = {names.get(name, 'M')}")
        yield
        self.names, self.own = names, own

    def bind(self, target: nodes.Node, value: str) -> None:
        """Bind a value to a name, or the parts of a list to several names."""
        if isinstance(target, nodes.Name):
            self.line(f"{self.names[target.name]} = {value}")
            return
        assert isinstance(target, nodes.Tuple)
        parts = [self.fresh() for _ in target.items]
        self.line(f"[{', '.join(parts)}] = unpack({value}, {len(parts)})")
        for each, part in zip(target.items, parts, strict=True):
            self.bind(each, part)

    def given(self, target: nodes.Node, value: nodes.Expr) -> str:
        """The value for a target: a single name may hold a view, several names unpack a list."""
        name = self.emit(value)
        return self.raw(name) if isinstance(target, nodes.Name) else self.plain(name)

    def captured(self, body: list[nodes.Node], chain: nodes.Filter | None) -> str:
        """The text of a body, after the filters of its tag."""
        out, self.out = self.out, self.fresh("o")
        self.line(f"{self.out} = []")
        with self.scope([], body):
            self.body(body)
        text = self.set(f"''.join({self.out})", plain=True)
        self.out = out
        filters: list[nodes.Filter] = []
        while chain is not None:
            filters.append(chain)
            assert chain.node is None or isinstance(chain.node, nodes.Filter)
            chain = chain.node
        for each in reversed(filters):
            arguments = self.arguments(each)
            text = self.set(f"filtered(run, {each.name!r}, {text}, {arguments})", plain=True)
        return text


def _set_by(body: list[nodes.Node]) -> Iterator[str]:
    """The names that statements set in their own block."""
    for node in body:
        if isinstance(node, nodes.Assign | nodes.AssignBlock):
            yield from targets(node.target)
        elif isinstance(node, nodes.If):
            yield from _set_by([*node.body, *node.else_, *node.elif_])


# --- How each expression is written --------------------------------------------------------------


def _emit_constant(writer: _Writer, node: nodes.Const) -> str:
    name = writer.constant(node.value)
    if isinstance(node.value, bool):
        writer.booleans.add(name)
    return name


def _emit_lookup(writer: _Writer, node: nodes.Name | nodes.Getattr | nodes.Getitem) -> str:
    keys: list[object] = []
    lookups: list[nodes.Expr] = []
    base: nodes.Expr = node
    while isinstance(base, nodes.Getattr) or (
        isinstance(base, nodes.Getitem) and isinstance(base.arg, nodes.Const)
    ):
        keys.append(base.attr if isinstance(base, nodes.Getattr) else base.arg.value)  # type: ignore[attr-defined]
        lookups.append(base)
        base = base.node
    if isinstance(base, nodes.Name) and base.name not in writer.names:
        return _emit_path(writer, _Path(base.name, keys[::-1], lookups[::-1]))
    if isinstance(base, nodes.Name):
        found = _emit_bound(writer, base)
    elif isinstance(base, nodes.Getitem):
        found = _emit_computed(writer, base)
    else:
        found = writer.raw(writer.emit(base))
    for key, each in zip(keys[::-1], lookups[::-1], strict=True):
        found = _emit_key(writer, each, found, writer.constant(key), is_text=type(key) is str)
    return found


def _emit_path(writer: _Writer, path: _Path) -> str:
    about = writer.constant(path)
    if not writer.inline:
        return writer.set(f"find(run, {about})")
    name = writer.set(f"roots.get({path.name!r}, M)")
    writer.line(f"if {name} is M: {name} = scope.bare({path.name!r})")
    for key in path.keys:
        if type(key) is str:
            read = f"{name}.get({key!r}, M) if {name}.__class__ is dict else look({name}, {key!r})"
        else:
            read = f"look({name}, {writer.constant(key)})"
        writer.line(f"{name} = {read}")
    writer.line(f"if {name}.__class__ is T: {name} = find({writer.run}, {about})")
    if _is_written_to(path):
        writer.line(f"if {name}.__class__ is dict: {name} = copied({writer.run}, {name})")
    writer.paths[name] = about
    return name


def _emit_bound(writer: _Writer, node: nodes.Name) -> str:
    """A name that the template may have bound; otherwise it is read from the scope."""
    about = writer.constant(_Path(node.name, [], []))
    bound = writer.names[node.name]
    return writer.set(f"{bound} if {bound} is not M else find({writer.run}, {about})")


def _emit_computed(writer: _Writer, node: nodes.Getitem) -> str:
    container = writer.raw(writer.emit(node.node))
    if not isinstance(node.arg, nodes.Slice):
        return _emit_key(writer, node, container, writer.emit(node.arg), is_text=False)
    parts = [node.arg.start, node.arg.stop, node.arg.step]
    bounds = [None if part is None else writer.emit(part) for part in parts]
    values = ", ".join("None" if part is None else writer.plain(part) for part in bounds)
    return writer.set(f"cut({writer.run}, {container}, ({values}), {writer.constant(node)})")


def _emit_key(writer: _Writer, node: nodes.Expr, container: str, key: str, *, is_text: bool) -> str:
    read = f"inside({writer.run}, {container}, {writer.plain(key)}, {writer.constant(node)})"
    if not writer.inline:
        return writer.set(read)
    if is_text:
        name = writer.set(f"{container}.get({key}, M) if {container}.__class__ is dict else M")
    else:
        guard = writer.guard([key], "SCALARS")
        name = writer.set(f"look({container}, {key}) if {guard} else M")
    writer.line(f"if {name}.__class__ in ODD: {name} = {read}")
    return name


def _emit_conditional(writer: _Writer, node: nodes.CondExpr) -> str:
    test = writer.truth(writer.emit(node.test))
    name = writer.fresh()
    with writer.block(f"if {test}:"):
        then = writer.raw(writer.emit(node.expr1))
        writer.line(f"{name} = {then}")
    with writer.block("else:"):
        if node.expr2 is None:
            otherwise = writer.constant(Undefined(f"{source_of(node)} has no else"))
        else:
            otherwise = writer.raw(writer.emit(node.expr2))
        writer.line(f"{name} = {otherwise}")
    return _merge_kinds(writer, name, then, otherwise)


def _emit_logic(writer: _Writer, node: nodes.And | nodes.Or) -> str:
    left = writer.emit(node.left)
    test = writer.truth(left)
    name = writer.fresh()
    with writer.block(f"if {test}:" if isinstance(node, nodes.And) else f"if not {test}:"):
        right = writer.raw(writer.emit(node.right))
        writer.line(f"{name} = {right}")
    with writer.block("else:"):
        writer.line(f"{name} = {writer.raw(left)}")
    return _merge_kinds(writer, name, left, right)


def _merge_kinds(writer: _Writer, name: str, one: str, other: str) -> str:
    """What is certain of both values is certain of the variable that holds one of them."""
    for kind in (writer.booleans, writer.settled):
        if one in kind and other in kind:
            kind.add(name)
    return name


def _emit_not(writer: _Writer, node: nodes.Not) -> str:
    return writer.set(f"not {writer.truth(writer.emit(node.node))}", boolean=True)


def _emit_sign(writer: _Writer, node: nodes.Neg | nodes.Pos) -> str:
    value = writer.emit(node.node)
    work = writer.constant(operators.negative if type(node) is nodes.Neg else operators.positive)
    return writer.set(f"calculate({writer.run}, {work}, {writer.plain(value)})", plain=True)


def _emit_arithmetic(writer: _Writer, node: nodes.BinExpr) -> str:
    left, right = writer.emit(node.left), writer.emit(node.right)
    sign, function = _ARITHMETIC[type(node)]
    work = writer.constant(function)
    general = f"calculate({writer.run}, {work}, {writer.plain(left)}, {writer.plain(right)})"
    if not writer.inline or sign == "**":
        return writer.set(general, plain=True)
    name = writer.fresh()
    writer.settled.add(name)
    nonzero = f" and {right}" if sign in ("/", "//", "%") else ""
    with writer.block(f"if {writer.numbers(left, right)}{nonzero}:"):
        writer.line(f"{name} = {left} {sign} {right}")
        writer.line(f"if not -L < {name} < L: checked({name})")
    if sign == "+":
        texts = f"{left}.__class__ is {right}.__class__ is str"
        short = f"len({left}) + len({right}) <= {INLINED_TEXT_MAX}"
        writer.line(f"elif {texts} and {short}: {name} = {left} + {right}")
    writer.line(f"else: {name} = {general}")
    return name


def _emit_concat(writer: _Writer, node: nodes.Concat) -> str:
    names = [writer.emit(part) for part in node.nodes]
    values = "".join(f"{writer.plain(name)}, " for name in names)
    return writer.set(f"concatenate({writer.run}, ({values}))", plain=True)


def _emit_compare(writer: _Writer, node: nodes.Compare) -> str:
    left = writer.emit(node.expr)
    if len(node.ops) == 1:
        return _emit_comparison(writer, left, node.ops[0])
    name = writer.set("True", boolean=True)
    left = writer.set(writer.plain(left, writer.run), plain=True)
    for step in node.ops:
        with writer.block(f"if {name}:"):
            right = writer.set(writer.plain(writer.emit(step.expr), writer.run), plain=True)
            writer.line(f"{name} = compare({writer.run}, {step.op!r}, {left}, {right})")
        left = right
    return name


def _emit_comparison(writer: _Writer, left: str, step: nodes.Operand) -> str:
    choices = _constants_in(step)
    right = writer.constant(choices) if choices is not None else writer.emit(step.expr)
    general = f"compare({writer.run}, {step.op!r}, {writer.plain(left)}, {writer.plain(right)})"
    if not writer.inline:
        return writer.set(general, boolean=True)
    name = writer.fresh()
    writer.settled.add(name)
    writer.booleans.add(name)
    at_once = f"{name} = {left} {_COMPARISONS[step.op]} {right}"
    writer.line(f"if {_comparable(writer, left, step.op, right)}: {at_once}")
    if left in writer.paths and writer.known(right):
        writer.line(f"elif {left} is M: {name} = {step.op in _HOLD_FOR_UNDEFINED}")
    writer.line(f"else: {name} = {general}")
    return name


def _constants_in(step: nodes.Operand) -> tuple[object, ...] | None:
    """The constants in the list of an `in`; None if it has anything else."""
    if step.op not in ("in", "notin") or not isinstance(step.expr, nodes.List | nodes.Tuple):
        return None
    found = [item.value for item in step.expr.items if isinstance(item, nodes.Const)]
    return tuple(found) if len(found) == len(step.expr.items) else None


def _comparable(writer: _Writer, left: str, operator: str, right: str) -> str:
    """The test that two values can be compared on the spot, at nearly no cost."""
    if operator in ("in", "notin"):
        if isinstance(writer.constants.get(right), tuple):
            return writer.guard([left], "SCALARS")
        small = (
            "" if writer.in_loop else f" or ({right}.__class__ is list and len({right}) <= 1000)"
        )
        return f"({right}.__class__ is dict{small}) and {writer.guard([left], 'SCALARS')}"
    if operator in ("eq", "ne"):
        if writer.in_loop and not (writer.known(left) or writer.known(right)):
            return writer.guard([left, right], "SMALL")
        return writer.guard([left, right], "SCALARS")
    return writer.numbers(left, right)


def _emit_list(writer: _Writer, node: nodes.List | nodes.Tuple) -> str:
    names = [writer.emit(item) for item in node.items]
    values = "".join(f"{writer.plain(name)}, " for name in names)
    kind = "list" if isinstance(node, nodes.List) else "tuple"
    general = f"{kind}(items_in({writer.run}, ({values})))"
    if not writer.inline or kind == "tuple" or len(names) > INLINED_ITEMS_MAX:
        return writer.set(general, plain=True)
    return writer.set(
        f"[{', '.join(names)}] if {writer.guard(names, 'DATA')} else {general}", plain=True
    )


def _emit_dict(writer: _Writer, node: nodes.Dict) -> str:
    pairs = [(writer.emit(pair.key), writer.emit(pair.value)) for pair in node.items]
    made = "".join(f"({writer.plain(key)}, {writer.plain(value)}), " for key, value in pairs)
    general = f"mapping_of({writer.run}, ({made}))"
    keys_known = all(type(writer.constants.get(key)) is str for key, _ in pairs)
    if not writer.inline or not keys_known or len(pairs) > INLINED_ITEMS_MAX:
        return writer.set(general, plain=True)
    inlined = ", ".join(f"{key}: {value}" for key, value in pairs)
    guard = writer.guard([value for _, value in pairs], "DATA")
    return writer.set(f"{{{inlined}}} if {guard} else {general}", plain=True)


def _emit_filter(writer: _Writer, node: nodes.Filter) -> str:
    assert node.node is not None
    if node.name in TAKE_UNDEFINED:
        return _emit_default(writer, node)
    value = writer.emit(node.node)
    arguments = writer.arguments(node)
    general = f"filtered({writer.run}, {node.name!r}, {writer.plain(value)}, {arguments})"
    inlined = _INLINED_FILTERS.get(node.name)
    if not writer.inline or inlined is None or node.args or node.kwargs:
        return writer.set(general, plain=True)
    return writer.set(f"{inlined.format(value)} else {general}", plain=True)


def _emit_default(writer: _Writer, node: nodes.Filter) -> str:
    """`default` passes its value on unsettled, so that a view stays a view."""
    assert node.node is not None
    given: dict[str, nodes.Expr] = {"default_value": nodes.Const("")}
    given |= zip(("default_value", "boolean"), node.args, strict=False)
    given |= dict(keywords(node))
    value = writer.emit(node.node)
    lacks = f"{value}.__class__ is U"
    if value in writer.paths:
        lacks = f"{value} is M or {lacks}"
    flag = given.get("boolean")
    if flag is not None:
        boolean, found = writer.truth(writer.emit(flag)), writer.truth(writer.raw(value))
        lacks = f"{lacks} or ({boolean} and not {found})"
    name = writer.fresh()
    with writer.block(f"if {lacks}:"):
        writer.line(f"{name} = {writer.raw(writer.emit(given['default_value']))}")
    writer.line(f"else: {name} = {value}")
    return name


def _emit_test(writer: _Writer, node: nodes.Test) -> str:
    value = writer.emit(node.node)
    arguments = writer.arguments(node)
    general = f"tested({writer.run}, {node.name!r}, {writer.plain(value)}, {arguments})"
    inlined = _INLINED_TESTS.get(node.name)
    if not writer.inline or inlined is None or node.args or node.kwargs:
        return writer.set(general, boolean=True)
    return writer.set(
        f"{inlined.format(value)} if {writer.guard([value], 'PLAIN')} else {general}", boolean=True
    )


def _emit_call(writer: _Writer, node: nodes.Call) -> str:
    if isinstance(node.node, nodes.Name):
        name = node.node.name
        arguments = writer.arguments(node)
        return writer.set(f"call({writer.run}, {name!r}, {arguments})", plain=True)
    assert isinstance(node.node, nodes.Getattr)
    value, method = writer.emit(node.node.node), node.node.attr
    arguments = writer.arguments(node)
    return writer.set(
        f"call_on({writer.run}, {method!r}, {writer.plain(value)}, {arguments})", plain=True
    )


_ARITHMETIC: dict[type[nodes.Node], tuple[str, operators.Operator]] = {
    nodes.Add: ("+", operators.add),
    nodes.Sub: ("-", operators.subtract),
    nodes.Mul: ("*", operators.multiply),
    nodes.Div: ("/", operators.divide),
    nodes.FloorDiv: ("//", operators.floor_divide),
    nodes.Mod: ("%", operators.modulo),
    nodes.Pow: ("**", operators.power),
}
_COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">=",
    "in": "in", "notin": "not in",
}  # fmt: skip
_HOLD_FOR_UNDEFINED = frozenset({"ne", "notin"})
_SHORT = f"{{0}}.__class__ is str and len({{0}}) <= {INLINED_TEXT_MAX}"
_INLINED_FILTERS = {
    "int": f"{{0}} if {{0}}.__class__ is int and -L < {{0}} < L else whole({{0}}, 0) if {_SHORT}",
    "lower": f"{{0}}.lower() if {_SHORT}",
    "trim": f"{{0}}.strip() if {_SHORT}",
    "upper": f"{{0}}.upper() if {_SHORT}",
    "length": "len({0}) if {0}.__class__ in SIZED",
    "count": "len({0}) if {0}.__class__ in SIZED",
    "string": "{0} if {0}.__class__ is str",
}
_INLINED_TESTS = {
    "defined": "({0} is not M and {0}.__class__ is not U)",
    "undefined": "({0} is M or {0}.__class__ is U)",
    "none": "({0} is None)",
    "true": "({0} is True)",
    "false": "({0} is False)",
    "boolean": "({0}.__class__ is bool)",
    "string": "({0}.__class__ is str or {0}.__class__ is A)",
    "mapping": "({0}.__class__ is dict)",
    "number": "({0}.__class__ in NUMBERS or {0}.__class__ is bool)",
}

_EMITTERS: dict[type[nodes.Node], Callable[..., str]] = {
    nodes.Const: _emit_constant,
    nodes.Name: _emit_lookup,
    nodes.Getattr: _emit_lookup,
    nodes.Getitem: _emit_lookup,
    nodes.CondExpr: _emit_conditional,
    nodes.And: _emit_logic,
    nodes.Or: _emit_logic,
    nodes.Not: _emit_not,
    nodes.Neg: _emit_sign,
    nodes.Pos: _emit_sign,
    nodes.Concat: _emit_concat,
    nodes.Compare: _emit_compare,
    nodes.List: _emit_list,
    nodes.Tuple: _emit_list,
    nodes.Dict: _emit_dict,
    nodes.Filter: _emit_filter,
    nodes.Test: _emit_test,
    nodes.Call: _emit_call,
    **dict.fromkeys(_ARITHMETIC, _emit_arithmetic),
}


# --- How each statement is written ---------------------------------------------------------------


def _write_output(writer: _Writer, node: nodes.Output) -> None:
    names = [writer.part(part) for part in node.nodes]
    values = "".join(f"{writer.plain(name)}, " for name in names)
    writer.line(f"write(run, {writer.out}, ({values}))")


def _write_if(writer: _Writer, node: nodes.If) -> None:
    undecided = writer.set("True")
    for branch in (node, *node.elif_):
        with writer.block(f"if {undecided}:"):
            test = writer.truth(writer.emit(branch.test))
            with writer.block(f"if {test}:"):
                writer.line(f"{undecided} = False")
                writer.body(branch.body)
    if node.else_:
        with writer.block(f"if {undecided}:"):
            writer.body(node.else_)


def _write_for(writer: _Writer, node: nodes.For) -> None:
    items = writer.set(f"rounds(run, {writer.plain(writer.emit(node.iter))})")
    cost = sum(1 for _ in _tree_nodes(node))
    around, writer.in_loop = writer.in_loop, True
    if node.test is not None:
        kept, item = writer.set("[]"), writer.fresh()
        with writer.block(f"for {item} in {items}:"):
            writer.line(f"run.charge({cost})")
            with writer.scope([node.target], []):
                writer.bind(node.target, item)
                test = writer.truth(writer.emit(node.test))
                writer.line(f"if {test}: {kept}.append({item})")
        items = kept
    index, item = writer.fresh(), writer.fresh()
    loop = [nodes.Name("loop", "store")] if "loop" in _names_in(node) else []
    with writer.block(f"for {index}, {item} in enumerate({items}):"):
        writer.line(f"run.charge({cost})")
        with writer.scope([node.target, *loop], node.body):
            writer.bind(node.target, item)
            if loop:
                writer.bind(loop[0], f"loop_at({index}, len({items}))")
            writer.body(node.body)
    writer.in_loop = around
    if node.else_:
        with writer.block(f"if not {items}:"), writer.scope([], node.else_):
            writer.body(node.else_)


def _names_in(node: nodes.Node) -> set[str]:
    return {name.name for name in node.find_all(nodes.Name)}


def _write_assign(writer: _Writer, node: nodes.Assign) -> None:
    writer.bind(node.target, writer.given(node.target, node.node))  # type: ignore[arg-type]


def _write_assign_block(writer: _Writer, node: nodes.AssignBlock) -> None:
    writer.bind(node.target, writer.captured(node.body, node.filter))


def _write_filter_block(writer: _Writer, node: nodes.FilterBlock) -> None:
    value = writer.captured(node.body, node.filter)
    writer.line(f"append(run, {writer.out}, {value})")


def _write_with(writer: _Writer, node: nodes.With) -> None:
    pairs = list(zip(node.targets, node.values, strict=True))
    values = [writer.set(writer.given(target, value)) for target, value in pairs]
    with writer.scope(list(node.targets), node.body):
        for (target, _), value in zip(pairs, values, strict=True):
            writer.bind(target, value)
        writer.body(node.body)


_STATEMENTS: dict[type[nodes.Node], Callable[..., None]] = {
    nodes.Output: _write_output,
    nodes.If: _write_if,
    nodes.For: _write_for,
    nodes.Assign: _write_assign,
    nodes.AssignBlock: _write_assign_block,
    nodes.FilterBlock: _write_filter_block,
    nodes.With: _write_with,
}


# --- What the generated code calls ---------------------------------------------------------------


def _look(container: object, key: object) -> object:
    """A lookup along a path. A secret is returned as it is, and `find` reads the path again."""
    return container if type(container) is Tainted else lookup(container, key)


def _find(run: Evaluation, path: _Path) -> object:
    """Read a path key by key; an Undefined names the missing one."""
    scope = run.scope
    value = scope.roots.get(path.name, MISSING)
    if value is MISSING:
        value = scope.bare(path.name)
        if value is MISSING:
            return run.undefined(path.name, scope)
    if type(value) is Tainted:
        value = run.take(value)
    for key, node in zip(path.keys, path.lookups, strict=True):
        found = lookup(value, key)
        if found is MISSING:
            return _undefined_at(run, node, value, key)
        value = run.take(found) if type(found) is Tainted else found
    return _copied(run, value) if type(value) is dict and _is_written_to(path) else value


def _is_written_to(path: _Path) -> bool:
    """Whether the path is one of the roots that tasks write to, all of it."""
    return path.name in WRITTEN_TO and all(key == "parent" for key in path.keys)


def _copied(run: Evaluation, root: dict[str, object]) -> object:
    """The root as it is now, with those around it: written into itself, it would have no end."""
    run.charge(1 + len(root) // 100)
    around = root.get("parent")
    return {**root, "parent": _copied(run, around)} if type(around) is dict else {**root}


def _undefined_at(run: Evaluation, node: nodes.Expr, container: object, key: object) -> Undefined:
    assert isinstance(node, nodes.Getattr | nodes.Getitem)
    return run.undefined(source_of(node), container, key, source_of(node.node))


def _inside(run: Evaluation, container: object, key: object, node: nodes.Expr) -> object:
    """`container.key` and `container[key]` on a raw value."""
    if type(container) is Undefined:
        return container
    if type(key) is Undefined:
        return run.missing(key)
    found = lookup(container, key)
    if found is MISSING:
        return _undefined_at(run, node, container, key)
    return run.take(found) if type(found) is Tainted else found


def _cut(
    run: Evaluation, container: object, bounds: tuple[object, ...], node: nodes.Expr
) -> object:
    """`container[start:stop:step]` on a raw value."""
    if type(container) is Undefined:
        return container
    for bound in bounds:
        if type(bound) is Undefined:
            return run.missing(bound)
        if bound is not None and not isinstance(bound, int):
            raise EvaluationFailed(f"a slice needs whole numbers, not {kind_of(bound)}")
    if bounds[2] == 0:
        raise EvaluationFailed("the step of a slice must not be 0")
    found = sliced(container, slice(*bounds))
    if found is MISSING:
        return _undefined_at(run, node, container, None)
    assert isinstance(found, list | tuple | str)
    run.charge(1 + len(found) // (100 if isinstance(found, str) else 1))
    return found


def _settle(run: Evaluation, value: object, path: _Path | None = None) -> object:
    """The plain value of a raw one."""
    if value is MISSING and path is not None:
        value = _find(run, path)
    return run.settle(value)


def _calculate(run: Evaluation, work: Callable[..., object], *operands: object) -> object:
    lacking = _undefined_among(*operands)
    return run.missing(lacking) if lacking is not None else work(run, *operands)


def _compare(run: Evaluation, operator: str, left: object, right: object) -> bool:
    if type(left) is Undefined or type(right) is Undefined:
        return operator in _HOLD_FOR_UNDEFINED
    return bool(operators.COMPARISONS[operator](run, left, right))


def _concatenate(run: Evaluation, values: tuple[object, ...]) -> object:
    texts = []
    for value in values:
        if type(value) is Undefined:
            return run.missing(value)
        text = run.text(value)
        run.charge_text(len(text))
        texts.append(text)
    return "".join(texts)


def _items_in(run: Evaluation, values: tuple[object, ...]) -> Iterator[object]:
    """The items of a list display; in a condition, undefined ones are left out."""
    owned = (_owned(run, value) for value in values)
    return (value for value in owned if type(value) is not Undefined)


def _mapping_of(run: Evaluation, pairs: tuple[tuple[object, object], ...]) -> dict[object, object]:
    made: dict[object, object] = {}
    for given_key, given_value in pairs:
        key, value = _owned(run, given_key), _owned(run, given_value)
        if type(key) is Undefined or type(value) is Undefined:
            continue
        if not isinstance(key, str | int | float | None):
            raise EvaluationFailed(f"a key must be text or a number, not {kind_of(key)}")
        made[key] = value
    return made


def _owned(run: Evaluation, value: object) -> object:
    """A value that goes into a new container."""
    if type(value) is Undefined:
        return run.missing(value)
    return str(value) if type(value) is AliasedName else value


def _filtered(
    run: Evaluation,
    name: str,
    subject: object,
    args: tuple[object, ...],
    named: dict[str, object],
) -> object:
    if type(subject) is Undefined and name not in TAKE_UNDEFINED:
        return 0 if name in COUNT_UNDEFINED and not run.strict else run.missing(subject)
    lacking = _undefined_among(*args, *named.values())
    if lacking is not None:
        return run.missing(lacking)
    try:
        return FILTERS[name](run, subject, *args, **named)
    except Lacks as lack:
        return run.missing(lack.undefined)


def _call(run: Evaluation, name: str, args: tuple[object, ...], named: dict[str, object]) -> object:
    lacking = _undefined_among(*args, *named.values())
    return run.missing(lacking) if lacking is not None else FUNCTIONS[name](run, *args, **named)


def _call_on(
    run: Evaluation, method: str, value: object, args: tuple[object, ...], named: dict[str, object]
) -> object:
    lacking = _undefined_among(value, *args, *named.values())
    return run.missing(lacking) if lacking is not None else call_method(run, method, value, args)


def _undefined_among(*values: object) -> Undefined | None:
    for value in values:
        if type(value) is Undefined:
            return value
    return None


def _write(run: Evaluation, out: list[str], values: tuple[object, ...]) -> None:
    for value in values:
        if type(value) is Undefined:
            run.missing(value)
            continue
        text = run.text(value)
        run.charge_text(len(text))
        out.append(text)


def _append(run: Evaluation, out: list[str], value: object) -> None:
    """Write what a filter made; the filter has paid for it."""
    if type(value) is Undefined:
        run.missing(value)
    else:
        out.append(run.text(value))


def _rounds(run: Evaluation, value: object) -> list[object]:
    if type(value) is Undefined:
        run.missing(value)
        return []
    return items_of(run, value, "for")


def _loop_at(index: int, length: int) -> dict[str, object]:
    """The value of `loop` in one round."""
    return {
        "index": index + 1,
        "index0": index,
        "revindex": length - index,
        "revindex0": length - index - 1,
        "first": index == 0,
        "last": index == length - 1,
        "length": length,
    }


def _unpack(value: object, count: int) -> Sequence[object]:
    if not isinstance(value, list | tuple) or len(value) != count:
        size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
        raise EvaluationFailed(f"{count} names need a list of {count}, not {kind_of(value)}{size}")
    return value


_NONE = type(None)
_UNCHECKED = frozenset({str, int, float, bool, _NONE})
_FINAL = frozenset({*_UNCHECKED, list, dict})
_GLOBALS: dict[str, object] = {
    "__builtins__": {"list": list, "tuple": tuple, "dict": dict, "len": len, "enumerate": enumerate,
                     "int": int, "str": str, "bool": bool},
    "A": AliasedName,
    "M": MISSING,
    "T": Tainted,
    "U": Undefined,
    "L": 2**INTEGER_BITS_MAX,
    "NUMBERS": frozenset({int, float}),
    "SMALL": frozenset({int, float, bool, _NONE}),
    "SCALARS": frozenset({*_UNCHECKED, AliasedName}),
    "SIZED": frozenset({str, list, dict}),
    "DATA": _FINAL,
    "PLAIN": frozenset({*_FINAL, AliasedName, Missing, Undefined}),
    "ODD": frozenset({Missing, Tainted}),
    "checked": operators.checked,
    "tested": operators.passes,
    "whole": whole_of,
    **{each.__name__.removeprefix("_"): each for each in (
        _look, _find, _copied, _inside, _cut, _settle, _calculate, _compare, _concatenate,
        _items_in, _mapping_of, _filtered, _call, _call_on, _write, _append, _rounds, _loop_at,
        _unpack,
    )},
}  # fmt: skip
