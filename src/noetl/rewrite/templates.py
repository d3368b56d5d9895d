"""Templates in a migration: which names they read, and how names are replaced in them."""

from __future__ import annotations

from collections.abc import Callable, Set

from jinja2.exceptions import TemplateSyntaxError

from noetl.dsl.building import Where
from noetl.dsl.scoping import IN_SCOPE, RESERVED
from noetl.rewrite.edit import Work
from noetl.rewrite.tree import Leaf, Tree, leaves, quoted
from noetl.templates.parser import SYNTAX, is_template

Replacement = Callable[[list[str]], list[str]]
"""A dotted path as written → the path to write instead."""


Token = tuple[str, str]
_DOT, _OPEN, _CLOSE = ("operator", "."), ("operator", "["), ("operator", "]")
_INSIDE_A_PATH = (_DOT, ("operator", "|"))


def reads_of(work: Work, tree: Tree | None) -> set[tuple[str, ...]] | None:
    """The paths that all templates below read; None if one of them is not a template."""
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
    """Replace names in every template below. Returns whether anything changed."""
    changed = [
        edit(leaf, lambda source: replace_names(source, replacement)) for leaf in leaves(tree)
    ]
    return any(changed)


def edit(leaf: Leaf, new: Callable[[str], str]) -> bool:
    """Rewrite a template. Returns whether anything changed."""
    if not is_template(leaf.value):
        return False
    value = new(leaf.value)
    if value == leaf.value:
        return False
    is_escaped = (leaf.style == '"' and "\\" in leaf.raw) or (
        leaf.style == "'" and "''" in leaf.raw
    )
    if is_escaped:
        leaf.raw, leaf.style = quoted(value), '"'
    else:
        leaf.raw = new(leaf.raw)
    leaf.value = value
    return True


def replace_names(source: str, replacement: Replacement) -> str:
    """The template with its paths replaced, everything else as written."""
    return _each_path(source, lambda tokens, at: _replaced(tokens, at, replacement))


def take_out(work: Work, leaf: Leaf, absent: Set[str]) -> bool:
    """Take out names that are undefined where a template stands: of `x | default(y)` stays `y`,
    and `x is defined` is `false`. If they are read in another way too, the template stays.
    """

    def without(source: str) -> str:
        return _each_path(source, lambda tokens, at: _without_guard(tokens, at, absent))

    paths = reads_of(work, Leaf(without(leaf.value), ""))
    if paths is None or not absent.isdisjoint(path[0] for path in paths):
        return False
    return edit(leaf, without)


def _each_path(source: str, written_for: Callable[[list[Token], int], tuple[str, int]]) -> str:
    """The template with other texts for its paths; the rest stays as written."""
    tokens = _lexed(source)
    written: list[str] = []
    before: Token = ("", "")
    position = 0
    while position < len(tokens):
        end = position + 1
        if tokens[position][0] == "name" and before not in _INSIDE_A_PATH:
            text, end = written_for(tokens, position)
        else:
            text = tokens[position][1]
        written.append(text)
        before = tokens[end - 1] if tokens[end - 1][0] != "whitespace" else before
        position = end
    return "".join(written)


def _lexed(source: str) -> list[Token]:
    """The tokens of a template; joined, they are its text."""
    try:
        tokens = [(kind, text) for _, kind, text in SYNTAX.lex(source)]
    except TemplateSyntaxError:
        tokens = []
    return tokens if "".join(text for _, text in tokens) == source else [("data", source)]


def _without_guard(tokens: list[Token], position: int, absent: Set[str]) -> tuple[str, int]:
    """What to write for a guarded path, and where its guard ends; else the first name alone."""
    path, ends = _path(tokens, position)
    as_it_is = tokens[position][1], position + 1
    if path[0] not in absent:
        return as_it_is
    rest = [n for n in range(ends[-1], len(tokens)) if tokens[n][0] != "whitespace"]
    words = [tokens[n][1] for n in rest[:3]]
    match words:
        case ["is", "defined", *_] | ["is", "not", "undefined"]:
            return "false", rest[len(words) - 1 if words[1] == "not" else 1] + 1
        case ["is", "undefined", *_] | ["is", "not", "defined"]:
            return "true", rest[len(words) - 1 if words[1] == "not" else 1] + 1
        case ["|", "default" | "d", "("]:
            return _first_argument(tokens, rest[2]) or as_it_is
        case ["|", "default" | "d", *_]:
            return "''", rest[1] + 1
        case _:
            return as_it_is


def _first_argument(tokens: list[Token], opening: int) -> tuple[str, int] | None:
    """The first argument of a call, and where the call ends; None if it goes by a name."""
    depth = 0
    first: list[Token] = []
    is_first = True
    for position in range(opening, len(tokens)):
        kind, text = tokens[position]
        depth += (text in "([{") - (text in ")]}") if kind == "operator" else 0
        if depth == 0:
            value = "".join(text for _, text in first[1:]).strip()
            is_single = len([one for one in first[1:] if one[0] != "whitespace"]) == 1
            return (value if is_single else f"({value})") if value else "''", position + 1
        is_first = is_first and not (depth == 1 and (kind, text) == ("operator", ","))
        if is_first and depth == 1 and (kind, text) == ("operator", "="):
            return None
        first += [tokens[position]] if is_first else []
    return None


def _replaced(tokens: list[Token], position: int, replacement: Replacement) -> tuple[str, int]:
    """What to write for the path that starts here, and where the replaced tokens end."""
    path, ends = _path(tokens, position)
    other = replacement(path)
    follows = _next(tokens, ends[-1])
    # Of `output[name]` we cannot tell which part it takes; `output=` is not a path at all.
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
