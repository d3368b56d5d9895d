"""Changes of a tree during a migration, and the list of what was changed.

Code that removes parts of an entry calls `gather` for their comments, so that no comment is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl.dsl.expressions import Expressions
from noetl.dsl.scalars import resolve
from noetl.model.older_forms import Written
from noetl.model.rewrites import Change, Remark
from noetl.model.toolshape import ToolShape
from noetl.rewrite.tree import (
    Alias,
    Branch,
    Entry,
    Leaf,
    Lines,
    Tree,
    children,
    is_null,
    items,
    mapping_at,
    own_mapping,
    quoted,
    text_at,
)

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


class Work:
    """One migration: the tool kinds it knows, what it changed, and what it had to leave."""

    def __init__(self, tools: Mapping[str, ToolShape]) -> None:
        self.tools = tools
        self.expressions = Expressions()
        self.changes: list[Change] = []
        self.remarks: list[Remark] = []

    def changed(self, entry: Entry, message: str) -> None:
        self.changes.append(Change(entry.line, message))

    def kept(self, entry: Entry, message: str) -> None:
        self.remarks.append(Remark(entry.line, message))


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
    """Whether entries can be added at this path: to a mapping, or where there is nothing yet."""
    tree: Tree | None = branch
    for key in path:
        tree = tree.get(key) if isinstance(tree, Branch) else None
        if is_null(tree):
            return True
        if own_mapping(tree) is None:
            return False
    return True


def make_room(branch: Branch, *path: str) -> Branch:
    """The mapping at this path, made if it is missing. Call `has_room` first."""
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


# --- Older forms -------------------------------------------------------------------------------


class TreeWritten:
    """A mapping of the text, for `dsl.older`, which rewrites older forms to the current ones."""

    is_text = True

    def __init__(self, work: Work, branch: Branch, what: str) -> None:
        self._work = work
        self._branch = branch
        self.what = what

    def names(self) -> list[str]:
        return [entry.name for entry in self._branch.entries]

    def has(self, key: str) -> bool:
        return not is_null(self._branch.get(key))

    def plain(self, key: str) -> Any:
        return plain_of(self._branch.get(key))

    def text(self, key: str) -> str | None:
        return text_at(self._branch, key)

    def below(self, key: str, what: str = "") -> TreeWritten | None:
        found = own_mapping(self._branch, key)
        return found and TreeWritten(self._work, found, what or f"`{key}` of {self.what}")

    def each(self, key: str, what: str = "") -> list[Written]:
        found: list[Written] = []
        for entry in items(self._branch.get(key)):
            branch = own_mapping(entry.value)
            if branch is not None:
                found.append(TreeWritten(self._work, branch, what or f"an entry of `{key}`"))
        return found

    def room(self, *path: str) -> TreeWritten | None:
        if not has_room(self._branch, *path):
            return None
        return TreeWritten(self._work, make_room(self._branch, *path), self.what)

    def rename(self, key: str, new: str) -> None:
        self.move(key, self, new, f"it is `{new}` today")

    def move(self, key: str, to: Written, new: str, today: str, code: str = "older-form") -> None:
        assert isinstance(to, TreeWritten)
        entry = self._entry(key)
        if to._branch.find(new) is not None:
            self._work.kept(entry, f"`{key}` is an older form of `{new}`, which is written, too.")
            return
        self.note(key, today)
        rename(entry, new)
        if to._branch is not self._branch:
            remove(self._branch, entry)
            entry.lead = without_blanks(entry.lead)
            to._branch.entries.append(entry)

    def spread(self, prefixes: Mapping[str, str], to: str) -> None:
        parts = {key: own_mapping(self._branch, key) for key in prefixes}
        first = self._entry(next(iter(prefixes)))
        if self._branch.find(to) is not None or None in parts.values():
            self._work.kept(first, f"`{to}` is written, too, or this is not a plain mapping.")
            return
        joined: list[Entry] = []
        for key, part in parts.items():
            self.note(key, f"write `{to}: {{{prefixes[key]}x: …}}`")
            for entry in children(part):
                rename(entry, f"{prefixes[key]}{entry.name}")
                joined.append(entry)
        made = pair(to, mapping(*joined), first)
        made.lead = [line for key in prefixes for line in gather(self._entry(key), joined)]
        made.side = ""
        for key in list(prefixes)[1:]:
            remove(self._branch, self._entry(key))
        replace(self._branch, first, made)

    def gather(self, key: str, prefix: str, today: str) -> None:
        entry = self._entry(key)
        made: list[Entry] = []
        for item in items(entry.value):
            branch = mapping_at(item.value)
            assert branch is not None
            value = branch.find("value")
            assert value is not None
            rename(value, f"{prefix}{text_at(branch, 'name')}")
            value.lead = gather(item, [value]) + value.lead
            made.append(value)
        self.note(key, today)
        entry.value = mapping(*made)

    def wrap(self, key: str, inner: str, today: str) -> None:
        entry = self._entry(key)
        self.note(key, today)
        entry.value = mapping(pair(inner, entry.value))

    def put(self, key: str, value: Any, today: str) -> None:
        entry = self._entry(key)
        self.note(key, today)
        kept = (*entry.lead, entry.side)
        entry.lead += [line for line in gather(entry) if line not in kept]
        entry.value = tree_of(value)

    def leave_out(self, key: str, today: str) -> None:
        self.note(key, today)
        self._take(key)

    def discard(self, key: str) -> None:
        self._take(key)

    def ignore(self, key: str, why: str) -> None:
        self._work.changed(self._entry(key), f"`{key}` of {self.what} had no effect: {why}.")
        self._take(key)

    def note(self, key: str, today: str) -> None:
        self._work.changed(self._entry(key), f"`{key}` of {self.what}: {today}.")

    def refuse(self, key: str, code: str, message: str) -> None:
        self._work.kept(self._entry(key), message)

    def _entry(self, key: str) -> Entry:
        entry = self._branch.find(key)
        assert entry is not None
        return entry

    def _take(self, key: str) -> None:
        """Remove an entry; its comments stay with what follows."""
        entry = self._entry(key)
        lines = gather(entry)
        at = next(n for n, other in enumerate(self._branch.entries) if other is entry)
        remove(self._branch, entry)
        if at < len(self._branch.entries):
            self._branch.entries[at].lead[:0] = lines
        else:
            self._branch.tail[:0] = lines


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
