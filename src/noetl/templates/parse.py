"""From text to Jinja's syntax tree, or to the problem that keeps it from being one.

Jinja's parser calls itself for every bracket, sign and nested tag, and would run out of stack on
hostile text. The tokens are therefore counted before it starts; its code generator is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jinja2 import Environment, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.parser import Parser

from noetl.templates.errors import TemplateProblem, TemplateRefused, shortened

SOURCE_MAX = 128 * 1024
TREE_DEPTH_MAX = 100
FRAMES_MAX = 600
"""How many calls deep the parser may go; Python allows 1000 in all."""
SMALL_MAX, SMALL_BRACKETS_MAX = 300, 15
"""Text this small cannot go too deep, so its tokens need not be counted."""
FRAMES_PER_BRACKET = 15
FRAMES_PER_TAG = 5

SYNTAX = Environment(keep_trailing_newline=True)  # noqa: S701  nothing is rendered with it

OPENING, CLOSING = frozenset("([{"), frozenset(")]}")
CLOSED_TAGS = frozenset(
    ["if", "for", "with", "filter", "call", "macro", "block", "autoescape", "trans", "raw"]
)


def is_template(text: str) -> bool:
    """Whether the text holds anything to evaluate: `{{ … }}`, `{% … %}` or a comment."""
    if "{{" in text or "{%" in text:
        return True
    comment = text.find("{#")
    return comment >= 0 and text.find("#}", comment + 2) >= 0


def parse(source: str) -> nodes.Template:
    """The syntax tree of a template; refuses what is no template or is too large."""
    if len(source) > SOURCE_MAX:
        raise refused(
            "template-too-large",
            f"a template may have at most {SOURCE_MAX:,} characters, this one has {len(source):,}. "
            "Move the text into a file or a python task.",
        )
    try:
        _check_nesting(source)
        tree = Parser(SYNTAX, source).parse()
    except TemplateSyntaxError as error:
        raise TemplateRefused((_syntax_problem(source, error),)) from None
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, OverflowError):  # a number that Python will not read
        raise refused("template-syntax", "a number in the template is too long") from None
    _check_depth(tree)
    return tree


def refused(code: str, message: str) -> TemplateRefused:
    return TemplateRefused((TemplateProblem(code, message),))


def problem_at(source: str, line: int, word: str, code: str, message: str) -> TemplateProblem:
    """A problem placed at a word of a line, or at the tag it stands in.

    Jinja knows lines (from 1) but no columns.
    """
    lines = source.splitlines() or [""]
    index = min(max(line - 1, 0), len(lines) - 1)
    found = [lines[index].find(mark) for mark in ("{{", "{%", "{#")]
    start = min((position for position in found if position >= 0), default=0)
    named = re.search(rf"\b{re.escape(word)}\b", lines[index][start:]) if word else None
    return TemplateProblem(code, message, index, start + (named.start() if named else 0))


def keywords(node: nodes.Filter | nodes.Test | nodes.Call) -> Iterator[tuple[str, nodes.Expr]]:
    """The arguments given by name."""
    for part in node.kwargs:
        assert isinstance(part, nodes.Keyword)
        yield part.key, part.value


_SIGNS = {"end of print statement": "}}", "end of statement block": "%}"}
"""What the parser calls these signs, and what people write."""


def _syntax_problem(source: str, error: TemplateSyntaxError) -> TemplateProblem:
    message = error.message or "not a template"
    for name, sign in _SIGNS.items():
        message = message.replace(name, sign)
    if message.startswith("Encountered unknown tag"):
        name = shortened(message.split("'")[1], 60) if "'" in message else ""
        if not name.startswith(("end", "else", "elif")):
            return problem_at(
                source,
                error.lineno,
                name,
                "template-unsupported",
                f"`{{% {name} %}}` is not supported: templates have if, for, set, with, filter and "
                "raw. Do the rest in a python task.",
            )
    return problem_at(
        source, error.lineno, "", "template-syntax", f"template: {shortened(message)}"
    )


def _too_deep() -> TemplateRefused:
    return refused(
        "template-too-large",
        "the template is nested too deeply. Split it with `{% set %}`, or use a python task.",
    )


def _check_nesting(source: str) -> None:
    """Refuse text whose parsing would go too deep.

    Frames are counted as the parser would use them: brackets and tags while open, signs and `not`
    until their operand, `else` of a conditional expression until the end of its bracket or tag.
    """
    if len(source) <= SMALL_MAX and sum(map(source.count, OPENING)) <= SMALL_BRACKETS_MAX:
        return
    open_frames: list[int] = []
    frames = tags = signs = 0
    in_set = False
    previous = ""
    for kind, value in _tokens(source):
        if kind in ("variable_begin", "block_begin", "variable_end", "block_end"):
            tags += in_set  # a set without `=` takes all up to its endset
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


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    for _, kind, value in SYNTAX.lexer.tokeniter(source, None):
        if kind != "whitespace":
            yield kind, value


def _check_depth(tree: nodes.Node) -> None:
    """Refuse a tree too deep to be compiled; long chains of operators are deep as well."""
    level: list[nodes.Node] = [tree]
    for _ in range(TREE_DEPTH_MAX):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise _too_deep()
