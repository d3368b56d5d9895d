"""Users and tokens: who somebody is, by what they show.

While there are none, the server is open to whoever can reach it, and only this machine may: see
`serving.server`. The first user or token closes it, at once.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from noetl.control.clock import Clock
from noetl.errors import BadRequest, Conflict, NotFound, TooMany, Unauthenticated
from noetl.server.rights import NOBODY, OPEN, ROLES, Principal
from noetl.server.sessions import SESSION_PREFIX, Sessions, digest_of
from noetl.store.access import AccessStore, AuditEntry, StoredSession, StoredToken, StoredUser

TOKEN_PREFIX = "noetl_t_"  # noqa: S105  what tokens begin with, so that scanners find leaked ones
PASSWORD_MIN = 8
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
FAILURES_MAX = 5
FAILURES_SECONDS = 60.0
NAMES_WATCHED_MAX = 10_000
KNOWN_SECONDS = 2.0
"""So long after a token is revoked on one server, another may still take it."""


class Access:
    """Who may come in."""

    def __init__(self, store: AccessStore, sessions: Sessions, clock: Clock) -> None:
        self._store = self.store = store
        self._sessions = sessions
        self._clock = clock
        self._hasher = PasswordHasher()
        self._failures: dict[str, deque[float]] = {}
        self._closed = False
        self._looked_at = 0.0
        self._known: dict[str, tuple[float, Principal]] = {}
        """Those who came in lately, by what they showed: not every request asks the database."""

    async def is_open(self) -> bool:
        """Whether nobody is configured yet. Once closed, this server stays so."""
        now = self._clock.now()
        if not self._closed and abs(now - self._looked_at) >= KNOWN_SECONDS:
            self._looked_at = now
            self._closed = bool(await self._store.users() or await self._store.tokens())
        return not self._closed

    def _look_again(self) -> None:
        """Somebody may come in, or no longer: this server knows at once, others soon."""
        self._looked_at = 0.0
        self._known.clear()

    async def who(self, secret: str | None) -> Principal:
        """Whoever shows this; NOBODY for what we do not know."""
        if await self.is_open():
            return OPEN
        if not secret:
            return NOBODY
        digest, now = digest_of(secret), self._clock.now()
        known = self._known.get(digest)
        if known is not None and 0 <= now - known[0] < KNOWN_SECONDS:
            return known[1]
        principal = await self._look_up(secret, digest)
        if principal is not NOBODY:
            if len(self._known) >= NAMES_WATCHED_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[digest] = (now, principal)
        return principal

    async def _look_up(self, secret: str, digest: str) -> Principal:
        if secret.startswith(SESSION_PREFIX):
            session = await self._sessions.validate(secret)
            user = await self._store.user(session.user) if session is not None else None
            return NOBODY if session is None or user is None else _principal(user, session)
        token = await self._store.token(digest)
        if token is None or (
            token.expires_at is not None and token.expires_at <= self._clock.now()
        ):
            return NOBODY
        return Principal(name=token.name, kind="token", roles=token.roles)

    # --- Signing in ---

    async def sign_in(
        self, name: str, password: str, client_ip: str
    ) -> tuple[str, StoredSession, Principal]:
        """A session for this user; raises Unauthenticated, or TooMany after too many failures."""
        self._refuse_guessing(name)
        user = await self._store.user(name)
        if user is None or not await self._matches(user.password_hash, password):
            self._failures.setdefault(name, deque()).append(self._clock.now())
            await self.note("nobody", "login.refused", name, details=client_ip)
            raise Unauthenticated("the name or the password is wrong.")
        self._failures.pop(name, None)
        await self._store.delete_expired(self._clock.now())
        secret, session = await self._sessions.create(name, client_ip)
        await self.note(name, "login", name, details=client_ip)
        return secret, session, _principal(user, session)

    def _refuse_guessing(self, name: str) -> None:
        since = self._clock.now() - FAILURES_SECONDS
        recent = self._failures.get(name, deque())
        while recent and recent[0] < since:
            recent.popleft()
        if len(self._failures) > NAMES_WATCHED_MAX:
            self._failures.pop(next(iter(self._failures)))
        if len(recent) >= FAILURES_MAX:
            raise TooMany(f"too many wrong passwords; try again in {FAILURES_SECONDS:.0f} seconds.")

    async def _matches(self, stored: str, password: str) -> bool:
        # Slow on purpose, so not on the event loop.
        try:
            return await asyncio.to_thread(self._hasher.verify, stored, password)
        except (VerifyMismatchError, InvalidHashError):
            return False

    async def sign_out(self, by: Principal, session_id: str) -> None:
        """End one of the caller's own sessions."""
        own = [found.session_id for found in await self._sessions.of(by.name)]
        if session_id not in own or not await self._sessions.end(session_id):
            raise NotFound(f"you have no session {session_id}.")
        self._look_again()
        await self.note(by.name, "logout", session_id)

    # --- Keeping users and tokens ---

    async def put_user(
        self, by: Principal, name: str, password: str, roles: tuple[str, ...], email: str = ""
    ) -> None:
        """Create a user, or give them another password and other roles."""
        _check(name, roles)
        if len(password) < PASSWORD_MIN:
            raise BadRequest(f"a password has at least {PASSWORD_MIN} characters.")
        await self._refuse_lockout(roles)
        hashed = await asyncio.to_thread(self._hasher.hash, password)
        await self._store.put_user(
            StoredUser(
                name=name,
                password_hash=hashed,
                roles=roles,
                email=email,
                created_at=self._clock.now(),
            )
        )
        self._look_again()
        await self.note(by.name, "user.put", name, details=" ".join(roles))

    async def delete_user(self, by: Principal, name: str) -> None:
        for session in await self._sessions.of(name):
            await self._sessions.end(session.session_id)
        if not await self._store.delete_user(name):
            raise NotFound(f'there is no user "{name}".')
        self._look_again()
        await self.note(by.name, "user.deleted", name)

    async def create_token(
        self, by: Principal, name: str, roles: tuple[str, ...], seconds: float | None = None
    ) -> str:
        """A new token. This is the only time that anybody sees it."""
        _check(name, roles)
        await self._refuse_lockout(roles)
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        now = self._clock.now()
        token = StoredToken(
            name=name,
            digest=digest_of(secret),
            roles=roles,
            created_at=now,
            expires_at=None if seconds is None else now + seconds,
        )
        if not await self._store.put_token(token):
            raise Conflict(f'there is a token "{name}" already; revoke it first.')
        self._look_again()
        await self.note(by.name, "token.created", name, details=" ".join(roles))
        return secret

    async def delete_token(self, by: Principal, name: str) -> None:
        if not await self._store.delete_token(name):
            raise NotFound(f'there is no token "{name}".')
        self._look_again()
        await self.note(by.name, "token.revoked", name)

    async def _refuse_lockout(self, roles: tuple[str, ...]) -> None:
        """The first of all closes the server: if it could not let others in, nobody could."""
        if "admin" not in roles and await self.is_open():
            raise Conflict(
                "the first user or token must have the role admin, or nobody could add others."
            )

    async def note(
        self,
        who: str,
        action: str,
        target: str,
        *,
        execution_id: str | None = None,
        details: str = "",
    ) -> None:
        """Remember who did what."""
        await self._store.put_audit(
            AuditEntry(
                at=self._clock.now(),
                who=who,
                action=action,
                target=target,
                execution_id=execution_id,
                details=details,
            )
        )


def _principal(user: StoredUser, session: StoredSession) -> Principal:
    return Principal(
        name=user.name,
        kind="user",
        roles=user.roles,
        session_id=session.session_id,
        email=user.email,
        display_name=user.display_name,
    )


def _check(name: str, roles: tuple[str, ...]) -> None:
    if not NAME.fullmatch(name):
        raise BadRequest(
            "a name has 1 to 64 letters, digits or . _ @ - and begins with a letter or digit."
        )
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        raise BadRequest(f"roles are some of {', '.join(ROLES)}.")
