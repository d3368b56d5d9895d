"""/api/context: evaluate a template in an execution, to find out why it did what it did."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from noetl.api.route import Body, Caller, Route, Services
from noetl.control.preview import seen_in
from noetl.errors import BadRequest
from noetl.model.answers import Rendered


class Render(Body, frozen=True, kw_only=True):
    """A template, or an object of templates."""

    execution_id: str
    step: str | None = None
    iteration: int | None = None
    template: str | None = None
    object: Any = msgspec.UNSET
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)] | None = None
    """Evaluate after this event; by default after the last one."""


async def render(services: Services, caller: Caller, *, body: Render) -> Rendered:
    """The value of a template as a step would see it. Secrets are not in scope."""
    given = body.template if body.template is not None else body.object
    if given is msgspec.UNSET or (body.template is not None and body.object is not msgspec.UNSET):
        raise BadRequest("give a `template`, or an `object` of templates, and not both.")
    if body.seq is None:
        state, at = await services.orchestrator.state(body.execution_id), services.clock.now()
    else:
        found = await services.moments.at(body.execution_id, body.seq)
        state, at = found.state, found.event.at
    seen = seen_in(
        await services.orchestrator.programs.by_digest(state.digest),
        state,
        body.execution_id,
        given,
        at=at,
        step=body.step,
        iteration=body.iteration,
    )
    return Rendered(rendered=await services.evaluator.rendered(given, seen, caller.name))


RENDER = Route("context.render", "POST", "/api/context/render", "read", render, body=Render)
