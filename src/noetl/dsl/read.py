"""YAML text → a tree of nodes with places, or the problem that stopped us.

We build the tree from the parser's events ourselves: that is where duplicate keys, depth and
the size of expanded aliases can be seen before they cost anything. The parser is libyaml's
state machine, which does not recurse.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Never

import yaml

from noetl.dsl.nodes import Mapping, Node, Scalar, Sequence, is_null
from noetl.dsl.report import Report
from noetl.dsl.scalars import NULLS, Unrepresentable, resolve
from noetl.model.problems import Place

BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 64
NODES_MAX = 500_000
"""Nodes of a document with every alias written out. Long texts count for several."""
TEXT_PER_NODE = 64
"""Characters of a text that weigh as much as one node more."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, type] = {
    f"{_TAG}str": str,
    f"{_TAG}int": int,
    f"{_TAG}float": float,
    f"{_TAG}bool": bool,
    f"{_TAG}null": type(None),
}
_TAG_DIRECTIVE = re.compile(r"(?:^|[\n\r\x85\u2028\u2029])(%TAG)")
_UNSEEN = re.compile("^[\u00a0\u200b\ufeff]|^[\\w.-]+:\u00a0|[\u200b\ufeff]$")
"""What pages on the web put in place of spaces, where it makes another text of a key."""
_START = Place(1, 1)


class _Stop(Exception):
    """Reading cannot continue; the problem has been reported."""


def read(text: str, report: Report) -> Mapping | None:
    """The document's root mapping. None if there is none; the report then says why."""
    text = text.removeprefix("\ufeff")
    size = len(text.encode("utf-8", errors="replace"))
    if size > BYTES_MAX:
        report.add(
            "yaml-too-large",
            f"the document has {size:,} bytes; at most {BYTES_MAX:,} are read."
            " Move data out of the playbook, or split it.",
            _START,
        )
        return None
    try:
        root = _Reader(report).document(text)
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        _report_syntax(error, text, report)
        return None
    except (yaml.reader.ReaderError, UnicodeEncodeError) as error:
        report.add(
            "yaml-syntax",
            "the text holds a character YAML does not allow:"
            f" {str(error).splitlines()[0][:120]}. Remove it.",
            _bad_character(error, text),
        )
        return None
    if not isinstance(root, Mapping):
        report.add(
            "not-a-playbook",
            "a playbook is a mapping that starts with `apiVersion: noetl.io/v2`; "
            + f"this document is {_shown(root)}.",
            root.place if root is not None else _START,
        )
        return None
    return root


def _shown(root: Node | None) -> str:
    if is_null(root):
        return "empty"
    return "a list" if isinstance(root, Sequence) else "a text"


_LIST = ""
"""Stands for the key where there are none."""
_PATH = ("metadata", "path")


def declared_path(text: str) -> str | None:
    """The path that a document has, by its head alone; also of one that is wrong further on."""
    if len(text) > BYTES_MAX or _TAG_DIRECTIVE.search(text):
        return None
    found: dict[tuple[str | None, ...], str] = {}
    # For each open mapping the key whose value comes next, or None if a key does.
    keys: list[str | None] = []
    with suppress(yaml.YAMLError, UnicodeEncodeError):
        for event in yaml.parse(text.removeprefix("\ufeff"), Loader=_LOADER):
            is_key = bool(keys) and keys[-1] is None
            match event:
                case yaml.ScalarEvent(value=value) if is_key:
                    keys[-1] = value
                    continue
                case yaml.ScalarEvent(value=value):
                    found.setdefault(tuple(keys), value)
                case yaml.MappingStartEvent():
                    keys.append(None)
                    continue
                case yaml.SequenceStartEvent():
                    keys.append(_LIST)
                    continue
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    keys.pop()
                    if keys == ["metadata"] and _PATH in found:
                        break
                case yaml.AliasEvent():
                    pass
                case _:
                    continue
            if keys and keys[-1] != _LIST:
                keys[-1] = None
    return found.get(_PATH) or found.get(("path",)) or found.get(("metadata", "name"))


class _Reader:
    """One pass over the parser's events."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._anchors: dict[str, Node | None] = {}
        self._nodes = 0
        self._has_aliases = False

    def document(self, text: str) -> Node | None:
        # Tags are of no use here, and the parser takes quadratic time over their directives.
        if directive := _TAG_DIRECTIVE.search(text):
            self._stop(
                "yaml-tag",
                "%TAG is not understood. Remove the line and write plain values.",
                _place_at(text, directive.start(1)),
            )
        root: Node | None = None
        open_nodes: list[_Open] = []
        documents = 0
        for event in yaml.parse(text, Loader=_LOADER):
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        self._stop(
                            "yaml-many-documents",
                            "a file holds one playbook; a second document starts here."
                            " Put it into a file of its own.",
                            _place(event),
                        )
                case yaml.ScalarEvent():
                    root = self._place_into(open_nodes, self._scalar(event)) or root
                    if self._report.is_full:  # Whatever else is wrong, nobody would be told.
                        break
                case yaml.AliasEvent():
                    root = self._place_into(open_nodes, self._alias(event, len(open_nodes))) or root
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    open_nodes.append(self._open(event, len(open_nodes)))
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    root = self._close(open_nodes) or root
        while open_nodes:
            root = self._close(open_nodes) or root
        return root

    def _close(self, open_nodes: list[_Open]) -> Node | None:
        """Finish the innermost list or mapping; returns the root when that is it."""
        done = open_nodes.pop()
        node = done.finish()
        if done.anchor is not None:
            self._anchors[done.anchor] = node
        return self._place_into(open_nodes, node)

    def _place_into(self, open_nodes: list[_Open], node: Node) -> Node | None:
        """Hand a finished node to its parent; a node without parent is the root."""
        if not open_nodes:
            return node
        parent = open_nodes[-1]
        parent.node.weight += node.weight
        parent.node.height = max(parent.node.height, node.height + 1)
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is None:
            parent.key = self._key(node)
        else:
            self._pair(parent, node)
        return None

    def _pair(self, parent: _Open, value: Node) -> None:
        assert isinstance(parent.node, Mapping)
        assert parent.key is not None
        key = parent.key
        parent.key = None
        is_merge = key.text == "<<" and not key.quoted
        first = parent.merge_place if is_merge else parent.node.keys.get(key.text)
        if first is not None:
            self._report.add(
                "yaml-duplicate-key",
                f'the key "{key.text[:100]}" is here a second time; the first is on line'
                f" {first.line}. "
                + ("Merge a list: `<<: [*a, *b]`." if is_merge else "Keep one of them."),
                key.place,
            )
        elif is_merge:
            parent.merge_place = key.place
            parent.merged = value
        else:
            parent.node.put(key.text, key.place, value)

    def _key(self, node: Node) -> Scalar:
        if not isinstance(node, Scalar) or (not node.quoted and node.text in NULLS):
            self._stop(
                "yaml-key",
                "a key must be a plain text."
                + (
                    ' A template must stand in quotes: "{{ … }}".'
                    if isinstance(node, Mapping)
                    else " Write it as a word or in quotes."
                ),
                node.place,
            )
        return node

    def _open(self, event: Any, depth: int) -> _Open:
        place = _place(event)
        is_sequence = isinstance(event, yaml.SequenceStartEvent)
        if event.tag not in (None, f"{_TAG}seq" if is_sequence else f"{_TAG}map"):
            self._refuse_tag(event.tag, place)
        self._count(1, place)
        self._check_depth(depth + 1, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        return _Open(
            Sequence(place, []) if is_sequence else Mapping(place), event.anchor, self._report
        )

    def _scalar(self, event: Any) -> Scalar:
        place = _place(event)
        # `!!str 12` and quoted texts are texts; everything else is resolved by its look.
        quoted = bool(event.style) or event.tag == f"{_TAG}str"
        value: Any = event.value
        if not quoted and (unseen := _UNSEEN.search(event.value)):
            self._stop(
                "yaml-syntax",
                f"`{event.value[:60]}` holds the character U+{ord(unseen[0][-1]):04X}, which looks"
                " like a space or like nothing and is neither. Type it anew, or put the text in"
                " quotes if it is meant.",
                place,
            )
        if not quoted:
            try:
                value = resolve(event.value)
            except Unrepresentable as error:
                self._report.add(
                    "yaml-value", f"{error}. Put it in quotes if you mean a text.", place
                )
        if event.tag is not None and type(value) is not _SCALAR_TAGS.get(event.tag):
            self._refuse_tag(event.tag, place)
        node = Scalar(place, value, event.value, quoted, block=event.style == "|")
        node.weight += len(event.value) // TEXT_PER_NODE
        self._count(node.weight, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, depth: int) -> Node:
        self._has_aliases = True
        place = _place(event)
        if event.anchor not in self._anchors:
            self._stop(
                "yaml-syntax",
                f"there is no anchor &{event.anchor} before this. Put a text that begins with `*`"
                " in quotes.",
                place,
            )
        node = self._anchors[event.anchor]
        if node is None:
            self._stop(
                "yaml-alias-cycle", f"*{event.anchor} is inside the node that it refers to.", place
            )
        self._count(node.weight, place)
        self._check_depth(depth + node.height, place)
        if isinstance(node, Scalar):
            copy = Scalar(place, node.value, node.text, node.quoted)
            copy.weight = node.weight
            return copy
        return node

    def _refuse_tag(self, tag: str, place: Place) -> Never:
        name = tag.replace(_TAG, "!!", 1)[:100]
        message = f"the tag {name} is not understood here. Write the plain value."
        self._stop("yaml-tag", message, place)

    def _check_depth(self, depth: int, place: Place) -> None:
        if depth > DEPTH_MAX:
            self._stop(
                "yaml-too-deep",
                f"the document is nested deeper than {DEPTH_MAX} levels. Flatten it.",
                place,
            )

    def _count(self, weight: int, place: Place) -> None:
        self._nodes += weight
        if self._nodes <= NODES_MAX:
            return
        if self._has_aliases:
            self._stop(
                "yaml-alias-limit",
                f"with its aliases written out the document has more than {NODES_MAX:,} nodes."
                " Use fewer aliases of large parts.",
                place,
            )
        self._stop(
            "yaml-too-large",
            f"the document has more than {NODES_MAX:,} nodes."
            " Move data out of the playbook, or split it.",
            place,
        )

    def _stop(self, code: str, message: str, place: Place) -> Never:
        self._report.add(code, message, place)
        raise _Stop


class _Open:
    """A list or mapping whose end has not come yet."""

    __slots__ = ("anchor", "key", "merge_place", "merged", "node", "report")

    def __init__(self, node: Sequence | Mapping, anchor: str | None, report: Report) -> None:
        self.node = node
        self.anchor = anchor
        self.report = report
        self.key: Scalar | None = None
        self.merge_place: Place | None = None
        self.merged: Node | None = None

    def finish(self) -> Node:
        """Apply the merge key: keys written out win, then earlier sources."""
        if self.merge_place is None or not isinstance(self.node, Mapping):
            return self.node
        sources = self.merged.items if isinstance(self.merged, Sequence) else [self.merged]
        for mapping in sources:
            if not isinstance(mapping, Mapping):
                message = "`<<` merges mappings; this is not a mapping."
                self.report.add("yaml-key", message, self.merge_place)
                continue
            for key, value in mapping.entries.items():
                if key not in self.node.entries:
                    self.node.put(key, mapping.keys[key], value)
        return self.node


_SPACES = "Check the indentation, and quote texts that hold `: `."
_HINTS = {
    "mapping values are not allowed": _SPACES,
    "found a tab character": "YAML is indented with spaces, not tabs.",
    "found unknown escape character": "In double quotes a backslash must be doubled.",
    "did not find expected key": "Check the indentation and the quotes on this and the last line."
    " A quote within quotes of its kind is doubled: 'it''s'.",
    "did not find expected ',' or": "Close the bracket, and quote texts that hold brackets.",
    "found unexpected end of stream": "Close the quote.",
    "did not find expected '-'": "Items of a list begin with `- ` in one column, and the keys of an"
    " item stand below its first key.",
    "did not find expected alphabetic": "A text that begins with `*` or `&` stands in quotes.",
    "could not find expected ':'": "A line is `key: value`: write the colon and a space after it,"
    " or indent the line if it belongs to the text above.",
}
_CHARACTER_HINTS = {
    "\t": "YAML is indented with spaces, not tabs.",
    "%": 'A template must stand in quotes: "{% … %}".',
    "@": "Put the text in quotes.",
    "`": "Put the text in quotes.",
}
_LACKS_SPACE = re.compile(r"\s*(?:- +)*([\w.-]+):(\S.*)")
_LACKS_DASH = re.compile(r"\s*-(?! |-)\S.*")


def _report_syntax(error: yaml.MarkedYAMLError, text: str, report: Report) -> None:
    problem = (error.problem or "this is not YAML").strip()
    mark = error.problem_mark or error.context_mark
    hint = next((hint for start, hint in _HINTS.items() if problem.startswith(start)), "")
    place: Place | None = None
    if mark is not None:
        if problem.startswith("found character that cannot start"):
            hint = _CHARACTER_HINTS.get(text[mark.index : mark.index + 1], "")
        elif hint == _SPACES:
            place, hint = _second_colon(mark, text)
        elif _is_open(error):
            mark = error.context_mark
    place = place or (Place(mark.line + 1, mark.column + 1) if mark is not None else _START)
    context = f" {error.context}" if error.context else ""
    message = f"YAML cannot be read here: {problem}{context}. {hint}".rstrip()
    report.add("yaml-syntax", message, place)


def _is_open(error: yaml.MarkedYAMLError) -> bool:
    """Whether the mistake is where something began: a quote or bracket without end, or a key
    without a colon. The parser notices it on a later line.
    """
    begun, noticed = error.context_mark, error.problem_mark
    what = ("while scanning a simple key", "while scanning a quoted", "while parsing a flow")
    return (
        begun is not None
        and noticed is not None
        and begun.line < noticed.line
        and (error.context or "").startswith(what)
    )


def _second_colon(mark: Any, text: str) -> tuple[Place | None, str]:
    """The place, if it is on a line above, and the remedy where a colon follows what is taken for
    a plain text.
    """
    *earlier, here = text[: mark.index].splitlines()
    if ": " in here:
        return None, "Put the value in quotes: it holds `: `."
    number = next((at for at in range(len(earlier), 0, -1) if earlier[at - 1].strip()), None)
    if number is None:
        return None, _SPACES
    line = earlier[number - 1]
    above = Place(number, len(line) - len(line.lstrip()) + 1)
    if lacking := _LACKS_SPACE.fullmatch(line):
        return above, f"Write a space after the colon: `{lacking[1]}: {lacking[2][:60]}`."
    if _LACKS_DASH.fullmatch(line):
        return above, "Write a space after the dash."
    if ":" not in line:
        return above, (
            f"`{line.strip()[:60]}` lacks its colon: write `key: value`, or `|` behind the key"
            " above if this is a text of several lines."
        )
    return None, (
        f"The key on line {number} has a value already: indent this line as that key, or put its"
        " value below it."
    )


def _place(event: Any) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1)


def _bad_character(error: yaml.reader.ReaderError | UnicodeEncodeError, text: str) -> Place:
    if isinstance(error, UnicodeEncodeError):
        return _place_at(text, error.start)
    # The parser counts bytes.
    before = text.encode("utf-8")[: error.position]
    return _place_at(text, len(before.decode("utf-8", errors="replace")))


def _place_at(text: str, position: int) -> Place:
    before = text[:position]
    return Place(before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)
