"""Keeping and forgetting over HTTP: who may do it, what is answered, and who did it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from noetl.control.recordings import read_bytes
from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.server.conftest import Guarded
from tests.server.processes import Server, serving

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: keep/hello}
workflow: [{step: start, tool: {kind: noop}}]
"""


def hello(server: Server) -> str:
    execution_id = server.start(HELLO)
    server.ended(execution_id)
    return execution_id


def test_an_execution_is_deleted_with_everything_and_the_audit_log_knows_by_whom(dev):
    execution_id = hello(dev)
    reply = dev.ask("DELETE", f"/api/executions/{execution_id}")

    assert reply.json == {"execution_id": execution_id, "executions": 1}
    for route in ("", "/events", "/status", "/why"):
        assert dev.ask("GET", f"/api/executions/{execution_id}{route}").status == 404, route
    assert dev.ask("DELETE", f"/api/executions/{execution_id}").status == 404
    acts = dev.get("/api/access/audit")["entries"]
    assert any((act["action"], act["target"]) == ("execution.delete", execution_id) for act in acts)


def test_pruning_says_first_what_it_would_remove(dev):
    kept, gone = hello(dev), hello(dev)
    held = dev.post(f"/api/executions/{kept}/hold", {"note": "for the audit"})
    assert (held["execution_id"], held["note"]) == (kept, "for the audit")

    wish = {"keep": "keep/=1ms"}
    would = dev.post("/api/retention/prune", {**wish, "dry_run": True})
    assert would["executions"] >= 1
    assert (would["dry_run"], would["kept"]) == (True, {"held": 1})
    assert dev.get(f"/api/executions/{gone}")["status"] == "COMPLETED"
    did = dev.post("/api/retention/prune", wish)
    assert {**did, "dry_run": True} == would
    assert dev.ask("GET", f"/api/executions/{gone}").status == 404

    shown = dev.get("/api/retention")
    assert shown["keep"] == []
    assert [one["execution_id"] for one in shown["holds"]] == [kept]
    assert {"keep/hello"} == {one["path"] for one in shown["forgotten"]}
    assert dev.get("/api/retention", since="2999-01-01")["forgotten"] == []
    assert dev.ask("DELETE", f"/api/executions/{kept}").status == 409
    assert dev.ask("DELETE", f"/api/executions/{kept}/hold").status == 200
    assert dev.ask("DELETE", f"/api/executions/{kept}/hold").status == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [({"keep": "soon"}, "is not a duration"), ({"kep": "1d"}, "did you mean")],
)
def test_a_wish_that_is_not_clear_removes_nothing(dev, body, said):
    execution_id = hello(dev)
    reply = dev.ask("POST", "/api/retention/prune", body)

    assert reply.status in (400, 422)
    assert said in reply.raw.decode().lower()
    assert dev.get(f"/api/executions/{execution_id}")["status"] == "COMPLETED"


def test_only_those_who_manage_a_server_remove_what_it_recorded(guarded: Guarded):
    server, tokens = guarded.server, guarded.tokens
    for role in ("viewer", "operator", "author", "worker"):
        token = tokens[role]
        assert server.ask("DELETE", "/api/executions/1", token=token).status == 403, role
        reply = server.ask("POST", "/api/retention/prune", {"keep": "1ms"}, token=token)
        assert reply.status == 403, role
    assert server.ask("DELETE", "/api/executions/1", token=tokens["admin"]).status == 404


def noetl(folder: Path, *words: str, code: int = 0) -> str:
    done = forked.run(
        [*COMMAND, *words], cwd=folder, env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_command_holds_prunes_and_deletes(tmp_path):
    (tmp_path / "hello.yaml").write_text(HELLO)
    for _ in range(3):
        noetl(tmp_path, "run", "hello.yaml")
    assert "no rule says how long" in noetl(tmp_path, "executions", "prune", code=2)
    noetl(tmp_path, "executions", "hold", "last", "--note", "for the audit")
    assert "for the audit" in noetl(tmp_path, "executions", "holds")
    said = noetl(tmp_path, "executions", "prune", "--keep", "1ms", "--dry-run")
    assert "2 executions would be removed" in said
    assert "1 execution kept beyond that: held" in said
    done = json.loads(noetl(tmp_path, "executions", "prune", "--keep", "1ms", "--json"))
    assert (done["executions"], done["by_path"]) == (2, {"keep/hello": 2})
    assert "Release it first" in noetl(tmp_path, "executions", "delete", "last", "--yes", code=1)
    noetl(tmp_path, "executions", "release", "last")
    assert "1 execution removed" in noetl(tmp_path, "executions", "delete", "last", "--yes")
    said = noetl(tmp_path, "executions", "prune", "--keep", "1ms")
    assert said == "no executions removed\n"
    assert "no executions match" in noetl(tmp_path, "executions", "list")


def test_what_is_forgotten_is_archived_first_and_opens_again(tmp_path):
    archive = tmp_path / "archive"
    with serving(tmp_path, kind="dev", NOETL_ARCHIVE_URL=str(archive)) as server:
        first, second = hello(server), hello(server)
        [name] = server.post(f"/api/executions/{first}/archive")["names"]
        assert name.startswith("keep/hello/")
        assert name.endswith(f"/{first}.noetl")
        assert server.get(f"/api/executions/{first}")["status"] == "COMPLETED"
        wish = {"keep": "1ms", "dry_run": True}
        assert server.post("/api/retention/prune", wish)["executions"] == 2
        assert len(server.get("/api/archive")["recordings"]) == 1, "which asks, and writes nothing"
        assert server.post("/api/retention/prune", {"keep": "1ms"})["executions"] == 2
        acts = [one["action"] for one in server.get("/api/access/audit")["entries"]]
        assert acts.count("execution.archive") == acts.count("executions.prune") == 1
        listed = [one["name"] for one in server.get("/api/archive")["recordings"]]
        assert sorted(listed) == sorted([name, name.replace(first, second)])
        page = server.get("/api/archive", limit=1)
        assert [one["name"] for one in page["recordings"]] == listed[:1]
        rest = server.get("/api/archive", after=page["next_after"])
        assert [one["name"] for one in rest["recordings"]] == listed[1:]
        assert server.get("/api/archive", prefix="keep/x")["recordings"] == []

        opened = read_bytes(server.ask("GET", f"/api/archive/{name}").raw)
        assert (opened.head.execution_id, opened.head.status) == (first, "COMPLETED")
        assert opened.head.events == len(opened.facts) > 10
        for outside in ("../noetl.db", "keep/../../noetl.db.noetl", "keep/hello", "%2e%2e/x.noetl"):
            assert server.ask("GET", f"/api/archive/{outside}").status == 404, outside
    assert {file.stat().st_mode & 0o777 for file in archive.rglob("*.noetl")} == {0o600}


def test_what_cannot_be_archived_is_kept(tmp_path):
    (tmp_path / "archive").write_text("a file where the folder should be")
    with serving(tmp_path, kind="dev", NOETL_ARCHIVE_URL=str(tmp_path / "archive")) as server:
        execution_id = hello(server)
        pruned = server.post("/api/retention/prune", {"keep": "1ms"})
        assert (pruned["executions"], pruned["kept"]) == (0, {"not archived": 1})
        assert server.get(f"/api/executions/{execution_id}")["status"] == "COMPLETED"
        assert server.ask("POST", f"/api/executions/{execution_id}/archive").status == 503


def test_without_an_archive_nothing_is_archived_and_the_answer_says_how_to_have_one(dev):
    execution_id = hello(dev)
    for method, path in (
        ("POST", f"/api/executions/{execution_id}/archive"),
        ("GET", "/api/archive"),
    ):
        reply = dev.ask(method, path)
        assert reply.status == 409
        assert "NOETL_ARCHIVE_URL" in reply.raw.decode()
