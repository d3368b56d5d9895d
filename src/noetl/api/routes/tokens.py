"""/api/auth-cache: access tokens that workers fetched and share."""

from __future__ import annotations

from noetl.api.route import Caller, Header, Query, Route, Services
from noetl.errors import BadRequest, NotFound
from noetl.model.answers import CachedToken, TokenKept
from noetl.model.secrets import AccessToken

WORKER = Header("X-NoETL-Worker", "The worker's name for itself.")


class OfExecution(Query, frozen=True, kw_only=True):
    """For which execution."""

    execution_id: str = ""


async def show(services: Services, caller: Caller, *, key: str, query: OfExecution) -> CachedToken:
    """A valid access token, for a worker that holds a lease."""
    await require_lease(services, caller, query.execution_id)
    found = await services.tokens.find(key)
    if found is None:
        raise NotFound("there is no such token, or it has expired.")
    who = caller.principal.reader(caller.header(WORKER) or "")
    await services.access.note(who, "token.read", key[:12], execution_id=query.execution_id)
    return CachedToken(token=found.text, expires_in=found.expires_at - services.clock.now())


async def keep(
    services: Services, caller: Caller, *, key: str, query: OfExecution, body: CachedToken
) -> TokenKept:
    """Store an access token for workers that could have fetched it, too."""
    await require_lease(services, caller, query.execution_id)
    if not 16 <= len(key) <= 200:
        raise BadRequest(
            "the key of a token has 16 to 200 characters, so that it cannot be guessed."
        )
    until = services.clock.now() + body.expires_in
    await services.tokens.keep(key, AccessToken(text=body.token, expires_at=until))
    return TokenKept(status="kept")


async def require_lease(
    services: Services, caller: Caller, execution_id: str, *, family: bool = True
) -> None:
    """Raises NotAllowed for a worker that holds no lease of the execution; see `holders`."""
    if caller.principal.is_bound_to_leases:
        who, worker = caller.principal, caller.header(WORKER) or ""
        await services.holders.require_execution(who, worker, execution_id, family=family)


GET = Route(
    "auth_cache.get",
    "GET",
    "/api/auth-cache/{key}",
    "work",
    show,
    query=OfExecution,
    headers=(WORKER,),
    secret=True,
)
KEEP = Route(
    "auth_cache.keep",
    "PUT",
    "/api/auth-cache/{key}",
    "work",
    keep,
    query=OfExecution,
    body=CachedToken,
    headers=(WORKER,),
)
