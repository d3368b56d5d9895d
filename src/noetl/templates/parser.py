"""From text to a checked syntax tree, or to the problems of the text.

Jinja's lexer and parser make the tree; its code generator is not used. The parser recurses for
every bracket, sign and nested tag, and hostile text would exhaust the stack, so the tokens are
counted before it starts. Then every node is checked, and whatever is not listed here is refused.
All problems of a template are found at once, and each message says what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from jinja2 import Environment, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.lexer import TokenStream
from jinja2.parser import Parser

from noetl.model.spelling import did_you_mean
from noetl.templates.analysis import targets
from noetl.templates.errors import TemplateProblem, TemplateRefused, shortened
from noetl.templates.filters import FILTERS, misfit
from noetl.templates.functions import FUNCTIONS, INSTEAD, METHODS
from noetl.templates.operators import INTEGER_BITS_MAX, TESTS

SOURCE_MAX = 128 * 1024
TREE_DEPTH_MAX = 100
TREE_NODES_MAX = 20_000
FRAMES_MAX = 600
"""How many calls deep the parser may go; Python allows 1000 in all."""
SMALL_MAX, SMALL_BRACKETS_MAX = 300, 15
"""A text this small cannot nest too deeply, so its tokens are not counted."""
FRAMES_PER_BRACKET = 15
FRAMES_PER_TAG = 5

SYNTAX = Environment(keep_trailing_newline=True)  # noqa: S701  nothing is rendered with it

OPENING, CLOSING = frozenset("([{"), frozenset(")]}")
CLOSED_TAGS = frozenset(
    ["if", "for", "with", "filter", "call", "macro", "block", "autoescape", "trans", "raw"]
)


def is_template(text: str) -> bool:
    """Whether the text contains `{{ … }}`, `{% … %}` or a comment."""
    if "{{" in text or "{%" in text:
        return True
    comment = text.find("{#")
    return comment >= 0 and text.find("#}", comment + 2) >= 0


def parse(source: str) -> nodes.Template:
    """The syntax tree of a template. Raises TemplateRefused with all its problems."""
    if len(source) > SOURCE_MAX:
        raise _refused(
            "template-too-large",
            f"a template may have at most {SOURCE_MAX:,} characters, this one has {len(source):,}. "
            "Move the text into a file or a python task.",
        )
    try:
        tree = _parser_of(source).parse()
    except TemplateSyntaxError as error:
        raise TemplateRefused((_syntax_problem(error),)) from None
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, OverflowError):  # a number that Python will not read
        raise _refused("template-syntax", "a number in the template is too long") from None
    _check_depth(tree)
    problems = _problems_of(tree)
    if problems:
        raise TemplateRefused(problems)
    return tree


def _refused(code: str, message: str) -> TemplateRefused:
    return TemplateRefused((TemplateProblem(code, message),))


def keywords(node: nodes.Filter | nodes.Test | nodes.Call) -> Iterator[tuple[str, nodes.Expr]]:
    """The arguments given by name."""
    for part in node.kwargs:
        assert isinstance(part, nodes.Keyword)
        yield part.key, part.value


_SIGNS = {"end of print statement": "}}", "end of statement block": "%}"}
"""Jinja's names of these signs, and the signs."""


_PLAINLY = (
    (r"unexpected char '&' .*", "there is no `&`. Write `and`."),
    (r"unexpected char '!' .*", "there is no `!`. Write `not`; `!=` is for comparing."),
    (r"unexpected char '\?' .*", "there is no `?`. Write `A if CONDITION else B`."),
    (r"unexpected char '[“”‘’]' .*", "this is a typographic quote. Write `'` or `\"`."),
    (r"unexpected char [\"']+ .*", "a text is not closed: its second quote is missing."),
    (r"expected token '[}%]}', got '='", "`=` does not compare. Write `==`."),
    (r"unexpected '='", "there is no `===`. Write `==`, and `!=` for its opposite."),
    (r"expected token 'name', got '\|'", "there is no `||`. Write `or`."),
    (
        r"expected token ',', got 'for'",
        "no list is made by `for` here. Write `LIST | map(…) | list`.",
    ),
    (r"expected token '%}', got 'if'", "`else if` is written `elif`."),
    (
        r"expected token '([}%]})', got '(.+)'",
        "`\\2` is not expected here. Put an operator or a `|` before it, or close with `\\1`.",
    ),
    (r"expected name or number", "the name behind the dot is missing."),
    (r"Expected an expression, got '.*'", "the expression is empty, or a part of it is missing."),
    (r"unexpected '([}%]})'", "the expression ends too early: something is missing before `\\1`."),
    (r"unexpected '}'", "`{{` is not closed. Write `}}`."),
    (r"unexpected '[}%]', expected '(.)'", "a bracket is not closed. Write `\\1`."),
    (
        r"Unexpected end of template\. .* needs to be closed is '(\w+)'\.",
        r"`{% \1 %}` is not closed. Write `{% end\1 %}` where it ends.",
    ),
    (
        r"unexpected end of template, expected '([}%]})'\.",
        "it is not closed. Write `\\1` where it ends.",
    ),
)
"""Messages of Jinja, and what they mean."""


def _syntax_problem(error: TemplateSyntaxError) -> TemplateProblem:
    message = error.message or "not a template"
    for name, sign in _SIGNS.items():
        message = message.replace(name, sign)
    if message.startswith("Encountered unknown tag"):
        name = shortened(message.split("'")[1], 60) if "'" in message else ""
        if not name.startswith(("end", "else", "elif")):
            return TemplateProblem(
                "template-unsupported",
                f"`{{% {name} %}}` is not supported: templates have if, for, set, with, filter and "
                "raw. Do the rest in a python task.",
            )
    for said, meaning in _PLAINLY:
        if found := re.fullmatch(said, message, re.DOTALL):
            message = found.expand(meaning)
            break
    return TemplateProblem("template-syntax", f"template: {shortened(message)}")


def _too_deep() -> TemplateRefused:
    return _refused(
        "template-too-large",
        "the template is nested too deeply. Split it with `{% set %}`, or use a python task.",
    )


def _parser_of(source: str) -> Parser:
    """A parser of text that does not make it recurse too deeply; other text is refused."""
    if len(source) <= SMALL_MAX and sum(map(source.count, OPENING)) <= SMALL_BRACKETS_MAX:
        return Parser(SYNTAX, source)
    tokens: list[Token] = []
    _check_nesting(_kept(SYNTAX.lexer.tokeniter(source, None), tokens))
    parser = Parser(SYNTAX, "")
    # Finding the tokens takes longer than what is done with them: it is done once.
    parser.stream = TokenStream(SYNTAX.lexer.wrap(tokens), None, None)
    return parser


Token = tuple[int, str, str]
"""Line, kind and text."""


def _kept(tokens: Iterator[Token], kept: list[Token]) -> Iterator[Token]:
    for token in tokens:
        kept.append(token)
        yield token


def _check_nesting(tokens: Iterator[Token]) -> None:
    """Refuse text that would make the parser recurse too deeply.

    Counts stack frames as the parser uses them: brackets and tags while open, signs and `not` until
    their operand, `else` of a conditional expression until the end of its bracket or tag.
    """
    open_frames: list[int] = []
    frames = tags = signs = 0
    in_set = False
    previous = ""
    for _, kind, value in tokens:
        if kind == "whitespace":
            continue
        if kind in ("variable_begin", "block_begin", "variable_end", "block_end"):
            tags += in_set  # `set` without `=` spans everything up to its endset
            in_set = False
            frames, signs = 0, 0
            open_frames.clear()
        elif kind == "operator" and value in OPENING:
            open_frames.append(frames)
            frames += FRAMES_PER_BRACKET + signs
            signs = 0
        elif kind == "operator" and value in CLOSING:
            frames = open_frames.pop() if open_frames else 0
        elif previous == "block_begin":
            tags += value in CLOSED_TAGS
            tags -= value.startswith("end")
            in_set = value == "set"
        elif value == "=":
            in_set = False
        elif value in ("not", "-", "+"):
            signs += 1
        elif value == "else":
            frames, signs = frames + 1, 0
        else:
            signs = 0
        if frames + signs + tags * FRAMES_PER_TAG > FRAMES_MAX:
            raise _too_deep()
        previous = kind


def _check_depth(tree: nodes.Node) -> None:
    """Refuse a tree that is too deep or too large to compile; chains of operators are deep, too."""
    level: list[nodes.Node] = [tree]
    count = 0
    for _ in range(TREE_DEPTH_MAX):
        level = [child for node in level for child in node.iter_child_nodes()]
        count += len(level)
        if count > TREE_NODES_MAX:
            raise _refused(
                "template-too-large",
                f"a template may have at most {TREE_NODES_MAX:,} names, values and operators. "
                "Pass long lists as data, or use a python task.",
            )
        if not level:
            return
    raise _too_deep()


# --- What a tree may contain ---------------------------------------------------------------------

Found = tuple[str, str]
"""Code and message."""

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


def _problems_of(tree: nodes.Template) -> tuple[TemplateProblem, ...]:
    """Everything in the tree that is not allowed, in the order of the text."""
    found: list[tuple[int, Found]] = []
    pending: list[nodes.Node] = [tree]
    while pending:
        node = pending.pop()
        # Some nodes have no line, although Jinja's types say otherwise.
        found += [(node.lineno or 1, each) for each in _node_problems(node)]
        if type(node) in ALLOWED:
            pending.extend(node.iter_child_nodes())
    return tuple(TemplateProblem(*each) for _, each in sorted(found))


def _node_problems(node: nodes.Node) -> Iterator[Found]:
    kind = type(node)
    if kind in CHECKS:
        yield from CHECKS[kind](node)
    elif kind not in ALLOWED:
        word, remedy = REFUSED.get(kind, ("", "use a python task"))
        shown = f"{{% {word} %}}" if word else kind.__name__
        yield "template-unsupported", f"`{shown}` is not supported: {remedy}."


def _check_filter(node: nodes.Filter) -> Iterator[Found]:
    if node.name not in FILTERS:
        yield from _check_named("filter", node.name, FILTERS)
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
        if what == "test" and name in ("null", "nil", "NULL"):
            yield "unknown-test", f'there is no test "{name}". Write `is none`.'
            return
        instead = _instead if what == "filter" else did_you_mean
        yield f"unknown-{what}", f'there is no {what} "{name}".' + instead(str(name), known)


def _check_test(node: nodes.Test) -> Iterator[Found]:
    if node.name in TESTS:
        yield from _check_arguments(node.name, TESTS[node.name], node)
    else:
        yield from _check_named("test", node.name, TESTS)


def _check_arguments(
    name: str, function: Callable[..., object], node: nodes.Filter | nodes.Test | nodes.Call
) -> Iterator[Found]:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        yield "template-unsupported", "`*` and `**` in arguments are not supported."
        return
    named = dict(keywords(node))
    if len(named) < len(node.kwargs):
        yield "template-syntax", f'"{name}" is given an argument twice'
    elif fault := misfit(name, function, len(node.args), named):
        yield "template-syntax", fault


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
            )
    elif isinstance(callee, nodes.Getattr):
        yield from _check_method(callee.attr, node)
    else:
        yield (
            "template-unsupported",
            "only the listed functions and methods can be called, not a value.",
        )


def _check_method(name: str, node: nodes.Call) -> Iterator[Found]:
    if name not in METHODS:
        instead = _instead(name, METHODS)
        yield "template-unsupported", f'there is no method ".{name}()" on plain data.{instead}'
    elif node.kwargs:
        yield "template-unsupported", f".{name}() takes its arguments in order only."
    else:
        yield from _check_arguments(name, METHODS[name][1], node)


def _instead(name: str, known: Iterable[str]) -> str:
    if name in INSTEAD:
        return f" {INSTEAD[name][0].upper()}{INSTEAD[name][1:]}."
    if name in FILTERS:
        return f" Write `| {name}`."
    return did_you_mean(name, known)


def _check_for(node: nodes.For) -> Iterator[Found]:
    if node.recursive:
        yield "template-unsupported", "`recursive` loops are not supported."
    if "loop" in targets(node.target):
        yield "template-syntax", "`loop` is the loop itself; name its items otherwise."


def _check_constant(node: nodes.Const) -> Iterator[Found]:
    if isinstance(node.value, int) and node.value.bit_length() > INTEGER_BITS_MAX:
        yield "template-too-large", f"a number may have at most {INTEGER_BITS_MAX} bits."


CHECKS: dict[type[nodes.Node], Callable[..., Iterator[Found]]] = {
    nodes.Filter: _check_filter,
    nodes.Test: _check_test,
    nodes.Call: _check_call,
    nodes.For: _check_for,
    nodes.Const: _check_constant,
}
