"""Schedules over HTTP and by command: rights, what is shown, what is recorded, what is refused."""

from __future__ import annotations

from typing import Any

from tests.faults.cluster import until
from tests.server.conftest import Guarded
from tests.server.processes import Server

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: web/p}
workload: {time: ""}
workflow: [{step: start, tool: {kind: noop, result: "{{ workload.time }}"}}]
"""
SCHEDULE = """\
apiVersion: noetl.io/v2
kind: Schedule
metadata: {name: s, path: web/s, description: often}
spec: {playbook: web/p, workload: {time: "{{ schedule.utc }}"}, every: 1s}
"""


def register(server: Server, text: str, **more: Any) -> Any:
    return server.post("/api/catalog/register", {"content": text}, **more)


def test_a_schedule_is_registered_shown_paused_and_deleted(dev: Server):
    register(dev, PLAYBOOK)
    entry = register(dev, SCHEDULE)
    assert (entry["kind"], entry["version"]) == ("Schedule", 1)
    assert register(dev, SCHEDULE)["version"] == 1

    def started() -> list[dict[str, Any]]:
        shown = dev.get("/api/schedules/web/s")
        return [one for one in shown["times"] if one["outcome"] == "started"]

    until(started, "a time is started")
    first = started()[-1]
    ended = dev.ended(first["execution_id"])
    assert (ended["status"], ended["result"]) == ("COMPLETED", first["time"])
    assert ended["actor"]["text"] == "schedule web/s"
    [requested, *_] = dev.events(first["execution_id"])
    assert requested["actor"] == {"kind": "schedule", "name": "web/s", "text": "schedule web/s"}

    paused = dev.post("/api/schedules/pause", {"path": "web/s", "reason": "holiday"})
    assert (paused["status"], paused["reason"], paused["next_time"]) == ("paused", "holiday", None)
    [listed] = dev.get("/api/schedules", prefix="web/")["schedules"]
    assert (listed["path"], listed["status"], listed["every"]) == ("web/s", "paused", 1.0)
    body = {"path": "web/s", "from": first["time"], "to": first["time"]}
    again = dev.post("/api/schedules/backfill", body)
    assert (again["times"], again["known"][0]["execution_id"]) == ([], first["execution_id"])
    ran = dev.post("/api/schedules/run", {"path": "web/s"})
    assert dev.ended(ran["execution_id"])["status"] == "COMPLETED"
    metrics = dev.ask("GET", "/metrics").raw.decode()
    assert "noetl_schedule_lateness_seconds_count" in metrics
    assert 'noetl_schedule_times_total{outcome="started"}' in metrics

    assert dev.ask("DELETE", "/api/schedules/web/s").status == 200
    assert dev.ask("GET", "/api/schedules/web/s").status == 404
    assert dev.get("/api/catalog/web/s")["kind"] == "Schedule"


def test_the_catalog_lists_documents_by_kind_and_no_path_has_two(dev: Server):
    register(dev, PLAYBOOK)
    register(dev, SCHEDULE.replace("web/s", "web/kinds").replace("1s", "1h"))
    entries = dev.post("/api/catalog/list", {"resource_type": "schedule"})["entries"]
    assert {entry["kind"] for entry in entries} == {"Schedule"}
    text = SCHEDULE.replace("web/p", "web/other").replace("web/s", "web/p")
    taken = dev.ask("POST", "/api/catalog/register", {"content": text})
    assert (taken.status, taken.code) == (409, "conflict")
    mistaken = {"content": PLAYBOOK, "resource_type": "Schedule"}
    assert dev.ask("POST", "/api/catalog/register", mistaken).status == 400
    assert dev.ask("POST", "/api/execute", {"path": "web/kinds"}).status == 404


def test_a_wrong_schedule_is_refused_with_all_its_problems_and_nothing_is_kept(dev: Server):
    text = SCHEDULE.replace("web/s", "web/wrong").replace("every: 1s", "evry: 1s, overlap: x")
    refused = dev.ask("POST", "/api/catalog/register", {"content": text})

    assert refused.status == 422
    problems = refused.json["error"]["details"]["problems"]
    assert {one["code"] for one in problems} == {"unknown-key", "bad-value", "missing-key"}
    assert all(one["line"] for one in problems)
    assert dev.ask("GET", "/api/schedules/web/wrong").status == 404
    assert dev.ask("GET", "/api/catalog/web/wrong").status == 404
    both = {"resources": [{"content": SCHEDULE.replace("web/s", "web/ok")}, {"content": text}]}
    assert dev.ask("POST", "/api/catalog/register/batch", both).status == 422
    assert dev.ask("GET", "/api/schedules/web/ok").status == 404


def test_each_right_is_asked_for_and_each_act_is_in_the_audit_log(guarded: Guarded):
    server, tokens = guarded.server, guarded.tokens
    register(server, PLAYBOOK, token=tokens["author"])
    body = {"content": SCHEDULE.replace("1s", "1h")}
    refused = server.ask("POST", "/api/catalog/register", body, token=tokens["operator"])
    assert refused.status == 403
    register(server, body["content"], token=tokens["author"])
    for verb in ("pause", "resume", "run"):
        route, named = f"/api/schedules/{verb}", {"path": "web/s"}
        assert server.ask("POST", route, named, token=tokens["viewer"]).status == 403
        assert server.ask("POST", route, named, token=tokens["operator"]).status == 200
    assert server.ask("GET", "/api/schedules/web/s", token=tokens["viewer"]).status == 200
    span = {"path": "web/s", "from": "2026-01-01", "to": "2026-01-01T02:00"}
    filled = server.post("/api/schedules/backfill", span, token=tokens["operator"])
    assert len(filled["times"]) == 3
    gone = "/api/schedules/web/s"
    assert server.ask("DELETE", gone, token=tokens["operator"]).status == 403
    assert server.ask("DELETE", gone, token=tokens["author"]).status == 200

    log = server.ask("GET", "/api/access/audit", token=tokens["admin"]).json["entries"]
    acts = {(one["who"], one["action"]) for one in log if one["target"].startswith("web/s")}
    assert acts == {
        ("API token author", "schedule.register"),
        ("API token operator", "schedule.pause"),
        ("API token operator", "schedule.resume"),
        ("API token operator", "schedule.run"),
        ("API token operator", "schedule.backfill"),
        ("API token author", "schedule.delete"),
    }
    assert ("schedule web/s", "execution.start") in {(one["who"], one["action"]) for one in log}


def test_what_makes_no_sense_is_said(dev: Server):
    register(dev, PLAYBOOK)
    register(dev, SCHEDULE.replace("web/s", "web/sense").replace("1s", "1h"))
    daily = 'cron: ["0 3 * * *"], timezone: Europe/Berlin'
    register(dev, SCHEDULE.replace("web/s", "web/daily").replace("every: 1s", daily))
    for body, message in (
        ({"path": "web/sens", "from": "2026-01-01", "to": "2026-01-02"}, "web/sense"),
        ({"path": "web/sense", "from": "soon", "to": "2026-01-02"}, "`from` is a moment"),
        ({"path": "web/sense", "from": "2026-01-02", "to": "2026-01-01"}, "before `from`"),
        ({"path": "web/sense", "from": "1990-01-01", "to": "2026-01-01"}, "more than 10,000"),
        ({"path": "web/daily", "from": "0001-01-01", "to": "9999-12-31"}, "more than 10,000"),
    ):
        refused = dev.ask("POST", "/api/schedules/backfill", body)
        assert refused.status in (400, 404)
        assert message in refused.json["error"]["message"]
