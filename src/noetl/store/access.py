"""Users, API tokens, sessions, and the audit log.

Nothing here is on the path of an execution. Secrets are never stored in plain form: passwords as
slow hashes, tokens and sessions as digests.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from noetl.model.ids import ExecutionId

SESSION_SECONDS = 24 * 3600.0
"""How long a session is valid after its last use."""
NAMELESS = "anybody"
"""The actor's name if the server is open or the account has no name."""


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
    """A valid session (document 001 §6.3)."""

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


class Sessions(Protocol):
    """The storage of sessions. `tests/store/test_sessions.py` is its test suite."""

    async def put(self, session: StoredSession) -> None:
        """Store a new session. Storing it again changes nothing."""

    async def touch(self, session: StoredSession) -> bool:
        """Record its activity and its new expiry. Returns False if it has been ended."""

    async def get(self, digest: str) -> StoredSession | None:
        """By digest, expired or not."""

    async def of_user(self, user: str) -> list[StoredSession]:
        """The sessions of a user, newest first."""

    async def delete(self, session_id: str) -> bool:
        """Delete it. Returns whether it existed."""


class Access(Protocol):
    """What every store promises about users, API tokens and the audit log."""

    # --- Users ---

    async def put_user(self, user: StoredUser) -> None:
        """Create the user, or replace everything but `created_at`. Ends the user's sessions."""

    async def user(self, name: str) -> StoredUser | None:
        """By name."""

    async def users(self) -> list[StoredUser]:
        """All, by name."""

    async def delete_user(self, name: str) -> bool:
        """Delete the user and end their sessions. Returns whether there was one."""

    # --- API tokens ---

    async def put_token(self, token: StoredToken) -> bool:
        """Store a token. Returns False, and changes nothing, if its name is taken."""

    async def token(self, digest: str) -> StoredToken | None:
        """By digest, expired or not."""

    async def tokens(self) -> list[StoredToken]:
        """All, by name."""

    async def delete_token(self, name: str) -> bool:
        """Delete it. Returns whether it existed."""

    async def delete_expired(self, now: float) -> None:
        """Delete expired sessions and cached secrets."""

    # --- The audit log ---

    async def put_audit(self, entry: AuditEntry) -> None:
        """Append an entry; entries are never changed or removed."""

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        """The newest entries, newest first."""
