"""Acting on an execution, wherever it runs: on a server, here, or in the process that has the
database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from noetl.cli.printing import say
from noetl.cli.whoami import user_name
from noetl.errors import Conflict, Finished, NotFound, SignalRefused, StoreBusy

if TYPE_CHECKING:
    from noetl.control.requests import Action, Answer, Request
    from noetl.settings import Settings

ROUNDS = 3
PATIENCE = 1.5
"""Seconds per round. Who has the database looks for requests five times a second."""


class Unanswered(Conflict):
    """The process that has the database took no notice. Nothing was done."""

    code = "unanswered"


async def find(settings: Settings, written: str) -> str:
    """The execution that people mean by an abbreviated id."""
    from noetl.cli.remote import looking

    async with looking(settings) as records:
        return await records.find(written)


async def act(settings: Settings, action: Action, execution_id: str, reason: str = "") -> None:
    """Have it done, wherever the execution runs."""
    from noetl.control.requests import Request

    await send(settings, Request(action=action, execution_id=execution_id, reason=reason))


async def send(settings: Settings, request: Request) -> None:
    """Have it done: by the server, by ourselves, or by whoever has the database."""
    if settings.server_url is not None:
        return await _ask_server(settings, request)
    request = msgspec.structs.replace(request, user=user_name())
    busy: StoreBusy | None = None
    for _ in range(ROUNDS):
        try:
            return await _act_here(settings, request)
        except StoreBusy as error:
            busy = error
        answer = await _ask(settings, request)
        if answer is not None:
            return _heed(answer)
    raise Unanswered(f"nothing was done: the process that has the database does not answer. {busy}")


async def _ask_server(settings: Settings, request: Request) -> None:
    from noetl.cli.remote import connected

    async with connected(settings) as client:
        if request.action == "signal":
            signal = {"name": request.name, "data": request.data, "step": request.step}
            body = {**signal, "event_id": request.signal_id}
            await client.act(request.execution_id, "events", **body)
        elif request.action == "resume":
            await client.act(request.execution_id, "resume")
        else:
            answer = await client.act(request.execution_id, request.action, reason=request.reason)
            for worker in answer.get("unconfirmed", ()):
                say(f"worker {worker} has not confirmed the pause; it may begin something yet")


async def _act_here(settings: Settings, request: Request) -> None:
    from noetl import wiring

    async with wiring.embedded(settings, work=False, patience=0) as system:
        await system.executions.act(request)


async def _ask(settings: Settings, request: Request) -> Answer | None:
    from noetl import wiring
    from noetl.control.requests import ask

    folder = wiring.requests_folder(settings)
    return await ask(folder, request, patience=PATIENCE) if folder is not None else None


def _heed(answer: Answer) -> None:
    if answer.done:
        return
    kinds = {kind.code: kind for kind in (Finished, NotFound, SignalRefused)}
    raise kinds.get(answer.code, Conflict)(answer.message)
