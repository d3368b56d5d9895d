"""/api/auth: signing in and out, and one's own sessions (document 001 §6)."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from litestar import Request, Response
from litestar.datastructures import Cookie

from noetl.api.access import NAME_MAX, PASSWORD_MAX
from noetl.api.edge import COOKIE
from noetl.api.manners import Body
from noetl.api.rights import Principal
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.control.documents import moment
from noetl.errors import BadRequest
from noetl.store.access import SESSION_SECONDS, StoredSession

Asked = Request[Any, Any, Any]
_FORWARDED_PROTO = re.compile(r'(?i)\bproto\s*=\s*"?(\w+)')
LOGIN_BYTES_MAX = 16 * 1024
ADDRESS_MAX = 64


class Login(Body, frozen=True, kw_only=True):
    user: Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
    password: Annotated[str, msgspec.Meta(max_length=PASSWORD_MAX)]


@route(
    "POST", "/api/auth/login", right="anyone", secret=True, request_max_body_size=LOGIN_BYTES_MAX
)
async def login(services: Services, request: Asked, data: Login) -> Response[dict[str, Any]]:
    """A session, as a token in the answer and as a cookie for browsers."""
    if await services.access.is_open():
        raise BadRequest("this server has no users yet: everybody on this machine is let in.")
    client = request.client.host[:ADDRESS_MAX] if request.client is not None else ""
    secret, session, who = await services.access.sign_in(data.user, data.password, client)
    cookie = Cookie(
        key=COOKIE,
        value=secret,
        path="/",
        httponly=True,
        samesite="strict",
        secure=_is_https(request),
        max_age=int(SESSION_SECONDS),
    )
    body = {"token": secret, "expires_at": moment(session.expires_at), "user": _about(who)}
    return Response(body, cookies=[cookie])


def _is_https(request: Asked) -> bool:
    """Whether the browser speaks TLS, to us or to a proxy before us.

    Anybody may say so: a browser that is told too much only keeps the cookie to TLS. Nobody can
    say that it is not.
    """
    said = [request.url.scheme, *request.headers.getall("x-forwarded-proto", [])]
    said += _FORWARDED_PROTO.findall(",".join(request.headers.getall("forwarded", [])))
    said.append(request.headers.get("origin", "").partition(":")[0])
    return "https" in (word.strip().lower() for one in said for word in one.split(","))


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
