"""References: what stands in an event in place of a value that is too large for it.

A long list is kept in segments: bodies of so many elements each, so that a part of it can be
written and read without the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any

import msgspec

INLINE_MAX = 64 * 1024
"""Bytes of JSON up to which a value travels in events."""
PREVIEW_MAX = 200

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


def reference(execution_id: str, key: str, body: bytes, value: Any) -> dict[str, Any]:
    """What events and answers show instead of the value."""
    return {
        "_ref": {
            "store": "result",
            "execution_id": execution_id,
            "key": key,
            "size": len(body),
            "checksum": hashlib.sha256(body).hexdigest(),
            "schema_hint": type(value).__name__,
        },
        "_store": "result",
        "_preview": body[:PREVIEW_MAX].decode("utf-8", errors="replace"),
    }


def key_of(value: Any) -> str | None:
    """The key, if this is a reference to a value. A file is none: it stays a reference."""
    if isinstance(value, dict) and isinstance(value.get("_ref"), dict):
        key = value["_ref"].get("key")
        return key if isinstance(key, str) and not is_file(value) else None
    return None


def is_file(value: Any) -> bool:
    """Whether this is a reference to a file, which is kept in parts and is no JSON."""
    return (
        isinstance(value, dict) and isinstance(value.get("_ref"), dict) and "parts" in value["_ref"]
    )


def owner_of(value: Any, default: str) -> str:
    """The execution that keeps what a reference stands for: a child's result is the child's."""
    return str(value["_ref"].get("execution_id", default))


def held_by(value: Any) -> list[dict[str, Any]]:
    """The references in a value: itself, or those in the result of a loop."""
    if key_of(value) is not None:
        return [value]
    each: Any = value.get("results") if isinstance(value, dict) else None
    if key_of(each) is not None:
        return [each]
    return [one for one in each if key_of(one) is not None] if isinstance(each, list) else []


def holds_reference(value: Any) -> bool:
    return bool(held_by(value))


def weight(value: Any) -> int:
    """About how many bytes of JSON this is, cheaply where that is plain to see."""
    if value is None or isinstance(value, int | float):
        return 8
    return len(value) + 2 if isinstance(value, str) else len(encode(value))


# --- Lists in segments -------------------------------------------------------------------------


def segment_key(key: str, number: int) -> str:
    return f"{key}-{number}"


def segmented(
    execution_id: str,
    key: str,
    *,
    length: int,
    width: int,
    kept: Iterable[int],
    size: int,
    seal: str,
) -> dict[str, Any]:
    """What stands for a list of this length; `kept` are the numbers of its segments, in order.

    Segments that were never kept hold nothing but nulls. The seal is over all segments' checksums.
    """
    spans: list[list[int]] = []
    for number in kept:
        if spans and spans[-1][1] == number:
            spans[-1][1] = number + 1
        else:
            spans.append([number, number + 1])
    return {
        "_ref": {
            "store": "result",
            "execution_id": execution_id,
            "key": key,
            "size": size,
            "checksum": seal,
            "schema_hint": "list",
            "segments": {"length": length, "width": width, "kept": spans},
        },
        "_store": "result",
        "_preview": f"{length} elements",
    }


def is_segmented(value: Any) -> bool:
    return key_of(value) is not None and "segments" in value["_ref"]


Bodies = Generator[tuple[str, str], Any, Any]
"""Asks for bodies by owner and key, one after the other, and returns what they amount to."""


def part(reference: dict[str, Any], owner: str, start: int, stop: int) -> Bodies:
    """Elements `start … stop - 1` of a list that is kept in segments."""
    shape = reference["_ref"]["segments"]
    width, length = shape["width"], shape["length"]
    stop = min(stop, length)
    elements: list[Any] = []
    for number in range(start // width, -(-stop // width)):
        first = number * width
        if any(begin <= number < end for begin, end in shape["kept"]):
            key = segment_key(reference["_ref"]["key"], number)
            body = yield owner_of(reference, owner), key
        else:
            body = [None] * min(width, length - first)
        elements += body[max(0, start - first) : stop - first]
    return elements


def real(value: Any, owner: str) -> Bodies:
    """The value with every reference in it that events may hold replaced by what it stands for."""
    if is_segmented(value):
        elements = yield from part(value, owner, 0, value["_ref"]["segments"]["length"])
        return (yield from _each(elements, owner))
    key = key_of(value)
    if key is not None:
        return (yield owner_of(value, owner), key)
    if not holds_reference(value):
        return value
    results = value["results"]
    if is_segmented(results):
        results = yield from real(results, owner)
    return {**value, "results": (yield from _each(results, owner))}


def _each(elements: list[Any], owner: str) -> Bodies:
    found = []
    for one in elements:
        found.append((yield from real(one, owner)) if key_of(one) is not None else one)
    return found


async def fetched(asking: Bodies, get: Callable[[str, str], Awaitable[bytes]]) -> Any:
    """What the bodies amount to, with `get` reading each of them."""
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send(decode(await get(*wanted)))
    except StopIteration as done:
        return done.value
