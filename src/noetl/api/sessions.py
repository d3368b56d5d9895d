"""Sessions of signed-in users: they expire, and using them extends them.

A browser holds a random secret, and the store holds its digest. With NATS each valid session has a
copy there, which other programs read; servers go by the database.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

import msgspec

from noetl.control.clock import Clock
from noetl.control.identity import new_id
from noetl.store.access import SESSION_SECONDS, StoredSession
from noetl.store.access import Sessions as SessionStore

if TYPE_CHECKING:
    from noetl.store.nats.sessions import NatsSessions

COOKIE = "noetl_session"
"""The cookie that holds the session's secret."""
SESSION_PREFIX = "noetl_s_"
TOUCH_SECONDS = 60.0
"""Activity is written at most this often, so that reading does not mean writing."""


def digest_of(secret: str) -> str:
    """A digest is enough to recognise a secret that was generated at random."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Sessions:
    """The sessions of signed-in users."""

    def __init__(
        self, store: SessionStore, clock: Clock, copies: NatsSessions | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._copies = copies

    async def create(self, user: str, client_ip: str) -> tuple[str, StoredSession]:
        """A new session, and the secret for its owner."""
        now = self._clock.now()
        secret = SESSION_PREFIX + secrets.token_urlsafe(32)
        session = StoredSession(
            session_id=new_id(now),
            digest=digest_of(secret),
            user=user,
            created_at=now,
            expires_at=now + SESSION_SECONDS,
            last_activity_at=now,
            client_ip=client_ip,
        )
        await self._store.put(session)
        if self._copies is not None:
            await self._copies.put(session)
        return secret, session

    async def validate(self, secret: str) -> StoredSession | None:
        """The session of this secret, unless it has expired; using it extends it."""
        now = self._clock.now()
        session = await self._store.get(digest_of(secret))
        if session is None or session.expires_at <= now:
            return None
        if now - session.last_activity_at >= TOUCH_SECONDS:
            session = msgspec.structs.replace(
                session, expires_at=now + SESSION_SECONDS, last_activity_at=now
            )
            is_valid = await self._store.touch(session)
            if self._copies is not None:
                await (self._copies.put if is_valid else self._copies.delete)(session)
            return session if is_valid else None
        return session

    async def of(self, user: str) -> list[StoredSession]:
        """The valid sessions of a user, newest first."""
        now = self._clock.now()
        return [found for found in await self._store.of_user(user) if found.expires_at > now]

    async def end(self, session: StoredSession) -> bool:
        """End a session. Returns whether it was still there."""
        was_there = await self._store.delete(session.session_id)
        if self._copies is not None:
            await self._copies.delete(session)
        return was_there
