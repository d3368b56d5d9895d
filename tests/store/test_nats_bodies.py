"""Large bodies with copies in NATS: what is read is what was written, copy or no copy."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from noetl.store.nats.bodies import SIZE_MIN, NatsBodies
from noetl.store.nats.connection import NatsConnection
from noetl.store.postgres import PostgresStore
from tests.stopwatch import PATIENCE
from tests.store.test_sessions import connected, copied, copies_in, session
from tests.tools.services import nats_server

DEPLOY = Path(__file__).parents[2] / "deploy"
LARGE = random.Random(7).randbytes(3 * SIZE_MIN + 1)


@asynccontextmanager
async def storing(
    database_url: str, nats_url: str, bucket: str = ""
) -> AsyncIterator[tuple[PostgresStore, NatsBodies]]:
    async with connected(nats_url) as line:
        store = await PostgresStore.open(database_url)
        copies = store.bodies.copies = NatsBodies(line, bucket or f"trial_{uuid4().hex}")
        copying = asyncio.create_task(copies.run())
        try:
            yield store, copies
        finally:
            copying.cancel()
            await asyncio.wait([copying])
            await store.close()


async def read_until_copied(store: PostgresStore, copies: NatsBodies, key: str) -> bytes | None:
    """Copies are made beside the reading."""
    async with asyncio.timeout(PATIENCE):
        while True:
            body = await store.bodies.get("7", key)
            if copies.found:
                return body
            await asyncio.sleep(0.02)


async def test_a_body_that_was_read_is_read_from_its_copy(database_url, nats_url):
    async with storing(database_url, nats_url) as (store, copies):
        await store.bodies.put("7", "k", LARGE)

        assert await store.bodies.get("7", "k") == LARGE
        assert copies.missed == 1
        assert await read_until_copied(store, copies, "k") == LARGE


async def test_a_damaged_copy_is_passed_over(database_url, nats_url):
    async with storing(database_url, nats_url) as (store, copies):
        await store.bodies.put("7", "k", LARGE)
        copies.offer(hashlib.sha256(LARGE).hexdigest(), LARGE[::-1])

        assert await read_until_copied(store, copies, "k") == LARGE


async def test_a_copy_without_a_result_is_nothing(database_url, nats_url):
    async with storing(database_url, nats_url) as (store, copies):
        copies.offer(hashlib.sha256(LARGE).hexdigest(), LARGE)

        assert await store.bodies.get("7", "k") is None


async def test_copying_ends_when_it_is_told_to_whatever_it_does_just_then(nats_url):
    async with connected(nats_url) as line:
        copies = NatsBodies(line, f"trial_{uuid4().hex}")
        for turns in range(0, 2000, 10):
            copying = asyncio.create_task(copies.run())
            copies.offer(f"{turns:064}", LARGE[: SIZE_MIN + 1])
            for _ in range(turns):
                await asyncio.sleep(0)
            copying.cancel()
            await asyncio.wait([copying], timeout=10)
            assert copying.done(), f"cancelled after {turns} turns of the loop"


async def refused(line: NatsConnection) -> None:
    """Wait until NATS has said that it does not know us."""
    running = asyncio.create_task(line.run())
    async with asyncio.timeout(PATIENCE):
        while "uthorization" not in str(line.away()):
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.wait([running])
    assert not line.is_connected


async def test_the_rights_that_operations_names_are_enough(database_url, monkeypatch):
    # As compose sets it: quoted, or NATS would read this one as a number.
    monkeypatch.setenv("NATS_PASSWORD", "'1e3012345678'")
    with nats_server("-c", str(DEPLOY / "nats.conf")) as url:
        for stranger in ("", "noetl:wrong@"):
            await refused(NatsConnection([url.replace("//", f"//{stranger}")]))
        url = url.replace("//", "//noetl:1e3012345678@")
        async with storing(database_url, url) as (store, copies), connected(url) as line:
            await store.bodies.put("7", "k", LARGE)
            assert await read_until_copied(store, copies, "k") == LARGE

            sessions = copies_in(line, "trial_sessions")
            await sessions.put(session("1", "1"))
            assert len(await copied(line, "trial_sessions")) == 1
            await sessions.delete(session("1", "1"))
            assert await copied(line, "trial_sessions") == []
            assert line.failures == 0


async def test_a_reader_that_gives_up_leaves_no_subscription_behind(nats_url):
    async with connected(nats_url) as line, asyncio.timeout(PATIENCE):
        copies = NatsBodies(line, f"trial_{uuid4().hex}")
        copying = asyncio.create_task(copies.run())
        copies.offer("a" * 64, LARGE)
        while await copies.get("a" * 64, len(LARGE)) != LARGE:
            await asyncio.sleep(0.02)
        async with line.asking() as client:
            before = len(client._subs)

        reading = asyncio.create_task(copies.get("a" * 64, len(LARGE)))
        while len(client._subs) == before and not reading.done():
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])

        assert len(client._subs) == before
        copying.cancel()
        await asyncio.wait([copying])


async def test_small_bodies_are_the_databases_own(database_url, nats_url):
    async with storing(database_url, nats_url) as (store, copies):
        await store.bodies.put("7", "k", b"[1]")

        assert await store.bodies.get("7", "k") == b"[1]"
        assert copies.found == copies.missed == 0


async def test_copies_that_were_lost_cost_nothing_but_time(database_url, nats_url):
    bucket = f"trial_{uuid4().hex}"
    async with (
        storing(database_url, nats_url, bucket) as (store, copies),
        connected(nats_url) as line,
    ):
        await store.bodies.put("7", "k", LARGE)
        await read_until_copied(store, copies, "k")
        async with line.asking() as client:
            await client.jetstream().delete_object_store(bucket)

        assert await store.bodies.get("7", "k") == LARGE
        copies.found = 0
        assert await read_until_copied(store, copies, "k") == LARGE


async def test_s18_a_copy_that_claims_to_be_larger_than_the_body_is_not_read(nats_url):
    async with connected(nats_url) as line, asyncio.timeout(PATIENCE):
        copies = NatsBodies(line, f"trial_{uuid4().hex}")
        copying = asyncio.create_task(copies.run())
        copies.offer("a" * 64, LARGE * 20)
        while await copies.get("a" * 64, len(LARGE) * 20) is None:
            await asyncio.sleep(0.02)

        assert await copies.get("a" * 64, len(LARGE)) is None
        copying.cancel()
        await asyncio.wait([copying])
