"""/api/results: bodies that are too large for an event, stored beside the log."""

from __future__ import annotations

import base64
import re
from typing import Any

from noetl.api.route import Caller, Header, Incoming, Reply, Route, Services
from noetl.api.routes.tokens import WORKER, require_lease
from noetl.control import segments
from noetl.control.records import no_execution
from noetl.errors import BadRequest, NotFound
from noetl.model.answers import ResultKept
from noetl.model.ids import derive

RESULT_MAX = 512 * 1024 * 1024
WHOLE_MAX = 1024 * 1024
"""Larger bodies are sent in chunks, as they are read."""
CONTENT_DIGEST = Header("Content-Digest", "The sha256 of the body (RFC 9530), to be verified.")


async def show(services: Services, caller: Caller, *, execution_id: str, key: str) -> Reply[Any]:
    """A result, verified against its checksum. A long list of a loop, which is kept in segments, is
    sent whole.
    """
    await require_lease(services, caller, execution_id)
    store = services.store
    found = await store.bodies.get_pieces(execution_id, key)
    tag = derive(execution_id, key)  # A body never changes under its key.
    if found is None:
        what = await segments.find(store.log, execution_id, key)
        if what is None:
            raise NotFound(f"execution {execution_id} has no result {key}.")
        return Reply(segments.pieces(store.bodies, execution_id, what), tag=tag)
    if found.size <= WHOLE_MAX:
        return Reply(b"".join([piece async for piece in found.pieces]), tag=tag)
    return Reply(found.pieces, tag=tag, size=found.size)


async def keep(
    services: Services, caller: Caller, *, execution_id: str, key: str, body: Incoming
) -> ResultKept:
    """Store a result of the execution whose command this worker runs."""
    await require_lease(services, caller, execution_id, family=False)
    is_worker = caller.principal.is_bound_to_leases
    if not is_worker and await services.store.records.summary(execution_id) is None:
        raise no_execution(execution_id)
    wanted = _digest(caller.header(CONTENT_DIGEST) or "")

    def check(checksum: str, size: int) -> None:
        if not size:
            raise BadRequest("the body is empty; it must be the result as JSON.")
        if wanted is not None and wanted != checksum:
            raise BadRequest(
                "the body was damaged on the way: its sha256 is not that of Content-Digest."
                " Nothing was stored. Send it again."
            )

    return ResultKept(
        checksum=await services.store.bodies.put_pieces(execution_id, key, aiter(body), check)
    )


def _digest(written: str) -> str | None:
    """The sha256 in the sender's Content-Digest (RFC 9530), in hexadecimal; None if there is
    none.
    """
    found = re.search(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]*):", written)
    if found is None:
        return None
    try:
        return base64.b64decode(found.group(1), validate=True).hex()
    except ValueError:
        raise BadRequest("Content-Digest is not sha-256=:BASE64: of the body.") from None


PATH = "/api/results/{execution_id}/{key}"
GET = Route("results.get", "GET", PATH, "results.read", show, headers=(WORKER,), deep=True)
KEEP = Route(
    "results.keep",
    "PUT",
    PATH,
    "work",
    keep,
    body=bytes,
    holds=Any,
    headers=(WORKER, CONTENT_DIGEST),
    deep=True,
    streamed=True,
    body_max=RESULT_MAX,
)
