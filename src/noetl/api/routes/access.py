"""/api/access: users, tokens and the audit log, for administrators."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.params import Parameter

from noetl.api.access import PASSWORD_MAX
from noetl.api.manners import Body
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.control.documents import moment
from noetl.store.access import AccessStore, AuditEntry, StoredToken, StoredUser

Asked = Request[Any, Any, Any]
Limit = Annotated[int, Parameter(ge=1, le=1000)]


Pool = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class NewUser(Body, frozen=True, kw_only=True):
    name: str
    password: Annotated[str, msgspec.Meta(max_length=PASSWORD_MAX)]
    roles: tuple[str, ...]
    email: str = ""


class NewToken(Body, frozen=True, kw_only=True):
    name: str
    roles: tuple[str, ...]
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=1e10)] | None = None
    """Seconds; without it, until it is revoked."""
    pools: Annotated[tuple[Pool, ...], msgspec.Meta(max_length=100)] = ()
    """Where a worker with it may work; without it, everywhere."""


@route("GET", "/api/access/users", right="manage")
async def users(services: Services) -> dict[str, Any]:
    """Everybody who can sign in."""
    return await look(services.store, "users")


@route("POST", "/api/access/users", right="manage")
async def put_user(services: Services, request: Asked, data: NewUser) -> dict[str, Any]:
    """Create a user, or give them another password and other roles; their sessions end."""
    await services.access.put_user(request.user, data.name, data.password, data.roles, data.email)
    return {"name": data.name, "roles": data.roles}


@route("DELETE", "/api/access/users/{name:str}", right="manage")
async def delete_user(services: Services, request: Asked, name: str) -> dict[str, str]:
    """Remove a user; all sessions end."""
    await services.access.delete_user(request.user, name)
    return {"deleted": name}


@route("GET", "/api/access/tokens", right="manage")
async def tokens(services: Services) -> dict[str, Any]:
    """Every token, without what it is."""
    return await look(services.store, "tokens")


@route("POST", "/api/access/tokens", right="manage", secret=True)
async def create_token(services: Services, request: Asked, data: NewToken) -> dict[str, Any]:
    """A new token. This answer is the only place that shows it."""
    secret = await services.access.create_token(
        request.user, data.name, data.roles, data.expires_in, data.pools
    )
    return {"name": data.name, "roles": data.roles, "token": secret}


@route("DELETE", "/api/access/tokens/{name:str}", right="manage")
async def delete_token(services: Services, request: Asked, name: str) -> dict[str, str]:
    """Revoke a token."""
    await services.access.delete_token(request.user, name)
    return {"deleted": name}


@route("GET", "/api/access/audit", right="manage")
async def audit(services: Services, limit: Limit = 100) -> dict[str, Any]:
    """Who looked at or changed what, newest first."""
    return await look(services.store, "audit", limit)


async def look(store: AccessStore, noun: str, limit: int = 100) -> dict[str, Any]:
    """What is kept of one kind, as it may be shown."""
    if noun == "users":
        return {"users": [_user(row) for row in await store.users()]}
    if noun == "tokens":
        return {"tokens": [_token(row) for row in await store.tokens()]}
    return {"entries": [_entry(row) for row in await store.audit(limit=limit)]}


def _user(row: StoredUser) -> dict[str, Any]:
    shown = {"name": row.name, "roles": row.roles, "email": row.email}
    return {**shown, "created_at": moment(row.created_at)}


def _token(row: StoredToken) -> dict[str, Any]:
    times = {"created_at": moment(row.created_at), "expires_at": moment(row.expires_at)}
    return {"name": row.name, "roles": row.roles, "pools": row.pools, **times}


def _entry(row: AuditEntry) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "at": moment(row.at)}


routes = [users, put_user, delete_user, tokens, create_token, delete_token, audit]
