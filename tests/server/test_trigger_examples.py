"""The examples of documents that start executions, registered and put to work."""

from __future__ import annotations

import asyncio
import email.policy
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest

from tests.examples.system import temporary_folder
from tests.secrets.test_signatures import mac
from tests.server.processes import Server, serving
from tests.server.test_notifications import Receiver, receiving_mail, until
from tests.tools.services import answering

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "known to both"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with temporary_folder() as found:
        (found / "in").mkdir()
        yield found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with example_server(folder) as server:
        yield server


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Server]:
    """One on which nothing has failed yet."""
    with example_server(tmp_path) as server:
        yield server


@contextmanager
def example_server(folder: Path) -> Iterator[Server]:
    with serving(folder, kind="dev") as server:
        for name in ("shop_webhook", "intranet_token"):
            server.post("/api/credentials", {"name": name, "data": {"secret": SECRET}})
        targets = [
            EXAMPLES / f"{name}.yaml" for name in ("report", "fork_join", "routing", "approval")
        ]
        for path in [*targets, *sorted((EXAMPLES / "triggers").glob("*.yaml"))]:
            text = path.read_text().replace("/srv/shop/in", f"{folder}/in")
            text = text.replace("every: 30s", "every: 200ms")
            server.post("/api/catalog/register", {"content": text})
        yield server


def test_every_document_of_the_page_on_triggers_can_be_registered_and_looked_at(server: Server):
    page = (EXAMPLES.parent / "docs" / "triggers.md").read_text()
    texts = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    kinds = ("Schedule", "Hook", "Consumer", "Notification")
    assert [text.split("kind: ")[1].split("\n")[0] for text in texts] == [*kinds]
    for kind, text in zip(kinds, texts, strict=True):
        entry = server.post("/api/catalog/register", {"content": text})
        shown = server.get(f"/api/{kind.lower()}s/{entry['path']}")
        assert (shown["path"], shown["version"]) == (entry["path"], 1)


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


def taken(server: Server, path: str) -> list[dict[str, object]]:
    """What became of the messages of a consumer, when there are some."""
    found: list[dict[str, object]] = until(
        lambda: server.get(f"/api/consumers/examples/triggers/{path}")["messages"]
    )
    return found


def test_a_message_of_the_stream_starts_a_delivery(server: Server, nats_url: str):
    async def pack(*parcels: dict[str, object]) -> None:
        client = await nats.connect(nats_url)
        stream = client.jetstream()
        await stream.add_stream(name="PARCELS", subjects=["PARCELS.>"])
        for one in parcels:
            await stream.publish("PARCELS.packed", json.dumps(one).encode())
        await client.close()

    heavy = {"weight": 31, "country": "SE", "fragile": False, "value": 1}
    asyncio.run(pack(heavy, {"weight": 0}))
    server.post("/api/credentials", {"name": "shop_nats", "data": {"url": nats_url}})

    messages = until(lambda: len(found := taken(server, "new_parcels")) == 2 and found)
    assert {one["outcome"] for one in messages} == {"started", "ignored"}
    [started] = [str(one["execution_id"]) for one in messages if one["execution_id"]]
    assert server.ended(started)["result"]["carrier"] == "truck"


def test_a_new_file_is_reported_on(server: Server, folder: Path):
    (folder / "in" / "june.csv").write_text("day,amount\n2026-06-01,10.5\n2026-06-02,4.5\n")
    [message] = taken(server, "report_files")
    execution_id = str(message["execution_id"])
    assert server.ended(execution_id)["status"] == "COMPLETED"

    [made] = [
        one
        for one in server.events(execution_id)
        if one["step"] == "text" and one["event_type"] == "step.done"
    ]
    assert "| 2026-06 | 2 | 15.00 |" in made["payload"]["result"]


def test_a_failure_and_its_end_are_told_in_the_chat(another: Server):
    receiver = Receiver()
    with answering(("POST", "/in", receiver.take)) as url:
        another.post("/api/credentials", {"name": "slack_ops", "data": {"url": f"{url}/in"}})
        wrong = {"path": "examples/report", "workload": {"sales": "nowhere-*.csv"}}
        another.ended(another.post("/api/execute", wrong)["execution_id"])
        [(_, failed)] = receiver.wait_for(1)
        right = {"path": "examples/report", "workload": {"sales": f"{EXAMPLES}/data/sales-*.csv"}}
        another.ended(another.post("/api/execute", right)["execution_id"])
        _, (_, recovered) = receiver.wait_for(2)

    assert "examples/report failed" in failed["text"]
    assert "examples/report" in recovered["text"]


def test_somebody_is_told_by_mail_that_an_approval_waits(another: Server):
    with receiving_mail() as (login, got):
        another.post("/api/credentials", {"name": "smtp_ops", "data": login})
        started = another.post("/api/execute", {"path": "examples/approval"})["execution_id"]
        [text] = until(lambda: got)

    mail = email.message_from_string(text, policy=email.policy.default)
    assert (mail["To"], mail["Subject"]) == (
        "ops@example.com",
        "examples/approval waits for an answer",
    )
    assert started in mail.get_content()
