"""Sessions in a key-value bucket of NATS (document 001 §6), also as copies of the database's.

A session is one key, `<user>.<session id>.<digest>`, so that it can be found by each of the three.
NATS deletes a key a session's lifetime after it was last written: writing it again extends it.

Copies are for programs beside the servers, such as a gateway. A server admits no one because of a
copy: a signature proves who wrote it, but not that the session has not ended since.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, KeyValueConfig, RawStreamMsg
from nats.js.errors import BucketNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from noetl.errors import StoreError
from noetl.store.access import SESSION_SECONDS, Sessions, StoredSession, StoredUser
from noetl.store.nats.connection import NatsConnection
from noetl.store.nats.seal import Seal

FETCHED_MAX = 200
_WORD = re.compile(r"[A-Za-z0-9_-]+")
About = Callable[[str], Awaitable[StoredUser | None]]
"""Looks up a user."""


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """The value in NATS: the fields of document 001 §6.3, for other readers.

    Servers do not use what it says about the user; they ask the database.
    """

    session_id: str
    user_id: str
    email: str
    display_name: str
    roles: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    last_activity_at: datetime
    client_ip: str
    digest: str
    """The digest of the session's secret."""


_decode = msgspec.json.Decoder(_Value).decode


async def _nobody(_: str) -> StoredUser | None:
    return None


class NatsSessions:
    """See `noetl.store.access.Sessions`."""

    def __init__(
        self,
        connection: NatsConnection,
        bucket: str,
        seal: Seal,
        about: About = _nobody,
        *,
        seconds: float = SESSION_SECONDS,
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._seal = seal
        self._about = about
        self._seconds = seconds

    async def put(self, session: StoredSession) -> None:
        async with self._opened() as (_, kv):
            await kv.put(_key(session), await self._written(session))

    async def touch(self, session: StoredSession) -> bool:
        async with self._opened() as (js, kv):
            found = await self._last(js, f"*.*.{session.digest}")
            if found is None:
                return False
            try:
                await kv.update(_key(session), await self._written(session), last=found.seq)
            except KeyWrongLastSequenceError:
                # A concurrent write: it ended the session, or recorded the same.
                return await self._last(js, f"*.*.{session.digest}") is not None
            return True

    async def get(self, digest: str) -> StoredSession | None:
        async with self._opened() as (js, _):
            found = await self._last(js, f"*.*.{digest}")
        copy = self._read(found.data) if found is not None else None
        return copy if copy is not None and copy.digest == digest else None

    async def of_user(self, user: str) -> list[StoredSession]:
        async with self._opened() as (js, _):
            values = await self._latest(js, f"{_word(user)}.*.*")
        found = [one for one in map(self._read, values) if one is not None and one.user == user]
        return sorted(found, key=lambda one: (one.created_at, one.session_id), reverse=True)

    async def delete(self, session_id: str) -> bool:
        if not _WORD.fullmatch(session_id):
            return False
        async with self._opened() as (js, kv):
            found = await self._last(js, f"*.{session_id}.*")
            if found is None or found.subject is None:
                return False
            await kv.delete(found.subject.removeprefix(f"$KV.{self._bucket}."))
            return True

    async def _written(self, session: StoredSession) -> bytes:
        user = await self._about(session.user)
        value = _Value(
            session_id=session.session_id,
            user_id=session.user,
            email=user.email if user is not None else "",
            display_name=user.display_name if user is not None else "",
            roles=user.roles if user is not None else (),
            created_at=datetime.fromtimestamp(session.created_at, UTC),
            expires_at=datetime.fromtimestamp(session.expires_at, UTC),
            last_activity_at=datetime.fromtimestamp(session.last_activity_at, UTC),
            client_ip=session.client_ip,
            digest=session.digest,
        )
        return self._seal.closed(msgspec.json.encode(value))

    def _read(self, value: bytes | None) -> StoredSession | None:
        """A value of another version or origin counts as absent."""
        body = self._seal.opened(value or b"")
        try:
            return _session(_decode(body)) if body is not None else None
        except msgspec.DecodeError:
            return None

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[JetStreamContext, KeyValue]]:
        """The bucket, created if it is missing, also after NATS has lost everything."""
        async with self._connection.asking() as client:
            js = client.jetstream()
            try:
                kv = await js.key_value(self._bucket)
            except BucketNotFoundError:
                config = KeyValueConfig(bucket=self._bucket, ttl=self._seconds)
                kv = await js.create_key_value(config)
            yield js, kv

    async def _latest(self, js: JetStreamContext, pattern: str) -> list[bytes]:
        """The value of every matching key. The library's own way, a watcher, may end before it
        begins.
        """
        stream = f"KV_{self._bucket}"
        newest = ConsumerConfig(
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, ack_policy=AckPolicy.NONE
        )
        answers = await js.pull_subscribe(
            f"$KV.{self._bucket}.{pattern}", stream=stream, config=newest
        )
        about = await answers.consumer_info()
        found: list[Msg] = []
        while left := (about.num_pending or 0) - len(found):
            found += await answers.fetch(min(left, FETCHED_MAX))
        await js.delete_consumer(stream, about.name)
        return [one.data for one in found if "KV-Operation" not in (one.headers or {})]

    async def _last(self, js: JetStreamContext, pattern: str) -> RawStreamMsg | None:
        """The newest value with a matching key; None if there is none, or it was deleted."""
        try:
            found = await js.get_last_msg(f"KV_{self._bucket}", f"$KV.{self._bucket}.{pattern}")
        except NotFoundError:
            return None
        return None if found.headers and "KV-Operation" in found.headers else found


def _session(value: _Value) -> StoredSession:
    return StoredSession(
        session_id=value.session_id,
        digest=value.digest,
        user=value.user_id,
        created_at=value.created_at.timestamp(),
        expires_at=value.expires_at.timestamp(),
        last_activity_at=value.last_activity_at.timestamp(),
        client_ip=value.client_ip,
    )


def _word(user: str) -> str:
    """The name of a user as one part of a key: names may contain the separator."""
    return base64.urlsafe_b64encode(user.encode()).decode().rstrip("=")


def _key(session: StoredSession) -> str:
    return f"{_word(session.user)}.{session.session_id}.{session.digest}"


class CopiedSessions:
    """Sessions in the database, each with a copy in NATS while it is valid. The database
    answers.
    """

    def __init__(self, copies: Sessions, database: Sessions) -> None:
        self._copies = copies
        self._database = database

    async def put(self, session: StoredSession) -> None:
        await self._database.put(session)
        await self._copy(session)

    async def touch(self, session: StoredSession) -> bool:
        if await self._database.touch(session):
            await self._copy(session)
            return True
        await self._forget(session.session_id)
        return False

    async def get(self, digest: str) -> StoredSession | None:
        return await self._database.get(digest)

    async def of_user(self, user: str) -> list[StoredSession]:
        return await self._database.of_user(user)

    async def delete(self, session_id: str) -> bool:
        known = await self._database.delete(session_id)
        await self._forget(session_id)
        return known

    async def _copy(self, session: StoredSession) -> None:
        try:
            await self._copies.put(session)
        except StoreError:
            return  # the connection counts what it could not do

    async def _forget(self, session_id: str) -> None:
        try:
            await self._copies.delete(session_id)
        except StoreError:
            return  # the connection counts what it could not do
