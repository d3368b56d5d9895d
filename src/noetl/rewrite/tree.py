"""A playbook's text as a tree that keeps everything: comments, quotes, blank lines, anchors.

`dsl.read` keeps what a playbook means. This tree keeps how it was written, so that it can be
written again in another layout. A comment belongs to the entry that it stands in front of or
beside, so entries take their comments along when they move. Code that removes parts of an entry
calls `gather` for their comments, so that none is lost. `layout` reads and writes trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from noetl.dsl.scalars import resolve

_ESCAPES = {
    "\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\x85": "\\N",
    "\u2028": "\\L", "\u2029": "\\P", "\xa0": "\\_", "\x7f": "\\x7F", "\ufeff": "\\uFEFF",
}  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")

Lines = list[str]
"""Comments, each with its `#`; an empty text stands for a blank line."""


@dataclass(slots=True)
class Leaf:
    """A scalar as written. For block scalars `raw` holds the lines without their indentation."""

    value: str
    raw: str
    style: str = ""
    """The quote or block indicator; empty for a plain scalar."""
    header: str = ""
    """What follows the block indicator."""
    props: str = ""
    """Anchor and tag."""
    tail: Lines = field(default_factory=list)
    """Comments in the place of an empty value."""

    @property
    def data(self) -> Any:
        """The value as `dsl.read` sees it."""
        return resolve(self.value) if not self.style and not self.props else self.value


@dataclass(slots=True)
class Alias:
    """A reference to an anchor."""

    name: str


@dataclass(slots=True)
class Entry:
    """One pair of a mapping or one item of a list, with the comments that belong to it."""

    value: Leaf | Alias | Branch
    key: Leaf | Alias | None = None
    lead: Lines = field(default_factory=list)
    """Comments on lines of their own in front of it."""
    side: str = ""
    """The comment at the end of its line."""
    line: int = 0
    """Its line in the text; 0 for an entry that was made here."""

    @property
    def name(self) -> str:
        return self.key.value if isinstance(self.key, Leaf) else ""

    def rename(self, name: str) -> None:
        assert isinstance(self.key, Leaf)
        props = self.key.props
        self.key = scalar(name)
        self.key.props = props


@dataclass(slots=True)
class Branch:
    """A mapping or a list."""

    is_map: bool
    entries: list[Entry] = field(default_factory=list)
    flow: bool = False
    """Written in brackets, on one line if it fits."""
    props: str = ""
    tail: Lines = field(default_factory=list)
    """Comments after its last entry."""

    def find(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def get(self, name: str) -> Leaf | Alias | Branch | None:
        entry = self.find(name)
        return entry.value if entry is not None else None

    def remove(self, entry: Entry) -> None:
        """Take an entry out, by identity: two entries may look the same."""
        self.entries = [other for other in self.entries if other is not entry]

    def replace(self, entry: Entry, *others: Entry) -> None:
        """Put other entries in the place of an entry."""
        at = next(n for n, other in enumerate(self.entries) if other is entry)
        self.entries[at : at + 1] = others

    def has_room(self, *path: str) -> bool:
        """Whether entries can be added at this path: to a mapping, or where there is nothing
        yet.
        """
        tree: Tree | None = self
        for key in path:
            tree = tree.get(key) if isinstance(tree, Branch) else None
            if is_null(tree):
                return True
            if own_mapping(tree) is None:
                return False
        return True

    def make_room(self, *path: str) -> Branch:
        """The mapping at this path, made if it is missing. Call `has_room` first."""
        branch = self
        for key in path:
            entry = branch.find(key)
            if entry is None:
                entry = pair(key, Branch(True))
                branch.entries.append(entry)
            if isinstance(entry.value, Leaf):
                entry.value = Branch(True, tail=entry.value.tail)
            assert isinstance(entry.value, Branch)
            branch = entry.value
        return branch


Tree = Leaf | Alias | Branch


# --- Looking -----------------------------------------------------------------------------------


def children(tree: Tree | None) -> list[Entry]:
    """The entries of a mapping or list."""
    return tree.entries if isinstance(tree, Branch) else []


def items(tree: Tree | None) -> list[Entry]:
    """The entries of a list."""
    return tree.entries if isinstance(tree, Branch) and not tree.is_map else []


def mapping_at(tree: Tree | None, *path: str) -> Branch | None:
    """The mapping at the end of a path of keys."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Branch) else None
    return tree if isinstance(tree, Branch) and tree.is_map else None


def text_at(tree: Tree | None, key: str) -> str | None:
    """The text under a key."""
    return text_in(tree.get(key)) if isinstance(tree, Branch) else None


def text_in(tree: Tree | None) -> str | None:
    """The text that a tree is."""
    found = tree.data if isinstance(tree, Leaf) else None
    return found if isinstance(found, str) else None


def is_null(tree: Tree | None) -> bool:
    return tree is None or (isinstance(tree, Leaf) and tree.data is None)


def merges(tree: Tree | None) -> bool:
    """Whether a mapping takes entries from elsewhere (`<<`), so that not all of it is in sight."""
    return any(entry.name == "<<" for entry in children(tree))


def own_mapping(tree: Tree | None, *path: str) -> Branch | None:
    """The mapping at the end of a path, if all of it is written there and is used only there: it
    has no merge key, and no anchor shares it.
    """
    found = mapping_at(tree, *path)
    return None if found is None or found.props or merges(found) else found


def then_of(rule: Tree | None) -> Tree | None:
    """What a rule does: under `then`, under `else.then`, or under `else` itself."""
    other = rule.get("else") if isinstance(rule, Branch) else None
    if isinstance(other, Branch):
        return other.get("then") or other
    return rule.get("then") if isinstance(rule, Branch) else None


def leaves(tree: Tree | None) -> Iterator[Leaf]:
    """Every scalar value below."""
    if isinstance(tree, Leaf):
        yield tree
    for entry in children(tree):
        yield from leaves(entry.value)


def located(tree: Tree, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Every entry below by its path, spelled as in problems (`workflow[2].tool.url`)."""
    for index, entry in enumerate(children(tree)):
        is_map = isinstance(tree, Branch) and tree.is_map
        here = f"{path}[{index}]" if not is_map else f"{path}.{entry.name}".lstrip(".")
        yield here, entry
        yield from located(entry.value, here)


def plain_of(tree: Tree | None) -> Any:
    """The data that a tree stands for; None for an alias."""
    match tree:
        case Leaf():
            return tree.data
        case Branch(is_map=True):
            return {entry.name: plain_of(entry.value) for entry in tree.entries}
        case Branch():
            return [plain_of(entry.value) for entry in tree.entries]
        case _:
            return None


def without_blanks(lines: Iterable[str]) -> Lines:
    """Only the comments."""
    return [line for line in lines if line]


def gather(entry: Entry, kept: Iterable[Tree | Entry] = ()) -> Lines:
    """All comments on and in an entry, without blank lines, except those in parts that are kept
    elsewhere.
    """
    spared = {id(part) for part in kept}

    def comments(entry: Entry) -> Iterator[str]:
        if id(entry) in spared:
            return
        yield from (*entry.lead, entry.side)
        if id(entry.value) in spared:
            return
        for child in children(entry.value):
            yield from comments(child)
        if not isinstance(entry.value, Alias):
            yield from entry.value.tail

    return without_blanks(comments(entry))


# --- Making ------------------------------------------------------------------------------------


def scalar(value: str | int | bool) -> Leaf:
    """A leaf, in quotes if it needs them."""
    if not isinstance(value, str):
        text = str(value).lower()
        return Leaf(text, text)
    if _PLAIN.fullmatch(value) and resolve(value) == value:
        return Leaf(value, value)
    if '"' in value and "'" not in value and value.isprintable():
        return Leaf(value, f"'{value}'", "'")
    return Leaf(value, quoted(value), '"')


def pair(name: str, value: Tree | str | int | bool, source: Entry | None = None) -> Entry:
    """A mapping entry; with `source`, one that takes over its comments and place."""
    tree = value if isinstance(value, Leaf | Alias | Branch) else scalar(value)
    made = Entry(tree, scalar(name))
    if source is not None:
        made.lead, made.side, made.line = source.lead, source.side, source.line
    return made


def mapping(*entries: Entry, flow: bool = False) -> Branch:
    return Branch(True, list(entries), flow=flow)


def listing(*values: Tree | Entry) -> Branch:
    return Branch(False, [v if isinstance(v, Entry) else Entry(v) for v in values])


def tree_of(value: Any) -> Tree:
    """Data as a tree; a text of several lines becomes a block."""
    match value:
        case dict():
            return mapping(*(pair(str(key), tree_of(part)) for key, part in value.items()))
        case list():
            return listing(*(tree_of(part) for part in value))
        case str() if "\n" in value and value[0] not in " \n\t" and not value.endswith("\n\n"):
            is_whole = value.endswith("\n")
            return Leaf(value, value if is_whole else f"{value}\n", "|", "" if is_whole else "-")
        case str() | int():
            return scalar(value)
        case None:
            return Leaf("null", "null")
        case _:
            return Leaf(str(value), str(value))


def quoted(value: str) -> str:
    """A text in double quotes, on one line."""
    escaped = (
        _ESCAPES.get(char, char) if char >= " " or char in _ESCAPES else f"\\x{ord(char):02X}"
        for char in value
    )
    return f'"{"".join(escaped)}"'
