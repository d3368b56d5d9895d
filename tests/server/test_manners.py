"""What all routes do alike: they refuse what they do not know, and read what people write."""

from __future__ import annotations

import gzip
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.processes import serving
from tests.server.test_routes import CALLING, HELLO, SLOW, WAITING, WRONG


def message(reply: Any) -> str:
    return str(reply.json["error"]["message"])


# --- Keys that are not known -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/api/execute", {"path": "tried/hello", "worklod": {"name": "x"}}, "workload"),
        ("/api/catalog/register", {"contents": HELLO}, "content"),
        ("/api/catalog/list", {"resourse_type": "Playbook"}, "resource_type"),
        ("/api/catalog/resource", {"path": "tried/hello", "versoin": 1}, "version"),
        ("/api/credentials", {"name": "a", "data": {"x": 1}, "kind": "generic"}, ""),
        ("/api/executions/1/cancel", {"reson": "enough"}, "reason"),
        ("/api/executions/1/rerun", {"form": "start"}, "from"),
        ("/api/executions/1/events", {"name": "a.b", "dta": 1}, "data"),
        ("/api/events", {"name": "a.b", "execution_id": "1", "dta": 1}, "data"),
        ("/api/context/render", {"execution_id": "1", "templte": "x"}, "template"),
        ("/api/access/tokens", {"name": "a", "roles": ["admin"], "expire_in": 1}, "expires_in"),
    ],
)
def test_a_key_that_the_body_does_not_have_is_refused_by_name(dev, path, body, meant):
    refused = dev.ask("POST", path, body)

    assert (refused.status, refused.code) == (422, "unknown_key"), refused.raw
    strange = next(key for key in body if f'"{key}"' in message(refused))
    assert strange in body
    if meant:
        assert f'Did you mean "{meant}"?' in message(refused)


@pytest.mark.parametrize(
    ("path", "key", "meant"),
    [
        ("/api/executions", "stauts", "status"),
        ("/api/executions/1/events", "types", "type"),
        ("/api/executions/1/stream", "aftr", "after"),
        ("/api/catalog/tried/hello", "vrsion", "version"),
        ("/api/credentials", "typ", "type"),
        ("/health", "verbose", ""),
    ],
)
def test_a_key_that_the_query_does_not_have_is_refused_by_name(dev, path, key, meant):
    refused = dev.ask("GET", path, **{key: "1"})

    assert (refused.status, refused.code) == (422, "unknown_key"), refused.raw
    assert f'"{key}"' in message(refused)
    if meant:
        assert f'Did you mean "{meant}"?' in message(refused)


def test_a_key_of_the_query_that_takes_one_value_comes_once(dev):
    for query in ("status=failed&status=completed", "label.team=a&label.team=b"):
        refused = dev.ask("GET", f"/api/executions?{query}")
        key = query.partition("=")[0]
        assert (refused.status, refused.code) == (400, "bad_request"), refused.raw
        assert f"the query has `{key}` more than once" in message(refused)
    assert dev.ask("GET", "/api/executions?label.team=a&label.site=b").status == 200
    events = "/api/executions/1/events?type=task.done&type=step.failed"
    assert dev.ask("GET", events).status == 404  # It takes several.


def test_what_others_send_beside_the_type_is_let_through(dev):
    body = {"content": HELLO, "resource_type": "Playbook", "resource_kind": "playbook"}
    assert dev.post("/api/catalog/register", body)["path"] == "tried/hello"
    assert dev.post("/api/catalog/list", {"resource_kind": "playbook"})["entries"]
    assert dev.get("/api/catalog/tried/hello", resource_kind="playbook")["kind"] == "Playbook"


def test_workers_of_a_later_release_may_say_more(dev):
    body = {"worker_id": "w", "pool": "nobody", "slots": 1, "colour": "blue"}
    assert dev.post("/api/commands/lease?shape=round", body)["commands"] == []


# --- Bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [None, b"", b"{}"])
def test_no_body_is_an_empty_object(dev, raw):
    dev.post("/api/catalog/register", {"content": HELLO})

    assert dev.ask("POST", "/api/catalog/list", raw=raw).json["entries"]
    refused = dev.ask("POST", "/api/catalog/register", raw=raw)
    assert refused.status == 400
    assert message(refused) == "the body, content: it is missing"
    assert refused.json["error"]["details"][0]["key"] == "content"
    refused = dev.ask("POST", "/api/execute", raw=raw)
    assert "say which playbook" in message(refused)


def test_a_playbook_may_be_sent_as_it_is(dev):
    headers = {"Content-Type": "application/yaml; charset=utf-8"}
    text = HELLO.replace("says hello", "grüßt").encode()

    sent = dev.ask("POST", "/api/catalog/register", raw=text, headers=headers)
    again = dev.ask("POST", "/api/catalog/register", raw=text, headers=headers)
    wrong = dev.ask("POST", "/api/catalog/register", raw=WRONG.encode(), headers=headers)
    broken = dev.ask("POST", "/api/catalog/register", raw=b"\xff\xfe", headers=headers)
    checked = dev.ask("POST", "/api/catalog/validate", raw=text, headers=headers)

    assert sent.json["path"] == "tried/hello"
    assert again.json["version"] == sent.json["version"]
    assert (wrong.status, wrong.code) == (422, "playbook_rejected")
    assert (broken.status, message(broken)) == (400, "the body is not UTF-8.")
    assert checked.json["valid"] is True


def test_several_playbooks_are_registered_together_or_not_at_all(dev):
    texts = [HELLO.replace("tried/hello", f"tried/batch{number}") for number in (1, 2)]
    both = {"resources": [{"content": text} for text in texts]}
    spoilt = {"resources": [{"content": texts[0].replace("world", "x")}, {"content": WRONG}]}

    entries = dev.post("/api/catalog/register/batch", both)["entries"]
    refused = dev.ask("POST", "/api/catalog/register/batch", spoilt)

    assert [entry["path"] for entry in entries] == ["tried/batch1", "tried/batch2"]
    assert (refused.status, refused.code) == (422, "playbook_rejected")
    problems = refused.json["error"]["details"]["problems"]
    assert problems
    assert all(problem["path"].startswith("resources[1].") for problem in problems)
    assert dev.get("/api/catalog/tried/batch1")["version"] == 1
    assert dev.ask("POST", "/api/catalog/register/batch", {"resources": []}).status == 400


def test_names_are_compared_as_people_write_them(dev):
    entry = dev.post("/api/catalog/register", {"content": HELLO, "resource_type": "PLAYBOOK"})

    for kind in ("playbook", "Playbook", "PLAYBOOK"):
        found = dev.post("/api/catalog/list", {"resource_type": kind, "path_prefix": "tried/hello"})
        assert [one["path"] for one in found["entries"]] == ["tried/hello"]
    wanted = {"path": "tried/hello", "version": "latest"}
    assert dev.get("/api/catalog/tried/hello", version="latest")["version"] == entry["version"]
    assert dev.get("/api/catalog/tried/hello", version=1)["version"] == 1
    assert dev.post("/api/catalog/resource", wanted)["version"] == entry["version"]
    assert dev.post("/api/execute", wanted)["version"] == entry["version"]
    assert dev.ask("POST", "/api/execute", {**wanted, "version": "newest"}).status == 400
    assert dev.ask("GET", "/api/catalog/tried/hello", version="newest").status == 400
    for status in ("completed", "Completed", "COMPLETED"):
        assert "executions" in dev.get("/api/executions", status=status)


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/api/executions/bulk", {"action": "cancle", "q": ""}, 'mean "cancel"?'),
        ("POST", "/api/language", {"want": "complete"}, 'mean "completion"?'),
        ("POST", "/api/execute", {"path": "a", "version": "latst"}, "one of a number, latest, not"),
        ("POST", "/api/catalog/list", {"resource_type": "playbok"}, 'mean "Playbook"?'),
        ("POST", "/api/access/tokens", {"name": "a", "roles": ["amdin"]}, 'mean "admin"?'),
        ("GET", "/api/executions?status=faild", None, 'mean "FAILED"?'),
        ("GET", "/api/executions/1/loops/1/iterations?status=dne", None, 'mean "done"?'),
        ("GET", "/api/version-diff/a?from=1", None, "to: it is missing"),
    ],
)
def test_a_value_that_there_is_not_is_answered_with_those_there_are(dev, method, path, body, said):
    refused = dev.ask(method, path, body)

    assert (refused.status, refused.code) == (400, "bad_request"), refused.raw
    assert said in message(refused)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/catalog/tried/hello?version={}", None),
        ("POST", "/api/catalog/resource", {"path": "tried/hello"}),
        ("POST", "/api/execute", {"path": "tried/hello"}),
        ("POST", "/api/executions/1/fork", {"seq": 1}),
        ("POST", "/api/whatif", {"path": "tried/hello"}),
    ],
)
@pytest.mark.parametrize("version", [2**31, 2**63, 10**30])
def test_a_version_that_no_database_counts_to_is_refused(dev, method, path, body, version):
    dev.post("/api/catalog/register", {"content": HELLO})
    asked = None if body is None else {**body, "version": version}

    refused = dev.ask(method, path.format(version), asked)

    assert (refused.status, refused.code) == (400, "bad_request"), refused.raw
    assert "version: " in message(refused)


@pytest.mark.parametrize("name", ["a/b", "a/", "/", "a//b", "ü?#&%", "a%2Fb", " ", "list"])
def test_a_name_may_hold_what_paths_are_made_of(dev, name):
    path = f"/api/credentials/{quote(name, safe='')}"
    for one in (name, "a", "b"):
        dev.post("/api/credentials", {"name": one, "data": {"a": one}})

    assert dev.get(path, include_data="true")["data"] == {"a": name}
    assert dev.ask("DELETE", path).json == {"deleted": name}
    assert dev.ask("GET", path).status == 404
    left = {one["name"] for one in dev.get("/api/credentials")["credentials"]}
    assert {"a", "b"} <= left


def test_a_credential_keeps_its_tags(dev):
    body = {"name": "tagged", "type": "generic", "data": {"a": "b"}, "tags": ["prod", "eu"]}

    assert dev.post("/api/credentials", body)["tags"] == ["prod", "eu"]
    assert dev.get("/api/credentials/tagged")["tags"] == ["prod", "eu"]
    listed = {one["name"]: one["tags"] for one in dev.get("/api/credentials")["credentials"]}
    assert listed["tagged"] == ["prod", "eu"]


# --- Starting and stopping ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "1 to 255 characters, and this one has 0"),
        ("k" * 256, "1 to 255 characters, and this one has 256"),
        ("schedule/shop/nightly/2030-01-01T02:30:00.000Z", "schedule/ is for what"),
        ("hook/shop/push/1", "hook/ is for what"),
        ("consumer/shop/orders/1", "consumer/ is for what"),
        ("notification/ops/failures/failed/1", "notification/ is for what"),
        ("rerun/nightly/1", "rerun/ is for what"),
    ],
)
def test_a_key_that_none_may_choose_starts_nothing(dev, key, why):
    def started() -> set[str]:
        """Those of other tests may still be running: what they do does not count."""
        return {one["execution_id"] for one in dev.get("/api/executions?limit=500")["executions"]}

    dev.post("/api/catalog/register", {"content": HELLO})
    before = started()

    refused = dev.ask(
        "POST", "/api/execute", {"path": "tried/hello"}, headers={"Idempotency-Key": key}
    )

    assert refused.status == 400
    assert why in message(refused)
    assert started() == before


def test_a_key_of_one_request_is_not_taken_for_another(dev):
    first = dev.post("/api/catalog/register", {"content": HELLO})
    dev.post("/api/catalog/register", {"content": SLOW})
    headers = {"Idempotency-Key": f"key-{uuid.uuid4()}"}
    body = {"path": "tried/hello", "workload": {"name": "a", "n": 1}}

    def start(**changed: Any) -> Any:
        return dev.ask("POST", "/api/execute", {**body, **changed}, headers=headers)

    started = start().json["execution_id"]
    newer = dev.post("/api/catalog/register", {"content": HELLO.replace("{a: 1", "{a: 7")})
    assert newer["version"] != first["version"]

    assert start().json["execution_id"] == started
    assert start(workload={"n": 1.0, "name": "a"}).json["execution_id"] == started
    assert start(version=first["version"]).json["execution_id"] == started
    for changed, word in [
        ({"workload": {"name": "b", "n": 1}}, "workload"),
        ({"path": "tried/slow"}, "path"),
        ({"version": newer["version"]}, "version"),
        ({"parent_execution_id": started}, "parent"),
        ({"labels": {"team": "shop"}}, "labels"),
    ]:
        refused = start(**changed)
        assert (refused.status, refused.code) == (422, "idempotency_key_reused"), changed
        assert word in message(refused)
        assert started in message(refused)


def test_a_key_knows_the_labels_of_the_request_and_of_the_playbook(dev):
    labelled = HELLO.replace("path: tried/hello", "path: tried/labelled, labels: {team: ops}")
    dev.post("/api/catalog/register", {"content": labelled})
    headers = {"Idempotency-Key": f"key-{uuid.uuid4()}"}

    def start(labels: dict[str, str]) -> Any:
        body = {"path": "tried/labelled", "workload": {"name": "a", "n": 1}, "labels": labels}
        return dev.ask("POST", "/api/execute", body, headers=headers)

    started = start({"order": "A-17"}).json["execution_id"]

    assert start({"order": "A-17"}).json["execution_id"] == started
    assert start({"order": "A-17", "team": "ops"}).json["execution_id"] == started
    assert start({"order": "A-18"}).code == "idempotency_key_reused"
    assert start({}).code == "idempotency_key_reused"


@pytest.mark.parametrize(("cascade", "count"), [(True, 3), (False, 1)])
def test_cancelling_says_how_many_were_stopped_however_often_it_is_sent(dev, cascade, count):
    dev.post("/api/catalog/register", {"content": WAITING})
    middle = CALLING.replace("calling", "middle")
    dev.post("/api/catalog/register", {"content": middle})
    above = dev.start(CALLING.replace("calling", "above").replace("tried/waits", "tried/middle"))
    child = dev.wait_for(above, "child.started")["payload"]["child"]
    below = dev.wait_for(child, "child.started")["payload"]["child"]
    dev.wait_for(below, "step.waiting")

    key, cancel = uuid.uuid4().hex, f"/api/executions/{above}/cancel"
    answer = keyed(dev, cancel, key, {"cascade": cascade}).json

    assert (answer["status"], answer["cancelled"]) == ("CANCELLED", count)
    assert keyed(dev, cancel, key, {"cascade": cascade}).json == answer
    if not cascade:
        assert dev.post(f"/api/executions/{child}/cancel")["cancelled"] == 2
        assert keyed(dev, cancel, key, {"cascade": cascade}).json == answer


YEARLY = """\
apiVersion: noetl.io/v2
kind: Schedule
metadata: {name: NAME, path: keys/NAME}
spec: {playbook: tried/hello, cron: "0 0 1 1 *"}
"""
BROKEN = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: broken, path: tried/broken}
workflow:
  - {step: start, tool: {kind: python, code: "raise ValueError(1)"}}
"""
UNDOING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: undoing, path: tried/undoing}
executor: {spec: {policy: {compensate_on: [cancel]}}}
workflow:
  - {step: book, spec: {compensate: unbook}, tool: {kind: noop}, next: ship}
  - step: ship
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'order.shipped' }}", then: {next: [{step: end}]}}]
  - {step: unbook, tool: {kind: python, code: "import time; time.sleep(600)"}}
  - {step: end, tool: {kind: noop}}
"""


def test_a_cancellation_whose_answer_was_lost_may_be_sent_again_under_its_key(dev):
    dev.post("/api/catalog/register", {"content": UNDOING})
    execution_id = dev.start(UNDOING)
    dev.wait_for(execution_id, "step.waiting")

    def cancel(key: str, reason: str = "enough") -> Any:
        path, headers = f"/api/executions/{execution_id}/cancel", {"Idempotency-Key": key}
        return dev.ask("POST", path, {"reason": reason}, headers=headers)

    first, again = cancel("one").json, cancel("one").json
    assert first == again
    assert (first["status"], first["cancelled"]) == ("RUNNING", 1)
    refused = cancel("one", "another reason")
    assert (refused.status, refused.code) == (422, "idempotency_key_reused")

    assert cancel("two").json["status"] == "CANCELLED"
    assert cancel("one").json["status"] == "CANCELLED"
    assert cancel("three").code == "finished"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/execute", HELLO), ("/api/catalog/register", HELLO), ("/hooks/no/such", "{}")],
)
def test_a_compressed_body_is_refused_with_the_reason(dev, path, body):
    packed = gzip.compress(body.encode())

    refused = dev.ask("POST", path, raw=packed, headers={"Content-Encoding": "gzip"})

    assert (refused.status, refused.code) == (415, "compressed")
    assert "Send it uncompressed" in message(refused)
    as_it_is = dev.ask("POST", path, {}, headers={"Content-Encoding": "identity"})
    assert as_it_is.code != "compressed"
    empty = dev.ask("POST", path, {}, headers={"Content-Encoding": ""})
    assert empty.code != "compressed"


def test_what_has_no_body_is_not_compressed(dev):
    for path in ("/api/executions", "/health"):
        assert dev.ask("GET", path, headers={"Content-Encoding": "gzip"}).status == 200


def keyed(dev: Any, path: str, key: str, body: dict[str, Any]) -> Any:
    return dev.ask("POST", path, body, headers={"Idempotency-Key": key})


@pytest.mark.parametrize(
    ("route", "body", "other"),
    [
        ("rerun", {}, {"from": "shout"}),
        ("rerun", {"from": "shout"}, {"from": "start"}),
        ("rerun", {"workload": {"n": 2}}, {"workload": {"n": 3}}),
        ("fork", {"seq": 5}, {"seq": 6}),
        ("fork", {"seq": 5, "ctx": {"a": 1}}, {"seq": 5, "ctx": {"a": 2}}),
    ],
)
def test_what_is_run_again_under_one_key_is_run_once(dev, route, body, other):
    first = dev.start(HELLO)
    dev.ended(first)
    key = uuid.uuid4().hex
    path = f"/api/executions/{first}/{route}"

    answers = [keyed(dev, path, key, body).json for _ in range(3)]

    assert len({answer["execution_id"] for answer in answers}) == 1
    assert len({str(answer.get("plan")) for answer in answers}) == 1
    assert answers[0]["execution_id"] != first
    refused = keyed(dev, path, key, other)
    assert (refused.status, refused.code) == (422, "idempotency_key_reused")
    assert answers[0]["execution_id"] in message(refused)
    second = dev.start(HELLO)
    dev.ended(second)
    of_another = keyed(dev, f"/api/executions/{second}/{route}", key, body)
    assert of_another.code == "idempotency_key_reused"
    assert keyed(dev, path, uuid.uuid4().hex, other).json["execution_id"] not in str(answers)


def test_a_start_under_the_key_of_a_rerun_is_another_request(dev):
    first = dev.start(HELLO)
    dev.ended(first)
    key = uuid.uuid4().hex
    again = keyed(dev, f"/api/executions/{first}/rerun", key, {}).json

    refused = keyed(dev, "/api/execute", key, {"path": dev.get(f"/api/executions/{first}")["path"]})

    assert (refused.status, refused.code) == (422, "idempotency_key_reused")
    assert again["execution_id"] in message(refused)


def test_two_requests_at_once_under_one_key_start_one_execution(dev):
    first = dev.start(HELLO)
    dev.ended(first)
    key, path = uuid.uuid4().hex, f"/api/executions/{first}/rerun"

    with ThreadPoolExecutor(6) as callers:
        answers = list(callers.map(lambda _: keyed(dev, path, key, {}).json, range(6)))

    assert len({answer["execution_id"] for answer in answers}) == 1


def test_a_run_of_a_schedule_under_one_key_is_one(dev):
    dev.post("/api/catalog/register", {"content": HELLO})
    for name in ("one", "two"):
        dev.post("/api/catalog/register", {"content": YEARLY.replace("NAME", name)})
    key = uuid.uuid4().hex

    def ran(name: str) -> str:
        return keyed(dev, "/api/schedules/run", key, {"path": f"keys/{name}"}).json["execution_id"]

    assert ran("one") == ran("one")
    assert ran("two") == ran("two") != ran("one")
    assert len(dev.get("/api/schedules/keys/one")["times"]) == 1
    audited = dev.get("/api/access/audit")["entries"]
    for name in ("one", "two"):
        acts = [entry["action"] for entry in audited if entry["target"] == f"keys/{name}"]
        assert acts.count("schedule.run") == 1


def test_a_bulk_action_under_one_key_acts_on_each_execution_once(dev):
    dev.post("/api/catalog/register", {"content": UNDOING})
    undone = dev.start(UNDOING)
    dev.wait_for(undone, "step.waiting")
    failed = dev.start(BROKEN)
    dev.ended(failed)
    key = uuid.uuid4().hex

    def bulk(action: str, q: str) -> Any:
        return keyed(dev, "/api/executions/bulk", key, {"action": action, "q": q}).json

    for _ in range(2):
        assert bulk("cancel", f"id:{undone}")["done"] == 1
        assert dev.get(f"/api/executions/{undone}")["status"] == "RUNNING"  # It still undoes.
    first = bulk("rerun", "path:tried/broken status:failed")["started"]
    assert len(first) == 1
    dev.ended(first[0])
    assert bulk("rerun", "path:tried/broken status:failed")["started"] == first
    dev.post(f"/api/executions/{undone}/cancel")


def test_a_bulk_action_leaves_out_nothing_whose_key_begins_like_its_own(dev):
    path = dev.post("/api/catalog/register", {"content": BROKEN})["path"]
    key = uuid.uuid4().hex
    failed = keyed(dev, "/api/execute", f"{key}/1", {"path": path}).json["execution_id"]
    dev.ended(failed)

    done = keyed(dev, "/api/executions/bulk", key, {"action": "rerun", "ids": [failed]}).json

    assert len(done["started"]) == 1


def test_every_event_has_a_status(dev):
    done = dev.start(HELLO)
    failed = dev.start(HELLO.replace("word.upper()", "word.nothing()"))
    stopped = dev.start(SLOW)
    dev.wait_for(stopped, "step.started")
    dev.post(f"/api/executions/{stopped}/pause")
    dev.post(f"/api/executions/{stopped}/cancel")

    statuses: dict[str, set[str]] = {}
    for execution_id in (done, failed, stopped):
        dev.ended(execution_id)
        for event in dev.events(execution_id):
            statuses.setdefault(event["name"], set()).add(event["status"])

    assert set().union(*statuses.values()) == {"in_progress", "success", "error", "paused"}
    assert statuses["task.done"] == statuses["playbook.processed"] == {"success", "error"}
    assert statuses["step.scheduled"] == statuses["task.started"] == {"in_progress"}
    assert statuses["step.done"] == {"success"}
    assert statuses["step.failed"] == {"error"}
    assert statuses["playbook.paused"] == {"paused"}


# --- Methods -----------------------------------------------------------------------------------


def test_what_answers_get_answers_head_without_a_body(dev):
    execution_id = dev.start(HELLO)
    dev.ended(execution_id)
    paths = ["", "/status", "/events", "/why"]
    for path in [
        "/health",
        "/api/executions",
        *(f"/api/executions/{execution_id}{p}" for p in paths),
    ]:
        got, head = dev.ask("GET", path), dev.ask("HEAD", path)
        assert (head.status, head.raw) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
        assert head.headers["content-type"] == got.headers["content-type"]
    assert dev.ask("HEAD", "/api/executions/77").status == 404
    assert dev.ask("HEAD", "/api/execute").status == 405


def test_head_of_a_stream_does_not_wait_for_its_end(dev):
    execution_id = dev.start(SLOW)
    head = dev.ask("HEAD", f"/api/executions/{execution_id}/stream")
    dev.post(f"/api/executions/{execution_id}/cancel")

    assert (head.status, head.raw) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", {"GET", "HEAD", "OPTIONS"}),
        ("/api/execute", {"POST", "OPTIONS"}),
        ("/api/executions", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/api/vars/1/x", {"GET", "HEAD", "PUT", "DELETE", "OPTIONS"}),
        ("/api/catalog/list", {"GET", "HEAD", "POST", "OPTIONS"}),
    ],
)
def test_whoever_asks_the_wrong_way_is_told_the_right_ones(dev, path, methods):
    wrong, asked = dev.ask("PATCH", path), dev.ask("OPTIONS", path)

    assert (wrong.status, asked.status) == (405, 204)
    for answer in (wrong, asked):
        assert set(answer.headers["allow"].split(", ")) == methods
    assert wrong.headers["allow"] in message(wrong)


def test_whoever_is_unknown_learns_no_methods(guarded):
    assert guarded.server.ask("OPTIONS", "/api/executions").status == 401
    assert guarded.server.ask("HEAD", "/api/executions").status == 401
    assert guarded.server.ask("HEAD", "/health").status == 200
    assert (
        guarded.server.ask("OPTIONS", "/api/executions", token=guarded.tokens["viewer"]).status
        == 204
    )


# --- Compression and tags ----------------------------------------------------------------------


def test_large_answers_are_compressed_for_those_who_can_read_them(dev):
    execution_id = dev.start(HELLO)
    dev.ended(execution_id)
    path = f"/api/executions/{execution_id}/events"

    plain = dev.ask("GET", path)
    packed = dev.ask("GET", path, headers={"Accept-Encoding": "br, gzip;q=0.8"})
    small = dev.ask("GET", "/health", headers={"Accept-Encoding": "gzip"})
    unwanted = dev.ask("GET", path, headers={"Accept-Encoding": "gzip;q=0, identity"})
    stream = dev.ask(
        "GET", f"/api/executions/{execution_id}/stream", headers={"Accept-Encoding": "gzip"}
    )

    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert int(packed.headers["content-length"]) == len(packed.raw) < len(plain.raw) / 2
    assert gzip.decompress(packed.raw) == plain.raw
    for other in (plain, small, unwanted, stream):
        assert "content-encoding" not in other.headers


def test_what_holds_a_secret_is_not_compressed(dev):
    secret = {"name": "packed", "data": {"password": "hunter2 " * 1000}}
    dev.post("/api/credentials", secret)

    shown = dev.ask(
        "GET", "/api/credentials/packed", headers={"Accept-Encoding": "gzip"}, include_data="true"
    )

    assert shown.json["data"] == secret["data"]
    assert "content-encoding" not in shown.headers


def test_what_never_changes_is_sent_once(dev):
    entry = dev.post("/api/catalog/register", {"content": HELLO})
    text = HELLO.replace("'hello ' + name", "'x' * 100000").replace("word.upper()", "len(word)")
    document = dev.ended(dev.start(text.replace("tried/hello", "tried/tagged")))
    reference = document["steps"][0]["result"]["_ref"]
    version = f"/api/catalog/tried/hello?version={entry['version']}"
    result = f"/api/results/{reference['execution_id']}/{reference['key']}"

    for path in (version, result):
        first = dev.ask("GET", path)
        tag = first.headers["etag"]
        again = dev.ask("GET", path, headers={"If-None-Match": f'"other", {tag}'})
        other = dev.ask("GET", path, headers={"If-None-Match": '"other"'})
        assert (again.status, again.raw, again.headers["etag"]) == (304, b"", tag)
        assert (other.status, other.raw) == (200, first.raw)
        assert first.headers["cache-control"] == "private, no-cache"
    tag = dev.ask("GET", "/api/catalog/tried/hello").headers["etag"]
    dev.post("/api/catalog/register", {"content": HELLO.replace("world", "moon")})
    newer = dev.ask("GET", "/api/catalog/tried/hello", headers={"If-None-Match": tag})
    assert newer.status == 200


# --- Pages of other sites ----------------------------------------------------------------------

SITE = "https://ui.example.com"


def test_pages_of_other_sites_may_ask_if_the_operator_names_them(tmp_path):
    asks = {"Origin": SITE, "Access-Control-Request-Method": "POST"}
    with serving(tmp_path, NOETL_CORS_ORIGINS=f"{SITE}, http://localhost:3000") as server:
        before = server.ask("OPTIONS", "/api/execute", headers=asks)
        got = server.ask("GET", "/api/executions", headers={"Origin": SITE})
        put = server.ask("POST", "/api/catalog/list", {}, headers={"Origin": SITE})
        stranger = {"Origin": "https://evil.example.com"}
        refused = server.ask("POST", "/api/catalog/list", {}, headers=stranger)
        unread = server.ask("GET", "/api/executions", headers=stranger)

    assert before.status == 204
    assert before.headers["access-control-allow-origin"] == SITE
    assert "POST" in before.headers["access-control-allow-methods"]
    assert "Authorization" in before.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in before.headers
    for answer in (got, put):
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, SITE)
    assert refused.status == 403
    for answer in (refused, unread):
        assert "access-control-allow-origin" not in answer.headers


def test_pages_of_other_sites_may_not_ask_by_default(dev):
    asks = {"Origin": SITE, "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET"):
        answer = dev.ask(method, "/api/executions", headers=asks)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert dev.ask("POST", "/api/catalog/list", {}, headers=asks).status == 403


# --- The description ---------------------------------------------------------------------------


def test_the_description_makes_good_names_for_generated_clients(dev):
    described = dev.get("/api/openapi.json")
    operations = [one for path in described["paths"].values() for one in path.values()]
    ids = [one["operationId"] for one in operations]
    titles = [one.get("title") for one in described["components"]["schemas"].values()]

    assert {"executions_start", "executions_get", "catalog_register", "events_send"} <= set(ids)
    assert all(len(one) <= 30 and one == one.lower() for one in ids)
    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)
    assert all(one["tags"] for one in operations)
    assert described["security"] == [{"token": []}, {"session": []}]
    assert described["paths"]["/health"]["get"]["security"] == [{}]
