"""Prints results: values, never references, one body at a time.

Events and answers of the API hold a reference instead of a large value. People and scripts want the
value. A long list is stored in segments and printed segment by segment, which takes the memory of
one segment.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from noetl.errors import NotFound
from noetl.model import refs
from noetl.model.ids import ExecutionId

Get = Callable[[ExecutionId, str], Awaitable[bytes]]
"""Reads a body, given the execution and the key."""
Part = Callable[[Any, str], AsyncIterator[str]]
"""The text of a part of a document, given its value and margin."""
STEP = "  "
ELEMENTS_SHOWN = 5
LINES_SHOWN = 100
"""Of a result that nobody asked for, so many lines on a terminal."""


async def print_value(value: Any, owner: ExecutionId, get: Get, *, as_json: bool = False) -> None:
    """Print a value: text as it is, unless JSON is wanted; anything else as JSON."""
    async for piece in value_text(value, owner, get, as_json=as_json):
        _write(piece)
    _write("\n")
    sys.stdout.buffer.flush()


async def print_beginning(value: Any, owner: ExecutionId, get: Get) -> bool:
    """Print the first lines of a value. Returns whether that is all of it."""
    text = ""
    async with aclosing(value_text(value, owner, get)) as pieces:
        async for piece in pieces:
            text += piece
            if text.count("\n") > LINES_SHOWN:
                break
    lines = text.removesuffix("\n").split("\n")
    _write("\n".join(lines[:LINES_SHOWN]) + "\n")
    sys.stdout.buffer.flush()
    return len(lines) <= LINES_SHOWN


async def value_text(
    value: Any, owner: ExecutionId, get: Get, *, as_json: bool = False
) -> AsyncGenerator[str, None]:
    """The text of a value, in pieces: text as it is, unless JSON is wanted; else JSON."""
    if not as_json:
        found = await _found(value, owner, get)
        if found is not None and value["_ref"].get("schema_hint") == "str":
            value = refs.decode(found[1])
        if isinstance(value, str):
            yield value
            return
    async for piece in json_text(value, owner, get):
        yield piece


async def print_document(document: dict[str, Any], get: Get) -> None:
    """Print the document of an execution, with every result in full."""
    owner = document["execution_id"]
    steps = document["steps"]

    def field(value: Any, margin: str) -> AsyncIterator[str]:
        return json_text(value, owner, get, margin)

    def step(one: dict[str, Any], margin: str) -> AsyncIterator[str]:
        return _mapping(one, field, margin)

    def part(value: Any, margin: str) -> AsyncIterator[str]:
        return _list(_each(steps), step, margin) if value is steps else field(value, margin)

    async for piece in _mapping(document, part):
        _write(piece)
    _write("\n")
    sys.stdout.buffer.flush()


def _write(piece: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(piece.encode("utf-8"))


# --- JSON, chunk by chunk ----------------------------------------------------------------------


async def json_text(
    value: Any, owner: ExecutionId, get: Get, margin: str = ""
) -> AsyncIterator[str]:
    """The value as indented JSON; a referenced part is read when it is reached."""

    def element(one: Any, deeper: str) -> AsyncIterator[str]:
        return json_text(one, owner, get, deeper)

    def part(one: Any, deeper: str) -> AsyncIterator[str]:
        if isinstance(one, list):
            return _list(_each(one), element, deeper)
        return element(one, deeper)

    found = await _found(value, owner, get)
    if found is not None and found[0].segments is not None:
        async for piece in _list(_elements(found[0], owner, get), element, margin):
            yield piece
    elif found is not None:
        yield _indented(found[1], margin)
    elif refs.key_of(value, refs.UNSEALED) is None and refs.holds_reference(value, refs.UNSEALED):
        async for piece in _mapping(value, part, margin):
            yield piece
    else:
        yield _indented(refs.encode(value), margin)


async def _found(value: Any, owner: ExecutionId, get: Get) -> tuple[refs.About, bytes] | None:
    """The parsed reference, and the first body it names.

    None for data, including data that looks like a reference but whose key names no body.
    """
    what = refs.about(value, refs.UNSEALED)
    if what is None or what.is_file:
        return None
    key = what.key
    if what.segments is not None:
        key = refs.segment_key(key, what.segments.kept[0][0])
    try:
        return what, await get(what.owner(owner), key)
    except NotFound:
        return None


async def _mapping(value: dict[str, Any], part: Part, margin: str = "") -> AsyncIterator[str]:
    if not value:
        yield "{}"
        return
    yield "{"
    for number, (name, one) in enumerate(value.items()):
        yield f"{',' if number else ''}\n{margin}{STEP}{refs.encode(name).decode()}: "
        async for piece in part(one, margin + STEP):
            yield piece
    yield f"\n{margin}}}"


async def _list(elements: AsyncIterator[Any], part: Part, margin: str) -> AsyncIterator[str]:
    before = f"[\n{margin}{STEP}"
    async for one in elements:
        yield before
        before = f",\n{margin}{STEP}"
        async for piece in part(one, margin + STEP):
            yield piece
    yield "[]" if before.startswith("[") else f"\n{margin}]"


async def _each(elements: list[Any]) -> AsyncIterator[Any]:
    for one in elements:
        yield one


async def _elements(what: refs.About, owner: ExecutionId, get: Get) -> AsyncIterator[Any]:
    """The elements of a segmented list, with one segment in memory at a time."""
    cut = what.segments
    assert cut is not None
    for start in range(0, cut.length, cut.width):
        asking = refs.part(what, owner, start, start + cut.width)
        for one in await refs.fetched(asking, get):
            yield one


def _indented(body: bytes, margin: str) -> str:
    # No string in JSON holds a line break, so every line can be indented.
    return msgspec.json.format(body, indent=len(STEP)).decode().replace("\n", f"\n{margin}")


# --- On one line -------------------------------------------------------------------------------


async def beginning(value: Any, owner: ExecutionId, get: Get) -> Any:
    """The value with the beginning of each large part in its place, to be shown on one line."""
    what = refs.about(value, refs.UNSEALED)
    if what is not None and not what.is_file:
        if what.segments is None:
            return msgspec.Raw(f"{value.get('_preview')}…".encode())
        found = await _found(value, owner, get)
        if found is None:
            return value
        asking = refs.part(what, owner, 0, ELEMENTS_SHOWN)
        first = [await beginning(one, owner, get) for one in await refs.fetched(asking, get)]
        return _shortened(first, what.segments.length)
    if refs.holds_reference(value, refs.UNSEALED):
        results = value["results"]
        if isinstance(results, list):
            first = [await beginning(one, owner, get) for one in results[:ELEMENTS_SHOWN]]
            return {**value, "results": _shortened(first, len(results))}
        return {**value, "results": await beginning(results, owner, get)}
    return value


def _shortened(first: list[Any], length: int) -> list[Any]:
    return first if len(first) == length else [*first, msgspec.Raw(f"… {length} in all".encode())]
