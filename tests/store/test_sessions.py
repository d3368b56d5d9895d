"""Sessions in every database, what people see of them, and their copies in NATS."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from uuid import uuid4

import msgspec
import pytest
from nats.js.errors import NotFoundError

from noetl.api.sessions import TOUCH_SECONDS, Sessions
from noetl.errors import StoreBusy
from noetl.store.access import SESSION_SECONDS, StoredSession, StoredUser
from noetl.store.access import Sessions as SessionStore
from noetl.store.base import Store
from noetl.store.nats.channel import NatsChannel
from noetl.store.nats.connection import NatsConnection
from noetl.store.nats.seal import Seal
from noetl.store.nats.sessions import NatsSessions
from noetl.store.postgres import PostgresStore
from noetl.store.sqlite import SqliteStore
from tests.stopwatch import PATIENCE
from tests.tools.services import free_port

NOON = 1_800_000_000.0
HOUR = 3600.0
Ask = Callable[[str], object]
OURS = Seal(lambda: [b"1" * 32], "sessions")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[NatsConnection]:
    line = NatsConnection([url])
    running = asyncio.create_task(line.run())
    async with asyncio.timeout(PATIENCE):
        while not line.is_connected:
            await asyncio.sleep(0.01)
    try:
        yield line
    finally:
        running.cancel()
        await asyncio.wait([running])


async def nobody(_: str) -> StoredUser | None:
    return None


def copies_in(
    line: NatsConnection, bucket: str, seal: Seal = OURS, seconds: float = SESSION_SECONDS
) -> NatsSessions:
    return NatsSessions(line, bucket, seal, nobody, seconds=seconds)


async def copied(line: NatsConnection, bucket: str, pattern: str = ">") -> list[bytes]:
    """The copies that a program beside the servers finds, by user, session or digest."""
    async with line.asking() as client:
        js, stream = client.jetstream(), f"KV_{bucket}"
        info = await js.stream_info(stream, subjects_filter=f"$KV.{bucket}.{pattern}")
        last = []
        for subject in info.state.subjects or ():
            with suppress(NotFoundError):  # its time was over between the two questions
                last.append(await js.get_last_msg(stream, subject))
    return [one.data or b"" for one in last if "KV-Operation" not in (one.headers or {})]


def believed(values: list[bytes], seal: Seal = OURS) -> list[str]:
    """The sessions of those copies that our keys have signed."""
    bodies = [seal.opened(value) for value in values]
    return [msgspec.json.decode(body)["session_id"] for body in bodies if body is not None]


Opened = tuple[Store, NatsSessions | None]


@asynccontextmanager
async def in_sqlite(ask: Ask) -> AsyncIterator[Opened]:
    store = await SqliteStore.open(":memory:", threads=False)
    yield store, None
    await store.close()


@asynccontextmanager
async def in_postgres(ask: Ask) -> AsyncIterator[Opened]:
    store = await PostgresStore.open(str(ask("database_url")))
    yield store, None
    await store.close()


@asynccontextmanager
async def in_both(ask: Ask) -> AsyncIterator[Opened]:
    async with connected(str(ask("nats_url"))) as line, in_sqlite(ask) as (store, _):
        yield store, copies_in(line, f"trial_{uuid4().hex}")


@asynccontextmanager
async def nats_away(ask: Ask) -> AsyncIterator[Opened]:
    line = NatsConnection([f"nats://127.0.0.1:{free_port()}"])
    async with in_sqlite(ask) as (store, _):
        yield store, copies_in(line, "trial")


PLACES: dict[str, Callable[[Ask], AbstractAsyncContextManager[Opened]]] = {
    "sqlite": in_sqlite,
    "postgres": in_postgres,
    "nats-and-sqlite": in_both,
    "sqlite-while-nats-is-away": nats_away,
}


@pytest.fixture(params=PLACES)
def opened(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Opened]:
    if request.param == "postgres":
        request.getfixturevalue("database_url")  # Made before the loop of this test runs.
    place = PLACES[request.param](request.getfixturevalue)
    yield runner.run(place.__aenter__())
    runner.run(place.__aexit__(None, None, None))


@pytest.fixture
def place(store: Store):
    return store.sessions


def session(session_id: str, digit: str, user: str = "ada", at: float = NOON) -> StoredSession:
    return StoredSession(
        session_id=session_id,
        digest=digit * 64,
        user=user,
        created_at=at,
        expires_at=at + HOUR,
        last_activity_at=at,
        client_ip="127.0.0.1",
    )


def used(one: StoredSession, at: float) -> StoredSession:
    return msgspec.structs.replace(one, expires_at=at + HOUR, last_activity_at=at)


# --- What every place promises -------------------------------------------------------------------


async def test_a_session_is_found_by_its_digest(place):
    await place.put(session("1", "1"))
    await place.put(session("1", "1"))

    assert await place.get("1" * 64) == session("1", "1")
    assert await place.get("2" * 64) is None


async def test_a_session_that_was_used_counts_for_longer(place):
    first = session("1", "1")
    await place.put(first)

    assert await place.touch(used(first, NOON + 60))
    assert await place.get("1" * 64) == used(first, NOON + 60)
    assert await place.of_user("ada") == [used(first, NOON + 60)]


async def test_sessions_are_listed_by_user_newest_first(place):
    await place.put(session("1", "1"))
    await place.put(session("2", "2", at=NOON + 60))
    await place.put(session("3", "3", user="ada.b@c"))

    assert [one.session_id for one in await place.of_user("ada")] == ["2", "1"]
    assert [one.session_id for one in await place.of_user("ada.b@c")] == ["3"]
    assert await place.of_user("*") == await place.of_user(">") == []


async def test_a_session_that_was_ended_is_gone_and_using_it_does_not_bring_it_back(place):
    first = session("1", "1")
    await place.put(first)
    await place.put(session("2", "2"))

    assert await place.delete("1")
    assert not await place.delete("1")
    assert not await place.touch(used(first, NOON + 60))
    assert await place.get("1" * 64) is None
    assert [one.session_id for one in await place.of_user("ada")] == ["2"]


@pytest.mark.parametrize("name", ["*", ">", "*.>", "", "a b", "1.2"])
async def test_only_a_whole_name_ends_a_session(place, name):
    await place.put(session("1", "1"))

    assert not await place.delete(name)
    assert len(await place.of_user("ada")) == 1


async def test_a_session_used_by_many_at_once_counts(place):
    first = session("1", "1")
    await place.put(first)

    touched = [place.touch(used(first, NOON + 60 + n)) for n in range(5)]
    assert await asyncio.gather(*touched) == [True] * 5


# --- What people see -----------------------------------------------------------------------------


class Turned:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.at = NOON

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


async def test_a_session_lasts_a_day_after_it_was_last_used(opened):
    clock = Turned()
    store, copies = opened
    sessions = Sessions(store.sessions, clock, copies)
    secret, made = await sessions.create("ada", "127.0.0.1")

    for _ in range(3):
        clock.at += SESSION_SECONDS - 1
        found = await sessions.validate(secret)
        assert found is not None
        assert found.expires_at == clock.at + SESSION_SECONDS
        assert found.session_id == made.session_id
    clock.at += SESSION_SECONDS
    assert await sessions.validate(secret) is None
    assert await sessions.of("ada") == []


async def test_reading_often_is_not_writing_often(opened):
    clock = Turned()
    store, copies = opened
    sessions = Sessions(store.sessions, clock, copies)
    secret, made = await sessions.create("ada", "127.0.0.1")

    clock.at += TOUCH_SECONDS - 1
    assert await sessions.validate(secret) == made


async def test_a_session_that_was_ended_lets_nobody_in(opened):
    clock = Turned()
    store, copies = opened
    sessions = Sessions(store.sessions, clock, copies)
    secret, made = await sessions.create("ada", "127.0.0.1")
    other, _ = await sessions.create("ada", "127.0.0.1")

    assert await sessions.end(made)
    assert await sessions.validate(secret) is None
    assert await sessions.validate(other) is not None
    assert len(await sessions.of("ada")) == 1


class EndedAsItIsRead:
    """A place for sessions in which somebody ends each session just after it was read."""

    def __init__(self, place: SessionStore) -> None:
        self.place = place

    async def get(self, digest: str) -> StoredSession | None:
        found = await self.place.get(digest)
        if found is not None:
            await self.place.delete(found.session_id)
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self.place, name)


async def test_a_session_that_is_ended_while_it_is_used_lets_nobody_in(opened):
    clock = Turned()
    store, copies = opened
    sessions = Sessions(EndedAsItIsRead(store.sessions), clock, copies)
    secret, _ = await sessions.create("ada", "127.0.0.1")

    clock.at += TOUCH_SECONDS
    assert await sessions.validate(secret) is None
    assert await sessions.of("ada") == []


# --- Copies in NATS ------------------------------------------------------------------------------


async def test_a_copy_is_found_by_user_by_session_and_by_digest(nats_url):
    bucket = f"trial_{uuid4().hex}"
    async with connected(nats_url) as line:
        copies = copies_in(line, bucket)
        for one in (session("1", "1"), session("2", "2"), session("3", "3", user="ada.b@c")):
            await copies.put(one)
            await copies.put(one)

        for user, found in (("ada", ["1", "2"]), ("ada.b@c", ["3"])):
            word = base64.urlsafe_b64encode(user.encode()).decode().rstrip("=")
            assert sorted(believed(await copied(line, bucket, f"{word}.*.*"))) == found
        assert believed(await copied(line, bucket, "*.2.*")) == ["2"]
        assert believed(await copied(line, bucket, f"*.*.{'3' * 64}")) == ["3"]


async def test_a_copy_follows_its_session_from_sign_in_to_sign_out(nats_url):
    bucket, clock = f"trial_{uuid4().hex}", Turned()
    async with connected(nats_url) as line, in_sqlite(str) as (store, _):
        sessions = Sessions(store.sessions, clock, copies_in(line, bucket))
        secret, made = await sessions.create("ada", "127.0.0.1")
        await sessions.create("ada", "127.0.0.1")

        clock.at += HOUR
        assert await sessions.validate(secret) is not None
        [value] = await copied(line, bucket, f"*.*.{made.digest}")
        assert b'"last_activity_at":"2027-01-15T09:00:00Z"' in value

        assert await sessions.end(made)
        assert not await sessions.end(made)
        assert await copied(line, bucket, f"*.*.{made.digest}") == []
        assert len(await copied(line, bucket)) == 1


async def test_nats_forgets_a_copy_when_its_time_is_over(nats_url):
    bucket = f"short_{uuid4().hex}"
    async with connected(nats_url) as line, asyncio.timeout(PATIENCE):
        await copies_in(line, bucket, seconds=1.0).put(session("1", "1"))
        assert await copied(line, bucket)

        while await copied(line, bucket):
            await asyncio.sleep(0.05)


async def test_a_bucket_that_was_lost_is_made_again(nats_url):
    bucket = f"lost_{uuid4().hex}"
    async with connected(nats_url) as line:
        copies = copies_in(line, bucket)
        await copies.put(session("1", "1"))
        async with line.asking() as client:
            await client.jetstream().delete_key_value(bucket)

        await copies.put(session("2", "2"))
        assert believed(await copied(line, bucket)) == ["2"]


async def test_a_session_ended_while_nats_was_away_has_ended(nats_url):
    bucket, clock = f"trial_{uuid4().hex}", Turned()
    async with connected(nats_url) as line, in_sqlite(str) as (store, _):
        sessions = Sessions(store.sessions, clock, copies_in(line, bucket))
        secret, made = await sessions.create("ada", "127.0.0.1")
        away = copies_in(NatsConnection([nats_url]), "never connected")
        assert await Sessions(store.sessions, clock, away).end(made)

        assert await copied(line, bucket, f"*.*.{made.digest}")
        assert await sessions.validate(secret) is None


@pytest.mark.parametrize("key", [b"2" * 32, b""])
async def test_s18_a_copy_that_we_did_not_sign_is_known(nats_url, key):
    bucket = f"trial_{uuid4().hex}"
    async with connected(nats_url) as line:
        await copies_in(line, bucket, Seal(lambda: [key], "sessions")).put(session("1", "1"))

        [value] = await copied(line, bucket)
        assert believed([value]) == []
        assert believed([b'{"of": "another version"}']) == []


async def test_s18_a_copy_names_the_digest_that_it_is_of(nats_url):
    """A copy that is put under another key still says whose secret it belongs to."""
    bucket = f"trial_{uuid4().hex}"
    async with connected(nats_url) as line:
        await copies_in(line, bucket).put(session("1", "1", user="root"))

        [value] = await copied(line, bucket)
        assert msgspec.json.decode(OURS.opened(value) or b"")["digest"] == "1" * 64


async def test_s18_keys_are_rotated_while_servers_use_nats(nats_url):
    bucket = f"trial_{uuid4().hex}"
    async with connected(nats_url) as line:
        await copies_in(line, bucket).put(session("1", "1"))
        newer = Seal(lambda: [b"2" * 32, b"1" * 32], "sessions")

        assert believed(await copied(line, bucket), newer) == ["1"]


async def test_s18_only_what_servers_signed_is_heard_over_nats(nats_url):
    subject = f"noetl.{uuid4().hex}.news"
    async with connected(nats_url) as line, asyncio.timeout(PATIENCE):
        channel = NatsChannel(line, subject, OURS)
        heard: list[str] = []

        async def hear() -> None:
            async for text in channel.messages():
                heard.append(text)

        hearing = asyncio.create_task(hear())
        while not heard:
            await channel.send('{"sender":"first"}')
            await asyncio.sleep(0.02)
        async with line.asking() as client:
            for forged in (b'{"stops":{"w":["1"]}}', b"\xff", b"", b"{}"):
                await client.publish(subject, forged)
        await channel.send('{"sender":"last"}')
        while heard[-1] != '{"sender":"last"}':
            await asyncio.sleep(0.02)
        hearing.cancel()

        assert set(heard) == {'{"sender":"first"}', '{"sender":"last"}'}


async def test_whoever_asks_nats_while_it_is_away_is_told_so_at_once():
    line = NatsConnection(["nats://ada:canary@nats.example:4222"])

    with pytest.raises(StoreBusy, match=r"NATS at nats\.example:4222 is out of reach") as caught:
        async with line.asking():
            pass
    assert "canary" not in str(caught.value)


def test_a_session_in_nats_has_the_fields_that_others_read(nats_url: str):
    async def story() -> dict[str, object]:
        async with connected(nats_url) as line:
            store = await SqliteStore.open(":memory:", threads=False)
            await store.access.put_user(
                StoredUser(
                    name="ann@example.com",
                    password_hash="x",
                    roles=("admin", "viewer"),
                    email="ann@example.com",
                    display_name="Ann",
                    created_at=NOON,
                )
            )
            bucket = f"trial_{uuid4().hex}"
            await NatsSessions(line, bucket, OURS, store.access.user).put(
                StoredSession(
                    session_id="123",
                    digest="d" * 64,
                    user="ann@example.com",
                    created_at=NOON,
                    expires_at=NOON + 24 * HOUR,
                    last_activity_at=NOON + 0.25,
                    client_ip="192.168.1.1",
                )
            )
            [value] = await copied(line, bucket)
            found: dict[str, object] = msgspec.json.decode(value)
            await store.close()
            return found

    found = asyncio.run(story())
    assert found.pop("seal")
    assert found.pop("digest") == "d" * 64
    assert found == {
        "session_id": "123",
        "user_id": "ann@example.com",
        "email": "ann@example.com",
        "display_name": "Ann",
        "roles": ["admin", "viewer"],
        "created_at": "2027-01-15T08:00:00Z",
        "expires_at": "2027-01-16T08:00:00Z",
        "last_activity_at": "2027-01-15T08:00:00.250000Z",
        "client_ip": "192.168.1.1",
    }
