"""Who did it is in the event, in the execution and in the audit log."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from noetl.api.table import TABLE
from tests.server.conftest import Guarded
from tests.server.processes import Server

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: asks, path: tests/asks}
workflow:
  - step: start
    spec: {eval_mode: on_event, form: [{name: approved, type: boolean}]}
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: {next: called}
  - {step: called, tool: {kind: noop}}
"""


@pytest.fixture(scope="module")
def asked(guarded: Guarded) -> str:
    """An execution to which different people did everything there is to do."""
    server, tokens = guarded.server, guarded.tokens
    entry = server.post("/api/catalog/register", {"content": HEAD}, token=tokens["author"])
    body = {"path": entry["path"]}
    execution_id = server.post("/api/execute", body, token=tokens["operator"])["execution_id"]
    path = f"/api/executions/{execution_id}"
    server.post(f"{path}/pause", {"reason": "wait"}, token=tokens["operator"])
    server.post(f"{path}/resume", token=tokens["admin"])
    name = f"/api/vars/{execution_id}/x"
    assert server.ask("PUT", name, {"value": 1}, token=tokens["operator"]).status == 200
    answer = {"name": "approval.received", "data": {"approved": True}}
    server.post(f"{path}/events", answer, token=tokens["admin"])
    server.post(f"{path}/rerun", token=tokens["operator"])
    server.post(f"{path}/cancel", {"reason": "enough"}, token=tokens["admin"])
    return str(execution_id)


def test_every_event_that_somebody_caused_says_who_it_was(guarded: Guarded, asked: str):
    server, token = guarded.server, guarded.tokens["admin"]
    page = server.ask("GET", f"/api/executions/{asked}/events", token=token, limit=500).json
    caused = {
        event["name"]: (event["actor"]["kind"], event["actor"]["name"])
        for event in page["events"]
        if event["actor"]
    }

    assert caused == {
        "playbook.execution.requested": ("token", "operator"),
        "playbook.paused": ("token", "operator"),
        "playbook.resumed": ("token", "admin"),
        "vars.set": ("token", "operator"),
        "approval.received": ("token", "admin"),
        "playbook.cancelled": ("token", "admin"),
    }


def test_the_execution_says_who_started_it_and_who_acted_on_it(guarded: Guarded, asked: str):
    server, token = guarded.server, guarded.tokens["viewer"]
    document = server.ask("GET", f"/api/executions/{asked}", token=token).json

    assert document["actor"]["text"] == "API token operator"
    assert [(act["action"], act["actor"]["name"]) for act in document["acts"]] == [
        ("playbook.paused", "operator"),
        ("playbook.resumed", "admin"),
        ("vars.set", "operator"),
        ("approval.received", "admin"),
        ("playbook.cancelled", "admin"),
    ]


def test_the_audit_log_says_who_acted(guarded: Guarded, asked: str):
    server, token = guarded.server, guarded.tokens["admin"]
    entries = server.ask("GET", "/api/access/audit", token=token, limit=500).json["entries"]
    found = {
        (entry["who"], entry["action"])
        for entry in entries
        if asked in (entry["execution_id"], entry["target"])
        or entry["action"] == "playbook.register"
    }

    assert found >= {
        ("API token author", "playbook.register"),
        ("API token operator", "execution.start"),
        ("API token operator", "execution.pause"),
        ("API token admin", "execution.resume"),
        ("API token operator", "variable.put"),
        ("API token admin", "execution.approval"),
        ("API token operator", "execution.rerun"),
        ("API token admin", "execution.cancel"),
    }


# --- Every route that changes something ---------------------------------------------------------


class Act(NamedTuple):
    """A request that changes something, and what the audit log says of it."""

    action: str
    target: Callable[[dict[str, str]], str]
    """The object, from the names of this try."""
    body: Callable[[dict[str, str]], Any] = lambda names: {}
    who: str = "API token admin"


def the(name: str) -> Callable[[dict[str, str]], str]:
    return lambda names: names[name]


SECRET = "not for anybody"
SCHEDULE = """\
apiVersion: noetl.io/v2
kind: Schedule
metadata: {name: hourly, path: tests/hourly}
spec: {playbook: tests/asks, every: 1h}
"""
SCHEDULED = {"path": "tests/hourly"}
CONSUMER = """\
apiVersion: noetl.io/v2
kind: Consumer
metadata: {name: taken, path: tests/taken}
spec: {source: {files: {url: "file:///nonexistent/noetl"}}, target: {playbook: tests/asks}}
"""
CONSUMED = {"path": "tests/taken"}
NOTIFICATION = """\
apiVersion: noetl.io/v2
kind: Notification
metadata: {name: told, path: tests/told}
spec: {on: missed, path: tests/none, target: {playbook: tests/asks}}
"""
NOTIFIED = {"path": "tests/told"}
HOOK = """\
apiVersion: noetl.io/v2
kind: Hook
metadata: {name: called, path: tests/called}
spec: {verify: none, target: {playbook: tests/asks}}
"""
ACTS = {
    "POST /api/catalog/register": Act(
        "playbook.register", lambda _: "tests/asks version 1", lambda _: {"content": HEAD}
    ),
    "POST /api/catalog/register/batch": Act(
        "playbook.register",
        lambda _: "tests/asks version 1",
        lambda _: {"resources": [{"content": HEAD}]},
    ),
    "POST /api/execute": Act(
        "execution.start", lambda _: "tests/asks version 1", lambda _: {"path": "tests/asks"}
    ),
    "POST /api/executions": Act(
        "execution.start", lambda _: "tests/asks version 1", lambda _: {"path": "tests/asks"}
    ),
    "POST /api/executions/{execution_id}/rerun": Act("execution.rerun", the("execution_id")),
    "POST /api/executions/{execution_id}/fork": Act(
        "execution.fork", the("execution_id"), lambda _: {"seq": 1}
    ),
    "POST /api/executions/{execution_id}/cancel": Act("execution.cancel", the("execution_id")),
    "POST /api/executions/bulk": Act(
        "execution.cancel",
        the("execution_id"),
        lambda names: {"action": "cancel", "ids": [names["execution_id"]]},
    ),
    "POST /api/executions/{execution_id}/hold": Act("execution.hold", the("execution_id")),
    "DELETE /api/executions/{execution_id}/hold": Act("execution.release", the("execution_id")),
    "DELETE /api/executions/{execution_id}": Act("execution.delete", the("execution_id")),
    "POST /api/executions/{execution_id}/pause": Act("execution.pause", the("execution_id")),
    "POST /api/executions/{execution_id}/resume": Act("execution.resume", the("execution_id")),
    "POST /api/executions/{execution_id}/events": Act(
        "execution.approval",
        lambda _: "start",
        lambda _: {"name": "approval.received", "step": "start", "data": {"approved": True}},
    ),
    "POST /api/events": Act(
        "execution.signal",
        lambda _: "order.shipped",
        lambda names: {"execution_id": names["execution_id"], "name": "order.shipped"},
    ),
    "POST /v1/events": Act(
        "execution.signal",
        lambda _: "order.shipped",
        lambda names: [{"execution_id": names["execution_id"], "name": "order.shipped"}],
    ),
    "POST /api/schedules/pause": Act("schedule.pause", the("schedule"), lambda _: SCHEDULED),
    "POST /api/schedules/resume": Act("schedule.resume", the("schedule"), lambda _: SCHEDULED),
    "POST /api/schedules/run": Act("schedule.run", the("schedule"), lambda _: SCHEDULED),
    "POST /api/schedules/backfill": Act(
        "schedule.backfill",
        the("schedule"),
        lambda _: SCHEDULED | {"from": "2026-01-01T00:00Z", "to": "2026-01-01T00:10Z"},
    ),
    "DELETE /api/schedules/{schedule}": Act("schedule.delete", the("schedule")),
    "DELETE /api/hooks/{hook}": Act("hook.delete", the("hook")),
    "POST /api/consumers/pause": Act("consumer.pause", the("consumer"), lambda _: CONSUMED),
    "POST /api/consumers/resume": Act("consumer.resume", the("consumer"), lambda _: CONSUMED),
    "DELETE /api/consumers/{consumer}": Act("consumer.delete", the("consumer")),
    "POST /api/notifications/pause": Act(
        "notification.pause", the("notification"), lambda _: NOTIFIED
    ),
    "POST /api/notifications/resume": Act(
        "notification.resume", the("notification"), lambda _: NOTIFIED
    ),
    "DELETE /api/notifications/{notification}": Act("notification.delete", the("notification")),
    "POST /api/worker/drain": Act(
        "worker.drain", the("worker"), lambda names: {"worker_id": names["worker"]}
    ),
    "POST /hooks/{hook}": Act(
        "execution.start", lambda _: "tests/asks version 1", who="hook tests/called"
    ),
    "POST /api/signals": Act(
        "execution.approval",
        the("execution_id"),
        lambda names: {
            "name": "approval.received",
            "data": {"approved": True},
            "match": f"{{{{ execution_id == '{names['execution_id']}' }}}}",
        },
    ),
    "PUT /api/vars/{execution_id}/{name}": Act(
        "variable.put", the("name"), lambda _: {"value": SECRET}
    ),
    "DELETE /api/vars/{execution_id}/{name}": Act("variable.delete", the("name")),
    "PUT /api/views/{name}": Act("view.put", the("name"), lambda _: {"q": "status:failed"}),
    "DELETE /api/views/{name}": Act("view.delete", the("name")),
    "POST /api/credentials": Act(
        "credential.put",
        the("name"),
        lambda names: {"name": names["name"], "data": {"password": SECRET}},
    ),
    "DELETE /api/credentials/{name}": Act("credential.deleted", the("name")),
    "POST /api/keys/rotate": Act("keys.rotated", lambda _: "all credentials"),
    "POST /api/access/users": Act(
        "user.put",
        the("name"),
        lambda names: {"name": names["name"], "password": SECRET, "roles": ["viewer"]},
    ),
    "DELETE /api/access/users/{name}": Act("user.deleted", the("name")),
    "POST /api/access/tokens": Act(
        "token.created", the("name"), lambda names: {"name": names["name"], "roles": ["viewer"]}
    ),
    "DELETE /api/access/tokens/{name}": Act("token.revoked", the("name")),
    "POST /api/auth/login": Act(
        "login", the("user"), lambda names: {"user": names["user"], "password": SECRET}, who="user"
    ),
    "POST /api/auth/logout": Act("logout", the("session_id"), who="user"),
    "DELETE /api/auth/sessions/{session_id}": Act("logout", the("session_id"), who="user"),
    "DELETE /api/auth/sessions": Act("logout", the("other_session_id"), who="user"),
}
ELSEWHERE = {
    "POST /api/executions/{execution_id}/archive",
    "POST /api/retention/prune",
}
"""Tried in test_retention.py, on servers of their own."""
BEFORE = {
    "DELETE /api/views/{name}": "PUT /api/views/{name}",
    "DELETE /api/executions/{execution_id}/hold": "POST /api/executions/{execution_id}/hold",
    "DELETE /api/executions/{execution_id}": "POST /api/executions/{execution_id}/cancel",
    "POST /api/executions/{execution_id}/resume": "POST /api/executions/{execution_id}/pause",
    "DELETE /api/vars/{execution_id}/{name}": "PUT /api/vars/{execution_id}/{name}",
    "DELETE /api/credentials/{name}": "POST /api/credentials",
    "DELETE /api/access/users/{name}": "POST /api/access/users",
    "DELETE /api/access/tokens/{name}": "POST /api/access/tokens",
}
"""What has to be done first, so that there is something to act on."""
RECORDED_ELSEWHERE = {"read", "work"}
"""Rights of routes that change nothing, or that are a worker's own: the log of the execution names
the worker of each command."""


def changing() -> set[str]:
    return {
        f"{route.method} {path}"
        for route in TABLE
        for path in route.paths
        if route.method != "GET" and route.right not in RECORDED_ELSEWHERE
    }


def test_every_route_that_changes_something_is_tried_here():
    documents = r"\{(schedule|hook|consumer|notification)\}"
    assert changing() - ELSEWHERE == {re.sub(documents, "{path}", route) for route in ACTS}


def signed_in(server: Server, token: str, user: str) -> dict[str, str]:
    """A user with two sessions."""
    body = {"name": user, "password": SECRET, "roles": ["operator"]}
    server.post("/api/access/users", body, token=token)
    sign_in = {"user": user, "password": SECRET}
    session, _ = (server.post("/api/auth/login", sign_in, token="")["token"] for _ in range(2))
    found = server.ask("GET", "/api/auth/sessions", token=session).json["sessions"]
    own, other = sorted(found, key=lambda one: not one["current"])
    return {
        "user": user,
        "session": session,
        "session_id": own["session_id"],
        "other_session_id": other["session_id"],
    }


@pytest.fixture
def names(guarded: Guarded, route: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """An execution, names that nothing has yet, and a user with two sessions where one acts:
    passwords are slow on purpose."""
    server, token = guarded.server, guarded.tokens["admin"]
    for text in (HEAD, SCHEDULE, HOOK, CONSUMER, NOTIFICATION):
        server.post("/api/catalog/register", {"content": text}, token=token)
    number = str(abs(hash(request.node.name)) % 10**9)
    people = signed_in(server, token, f"user-{number}") if ACTS[route].who == "user" else {}
    started = server.post("/api/execute", {"path": "tests/asks"}, token=token)
    body = {"worker_id": f"worker-{number}"}
    worker = server.post("/api/worker/pool/register", body, token=guarded.tokens["worker"])
    return {
        "worker": worker["worker_id"],
        "execution_id": started["execution_id"],
        "name": f"name-{number}",
        "schedule": "tests/hourly",
        "hook": "tests/called",
        "consumer": "tests/taken",
        "notification": "tests/told",
        **people,
    }


@pytest.mark.parametrize("route", sorted(ACTS))
def test_whoever_changes_something_leaves_one_row_in_the_audit_log(
    guarded: Guarded, names: dict[str, str], route: str
):
    server, token = guarded.server, guarded.tokens["admin"]

    def do(route: str) -> None:
        act = ACTS[route]
        method, path = route.format(**names).split(" ")
        shown = names["session"] if act.who == "user" else token
        body = None if method == "DELETE" else act.body(names)
        reply = server.ask(method, path, body, token="" if "login" in path else shown)
        assert reply.status in (200, 202), reply.raw

    def entries() -> list[dict[str, Any]]:
        return server.ask("GET", "/api/access/audit", token=token, limit=500).json["entries"]

    if route in BEFORE:
        do(BEFORE[route])
    before = entries()
    do(route)
    after = entries()

    new = [one for one in after[: len(after) - len(before)] if "schedule " not in one["who"]]
    act = ACTS[route]
    who = f"user {names['user']}" if act.who == "user" else act.who
    assert [(one["who"], one["action"], one["target"]) for one in new] == [
        (who, act.action, act.target(names))
    ]
    assert SECRET not in str(new)
