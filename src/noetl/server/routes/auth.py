"""/api/auth: signing in and out, and one's own sessions (document 001 §6)."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.datastructures import Cookie

from noetl.control.documents import moment
from noetl.errors import BadRequest
from noetl.server.edge import COOKIE
from noetl.server.rights import Principal
from noetl.server.routing import route
from noetl.server.services import Services
from noetl.store.access import SESSION_SECONDS, StoredSession

Asked = Request[Any, Any, Any]


class Login(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    password: str


@route("POST", "/api/auth/login", right="anyone")
async def login(services: Services, request: Asked, data: Login) -> Response[dict[str, Any]]:
    """A session, as a token in the answer and as a cookie for browsers."""
    if await services.access.is_open():
        raise BadRequest("this server has no users yet: everybody on this machine is let in.")
    client = request.client.host if request.client is not None else ""
    secret, session, who = await services.access.sign_in(data.user, data.password, client)
    cookie = Cookie(
        key=COOKIE,
        value=secret,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        max_age=int(SESSION_SECONDS),
    )
    body = {"token": secret, "expires_at": moment(session.expires_at), "user": _about(who)}
    return Response(body, cookies=[cookie])


@route("POST", "/api/auth/logout", right="self")
async def logout(services: Services, request: Asked) -> Response[dict[str, str]]:
    """End the session that asks."""
    who = request.user
    if who.session_id is None:
        raise BadRequest("this is no session: a token is revoked, it does not sign out.")
    await services.access.sign_out(who, who.session_id)
    gone = Cookie(key=COOKIE, value="", path="/", max_age=0)
    return Response({"status": "signed out"}, cookies=[gone])


@route("GET", "/api/auth/me", right="self")
async def me(services: Services, request: Asked) -> dict[str, Any]:
    """Who asks, and what they may do."""
    who = request.user
    return {**_about(who), "rights": sorted(who.rights)}


def _about(who: Principal) -> dict[str, Any]:
    return {
        "name": who.name,
        "kind": who.kind,
        "roles": list(who.roles),
        "email": who.email,
        "display_name": who.display_name,
    }


@route("GET", "/api/auth/sessions", right="self")
async def sessions(services: Services, request: Asked) -> dict[str, Any]:
    """One's own sessions, newest first."""
    found = await services.sessions.of(request.user.name)
    return {"sessions": [_session(one, request.user) for one in found]}


def _session(session: StoredSession, who: Principal) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "user": session.user,
        "created_at": moment(session.created_at),
        "expires_at": moment(session.expires_at),
        "last_activity_at": moment(session.last_activity_at),
        "client_ip": session.client_ip,
        "current": session.session_id == who.session_id,
    }


@route("DELETE", "/api/auth/sessions/{session_id:str}", right="self")
async def end_session(services: Services, request: Asked, session_id: str) -> dict[str, str]:
    """End one of them."""
    await services.access.sign_out(request.user, session_id)
    return {"ended": session_id}


@route("DELETE", "/api/auth/sessions", right="self")
async def end_sessions(services: Services, request: Asked) -> dict[str, list[str]]:
    """End all of them but the one that asks."""
    found = await services.sessions.of(request.user.name)
    others = [one.session_id for one in found if one.session_id != request.user.session_id]
    for session_id in others:
        await services.access.sign_out(request.user, session_id)
    return {"ended": others}


routes = [login, logout, me, sessions, end_session, end_sessions]
