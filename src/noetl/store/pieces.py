"""Bodies in pieces: what the stores share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from hashlib import sha256

PIECE = 1 << 20


async def gathered(pieces: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The same bytes in pieces of this size; the last one may be smaller."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


async def one_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body


def checked(body: bytes, check: Callable[[str, int], None]) -> bytes:
    """The body, after `check` has seen its checksum and size."""
    check(sha256(body).hexdigest(), len(body))
    return body
