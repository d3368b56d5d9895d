"""/api/auth-cache: access tokens that workers fetched, for each other (document 000 §5.2)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.params import HeaderParameter

from noetl.api.routing import route
from noetl.api.services import Services
from noetl.errors import BadRequest, NotFound
from noetl.model.access_tokens import AccessToken

LIFE_MAX = 30 * 24 * 3600.0
Asked = Request[Any, Any, Any]
Worker = Annotated[str, HeaderParameter(name="X-NoETL-Worker")]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A token, and for how many seconds from now it is good."""

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=LIFE_MAX)]


@route("GET", "/api/auth-cache/{key:str}", right="work", secret=True)
async def show(
    services: Services, request: Asked, key: str, execution_id: str = "", worker: Worker = ""
) -> Kept:
    """A token that has not expired, for a worker that holds a lease."""
    await _require_lease(services, request, worker, execution_id)
    found = await services.tokens.find(key)
    if found is None:
        raise NotFound("no such token is kept, or it has expired.")
    who = request.user.worker_name(worker)
    await services.access.note(who, "token.read", key[:12], execution_id=execution_id)
    return Kept(token=found.text, expires_in=found.expires_at - services.clock.now())


@route("PUT", "/api/auth-cache/{key:str}", right="work")
async def keep(
    services: Services,
    request: Asked,
    key: str,
    data: Kept,
    execution_id: str = "",
    worker: Worker = "",
) -> dict[str, str]:
    """Keep a token for whoever could have fetched it as well."""
    await _require_lease(services, request, worker, execution_id)
    if not 16 <= len(key) <= 200:
        raise BadRequest("the key of a token has 16 to 200 characters; nobody should guess it.")
    until = services.clock.now() + data.expires_in
    await services.tokens.keep(key, AccessToken(text=data.token, expires_at=until))
    return {"status": "kept"}


async def _require_lease(
    services: Services, request: Asked, worker: str, execution_id: str
) -> None:
    if request.user.is_bound_to_leases:
        await services.leases.require_execution(request.user, worker, execution_id)


routes = [show, keep]
