"""/api/results: bodies that are too large for an event, kept beside them."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response
from litestar.params import HeaderParameter

from noetl.api.manners import tagged
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.errors import BadRequest, NotFound
from noetl.model.ids import derive

RESULT_MAX = 512 * 1024 * 1024
Worker = Annotated[str, HeaderParameter(name="X-NoETL-Worker")]


@route("GET", "/api/results/{execution_id:str}/{key:path}", right="results.read")
async def show(
    services: Services,
    request: Request[Any, Any, Any],
    execution_id: str,
    key: str,
    worker: Worker = "",
) -> Response[bytes]:
    """A body, verified against its checksum."""
    if request.user.is_bound_to_leases:
        await services.leases.require_execution(request.user, worker, execution_id)
    name = key.removeprefix("/")
    body = await services.store.get_result(execution_id, name)
    if body is None:
        raise NotFound(f"execution {execution_id} has no result {name}.")
    # A body never changes under its key.
    return tagged(request, derive(execution_id, name), body, media_type="application/json")


@route(
    "PUT",
    "/api/results/{execution_id:str}/{key:path}",
    right="work",
    raw=True,
    request_max_body_size=RESULT_MAX,
)
async def keep(
    services: Services,
    request: Request[Any, Any, Any],
    execution_id: str,
    key: str,
    worker: Worker = "",
) -> dict[str, str]:
    """Keep a body of the execution whose command this worker runs."""
    if request.user.is_bound_to_leases:
        await services.leases.require_execution(request.user, worker, execution_id)
    elif await services.store.summary(execution_id) is None:
        raise NotFound(f"there is no execution {execution_id}.")
    body = await request.body()
    if not body:
        raise BadRequest("the body is the result, as JSON; it is empty.")
    return {"checksum": await services.store.put_result(execution_id, key.removeprefix("/"), body)}


routes = [show, keep]
