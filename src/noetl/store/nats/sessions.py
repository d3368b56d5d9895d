"""Copies of sessions in a key-value bucket of NATS, for programs beside the servers (a gateway).

A copy is one key, `<user>.<session id>.<digest>`, so that readers find it by each of the three.
NATS deletes a key a session's lifetime after it was last written: writing it again extends it.

No server reads them: a signature proves who wrote a copy, but not that the session has not ended
since. The database decides who is signed in.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import msgspec
from nats.js.api import KeyValueConfig
from nats.js.errors import BucketNotFoundError
from nats.js.kv import KeyValue

from noetl.errors import StoreError
from noetl.store.access import SESSION_SECONDS, StoredSession, StoredUser
from noetl.store.nats.connection import NatsConnection
from noetl.store.nats.seal import Seal

About = Callable[[str], Awaitable[StoredUser | None]]
"""Looks up a user."""


class SessionCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The value in NATS: the session, and the digest of its secret."""

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


class NatsSessions:
    """Copies of the sessions in the database. While NATS is away, none are made."""

    def __init__(
        self,
        connection: NatsConnection,
        bucket: str,
        seal: Seal,
        about: About,
        *,
        seconds: float = SESSION_SECONDS,
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._seal = seal
        self._about = about
        self._seconds = seconds

    async def put(self, session: StoredSession) -> None:
        """Copy a session that is new, or was used."""
        with suppress(StoreError):  # the connection counts what it could not do
            user = await self._about(session.user)
            copy = SessionCopy(
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
            async with self._opened() as kv:
                await kv.put(_key(session), self._seal.closed(msgspec.json.encode(copy)))

    async def delete(self, session: StoredSession) -> None:
        """The session has ended."""
        with suppress(StoreError):
            async with self._opened() as kv:
                await kv.delete(_key(session))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[KeyValue]:
        """The bucket, created if it is missing, also after NATS has lost everything."""
        async with self._connection.asking() as client:
            js = client.jetstream()
            try:
                kv = await js.key_value(self._bucket)
            except BucketNotFoundError:
                config = KeyValueConfig(bucket=self._bucket, ttl=self._seconds)
                kv = await js.create_key_value(config)
            yield kv


def _key(session: StoredSession) -> str:
    # The name of a user is one part of the key, and may contain the separator.
    user = base64.urlsafe_b64encode(session.user.encode()).decode().rstrip("=")
    return f"{user}.{session.session_id}.{session.digest}"
