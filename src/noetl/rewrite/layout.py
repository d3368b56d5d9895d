"""Reads a text into a tree, and writes a tree as text in the canonical layout."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from noetl.rewrite.tree import Alias, Branch, Entry, Leaf, Lines, Tree, quoted

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE_TAG = "tag:yaml.org,2002:"
_RARE_BREAKS = ("\u2028", "\u2029")
_COMMENT = re.compile("#[^\n\u2028\u2029]*")
_BLOCK_HEADER = re.compile(r"([|>])([-+0-9]*)[ \t]*(#.*)?")

WIDTH = 100
"""Brackets that would make a line longer are written out over several lines."""
_KEY_MAX = 1000
"""YAML requires a `?` before a longer key."""


# --- Reading -----------------------------------------------------------------------------------


def parse_tree(text: str) -> Branch:
    """The tree of a text that `dsl.read` has accepted as a mapping."""
    # The other line ends of YAML, and a byte order mark, mean nothing.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return _Reader(text.replace("\x85", "\n")).document()


@dataclass(slots=True)
class _Comment:
    text: str
    line: int
    column: int
    own_line: bool
    after: int
    """Where the last token before it ends."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.split("\n")
        self._line_starts = [0]
        for line in self._lines:
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        self._scalar_starts: dict[int, int] = {}
        self._comments: deque[_Comment] = deque()
        self._scan()
        # Any: events of the parser always have marks, which the types of PyYAML do not say.
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self._end = 0
        """Where the last leaf or bracket ended."""
        self._line = -1
        """The line of the last thing placed in the tree."""

    def document(self) -> Branch:
        event = next(self._events)
        while not isinstance(event, yaml.MappingStartEvent):
            event = next(self._events)
        holder = Entry(Alias(""))
        self._place(event, holder, -1)
        root = holder.value
        assert isinstance(root, Branch)
        above = [*holder.lead, *([holder.side] if holder.side else [])]
        root.tail += self._with_blanks(self._comments)
        if root.entries:
            root.entries[0].lead[:0] = above
        else:
            root.tail[:0] = above
        return root

    # --- Comments ----------------------------------------------------------------------------

    def _scan(self) -> None:
        """Find every comment (they are all between tokens) and the start of every scalar."""
        end = 0
        for token in yaml.scan(self._text, Loader=_LOADER):
            start, stop = token.start_mark.index, token.end_mark.index
            for match in _COMMENT.finditer(self._text, end, start):
                line, column = self._position(match.start())
                own_line = not self._lines[line][:column].strip()
                text = match.group().rstrip()
                self._comments.append(_Comment(text, line, column, own_line, end))
            if isinstance(token, yaml.ScalarToken):
                self._scalar_starts[stop] = start
            end = max(end, stop)

    def _position(self, index: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, index) - 1
        return line, index - self._line_starts[line]

    def _take(self, until: int) -> list[_Comment]:
        line, column = self._position(until)
        taken = []
        while self._comments and (self._comments[0].line, self._comments[0].column) < (
            line,
            column,
        ):
            taken.append(self._comments.popleft())
        return taken

    def _with_blanks(self, comments: Iterable[_Comment]) -> Lines:
        lines: Lines = []
        for comment in comments:
            lines += self._blank_before(comment.line)
            lines.append(comment.text)
        return lines

    def _blank_before(self, line: int) -> Lines:
        """A blank line, if there is one between the last thing placed and this line."""
        has_blank = any(not self._lines[n].strip() for n in range(self._line + 1, line))
        self._line = max(self._line, line)
        return [""] if has_blank else []

    def _claim(self, entry: Entry, until: int, beside: Entry, *, is_start: bool = False) -> None:
        """Give the comments up to here to `entry`, those at the end of a line to `beside`."""
        for comment in self._take(until):
            if comment.own_line:
                entry.lead += self._with_blanks([comment])
            elif comment.line == self._line and not beside.side:
                beside.side = comment.text
            elif is_start and not entry.side:
                entry.side = comment.text
            else:
                entry.lead.append(comment.text)

    def _claim_beside(self, entry: Entry) -> None:
        """Give an entry the comment at the end of its line."""
        while self._comments and not self._comments[0].own_line:
            if self._comments[0].after > self._end:
                return
            comment = self._comments.popleft()
            if entry.side:
                entry.lead.append(entry.side)
            entry.side = comment.text

    def _claim_below(self, column: int) -> Lines:
        """The comments that follow and are indented at least this far."""
        found = []
        while self._comments:
            comment = self._comments[0]
            if not comment.own_line or comment.after > self._end or comment.column < column:
                break
            found.append(self._comments.popleft())
        return self._with_blanks(found)

    # --- Nodes -------------------------------------------------------------------------------

    def _place(self, event: Any, holder: Entry, column: int, *, in_flow: bool = False) -> None:
        """Read one node into `holder`; `column` is the column of the collection around it."""
        is_block = isinstance(event, yaml.CollectionStartEvent) and not event.flow_style
        if not is_block:
            self._claim(holder, event.end_mark.index, holder)
        if isinstance(event, yaml.CollectionStartEvent):
            holder.value = self._branch(event, holder)
        else:
            holder.value = self._leaf(event, holder, column)
        if not is_block:
            self._claim_beside(holder)
        if isinstance(holder.value, Leaf) and not holder.value.raw and not holder.value.style:
            holder.value.tail = [] if in_flow else self._claim_below(column + 1)

    def _branch(self, event: Any, holder: Entry) -> Branch:
        branch = Branch(
            isinstance(event, yaml.MappingStartEvent),
            flow=bool(event.flow_style),
            props=_props(event),
        )
        column, is_indentless = self._column(event)
        if branch.flow or branch.props:
            self._line = max(self._line, self._position(event.start_mark.index)[0])
        previous = holder
        while not isinstance(
            child := next(self._events), yaml.MappingEndEvent | yaml.SequenceEndEvent
        ):
            entry = Entry(Alias(""))
            start = child.start_mark.index
            self._claim(entry, start, previous, is_start=True)
            entry.line = self._position(start)[0] + 1
            entry.lead += self._blank_before(entry.line - 1)
            if branch.is_map:
                entry.key = self._key(child, entry)
                child = next(self._events)
            self._place(child, entry, column, in_flow=branch.flow)
            branch.entries.append(entry)
            previous = entry
        if branch.flow:
            self._close_flow(branch, child, holder)
        else:
            branch.tail += self._claim_below(column + is_indentless)
        return branch

    def _close_flow(self, branch: Branch, event: Any, holder: Entry) -> None:
        last = Entry(Alias(""))
        self._claim(last, event.start_mark.index, branch.entries[-1] if branch.entries else holder)
        self._end = event.end_mark.index
        self._line = self._position(self._end)[0]
        # Empty brackets have no room for a comment; it moves in front of them.
        (branch.tail if branch.entries else holder.lead).extend(last.lead)

    def _column(self, event: Any) -> tuple[int, bool]:
        """The column of a block collection, and whether it is a list that its key does not
        indent.
        """
        index = event.end_mark.index
        is_list = isinstance(event, yaml.SequenceStartEvent)
        is_indentless = is_list and not event.flow_style and self._text[index : index + 1] != "-"
        return self._position(index)[1] - is_indentless, is_indentless

    def _key(self, event: Any, entry: Entry) -> Leaf | Alias:
        self._claim(entry, event.end_mark.index, entry)
        return self._leaf(event, entry, 0)

    def _leaf(self, event: Any, holder: Entry, column: int) -> Leaf | Alias:
        self._end = end = event.end_mark.index
        if isinstance(event, yaml.AliasEvent):
            self._line = self._position(end)[0]
            return Alias(event.anchor or "")
        is_written = event.start_mark.index < end
        raw = self._text[self._scalar_starts.get(end, end) : end] if is_written else ""
        if not raw:
            self._line = max(self._line, self._position(event.start_mark.index)[0])
            return Leaf("", "", props=_props(event))
        self._line = self._position(end - len(raw) + len(raw.rstrip()))[0]
        style = event.style if event.style in ("'", '"', "|", ">") else ""
        leaf = Leaf(event.value, raw, style, props=_props(event))
        if style in ("|", ">"):
            leaf.header, leaf.raw, comment = _block_content(event.value, raw, column)
            holder.side = holder.side or comment
            # A line of blanks may be the last of its content, and empty ones are with `+`.
            self._line = self._position(end - len(raw))[0] + leaf.raw.count("\n")
        if any(char in raw for char in _RARE_BREAKS):
            # YAML ends a line at these, other programs do not; escaped, they are only characters.
            leaf.raw, leaf.style, leaf.header = quoted(event.value), '"', ""
        return leaf


def _props(event: Any) -> str:
    parts = [f"&{event.anchor}"] if event.anchor is not None else []
    if event.tag is not None:
        is_core = event.tag.startswith(_CORE_TAG)
        parts.append("!!" + event.tag.removeprefix(_CORE_TAG) if is_core else event.tag)
    return " ".join(parts)


def _block_content(value: str, raw: str, column: int) -> tuple[str, str, str]:
    """Indicators, lines without their indentation, and the comment of a block scalar."""
    first, *lines = raw.split("\n")
    match = _BLOCK_HEADER.match(first)
    assert match is not None
    indicators, comment = match.group(2), match.group(3) or ""
    if lines and not lines[-1]:
        lines.pop()
    digits = indicators.strip("+-")
    if digits:
        indent = max(column, 0) + int(digits)
    else:
        text = next((line for line in lines if line.strip(" ")), "")
        indent = len(text) - len(text.lstrip(" ")) if text else len(raw)
    lines = [line[indent:] for line in lines]
    chomping = indicators.strip("0123456789")
    if value and not value.endswith("\n"):
        # The last line of a file may lack its line end; the rewritten one has it.
        chomping = "-"
    if chomping != "+":
        while lines and not lines[-1]:
            lines.pop()
    content = "".join(f"{line}\n" for line in lines)
    return ("2" if digits else "") + chomping, content, comment.rstrip()


# --- Writing -----------------------------------------------------------------------------------


def write_tree(root: Branch, head: Lines) -> str:
    """The text; `head` are the comments that stay at the top, whichever key comes first."""
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
        """Whether a blank line here would become part of the block scalar above."""

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
        # In `- key: …` the comments before the key must come before the dash.
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
    """The node on one line; None if something in it needs more lines."""
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
    """A line of a folded scalar without the blanks at its end, which have no meaning."""
    bare = line.rstrip(" \t")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    # An escaped blank has a meaning, and must not become an escaped line end.
    return f"{bare[:-1]}\\x20" if backslashes % 2 and bare != line else bare
