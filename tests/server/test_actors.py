"""Who did it is in the event, in the execution and in the audit log."""

from __future__ import annotations

import pytest

from tests.server.conftest import Guarded

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
        if entry["execution_id"] == asked or entry["action"] == "playbook.register"
    }

    assert found >= {
        ("author", "playbook.register"),
        ("operator", "execution.pause"),
        ("admin", "execution.resume"),
        ("operator", "variable.put"),
        ("admin", "execution.approval"),
        ("operator", "execution.rerun"),
        ("admin", "execution.cancel"),
    }
