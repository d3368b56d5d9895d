"""Servers that share a database remember where executions stand; what is true decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from noetl.store.access import AuditEntry
from noetl.store.log import Write
from noetl.store.postgres import PostgresStore
from tests.store.making import NOON, ONE, TWO, event, events, free, more, start


@asynccontextmanager
async def two_servers(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    ours, theirs = [await PostgresStore.open(url) for _ in range(2)]
    yield ours, theirs
    await ours.close()
    await theirs.close()


async def test_of_a_decision_on_what_another_server_changed_nothing_is_kept(database_url: str):
    entry = AuditEntry(at=NOON, who="ada", action="execution.pause", target="t", execution_id=ONE)
    late = more(
        1,
        commands=free("b", "c"),
        closed=["a"],
        timers=[("u", NOON)],
        timers_cleared=["t"],
        audit=[entry],
    )
    async with two_servers(database_url) as (ours, theirs):
        await ours.log.commit([start(ONE, commands=free("a"), timers=[("t", NOON)])])
        assert await theirs.log.commit([more(1)]) == []

        assert await ours.log.commit([late, start(TWO)]) == [ONE]

        assert await ours.log.events(ONE) == events(1, 2)
        assert [one.command.command_id for one in await ours.queue.open_commands(ONE)] == ["a"]
        assert await ours.queue.timers(ONE) == {"t": NOON}
        assert await ours.access.audit() == []
        assert await ours.log.heads([TWO]) == {TWO: 1}


@pytest.mark.parametrize("beside", [[], [start(TWO)]], ids=["alone", "beside another"])
async def test_who_wrote_what_a_failover_lost_continues_only_what_is_there(
    database_url: str, beside: list[Write]
):
    """The log is as long as it was, and ends with an event of another server."""
    async with two_servers(database_url) as (ours, theirs):
        await ours.log.commit([start(ONE)])
        with psycopg.connect(database_url) as db:
            row = "SELECT seq, checksum FROM noetl.execution WHERE execution_id = %s"
            before = db.execute(row, [ONE]).fetchone()
            assert before is not None
            db.commit()
            await ours.log.commit([more(1)])
            db.execute("DELETE FROM noetl.log WHERE execution_id = %s AND seq = 2", [ONE])
            back = "UPDATE noetl.execution SET seq = %s, checksum = %s WHERE execution_id = %s"
            db.execute(back, [*before, ONE])
        assert await theirs.log.commit([more(1, events=[event(2, step="theirs")])]) == []

        assert await ours.log.commit([more(2), *beside]) == [ONE]

        assert await ours.log.load(ONE) is not None
        assert await ours.log.commit([more(2)]) == []
        assert [row.step for row in await ours.log.events(ONE)] == ["fetch", "theirs", "fetch"]
        assert await ours.check() == []
