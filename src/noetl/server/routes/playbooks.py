"""/api/playbooks: compiled playbooks for workers, which keep them by digest."""

from __future__ import annotations

from litestar import Response

from noetl.model.net import encode
from noetl.server.routing import route
from noetl.server.services import Services


@route("GET", "/api/playbooks/{digest:str}", right="results.read")
async def net(services: Services, digest: str) -> Response[bytes]:
    """The net, with the limits that hold here today."""
    program = await services.orchestrator.programs.by_digest(digest)
    return Response(encode(program.net), media_type="application/json")


routes = [net]
