"""Reports that travel together: whatever the server answers, nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

from noetl.client import HttpControl
from noetl.model.commands import Report
from tests.tools.services import answering


def report(number: int) -> Report:
    return Report(command_id=str(number), execution_id="1", token="t", number=1, worker="w")


@pytest.mark.parametrize("answers", [[], [{}] * 100, "yes"])
def test_a_server_that_does_not_answer_each_report_keeps_nobody_waiting(answers: Any):
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode({"answers": answers}))

    async def story() -> list[Any]:
        async with HttpControl([url]) as control, asyncio.timeout(60):
            sent = (control.report(report(number)) for number in range(5))
            return await asyncio.gather(*sent, return_exceptions=True)

    with answering(("POST", "/api/commands/report", answer)) as url:
        found = asyncio.run(story())

    assert [one for one in found if not isinstance(one, ValueError)] == []
