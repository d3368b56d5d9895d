"""The general path for text: `{% if %}`, `{% for %}`, `{% set %}`, `{% with %}`, `{% filter %}`.

Local names follow Jinja: `if` shares the names around it; `for`, `with`, `filter` and the block
form of `set` have their own, which end with them.
"""

from __future__ import annotations

from collections.abc import Callable

from jinja2 import nodes

from noetl.templates.errors import EvaluationFailed
from noetl.templates.evaluation import Evaluation, Undefined, items_of, kind_of
from noetl.templates.expressions import Bound, Run, apply_filter, compile_plain, compile_raw

Output = list[str]
Write = Callable[[Evaluation, Output], None]
Bind = Callable[[dict[str, object], object], None]


def compile_text_body(parts: list[nodes.Node], bound: Bound) -> Write:
    """A closure that writes the text of some statements, one after the other."""
    writers = [WRITERS[type(part)](part, bound) for part in parts]

    def write(run: Evaluation, out: Output) -> None:
        for writer in writers:
            writer(run, out)

    return write


def _write_output(node: nodes.Output, bound: Bound) -> Write:
    parts: list[str | Run] = [
        part.data if isinstance(part, nodes.TemplateData) else compile_plain(part, bound)
        for part in node.nodes
    ]

    def write(run: Evaluation, out: Output) -> None:
        for part in parts:
            value = part if isinstance(part, str) else part(run)
            if type(value) is Undefined:
                run.missing(value)
                continue
            text = run.text(value)
            run.charge_text(len(text))
            out.append(text)

    return write


def _write_if(node: nodes.If, bound: Bound) -> Write:
    branches = [
        (compile_plain(branch.test, bound), compile_text_body(branch.body, bound))
        for branch in (node, *node.elif_)
    ]
    otherwise = compile_text_body(node.else_, bound)

    def write(run: Evaluation, out: Output) -> None:
        for test, body in branches:
            if test(run):
                return body(run, out)
        return otherwise(run, out)

    return write


def _write_for(node: nodes.For, bound: Bound) -> Write:
    source, bind = compile_plain(node.iter, bound), compile_target(node.target)
    test = compile_plain(node.test, bound) if node.test is not None else None
    body, otherwise = compile_text_body(node.body, bound), compile_text_body(node.else_, bound)
    cost = weight(node)
    shows_loop = any(name.name == "loop" for name in node.find_all(nodes.Name))

    def rounds(run: Evaluation, outer: dict[str, object]) -> list[object]:
        value = source(run)
        if type(value) is Undefined:
            run.missing(value)
            return []
        items = items_of(run, value, "for")
        if test is None:
            return items
        kept = []
        for item in items:
            run.charge(cost + len(outer))
            run.locals = dict(outer)
            bind(run.locals, item)
            if test(run):
                kept.append(item)
        return kept

    def write(run: Evaluation, out: Output) -> None:
        outer = run.locals
        items = rounds(run, outer)
        for index, item in enumerate(items):
            run.charge(cost + len(outer))
            run.locals = dict(outer)
            bind(run.locals, item)
            if shows_loop:
                run.locals["loop"] = _loop(index, len(items))
            body(run, out)
        run.locals = outer
        if not items:
            _within(run, out, otherwise)

    return write


def _loop(index: int, length: int) -> dict[str, object]:
    return {
        "index": index + 1,
        "index0": index,
        "revindex": length - index,
        "revindex0": length - index - 1,
        "first": index == 0,
        "last": index == length - 1,
        "length": length,
    }


def compile_target(node: nodes.Node) -> Bind:
    """A closure that binds a value to a name, or the parts of a list to several."""
    if isinstance(node, nodes.Name):
        name = node.name

        def bind_one(names: dict[str, object], value: object) -> None:
            names[name] = value

        return bind_one
    assert isinstance(node, nodes.Tuple)
    parts = [compile_target(part) for part in node.items]

    def bind_all(names: dict[str, object], value: object) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
            raise EvaluationFailed(
                f"{len(parts)} names need a list of {len(parts)}, not {kind_of(value)}{size}"
            )
        for bind, part in zip(parts, value, strict=True):
            bind(names, part)

    return bind_all


def _compile_given(target: nodes.Node, value: nodes.Node, bound: Bound) -> Run:
    """The value for a target: one name may hold a view, several names take a list apart."""
    compile_it = compile_raw if isinstance(target, nodes.Name) else compile_plain
    return compile_it(value, bound)


def _write_assign(node: nodes.Assign, bound: Bound) -> Write:
    value, bind = _compile_given(node.target, node.node, bound), compile_target(node.target)

    def write(run: Evaluation, out: Output) -> None:
        bind(run.locals, value(run))

    return write


def _write_assign_block(node: nodes.AssignBlock, bound: Bound) -> Write:
    made, bind = _compile_captured(node.body, node.filter, bound), compile_target(node.target)

    def write(run: Evaluation, out: Output) -> None:
        bind(run.locals, made(run))

    return write


def _write_filter_block(node: nodes.FilterBlock, bound: Bound) -> Write:
    made = _compile_captured(node.body, node.filter, bound)

    def write(run: Evaluation, out: Output) -> None:
        value = made(run)
        if type(value) is Undefined:
            run.missing(value)
        else:
            out.append(run.text(value))

    return write


def _compile_captured(body: list[nodes.Node], chain: nodes.Filter | None, bound: Bound) -> Run:
    """The text of a body, through the filters of its tag."""
    inner = compile_text_body(body, bound)

    def captured(run: Evaluation) -> object:
        out: Output = []
        _within(run, out, inner)
        return "".join(out)

    return _compile_chain(chain, captured, bound)


def _compile_chain(chain: nodes.Filter | None, first: Run, bound: Bound) -> Run:
    if chain is None:
        return first
    assert chain.node is None or isinstance(chain.node, nodes.Filter)
    return apply_filter(chain, _compile_chain(chain.node, first, bound), bound)


def _write_with(node: nodes.With, bound: Bound) -> Write:
    values = [_compile_given(*each, bound) for each in zip(node.targets, node.values, strict=True)]
    binds = [compile_target(target) for target in node.targets]
    inner = compile_text_body(node.body, bound)

    def write(run: Evaluation, out: Output) -> None:
        given = [value(run) for value in values]
        outer = run.locals
        run.locals = dict(outer)
        for bind, value in zip(binds, given, strict=True):
            bind(run.locals, value)
        inner(run, out)
        run.locals = outer

    return write


def _within(run: Evaluation, out: Output, write: Write) -> None:
    """Write with local names that end with the block."""
    outer = run.locals
    run.locals = dict(outer)
    write(run, out)
    run.locals = outer


def weight(node: nodes.Node) -> int:
    """How many nodes a tree has: what one more round of it costs at most, loops inside aside."""
    count, pending = 0, [node]
    while pending:
        count += 1
        pending.extend(pending.pop().iter_child_nodes())
    return count


WRITERS: dict[type[nodes.Node], Callable[..., Write]] = {
    nodes.Output: _write_output,
    nodes.If: _write_if,
    nodes.For: _write_for,
    nodes.Assign: _write_assign,
    nodes.AssignBlock: _write_assign_block,
    nodes.FilterBlock: _write_filter_block,
    nodes.With: _write_with,
}
