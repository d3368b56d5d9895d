"""Users, API tokens and sign-in: which principal a secret belongs to.

A server without users and tokens is open to every caller, and listens on this machine only (see
`serving.server`). Creating the first user or token closes it at once.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from noetl.api.rights import NOBODY, OPEN, ROLES, Principal
from noetl.api.sessions import SESSION_PREFIX, Sessions, digest_of
from noetl.control.clock import Clock
from noetl.errors import BadRequest, Conflict, NotFound, TooMany, Unauthenticated
from noetl.model.facts import Actor
from noetl.model.spelling import did_you_mean
from noetl.store.access import Access as AccessStore
from noetl.store.access import AuditEntry, StoredSession, StoredToken, StoredUser

if TYPE_CHECKING:
    from argon2 import PasswordHasher

TOKEN_PREFIX = "noetl_t_"  # noqa: S105  what tokens begin with, so that scanners find leaked ones
T = TypeVar("T")
PASSWORD_MIN, PASSWORD_MAX = 8, 1000
NAME_MAX = 64
ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
FAILURES_MAX = 5
FAILURES_SECONDS = 60.0
NAMES_WATCHED_MAX = 10_000
REFUSALS_NOTED_MAX = 50
"""The audit log records this many refused sign-ins a minute; the rest it only counts."""
HASHING_MAX, HASHING_WAITING_MAX = 2, 30
"""How many passwords are checked at the same time, and how many may wait for that."""
HASHING: dict[str, Any] = {"memory_cost": 19 * 1024, "time_cost": 2, "parallelism": 1}
"""Argon2id with the parameters OWASP recommends: one check takes 19 MiB of memory and one core."""
KNOWN_SECONDS = 2.0
"""How long another server may still accept a token after it was revoked on one."""


class Access:
    """Authenticates callers, and keeps users and API tokens."""

    def __init__(self, store: AccessStore, sessions: Sessions, clock: Clock) -> None:
        self._store = store
        self._sessions = sessions
        self._clock = clock
        self._passwords = _Passwords()
        self._guesses = _Guesses(clock)
        self._refused_logins = _Refusals()
        self._refused_deliveries = _Refusals()
        self._closed = False
        self._looked_at = 0.0
        self._changes = 0
        """Counts how often users or tokens changed here: what was asked before that is outdated."""
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock per digest of a secret being looked up; "" stands for no secret. Requests with the
        same secret come by the dozen: the first asks the database, the others wait for its answer.
        """
        self._known: dict[str, tuple[float, Principal]] = {}
        """Recently authenticated principals by the digest of their secret: saves a query per
        request.
        """

    async def is_open(self) -> bool:
        """Whether there are no users and tokens yet. A server that has closed stays closed."""
        if not self._closed and self.known(None) is None:
            async with self._one_asks(""):
                if not self._closed and self.known(None) is None:
                    now, changes = self._clock.now(), self._changes
                    self._closed = bool(await self._store.users() or await self._store.tokens())
                    # Set after the query: a concurrent request must not be admitted on an outdated
                    # answer.
                    if changes == self._changes:
                        self._looked_at = now
        return not self._closed

    def _look_again(self) -> None:
        """Users or tokens have changed: empty the cache. Other servers notice within seconds."""
        self._changes += 1
        self._looked_at = 0.0
        self._known.clear()

    async def who(self, secret: str | None) -> Principal:
        """The principal of this secret; NOBODY if it is unknown."""
        known = self.known(secret)
        if known is not None:
            return known
        if not self._closed and await self.is_open():
            return OPEN
        if not secret:
            return NOBODY
        digest = digest_of(secret)
        async with self._one_asks(digest):
            known = self.known(secret)
            if known is not None:
                return known
            now, changes = self._clock.now(), self._changes
            principal = await self._look_up(secret, digest)
            if principal is not NOBODY and changes == self._changes:
                if len(self._known) >= NAMES_WATCHED_MAX:
                    self._known.pop(next(iter(self._known)))
                self._known[digest] = (now, principal)
        return principal

    def _one_asks(self, digest: str) -> asyncio.Lock:
        lock = self._asking.get(digest)
        if lock is None:
            lock = self._asking[digest] = asyncio.Lock()
        return lock

    def known(self, secret: str | None) -> Principal | None:
        """The same without asking the database; None if that would be needed."""
        now = self._clock.now()
        if not self._closed:
            return OPEN if abs(now - self._looked_at) < KNOWN_SECONDS else None
        known = self._known.get(digest_of(secret)) if secret else None
        if known is not None and 0 <= now - known[0] < KNOWN_SECONDS:
            return known[1]
        return None

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
        return Principal(name=token.name, kind="token", roles=token.roles, pools=token.pools)

    # --- Signing in ---

    async def sign_in(
        self, name: str, password: str, client_ip: str
    ) -> tuple[str, StoredSession, Principal]:
        """A new session for this user. Raises Unauthenticated, or TooMany after too many failures.

        An attempt counts before its password is checked, so parallel attempts gain nothing. An
        unknown name takes as long as a known one, so timing does not tell which names exist.
        """
        self._passwords.refuse_crowd()
        self._guesses.count(name)
        user = await self._store.user(name) if NAME.fullmatch(name) else None
        matches = await self._passwords.matches(user.password_hash if user else None, password)
        if user is None or not matches:
            # People also type their password into the name field.
            target = name if NAME.fullmatch(name) else "(not a name)"
            await self._note_refused("login.refused", target, client_ip, self._refused_logins)
            raise Unauthenticated("the name or the password is wrong.")
        self._guesses.forget(name)
        await self._store.delete_expired(self._clock.now())
        secret, session = await self._sessions.create(name, client_ip)
        if await self._store.user(name) != user:
            # The password changed during the check, after the change had ended all other sessions.
            await self._sessions.end(session)
            raise Unauthenticated("the name or the password is wrong.")
        principal = _principal(user, session)
        await self.note(principal.actor, "login", name, details=client_ip)
        return secret, session, principal

    async def note_refused_delivery(self, path: str, client_ip: str) -> None:
        """Record a delivery to a hook that failed its check; beyond the limit, only count it."""
        await self._note_refused("hook.refused", path, client_ip, self._refused_deliveries)

    async def _note_refused(
        self, action: str, target: str, client_ip: str, refusals: _Refusals
    ) -> None:
        more = refusals.count(self._clock.now())
        if more is None:
            return
        if more:
            await self.note("nobody", action, "(others)", details=f"{more} more")
        await self.note("nobody", action, target, details=client_ip)

    async def sessions(self, who: Principal) -> list[StoredSession]:
        """Their own sessions, newest first. A token has none, also if a user has the same name."""
        return await self._sessions.of(who.name) if who.kind == "user" else []

    async def sign_out(self, by: Principal, session_id: str) -> None:
        """End one of the caller's own sessions."""
        own = {found.session_id: found for found in await self.sessions(by)}
        if session_id not in own or not await self._sessions.end(own[session_id]):
            raise NotFound(f"you have no session {session_id}.")
        self._look_again()
        await self.note(by.actor, "logout", session_id)

    # --- Keeping users and tokens ---

    async def put_user(
        self, by: Principal, name: str, password: str, roles: tuple[str, ...], email: str = ""
    ) -> None:
        """Create a user, or give them another password and other roles; their sessions end."""
        _check(name, roles)
        if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
            raise BadRequest(
                f"a password has at least {PASSWORD_MIN} characters, and at most {PASSWORD_MAX}."
            )
        await self._refuse_lockout(roles)
        hashed = await self._passwords.hashed(password)
        sessions = await self._sessions.of(name)
        await self._store.put_user(
            StoredUser(
                name=name,
                password_hash=hashed,
                roles=roles,
                email=email,
                created_at=self._clock.now(),
            )
        )
        for session in sessions:  # The database ended them together with the old password.
            await self._sessions.end(session)
        self._look_again()
        await self.note(by.actor, "user.put", name, details=" ".join(roles))

    async def delete_user(self, by: Principal, name: str) -> None:
        for session in await self._sessions.of(name):
            await self._sessions.end(session)
        if not await self._store.delete_user(name):
            raise NotFound(f'there is no user "{name}".')
        self._look_again()
        await self.note(by.actor, "user.deleted", name)

    async def create_token(
        self,
        by: Principal,
        name: str,
        roles: tuple[str, ...],
        seconds: float | None = None,
        pools: tuple[str, ...] = (),
    ) -> str:
        """A new API token. The answer is the only place that shows its secret."""
        _check(name, roles)
        if pools and roles != ("worker",):
            raise BadRequest("`pools` only apply to a token whose one role is worker.")
        await self._refuse_lockout(roles)
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        now = self._clock.now()
        token = StoredToken(
            name=name,
            digest=digest_of(secret),
            roles=roles,
            pools=pools,
            created_at=now,
            expires_at=None if seconds is None else now + seconds,
        )
        if not await self._store.put_token(token):
            raise Conflict(f'there is a token "{name}" already; revoke it first.')
        self._look_again()
        await self.note(by.actor, "token.created", name, details=" ".join((*roles, *pools)))
        return secret

    async def delete_token(self, by: Principal, name: str) -> None:
        if not await self._store.delete_token(name):
            raise NotFound(f'there is no token "{name}".')
        self._look_again()
        await self.note(by.actor, "token.revoked", name)

    async def _refuse_lockout(self, roles: tuple[str, ...]) -> None:
        """The first user or token closes the server, so it must be able to add others."""
        if "admin" not in roles and await self.is_open():
            raise Conflict(
                "the first user or token must have the role admin, or no one could add others."
            )

    async def note(
        self,
        who: Actor | str,
        action: str,
        target: str,
        *,
        execution_id: str | None = None,
        details: str = "",
    ) -> None:
        """Write an entry to the audit log. `who` is said as executions say it: a user and an API
        token may have the same name."""
        await self._store.put_audit(
            AuditEntry(
                at=self._clock.now(),
                who=str(who),
                action=action,
                target=target,
                execution_id=execution_id,
                details=details,
            )
        )


class _Passwords:
    """Checks and hashes passwords. That is slow on purpose, so only a few run at a time, in their
    own threads.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(HASHING_MAX, "passwords")
        self._running = 0
        self._decoy = ""

    def refuse_crowd(self) -> None:
        if self._running >= HASHING_MAX + HASHING_WAITING_MAX:
            raise TooMany("too many people are signing in now; try again in a few seconds.")

    async def hashed(self, password: str) -> str:
        return await self._run(lambda: self._hasher.hash(password))

    @cached_property
    def _hasher(self) -> PasswordHasher:
        from argon2 import PasswordHasher  # Imported for the first password.

        return PasswordHasher(**HASHING)

    async def matches(self, stored: str | None, password: str) -> bool:
        """Whether the password matches. Without a hash the answer is no, after the same work."""
        if not self._decoy:
            self._decoy = await self.hashed(secrets.token_urlsafe())

        def verify() -> bool:
            from argon2.exceptions import InvalidHashError, VerifyMismatchError

            try:
                return self._hasher.verify(stored or self._decoy, password)
            except (VerifyMismatchError, InvalidHashError):
                return False

        return await self._run(verify)

    async def _run(self, job: Callable[[], T]) -> T:
        self._running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, job)
        finally:
            self._running -= 1


class _Guesses:
    """Counts recent sign-in attempts by user name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tries: dict[str, deque[float]] = {}

    def count(self, name: str) -> None:
        """Count one attempt. Raises TooMany beyond the limit."""
        now = self._clock.now()
        recent = self._tries.pop(name, None) or deque()
        self._tries[name] = recent
        while recent and recent[0] < now - FAILURES_SECONDS:
            recent.popleft()
        if len(self._tries) > NAMES_WATCHED_MAX:
            self._tries.pop(next(iter(self._tries)))
        if len(recent) >= FAILURES_MAX:
            seconds = max(1, math.ceil(recent[0] + FAILURES_SECONDS - now))
            raise TooMany(f"too many wrong passwords; try again in {seconds} seconds.", seconds)
        recent.append(now)

    def forget(self, name: str) -> None:
        """The password was right: forget the attempts."""
        self._tries.pop(name, None)


class _Refusals:
    """Counts refusals per minute, so that the audit log records only some of them."""

    def __init__(self) -> None:
        self._since = 0.0
        self._noted = 0
        self._unnoted = 0

    def count(self, now: float) -> int | None:
        """None if this refusal is over the limit; otherwise how many were skipped before it."""
        unnoted = 0
        if abs(now - self._since) >= FAILURES_SECONDS:
            unnoted, self._since, self._noted, self._unnoted = self._unnoted, now, 0, 0
        if self._noted >= REFUSALS_NOTED_MAX:
            self._unnoted += 1
            return None
        self._noted += 1
        return unnoted


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
    for role in set(roles) - set(ROLES):
        hint = did_you_mean(role, ROLES)
        if hint or not ROLE.fullmatch(role):
            raise BadRequest(
                f'"{role[:NAME_MAX]}" is not a role.{hint} There are {", ".join(ROLES)}; names of'
                " your own, for forms, have letters, digits, _ and -."
            )
    if not set(roles) & set(ROLES):
        raise BadRequest(f"roles are at least one of {', '.join(ROLES)}.")
