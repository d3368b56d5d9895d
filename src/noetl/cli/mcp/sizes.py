"""Answers that fit into the context of an assistant: what is longer comes in pages, or is cut.

Nothing is cut silently: a document that was cut says so, and where the whole is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from noetl.control.documents import plain

if TYPE_CHECKING:
    from noetl.api.route import AnyRoute
    from noetl.cli.calls import Api

ANSWER_MAX = 40_000
"""Characters of one answer: about 10 000 tokens."""
CUTS = ((4000, 200), (1000, 50), (300, 20), (100, 10), (30, 5), (10, 2))
"""Longest text and number of elements, tried in this order until the document fits."""


def size_of(document: Any) -> int:
    """The characters of a document as JSON, counted as UTF-8."""
    return len(msgspec.json.encode(document))


def fitted(document: dict[str, Any], whole: str) -> dict[str, Any]:
    """The document, with long texts and lists cut if it is too large. `whole` says where the rest
    is.
    """
    if size_of(document) <= ANSWER_MAX:
        return document
    note = f"Long texts and lists are cut. {whole}"
    for texts, elements in CUTS:
        short = {**_cut(document, texts, elements), "cut": note}
        if size_of(short) <= ANSWER_MAX:
            return short
    # Many short parts in each other.
    text = msgspec.json.encode(document).decode()
    return {"beginning": text[: ANSWER_MAX // 4], "cut": note}


def _cut(value: Any, texts: int, elements: int) -> Any:
    match value:
        case str() if len(value) > texts:
            return f"{value[:texts]}… ({len(value)} characters in all)"
        case list():
            shown = [_cut(one, texts, elements) for one in value[:elements]]
            return [*shown, f"… ({len(value)} in all)"] if len(value) > elements else shown
        case dict():
            kept = {
                name: _cut(one, texts, elements)
                for number, (name, one) in enumerate(value.items())
                if number < max(elements, 30)
            }
            return {**kept, "…": f"{len(value)} in all"} if len(kept) < len(value) else kept
        case _:
            return value


async def page_of(
    api: Api, route: AnyRoute, query: Any, whole: str, **parameters: Any
) -> dict[str, Any]:
    """A page of a list that fits: a shorter one, if the page that was asked for does not."""
    while True:
        page = plain(await api.call(route, query=query, **parameters))
        if size_of(page) <= ANSWER_MAX or query.limit == 1:
            return fitted(page, whole)
        query = replace(query, limit=query.limit // 2)


class Excerpt(msgspec.Struct, frozen=True):
    """A part of a text, and where the next part begins; None after the last one."""

    text: str
    next_offset: int | None


async def excerpt(pieces: AsyncIterator[str], offset: int) -> Excerpt:
    """The part of a text that begins at this character. Pieces after it are not read."""
    position, found, room = 0, list[str](), ANSWER_MAX // 2
    async for piece in pieces:
        begin = max(0, offset - position)
        position += len(piece)
        part = piece[begin : begin + room]
        found.append(part)
        room -= len(part)
        if begin + len(part) < len(piece):
            return Excerpt("".join(found), position - len(piece) + begin + len(part))
    return Excerpt("".join(found), None)
