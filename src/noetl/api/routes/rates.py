"""/api/rates: slots of rate limits that all workers share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from noetl.api.route import Body, Caller, Route, Services
from noetl.api.routes.tokens import WORKER, require_lease
from noetl.model.answers import Moment


class TakeMoment(Body, frozen=True, kw_only=True):
    """Of which rate."""

    execution_id: str
    """The execution whose playbook names the rate."""
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    apart: Annotated[float, msgspec.Meta(gt=0)]
    """Seconds between two slots."""


async def take(services: Services, caller: Caller, *, body: TakeMoment) -> Moment:
    """Reserve the next free slot of a rate limit, for a worker that holds a lease of an execution
    whose playbook names that rate.
    """
    await require_lease(services, caller, body.execution_id, family=False)
    delay = await services.control.next_moment(body.key, body.apart, body.execution_id)
    return Moment(delay=delay)


TAKE = Route(
    "rates.take", "POST", "/api/rates/take", "work", take, body=TakeMoment, headers=(WORKER,)
)
