"""Copies of large result bodies in NATS's object store, to relieve the database.

A copy is named by the checksum of the body, so it is never outdated, and every reader verifies it.
Copies are made of bodies that are read, in the background, and expire after an hour.
"""

from __future__ import annotations

import asyncio

import msgspec
from nats.aio.client import Client
from nats.js.api import ObjectMeta, ObjectMetaOptions, ObjectStoreConfig
from nats.js.errors import BucketNotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from noetl.errors import StoreError
from noetl.store.nats.connection import NatsConnection

SIZE_MIN, SIZE_MAX = 256 * 1024, 32 * 1024 * 1024
"""Smaller ones cost the database less than the request; larger ones cost NATS too much."""
KEPT_SECONDS = 3600.0
BUCKET_BYTES_MAX = 1024**3
PIECE_BYTES = 512 * 1024
VERSION_MIN = (2, 11)
"""Since this version, one request returns many chunks."""
TRANSFER_SECONDS = 10.0
WAITING_MAX = 4
"""How many copies may wait to be made; further bodies are not copied."""


class NatsBodies:
    """See `noetl.store.bodies.BodyCopies`."""

    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(WAITING_MAX)
        self.found = 0
        self.missed = 0

    async def get(self, sha256: str, size: int) -> bytes | None:
        if not self._has_copies(size):
            return None
        try:
            async with self._connection.asking(TRANSFER_SECONDS) as client:
                body = await self._read(client, sha256, size)
        except StoreError:
            body = None  # the connection counts what it could not do
        if body is None:
            self.missed += 1
            return None
        self.found += 1
        return body

    def _has_copies(self, size: int) -> bool:
        return SIZE_MIN <= size <= SIZE_MAX and self._connection.is_connected_to(*VERSION_MIN)

    async def _read(self, client: Client, sha256: str, size: int) -> bytes | None:
        try:
            store = await client.jetstream().object_store(self._bucket)
            info = await store.get_info(sha256)
        except (BucketNotFoundError, ObjectNotFoundError):
            return None
        # The size in NATS may be forged; the database has the real one.
        pieces_max = min(info.chunks or 1, -(-size // PIECE_BYTES))
        # All pieces for one question. The library's own way is ten times as slow.
        wanted = {
            "seq": 1,
            "next_by_subj": f"$O.{self._bucket}.C.{info.nuid}",
            "batch": pieces_max,
        }
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        pieces: list[bytes] = []
        left = size
        try:
            stream = f"$JS.API.DIRECT.GET.OBJ_{self._bucket}"
            await client.publish(stream, msgspec.json.encode(wanted), reply=inbox)
            async for message in answers.messages:
                if message.headers is None or "Status" in message.headers:
                    break  # no more of them
                pieces.append(message.data)
                left -= len(message.data)
                if left < 0:
                    return None
                if len(pieces) == pieces_max:
                    break
        finally:
            await answers.unsubscribe()
        return b"".join(pieces)

    def offer(self, sha256: str, body: bytes) -> None:
        if self._has_copies(len(body)):
            try:
                self._waiting.put_nowait((sha256, body))
            except asyncio.QueueFull:
                return  # the next reader offers it again

    async def run(self) -> None:
        """Make the copies that were offered, for ever."""
        while True:
            sha256, body = await self._waiting.get()
            try:
                async with self._connection.asking(TRANSFER_SECONDS) as client:
                    meta = ObjectMeta(options=ObjectMetaOptions(max_chunk_size=PIECE_BYTES))
                    await (await self._opened(client)).put(sha256, body, meta)
            except StoreError:
                continue  # the connection counts what it could not do

    async def _opened(self, client: Client) -> ObjectStore:
        js = client.jetstream()
        try:
            return await js.object_store(self._bucket)
        except BucketNotFoundError:
            config = ObjectStoreConfig(ttl=KEPT_SECONDS, max_bytes=BUCKET_BYTES_MAX)
            return await js.create_object_store(self._bucket, config)
