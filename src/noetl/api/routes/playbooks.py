"""/api/playbooks: compiled playbooks for workers, which keep them by digest."""

from __future__ import annotations

from hashlib import sha256

from litestar import Response

from noetl.api.manners import Asked, tagged
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.model.net import encode


@route("GET", "/api/playbooks/{digest:str}", right="results.read")
async def net(services: Services, request: Asked, digest: str) -> Response[bytes]:
    """The net, with the limits that hold here today."""
    program = await services.orchestrator.programs.by_digest(digest)
    body = encode(program.net)
    return tagged(request, sha256(body).hexdigest()[:32], body, media_type="application/json")


routes = [net]
