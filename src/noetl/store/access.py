"""Who may come in, and who did what: users, API tokens, sessions, the audit log.

Nothing here is ever on the path of an execution. Secrets are never stored as they are: passwords
as slow hashes, tokens and sessions as digests of what their owner shows.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from noetl.model.ids import ExecutionId

SESSION_SECONDS = 24 * 3600.0
"""So long a session counts after it was last used."""
NAMELESS = "anybody"
"""Who did it, where a server is open or an account has no name."""


class StoredUser(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who signs in with a password."""

    name: str
    password_hash: str
    roles: tuple[str, ...]
    email: str = ""
    display_name: str = ""
    created_at: float = 0.0


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """What a program shows to be let in; `digest` is all we know of it."""

    name: str
    digest: str
    roles: tuple[str, ...]
    pools: tuple[str, ...] = ()
    """Where it may work; everywhere if there are none."""
    created_at: float = 0.0
    expires_at: float | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in that still counts (document 001 §6.3)."""

    session_id: str
    digest: str
    user: str
    created_at: float
    expires_at: float
    last_activity_at: float
    client_ip: str = ""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody did something that we promise to remember."""

    at: float
    who: str
    action: str
    target: str
    execution_id: ExecutionId | None = None
    details: str = ""


class Sessions(Protocol):
    """Where sessions are kept: `tests/store/test_sessions.py` is this as a test suite."""

    async def put(self, session: StoredSession) -> None:
        """Keep a new session. The same one again changes nothing."""

    async def touch(self, session: StoredSession) -> bool:
        """Note that it was active, and until when it counts now; False if it has been ended."""

    async def get(self, digest: str) -> StoredSession | None:
        """By digest, whether it has expired or not."""

    async def of_user(self, user: str) -> list[StoredSession]:
        """Those of a user, newest first."""

    async def delete(self, session_id: str) -> bool:
        """Whether there was one."""


class Access(Protocol):
    """What every store promises about users, API tokens and the audit log."""

    # --- Users ---

    async def put_user(self, user: StoredUser) -> None:
        """Create the user, or replace all but `created_at`. Sessions of the user end."""

    async def user(self, name: str) -> StoredUser | None:
        """By name."""

    async def users(self) -> list[StoredUser]:
        """All, by name."""

    async def delete_user(self, name: str) -> bool:
        """Whether there was one. Sessions of the user end with it."""

    # --- Tokens of programs ---

    async def put_token(self, token: StoredToken) -> bool:
        """Keep a token; False, and nothing is changed, if its name is taken."""

    async def token(self, digest: str) -> StoredToken | None:
        """By digest, whether it has expired or not."""

    async def tokens(self) -> list[StoredToken]:
        """All, by name."""

    async def delete_token(self, name: str) -> bool:
        """Whether there was one."""

    async def delete_expired(self, now: float) -> None:
        """Forget sessions and cached secrets whose time is over."""

    # --- What was looked at ---

    async def put_audit(self, entry: AuditEntry) -> None:
        """Append; nothing here is ever changed or removed."""

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        """The newest entries, newest first."""
