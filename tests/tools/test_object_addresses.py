"""Addresses of objects where a task may name a file: every tool that reads or writes one."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.tools.egress import EgressPolicy
from noetl.tools.rules import Rules
from tests.tools.running import Bench, failure, on_bench, ran
from tests.tools.services import answering, free_port, refusing, s3_server
from tests.tools.web import serving

KEY = "canary-secret-key"
TABLE = "id,name\n1,ada\n2,bob\n"


@pytest.fixture(scope="module")
def s3():
    """The fields of a credential for a server with the bucket `trial`."""
    with s3_server() as url:
        yield {
            "access_key_id": "AKIDTRIAL",
            "secret_access_key": KEY,
            "region": "us-east-1",
            "endpoint": url,
        }


def put(s3: dict[str, Any], key: str, text: str = TABLE) -> str:
    """The address of a new object."""
    config = {"op": "put", "url": "s3://trial", "auth": s3, "key": key, "value": text}
    assert ran("store", config).is_ok
    return f"s3://trial/{key}"


def content(s3: dict[str, Any], key: str) -> Any:
    config = {"op": "get", "url": "s3://trial", "auth": s3, "key": key, "decode": "text"}
    return ran("store", config).result


def good(kind: str, config: dict[str, Any]) -> Any:
    outcome = ran(kind, config)
    assert outcome.is_ok, outcome
    return outcome.result


def test_an_answer_is_downloaded_into_an_object(s3):
    with serving() as web:
        config = {"url": f"{web.url}/large?size=70000", "store_auth": s3}
        got = good("http", {**config, "download": "s3://trial/deep/large.txt"})

    assert got["data"]["path"] == "s3://trial/deep/large.txt"
    assert got["data"]["size"] == len(content(s3, "deep/large.txt")) == 70000


def test_an_object_is_sent_as_a_file(s3):
    address = put(s3, "sent/orders.csv")
    with serving() as web:
        config = {"method": "POST", "url": f"{web.url}/echo", "store_auth": s3}
        got = good("http", {**config, "files": {"orders": address}})

    for part in ('filename="orders.csv"', TABLE):
        assert part in got["data"]["body"]


@pytest.mark.parametrize("how", ["body", "files"])
def test_a_reference_to_a_file_is_sent_as_what_it_stands_for(s3, how):
    put(s3, "sent/kept.csv")

    async def work(bench: Bench) -> Any:
        where = {"op": "get", "url": "s3://trial", "auth": s3, "key": "sent/kept.csv"}
        got = (await bench.run("store", where)).result
        sent = {"body": got} if how == "body" else {"files": {"orders": {"content": got}}}
        return await bench.run("http", {"method": "POST", "url": f"{web.url}/echo", **sent})

    with serving() as web:
        answer = on_bench(work)

    assert TABLE in answer.result["data"]["body"]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_rows_come_from_an_object(s3, tmp_path, kind):
    config = {"database": str(tmp_path / "t.db")}
    good(kind, {**config, "command": "CREATE TABLE people (id TEXT, name TEXT)"})
    rows = {"table": "people", "rows": put(s3, f"{kind}/people.csv"), "store_auth": s3}
    written = good(kind, {**config, **rows})

    assert written["row_count"] == 2


def test_duckdb_reads_objects_as_views_even_of_the_same_name(s3):
    files = {"a": put(s3, "a/t.csv"), "b": put(s3, "b/t.csv", "id,city\n2,Oslo\n")}
    command = "SELECT name, city FROM a JOIN b USING (id)"

    got = good("duckdb", {"files": files, "store_auth": s3, "command": command})

    assert got["rows"] == [{"name": "bob", "city": "Oslo"}]


def test_copy_goes_in_from_an_object_and_out_to_one(s3, postgres):
    async def work(bench: Bench) -> list[Any]:
        make = {"command": "CREATE TABLE from_object (id int, name text)"}
        inward = {"table": "from_object", "copy": {"source": put_address}}
        outward = {
            "command": "SELECT name FROM from_object ORDER BY id",
            "copy": {"target": "s3://trial/pg/out.csv"},
        }
        return [
            await bench.run("postgres", {"auth": postgres, "store_auth": s3, **config})
            for config in (make, inward, outward)
        ]

    put_address = put(s3, "pg/in.csv")
    outcomes = on_bench(work)

    assert all(outcome.is_ok for outcome in outcomes), outcomes
    assert content(s3, "pg/out.csv") == "name\nada\nbob\n"


def test_a_transfer_takes_an_address_for_a_path(s3):
    put(s3, "t/in.csv")
    ends = {
        "source": {"kind": "file", "path": "s3://trial/t/in.csv", "auth": s3},
        "target": {"kind": "file", "path": "s3://trial/t/out.ndjson", "auth": s3},
    }

    assert good("transfer", ends)["records"] == 2
    assert '"name":"bob"' in content(s3, "t/out.ndjson")


TASKS = {
    "sqlite": {"table": "t", "rows": "s3://trial/no.csv"},
    "duckdb": {"files": {"v": "s3://trial/no.csv"}, "command": "FROM v"},
    "http": {"method": "POST", "url": "http://127.0.0.1:1", "files": {"f": "s3://trial/no.csv"}},
}


@pytest.mark.parametrize("kind", TASKS)
def test_s06_a_store_that_fails_is_named_and_shows_no_secret(s3, kind):
    def failed(change: dict[str, Any], **settings: Any) -> str:
        config = {**TASKS[kind], "store_auth": {**s3, **change}}
        outcome = ran(kind, config, settings=settings)
        assert KEY not in str(outcome)
        return failure(outcome)[0]

    is_http = kind == "http"
    assert failed({}) == "not_found"
    gone = failed({"endpoint": f"http://127.0.0.1:{free_port()}"})
    assert gone == ("connection" if is_http else "db_connection")
    with answering(("*", "/{rest:.*}", refusing(403))) as url:
        assert failed({"endpoint": url}) == "auth"
    with answering(("*", "/{rest:.*}", refusing(503))) as url:
        assert failed({"endpoint": url}) == ("server_error" if is_http else "db_connection")
    assert failed({}, rules=Rules(egress=EgressPolicy(private=False))) == "auth"


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("sqlite", {"table": "t", "rows": "s3://trial"}),
        ("http", {"url": "http://127.0.0.1:1", "method": "PUT", "files": {"f": "az:///x"}}),
        ("duckdb", {"files": {"v": "s3://trial/*.csv"}, "command": "FROM v"}),
        (
            "transfer",
            {
                "source": {"kind": "file", "path": "gs://b"},
                "target": {"kind": "file", "path": "out.csv"},
            },
        ),
    ],
)
def test_an_address_without_a_key_or_with_a_pattern_is_refused(kind, config):
    assert failure(ran(kind, config))[0] == "client_error"
