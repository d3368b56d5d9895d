"""A migration under way: what it changed and what it left, and the older forms that `dsl.older`
rewrites.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.dsl.expressions import Expressions
from noetl.model.older_forms import Written
from noetl.model.rewrites import Remark
from noetl.model.toolshape import ToolShape
from noetl.rewrite.tree import (
    Branch,
    Entry,
    children,
    gather,
    is_null,
    items,
    mapping,
    mapping_at,
    own_mapping,
    pair,
    plain_of,
    text_at,
    tree_of,
    without_blanks,
)


class Work:
    """One migration: the tool kinds it knows, what it changed, and what it had to leave."""

    def __init__(self, tools: Mapping[str, ToolShape]) -> None:
        self.tools = tools
        self.expressions = Expressions()
        self.changes: list[Remark] = []
        self.remarks: list[Remark] = []

    def changed(self, entry: Entry, message: str) -> None:
        self.changes.append(Remark(entry.line, message))

    def kept(self, entry: Entry, message: str) -> None:
        self.remarks.append(Remark(entry.line, message))

    def rename(self, branch: Branch, old: str, new: str, of: str = "") -> None:
        """Rename a key (`of` a step or the like), unless the new one is there, too."""
        entry = branch.find(old)
        if entry is None:
            return
        if branch.find(new) is not None:
            self.kept(entry, f"`{old}` is `{new}`, which is here, too. Join them by hand.")
            return
        entry.rename(new)
        self.changed(entry, f"`{old}`{of and f' of {of}'} is `{new}`.")

    def move(self, branch: Branch, key: str, home: str, of: str) -> None:
        """Move a key into the mapping `home` beside it, unless that has one or is shared."""
        entry = branch.find(key)
        if entry is None:
            return
        known = mapping_at(branch, home)
        if not branch.has_room(home) or (known is not None and known.find(key) is not None):
            self.kept(entry, f"`{key}` of {of} belongs in `{home}`, which has one already.")
            return
        branch.remove(entry)
        branch.make_room(home).entries.append(entry)
        self.changed(entry, f"`{key}` of {of} belongs in `{home}`.")


class TreeWritten(Written):
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
        if found is None:
            return None
        return TreeWritten(self._work, found, what or f"`{key}` of {self.what}")

    def each(self, key: str, what: str = "") -> list[Written]:
        found: list[Written] = []
        for entry in items(self._branch.get(key)):
            branch = own_mapping(entry.value)
            if branch is not None:
                found.append(TreeWritten(self._work, branch, what or f"an entry of `{key}`"))
        return found

    def room(self, *path: str) -> TreeWritten | None:
        if not self._branch.has_room(*path):
            return None
        return TreeWritten(self._work, self._branch.make_room(*path), self.what)

    def move(self, key: str, to: Written, new: str, today: str, code: str = "older-form") -> None:
        assert isinstance(to, TreeWritten)
        entry = self._entry(key)
        if to._branch.find(new) is not None:
            self._work.kept(entry, f"`{key}` is an older form of `{new}`, which is written, too.")
            return
        self.note(key, today)
        entry.rename(new)
        if to._branch is not self._branch:
            self._branch.remove(entry)
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
                entry.rename(f"{prefixes[key]}{entry.name}")
                joined.append(entry)
        made = pair(to, mapping(*joined), first)
        made.lead = [line for key in prefixes for line in gather(self._entry(key), joined)]
        made.side = ""
        for key in list(prefixes)[1:]:
            self._branch.remove(self._entry(key))
        self._branch.replace(first, made)

    def gather(self, key: str, prefix: str, today: str) -> None:
        entry = self._entry(key)
        made: list[Entry] = []
        for item in items(entry.value):
            branch = mapping_at(item.value)
            assert branch is not None
            value = branch.find("value")
            assert value is not None
            value.rename(f"{prefix}{text_at(branch, 'name')}")
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

    def ignore(self, key: str, why: str) -> None:
        self._work.changed(self._entry(key), f"`{key}` of {self.what} had no effect: {why}.")
        self.discard(key)

    def note(self, key: str, today: str) -> None:
        self._work.changed(self._entry(key), f"`{key}` of {self.what}: {today}.")

    def refuse(self, key: str, code: str, message: str) -> None:
        self._work.kept(self._entry(key), message)

    def _entry(self, key: str) -> Entry:
        entry = self._branch.find(key)
        assert entry is not None
        return entry

    def discard(self, key: str) -> None:
        """Remove an entry; its comments stay with what follows."""
        entry = self._entry(key)
        lines = gather(entry)
        at = next(n for n, other in enumerate(self._branch.entries) if other is entry)
        self._branch.remove(entry)
        if at < len(self._branch.entries):
            self._branch.entries[at].lead[:0] = lines
        else:
            self._branch.tail[:0] = lines
