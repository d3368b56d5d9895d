"""Executions that wait for their turn have it, whoever made room for them."""

from __future__ import annotations

from pathlib import Path

from noetl import wiring
from noetl.api.services import Services
from noetl.settings import Settings
from tests.control.servers import run, servers, started
from tests.control.test_schedules import until
from tests.server.processes import SECRET_KEY

BOUNDED = """
executor: {spec: {concurrency: {key: one, limit: 1}}}
workflow: [{step: start, tool: {kind: noop}}]
"""


async def cancelled_by_a_visitor(url: str, execution_id: str) -> None:
    """As `noetl executions cancel` does it: another process, which starts nothing of others."""
    given = {"NOETL_DATABASE_URL": url, "NOETL_SECRET_KEY": SECRET_KEY}
    async with wiring.embedded(Settings.from_environment(given), work=False) as visitor:
        await visitor.executions.cancel(execution_id, "not needed")


async def runs(system: Services, execution_id: str) -> bool:
    return (await system.orchestrator.state(execution_id)).status == "RUNNING"


def test_room_that_was_made_while_no_server_was_there_is_used(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/noetl.db"

    async def story() -> None:
        async with servers(url, 1) as (system,):
            holder, waiting = await started(system, BOUNDED), await started(system, BOUNDED)
            assert not await runs(system, waiting)
        await cancelled_by_a_visitor(url, holder)
        async with servers(url, 1) as (system,), wiring.keeping_time(system):
            await until(lambda: runs(system, waiting))

    run(story)


def test_room_that_another_process_made_is_used(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as (system,), wiring.keeping_time(system):
            holder, waiting = await started(system, BOUNDED), await started(system, BOUNDED)
            await cancelled_by_a_visitor(database_url, holder)
            await until(lambda: runs(system, waiting))

    run(story)
