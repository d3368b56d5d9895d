"""The tree of `fmt_tree` → text, in the one layout we write."""

from __future__ import annotations

from noetl.dsl.fmt_tree import Alias, Branch, Entry, Leaf, Lines, Tree, quoted

WIDTH = 100
"""Brackets that would make a line longer are written out over several lines."""
_KEY_MAX = 1000
"""YAML wants a longer key to be marked as one."""


def write_tree(root: Branch, head: Lines) -> str:
    """The text; `head` are the comments that stay at the top whatever comes first."""
    writer = _Writer()
    writer.comments(head, 0)
    if root.entries:
        writer.branch(root, 0)
    else:
        writer.lines.append("{}")
        writer.comments(root.tail, 0)
    return writer.text()


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._sealed = False
        """A blank line here would become part of the block scalar above."""

    def text(self) -> str:
        if not self._sealed:
            while self.lines and not self.lines[-1]:
                self.lines.pop()
        return "\n".join(self.lines) + "\n"

    def comments(self, lines: Lines, indent: int) -> None:
        for line in lines:
            if line:
                self.lines.append(" " * indent + line)
                self._sealed = False
            elif not self._sealed and self.lines and self.lines[-1]:
                self.lines.append("")

    def branch(self, branch: Branch, indent: int, opening: str = "") -> None:
        """All entries. `opening` holds the dashes that share the line of the first one."""
        for position, entry in enumerate(branch.entries):
            start = " " * indent
            if position == 0:
                start = opening or start
                entry.lead = entry.lead if opening else _trimmed(entry.lead)
            lead_at = len(start) - len(start.lstrip(" "))
            if branch.is_map:
                self.comments(entry.lead, lead_at)
                self._value(entry, self._key(entry, start, indent), indent)
            else:
                self._item(entry, f"{start}-", indent, lead_at)
        self.comments(branch.tail, indent)

    def _item(self, entry: Entry, prefix: str, indent: int, lead_at: int) -> None:
        value = entry.value
        if not isinstance(value, Branch) or value.props or _stays_inline(value, prefix):
            self.comments(entry.lead, lead_at)
            self._value(entry, prefix, indent)
            return
        # `- key: …`: what stands in front of the key must stand in front of the dash.
        first = value.entries[0]
        first.lead = [*entry.lead, *([entry.side] if entry.side else []), *_trimmed(first.lead)]
        self.branch(value, indent + 2, f"{prefix} ")

    def _key(self, entry: Entry, start: str, indent: int) -> str:
        key = entry.key
        if isinstance(key, Alias):
            return f"{start}*{key.name} :"
        assert key is not None
        text = _key_text(key)
        if len(text) <= _KEY_MAX:
            return f"{start}{text}:"
        self.lines.append(f"{start}? {text}")
        return " " * indent + ":"

    def _value(self, entry: Entry, prefix: str, indent: int) -> None:
        value = entry.value
        self._sealed = False
        if isinstance(value, Leaf):
            self._leaf(entry, value, prefix, indent)
        elif isinstance(value, Alias) or _stays_inline(value, prefix):
            self.lines.append(_joined(prefix, _inline(value) or "") + _beside(entry))
        else:
            self.lines.append(_joined(prefix, value.props) + _beside(entry))
            self.branch(value, indent + 2)

    def _leaf(self, entry: Entry, leaf: Leaf, prefix: str, indent: int) -> None:
        first, *rest = _leaf_lines(leaf, indent + 2)
        lines = [_joined(prefix, leaf.props, first), *rest]
        is_block = leaf.style in ("|", ">")
        lines[0 if is_block else -1] += _beside(entry)
        self.lines += lines
        self._sealed = is_block and leaf.header.endswith("+")
        self.comments(leaf.tail, indent + 2)


def _trimmed(lead: Lines) -> Lines:
    return lead[1:] if lead[:1] == [""] else lead


def _stays_inline(branch: Branch, prefix: str) -> bool:
    """Empty, or written in brackets and short enough to stay so."""
    if not branch.entries:
        return True
    text = _inline(branch) if branch.flow else None
    return text is not None and len(prefix) + 1 + len(text) <= WIDTH


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _beside(entry: Entry) -> str:
    return f"  {entry.side}" if entry.side else ""


def _key_text(key: Leaf) -> str:
    lines = _leaf_lines(key, 0)
    is_simple = len(lines) == 1 and key.style not in ("|", ">")
    return _joined(key.props, lines[0] if is_simple else quoted(key.value))


def _inline(tree: Tree) -> str | None:
    """The node on one line, if nothing in it needs more."""
    match tree:
        case Alias():
            return f"*{tree.name}"
        case Leaf():
            if tree.style in ("|", ">") or "\n" in tree.raw or tree.tail or _needs_block(tree):
                return None
            return _joined(tree.props, _leaf_lines(tree, 0)[0] or "null")
    if any(tree.tail):
        return None
    parts = []
    for entry in tree.entries:
        value = _inline(entry.value)
        needs_block = isinstance(entry.key, Leaf) and _needs_block(entry.key)
        if value is None or entry.side or any(entry.lead) or needs_block:
            return None
        parts.append(f"{_inline_key(entry)}{value}")
    text = ", ".join(parts)
    if tree.is_map:
        return _joined(tree.props, f"{{ {text} }}" if text else "{}")
    return _joined(tree.props, f"[{text}]")


def _needs_block(leaf: Leaf) -> bool:
    """A plain scalar with characters that would end it between brackets."""
    return not leaf.style and any(char in ",[]{}" for char in leaf.raw)


def _inline_key(entry: Entry) -> str:
    match entry.key:
        case None:
            return ""
        case Alias(name):
            return f"*{name} : "
        case key:
            return f"{_key_text(key)}: "


def _leaf_lines(leaf: Leaf, indent: int) -> list[str]:
    """The scalar's lines; those after the first carry their indentation."""
    pad = " " * indent
    if leaf.style in ("|", ">"):
        content = leaf.raw.split("\n")[:-1]
        return [leaf.style + leaf.header, *(pad + line if line else "" for line in content)]
    raw = leaf.raw
    if leaf.style == "'" and "\\" not in raw and '"' not in raw:
        raw = '"' + raw[1:-1].replace("''", "'") + '"'
    if "\n" not in raw:
        return [raw]
    first, *rest = [_folded(line) for line in raw.split("\n")]
    return [first, *(pad + line.lstrip(" \t") if line.strip(" \t") else "" for line in rest)]


def _folded(line: str) -> str:
    """A line of a folded scalar without the blanks at its end, which mean nothing."""
    bare = line.rstrip(" \t")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    # An escaped blank does mean something, and must not become an escaped line end.
    return f"{bare[:-1]}\\x20" if backslashes % 2 and bare != line else bare
