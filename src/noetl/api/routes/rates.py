"""/api/rates: slots of rate limits that all workers share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from noetl.api.route import Body, Caller, Route, Services
from noetl.model.answers import Moment


class TakeMoment(Body, frozen=True, kw_only=True):
    """Of which rate."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    apart: Annotated[float, msgspec.Meta(gt=0, le=31_622_400)]
    """Seconds between two slots."""


async def take(services: Services, caller: Caller, *, body: TakeMoment) -> Moment:
    """Reserve the next free slot of a rate limit for the caller."""
    return Moment(delay=await services.control.next_moment(body.key, body.apart))


TAKE = Route("rates.take", "POST", "/api/rates/take", "work", take, body=TakeMoment)
ROUTES = (TAKE,)
