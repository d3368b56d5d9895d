"""What rewriting a playbook needs: a log of what was done, and safe ways to change the tree.

Whoever takes entries apart calls `gather` for the comments of the parts that go, so that no
comment is lost with the shell it stood on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from noetl.dsl.expressions import Expressions
from noetl.dsl.fmt_tree import Alias, Branch, Entry, Leaf, Lines, Tree, quoted
from noetl.dsl.scalars import resolve
from noetl.model.toolshape import ToolShape

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


class Change(msgspec.Struct, frozen=True, order=True):
    """Something that is now written differently and means the same."""

    line: int
    """In the text that came in."""
    message: str


class Remark(msgspec.Struct, frozen=True, order=True):
    """Something that stayed as it was, and why."""

    line: int
    message: str


class Work:
    """One migration: the tool kinds it knows, and what it did and left undone."""

    def __init__(self, tools: Mapping[str, ToolShape]) -> None:
        self.tools = tools
        self.expressions = Expressions()
        self.changes: list[Change] = []
        self.remarks: list[Remark] = []

    def changed(self, entry: Entry, message: str) -> None:
        self.changes.append(Change(entry.line, message))

    def kept(self, entry: Entry, message: str) -> None:
        self.remarks.append(Remark(entry.line, message))


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
    found = tree.data if isinstance(tree, Leaf) else None
    return found if isinstance(found, str) else None


def is_null(tree: Tree | None) -> bool:
    return tree is None or (isinstance(tree, Leaf) and tree.data is None)


def merges(tree: Tree | None) -> bool:
    """Whether a mapping takes entries from elsewhere, so that we do not see all it says."""
    return any(entry.name == "<<" for entry in children(tree))


def leaves(tree: Tree | None) -> Iterator[Leaf]:
    """Every scalar value below."""
    if isinstance(tree, Leaf):
        yield tree
    for entry in children(tree):
        yield from leaves(entry.value)


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


# --- Changing ----------------------------------------------------------------------------------


def rename(entry: Entry, name: str) -> None:
    assert isinstance(entry.key, Leaf)
    props = entry.key.props
    entry.key = scalar(name)
    entry.key.props = props


def remove(branch: Branch, entry: Entry) -> None:
    """Take an entry out, by identity: two entries may look the same."""
    branch.entries = [other for other in branch.entries if other is not entry]


def replace(branch: Branch, entry: Entry, *others: Entry) -> None:
    """Put other entries into an entry's place."""
    at = next(n for n, other in enumerate(branch.entries) if other is entry)
    branch.entries[at : at + 1] = others


def has_room(branch: Branch, *path: str) -> bool:
    """Whether there is a mapping at this path that can be added to, or none at all yet."""
    tree: Tree | None = branch
    for key in path:
        tree = tree.get(key) if isinstance(tree, Branch) else None
        if is_null(tree):
            return True
        if not isinstance(tree, Branch) or not tree.is_map or merges(tree) or tree.props:
            return False
    return True


def make_room(branch: Branch, *path: str) -> Branch:
    """The mapping at this path, made where missing; `has_room` has said yes."""
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


def gather(entry: Entry, kept: Iterable[Tree | Entry] = ()) -> Lines:
    """All comments on and in an entry, except those in parts that live on elsewhere."""
    spared = {id(part) for part in kept}
    return list(_comments(entry, spared))


def _comments(entry: Entry, spared: set[int]) -> Iterator[str]:
    if id(entry) in spared:
        return
    yield from entry.lead
    if entry.side:
        yield entry.side
    if id(entry.value) in spared:
        return
    for child in children(entry.value):
        yield from (line for line in _comments(child, spared) if line)
    if not isinstance(entry.value, Alias):
        yield from filter(None, entry.value.tail)
