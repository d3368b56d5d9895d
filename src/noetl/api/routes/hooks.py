"""/hooks/{path}: deliveries from other systems; /api/hooks: the registered hooks.

A delivery that is not genuine always gets the same answer, so that it reveals nothing. It is
counted, and some of each minute are written to the audit log.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

import msgspec

from noetl.api.route import Caller, Incoming, Query, Reply, Route, Services, refuse_nul
from noetl.api.routes.trigger_documents import Documents, target_words
from noetl.control import documents
from noetl.control.hooks import Delivery, Known, Taken, broken_json, view
from noetl.control.trigger_documents import TriggerState
from noetl.errors import (
    RETRY_SECONDS,
    BadRequest,
    EvaluationFailed,
    NoetlError,
    NotFound,
    StoreError,
    Unauthenticated,
)
from noetl.model.answers import Error, ErrorAnswer
from noetl.model.trigger_answers import (
    DeliveryAnswer,
    HookDelivery,
    HookDocument,
    HookItem,
    HookList,
)
from noetl.model.triggers import (
    TOLERANCE_SECONDS,
    WAIT_SECONDS_MAX,
    Hook,
    SignalTarget,
    Verify,
)

logger = logging.getLogger(__name__)

BODY_MAX = 8 * 1024 * 1024
NUL = (b"\0", b"\\u0000", b"%00")
"""How texts, JSON and forms spell the character; a body may hold these and mean something else."""


async def deliver(
    services: Services,
    caller: Caller,
    *,
    path: str,
    query: dict[str, str],
    body: Incoming,
) -> Reply[DeliveryAnswer]:
    """Accept a delivery, if it is genuine: 202, or with `wait` 200 with the result. A repeated
    delivery is answered like the first. One that cannot be accepted now is 503, so that the sender
    repeats it; one that does not fit is 422.
    """
    hooks = services.hooks
    known = await hooks.lately(path)
    if known is None:
        services.metrics.deliveries.inc("unknown")
        raise NotFound("there is no such hook.")
    headers = caller.headers
    if not hooks.may_be_genuine(known, headers):
        raise await _refused(services, caller, path)
    delivery = Delivery(headers, query, await body.read())
    if not hooks.is_genuine(known, delivery):
        raise await _refused(services, caller, path)
    if (challenge := _challenge(known, delivery)) is not None:
        return Reply(challenge)  # type: ignore[arg-type]
    try:
        if any(spelling in delivery.body for spelling in NUL):
            shown = view(known.hook, delivery, services.clock.now())
            refuse_nul(msgspec.json.encode([shown["text"], shown["body"], shown["form"]]))
        taken = await hooks.take(known, delivery)
    except StoreError:
        raise
    except NoetlError as error:
        return _failed(services, path, delivery, error)
    services.metrics.deliveries.inc(taken.status)
    if not taken.is_listed:
        hooks.deliveries.note(path, taken.status, *taken.execution_ids[:1])
    return await _answer(services, known, taken)


async def _refused(services: Services, caller: Caller, path: str) -> Unauthenticated:
    services.metrics.deliveries.inc("refused")
    services.hooks.deliveries.refuse(path)
    await services.access.note_refused_delivery(path, caller.address)
    return Unauthenticated("this delivery is not accepted.")


def _failed(
    services: Services, path: str, delivery: Delivery, error: NoetlError
) -> Reply[DeliveryAnswer]:
    """The sender learns only whether to try again; the log has the reason."""
    services.metrics.deliveries.inc("failed")
    reason = "; ".join(filter(None, (broken_json(delivery), str(error))))
    services.hooks.deliveries.note(path, "failed", reason=reason)
    logger.error('a delivery to hook "%s" cannot be accepted: %s', path, reason)
    fits = not isinstance(error, BadRequest | EvaluationFailed)
    message = "this delivery cannot be accepted now." if fits else "this delivery does not fit."
    said = ErrorAnswer(error=Error(code="hook_failed", message=message))
    if not fits:
        return Reply(said, status=422)  # type: ignore[arg-type]
    again = (("Retry-After", str(RETRY_SECONDS)),)
    return Reply(said, status=503, headers=again)  # type: ignore[arg-type]


def _challenge(known: Known, delivery: Delivery) -> dict[str, str] | None:
    """Slack checks the address once, with a challenge."""
    if known.hook.verify.header != "x-slack-signature":
        return None
    try:
        asked = msgspec.json.decode(delivery.body, type=dict[str, object])
    except msgspec.DecodeError:
        return None
    challenge = asked.get("challenge")
    if asked.get("type") != "url_verification" or not isinstance(challenge, str):
        return None
    return {"challenge": challenge}


async def _answer(services: Services, known: Known, taken: Taken) -> Reply[DeliveryAnswer]:
    first = taken.execution_ids[0] if taken.execution_ids else None
    several = isinstance(known.hook.target, SignalTarget)
    answer = DeliveryAnswer(
        status=taken.status,
        execution_id=first,
        execution_ids=list(taken.execution_ids) if several else msgspec.UNSET,
        due=msgspec.UNSET if taken.due is None else str(documents.moment(taken.due)),
    )
    wait = min(known.hook.wait, WAIT_SECONDS_MAX)
    if wait and first is not None and not several:
        ended = await services.hooks.result(first, wait)
        if ended is not None:
            answer = msgspec.structs.replace(
                answer, result=ended["result"], execution_status=ended["status"]
            )
            return Reply(answer)
    return Reply(answer, status=202)


class WhichDeliveries(Query, frozen=True, kw_only=True):
    """How many deliveries to return."""

    deliveries: Annotated[int, msgspec.Meta(ge=0, le=500)] = 20


async def show(
    services: Services, caller: Caller, *, path: str, query: WhichDeliveries
) -> HookDocument:
    """One hook, and the outcome of its last deliveries."""
    item = await _item(services, *await services.hooks.find(path))
    found = await services.hooks.deliveries.of(path, limit=query.deliveries)
    deliveries = [documents.of(HookDelivery, one, time=one.at) for one in found]
    return documents.of(HookDocument, item, deliveries=deliveries)


async def _item(services: Services, hook: Hook, state: TriggerState) -> HookItem:
    known = await services.hooks.known(hook, state)
    return documents.of(
        HookItem,
        hook,
        known,
        url=f"/hooks/{hook.path}",
        verify=_way(hook.verify),
        credentials=hook.verify.secrets,
        missing_credentials=known.missing,
        debounced=hook.debounce is not None,
        **target_words(hook.target),
    )


def _way(verify: Verify) -> str:
    """What a document calls this way to verify: `github` and `slack` spell an `hmac`."""
    from noetl.dsl.triggers import PRESETS

    plain = msgspec.structs.replace(verify, secrets=(), tolerance=TOLERANCE_SECONDS)
    return next((name for name, preset in PRESETS.items() if preset == plain), verify.scheme)


DELIVER = Route(
    "hooks.deliver",
    "POST",
    "/hooks/{path}",
    "anyone",
    deliver,
    query=dict,
    body=bytes,
    holds=Any,
    deep=True,
    streamed=True,
    body_max=BODY_MAX,
    statuses=(202,),
    patient=True,
)
DOCUMENTS = Documents("hooks", item=_item, show=show, query=WhichDeliveries)
LIST = DOCUMENTS.listing(HookList)
GET = DOCUMENTS.get()
DELETE = DOCUMENTS.delete()
