"""/api/context: what a template would yield in an execution, for people who are looking for why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from noetl.api.route import Body, Caller, Route
from noetl.control.rendering import seen_by
from noetl.errors import BadRequest
from noetl.model.answers import Rendered

if TYPE_CHECKING:
    from noetl.api.services import Services


class Render(Body, frozen=True, kw_only=True):
    """A template, or an object of templates."""

    execution_id: str
    step: str | None = None
    iteration: int | None = None
    template: str | None = None
    object: Any = msgspec.UNSET


async def render(services: Services, caller: Caller, *, body: Render) -> Rendered:
    """The value as that step would see it. No secret is in scope here."""
    given = body.template if body.template is not None else body.object
    if given is msgspec.UNSET or (body.template is not None and body.object is not msgspec.UNSET):
        raise BadRequest("give a `template`, or an `object` of templates, and not both.")
    seen = await seen_by(
        services.orchestrator,
        body.execution_id,
        given,
        at=services.clock.now(),
        step=body.step,
        iteration=body.iteration,
    )
    return Rendered(rendered=await services.evaluator.rendered(given, seen, caller.name))


RENDER = Route(
    "context.render",
    "POST",
    "/api/context/render",
    right="read",
    body=Render,
    answer=Rendered,
    handler=render,
)
ROUTES = (RENDER,)
