"""Users, API tokens, sessions, the audit log, credentials and handed-out secrets in SQLite.

The promises are written in `noetl.store.access` and `noetl.store.credentials`.
"""

from __future__ import annotations

import sqlite3

import msgspec

from noetl.store.access import AuditEntry, StoredSession, StoredToken, StoredUser
from noetl.store.credentials import CachedSecret, StoredCredential
from noetl.store.queries import columns_of
from noetl.store.sqlite.database import Database
from noetl.store.sqlite.queries import QUERIES


class SqliteAccess:
    """See `noetl.store.access.Access`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_user(self, user: StoredUser) -> None:
        def put(db: sqlite3.Connection) -> None:
            db.execute(QUERIES["delete_sessions_of"], {"name": user.name})
            db.execute(QUERIES["put_user"], columns_of(user))

        await self._database.write(put)

    async def user(self, name: str) -> StoredUser | None:
        return await self._database.row("user", StoredUser, name=name)

    async def users(self) -> list[StoredUser]:
        return await self._database.rows("users", StoredUser)

    async def delete_user(self, name: str) -> bool:
        def delete(db: sqlite3.Connection) -> bool:
            db.execute(QUERIES["delete_sessions_of"], {"name": name})
            return db.execute(QUERIES["delete_user"], {"name": name}).rowcount > 0

        return await self._database.write(delete)

    async def put_token(self, token: StoredToken) -> bool:
        return await self._database.change("put_token", **columns_of(token))

    async def token(self, digest: str) -> StoredToken | None:
        return await self._database.row("token", StoredToken, digest=digest)

    async def tokens(self) -> list[StoredToken]:
        return await self._database.rows("tokens", StoredToken)

    async def delete_token(self, name: str) -> bool:
        return await self._database.change("delete_token", name=name)

    async def delete_expired(self, now: float) -> None:
        def delete(db: sqlite3.Connection) -> None:
            db.execute(QUERIES["delete_expired_sessions"], {"now": now})
            db.execute(QUERIES["delete_expired_secrets"], {"now": now})

        await self._database.write(delete)

    async def put_audit(self, entry: AuditEntry) -> None:
        row = msgspec.structs.astuple(entry)
        await self._database.write(lambda db: db.execute(QUERIES["put_audit"], row).rowcount)

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        return await self._database.rows("audit", AuditEntry, limit=limit)


class SqliteSessions:
    """See `noetl.store.access.Sessions`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, session: StoredSession) -> None:
        await self._database.change("put_session", **columns_of(session))

    async def touch(self, session: StoredSession) -> bool:
        return await self._database.change("touch_session", **columns_of(session))

    async def get(self, digest: str) -> StoredSession | None:
        return await self._database.row("session", StoredSession, digest=digest)

    async def of_user(self, user: str) -> list[StoredSession]:
        return await self._database.rows("sessions", StoredSession, user=user)

    async def delete(self, session_id: str) -> bool:
        return await self._database.change("delete_session", session_id=session_id)


class SqliteCredentials:
    """See `noetl.store.credentials.Credentials`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, credential: StoredCredential) -> None:
        await self._database.change("put_credential", **columns_of(credential))

    async def get(self, name: str) -> StoredCredential | None:
        return await self._database.row("credential", StoredCredential, name=name)

    async def all(self) -> list[StoredCredential]:
        return await self._database.rows("credentials", StoredCredential)

    async def reseal(self, name: str, *, old: bytes, new: bytes) -> bool:
        return await self._database.change("reseal_credential", name=name, old=old, new=new)

    async def delete(self, name: str) -> bool:
        return await self._database.change("delete_credential", name=name)

    async def put_cached(self, secret: CachedSecret) -> None:
        await self._database.change("put_cached_secret", **columns_of(secret))

    async def cached(self, cache_key: str, *, now: float) -> CachedSecret | None:
        return await self._database.row("cached_secret", CachedSecret, cache_key=cache_key, now=now)

    async def forget_cached(self) -> None:
        await self._database.change("forget_cached_secrets")
