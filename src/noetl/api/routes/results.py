"""/api/results: bodies that are too large for an event, kept beside them."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any

from litestar import Request, Response
from litestar.params import HeaderParameter

from noetl.api.manners import tagged
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.errors import BadRequest, NotFound
from noetl.model.ids import derive

RESULT_MAX = 512 * 1024 * 1024
WHOLE_MAX = 1024 * 1024
"""Larger bodies go out piece by piece, as they are read."""
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
    found = await services.store.get_pieces(execution_id, name)
    if found is None:
        raise NotFound(f"execution {execution_id} has no result {name}.")
    # A body never changes under its key.
    tag = derive(execution_id, name)
    if found.size <= WHOLE_MAX:
        body = b"".join([piece async for piece in found.pieces])
        return tagged(request, tag, body, media_type="application/json")
    return tagged(request, tag, found, media_type="application/json")


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
    wanted = _digest(request.headers.get("content-digest", ""))

    def check(checksum: str, size: int) -> None:
        if not size:
            raise BadRequest("the body is the result, as JSON; it is empty.")
        if wanted is not None and wanted != checksum:
            raise BadRequest(
                "the body is not what was sent: its sha256 is not that of Content-Digest."
                " Nothing was kept. Send it again."
            )

    name = key.removeprefix("/")
    kept = await services.store.put_pieces(execution_id, name, request.stream(), check)
    return {"checksum": kept}


def _digest(written: str) -> str | None:
    """The sha256 that the sender names (RFC 9530), in hexadecimal; None if it names none."""
    found = re.search(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]*):", written)
    if found is None:
        return None
    try:
        return base64.b64decode(found.group(1), validate=True).hex()
    except ValueError:
        raise BadRequest("Content-Digest is not sha-256=:BASE64: of the body.") from None


routes = [show, keep]
