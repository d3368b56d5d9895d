"""Users, tokens, sessions, the audit log and handed-out secrets in SQLite.

What the methods promise is written in `noetl.store.access`. Every row is one struct; lists of
names are the fields that are not plain columns.
"""

from __future__ import annotations

import sqlite3
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from noetl.store.access import AuditEntry, CachedSecret, StoredSession, StoredToken, StoredUser
from noetl.store.queries import read_queries
from noetl.store.sqlite.lanes import Job

T = TypeVar("T")
Row = TypeVar("Row", bound=msgspec.Struct)

QUERIES = read_queries((files(__package__) / "access.sql").read_text(encoding="utf-8"))
LISTS = {"roles", "pools"}
_decode_list = msgspec.json.Decoder(tuple[str, ...]).decode


def _values(row: msgspec.Struct) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    for name in LISTS & values.keys():
        values[name] = msgspec.json.encode(values[name]).decode()
    return values


def _rows(db: sqlite3.Connection, query: str, kind: type[Row], **values: Any) -> list[Row]:
    cursor = db.execute(QUERIES[query], values)
    names = [column[0] for column in cursor.description]
    found = []
    for row in cursor:
        columns = dict(zip(names, row, strict=True))
        for name in LISTS & columns.keys():
            columns[name] = _decode_list(columns[name])
        found.append(kind(**columns))
    return found


def _row(db: sqlite3.Connection, query: str, kind: type[Row], **values: Any) -> Row | None:
    return next(iter(_rows(db, query, kind, **values)), None)


def _changed(db: sqlite3.Connection, query: str, **values: Any) -> bool:
    return db.execute(QUERIES[query], values).rowcount > 0


class AccessMethods:
    """The methods of `AccessStore`, for a store that can read and write."""

    async def _read(self, job: Job[T]) -> T:
        raise AssertionError("the store says how")

    async def _write(self, job: Job[T]) -> T:
        raise AssertionError("the store says how")

    async def put_user(self, user: StoredUser) -> None:
        def put(db: sqlite3.Connection) -> None:
            db.execute(QUERIES["delete_sessions_of"], {"name": user.name})
            db.execute(QUERIES["put_user"], _values(user))

        await self._write(put)

    async def user(self, name: str) -> StoredUser | None:
        return await self._read(lambda db: _row(db, "user", StoredUser, name=name))

    async def users(self) -> list[StoredUser]:
        return await self._read(lambda db: _rows(db, "users", StoredUser))

    async def delete_user(self, name: str) -> bool:
        def delete(db: sqlite3.Connection) -> bool:
            db.execute(QUERIES["delete_sessions_of"], {"name": name})
            return _changed(db, "delete_user", name=name)

        return await self._write(delete)

    async def put_token(self, token: StoredToken) -> bool:
        return await self._write(lambda db: _changed(db, "put_token", **_values(token)))

    async def token(self, digest: str) -> StoredToken | None:
        return await self._read(lambda db: _row(db, "token", StoredToken, digest=digest))

    async def tokens(self) -> list[StoredToken]:
        return await self._read(lambda db: _rows(db, "tokens", StoredToken))

    async def delete_token(self, name: str) -> bool:
        return await self._write(lambda db: _changed(db, "delete_token", name=name))

    async def put_session(self, session: StoredSession) -> None:
        await self._write(lambda db: _changed(db, "put_session", **_values(session)))

    async def touch_session(self, session: StoredSession) -> bool:
        return await self._write(lambda db: _changed(db, "touch_session", **_values(session)))

    async def session(self, digest: str) -> StoredSession | None:
        return await self._read(lambda db: _row(db, "session", StoredSession, digest=digest))

    async def sessions(self, user: str) -> list[StoredSession]:
        return await self._read(lambda db: _rows(db, "sessions", StoredSession, user=user))

    async def delete_session(self, session_id: str) -> bool:
        return await self._write(lambda db: _changed(db, "delete_session", session_id=session_id))

    async def delete_expired(self, now: float) -> None:
        def delete(db: sqlite3.Connection) -> None:
            db.execute(QUERIES["delete_expired_sessions"], {"now": now})
            db.execute(QUERIES["delete_expired_secrets"], {"now": now})

        await self._write(delete)

    async def put_audit(self, entry: AuditEntry) -> None:
        row = msgspec.structs.astuple(entry)
        await self._write(lambda db: db.execute(QUERIES["put_audit"], row).rowcount)

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        return await self._read(lambda db: _rows(db, "audit", AuditEntry, limit=limit))

    async def put_cached_secret(self, secret: CachedSecret) -> None:
        await self._write(lambda db: _changed(db, "put_cached_secret", **_values(secret)))

    async def forget_cached_secrets(self) -> None:
        await self._write(lambda db: _changed(db, "forget_cached_secrets"))

    async def cached_secret(self, cache_key: str, *, now: float) -> CachedSecret | None:
        return await self._read(
            lambda db: _row(db, "cached_secret", CachedSecret, cache_key=cache_key, now=now)
        )
