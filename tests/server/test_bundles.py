"""Reports of a worker travel together; none stays behind, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from aiohttp import web

from noetl.api import worker_control
from noetl.errors import LeaseLost
from noetl.model.commands import Answer, Report
from noetl.templates import Views
from noetl.tools.registry import tool_of
from tests.server.stage import Caller, answer, playing
from tests.stopwatch import PATIENCE
from tests.tools.services import answering

VIEWS = Views(tool_of)


def report(number: int) -> Report:
    return Report(command_id=f"c{number}", execution_id="1", token="t", number=1, closes=True)


class Desk:
    """Answers lists of reports, and remembers how many came at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def take(self, request: web.Request) -> web.StreamResponse:
        said = await request.json()
        self.sizes.append(len(said))
        lost = {"error": {"code": "lease_lost", "message": "gone", "details": None}}
        good = {"accepted": True, "cancelled": False, "commands": []}
        answers = [lost if one["command_id"] == "c13" else good for one in said]
        return web.json_response({"answers": answers})


def taken(reports: int, *, at_once: bool) -> tuple[Desk, list[Answer | BaseException]]:
    desk = Desk()

    async def story(url: str) -> list[Answer | BaseException]:
        async with worker_control.HttpControl([url], VIEWS) as control:
            if at_once:
                sending = [control.report(report(number)) for number in range(reports)]
                return await asyncio.gather(*sending, return_exceptions=True)
            return [await control.report(report(number)) for number in range(reports)]

    with answering(("POST", "/api/commands/report", desk.take)) as url:
        return desk, asyncio.run(asyncio.wait_for(story(url), PATIENCE))


@pytest.mark.parametrize("senders", [1, 2])
def test_reports_one_after_the_other_are_each_sent_at_once(
    monkeypatch: pytest.MonkeyPatch, senders: int
):
    monkeypatch.setattr(worker_control, "BUNDLES_AT_ONCE", senders)

    desk, answers = taken(10, at_once=False)

    assert desk.sizes == [1] * 10
    assert all(isinstance(one, Answer) and one.accepted for one in answers)


@pytest.mark.parametrize("senders", [1, 2])
def test_reports_that_gather_travel_together_and_each_has_its_answer(
    monkeypatch: pytest.MonkeyPatch, senders: int
):
    monkeypatch.setattr(worker_control, "BUNDLES_AT_ONCE", senders)

    desk, answers = taken(50, at_once=True)

    assert sum(desk.sizes) == 50
    assert len(desk.sizes) < 10
    lost = [number for number, one in enumerate(answers) if isinstance(one, LeaseLost)]
    assert lost == [13]
    assert sum(isinstance(one, Answer) for one in answers) == 49


@pytest.mark.parametrize("senders", [1, 2])
def test_whoever_gives_up_on_a_report_takes_no_other_along(
    monkeypatch: pytest.MonkeyPatch, senders: int
):
    monkeypatch.setattr(worker_control, "BUNDLES_AT_ONCE", senders)
    has_begun = threading.Event()
    desk = Desk()

    async def take(request: web.Request) -> web.StreamResponse:
        # Of two senders either may come first: it is the report that is given up that must hang.
        if "c0" in {one["command_id"] for one in await request.json()}:
            has_begun.set()
            await asyncio.Event().wait()
        return await desk.take(request)

    async def story() -> list[Answer]:
        async with (
            worker_control.HttpControl([url], VIEWS) as control,
            asyncio.timeout(PATIENCE),
        ):
            sending = [asyncio.create_task(control.report(report(number))) for number in range(4)]
            await asyncio.to_thread(has_begun.wait)
            sending[0].cancel()
            return await asyncio.gather(*sending[1:])

    with answering(("POST", "/api/commands/report", take)) as url:
        found = asyncio.run(story())

    assert [one.accepted for one in found] == [True] * 3
    assert sum(desk.sizes) == 3


def test_a_report_is_sent_again_at_once_when_its_connection_broke(
    caplog: pytest.LogCaptureFixture,
):
    good = b'{"answers": [{"accepted": true, "cancelled": false, "commands": []}]}'

    def once(caller: Caller) -> None:
        """Answers one, hears another, and is gone."""
        caller.hear()
        caller.say(answer(good))
        caller.hear()

    def always(caller: Caller) -> None:
        while caller.hear() is not None:
            caller.say(answer(good))

    async def story(url: str) -> list[Answer]:
        async with worker_control.HttpControl([url], VIEWS) as control:
            return [await control.report(report(number)) for number in range(3)]

    with playing(once, always) as stage:
        found = asyncio.run(asyncio.wait_for(story(stage.url), PATIENCE))
        bodies = [one.partition(b"\r\n\r\n")[2] for one in stage.asked]

    assert [one.accepted for one in found] == [True] * 3
    assert len(bodies) == 4
    assert bodies[1] == bodies[2]
    assert "trying again" not in caplog.text


@pytest.mark.parametrize("answers", [[], [{}] * 100, "yes"])
def test_a_server_that_does_not_answer_each_report_keeps_nobody_waiting(answers: Any):
    async def take(request: web.Request) -> web.StreamResponse:
        return web.json_response({"answers": answers})

    async def story() -> list[Any]:
        async with (
            worker_control.HttpControl([url], VIEWS) as control,
            asyncio.timeout(PATIENCE),
        ):
            sent = (control.report(report(number)) for number in range(5))
            return await asyncio.gather(*sent, return_exceptions=True)

    with answering(("POST", "/api/commands/report", take)) as url:
        found = asyncio.run(story())

    assert [one for one in found if not isinstance(one, ValueError)] == []
