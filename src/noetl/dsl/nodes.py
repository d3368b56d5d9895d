"""YAML as a tree whose nodes know their places in the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl.model.problems import Place


class Node:
    """A piece of the document. `weight` is its size and `height` its depth, aliases expanded."""

    __slots__ = ("height", "place", "weight")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.weight = 1
        self.height = 0


class Scalar(Node):
    """A single value. A `quoted` one is always text."""

    __slots__ = ("block", "quoted", "text", "value")

    def __init__(
        self, place: Place, value: Any, text: str, quoted: bool, *, block: bool = False
    ) -> None:
        super().__init__(place)
        self.block = block
        """Written after `|`, line by line, from the line below on."""
        self.value = value
        self.text = text
        self.quoted = quoted


class Sequence(Node):
    """A list."""

    __slots__ = ("items",)

    def __init__(self, place: Place, items: list[Node]) -> None:
        super().__init__(place)
        self.items = items
        self.height = 1


class Mapping(Node):
    """Keys with values, in the order written. `keys` has the place of each key."""

    __slots__ = ("entries", "keys")

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.height = 1
        self.entries: dict[str, Node] = {}
        self.keys: dict[str, Place] = {}

    def get(self, key: str) -> Node | None:
        return self.entries.get(key)

    def put(self, key: str, key_place: Place, value: Node) -> None:
        self.entries[key] = value
        self.keys[key] = key_place


NOTHING = Mapping(Place(0, 0))
"""Stands for a mapping that is not written."""


def is_null(node: Node | None) -> bool:
    """Nothing was written, or `null` was."""
    return node is None or (isinstance(node, Scalar) and node.value is None)


def written(node: Mapping) -> set[str]:
    """The keys that have a value: an empty one counts as not written."""
    return {key for key, value in node.entries.items() if not is_null(value)}


def plain(node: Node | None) -> Any:
    """The data without places. Mappings come out sorted, as they stand in canonical bytes."""
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return [plain(item) for item in node.items]
        case Mapping():
            return {key: plain(node.entries[key]) for key in sorted(node.entries)}
        case _:
            return None


def text_of(node: Node | None) -> str | None:
    """The text, if this is one."""
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    return None


def field(node: Node | None, *keys: str) -> Node | None:
    """The value of the first of these keys that has one."""
    written = entries(node)
    return next((written[key] for key in keys if not is_null(written.get(key))), None)


def items(node: Node | None) -> list[Node]:
    return node.items if isinstance(node, Sequence) else []


def entries(node: Node | None) -> dict[str, Node]:
    return node.entries if isinstance(node, Mapping) else {}


PATH_MAX = 200
"""Longer paths are cut: long hostile keys in many nodes would be too much text."""


def paths(root: Node) -> dict[Place, str]:
    """Place → the path of the key or value there; of several, the outermost."""
    found: dict[Place, str] = {}
    seen: set[int] = set()
    stack: list[tuple[Node, str]] = [(root, "")]
    while stack:
        node, path = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        found.setdefault(node.place, path)
        for place, child, child_path in _children(node, path):
            if place is not None:
                found.setdefault(place, child_path)
            stack.append((child, child_path))
    return found


def _children(node: Node, path: str) -> Iterator[tuple[Place | None, Node, str]]:
    match node:
        case Sequence():
            for index, item in enumerate(node.items):
                yield None, item, _longer(path, f"[{index}]")
        case Mapping():
            for key, value in node.entries.items():
                yield node.keys[key], value, _longer(path, f".{key}" if path else key)


def _longer(path: str, piece: str) -> str:
    return path + piece if len(path) + len(piece) <= PATH_MAX else path
