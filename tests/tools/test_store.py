"""kind: store, on directories and on a real server that speaks the protocol of S3."""

from __future__ import annotations

import base64
import urllib.request
from typing import Any

import pytest

from noetl.tools.egress import EgressPolicy
from noetl.tools.rules import Rules
from tests.tools.running import KEY, Bench, failure, kept, on_bench, ran
from tests.tools.services import answering, free_port, never, refusing, s3_server

SECRET = "canary-secret-key"


@pytest.fixture(scope="module")
def s3_url():
    with s3_server() as url:
        yield url


def s3(endpoint: str) -> dict[str, Any]:
    """Where, and the fields of a credential."""
    fields = {
        "access_key_id": "AKIDTRIAL",
        "secret_access_key": SECRET,
        "region": "us-east-1",
        "endpoint": endpoint,
    }
    return {"url": "s3://trial/pre", "auth": fields}


@pytest.fixture(params=["file", "s3"])
def place(request, tmp_path, s3_url):
    """The same store twice: each promise holds for a directory and for S3."""
    if request.param == "file":
        return {"url": (tmp_path / "objects").as_uri()}
    return {**s3(s3_url), "url": f"s3://trial/{tmp_path.name}"}


@pytest.fixture
def use(place):
    def all_of(*configs: dict[str, Any], **settings: Any) -> list[Any]:
        async def work(bench: Bench) -> list[Any]:
            return [await bench.run("store", {**place, **config}) for config in configs]

        return on_bench(work, **settings)

    return all_of


def test_what_is_put_is_got_as_it_was(use):
    put, as_json, as_text, as_bytes = use(
        {"op": "put", "key": "a/b.json", "value": {"n": [1, None]}},
        {"op": "get", "key": "a/b.json", "decode": "auto"},
        {"op": "get", "key": "a/b.json", "decode": "text"},
        {"op": "get", "key": "a/b.json", "decode": "bytes"},
    )

    assert put.result["key"] == "a/b.json"
    assert put.result["size"] == len('{"n":[1,null]}')
    assert len(put.result["checksum"]) == 64
    assert as_json.result == {"n": [1, None]}
    assert as_text.result == '{"n":[1,null]}'
    assert base64.b64decode(as_bytes.result) == b'{"n":[1,null]}'


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("a.csv", "n,t\n1,x\n", [{"n": "1", "t": "x"}]),
        ("a.ndjson", '{"n":1}\n{"n":2}\n', [{"n": 1}, {"n": 2}]),
        ("a.txt", "just text", "just text"),
        ("a", "no ending", "no ending"),
    ],
)
def test_content_is_read_by_the_ending_of_its_name(tmp_path, key, text, value):
    place = {"url": tmp_path.as_uri(), "key": key}
    ran("store", {**place, "op": "put", "value": text})

    assert ran("store", {**place, "op": "get", "decode": "auto"}).result == value


def test_a_reference_is_a_file_that_other_tools_read(use, place):
    async def work(bench: Bench) -> Any:
        await bench.run("store", {**place, "op": "put", "key": "n.ndjson", "value": '{"n":7}\n'})
        got = await bench.run("store", {**place, "op": "get", "key": "n.ndjson"})
        again = {**place, "op": "put", "key": "copy.ndjson", "value": got.result}
        await bench.run("store", again)
        copied = {**place, "op": "get", "key": "copy.ndjson", "decode": "auto"}
        return got, await bench.run("store", copied)

    got, copied = on_bench(work)

    about = got.result["_ref"]
    assert (about["format"], about["size"], about["parts"]) == ("ndjson", 8, 1)
    assert copied.result == [{"n": 7}]


def test_t23_a_large_file_goes_through_in_pieces(use, tmp_path):
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(range(256)) * 4096 * 24)
    put, got = use(
        {"op": "put", "key": "large.bin", "file": str(large)},
        {"op": "get", "key": "large.bin"},
        rules=Rules(max_response_bytes=1000),
    )
    [refused] = use(
        {"op": "get", "key": "large.bin", "decode": "bytes"}, rules=Rules(max_response_bytes=1000)
    )

    assert put.result["size"] == got.result["_ref"]["size"] == 24 * 2**20
    assert put.result["checksum"] == got.result["_ref"]["checksum"]
    assert len(str(got.result)) < 1000
    assert failure(refused)[0] == "client_error"
    assert "decode: reference" in failure(refused)[1]


def test_a_result_reference_is_put_as_what_it_stands_for(use):
    _, got = use(
        {"op": "put", "key": "r.json", "value": kept([1, 2])},
        {"op": "get", "key": "r.json", "decode": "json"},
        results={KEY: [1, 2]},
    )

    assert got.result == [1, 2]


def test_a_list_is_in_order_and_begins_like_its_prefix(use):
    puts = [{"op": "put", "key": key, "value": "x"} for key in ("b", "a/2", "a/1", "a/10", "ab")]
    *_, all_of_them, some, first, none = use(
        *puts,
        {"op": "list"},
        {"op": "list", "prefix": "a/1"},
        {"op": "list", "limit": 2},
        {"op": "list", "prefix": "zz/"},
    )

    assert [one["key"] for one in all_of_them.result["objects"]] == [
        "a/1",
        "a/10",
        "a/2",
        "ab",
        "b",
    ]
    assert not all_of_them.result["truncated"]
    assert [one["key"] for one in some.result["objects"]] == ["a/1", "a/10"]
    assert [one["key"] for one in first.result["objects"]] == ["a/1", "a/10"]
    assert first.result["truncated"]
    assert none.result["objects"] == []
    assert all_of_them.result["objects"][0]["modified"].endswith("Z")


def test_a_deleted_object_is_gone_and_may_be_deleted_again(use):
    _, deleted, again, gone = use(
        {"op": "put", "key": "k", "value": "x"},
        {"op": "delete", "key": "k"},
        {"op": "delete", "key": "k"},
        {"op": "get", "key": "k"},
    )

    assert deleted.result == again.result == {"key": "k"}
    assert failure(gone)[0] == "not_found"


def test_an_object_is_not_replaced_when_overwrite_is_off(use):
    first, second, kept = use(
        {"op": "put", "key": "once", "value": "mine", "overwrite": False},
        {"op": "put", "key": "once", "value": "yours", "overwrite": False},
        {"op": "get", "key": "once", "decode": "text"},
    )

    assert first.is_ok
    assert failure(second)[0] == "client_error"
    assert second.error.code == "exists"
    assert kept.result == "mine"


# --- S3 alone ----------------------------------------------------------------------------------


def test_a_presigned_address_reads_and_writes_without_a_credential(s3_url):
    place = s3(s3_url)
    ran("store", {**place, "op": "put", "key": "p", "value": "hello", "content_type": "text/x"})
    reads = ran("store", {**place, "op": "presign", "key": "p"}).result
    writes = ran("store", {**place, "op": "presign", "key": "p", "method": "PUT"}).result

    with urllib.request.urlopen(reads["url"]) as answer:
        assert (answer.read(), answer.headers["Content-Type"]) == (b"hello", "text/x")
    plain = {"Content-Type": "text/plain"}
    request = urllib.request.Request(writes["url"], b"new", plain, method="PUT")
    urllib.request.urlopen(request).close()
    assert ran("store", {**place, "op": "get", "key": "p", "decode": "text"}).result == "new"
    assert SECRET not in reads["url"]
    assert reads["expires_at"].endswith("Z")


def test_a_store_that_is_not_there_or_refuses_is_named(s3_url):
    gone = {**s3(s3_url), "url": "s3://no-such-bucket"}
    closed = s3(f"http://127.0.0.1:{free_port()}")

    assert failure(ran("store", {**gone, "op": "put", "key": "k", "value": 1}))[0] == "not_found"
    outcome = ran("store", {**closed, "op": "get", "key": "k"})
    assert failure(outcome)[0] == "connection"
    assert outcome.error.retryable
    assert SECRET not in str(outcome)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (403, "auth", False),
        (401, "auth", False),
        (400, "client_error", False),
        (429, "rate_limit", True),
        (503, "server_error", True),
    ],
)
def test_what_a_store_answers_gets_a_name(status, kind, retryable):
    with answering(("*", "/{rest:.*}", refusing(status))) as url:
        outcome = ran("store", {**s3(url), "op": "get", "key": "k"})

    assert failure(outcome)[0] == kind
    assert outcome.error.retryable == retryable


def test_a_store_that_does_not_answer_is_a_timeout():
    with answering(("*", "/{rest:.*}", never)) as url:
        outcome = ran("store", {**s3(url), "op": "get", "key": "k", "timeout": "200ms"})

    assert failure(outcome)[0] == "timeout"


def test_s12_without_a_credential_the_workers_own_is_not_used(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDWORKER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-the-worker")
    seen: list[str | None] = []

    async def look(request):
        from aiohttp import web

        seen.append(request.headers.get("Authorization"))
        return web.Response(status=404)

    with answering(("*", "/{rest:.*}", look)) as url:
        place = {"url": "s3://trial", "auth": {"endpoint": url, "region": "us-east-1"}}
        ran("store", {**place, "op": "get", "key": "k"})

    assert seen == [None]


# --- Refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["../outside", "a/../../outside", "/etc/passwd", "a//b", "./a", "a\\..\\b", "a\0b"]
)
def test_s09_a_key_cannot_lead_out_of_the_store(use, tmp_path, key):
    (tmp_path / "outside").write_text("canary")
    outcomes = use(
        {"op": "put", "key": key, "value": "x"},
        {"op": "get", "key": key},
        {"op": "delete", "key": key},
    )

    assert [failure(outcome)[0] for outcome in outcomes] == ["auth"] * 3
    assert (tmp_path / "outside").read_text() == "canary"


def test_s09_a_link_inside_a_directory_does_not_lead_out(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").write_text("canary")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "up").symlink_to(tmp_path)
    place = {"url": (tmp_path / "root").as_uri()}

    for key in ("link", "up/outside"):
        assert failure(ran("store", {**place, "op": "get", "key": key}))[0] == "auth"
        put = ran("store", {**place, "op": "put", "key": key, "value": "x"})
        assert failure(put)[0] == "auth"
    assert (tmp_path / "outside").read_text() == "canary"


def test_s09_a_directory_lies_below_the_one_that_the_operator_names(tmp_path):
    rules = {"rules": Rules(file_root=str(tmp_path / "root"))}
    put = {"op": "put", "key": "k", "value": "x"}

    inside = {"url": (tmp_path / "root" / "a").as_uri(), **put}
    assert ran("store", inside, settings=rules).is_ok
    for url in (tmp_path.as_uri(), f"{(tmp_path / 'root').as_uri()}/../other"):
        assert failure(ran("store", {"url": url, **put}, settings=rules))[0] == "auth"


def test_s14_the_egress_policy_holds_for_an_endpoint():
    rules = {"rules": Rules(egress=EgressPolicy(private=False))}
    private = {**s3("http://127.0.0.1:9"), "op": "get", "key": "k"}
    metadata = {**s3("http://169.254.169.254"), "op": "get", "key": "k"}

    assert "egress" in failure(ran("store", private, settings=rules))[1]
    assert "egress" in failure(ran("store", metadata))[1]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"op": "get", "key": "k"}, "client_error"),
        ({"op": "get", "url": "ftp://x", "key": "k"}, "client_error"),
        ({"op": "get", "url": "file:///no/such/place", "key": "k"}, "not_found"),
        ({"op": "put", "url": f"file://{__file__}", "key": "k", "value": 1}, "not_found"),
        ({"op": "put", "url": "file:///tmp", "value": 1}, "client_error"),
        ({"op": "put", "url": "file:///tmp", "key": "k"}, "client_error"),
        ({"op": "put", "url": "file:///tmp", "key": "k", "file": "/no/such"}, "not_found"),
        ({"op": "presign", "url": "file:///tmp", "key": "k"}, "client_error"),
        ({"op": "get", "url": "gs://b", "key": "k", "auth": "nobody"}, "auth"),
        (
            {"op": "get", "url": "gs://b", "key": "k", "auth": {"private_key": "x"}},
            "client_error",
        ),
    ],
)
def test_what_cannot_be_done_is_told(config, kind):
    assert failure(ran("store", config))[0] == kind


def test_content_that_is_not_what_decode_says_is_a_parse_error(tmp_path):
    place = {"url": tmp_path.as_uri(), "key": "k.json"}
    ran("store", {**place, "op": "put", "value": "not json"})

    assert failure(ran("store", {**place, "op": "get", "decode": "json"}))[0] == "parse"


def test_the_operators_store_is_used_when_the_task_names_none(tmp_path):
    rules = {"rules": Rules(store_url=tmp_path.as_uri())}
    ran("store", {"op": "put", "key": "k", "value": "x"}, settings=rules)

    assert (tmp_path / "k").read_text() == "x"
