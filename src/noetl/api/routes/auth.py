"""/api/auth: signing in and out, and one's own sessions."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from noetl.api.access import NAME_MAX, PASSWORD_MAX
from noetl.api.route import Body, Caller, Header, Reply, Route, Services
from noetl.api.sessions import COOKIE
from noetl.control import documents
from noetl.errors import BadRequest
from noetl.model.answers import (
    Account,
    Myself,
    SessionDocument,
    SessionEnded,
    SessionList,
    SessionsEnded,
    SignedIn,
    SignedOut,
)
from noetl.model.secrets import without_values
from noetl.store.access import SESSION_SECONDS

_FORWARDED_PROTO = re.compile(r'(?i)\bproto\s*=\s*"?(\w+)')
LOGIN_BYTES_MAX = 16 * 1024
ADDRESS_MAX = 64
ORIGIN = Header("Origin", "The origin of the page that sends the request.")
FORWARDED = Header("Forwarded", "The caller's address, as a proxy reports it.")
FORWARDED_PROTO = Header("X-Forwarded-Proto", "The scheme between the caller and the proxy.")


class Login(Body, frozen=True, kw_only=True):
    """Who signs in."""

    user: Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
    password: Annotated[str, msgspec.Meta(max_length=PASSWORD_MAX)]

    __repr__ = without_values


async def login(services: Services, caller: Caller, *, body: Login) -> Reply[SignedIn]:
    """Sign in. The session is a token in the answer, and a cookie for browsers."""
    if await services.access.is_open():
        raise BadRequest(
            "this server has no users yet: this machine has access without signing in."
        )
    address = caller.address[:ADDRESS_MAX]
    secret, session, who = await services.access.sign_in(body.user, body.password, address)
    user = documents.of(Account, who)
    answer = documents.of(SignedIn, session, token=secret, user=user)
    kept = _cookie(secret, int(SESSION_SECONDS), secure=_is_https(caller))
    return Reply(answer, headers=(("Set-Cookie", kept),))


def _cookie(value: str, seconds: int, *, secure: bool) -> str:
    ending = "; Secure" if secure else ""
    return f"{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=strict{ending}"


def _is_https(caller: Caller) -> bool:
    """Whether the browser uses TLS, to us or to a proxy in front of us.

    A false claim of TLS does no harm: the browser then sends the cookie over TLS only. The opposite
    cannot be claimed.
    """
    said = [caller.scheme, caller.header(FORWARDED_PROTO) or ""]
    said += _FORWARDED_PROTO.findall(caller.header(FORWARDED) or "")
    said.append((caller.header(ORIGIN) or "").partition(":")[0])
    return "https" in (word.strip().lower() for one in said for word in one.split(","))


async def logout(services: Services, caller: Caller) -> Reply[SignedOut]:
    """End the session of this request."""
    who = caller.principal
    if who.session_id is None:
        raise BadRequest("an API token has no session to end; revoke the token instead.")
    await services.access.sign_out(who, who.session_id)
    gone = _cookie("", 0, secure=_is_https(caller))
    return Reply(SignedOut(status="signed out"), headers=(("Set-Cookie", gone),))


async def me(services: Services, caller: Caller) -> Myself:
    """The caller, and their rights."""
    who = caller.principal
    return documents.of(Myself, who, rights=sorted(who.rights))


async def sessions(services: Services, caller: Caller) -> SessionList:
    """The caller's own sessions, newest first."""
    found = await services.access.sessions(caller.principal)
    own = caller.principal.session_id
    return SessionList(
        sessions=[
            documents.of(SessionDocument, one, current=one.session_id == own) for one in found
        ]
    )


async def end_session(services: Services, caller: Caller, *, session_id: str) -> SessionEnded:
    """End one of the caller's own sessions."""
    await services.access.sign_out(caller.principal, session_id)
    return SessionEnded(ended=session_id)


async def end_sessions(services: Services, caller: Caller) -> SessionsEnded:
    """End all of the caller's own sessions but the current one."""
    found = await services.access.sessions(caller.principal)
    own = caller.principal.session_id
    others = [one.session_id for one in found if one.session_id != own]
    for session_id in others:
        await services.access.sign_out(caller.principal, session_id)
    return SessionsEnded(ended=others)


LOGIN = Route(
    "auth.login",
    "POST",
    "/api/auth/login",
    "anyone",
    login,
    body=Login,
    secret=True,
    body_max=LOGIN_BYTES_MAX,
)
LOGOUT = Route("auth.logout", "POST", "/api/auth/logout", "self", logout)
ME = Route("auth.me", "GET", "/api/auth/me", "self", me)
SESSIONS = Route("auth.sessions", "GET", "/api/auth/sessions", "self", sessions)
END_SESSION = Route(
    "auth.end_session", "DELETE", "/api/auth/sessions/{session_id}", "self", end_session
)
END_SESSIONS = Route("auth.end_sessions", "DELETE", "/api/auth/sessions", "self", end_sessions)
