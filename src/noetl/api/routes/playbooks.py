"""/api/playbooks: compiled playbooks by digest, for workers and for drawing."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from noetl.api.route import Caller, Reply, Route, Services
from noetl.model.answers import Layout
from noetl.model.net import encode
from noetl.version import __version__


async def net(services: Services, caller: Caller, *, digest: str) -> Reply[Any]:
    """The net of a playbook, for workers of this version, with the current limits."""
    program = await services.orchestrator.programs.by_digest(digest)
    body = encode(program.net)
    return Reply(body, tag=sha256(body).hexdigest()[:32])


async def layout(services: Services, caller: Caller, *, digest: str) -> Reply[Layout]:
    """The playbook as a graph, with places to draw its steps and arcs."""
    program = await services.orchestrator.programs.by_digest(digest)
    found = await services.catalog.layouts.of(digest, program.net)
    # A net never changes, but a later release may draw it differently.
    return Reply(found, tag=f"{digest[:32]}-{__version__}")


NET = Route("playbooks.net", "GET", "/api/playbooks/{digest}", "results.read", net)
LAYOUT = Route("playbooks.layout", "GET", "/api/playbooks/{digest}/layout", "read", layout)
