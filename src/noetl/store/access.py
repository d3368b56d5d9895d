"""Users, API tokens, sessions, and the audit log.

Nothing here is on the path of an execution. Secrets are never stored in plain form: passwords as
slow hashes, tokens and sessions as digests.
"""

from __future__ import annotations

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.database import Database, Transaction, columns_of

SESSION_SECONDS = 24 * 3600.0
"""How long a session is valid after its last use."""
POSITION_MAX = 2**62


class StoredUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user, who signs in with a password."""

    name: str
    password_hash: str
    roles: tuple[str, ...]
    email: str = ""
    display_name: str = ""
    created_at: float = 0.0


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """An API token; only its `digest` is known."""

    name: str
    digest: str
    roles: tuple[str, ...]
    pools: tuple[str, ...] = ()
    """The pools it may work for; every pool if empty."""
    created_at: float = 0.0
    expires_at: float | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A valid session."""

    session_id: str
    digest: str
    user: str
    created_at: float
    expires_at: float
    last_activity_at: float
    client_ip: str = ""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit log."""

    at: float
    who: str
    action: str
    target: str
    execution_id: ExecutionId | None = None
    details: str = ""


class AuditRow(AuditEntry, frozen=True, kw_only=True):
    """An entry as it is stored."""

    position: int
    """Entries that were written later have greater ones."""


class Sessions:
    """Who is signed in."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, session: StoredSession) -> None:
        """Store a new session. Storing it again changes nothing."""
        await self._database.change("put_session", **columns_of(session))

    async def touch(self, session: StoredSession) -> bool:
        """Record its activity and its new expiry. Returns False if it has been ended."""
        return await self._database.change("touch_session", **columns_of(session)) > 0

    async def get(self, digest: str) -> StoredSession | None:
        """By digest, expired or not."""
        return await self._database.row("session", StoredSession, digest=digest)

    async def of_user(self, user: str) -> list[StoredSession]:
        """The sessions of a user, newest first."""
        return await self._database.rows("sessions", StoredSession, user=user)

    async def delete(self, session_id: str) -> bool:
        """Delete it. Returns whether it existed."""
        return await self._database.change("delete_session", session_id=session_id) > 0


class Access:
    """Users, API tokens and the audit log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- Users ---

    async def put_user(self, user: StoredUser) -> None:
        """Create the user, or replace everything but `created_at`. Ends the user's sessions."""

        async def put(db: Transaction) -> None:
            await db.change("delete_sessions_of", name=user.name)
            await db.change("put_user", **columns_of(user))

        await self._database.together(put)

    async def user(self, name: str) -> StoredUser | None:
        """By name."""
        return await self._database.row("user", StoredUser, name=name)

    async def users(self) -> list[StoredUser]:
        """All, by name."""
        return await self._database.rows("users", StoredUser)

    async def delete_user(self, name: str) -> bool:
        """Delete the user and end their sessions. Returns whether there was one."""

        async def delete(db: Transaction) -> bool:
            await db.change("delete_sessions_of", name=name)
            return await db.change("delete_user", name=name) > 0

        return await self._database.together(delete)

    # --- API tokens ---

    async def put_token(self, token: StoredToken) -> bool:
        """Store a token. Returns False, and changes nothing, if its name is taken."""
        return await self._database.change("put_token", **columns_of(token)) > 0

    async def token(self, digest: str) -> StoredToken | None:
        """By digest, expired or not."""
        return await self._database.row("token", StoredToken, digest=digest)

    async def tokens(self) -> list[StoredToken]:
        """All, by name."""
        return await self._database.rows("tokens", StoredToken)

    async def delete_token(self, name: str) -> bool:
        """Delete it. Returns whether it existed."""
        return await self._database.change("delete_token", name=name) > 0

    async def delete_expired(self, now: float) -> None:
        """Delete expired sessions and cached secrets."""

        async def delete(db: Transaction) -> None:
            await db.change("delete_expired_sessions", now=now)
            await db.change("delete_expired_secrets", now=now)

        await self._database.together(delete)

    # --- The audit log ---

    async def put_audit(self, entry: AuditEntry) -> None:
        """Append an entry; entries are never changed or removed."""
        await self._database.change("put_audit", **columns_of(entry))

    async def audit(self, *, limit: int = 100, before: int | None = None) -> list[AuditRow]:
        """The newest entries, or those before that position, newest first."""
        end = POSITION_MAX if before is None else before
        return await self._database.rows("audit", AuditRow, limit=limit, before=end)
