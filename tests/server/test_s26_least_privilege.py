"""S26, S27 and S28: workers, credentials and executions have what they need and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.server.conftest import Guarded
from tests.server.processes import Reply, Server, serving, working
from tests.server.test_leases import Agent
from tests.stopwatch import PATIENCE, Stopwatch

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: %s}\nworkflow:\n"
CALLS = HEAD + "- step: start\n  spec: {pool: %s}\n  tool: %s\n"
NOOP = "{kind: noop}"


def token(guarded: Guarded, name: str, *pools: str) -> Reply:
    body = {"name": name, "roles": ["worker"], "pools": pools}
    return guarded.server.ask("POST", "/api/access/tokens", body, token=guarded.tokens["admin"])


def started(guarded: Guarded, path: str, pool: str, tool: str) -> str:
    server, author = guarded.server, guarded.tokens["author"]
    server.post("/api/catalog/register", {"content": CALLS % (path, pool, tool)}, token=author)
    return str(server.post("/api/execute", {"path": path}, token=author)["execution_id"])


def test_s26_a_token_works_for_its_pools_only(guarded: Guarded):
    agent = Agent(guarded.server, token(guarded, "gpu-only", "gpu").json["token"])
    started(guarded, "s26/gpu", "gpu", NOOP)
    elsewhere = {"worker_id": "w", "pool": "cpu", "slots": 1}

    for path in ("/api/commands/lease", "/api/worker/pool/register", "/api/worker/pool/heartbeat"):
        reply = agent.ask("POST", path, elsewhere)
        assert (reply.status, reply.code) == (403, "not_allowed"), path
    command = agent.lease("gpu")
    assert agent.ask("POST", "/api/commands/report", {}, want=1, pool="cpu").status == 403
    assert agent.report(command).status == 200


def test_s26_pools_bind_workers_and_nobody_else(guarded: Guarded):
    body = {"name": "bound-admin", "roles": ["admin"], "pools": ["gpu"]}
    reply = guarded.server.ask("POST", "/api/access/tokens", body, token=guarded.tokens["admin"])

    assert reply.status == 400


def test_s26_the_command_line_makes_tokens_for_pools(tmp_path: Path):
    def run(*words: str) -> str:
        done = forked.run(
            [*COMMAND, "access", "token", *words],
            cwd=tmp_path,
            env=clean_environment(),
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return done.stdout

    run("create", "me", "--role", "admin")
    run("create", "workers", "--role", "worker", "--pool", "gpu", "--pool", "cpu")

    assert '"gpu"' in run("list", "--json")


def put(guarded: Guarded, name: str, *playbooks: str, **more: Any) -> None:
    body = {"name": name, "type": "bearer", "data": {"token": "canary"}, **more}
    if playbooks:
        body["playbooks"] = playbooks
    guarded.server.post("/api/credentials", body, token=guarded.tokens["admin"])


def read(agent: Agent, name: str, execution_id: str) -> Reply:
    path = f"/api/credentials/{name}"
    return agent.ask("GET", path, include_data=True, execution_id=execution_id)


NAMES = "{kind: http, url: 'http://127.0.0.1:1', auth: {type: bearer, credential: %s}}"


def test_s26_a_worker_reads_the_credentials_that_its_playbook_names(guarded: Guarded):
    agent = Agent(guarded.server, token(guarded, "reader", "s26").json["token"])
    for name in ("s26-own", "s26-other"):
        put(guarded, name)
    first = started(guarded, "s26/names", "s26", NAMES % "s26-own")
    agent.lease("s26")

    assert read(agent, "s26-own", first).json["data"] == {"token": "canary"}
    other = read(agent, "s26-other", first)
    assert (other.status, other.code) == (403, "not_allowed")

    second = started(guarded, "s26/templated", "s26", NAMES % "'{{ workload.which }}'")
    agent.lease("s26")
    assert read(agent, "s26-other", second).status == 200


def test_s26_a_misspelt_name_is_answered_with_one_that_the_playbook_may_use(guarded: Guarded):
    agent = Agent(guarded.server, token(guarded, "slipper", "s26s").json["token"])
    put(guarded, "warehouse-pg", "s26s/*")
    for path in ("s26s/slips", "elsewhere/slips"):
        execution_id = started(guarded, path, "s26s", NAMES % "warehose-pg")
        agent.lease("s26s")
        answer = read(agent, "warehose-pg", execution_id)
        assert (answer.status, answer.code) == (404, "not_found")
        said = 'Did you mean "warehouse-pg"?' in answer.json["error"]["message"]
        assert said == path.startswith("s26s/")


def test_s26_a_worker_starts_the_children_that_its_playbook_names(guarded: Guarded):
    agent = Agent(guarded.server, token(guarded, "caller", "s26c").json["token"])
    started(guarded, "s26/secret", "nowhere", NOOP)
    started(guarded, "s26/child", "nowhere", NOOP)
    calls = "{kind: playbook, path: s26/child}"
    execution_id = started(guarded, "s26/parent", "s26c", calls)
    command = agent.lease("s26c")

    def suspended(path: str) -> Reply:
        wish = {"progress": {}, "child": {"path": path}}
        return agent.report(command, suspensions=[wish], ending=None)

    refused = suspended("s26/secret")
    assert (refused.status, refused.code) == (403, "not_allowed")
    assert suspended("s26/child").status == 200
    admin = guarded.tokens["admin"]
    found = guarded.server.get("/api/executions", parent=execution_id, token=admin)["executions"]
    assert [row["path"] for row in found] == ["s26/child"]


RATED = "{kind: noop, spec: {rate: {key: bank, limit: 10/s}}}"


def test_s26_a_worker_takes_moments_of_the_rates_that_its_playbook_names(guarded: Guarded):
    agent = Agent(guarded.server, token(guarded, "banker", "s26r").json["token"])
    execution_id = started(guarded, "s26/rated", "s26r", RATED)

    def taken(**changes: Any) -> Reply:
        wanted = {"execution_id": execution_id, "key": "bank", "apart": 0.1, **changes}
        return agent.ask("POST", "/api/rates/take", wanted)

    without_lease = taken()
    command = agent.lease("s26r")
    with_lease = taken()
    others = [taken(key="mint"), taken(apart=31_000_000), taken(execution_id="77")]

    assert with_lease.status == 200
    for refused in (without_lease, *others):
        assert (refused.status, refused.code) == (403, "not_allowed")
    assert agent.report(command).status == 200
    assert taken().status == 403


# --- S27 -----------------------------------------------------------------------------------------


def test_s27_a_credential_is_for_the_playbooks_that_it_names(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    agent = Agent(server, token(guarded, "shopper", "s27").json["token"])
    put(guarded, "s27-shop", "shop/*", "tools/import")
    listed = server.get("/api/credentials/s27-shop", token=admin)
    assert listed["playbooks"] == ["shop/*", "tools/import"]

    statuses = {}
    for path in ("shop/orders", "tools/import", "other/orders", "tools/imports"):
        execution_id = started(guarded, path, "s27", NAMES % "s27-shop")
        agent.lease("s27")
        statuses[path] = read(agent, "s27-shop", execution_id).status
    assert list(statuses.values()) == [200, 200, 403, 403]

    put(guarded, "s27-shop", description="again")
    assert server.get("/api/credentials/s27-shop", token=admin)["playbooks"] == listed["playbooks"]
    put(guarded, "s27-shop", "*")
    assert server.get("/api/credentials/s27-shop", token=admin)["playbooks"] == []


def test_s27_the_list_holds_in_noetl_run(tmp_path: Path):
    def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return forked.run(
            [*COMMAND, *words],
            cwd=tmp_path,
            env=clean_environment(),
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    tool = "{kind: python, code: 'result = len(token)', args: {token: '{{ keychain.shop.token }}'}}"
    chain = "keychain: [{name: shop, kind: credential, credential: shop}]\nworkflow:\n"
    for path in ("shop/orders", "other/orders"):
        text = (CALLS % (path, "default", tool)).replace("workflow:\n", chain)
        (tmp_path / f"{path.partition('/')[0]}.yaml").write_text(text)
    set_it = run("credential", "set", "shop", "token", "--for", "shop/*", given="canary\n")
    assert set_it.returncode == 0, set_it.stderr

    assert run("run", "shop.yaml").returncode == 0
    refused = run("run", "other.yaml")
    assert refused.returncode != 0
    assert "is for shop/*" in refused.stdout + refused.stderr


# --- S28 -----------------------------------------------------------------------------------------

ITSELF = HEAD % "s28/itself" + "- step: start\n  tool: {kind: playbook, path: s28/itself}\n"
MANY = HEAD % "s28/many" + (
    "- step: start\n  loop: {in: '{{ range(5) | list }}', iterator: n}\n"
    "  tool: {kind: playbook, path: s28/child}\n"
)


def failed(server: Server, text: str) -> str:
    """What the execution failed with."""
    document = server.ended(server.start(text))
    assert document["status"] == "FAILED"
    return str(document)


def test_s28_playbooks_that_call_each_other_and_children_have_an_end(tmp_path: Path):
    given = {"NOETL_MAX_DEPTH": "4", "NOETL_MAX_CHILDREN": "3"}
    with serving(tmp_path, kind="dev", **given) as server:
        child = CALLS % ("s28/child", "default", NOOP)
        server.post("/api/catalog/register", {"content": child})

        assert "NOETL_MAX_DEPTH" in failed(server, ITSELF)
        assert len(server.get("/api/executions", path="s28/itself")["executions"]) == 5
        assert "NOETL_MAX_CHILDREN" in failed(server, MANY)
        assert len(server.get("/api/executions", path="s28/child")["executions"]) == 3


FAN = HEAD % "s28/fan" + (
    "- step: start\n  loop: {in: '{{ range(1500) | list }}', iterator: n, spec: {mode: parallel}}\n"
    "  tool: {kind: playbook, path: s28/slow}\n"
)


def test_s28_a_fan_out_starves_nobody(tmp_path: Path):
    with serving(tmp_path) as server, working(tmp_path, server.url, "--slots", "4") as worker:
        slow = CALLS % (
            "s28/slow",
            "default",
            "{kind: python, code: 'import time; time.sleep(.02)'}",
        )
        server.post("/api/catalog/register", {"content": slow})
        small = CALLS % ("s28/small", "default", "{kind: python, code: 'result = 1'}")
        watch = Stopwatch(server.process.pid, worker.process.pid)
        assert server.ended(server.start(small))["status"] == "COMPLETED"
        alone = watch.seconds()
        fan = server.start(FAN)
        server.wait_for(fan, "step.started")
        waited = []
        for _ in range(3):
            watch = Stopwatch(server.process.pid, worker.process.pid)
            assert server.ended(server.start(small))["status"] == "COMPLETED"
            waited.append(watch.seconds())

        assert server.get(f"/api/executions/{fan}")["status"] == "RUNNING"
        assert max(waited) < 2 + 10 * alone
