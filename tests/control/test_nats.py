"""Servers that tell each other over NATS: sooner while it is there, not stuck while it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import nats
import pytest

from noetl.api.services import Services
from noetl.control import peers
from tests.control.servers import done, leased, run, servers, started
from tests.servers import NatsServer, nats_running
from tests.stopwatch import PATIENCE
from tests.tools.services import free_port

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_running(tmp_path / "nats") as one:
        yield one


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes can only come as news."""
    monkeypatch.setattr(peers, "LOOK_SECONDS", 3600.0)


async def hand_over(first: Services, second: Services) -> None:
    """Work that the one opens reaches a worker that waits at the other.

    News of the first moments may be lost, as news may: so work is opened until some is heard of.
    """
    pool = f"pool-{uuid4().hex}"
    lease = second.orchestrator.leases.lease("w", pool=pool, want=1, wait=60)
    waiting = asyncio.create_task(lease)
    while pool not in second.orchestrator.dispatch.waiting_queues():
        await asyncio.sleep(0.01)
    while not waiting.done():
        await started(
            first, f"workflow: [{{step: start, spec: {{pool: {pool}}}, tool: {{kind: noop}}}}]\n"
        )
        await asyncio.wait([waiting], timeout=0.2)

    assert len(waiting.result()) == 1


def test_news_reach_other_servers_and_their_workers_over_nats(
    database_url: str, nats_url: str, nobody_looks: None
):
    async def story() -> None:
        async with servers(database_url, 2, NOETL_NATS_URL=nats_url) as (first, second):
            await hand_over(first, second)
            await hand_over(second, first)
            execution_id = await started(first, ONE_STEP)
            ended = asyncio.create_task(first.orchestrator.wait_for_end(execution_id))
            for lease in await leased(second, "w", want=100):
                await second.orchestrator.report(done(lease, "w"))

            assert (await ended).status == "COMPLETED"

    run(story)


def test_news_flow_again_when_nats_has_come_back(
    database_url: str, server: NatsServer, nobody_looks: None
):
    async def story() -> None:
        async with servers(database_url, 2, NOETL_NATS_URL=server.url) as (first, second):
            await hand_over(first, second)
            for _ in range(2):
                server.lose_everything()
                server.start()
                await hand_over(first, second)
                await hand_over(second, first)
            assert first.nats is not None
            assert first.nats.connection.connects >= 3

    run(story)


def test_t12_without_nats_looking_takes_over(database_url: str):
    nowhere = f"nats://127.0.0.1:{free_port()}"

    async def story() -> None:
        async with servers(database_url, 2, NOETL_NATS_URL=nowhere) as (first, second):
            await hand_over(first, second)
            assert first.nats is not None
            assert not first.nats.connection.is_connected

    run(story)


def test_t31_when_nats_is_silently_dead_looking_takes_over(database_url: str, server: NatsServer):
    async def story() -> None:
        async with servers(database_url, 2, NOETL_NATS_URL=server.url) as (first, second):
            await hand_over(first, second)
            server.pause()
            await hand_over(first, second)
            await hand_over(second, first)

            for one in (first, second):
                assert one.nats is not None
                async with asyncio.timeout(PATIENCE):
                    while one.nats.connection.is_connected:
                        await asyncio.sleep(0.05)

    run(story)


def test_any_of_several_nats_servers_will_do(database_url: str, nats_url: str, nobody_looks: None):
    several = f"nats://127.0.0.1:{free_port()},{nats_url}"

    async def story() -> None:
        async with servers(database_url, 2, NOETL_NATS_URL=several) as (first, second):
            await hand_over(first, second)

    run(story)


def test_what_is_written_at_once_is_told_at_once(database_url: str, nats_url: str):
    async def story() -> None:
        async with servers(database_url, 2, NOETL_NATS_URL=nats_url) as (first, second):
            await hand_over(first, second)
            connection = await nats.connect(nats_url)
            subject = f"noetl.{await first.store.installation()}.news"
            heard = await connection.subscribe(subject)
            await connection.flush()

            ids = set(await asyncio.gather(*(started(first, ONE_STEP) for _ in range(100))))
            messages = 0
            while ids:
                text = (await heard.next_msg(timeout=PATIENCE)).data.decode()
                messages += 1
                ids -= {one for one in ids if one in text}
            await connection.close()

            assert messages < 100

    run(story)


def test_two_databases_on_one_nats_server_do_not_meet(nats_url: str, tmp_path: Path):
    async def story() -> None:
        names = []
        for name in ("a", "b"):
            url = f"sqlite:///{tmp_path}/{name}.db"
            async with servers(url, 1, NOETL_NATS_URL=nats_url) as (one,):
                names.append(await one.store.installation())
        assert len(set(names)) == 2

    run(story)
