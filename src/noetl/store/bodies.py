"""Result bodies stored by reference, whole or in chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import NamedTuple, Protocol

from noetl.model.ids import ExecutionId

PIECE = 1 << 20


class Pieces(NamedTuple):
    """A body that is read on demand."""

    size: int
    pieces: AsyncIterator[bytes]


class BodyCopies(Protocol):
    """Copies of large bodies that relieve the database. Any of them may be missing."""

    async def get(self, sha256: str, size: int) -> bytes | None:
        """The copy of the body with this checksum, perhaps damaged; None if there is none."""

    def offer(self, sha256: str, body: bytes) -> None:
        """This body was read: a copy may be made of it."""


class Bodies(Protocol):
    """What every store promises about bodies."""

    copies: BodyCopies | None
    """Where large bodies are looked up before the database, if anywhere."""

    async def put(self, execution_id: ExecutionId, key: str, body: bytes) -> str:
        """Store a body. Returns its checksum (sha256, hex). The same key again changes nothing."""

    async def put_pieces(
        self,
        execution_id: ExecutionId,
        key: str,
        pieces: AsyncIterator[bytes],
        check: Callable[[str, int], None],
    ) -> str:
        """Like `put`, for a body that arrives in chunks, so that it need not be in memory.

        `check` receives the checksum and size, and raises to reject the body. Then, or if `pieces`
        raises, nothing is stored.
        """

    async def get(self, execution_id: ExecutionId, key: str) -> bytes | None:
        """The body, verified against its checksum. Raises Corrupted if it does not match."""

    async def verify(self, execution_id: ExecutionId, key: str) -> None:
        """Raise Corrupted if the body in the database does not match its checksum."""

    async def get_pieces(self, execution_id: ExecutionId, key: str) -> Pieces | None:
        """Like `get`, in chunks. It is verified before the first one is yielded."""


async def gathered(pieces: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The same bytes in chunks of this size; the last one may be smaller."""
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
    """The body, after `check` has accepted its checksum and size."""
    check(sha256(body).hexdigest(), len(body))
    return body
