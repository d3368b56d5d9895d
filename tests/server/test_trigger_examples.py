"""The examples of documents that start executions, registered and put to work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.system import temporary_folder
from tests.secrets.test_signatures import mac
from tests.server.processes import Server, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "known to both"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with temporary_folder() as folder, serving(folder, kind="dev") as server:
        for name in ("shop_webhook", "intranet_token"):
            server.post("/api/credentials", {"name": name, "data": {"secret": SECRET}})
        targets = [
            EXAMPLES / f"{name}.yaml" for name in ("report", "fork_join", "routing", "approval")
        ]
        for path in [*targets, *sorted((EXAMPLES / "triggers").glob("*.yaml"))]:
            server.post("/api/catalog/register", {"content": path.read_text()})
        yield server


@pytest.mark.parametrize("name", ["nightly_report", "quarter_hours"])
def test_a_schedule_starts_its_playbook(server: Server, name: str):
    path = f"examples/triggers/{name}"
    started = server.post("/api/schedules/run", {"path": path})["execution_id"]

    assert server.get(f"/api/executions/{started}")["actor"]["text"] == f"schedule {path}"
    assert server.get(f"/api/schedules/{path}")["next_times"]


def test_a_signed_order_is_answered_with_its_result(server: Server):
    order = {"id": "o-1", "type": "order.created", "parcel": {"weight": 31, "country": "SE"}}
    body, stamp = json.dumps(order).encode(), f"{time.time():.0f}"
    made = mac(SECRET.encode(), f"{stamp}.".encode() + body).hex()
    headers = {"X-Shop-Signature": made, "X-Shop-Time": stamp}
    path = "/hooks/examples/triggers/signed_order"
    answer = server.ask("POST", path, raw=body, headers=headers)

    assert (answer.status, answer.json["execution_status"]) == (200, "COMPLETED")
    again = server.ask("POST", path, raw=body, headers=headers)
    assert again.json["execution_id"] == answer.json["execution_id"]
    assert server.ask("POST", path, raw=body + b" ", headers=headers).status == 401


def test_an_answer_reaches_the_execution_that_waits_for_it(server: Server):
    started = {
        number: server.post(
            "/api/execute",
            {"path": "examples/approval", "workload": {"invoice": {"number": number}}},
        )["execution_id"]
        for number in ("2026-1", "2026-2")
    }
    for one in started.values():
        server.wait_for(one, "step.waiting")
    answer = {"answer_id": "a-1", "invoice": "2026-2", "answer": {"approved": False}}
    headers = {"Authorization": f"Bearer {SECRET}"}
    path = "/hooks/examples/triggers/approval_answered"
    heard = server.ask("POST", path, answer, headers=headers)

    assert (heard.status, heard.json["execution_ids"]) == (202, [started["2026-2"]])
    server.ended(started["2026-2"])
    assert server.get(f"/api/executions/{started['2026-1']}/status")["status"] == "RUNNING"
