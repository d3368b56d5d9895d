"""Lists that come in pages, as commands read them to their end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from noetl.api.route import AnyRoute
from noetl.api.routes import executions, schedules
from noetl.api.routes.trigger_documents import WhichDocuments
from noetl.cli.calls import Api, holding
from noetl.settings import Settings
from tests.server.test_schedules import PLAYBOOK, SCHEDULE

DAILY = SCHEDULE.replace("every: 1s", "every: 1d")


async def sizes(api: Api, route: AnyRoute, query: Any, rows: str, **parameters: str) -> list[int]:
    return [len(getattr(page, rows)) async for page in api.pages(route, query, **parameters)]


async def read(api: Api) -> None:
    await api.client.register(PLAYBOOK)
    started = [(await api.client.start("web/p")).execution_id for _ in range(3)]
    for name in ("a", "b", "c"):
        await api.client.register(DAILY.replace("web/s", f"web/{name}"))
    events = await api.page(started[0])

    by_cursor = await sizes(api, executions.LIST, executions.Which(limit=2), "executions")
    one = executions.WhichEvents(limit=1)
    by_number = await sizes(api, executions.EVENTS, one, "events", execution_id=started[0])
    rest = executions.WhichEvents(after=events.next_after)
    at_end = await sizes(api, executions.EVENTS, rest, "events", execution_id=started[0])
    by_path = await sizes(api, schedules.LIST, WhichDocuments(limit=2), "schedules")

    assert by_cursor == [2, 1]
    assert by_number == [1] * len(events.events)
    assert at_end == [0]
    assert by_path == [2, 1]


def test_every_page_of_every_kind_of_list_is_read(tmp_path: Path):
    async def check() -> None:
        async with holding(Settings(database_url=f"sqlite:///{tmp_path / 'n.db'}")) as api:
            await read(api)

    asyncio.run(check())
