"""The contract of the HTTP API, route by route, against a real server with a real worker."""

from __future__ import annotations

import base64
import json
import re
import uuid
from typing import Any

import pytest

from tests.server.processes import Server

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: tried/hello, description: says hello}
workload: {name: world, deep: {a: 1, b: 2}}
workflow:
  - step: start
    tool: {kind: python, args: {name: "{{ workload.name }}"}, code: "result = 'hello ' + name"}
    set: {ctx: {seen: "{{ result }}"}}
    next: shout
  - step: shout
    tool: {kind: python, args: {word: "{{ start }}"}, code: "result = word.upper()"}
"""
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: ends, path: {path}}}
workflow: [{{step: start, tool: {tool}}}]
"""
SLOW = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: slow, path: tried/slow}
workflow:
  - step: start
    tool: {kind: shell, command: "sleep 60"}
    next: after
  - step: after
    tool: {kind: noop}
"""
CALLING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: calling, path: tried/calling}
workflow: [{step: start, tool: {kind: playbook, path: tried/waits}}]
"""
WRONG = HELLO.replace("next: shout", "next: shuot")


@pytest.fixture
def hello(dev: Server) -> str:
    """An execution that has completed."""
    execution_id = dev.start(HELLO)
    assert dev.ended(execution_id)["status"] == "COMPLETED"
    return execution_id


# --- Catalog -----------------------------------------------------------------------------------


def test_the_same_content_is_the_same_version_and_other_content_the_next(dev):
    text = HELLO.replace("tried/hello", "tried/versions")

    first = dev.post("/api/catalog/register", {"content": text, "resource_type": "Playbook"})
    again = dev.post("/api/catalog/register", {"content": base64.b64encode(text.encode()).decode()})
    other = dev.post("/api/catalog/register", {"content": text.replace("world", "moon")})

    assert first == again
    assert (first["status"], first["path"], first["kind"]) == (
        "registered",
        "tried/versions",
        "Playbook",
    )
    assert (first["version"], other["version"]) == (1, 2)
    assert first["catalog_id"] != other["catalog_id"]


def test_what_is_no_playbook_is_refused_with_every_problem(dev):
    reply = dev.ask("POST", "/api/catalog/register", {"content": WRONG})

    assert (reply.status, reply.code) == (422, "playbook_rejected")
    [problem] = reply.json["error"]["details"]["problems"]
    assert (problem["code"], problem["line"]) == ("unknown-step", 9)


def test_validating_keeps_nothing(dev):
    text = HELLO.replace("tried/hello", "tried/validated")

    assert dev.post("/api/catalog/validate", {"content": text}) == {"valid": True, "problems": []}
    wrong = dev.post("/api/catalog/validate", {"content": WRONG})
    assert (wrong["valid"], wrong["problems"][0]["severity"]) == (False, "error")
    assert dev.ask("GET", "/api/catalog/tried/validated").status == 404


def test_the_catalog_lists_and_shows_with_text_and_graph(dev, hello):
    listed = dev.post("/api/catalog/list", {"path_prefix": "tried/hello"})["entries"]
    shown = dev.get("/api/catalog/tried/hello", version=1)
    asked = dev.post("/api/catalog/resource", {"path": "tried/hello"})

    assert [entry["path"] for entry in listed] == ["tried/hello"]
    assert listed[0]["description"] == "says hello"
    assert shown == asked
    assert shown["content"] == HELLO
    assert [node["id"] for node in shown["layout"]["nodes"]] == ["start", "shout"]
    assert [(e["from"], e["to"]) for e in shown["layout"]["edges"]] == [("start", "shout")]
    assert dev.ask("GET", "/api/catalog/tried/nothing").code == "not_found"


# --- Starting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["register", "register/batch", "list", "resource", "validate"])
def test_a_playbook_with_the_name_of_a_route_can_be_read(dev, path):
    text = (
        f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: odd, path: {path}}}\n"
        "workflow: [{step: start, tool: {kind: noop}}]\n"
    )
    dev.post("/api/catalog/register", {"content": text})

    assert dev.get(f"/api/catalog/{path}")["content"] == text
    allowed = dev.ask("OPTIONS", f"/api/catalog/{path}").headers["allow"]
    assert allowed == "GET, HEAD, OPTIONS, POST"
    assert dev.ask("DELETE", f"/api/catalog/{path}").status == 405


def test_an_execution_starts_by_path_or_catalog_id_with_its_workload_merged(dev):
    entry = dev.post("/api/catalog/register", {"content": HELLO})
    body = {"catalog_id": entry["catalog_id"], "payload": {"name": "moon", "deep": {"b": 3}}}

    started = dev.post("/api/executions", body)
    document = dev.ended(started["execution_id"])

    assert (started["path"], started["version"]) == ("tried/hello", entry["version"])
    assert document["result"] == "HELLO MOON"
    assert document["workload"] == {"name": "moon", "deep": {"a": 1, "b": 3}}
    assert document["ctx"] == {"seen": "hello moon"}
    assert [step["status"] for step in document["steps"]] == ["done", "done"]


def test_the_same_idempotency_key_is_the_same_execution(dev, hello):
    def start(key: str) -> str:
        body = {"path": "tried/hello"}
        return dev.post("/api/execute", body, headers={"Idempotency-Key": key})["execution_id"]

    assert start("a") == start("a")
    assert start("a") != start("b")
    for owner in ("schedule", "hook", "consumer", "notification"):
        headers = {"Idempotency-Key": f"{owner}/tried/x"}
        taken = dev.ask("POST", "/api/execute", {"path": "tried/hello"}, headers=headers)
        assert (taken.status, taken.code) == (400, "bad_request")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"path": "tried/hello", "catalog_id": "1"}, 400),
        ({"path": "no/such"}, 404),
        ({"catalog_id": "no-such"}, 404),
        ({"path": "tried/hello", "version": 99}, 404),
        ({"path": "tried/hello", "workload": [1]}, 400),
        ({"path": "tried/hello", "workload": {}, "payload": {}}, 400),
        ({"path": "tried/hello", "parent_execution_id": "1"}, 404),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(dev, hello, body, status):
    assert dev.ask("POST", "/api/execute", body).status == status


def test_an_execution_may_name_a_parent(dev, hello):
    body = {"path": "tried/hello", "parent_execution_id": hello}
    child = dev.post("/api/execute", body)["execution_id"]

    assert dev.ended(child)["parent_execution_id"] == hello
    listed = dev.get("/api/executions", parent=hello)["executions"]
    assert [row["execution_id"] for row in listed] == [child]


# --- Looking -----------------------------------------------------------------------------------


def test_executions_are_listed_newest_first_page_by_page(dev, hello):
    started = [dev.start(HELLO) for _ in range(3)]
    for execution_id in started:
        dev.ended(execution_id)

    pages, cursor = [], None
    while True:
        chosen = {"cursor": cursor} if cursor else {}
        page = dev.get("/api/executions", path="tried/hello", limit=2, **chosen)
        pages.append([row["execution_id"] for row in page["executions"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break

    found = [execution_id for page in pages for execution_id in page]
    assert found[:3] == started[::-1]
    assert all(len(page) == 2 for page in pages[:-1])
    assert len(found) == len(set(found))
    assert dev.get("/api/executions", since="1h", status="COMPLETED")["executions"]
    assert dev.get("/api/executions", since="2100-01-01T00:00:00Z")["executions"] == []
    for bad in ({"status": "ODD"}, {"since": "soon"}, {"cursor": "zzz"}, {"limit": 0}):
        assert dev.ask("GET", "/api/executions", **bad).status == 400


def test_the_status_is_the_short_form(dev, hello):
    status = dev.get(f"/api/executions/{hello}/status")

    assert status["status"] == "COMPLETED"
    assert status["completed_steps"] == ["start", "shout"]
    assert (status["completed"], status["failed"], status["current_steps"]) == (True, False, [])


def test_only_what_completed_is_completed_and_a_failure_is_a_line_of_the_log_and_counted(dev):
    fails = PLAYBOOK.format(path="tests/ends/badly", tool='{kind: noop, result: "{{ 1 / 0 }}"}')
    waits = PLAYBOOK.format(path="tests/ends/never", tool='{kind: shell, cmd: "sleep 600"}')
    failed, stopped = dev.start(fails), dev.start(waits)
    dev.wait_for(failed, "playbook.processed")
    dev.wait_for(stopped, "step.started")
    dev.post(f"/api/executions/{stopped}/cancel")

    one, other = (dev.get(f"/api/executions/{each}/status") for each in (failed, stopped))
    assert (one["completed"], one["failed"], one["current_step"]) == (False, True, None)
    assert (other["status"], other["completed"], other["failed"]) == ("CANCELLED", False, False)
    assert "by zero" in one["error"]["message"]
    lines = [json.loads(line) for line in dev.log.read_text().splitlines() if failed in line]
    [line] = [line for line in lines if line["message"] == "an execution failed"]
    assert (line["level"], line["path"], line["step"]) == ("info", "tests/ends/badly", "start")
    assert "by zero" in line["error"]
    metrics = dev.ask("GET", "/metrics").raw.decode()
    counted = 'noetl_executions_finished_total{path="tests/ends/badly",status="FAILED"} 1.0'
    assert counted in metrics
    assert 'path="tests/ends/never",status="CANCELLED"} 1.0' in metrics


def test_events_come_in_order_by_number_type_and_step(dev, hello):
    events = dev.events(hello)
    some = dev.get(f"/api/executions/{hello}/events", after=events[1]["seq"], limit=2)
    done = dev.get(f"/api/executions/{hello}/events", type=["task.done", "step.done"])
    shouted = dev.get(f"/api/executions/{hello}/events", step="shout")

    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["name"] == "playbook.execution.requested"
    assert events[-1]["name"] == "playbook.processed"
    assert [event["seq"] for event in some["events"]] == [3, 4]
    assert (some["next_after"], some["more"]) == (4, True)
    assert [e["step"] for e in done["events"]] == ["start", "start", "shout", "shout"]
    assert {event["step"] for event in shouted["events"]} == {"shout"}


def test_waiting_for_events_ends_when_there_is_one(dev):
    execution_id = dev.start(SLOW)
    last = dev.wait_for(execution_id, "step.started")["seq"]

    nothing = dev.get(f"/api/executions/{execution_id}/events", after=last + 50, wait=0.01)
    dev.post(f"/api/executions/{execution_id}/cancel", {"reason": "enough"})
    ended = dev.wait_for(execution_id, "playbook.processed", after=last)

    assert nothing["events"] == []
    assert ended["payload"]["status"] == "CANCELLED"


def test_the_stream_tells_everything_and_goes_on_where_it_broke_off(dev, hello):
    path = f"/api/executions/{hello}/stream"
    whole = dev.ask("GET", path)
    rest = dev.ask("GET", path, headers={"Last-Event-ID": "3"})

    assert whole.headers["content-type"].startswith("text/event-stream")
    ids = [int(line[4:]) for line in whole.raw.decode().splitlines() if line.startswith("id: ")]
    after = [int(line[4:]) for line in rest.raw.decode().splitlines() if line.startswith("id: ")]
    assert ids == list(range(1, ids[-1] + 1))
    assert after == ids[3:]
    assert b"event: playbook.processed\n" in whole.raw


# --- Acting ------------------------------------------------------------------------------------


def test_cancelling_interrupts_what_runs_and_ended_stays_ended(dev):
    execution_id = dev.start(SLOW)
    dev.wait_for(execution_id, "step.started")
    [waits] = dev.get(f"/api/executions/{execution_id}/why")["waits_for"]

    answer = dev.post(f"/api/executions/{execution_id}/cancel", {"reason": "wrong file"})
    again = dev.ask("POST", f"/api/executions/{execution_id}/cancel", {})

    assert (waits["waits_for"], waits["step"]) == ("lease", "start")
    assert answer["status"] == "CANCELLED"
    assert dev.get(f"/api/executions/{execution_id}")["error"]["message"] == "wrong file"
    assert (again.status, again.code) == (409, "finished")
    assert dev.get(f"/api/executions/{execution_id}/why")["waits_for"] == []


UNDOING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: undoing, path: tests/undoing}
executor: {spec: {policy: {compensate_on: [failure, cancel]}}}
workflow:
- {step: start, spec: {compensate: undo}, tool: {kind: noop, result: {id: 7}}, next: slow}
- {step: slow, tool: {kind: shell, cmd: sleep 600}}
- {step: undo, tool: {kind: noop, result: "{{ args.result.id }}"}}
"""


def test_cancelling_undoes_what_is_done_where_the_playbook_says_so(dev):
    execution_id = dev.start(UNDOING)
    first = dev.wait_for(execution_id, "step.done")
    dev.wait_for(execution_id, "step.started", after=first["seq"])

    answer = dev.post(f"/api/executions/{execution_id}/cancel", {"reason": "never mind"})
    document = dev.ended(execution_id)

    assert answer["cancelled"] == 1
    assert (document["status"], document["error"]["message"]) == ("CANCELLED", "never mind")
    calls = [one for one in dev.events(execution_id) if one["name"] == "task.done"]
    assert [one["payload"]["outcome"]["result"] for one in calls if one["step"] == "undo"] == [7]
    assert {step["step"]: step["status"] for step in document["steps"]}["slow"] == "cancelled"


@pytest.mark.parametrize(("cascade", "status"), [(True, "CANCELLED"), (False, "COMPLETED")])
def test_what_an_execution_called_ends_with_it_unless_it_is_let_go(dev, cascade, status):
    dev.post("/api/catalog/register", {"content": WAITING})
    execution_id = dev.start(CALLING)
    child = dev.wait_for(execution_id, "child.started")["payload"]["child"]
    dev.wait_for(child, "step.waiting")

    dev.post(f"/api/executions/{execution_id}/cancel", {"cascade": cascade})
    event = {"name": "order.shipped", "data": {"number": 7}}
    sent = dev.ask("POST", f"/api/executions/{child}/events", event)

    assert sent.status == (409 if cascade else 200)
    assert dev.ended(child)["status"] == status
    assert dev.ended(execution_id)["status"] == "CANCELLED"


def test_a_paused_execution_goes_on_when_it_is_resumed(dev):
    execution_id = dev.start(SLOW.replace("sleep 60", "sleep 2"))
    dev.wait_for(execution_id, "task.started")  # what has not begun would not begin
    paused = dev.post(f"/api/executions/{execution_id}/pause", {"reason": "lunch"})
    dev.wait_for(execution_id, "step.done")
    still = dev.get(f"/api/executions/{execution_id}/status")

    resumed = dev.post(f"/api/executions/{execution_id}/resume")

    assert (paused["status"], still["status"], resumed["status"]) == (
        "PAUSED",
        "PAUSED",
        "RUNNING",
    )
    assert dev.ended(execution_id)["status"] == "COMPLETED"


def test_a_rerun_from_a_step_keeps_what_was_before_it(dev, hello):
    body = {"from": "shout", "workload": {"name": "moon"}}
    again = dev.post(f"/api/executions/{hello}/rerun", body)

    document = dev.ended(again["execution_id"])
    assert document["result"] == "HELLO WORLD"
    assert [step["step"] for step in document["steps"] if step["runs"]] == ["shout"]
    assert dev.ask("POST", f"/api/executions/{hello}/rerun", {"from": "shuot"}).status == 404


# --- Variables, templates, results -------------------------------------------------------------


def test_variables_are_set_read_and_removed_while_an_execution_runs(dev, hello):
    execution_id = dev.start(SLOW)
    path = f"/api/vars/{execution_id}"

    assert dev.ask("PUT", f"{path}/colour", {"value": ["red"]}).json["value"] == ["red"]
    assert dev.get(path)["vars"] == {"colour": ["red"]}
    assert dev.get(f"{path}/colour") == {"name": "colour", "value": ["red"]}
    assert dev.ask("DELETE", f"{path}/colour").status == 200
    assert dev.ask("GET", f"{path}/colour").status == 404
    assert dev.ask("DELETE", f"{path}/colour").status == 404
    dev.post(f"/api/executions/{execution_id}/cancel")
    assert dev.ask("PUT", f"{path}/colour", {"value": 1}).code == "finished"


def test_a_template_is_rendered_as_the_execution_sees_it(dev, hello):
    def render(**body: object) -> object:
        return dev.post("/api/context/render", {"execution_id": hello, **body})["rendered"]

    assert render(template="{{ start }} and {{ workload.deep.b + 1 }}") == "hello world and 3"
    assert render(object={"a": ["{{ ctx.seen }}"]}, step="shout") == {"a": ["hello world"]}
    wrong = dev.ask("POST", "/api/context/render", {"execution_id": hello, "template": "{{ x.y }}"})
    assert (wrong.status, wrong.code) == (422, "undefined_value")
    bomb = {"execution_id": hello, "template": "{{ 'x' * 10 ** 10 }}"}
    assert dev.ask("POST", "/api/context/render", bomb).status == 422
    assert dev.ask("POST", "/api/context/render", {"execution_id": hello}).status == 400


def test_a_large_result_is_read_by_its_reference(dev):
    text = HELLO.replace("result = 'hello ' + name", "result = 'x' * 100_000").replace(
        "word.upper()", "len(word)"
    )
    document = dev.ended(dev.start(text))
    reference = document["steps"][0]["result"]["_ref"]

    assert document["result"] == 100_000
    body = dev.ask("GET", f"/api/results/{reference['execution_id']}/{reference['key']}")
    assert body.json == "x" * 100_000
    assert dev.ask("GET", f"/api/results/{reference['execution_id']}/nothing").status == 404


LONG_LISTS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: lists, path: tests/lists}
workflow:
  - step: start
    tool: {kind: python, code: "return [{'n': i, 'text': 'x' * 2000} for i in range(250)]"}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ start }}", iterator: one}
    tool:
      kind: python
      args: {one: "{{ one }}"}
      code: "return [one['n'], one['text']] if one['n'] < 150 else 1 / 0"
"""


def test_a_list_in_segments_is_read_whole_by_its_reference(dev):
    execution_id = dev.start(LONG_LISTS)
    dev.ended(execution_id)

    def payload(name: str) -> dict[str, Any]:
        [event] = dev.get(f"/api/executions/{execution_id}/events?type={name}")["events"]
        return event["payload"]

    elements = payload("loop.started")["items"]["_ref"]
    results = payload("step.failed")["result"]["results"]["_ref"]

    def whole(reference: dict[str, Any]) -> list[object]:
        return dev.get(f"/api/results/{reference['execution_id']}/{reference['key']}")

    assert results["segments"] == {"length": 250, "width": 100, "kept": [[0, 2]]}
    assert whole(results) == [[n, "x" * 2000] if n < 150 else None for n in range(250)]
    assert whole(elements) == [{"n": n, "text": "x" * 2000} for n in range(250)]


# --- Events from outside -----------------------------------------------------------------------

WAITING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: tried/waits}
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case:
      - when: "{{ event.name == 'order.shipped' }}"
        then:
          - result: {value: "{{ event.data.number }}"}
          - next: [{step: done}]
  - step: done
    tool: {kind: python, args: {n: "{{ start }}"}, code: "result = n + 1"}
"""


@pytest.mark.parametrize("route", ["/api/events", "/v1/events", None])
def test_an_event_from_outside_reaches_the_step_that_waits(dev, route):
    execution_id = dev.start(WAITING)
    dev.wait_for(execution_id, "step.waiting")
    event = {"name": "order.shipped", "data": {"number": 7}, "event_id": "mine"}

    if route is None:
        first = dev.post(f"/api/executions/{execution_id}/events", event)
    else:
        first = dev.post(route, [{**event, "execution_id": execution_id}])

    assert first == {"status": "ok", "event_ids": ["mine"], "duplicates": 0}
    assert dev.ended(execution_id)["result"] == 8


def test_a_list_of_events_that_fails_half_way_says_where_and_what_was_taken(dev):
    execution_id = dev.start(WAITING)
    sent = [
        {"execution_id": execution_id, "name": "order.packed", "event_id": "first"},
        {"execution_id": "77", "name": "order.shipped"},
        {"execution_id": execution_id, "name": "order.shipped", "data": {"number": 1}},
    ]

    refused = dev.ask("POST", "/api/events", sent)
    again = dev.post("/api/events", [sent[0], sent[2]])

    assert (refused.status, refused.code) == (404, "not_found")
    said = refused.json["error"]["message"]
    assert said == "event [1] of the list: there is no execution 77. Those before it were taken."
    assert again["duplicates"] == 1
    assert dev.ended(execution_id)["status"] == "COMPLETED"


def test_only_we_say_what_happens_inside(dev):
    execution_id = dev.start(WAITING)
    reply = dev.ask("POST", f"/api/executions/{execution_id}/events", {"name": "step.done"})

    assert reply.status in (400, 409, 422)
    dev.post(f"/api/executions/{execution_id}/cancel")


# --- The server itself -------------------------------------------------------------------------


def test_each_execution_counts_once_as_started_whatever_started_it(dev):
    def started() -> int:
        said = dev.ask("GET", "/metrics").raw.decode()
        return int(float(re.findall(r"(?m)^noetl_executions_started_total (\S+)$", said)[0]))

    dev.post("/api/catalog/register", {"content": HELLO})
    before = started()
    key = {"Idempotency-Key": uuid.uuid4().hex}
    [first] = {
        dev.post("/api/execute", {"path": "tried/hello"}, headers=key)["execution_id"]
        for _ in range(3)
    }
    dev.ended(first)
    assert started() == before + 1
    dev.post("/api/executions/bulk", {"action": "rerun", "ids": [first]})
    assert started() == before + 2
    dev.ended(dev.start(CALLING.replace("tried/waits", "tried/hello")))
    assert started() == before + 4


def test_health_metrics_openapi_and_pools_are_there(dev, hello):
    assert dev.get("/health")["status"] == dev.get("/api/health")["status"] == "ok"
    metrics = dev.ask("GET", "/metrics").raw.decode()
    assert 'noetl_http_requests_total{method="GET",route="/health",status="200"}' in metrics
    assert "noetl_executions_started_total" in metrics
    schema = dev.get("/api/openapi.json")
    assert "/api/executions/{execution_id}/events" in schema["paths"]
    [pool] = dev.get("/api/worker/pools")["pools"]
    assert (pool["pool"], pool["slots"]) == ("default", 64)
    [worker] = pool["workers"]
    assert worker["name"].startswith("embedded-")
    assert worker["seen_at"] is not None
    assert worker["sandbox"] == "processes"


def test_every_answer_has_the_id_of_its_request(dev):
    given = dev.ask("GET", "/health", headers={"X-Request-ID": "abc-1"})
    drawn = dev.ask("GET", "/health", headers={"X-Request-ID": "not\tone"})

    assert given.headers["x-request-id"] == "abc-1"
    assert drawn.headers["x-request-id"] not in ("", "not\tone")


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("DELETE", "/health", None, 405),
        ("POST", "/api/execute", b"{", 400),
        ("POST", "/api/execute", b"[]", 400),
        ("POST", "/api/execute", b'{"path": "\xff"}', 400),
        ("POST", "/api/catalog/register", b'{"content": 7}', 400),
        ("GET", "/api/executions/77", None, 404),
        ("GET", "/api/executions/%00/events", None, 422),
        ("POST", "/api/catalog/register", b" " * (17 * 1024 * 1024), 413),
    ],
)
def test_a_request_that_makes_no_sense_gets_an_error_of_our_shape(dev, method, path, raw, status):
    reply = dev.ask(method, path, raw=raw)

    assert reply.status == status
    assert set(reply.json["error"]) == {"code", "message", "details"}


# --- The address itself ------------------------------------------------------------------------


def test_who_opens_the_address_of_a_server_reads_where_to_go_on(dev, guarded):
    for server in (dev, guarded.server):
        reply = server.ask("GET", "/", token="")

        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/html")
        assert "<title>NoETL</title>" in reply.raw.decode()
