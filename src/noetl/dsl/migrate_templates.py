"""Templates under migration: what names they read, and the same template with other names."""

from __future__ import annotations

from collections.abc import Callable

from jinja2.exceptions import TemplateSyntaxError

from noetl.dsl.building import Where
from noetl.dsl.fmt_tree import Leaf, Tree, quoted
from noetl.dsl.migrate_edit import Work, leaves
from noetl.dsl.scoping import IN_SCOPE, RESERVED
from noetl.templates.parser import SYNTAX, is_template

Replacement = Callable[[list[str]], list[str]]
"""A dotted path as written → the path to write instead."""


Token = tuple[str, str]
_DOT, _OPEN, _CLOSE = ("operator", "."), ("operator", "["), ("operator", "]")
_INSIDE_A_PATH = (_DOT, ("operator", "|"))


def reads_of(work: Work, tree: Tree | None) -> set[tuple[str, ...]] | None:
    """The paths that all templates below read; None if one of them is no template."""
    found: set[tuple[str, ...]] = set()
    for leaf in leaves(tree):
        if not is_template(leaf.value):
            continue
        template = work.expressions.compiled(leaf.value)
        if template is None:
            return None
        found |= template.reads
    return found


def fits(work: Work, tree: Tree | None, where: Where, local: frozenset[str] = frozenset()) -> bool:
    """Whether all that is read below exists in another scope too; `local` names do not."""
    paths = reads_of(work, tree)
    if paths is None:
        return False
    return all(
        path[0] not in local and (path[0] not in RESERVED or path[0] in IN_SCOPE[where])
        for path in paths
    )


def output_is_outcome(path: list[str]) -> list[str]:
    """`output` is a later name of `outcome`, `output.data` of `outcome.result`."""
    if path[0] != "output":
        return path
    if path[1:2] == ["data"]:
        return ["outcome", "result", *path[2:]]
    return ["outcome", *path[1:]]


def rewrite(tree: Tree | None, replacement: Replacement) -> bool:
    """Replace names in every template below. Says whether anything changed."""
    changed = [_rewrite_leaf(leaf, replacement) for leaf in leaves(tree)]
    return any(changed)


def _rewrite_leaf(leaf: Leaf, replacement: Replacement) -> bool:
    if not is_template(leaf.value):
        return False
    value = replace_names(leaf.value, replacement)
    if value == leaf.value:
        return False
    is_escaped = (leaf.style == '"' and "\\" in leaf.raw) or (
        leaf.style == "'" and "''" in leaf.raw
    )
    if is_escaped:
        leaf.raw, leaf.style = quoted(value), '"'
    else:
        leaf.raw = replace_names(leaf.raw, replacement)
    leaf.value = value
    return True


def replace_names(source: str, replacement: Replacement) -> str:
    """The template with its paths replaced, everything else as written."""
    try:
        tokens = [(kind, text) for _, kind, text in SYNTAX.lex(source)]
    except TemplateSyntaxError:
        return source
    if "".join(text for _, text in tokens) != source:
        return source
    written: list[str] = []
    before: Token = ("", "")
    position = 0
    while position < len(tokens):
        end = position + 1
        if tokens[position][0] == "name" and before not in _INSIDE_A_PATH:
            text, end = _replaced(tokens, position, replacement)
        else:
            text = tokens[position][1]
        written.append(text)
        before = tokens[end - 1] if tokens[end - 1][0] != "whitespace" else before
        position = end
    return "".join(written)


def _replaced(tokens: list[Token], position: int, replacement: Replacement) -> tuple[str, int]:
    """What to write for the path that starts here, and where what it stands for ends."""
    path, ends = _path(tokens, position)
    other = replacement(path)
    follows = _next(tokens, ends[-1])
    # Of `output[name]` we cannot tell which part it takes; `output=` is no path at all.
    is_open = follows == ("operator", "=") or (follows == _OPEN and len(path) == 1)
    if other == path or is_open:
        return "".join(text for _, text in tokens[position : ends[-1]]), ends[-1]
    # The rest of the path stays as it is spelled: `["items"]` may matter.
    while len(path) > 1 and len(other) > 1 and path[-1] == other[-1]:
        path, other = path[:-1], other[:-1]
    return ".".join(other), ends[len(path) - 1]


def _path(tokens: list[Token], position: int) -> tuple[list[str], list[int]]:
    """The names joined by dots or as texts in brackets from here, and where each ends."""
    path, ends = [tokens[position][1]], [position + 1]
    while True:
        first, *rest = [*tokens[ends[-1] : ends[-1] + 3], ("", "")]
        if first == _DOT and rest[0][0] == "name":
            path.append(rest[0][1])
            ends.append(ends[-1] + 2)
        elif first == _OPEN and rest[0][0] == "string" and rest[1] == _CLOSE:
            path.append(rest[0][1][1:-1])
            ends.append(ends[-1] + 3)
        else:
            return path, ends


def _next(tokens: list[Token], position: int) -> Token:
    """The token that follows, white space aside."""
    rest = (token for token in tokens[position : position + 2] if token[0] != "whitespace")
    return next(rest, ("", ""))
