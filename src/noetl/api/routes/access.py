"""/api/access: users, API tokens and the audit log, for administrators."""

from __future__ import annotations

from typing import Annotated

import msgspec

from noetl.api.access import PASSWORD_MAX
from noetl.api.route import Body, Caller, Query, Route, Services
from noetl.control import documents
from noetl.model.answers import (
    ApiTokenCreated,
    AuditDocument,
    AuditLog,
    Deleted,
    TokenDocument,
    TokenList,
    UserDocument,
    UserKept,
    UserList,
)
from noetl.model.secrets import without_values
from noetl.store.access import POSITION_MAX

Pool = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class NewUser(Body, frozen=True, kw_only=True):
    """A user to create or change."""

    name: str
    password: Annotated[str, msgspec.Meta(max_length=PASSWORD_MAX)]
    roles: tuple[str, ...]
    email: str = ""

    __repr__ = without_values


class NewToken(Body, frozen=True, kw_only=True):
    """An API token to create."""

    name: str
    roles: tuple[str, ...]
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=1e10)] | None = None
    """Its lifetime in seconds; by default it is valid until it is revoked."""
    pools: Annotated[tuple[Pool, ...], msgspec.Meta(max_length=100)] = ()
    """The pools that a worker with this token may work for; by default all."""


class AuditQuery(Query, frozen=True, kw_only=True):
    """How much of the audit log to return."""

    cursor: Annotated[int, msgspec.Meta(ge=1, le=POSITION_MAX)] | None = None
    """`next_cursor` of the previous page."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


async def users(services: Services, caller: Caller) -> UserList:
    """All users."""
    found = await services.store.access.users()
    return UserList(users=[documents.of(UserDocument, row) for row in found])


async def put_user(services: Services, caller: Caller, *, body: NewUser) -> UserKept:
    """Create a user, or change the password and roles of an existing one, which ends their
    sessions.
    """
    await services.access.put_user(
        caller.principal, body.name, body.password, body.roles, body.email
    )
    return UserKept(name=body.name, roles=body.roles)


async def delete_user(services: Services, caller: Caller, *, name: str) -> Deleted:
    """Remove a user; all their sessions end."""
    await services.access.delete_user(caller.principal, name)
    return Deleted(deleted=name)


async def tokens(services: Services, caller: Caller) -> TokenList:
    """All API tokens, without their secrets."""
    found = await services.store.access.tokens()
    return TokenList(tokens=[documents.of(TokenDocument, row) for row in found])


async def create_token(services: Services, caller: Caller, *, body: NewToken) -> ApiTokenCreated:
    """Create an API token. This answer is the only place that shows its secret."""
    secret = await services.access.create_token(
        caller.principal, body.name, body.roles, body.expires_in, body.pools
    )
    return ApiTokenCreated(name=body.name, roles=body.roles, token=secret)


async def delete_token(services: Services, caller: Caller, *, name: str) -> Deleted:
    """Revoke an API token."""
    await services.access.delete_token(caller.principal, name)
    return Deleted(deleted=name)


async def audit(services: Services, caller: Caller, *, query: AuditQuery) -> AuditLog:
    """The audit log: who read or changed what, newest first."""
    found = await services.store.access.audit(limit=query.limit + 1, before=query.cursor)
    page = found[: query.limit]
    return AuditLog(
        entries=[documents.of(AuditDocument, row) for row in page],
        next_cursor=str(page[-1].position) if len(found) > query.limit else None,
    )


ALL_USERS, ALL_TOKENS = "/api/access/users", "/api/access/tokens"
USERS = Route("access.users", "GET", ALL_USERS, "manage", users)
PUT_USER = Route("access.put_user", "POST", ALL_USERS, "manage", put_user, body=NewUser)
DELETE_USER = Route(
    "access.delete_user", "DELETE", "/api/access/users/{name}", "manage", delete_user
)
TOKENS = Route("access.tokens", "GET", ALL_TOKENS, "manage", tokens)
CREATE_TOKEN = Route(
    "access.create_token", "POST", ALL_TOKENS, "manage", create_token, body=NewToken, secret=True
)
DELETE_TOKEN = Route(
    "access.delete_token", "DELETE", "/api/access/tokens/{name}", "manage", delete_token
)
AUDIT = Route("access.audit", "GET", "/api/access/audit", "manage", audit, query=AuditQuery)
