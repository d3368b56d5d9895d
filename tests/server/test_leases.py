"""S4: what a worker may say and see depends on the leases it holds, whoever it claims to be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Guarded
from tests.server.processes import Reply, Server
from tests.server.test_routes import HELLO

SECRET = "correct-horse-battery"
KEYCHAIN = "keychain: [{name: shop, kind: credential, credential: shop}]\nworkflow:"


class Agent:
    """A worker that does by hand what workers do."""

    def __init__(self, server: Server, token: str, name: str = "w") -> None:
        self.server = server
        self.token = token
        self.name = name

    def ask(self, method: str, path: str, body: Any = None, **params: Any) -> Reply:
        headers = {"X-NoETL-Worker": self.name}
        return self.server.ask(method, path, body, token=self.token, headers=headers, **params)

    def lease(self, pool: str = "default") -> dict[str, Any]:
        body = {"worker_id": self.name, "pool": pool, "slots": 1, "wait": 10}
        [command] = self.ask("POST", "/api/commands/lease", body).json["commands"]
        return dict(command)

    def report(self, command: dict[str, Any], **changes: Any) -> Reply:
        return self.ask("POST", "/api/commands/report", {**last_word(command), **changes})

    def renew(self, command: dict[str, Any]) -> Any:
        leases = [command["lease"]["token"]]
        return self.ask("POST", "/api/commands/renew", {"leases": leases}).json


def last_word(command: dict[str, Any]) -> dict[str, Any]:
    return {
        "command_id": command["command_id"],
        "execution_id": command["execution_id"],
        "token": command["lease"]["token"],
        "number": 1,
        "ending": {"result": "done by hand"},
        "closes": True,
    }


@pytest.fixture(scope="module")
def agents(guarded: Guarded) -> tuple[Agent, Agent]:
    """Two workers with tokens of their own, and a secret they would like to see."""
    server, admin = guarded.server, guarded.tokens["admin"]
    made = [
        server.post("/api/access/tokens", {"name": name, "roles": ["worker"]}, token=admin)
        for name in ("pool-a", "pool-b")
    ]
    body = {"name": "shop", "type": "bearer", "data": {"token": SECRET}}
    server.post("/api/credentials", body, token=admin)
    first, second = (Agent(server, one["token"]) for one in made)
    return first, second


@pytest.fixture
def execution(guarded: Guarded, agents: object) -> str:
    server, author = guarded.server, guarded.tokens["author"]
    text = HELLO.replace("workflow:", KEYCHAIN)
    server.post("/api/catalog/register", {"content": text}, token=author)
    started = server.post("/api/execute", {"path": "tried/hello"}, token=author)
    return str(started["execution_id"])


def test_s04_of_a_list_of_reports_each_is_judged_by_itself(guarded, agents, execution):
    holder, other = agents
    command = holder.lease()
    good = last_word(command)
    forged = {**good, "token": "forged"}

    stolen = other.ask("POST", "/api/commands/report", [good, {"no": "report"}]).json["answers"]
    mixed = holder.ask("POST", "/api/commands/report", [forged, [], good, good]).json["answers"]

    assert [one["error"]["code"] for one in stolen] == ["lease_lost", "bad_request"]
    assert [one["error"]["code"] for one in mixed[:2]] == ["lease_lost", "bad_request"]
    assert any(one.get("accepted") for one in mixed[2:])
    assert holder.report(holder.lease()).status == 200
    seen = guarded.server.get(f"/api/executions/{execution}", token=guarded.tokens["viewer"])
    assert seen["status"] == "COMPLETED"


def test_more_reports_than_anybody_has_slots_are_refused(agents):
    holder, _ = agents

    reply = holder.ask("POST", "/api/commands/report", [{}] * 1001)

    events = holder.ask("POST", "/api/events", [{"name": "x", "execution_id": "1"}] * 1001)

    for refused in (reply, events):
        assert refused.status == 400
        assert "1000" in refused.json["error"]["message"]


def test_s04_a_report_counts_from_the_worker_that_holds_the_lease_only(guarded, agents, execution):
    holder, other = agents
    body = {"name": "pool", "roles": ["worker"]}
    made = guarded.server.post("/api/access/tokens", body, token=guarded.tokens["admin"])
    similar = made["token"]
    command = holder.lease()

    stolen = other.report(command)
    elsewhere = holder.report(command, execution_id="77")
    forged = holder.report(command, token="forged")
    alike = Agent(other.server, similar, "-a/w").report(command)
    right = holder.report(command)

    assert command["execution_id"] == execution
    for refused in (stolen, elsewhere, forged, alike):
        assert (refused.status, refused.code) == (409, "lease_lost")
    assert right.json["accepted"] is True
    holder.report(holder.lease())
    document = guarded.server.get(f"/api/executions/{execution}", token=guarded.tokens["viewer"])
    assert document["steps"][0]["result"] == "done by hand"
    assert document["status"] == "COMPLETED"


def test_s04_a_batch_of_reports_cannot_smuggle_one_in(guarded, agents, execution):
    holder, other = agents
    command = holder.lease()
    own = {
        "command_id": command["command_id"],
        "execution_id": command["execution_id"],
        "token": command["lease"]["token"],
        "number": 1,
    }

    signal = {"name": "x", "execution_id": execution}
    smuggled = other.ask("POST", "/api/events", [signal, own])
    signalled = other.ask("POST", "/api/events", signal)
    behind_its_own = holder.ask("POST", "/api/events", [own, signal])

    assert smuggled.status in (403, 409)
    assert signalled.status == 403
    assert behind_its_own.status == 403
    holder.report(command)
    holder.report(holder.lease())


def test_s04_a_lease_is_renewed_and_given_back_by_its_holder_only(agents, execution):
    holder, other = agents
    command = holder.lease()
    name = command["command_id"]

    assert other.renew(command) == {"held": [], "lost": [name]}
    forged = {**command, "lease": {"token": f"{name}.forged"}}
    assert holder.renew(forged) == {"held": [], "lost": [name]}
    assert holder.renew(command) == {"held": [name], "lost": []}
    gone = {"worker_id": holder.name}
    leave = "/api/worker/pool/deregister"
    assert other.ask("POST", leave, gone).json["given_back"] == 0
    assert holder.ask("POST", leave, gone).json["given_back"] == 1
    again = other.lease()
    assert (again["execution_id"], again["step"]) == (execution, "start")
    assert again["command_id"] != name
    assert holder.report(command).code == "lease_lost"
    other.report(again)
    other.report(other.lease())


def test_s04_secrets_are_read_under_a_lease_only_and_every_look_is_remembered(
    guarded, agents, execution
):
    holder, other = agents
    command = holder.lease()

    def read(agent: Agent, of: str | None = execution, name: str = "shop") -> Reply:
        params = {"include_data": "true", **({"execution_id": of} if of else {})}
        return agent.ask("GET", f"/api/credentials/{name}", **params)

    assert read(holder).json["data"] == {"token": SECRET}
    assert read(holder, of=None).status == 400
    assert read(holder, of="77").status == 403
    assert read(other).status == 403
    assert read(Agent(other.server, other.token, "pool-a/w")).status == 403
    assert read(holder, name="nothing").status == 404
    holder.report(command)
    holder.report(holder.lease())
    assert read(holder).status == 403

    for role, status in {"viewer": 403, "operator": 403, "author": 403, "admin": 200}.items():
        token = guarded.tokens[role]
        reply = guarded.server.ask("GET", "/api/credentials/shop?include_data=true", token=token)
        assert reply.status == status, role
    for role, status in {"operator": 403, "author": 403, "admin": 200}.items():
        path = "/api/credentials/shop?include_fields=true"
        reply = guarded.server.ask("GET", path, token=guarded.tokens[role])
        assert (reply.status, SECRET in reply.raw.decode()) == (status, False), role
    shown = guarded.server.ask("GET", "/api/credentials/shop", token=guarded.tokens["operator"])
    assert SECRET not in shown.raw.decode()
    audit = guarded.server.get("/api/access/audit", token=guarded.tokens["admin"])["entries"]
    reads = [
        (row["who"], row["execution_id"]) for row in audit if row["action"] == "credential.read"
    ]
    assert reads[:2] == [("API token admin", None), ("worker pool-a/w", execution)]
    assert SECRET not in str(audit)


def test_s04_tokens_are_shared_under_a_lease_only(guarded, agents, execution):
    holder, other = agents
    command = holder.lease()
    path, body = f"/api/auth-cache/{'ab' * 32}", {"token": SECRET, "expires_in": 60}

    assert other.ask("PUT", path, body, execution_id=execution).status == 403
    assert holder.ask("PUT", path, body, execution_id=execution).status == 200
    assert other.ask("GET", path, execution_id=execution).status == 403
    assert holder.ask("GET", path).status == 403
    assert holder.ask("GET", path, execution_id=execution).json["token"] == SECRET
    assert guarded.server.ask("GET", path, token=guarded.tokens["author"]).status == 403
    holder.report(command)
    holder.report(holder.lease())


def test_s04_results_are_kept_and_read_under_a_lease_only(agents, execution):
    holder, other = agents
    command = holder.lease()
    path = f"/api/results/{execution}/big"

    assert other.ask("PUT", path, {"a": 1}).status == 403
    assert holder.ask("PUT", path, {"a": 1}).status == 200
    assert other.ask("GET", path).status == 403
    assert holder.ask("GET", path).json == {"a": 1}
    holder.report(command)
    holder.report(holder.lease())


def test_s04_a_caller_reads_the_results_of_what_it_called_and_nothing_else(
    guarded, agents, execution
):
    holder, other = agents
    above = holder.lease()
    body = {"path": "tried/hello", "parent_execution_id": execution}
    child = guarded.server.post("/api/execute", body, token=guarded.tokens["author"])
    below = other.lease()
    of = child["execution_id"]
    kept, forged = f"/api/results/{of}/kept", f"/api/results/{of}/forged"
    credential = {"include_data": "true", "execution_id": of}

    assert (above["execution_id"], below["execution_id"]) == (execution, of)
    assert other.ask("PUT", kept, {"a": 1}).status == 200
    assert holder.ask("GET", kept).json == {"a": 1}
    assert holder.ask("PUT", forged, {"a": 2}).status == 403
    assert holder.ask("GET", "/api/credentials/shop", **credential).status == 403
    assert other.ask("GET", "/api/credentials/shop", **credential).status == 200
    assert other.ask("GET", f"/api/results/{execution}/big").status == 403
    for agent, command in ((holder, above), (other, below)):
        agent.report(command)
    for _ in range(2):
        holder.report(holder.lease())


def test_s04_a_worker_sees_no_executions(guarded, agents, execution):
    holder, _ = agents

    for path in ("/api/executions", f"/api/executions/{execution}", "/api/credentials"):
        assert holder.ask("GET", path).status == 403
    holder.report(holder.lease())
    holder.report(holder.lease())
