"""/api/playbooks: compiled playbooks for workers, which keep them by digest."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from noetl.api.route import Caller, Reply, Route
from noetl.model.net import encode

if TYPE_CHECKING:
    from noetl.api.services import Services


async def net(services: Services, caller: Caller, *, digest: str) -> Reply[bytes]:
    """The net of a playbook, as workers of this version read it, with the limits of today."""
    program = await services.orchestrator.programs.by_digest(digest)
    body = encode(program.net)
    return Reply(body, tag=sha256(body).hexdigest()[:32])


NET = Route(
    "playbooks.net",
    "GET",
    "/api/playbooks/{digest}",
    right="results.read",
    answer=object,
    handler=net,
)
ROUTES = (NET,)
