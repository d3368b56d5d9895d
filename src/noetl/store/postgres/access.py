"""Users, API tokens, sessions, the audit log, credentials and handed-out secrets in PostgreSQL.

The promises are written in `noetl.store.access` and `noetl.store.credentials`.
"""

from __future__ import annotations

from noetl.store.access import AuditEntry, StoredSession, StoredToken, StoredUser
from noetl.store.credentials import CachedSecret, StoredCredential
from noetl.store.postgres.database import Connection, Database, change
from noetl.store.queries import columns_of


class PostgresAccess:
    """See `noetl.store.access.Access`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_user(self, user: StoredUser) -> None:
        async def put(db: Connection) -> None:
            await change(db, "delete_sessions_of", {"name": user.name})
            await change(db, "put_user", columns_of(user))

        await self._database.together(put)

    async def user(self, name: str) -> StoredUser | None:
        return await self._database.row("user", StoredUser, {"name": name})

    async def users(self) -> list[StoredUser]:
        return await self._database.rows("users", StoredUser)

    async def delete_user(self, name: str) -> bool:
        async def delete(db: Connection) -> bool:
            await change(db, "delete_sessions_of", {"name": name})
            return await change(db, "delete_user", {"name": name}) > 0

        return await self._database.together(delete)

    async def put_token(self, token: StoredToken) -> bool:
        return await self._database.change("put_token", columns_of(token)) > 0

    async def token(self, digest: str) -> StoredToken | None:
        return await self._database.row("token", StoredToken, {"digest": digest})

    async def tokens(self) -> list[StoredToken]:
        return await self._database.rows("tokens", StoredToken)

    async def delete_token(self, name: str) -> bool:
        return await self._database.change("delete_token", {"name": name}) > 0

    async def delete_expired(self, now: float) -> None:
        async def delete(db: Connection) -> None:
            await change(db, "delete_expired_sessions", {"now": now})
            await change(db, "delete_expired_secrets", {"now": now})

        await self._database.together(delete)

    async def put_audit(self, entry: AuditEntry) -> None:
        await self._database.change("put_audit", columns_of(entry))

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        return await self._database.rows("audit", AuditEntry, {"limit": limit})


class PostgresSessions:
    """See `noetl.store.access.Sessions`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, session: StoredSession) -> None:
        await self._database.change("put_session", columns_of(session))

    async def touch(self, session: StoredSession) -> bool:
        return await self._database.change("touch_session", columns_of(session)) > 0

    async def get(self, digest: str) -> StoredSession | None:
        return await self._database.row("session", StoredSession, {"digest": digest})

    async def of_user(self, user: str) -> list[StoredSession]:
        return await self._database.rows("sessions", StoredSession, {"user": user})

    async def delete(self, session_id: str) -> bool:
        return await self._database.change("delete_session", {"session_id": session_id}) > 0


class PostgresCredentials:
    """See `noetl.store.credentials.Credentials`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, credential: StoredCredential) -> None:
        await self._database.change("put_credential", columns_of(credential))

    async def get(self, name: str) -> StoredCredential | None:
        return await self._database.row("credential", StoredCredential, {"name": name})

    async def all(self) -> list[StoredCredential]:
        return await self._database.rows("credentials", StoredCredential)

    async def reseal(self, name: str, *, old: bytes, new: bytes) -> bool:
        values = {"name": name, "old": old, "new": new}
        return await self._database.change("reseal_credential", values) > 0

    async def delete(self, name: str) -> bool:
        return await self._database.change("delete_credential", {"name": name}) > 0

    async def put_cached(self, secret: CachedSecret) -> None:
        await self._database.change("put_cached_secret", columns_of(secret))

    async def cached(self, cache_key: str, *, now: float) -> CachedSecret | None:
        chosen = {"cache_key": cache_key, "now": now}
        return await self._database.row("cached_secret", CachedSecret, chosen)

    async def forget_cached(self) -> None:
        await self._database.change("forget_cached_secrets")
