"""kind: nats, against a real NATS server."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from contextlib import suppress
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError

from noetl.tools.nats import run
from tests.stopwatch import PATIENCE
from tests.tools.running import KEY, Bench, failure, kept, on_bench, ran
from tests.tools.services import free_port, nats_server


@pytest.fixture(scope="module")
def server():
    with nats_server() as url:
        yield url


@pytest.fixture
def use(server):
    """One operation after the other, on one worker."""

    def all_of(*configs: dict[str, Any]) -> list[Any]:
        async def work(bench: Bench) -> list[Any]:
            return [await bench.run("nats", {"url": server, **config}) for config in configs]

        return on_bench(work)

    return all_of


BUCKET = {"bucket": "trial", "create": True}


def test_a_key_is_put_read_listed_and_deleted(use):
    put, got, listed, deleted, gone = use(
        {"op": "kv_put", **BUCKET, "key": "user.1", "value": {"roles": ["viewer"]}},
        {"op": "kv_get", "bucket": "trial", "key": "user.1"},
        {"op": "kv_list", "bucket": "trial", "key": "user.*"},
        {"op": "kv_delete", "bucket": "trial", "key": "user.1"},
        {"op": "kv_get", "bucket": "trial", "key": "user.1"},
    )

    assert put.result["key"] == "user.1"
    assert got.result == {
        "key": "user.1",
        "value": {"roles": ["viewer"]},
        "revision": put.result["revision"],
    }
    assert listed.result == {"keys": ["user.1"]}
    assert deleted.result == {"key": "user.1"}
    assert failure(gone)[0] == "not_found"


def test_a_list_of_keys_goes_by_its_pattern(use):
    puts = [
        {"op": "kv_put", "bucket": "many", "create": True, "key": key, "value": "x"}
        for key in ("a.1", "a.2", "a.2.x", "b.1")
    ]
    patterns = ("a.*", "a.>", ">", "c.*")
    outcomes = use(*puts, *({"op": "kv_list", "bucket": "many", "key": p} for p in patterns))
    empty = use({"op": "kv_list", "bucket": "nothing", "create": True})

    assert [one.result["keys"] for one in outcomes[4:]] == [
        ["a.1", "a.2"],
        ["a.1", "a.2", "a.2.x"],
        ["a.1", "a.2", "a.2.x", "b.1"],
        [],
    ]
    assert empty[0].result == {"keys": []}


def test_lists_leave_nothing_on_the_server():
    watched = free_port()

    def subscriptions() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{watched}/varz", timeout=PATIENCE) as said:
            return int(json.load(said)["subscriptions"])

    async def work(bench: Bench) -> list[int]:
        task = {"url": url, "op": "kv_list", "bucket": "b", "create": True}
        seen = []
        for _ in range(3):
            assert (await bench.run("nats", task)).is_ok
            seen.append(await asyncio.to_thread(subscriptions))
        return seen

    with nats_server("-m", str(watched)) as url:
        first, *others = on_bench(work)
    assert others == [first, first]


def test_a_revision_lets_only_one_writer_win(use):
    first, second, third = use(
        {"op": "kv_put", **BUCKET, "key": "lock", "value": "me", "revision": 0},
        {"op": "kv_put", **BUCKET, "key": "lock", "value": "you", "revision": 0},
        {"op": "kv_get", "bucket": "trial", "key": "lock"},
    )

    assert first.is_ok
    assert failure(second)[0] == "client_error"
    assert second.error.code == "wrong_revision"
    assert third.result["value"] == "me"


def test_a_key_may_expire(server):
    async def work(bench: Bench) -> list[Any]:
        put = {"op": "kv_put", **BUCKET, "key": "soon", "value": "x", "ttl": "1s", "url": server}
        kept = await bench.run("nats", put)
        get = {"op": "kv_get", "bucket": "trial", "key": "soon", "url": server}
        async with asyncio.timeout(PATIENCE):
            while (found := await bench.run("nats", get)).is_ok:
                pass
        return [kept, found]

    kept, gone = on_bench(work)

    assert kept.is_ok
    assert failure(gone)[0] == "not_found"


def test_a_message_reaches_who_listens_and_a_request_is_answered(server):
    async def work(bench: Bench) -> Any:
        connection = await nats.connect(server)
        heard = await connection.subscribe("news")

        async def answer(message: Any) -> None:
            await message.respond(b'{"n": 42}')

        await connection.subscribe("question", cb=answer)
        await connection.flush()
        said = {"op": "publish", "subject": "news", "value": "hello", "headers": {"X": "1"}}
        published = await bench.run("nats", {"url": server, **said})
        message = await heard.next_msg(timeout=PATIENCE)
        asked = await bench.run("nats", {"url": server, "op": "request", "subject": "question"})
        await connection.close()
        return published, message, asked

    published, message, asked = on_bench(work)

    assert published.result == {"subject": "news"}
    assert (message.data, message.headers["X"]) == (b"hello", "1")
    assert asked.result["data"] == {"n": 42}


def test_a_stored_message_is_stored_once_however_often_it_is_sent(server):
    async def work(bench: Bench) -> Any:
        connection = await nats.connect(server)
        await connection.jetstream().add_stream(name="LOG", subjects=["log.>"])
        config = {"url": server, "op": "publish", "subject": "log.a", "stream": True, "value": 1}
        twice = [await bench.run("nats", config), await bench.run("nats", config)]
        other = await bench.run("nats", config, action_id="action-2")
        info = await connection.jetstream().stream_info("LOG")
        await connection.close()
        return twice, other, info.state.messages

    twice, other, count = on_bench(work)

    assert [one.result["seq"] for one in twice] == [1, 1]
    assert other.result["seq"] == 2
    assert count == 2


def test_objects_are_put_read_listed_and_deleted(use):
    large = {"rows": ["x" * 1000] * 1000}
    put, got, raw, listed, deleted, gone = use(
        {"op": "object_put", "bucket": "files", "create": True, "key": "a.json", "value": large},
        {"op": "object_get", "bucket": "files", "key": "a.json"},
        {"op": "object_get", "bucket": "files", "key": "a.json", "decode": "bytes"},
        {"op": "object_list", "bucket": "files", "key": "*.json"},
        {"op": "object_delete", "bucket": "files", "key": "a.json"},
        {"op": "object_get", "bucket": "files", "key": "a.json"},
    )

    assert put.result["size"] > 1_000_000
    assert got.result == {"key": "a.json", "data": large}
    assert isinstance(raw.result["data"], str)
    assert [one["key"] for one in listed.result["objects"]] == ["a.json"]
    assert deleted.result == {"key": "a.json"}
    assert failure(gone)[0] == "not_found"


BINARY = bytes(range(256)) * 1000


def test_a_file_becomes_an_object_and_an_object_a_file_byte_by_byte(server, tmp_path):
    async def work(bench: Bench) -> Any:
        bucket = {"url": server, "bucket": "parts", "create": True, "key": "a.parquet"}
        made = tmp_path / "made"
        made.write_bytes(BINARY)
        put = await bench.run(
            "store", {"op": "put", "url": f"file://{tmp_path}/s", "key": "a", "file": str(made)}
        )
        assert put.is_ok, put
        got = await bench.run("store", {"op": "get", "url": f"file://{tmp_path}/s", "key": "a"})
        written = await bench.run("nats", {**bucket, "op": "object_put", "value": got.result})
        kept = await bench.run("nats", {**bucket, "op": "object_get", "decode": "reference"})
        shown = await bench.run("nats", {**bucket, "op": "object_get"})
        return got.result["_ref"], written, kept, shown

    first, written, kept, shown = on_bench(work)

    assert written.result["size"] == len(BINARY)
    about = kept.result["data"]["_ref"]
    assert (about["checksum"], about["format"]) == (first["checksum"], "parquet")
    assert base64.b64decode(shown.result["data"]) == BINARY


def test_a_reference_is_put_as_what_it_stands_for(server):
    async def work(bench: Bench) -> Any:
        value = kept([1, 2])
        put = {"url": server, "op": "kv_put", **BUCKET, "key": "ref", "value": value}
        await bench.run("nats", put)
        return await bench.run(
            "nats", {"url": server, "op": "kv_get", "bucket": "trial", "key": "ref"}
        )

    assert on_bench(work, results={KEY: [1, 2]}).result["value"] == [1, 2]


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ({"op": "kv_get", "bucket": "nowhere", "key": "k"}, "not_found", 'no bucket "nowhere"'),
        ({"op": "object_list", "bucket": "nowhere"}, "not_found", "With `create: true`"),
        (
            {"op": "publish", "subject": "a", "headers": {"A": "b\r\nNats-Msg-Id: c"}},
            "client_error",
            "'A' holds a control character",
        ),
        ({"op": "kv_get", "key": "k"}, "client_error", "needs `bucket`"),
        ({"op": "publish"}, "client_error", "needs `subject`"),
        (
            {"op": "kv_get", "bucket": "b", "key": "k", "decode": "reference"},
            "client_error",
            "object_get",
        ),
        ({"op": "kv_put", **BUCKET, "key": "a b", "value": 1}, "client_error", "not allowed"),
        ({"op": "publish", "subject": "a b"}, "client_error", "subject"),
        ({"op": "request", "subject": "nobody"}, "connection", "Nobody answers"),
        (
            {"op": "publish", "subject": "unstored", "stream": True},
            "not_found",
            "No stream stores",
        ),
    ],
)
def test_failures_are_named(use, config, kind, words):
    [outcome] = use(config)

    assert failure(outcome)[0] == kind
    assert words in failure(outcome)[1]


def test_what_comes_back_must_be_what_decode_says(use):
    _, parsed, as_text, as_json = use(
        {"op": "kv_put", **BUCKET, "key": "text", "value": "plain"},
        {"op": "kv_get", "bucket": "trial", "key": "text"},
        {"op": "kv_get", "bucket": "trial", "key": "text", "decode": "text"},
        {"op": "kv_get", "bucket": "trial", "key": "text", "decode": "json"},
    )

    assert parsed.result["value"] == as_text.result["value"] == "plain"
    assert failure(as_json)[0] == "parse"


def test_a_request_that_nobody_answers_in_time_is_a_timeout(server):
    async def work(bench: Bench) -> Any:
        connection = await nats.connect(server)
        await connection.subscribe("silent")
        await connection.flush()
        config = {"url": server, "op": "request", "subject": "silent", "timeout": "100ms"}
        outcome = await bench.run("nats", config)
        await connection.close()
        return outcome

    outcome = on_bench(work)

    assert failure(outcome)[0] == "timeout"
    assert outcome.error.retryable


def test_a_server_that_is_not_there_is_a_connection_error():
    url = f"nats://127.0.0.1:{free_port()}"
    outcome = ran("nats", {"url": url, "op": "publish", "subject": "a"})

    assert failure(outcome)[0] == "connection"
    assert outcome.error.retryable
    assert failure(ran("nats", {"op": "publish", "subject": "a"}))[0] == "client_error"


def test_a_password_lets_in_and_a_wrong_one_does_not():
    def use(url: str, password: str) -> Any:
        fields = {"servers": [url], "user": "me", "password": password}
        config = {"auth": "nats", "op": "kv_put", **BUCKET, "key": "k", "value": 1}
        return ran("nats", config, settings={"credentials": {"nats": fields}})

    with nats_server("--user", "me", "--pass", "canary-password") as url:
        good, bad = use(url, "canary-password"), use(url, "canary-wrong")

    assert good.is_ok
    assert failure(bad)[0] == "auth"
    assert "canary" not in str(bad)


def test_s14_a_metadata_address_is_refused():
    outcome = ran("nats", {"url": "nats://169.254.169.254:4222", "op": "publish", "subject": "a"})

    assert failure(outcome)[0] == "auth"
    assert "egress" in failure(outcome)[1]


class Refusing:
    """As the library's client: before Python 3.12, a cancellation that comes together with an error
    is lost in its `asyncio.wait_for`, and the error is raised.
    """

    is_closed = False

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def connect(self, *_: object, **__: object) -> None:
        return

    async def request(self, *_: object, **__: object) -> None:
        self.asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise NoRespondersError

    async def close(self) -> None:
        return


def test_a_call_that_is_cancelled_as_it_fails_is_cancelled(monkeypatch):
    async def work(bench: Bench) -> bool:
        client = Refusing()
        monkeypatch.setattr(run, "Client", lambda: client)
        config = {"url": "nats://nowhere", "op": "request", "subject": "orders", "value": 1}
        calling = asyncio.create_task(bench.run("nats", config))
        await client.asked.wait()
        calling.cancel()
        await asyncio.wait([calling], timeout=PATIENCE)
        return calling.cancelled()

    assert on_bench(work)
