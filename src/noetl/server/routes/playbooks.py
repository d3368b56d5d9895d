"""/api/playbooks: compiled playbooks for workers, which keep them by digest."""

from __future__ import annotations

from litestar import Response

from noetl.errors import NotFound
from noetl.server.routing import route
from noetl.server.services import Services


@route("GET", "/api/playbooks/{digest:str}", right="results.read")
async def net(services: Services, digest: str) -> Response[bytes]:
    """The canonical bytes of a net."""
    body = await services.store.net(digest)
    if body is None:
        raise NotFound(f"no net {digest[:12]} is stored.")
    return Response(body, media_type="application/json")


routes = [net]
