"""What screens look at, over HTTP, on both kinds of database: lists, counts, moments, queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.servers import unused_database

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: x, path: {path}}}
"""
ORDERS = (
    HEAD.format(path="shop/orders")
    + """\
workload: {region: eu, deep: {count: 3}}
workflow:
  - step: start
    tool: {kind: noop}
    next: load
  - step: load
    tool: {kind: python, code: "raise ValueError('duplicate key 23505')"}
"""
)
REPORT = (
    HEAD.format(path="shop/report")
    + """\
workflow: [{step: start, tool: {kind: noop}}]
"""
)
ASKS = (
    HEAD.format(path="desk/approve")
    + """\
workflow:
  - step: start
    tool: {kind: noop}
    next: approve
  - step: approve
    spec: {eval_mode: on_event, form: [{name: approved, type: boolean, label: "Ship it?"}]}
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: {next: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""
)


class Shop(NamedTuple):
    """A server with a few executions: two failed, one done, one that waits for a form."""

    server: Server
    failed: list[str]
    done: str
    waiting: str


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    options: dict[str, Any] = {}
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        options["NOETL_DATABASE_URL"] = unused_database(server, "looking")
    with temporary_folder() as folder, serving(folder, kind="dev", **options) as server:
        failed = [server.start(ORDERS, {"region": region}) for region in ("eu", "us")]
        done = server.start(REPORT)
        waiting = server.start(ASKS)
        for execution_id in (*failed, done):
            server.ended(execution_id)
        server.wait_for(waiting, "step.waiting")
        yield Shop(server, failed, done, waiting)


def ids(page: dict[str, Any]) -> list[str]:
    return [row["execution_id"] for row in page["executions"]]


# --- Queries -----------------------------------------------------------------------------------


def test_a_list_takes_a_query(shop: Shop):
    server = shop.server
    newest = [shop.waiting, shop.done, *shop.failed[::-1]]

    assert ids(server.get("/api/executions")) == newest
    assert ids(server.get("/api/executions", q="status:failed path:shop/*")) == shop.failed[::-1]
    assert ids(server.get("/api/executions", q="-status:failed took:<1h")) == newest[:2]
    assert ids(server.get("/api/executions", q="status:waiting")) == [shop.waiting]
    assert ids(server.get("/api/executions", q="DUPLICATE step:load")) == shop.failed[::-1]
    assert ids(server.get("/api/executions", q=f"id:{shop.done[-8:]}")) == [shop.done]
    assert ids(server.get("/api/executions", q="status:failed", path="shop/report")) == []
    first = server.get("/api/executions", q="path:shop/*", limit=2)
    rest = server.get("/api/executions", q="path:shop/*", limit=2, cursor=first["next_cursor"])
    assert ids(first) + ids(rest) == newest[1:]


def test_a_row_says_where_to_look_and_shows_fields_of_the_workload(shop: Shop):
    page = shop.server.get("/api/executions", workload=["region", "deep.count", "none.such"])
    waiting, done, us, eu = page["executions"]

    assert (us["step"], us["waits"]) == ("load", None)
    assert "duplicate key 23505" in us["error"]
    assert us["workload"] == {"region": "us", "deep.count": 3, "none.such": None}
    assert eu["workload"]["region"] == "eu"
    assert (done["step"], done["error"], done["waits"]) == (None, None, None)
    assert (waiting["step"], waiting["waits"]) == ("approve", "form")
    assert waiting["duration_seconds"] is None
    assert "workload" not in shop.server.get("/api/executions")["executions"][0]


def test_a_query_is_counted_and_drawn_over_time(shop: Shop):
    server = shop.server

    assert server.get("/api/executions/count") == {"count": 4}
    assert server.get("/api/executions/count", q="status:failed") == {"count": 2}
    drawn = server.get("/api/executions/histogram", q="path:shop/*", buckets=20)
    assert drawn["total"] == 3
    counted: dict[str, int] = {}
    for bucket in drawn["buckets"]:
        assert drawn["start"] <= bucket["start"] < drawn["end"]
        for status, count in bucket["counts"].items():
            counted[status] = counted.get(status, 0) + count
    assert counted == {"FAILED": 2, "COMPLETED": 1}
    empty = server.get("/api/executions/histogram", q="path:none")
    assert (empty["total"], empty["buckets"]) == (0, [])


def test_a_query_that_cannot_be_read_is_refused_with_its_place(shop: Shop):
    for route in ("", "/count", "/histogram"):
        reply = shop.server.ask("GET", f"/api/executions{route}", q="took:>1m status:faild")

        assert (reply.status, reply.code) == (400, "bad_query")
        [detail] = reply.json["error"]["details"]
        assert (detail["at"], detail["length"], detail["key"]) == (16, 5, "q")
        assert 'Did you mean "failed"?' in detail["message"]


# --- Drawings ----------------------------------------------------------------------------------


def test_a_playbook_is_drawn_by_digest_and_by_version(shop: Shop):
    server = shop.server
    digest = server.get(f"/api/executions/{shop.waiting}")["digest"]
    reply = server.ask("GET", f"/api/playbooks/{digest}/layout")
    drawn = reply.json

    assert [(node["id"], node["x"], node["waits"]) for node in drawn["nodes"]] == [
        ("start", 0, False),
        ("approve", 1, True),
        ("end", 2, False),
    ]
    assert [(edge["from"], edge["to"], edge["kind"]) for edge in drawn["edges"]] == [
        ("start", "approve", "next"),
        ("approve", "end", "case"),
    ]
    assert drawn["edges"][1]["when"] == "{{ event.name == 'approval.received' }}"
    tagged = {"If-None-Match": reply.headers["etag"]}
    assert server.ask("GET", f"/api/playbooks/{digest}/layout", headers=tagged).status == 304
    found = server.get("/api/catalog/desk/approve")
    assert found["digest"] == digest
    assert [node["line"] for node in found["layout"]["nodes"]] == [5, 8, 13]
    assert server.ask("GET", "/api/playbooks/none/layout").status == 404
