"""Forms that one role answers, with real users: who is shown them, who may answer, what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.examples.system import temporary_folder
from tests.server.processes import Reply, Server, serving

PAYMENT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: { name: payment, path: shop/payment }
workflow:
  - step: start
    spec:
      eval_mode: on_event
      form:
        role: finance
        fields: [{ name: approved, type: boolean, label: "Pay it?" }]
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: { result: { value: "{{ event.data.approved }}" } }
"""
GO = """  - step: start
    spec: { eval_mode: on_event }
    case:
      - when: "{{ event.name == 'go' }}"
        then: { next: pay }
  - step: pay
"""
LATER = PAYMENT.replace("shop/payment", "shop/later").replace("  - step: start\n", GO, 1)
PEOPLE = {
    "ann": ["admin"],
    "fay": ["operator", "finance"],
    "oli": ["operator", "on-call"],
    "vic": ["viewer", "finance"],
}
PASSWORD = "correct horse"


class House(NamedTuple):
    """A server, and the sessions of its people."""

    server: Server
    sessions: dict[str, str]

    def waiting(self, path: str = "shop/payment") -> str:
        """An execution that has come to its first wait."""
        started = self.server.post("/api/executions", {"path": path, "workload": {}})
        self.server.wait_for(started["execution_id"], "step.waiting")
        return str(started["execution_id"])

    def answer(self, execution_id: str, who: str, step: str | None = None) -> Reply:
        event = {"name": "approval.received", "data": {"approved": True}, "step": step}
        path = f"/api/executions/{execution_id}/events"
        return self.server.ask("POST", path, event, token=self.sessions[who])

    def status(self, execution_id: str) -> str:
        return str(self.server.get(f"/api/executions/{execution_id}")["status"])

    def inbox(self, who: str, **query: Any) -> list[str]:
        found = self.server.get("/api/inbox", token=self.sessions[who], **query)
        return [form["execution_id"] for form in found["forms"]]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with temporary_folder() as folder, serving(folder) as server:
        sessions: dict[str, str] = {}
        for name, roles in PEOPLE.items():
            server.post("/api/access/users", {"name": name, "password": PASSWORD, "roles": roles})
            login = {"user": name, "password": PASSWORD}
            sessions[name] = server.post("/api/auth/login", login)["token"]
            server.token = sessions["ann"]
        for text in (PAYMENT, LATER):
            server.post("/api/catalog/register", {"content": text})
        yield House(server, sessions)


def test_only_the_role_of_a_form_and_admins_answer_it(house: House):
    first, second = house.waiting(), house.waiting()

    refused, looking = house.answer(first, "oli"), house.answer(first, "vic")

    assert refused.status == 403
    assert "only somebody with the role finance may answer" in refused.raw.decode()
    assert looking.status == 403
    assert "needs the right `operate`" in looking.raw.decode()
    assert house.status(first) == "RUNNING"
    assert house.answer(first, "fay").status == 200
    assert house.answer(second, "ann").status == 200
    for execution_id in (first, second):
        assert house.server.ended(execution_id)["status"] == "COMPLETED"


def test_who_answered_and_with_which_roles_is_recorded(house: House):
    execution_id = house.waiting()
    house.answer(execution_id, "fay")

    answered = house.server.wait_for(execution_id, "approval.received")

    assert "fay" in str(answered)
    assert "finance" in str(answered)


def test_an_answer_that_came_too_early_from_somebody_else_is_not_taken(house: House):
    execution_id = house.waiting("shop/later")
    assert house.answer(execution_id, "oli").status == 200, "no form waits yet: it is kept"
    house.server.post(f"/api/executions/{execution_id}/events", {"name": "go"})
    first = house.server.wait_for(execution_id, "step.waiting")
    begun = house.server.wait_for(execution_id, "step.waiting", after=first["seq"])

    considered = house.server.wait_for(execution_id, "signal.considered", after=begun["seq"])

    assert "only somebody with the role finance" in str(considered)
    assert house.status(execution_id) == "RUNNING"
    assert house.answer(execution_id, "fay", step="pay").status == 200
    assert house.server.ended(execution_id)["status"] == "COMPLETED"


def test_the_inbox_says_what_is_whose(house: House):
    execution_id = house.waiting()

    assert house.inbox("oli") == [execution_id]
    assert house.inbox("oli", mine="true") == []
    assert house.inbox("vic", mine="true") == [], "a viewer answers nothing"
    assert house.inbox("fay", mine="true") == [execution_id]
    assert house.inbox("ann", role="finance") == [execution_id]
    assert house.inbox("ann", role="on-call") == []
    assert house.server.get("/api/inbox")["forms"][0]["role"] == "finance"
    why = house.server.get(f"/api/executions/{execution_id}/why")
    assert "of somebody with the role finance" in str(why)
    assert house.answer(execution_id, "ann").status == 200


def test_a_filtered_inbox_is_read_page_by_page(house: House):
    started = [house.waiting() for _ in range(3)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = house.server.get("/api/inbox", role="finance", limit=2, **cursor)
        assert len(page["forms"]) <= 2
        found += [form["execution_id"] for form in page["forms"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert found == started[::-1]
    for execution_id in started:
        assert house.answer(execution_id, "ann").status == 200


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        (["finance"], "at least one of"),
        (["operator", "admn"], "Did you mean"),
        (["operator", "two words"], "is not a role"),
    ],
)
def test_roles_that_cannot_be_meant_are_refused(house: House, roles, why):
    user = {"name": "new", "password": PASSWORD, "roles": roles}

    refused = house.server.ask("POST", "/api/access/users", user)

    assert refused.status == 400
    assert why in refused.raw.decode()
