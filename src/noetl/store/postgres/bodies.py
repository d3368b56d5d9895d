"""Result bodies in PostgreSQL, as rows. The protocol is `noetl.store.bodies`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

from noetl.errors import TooLarge
from noetl.model.ids import ExecutionId
from noetl.store.bodies import PIECE, BodyCopies, Pieces, checked, one_piece
from noetl.store.checksums import damaged_result, verified_result
from noetl.store.postgres.database import PostgresDatabase

BODY_MAX = 256 << 20
"""Larger results would take several times their size of memory on both sides."""
COPIED_MAX = 32 * 1024 * 1024
"""Larger bodies have no copies in NATS."""


class PostgresBodies:
    """See `noetl.store.bodies.Bodies`."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self.copies: BodyCopies | None = None

    async def put(self, execution_id: ExecutionId, key: str, body: bytes) -> str:
        await self._database.change("put_result", **result_row(execution_id, key, body))
        [(checksum, _)] = await self._database.tuples(
            "result_checksum", execution_id=execution_id, key=key
        )
        return str(checksum)

    async def put_pieces(
        self,
        execution_id: ExecutionId,
        key: str,
        pieces: AsyncIterator[bytes],
        check: Callable[[str, int], None],
    ) -> str:
        # A row is sent as a whole, so here the body is in memory once.
        body = bytearray()
        async for piece in pieces:
            body += piece
            allow_size(execution_id, key, len(body))
        return await self.put(execution_id, key, checked(bytes(body), check))

    async def get_pieces(self, execution_id: ExecutionId, key: str) -> Pieces | None:
        chosen = {"execution_id": execution_id, "key": key}
        found = await self._database.tuples("result_checksum", **chosen)
        if not found:
            return None
        [(_, size)] = found
        if size <= (PIECE if self.copies is None else COPIED_MAX):
            body = await self.get(execution_id, key)
            # It may just have been removed with its execution.
            return None if body is None else Pieces(size, one_piece(body))
        await self.verify(execution_id, key)
        return Pieces(size, self._read_on(chosen, size))

    async def verify(self, execution_id: ExecutionId, key: str) -> None:
        found = await self._database.tuples("result_is_whole", execution_id=execution_id, key=key)
        for digest, is_whole in found:
            if not is_whole:
                raise damaged_result(execution_id, key, digest)

    async def _read_on(self, chosen: dict[str, str], size: int) -> AsyncIterator[bytes]:
        for first in range(0, size, PIECE):
            [piece] = await self._database.column(
                "result_piece", **chosen, first=first + 1, count=PIECE
            )
            yield piece

    async def get(self, execution_id: ExecutionId, key: str) -> bytes | None:
        chosen = {"execution_id": execution_id, "key": key}
        if self.copies is not None:
            for digest, size in await self._database.tuples("result_checksum", **chosen):
                copy = await self.copies.get(digest, size)
                if copy is not None and sha256(copy).hexdigest() == digest:
                    return copy
        for digest, _, stored in await self._database.tuples("result", **chosen):
            body = verified_result(stored, digest, execution_id, key)
            if self.copies is not None:
                self.copies.offer(digest, body)
            return body
        return None


def allow_size(execution_id: ExecutionId, key: str, size: int) -> None:
    if size > BODY_MAX:
        raise TooLarge(
            f"Result {key!r} of execution {execution_id} has {size:,} bytes or more, and PostgreSQL"
            f" keeps up to {BODY_MAX:,} here. Nothing was kept. Write it to a file or an object"
            " store in the task, and return where it is."
        )


def result_row(execution_id: ExecutionId, key: str, body: bytes) -> dict[str, Any]:
    allow_size(execution_id, key, len(body))
    digest = sha256(body).hexdigest()
    values = {"execution_id": execution_id, "key": key}
    return values | {"sha256": digest, "size": len(body), "body": body}
