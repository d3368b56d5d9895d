"""/api/context: what a template would yield in an execution, for people who are looking for why."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request

from noetl.api.manners import Body
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.control.rendering import seen_by
from noetl.errors import BadRequest

Asked = Request[Any, Any, Any]


class Render(Body, frozen=True, kw_only=True):
    """A template, or an object of templates."""

    execution_id: str
    step: str | None = None
    iteration: int | None = None
    template: str | None = None
    object: Any = msgspec.UNSET


@route("POST", "/api/context/render", right="read")
async def render(services: Services, request: Asked, data: Render) -> dict[str, Any]:
    """The value as that step would see it. No secret is in scope here."""
    given = data.template if data.template is not None else data.object
    if given is msgspec.UNSET or (data.template is not None and data.object is not msgspec.UNSET):
        raise BadRequest("give a `template`, or an `object` of templates, and not both.")
    seen = await seen_by(
        services.orchestrator,
        data.execution_id,
        given,
        at=services.clock.now(),
        step=data.step,
        iteration=data.iteration,
    )
    value = await services.evaluator.rendered(given, seen, request.user.name)
    return {"rendered": value}


routes = [render]
