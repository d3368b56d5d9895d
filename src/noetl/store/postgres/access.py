"""Users, tokens, sessions, the audit log and handed-out secrets in PostgreSQL.

What the methods promise is written in `noetl.store.access`. Every row is one struct; lists of
names are the fields that are not plain columns.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from noetl.store.access import AuditEntry, CachedSecret, StoredSession, StoredToken, StoredUser
from noetl.store.postgres.connections import Connection, Database, change

Row = TypeVar("Row", bound=msgspec.Struct)

LISTS = {"roles", "pools"}
_decode_list = msgspec.json.Decoder(tuple[str, ...]).decode


def _values(row: msgspec.Struct) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    for name in LISTS & values.keys():
        values[name] = msgspec.json.encode(values[name]).decode()
    return values


class AccessMethods:
    """The methods of `AccessStore`, for a store with a database."""

    _database: Database

    async def _rows(self, query: str, kind: type[Row], **values: Any) -> list[Row]:
        found = []
        for row in await self._database.all(query, values):
            for name in LISTS & row.keys():
                row[name] = _decode_list(row[name])
            found.append(kind(**row))
        return found

    async def _row(self, query: str, kind: type[Row], **values: Any) -> Row | None:
        return next(iter(await self._rows(query, kind, **values)), None)

    async def put_user(self, user: StoredUser) -> None:
        async def put(db: Connection) -> None:
            await change(db, "delete_sessions_of", {"name": user.name})
            await change(db, "put_user", _values(user))

        await self._database.together(put)

    async def user(self, name: str) -> StoredUser | None:
        return await self._row("user", StoredUser, name=name)

    async def users(self) -> list[StoredUser]:
        return await self._rows("users", StoredUser)

    async def delete_user(self, name: str) -> bool:
        async def delete(db: Connection) -> bool:
            await change(db, "delete_sessions_of", {"name": name})
            return await change(db, "delete_user", {"name": name}) > 0

        return await self._database.together(delete)

    async def put_token(self, token: StoredToken) -> bool:
        return await self._database.change("put_token", _values(token)) > 0

    async def token(self, digest: str) -> StoredToken | None:
        return await self._row("token", StoredToken, digest=digest)

    async def tokens(self) -> list[StoredToken]:
        return await self._rows("tokens", StoredToken)

    async def delete_token(self, name: str) -> bool:
        return await self._database.change("delete_token", {"name": name}) > 0

    async def put_session(self, session: StoredSession) -> None:
        await self._database.change("put_session", _values(session))

    async def touch_session(self, session: StoredSession) -> bool:
        return await self._database.change("touch_session", _values(session)) > 0

    async def session(self, digest: str) -> StoredSession | None:
        return await self._row("session", StoredSession, digest=digest)

    async def sessions(self, user: str) -> list[StoredSession]:
        return await self._rows("sessions", StoredSession, user=user)

    async def delete_session(self, session_id: str) -> bool:
        return await self._database.change("delete_session", {"session_id": session_id}) > 0

    async def delete_expired(self, now: float) -> None:
        async def delete(db: Connection) -> None:
            await change(db, "delete_expired_sessions", {"now": now})
            await change(db, "delete_expired_secrets", {"now": now})

        await self._database.together(delete)

    async def put_audit(self, entry: AuditEntry) -> None:
        await self._database.change("put_audit", _values(entry))

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        return await self._rows("audit", AuditEntry, limit=limit)

    async def put_cached_secret(self, secret: CachedSecret) -> None:
        await self._database.change("put_cached_secret", _values(secret))

    async def forget_cached_secrets(self) -> None:
        await self._database.change("forget_cached_secrets", {})

    async def cached_secret(self, cache_key: str, *, now: float) -> CachedSecret | None:
        return await self._row("cached_secret", CachedSecret, cache_key=cache_key, now=now)
