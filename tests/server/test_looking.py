"""What screens look at, over HTTP, on both kinds of database: lists, counts, moments, queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from noetl.control import documents
from noetl.engine.evolve import evolve
from noetl.engine.program import Program
from noetl.model.answers import EventDocument
from noetl.model.events import decode
from noetl.model.net import Net
from noetl.model.state import ExecutionState
from noetl.templates import Views
from noetl.tools.registry import tool_of
from tests.effort import IS_LONG
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


# --- Over time ---------------------------------------------------------------------------------

BUSY = (
    HEAD.format(path="shop/busy")
    + """\
workload: {count: 40}
workflow:
  - step: start
    tool:
      kind: python
      args: {word: "{{ workload.count }} things"}
      code: |
        print("fetching " + word)
        raise ValueError("not yet")
      spec:
        policy:
          rules:
            - when: "{{ outcome.status == 'error' and _attempt < 3 }}"
              then: {do: retry, attempts: 5, delay: 0.05}
            - else: {then: {do: continue}}
    next: each
  - step: each
    loop:
      in: "{{ range(workload.count) | list }}"
      iterator: n
      spec: {mode: parallel, on_error: continue}
    tool:
      kind: python
      args: {n: "{{ iter.n }}"}
      code: |
        if n % 10 == 7:
            raise ValueError("seven" if n < 20 else "more")
        result = n
    next: call
  - step: call
    tool: {kind: playbook, path: shop/report}
"""
)


@pytest.fixture(scope="module")
def busy(shop: Shop) -> tuple[Server, str]:
    execution_id = shop.server.start(BUSY)
    shop.server.ended(execution_id)
    return shop.server, execution_id


def fold_of(events: list[dict[str, Any]]) -> Iterator[ExecutionState]:
    state = ExecutionState()
    for event in events:
        evolve(state, decode(documents.restored(msgspec.convert(event, EventDocument)).body))
        yield state


def test_the_state_at_every_event_is_the_fold_of_the_log_up_to_it(busy: tuple[Server, str]):
    server, execution_id = busy
    net = server.get(f"/api/playbooks/{server.get(f'/api/executions/{execution_id}')['digest']}")
    program = Program(msgspec.convert(net, Net), "x", Views(tool_of))
    events = server.events(execution_id)
    for event, state in zip(events, fold_of(events), strict=True):
        seq = event["seq"]
        shown = server.get(f"/api/executions/{execution_id}/state", seq=seq)
        told = documents.plain(documents.execution(execution_id, state, program))

        # Events as the API shows them have milliseconds.
        took = shown["duration_seconds"]
        assert took is None or abs(took - told["duration_seconds"]) < 0.002
        same = {"digest": shown["digest"], "duration_seconds": took}
        assert {name: shown[name] for name in told} == {**told, **same}, seq
        assert (shown["seq"], shown["last_seq"]) == (seq, len(events))
        assert (shown["event_type"], shown["at"]) == (event["name"], event["timestamp"])
        assert {run["step_run_id"] for run in shown["runs"]} == set(state.runs)
        assert {token["token_id"] for token in shown["tokens"]} == set(state.tokens)
    end = server.get(f"/api/executions/{execution_id}/state")
    assert end == server.get(f"/api/executions/{execution_id}/state", seq=len(events))
    assert server.ask("GET", f"/api/executions/{execution_id}/state", seq=10_000).status == 404
    assert server.ask("GET", f"/api/executions/{execution_id}/state", seq=0).status == 400
    assert server.ask("GET", "/api/executions/77/state").status == 404


def test_a_step_that_waits_is_shown_as_waiting_for_a_form(shop: Shop):
    shown = shop.server.get(f"/api/executions/{shop.waiting}/state")

    assert [(run["step"], run["waits_for"]) for run in shown["runs"]] == [("approve", "form")]
    [run] = shop.server.get(f"/api/executions/{shop.waiting}/timeline")["runs"][1:]
    assert run["spans"][-1] == {**run["spans"][-1], "kind": "person", "end": None}


def test_a_timeline_says_what_each_run_spent_its_time_with(busy: tuple[Server, str]):
    server, execution_id = busy
    found = server.get(f"/api/executions/{execution_id}/timeline", buckets=10)
    start, each, call = found["runs"]

    assert [span["kind"] for span in start["spans"]][-5:] == [
        *("run", "backoff", "run", "backoff", "run"),
    ]
    assert (start["status"], start["attempts"]) == ("done", 3)
    assert all(span["start"] <= span["end"] for run in found["runs"] for span in run["spans"])
    loop = each["loop"]
    assert (loop["total"], loop["done"], loop["failed"], loop["running"]) == (40, 36, 4, 0)
    assert loop["bucket_size"] == 4
    assert len(loop["strip"]) == 10
    assert [sum(column) for column in zip(*loop["strip"], strict=True)] == [36, 4, 0]
    assert sum(one["done"] + one["failed"] for one in loop["over_time"]) == 40
    assert "child" in [span["kind"] for span in call["spans"]]
    assert len(call["children"]) == 1
    first = server.get(f"/api/executions/{execution_id}/timeline", limit=1)
    rest = server.get(f"/api/executions/{execution_id}/timeline", after=first["next_after"])
    assert (first["more"], rest["more"]) == (True, False)
    assert [run["step"] for run in first["runs"] + rest["runs"]] == ["start", "each", "call"]


def test_failed_iterations_are_found_one_after_the_other(busy: tuple[Server, str]):
    server, execution_id = busy
    each = server.get(f"/api/executions/{execution_id}/timeline")["runs"][1]
    route = f"/api/executions/{execution_id}/loops/{each['step_run_id']}/iterations"
    found, after = [], -1
    while (page := server.get(route, status="failed", after=after, limit=1))["iterations"]:
        found += page["iterations"]
        after = page["next_after"]

    assert [one["iteration"] for one in found] == [7, 17, 27, 37]
    assert page["more"] is False
    assert [(one["count"], one["first"]) for one in page["errors"]] == [(2, 27), (2, 7)]
    event = server.events(execution_id)[found[0]["seq"] - 1]
    assert (event["name"], event["iteration"]) == ("loop.iteration.failed", 7)
    assert found[0]["error"] == event["payload"]["error"]["message"]
    whole = server.get(route, limit=1000)
    assert [one["iteration"] for one in whole["iterations"]] == list(range(40))
    start = server.get(f"/api/executions/{execution_id}/timeline")["runs"][0]
    nothing = f"/api/executions/{execution_id}/loops/{start['step_run_id']}/iterations"
    assert server.ask("GET", nothing).status == 404


def test_iterations_that_ended_with_their_loop_do_not_run(busy: tuple[Server, str]):
    """They ran for ever in the loop of an execution that had failed long ago."""
    server, _ = busy
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: broken, path: looking/broken}
workflow:
  - step: start
    loop: {in: [60, 0], iterator: seconds, spec: {mode: parallel}}
    tool: {kind: shell, command: "sleep {{ iter.seconds }}; exit 3"}
"""
    execution_id = server.start(text)
    assert server.ended(execution_id)["status"] == "FAILED"
    [run] = server.get(f"/api/executions/{execution_id}/timeline")["runs"]
    assert (run["loop"]["failed"], run["loop"]["running"]) == (1, 0)
    route = f"/api/executions/{execution_id}/loops/{run['step_run_id']}/iterations"
    assert [one["status"] for one in server.get(route)["iterations"]] == ["cancelled", "failed"]
    assert [one["iteration"] for one in server.get(route, status="cancelled")["iterations"]] == [0]


def test_a_call_shows_what_it_was_given_its_tries_and_what_it_printed(busy: tuple[Server, str]):
    server, execution_id = busy
    begun = next(one for one in server.events(execution_id) if one["name"] == "task.started")
    found = server.get(f"/api/executions/{execution_id}/calls/{begun['action_id']}")

    assert (found["step"], found["kind"]) == ("start", "python")
    assert found["config"]["args"] == {"word": "{{ workload.count }} things"}
    assert found["rendered"]["args"] == {"word": "40 things"}
    assert [one["status"] for one in found["attempts"]] == ["error"] * 3
    assert [one["directive"] for one in found["attempts"]] == ["retry", "retry", "continue"]
    assert [one["rule"] for one in found["attempts"]] == [0, 0, 1]
    assert found["attempts"][0]["retry_delay"] == 0.05
    assert all("fetching 40 things" in one["output"] for one in found["attempts"])
    assert len(found["rules"]) == 2
    assert server.ask("GET", f"/api/executions/{execution_id}/calls/none").status == 404


RULED = (
    HEAD.format(path="desk/ruled")
    + """\
workload: {word: fetched}
workflow:
  - step: start
    tool: {kind: noop}
    case:
      - when: "{{ event.name == 'call.done' }}"
        then:
          - tell: {tool: {kind: noop, result: "{{ workload.word }}"}}
          - next: end
  - step: end
    tool: {kind: noop}
"""
)


def test_a_call_of_a_rule_shows_what_it_was_given_too(shop: Shop):
    server = shop.server
    execution_id = server.start(RULED)
    server.ended(execution_id)
    begun = next(
        one
        for one in server.events(execution_id)
        if one["name"] == "task.started" and one["payload"]["task"] == "tell"
    )

    found = server.get(f"/api/executions/{execution_id}/calls/{begun['action_id']}")

    assert found["config"] == {"result": "{{ workload.word }}"}
    assert found["rendered"] == {"result": "fetched"}


NAMESAKES = (
    HEAD.format(path="desk/namesakes")
    + """\
workflow:
  - step: start
    tool:
      - start_sink: {kind: noop, result: "{{ 1 + 1 }}"}
      - last:
          kind: noop
          result: "{{ 2 + 2 }}"
          spec:
            policy:
              rules: [{when: "{{ _attempt < 2 }}", then: {do: retry, delay: 0}}]
              before: [{name: x, kind: noop, result: "{{ 3 + 3 }}"}]
              after: [{name: x, kind: noop, result: "{{ 4 + 4 }}"}]
    sink: {tool: {kind: noop, result: "{{ 5 + 5 }}"}}
"""
)


def test_of_tasks_with_one_name_a_call_shows_its_own(shop: Shop):
    server = shop.server
    execution_id = server.start(NAMESAKES)
    server.ended(execution_id)
    shown: list[tuple[str, str]] = []
    for one in server.events(execution_id):
        if one["name"] == "task.started":
            found = server.get(f"/api/executions/{execution_id}/calls/{one['action_id']}")
            shown.append((one["payload"]["task"], found["config"]["result"]))

    assert shown == [
        ("start_sink", "{{ 1 + 1 }}"),
        *[("last", "{{ 2 + 2 }}"), ("x", "{{ 3 + 3 }}"), ("x", "{{ 4 + 4 }}")] * 2,
    ]


def test_an_expression_is_evaluated_at_a_moment(busy: tuple[Server, str]):
    server, execution_id = busy
    first = next(one for one in server.events(execution_id) if one["name"] == "loop.started")
    body = {"execution_id": execution_id, "template": "{{ each is defined }}"}

    assert server.post("/api/context/render", {**body, "seq": first["seq"]})["rendered"] is False
    assert server.post("/api/context/render", body)["rendered"] is True


# --- What needs somebody -----------------------------------------------------------------------


def test_the_inbox_has_the_forms_that_wait(shop: Shop):
    found = shop.server.get("/api/inbox")
    [form] = found["forms"]

    assert found["total"] == 1
    assert found["next_cursor"] is None
    assert (form["execution_id"], form["step"], form["path"]) == (
        *(shop.waiting, "approve"),
        "desk/approve",
    )
    assert [(field["name"], field["label"]) for field in form["form"]] == [("approved", "Ship it?")]


def test_a_form_that_was_answered_leaves_the_inbox(shop: Shop):
    server = shop.server
    other = server.start(ASKS)
    server.wait_for(other, "step.waiting")
    assert server.get("/api/inbox")["total"] == 2
    first = server.get("/api/inbox", limit=1)
    rest = server.get("/api/inbox", limit=1, cursor=first["next_cursor"])
    both = [page["forms"][0]["execution_id"] for page in (first, rest)]
    assert both == [other, shop.waiting]

    answer = {"name": "approval.received", "data": {"approved": True}, "step": "approve"}
    server.post(f"/api/executions/{other}/events", answer)
    server.ended(other)

    assert [form["execution_id"] for form in server.get("/api/inbox")["forms"]] == [shop.waiting]


def test_queues_and_overview_name_work_that_no_worker_takes(shop: Shop):
    server = shop.server
    text = REPORT.replace("shop/report", "far/away").replace(
        "workflow:", "executor: {spec: {pool: far}}\nworkflow:"
    )
    stuck = server.start(text)
    try:
        server.wait_for(stuck, "step.scheduled")
        queue = next(one for one in server.get("/api/queues")["queues"] if one["pool"] == "far")
        assert (queue["waiting"], queue["leased"], queue["slots"]) == (1, 0, 0)
        assert queue["kinds"] == {"noop": 1}
        assert queue["oldest_execution_id"] == stuck
        assert queue["oldest_seconds"] >= 0
        found = server.get("/api/overview")
        assert [one["pool"] for one in found["stuck"]] == ["far"]
        assert found["failed"]["count"] >= 2
        failed = shop.server.get(f"/api/executions/{shop.failed[0]}")["path"]
        assert failed in [one["path"] for one in found["failed"]["executions"]]
        assert found["forms"]["total"] == 1
        assert stuck in [one["execution_id"] for one in found["running"]["executions"]]
        assert found["missed"] == found["next_times"] == []
    finally:
        server.post(f"/api/executions/{stuck}/cancel")


def test_the_overview_has_what_failed_by_itself_and_not_what_it_called(shop: Shop):
    server = shop.server
    fails = REPORT.replace("shop/report", "far/called").partition("workflow:")[0] + "workflow:"
    server.post(
        "/api/catalog/register",
        {"content": f"{fails} [{{ step: start, tool: {{ kind: shell, command: exit 9 }} }}]"},
    )
    calls = fails.replace("far/called", "far/caller")
    caller = server.start(
        f"{calls} [{{ step: start, tool: {{ kind: playbook, path: far/called }} }}]"
    )
    server.ended(caller)
    found = server.get("/api/overview")["failed"]
    paths = [one["path"] for one in found["executions"]]
    assert "far/caller" in paths
    assert "far/called" not in paths
    query = "status:failed parent:none"
    assert found["count"] == server.get("/api/executions/count", q=query)["count"]


def test_a_playbook_that_fails_all_the_time_hides_no_other_in_the_overview(shop: Shop):
    server = shop.server
    fails = REPORT.replace("shop/report", "far/once").partition("workflow:")[0] + "workflow:"
    fails += " [{ step: start, tool: { kind: shell, command: exit 9 } }]"
    server.ended(server.start(fails))
    often = [server.start(fails.replace("far/once", "far/often")) for _ in range(11)]
    for execution_id in often:
        server.ended(execution_id)

    found = server.get("/api/overview")["failed"]

    shown = {one["path"]: one["execution_id"] for one in found["executions"]}
    assert len(shown) == len(found["executions"])
    assert shown["far/often"] in often
    assert "far/once" in shown
    assert (found["times"]["far/often"], found["times"]["far/once"]) == (11, 1)


def test_a_bulk_action_says_first_how_many_and_then_acts_on_each(shop: Shop):
    server = shop.server
    started = [server.start(ASKS.replace("desk/approve", "desk/bulk")) for _ in range(3)]
    for execution_id in started:
        server.wait_for(execution_id, "step.waiting")
    every = {"q": "path:desk/bulk"}

    dry = server.post("/api/executions/bulk", {**every, "action": "cancel", "dry_run": True})
    assert (dry["matched"], dry["eligible"], dry["done"]) == (3, 3, 0)
    paused = server.post("/api/executions/bulk", {"ids": started[:2], "action": "pause"})
    assert (paused["matched"], paused["done"]) == (2, 2)
    resumed = server.post("/api/executions/bulk", {**every, "action": "resume"})
    assert (resumed["matched"], resumed["eligible"], resumed["done"]) == (3, 2, 2)
    cancelled = server.post("/api/executions/bulk", {**every, "action": "cancel", "reason": "x"})
    assert (cancelled["done"], cancelled["failed"]) == (3, [])
    assert {server.ended(one)["status"] for one in started} == {"CANCELLED"}
    again = server.post("/api/executions/bulk", {**every, "action": "rerun"})
    assert len(again["started"]) == again["done"] == 3
    assert not set(again["started"]) & set(started)
    both = {"ids": [*again["started"], "77"], "action": "cancel"}
    last = server.post("/api/executions/bulk", both)
    assert (last["matched"], last["done"]) == (3, 3)
    for wrong in ({"action": "cancel"}, {"action": "cancel", "q": "", "ids": []}):
        assert server.ask("POST", "/api/executions/bulk", wrong).status == 400
    assert server.post("/api/executions/bulk", {"ids": [], "action": "cancel"})["matched"] == 0


def test_views_are_saved_listed_and_removed(shop: Shop):
    server = shop.server
    saved = server.ask("PUT", "/api/views/on-call", {"q": "status:failed", "columns": ["region"]})
    assert saved.status == 200
    assert server.ask("PUT", "/api/views/wrong", {"q": "status:faild"}).code == "bad_query"
    [view] = server.get("/api/views")["views"]
    assert (view["name"], view["q"], view["columns"]) == ("on-call", "status:failed", ["region"])
    assert server.ask("DELETE", "/api/views/on-call").json == {"deleted": "on-call"}
    assert server.ask("DELETE", "/api/views/on-call").status == 404
    assert server.get("/api/views") == {"views": []}


def test_versions_of_a_playbook_with_their_differences_callers_and_runs(busy: tuple[Server, str]):
    server, _ = busy
    server.post("/api/catalog/register", {"content": REPORT.replace("noop", "python, code: 'x=1'")})
    found = server.get("/api/versions/shop/report")

    assert [one["version"] for one in found["versions"]] == [2, 1]
    assert found["called_by"] == ["shop/busy"]
    assert found["calls"] == []
    assert {one["path"] for one in found["runs"]} == {"shop/report"}
    assert server.get("/api/versions/shop/busy")["calls"] == ["shop/report"]
    differ = server.get("/api/version-diff/shop/report", **{"from": 1, "to": 2})
    assert "-workflow: [{step: start, tool: {kind: noop}}]\n" in differ["diff"]
    assert (differ["same"], differ["steps_changed"]) == (False, ["start"])
    same = server.get("/api/version-diff/shop/report", **{"from": 2, "to": 2})
    assert (same["same"], same["diff"]) == (True, "")
    assert server.ask("GET", "/api/versions/none").status == 404
    missing = server.ask("GET", "/api/version-diff/shop/report", **{"from": 1, "to": 9})
    assert missing.status == 404


def test_the_last_runs_of_several_playbooks_are_told_at_once(shop: Shop):
    server = shop.server
    found = server.post("/api/executions/latest", {"paths": ["shop/orders", "none"], "limit": 1})
    [orders] = found["playbooks"]
    [newest] = server.get("/api/executions", path="shop/orders", limit=1)["executions"]

    assert orders["path"] == "shop/orders"
    assert orders["runs"] == [{name: newest[name] for name in MARK}]
    assert server.post("/api/executions/latest", {"paths": []}) == {"playbooks": []}


MARK = ("execution_id", "status", "waits", "start_time", "duration_seconds")
LARGE = 25 if IS_LONG else 8
"""Executions with a workload of a megabyte."""


def test_large_fields_of_workloads_are_shown_by_their_beginning(shop: Shop):
    entry = shop.server.post("/api/catalog/register", {"content": REPORT})
    large = {"text": "x" * 300_000, "list": list(range(100_000)), "region": "eu"}
    body = {"path": entry["path"], "workload": large}
    made = [shop.server.post("/api/execute", body)["execution_id"] for _ in range(LARGE)]

    asked = {"workload": ["text", "list", "region"], "limit": LARGE}
    reply = shop.server.ask("GET", "/api/executions", **asked)
    fields = [row["workload"] for row in reply.json["executions"] if row["execution_id"] in made]

    assert len(fields) == LARGE
    assert all(one["region"] == "eu" for one in fields)
    assert {one["text"] for one in fields} == {"x" * 200 + "…"}
    assert all(one["list"].startswith("[0,1,2,3") for one in fields)
    assert len(reply.raw) < 4_000 * LARGE
    too_many = [f"f{number}" for number in range(21)]
    assert shop.server.ask("GET", "/api/executions", workload=too_many).status == 400
