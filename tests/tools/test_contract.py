"""Every built-in kind that runs keeps the contract of `noetl.tools.testing`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.tools import (
    artifact,
    container,
    duckdb,
    http,
    llm,
    mcp,
    nats,
    noop,
    postgres,
    python,
    quantum,
    secrets,
    shell,
    sql,
    sqlite,
    store,
    transfer,
)
from noetl.tools.registry import BUILT_IN
from noetl.tools.testing import CANARY, ToolContract, Trial, Trials
from noetl.worker.sandbox import SandboxPool
from tests.tools.chat_server import Chat
from tests.tools.services import answering, nats_server, never, refusing, s3_server

MCP_SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
TOKEN = {"key": {"token": CANARY}}


@pytest.fixture(scope="module")
def silent():
    """A web server that never answers, but refuses under /403 and hands out JSON under /ok."""
    routes = [
        ("*", "/403{rest:.*}", refusing(403)),
        ("*", "/503{rest:.*}", refusing(503)),
        ("*", "/ok{rest:.*}", refusing(200, {"data": {"value": "x"}})),
        ("*", "/{rest:.*}", never),
    ]
    with answering(*routes) as url:
        yield url


class Sandboxed(ToolContract):
    """A kind that runs code in processes of the worker."""

    __test__ = False

    def make_sandbox(self, packages: str | None = None) -> SandboxPool:
        return SandboxPool(1, packages=packages)


class TestNoop(ToolContract):
    tool = noop.TOOL

    @pytest.fixture
    def trials(self):
        return Trials(good=Trial({"result": 1}), failing=())


class TestPython(Sandboxed):
    __test__ = True
    tool = python.TOOL

    @pytest.fixture
    def trials(self):
        return Trials(
            good=Trial({"code": "result = 1"}),
            failing=(
                Trial({"code": "1 / 0"}, fails="exception"),
                Trial({"code": "1 +"}, fails="parse"),
                Trial({"code": "result = {1}"}, fails="schema"),
                Trial({"script": "/no/such.py"}, fails="not_found"),
            ),
            endless=Trial({"code": "import time\ntime.sleep(3600)"}),
        )


class TestShell(ToolContract):
    tool = shell.TOOL

    @pytest.fixture
    def trials(self):
        return Trials(
            good=Trial({"cmd": "echo hello"}),
            failing=(
                Trial({"cmd": "exit 3"}, fails="exception"),
                Trial({"cmd": ["no-such-program"]}, fails="not_found"),
                Trial({"cmd": "true", "env_allow": ["NOETL_TOKEN"]}, fails="auth"),
                Trial({"cmd": "echo x", "decode": "json"}, fails="parse"),
            ),
            endless=Trial({"cmd": "trap '' TERM; sleep 3600 & wait; sleep 3600"}),
        )


class TestHttp(ToolContract):
    tool = http.TOOL

    @pytest.fixture
    def trials(self, silent):
        return Trials(
            good=Trial({"url": f"{silent}/ok", "auth": "key"}, credentials=TOKEN),
            failing=(
                Trial({"url": f"{silent}/403", "auth": "key"}, credentials=TOKEN, fails="auth"),
                Trial({"url": f"{silent}/503"}, fails="server_error"),
                Trial({"url": "no address"}, fails="client_error"),
                Trial({"url": "http://127.0.0.1:1"}, fails="connection"),
            ),
            endless=Trial({"url": f"{silent}/wait"}),
        )


class TestPostgres(ToolContract):
    tool = postgres.TOOL

    @pytest.fixture
    def trials(self, postgres):
        def task(command: str, fails: Any = None, **fields: Any) -> Trial:
            credentials = {"db": {**postgres, **fields}}
            return Trial({"command": command, "auth": "db"}, credentials=credentials, fails=fails)

        wrong = {"user": "locked", "password": CANARY}
        return Trials(
            good=task("SELECT 1"),
            failing=(
                task("SELECT 1", "auth", **wrong),
                task("SELEC 1", "client_error"),
                task(
                    "CREATE TABLE t (n int CHECK (n > 0)); INSERT INTO t VALUES (0)",
                    "db_constraint",
                ),
            ),
            endless=task("SELECT pg_sleep(3600)"),
        )


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


class TestSqlite(ToolContract):
    tool = sqlite.TOOL

    @pytest.fixture
    def trials(self, tmp_path):
        place = {"database": str(tmp_path / "t.db")}
        return Trials(
            good=Trial({**place, "command": "SELECT 1"}),
            failing=(Trial({**place, "command": "SELEC 1"}, fails="client_error"),),
            endless=Trial({**place, "command": ENDLESS}),
        )


class TestDuckDb(ToolContract):
    tool = duckdb.TOOL

    @pytest.fixture
    def trials(self):
        slow = (
            "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range % 7 = b.range"
        )
        return Trials(
            good=Trial({"command": "SELECT 1"}),
            failing=(Trial({"command": "SELEC 1"}, fails="client_error"),),
            endless=Trial({"command": slow}),
        )


class TestSecrets(ToolContract):
    tool = secrets.TOOL
    yields_secrets = True

    @pytest.fixture
    def trials(self, silent):
        managed = {"provider": "vault", "secret": "kv/shop", "auth": "key"}
        return Trials(
            good=Trial({"secret": "key"}, credentials=TOKEN),
            failing=(
                Trial({"secret": "nobody"}, fails="not_found"),
                Trial({**managed, "url": f"{silent}/403"}, credentials=TOKEN, fails="auth"),
                Trial({**managed, "url": f"{silent}/503"}, credentials=TOKEN, fails="server_error"),
                Trial({**managed}, credentials=TOKEN, fails="client_error"),
            ),
            endless=Trial({**managed, "url": silent}, credentials=TOKEN),
        )


class TestLlm(ToolContract):
    tool = llm.TOOL

    @pytest.fixture
    def trials(self, silent):
        chat = Chat()
        with answering(*chat.routes()) as url:
            asked = {"model": "m", "prompt": "hi", "auth": "key"}
            good = {**asked, "url": f"{url}/v1"}
            yield Trials(
                good=Trial(good, credentials=TOKEN),
                failing=(
                    Trial({**good, "schema": {"type": "object"}}, {}, TOKEN, "schema"),
                    Trial({**asked, "url": f"{silent}/403"}, {}, TOKEN, "auth"),
                    Trial({**asked, "url": f"{silent}/503"}, {}, TOKEN, "server_error"),
                    Trial({**asked, "url": f"{silent}/ok"}, {}, TOKEN, "parse"),
                ),
                endless=Trial({**asked, "url": silent}, credentials=TOKEN),
            )


class TestMcp(ToolContract):
    tool = mcp.TOOL

    @pytest.fixture
    def trials(self, silent):
        started = {"command": MCP_SERVER}
        web = {"auth": "key", "tool_name": "words"}
        return Trials(
            good=Trial({**started, "tool_name": "words"}),
            failing=(
                Trial({**started, "tool_name": "fail"}, fails="exception"),
                Trial({**started, "tool_name": "add"}, fails="client_error"),
                Trial({**web, "url": f"{silent}/403"}, credentials=TOKEN, fails="auth"),
                Trial({**web, "url": f"{silent}/ok"}, credentials=TOKEN, fails="parse"),
            ),
            endless=Trial({**started, "tool_name": "sleep"}),
        )


class TestNats(ToolContract):
    tool = nats.TOOL

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with nats_server("--user", "me", "--pass", CANARY) as url:
            yield url

    @pytest.fixture
    def trials(self, server):
        def task(config: dict[str, Any], password: str = CANARY, fails: Any = None) -> Trial:
            fields = {"url": server, "user": "me", "password": password}
            return Trial({**config, "auth": "nats"}, credentials={"nats": fields}, fails=fails)

        published = {"op": "publish", "subject": "a", "value": 1}
        return Trials(
            good=task(published),
            failing=(
                task(published, f"{CANARY}-wrong", "auth"),
                task({"op": "kv_get", "bucket": "gone", "key": "k"}, fails="not_found"),
                task({"op": "request", "subject": "nobody"}, fails="connection"),
                task({"op": "kv_get"}, fails="client_error"),
            ),
        )


class TestStore(ToolContract):
    tool = store.TOOL

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with s3_server() as url:
            yield url

    @pytest.fixture
    def trials(self, server, silent):
        def task(op: str, key: str, endpoint: str, fails: Any = None) -> Trial:
            fields = {"access_key_id": "AK", "secret_access_key": CANARY, "region": "eu-west-1"}
            config = {"op": op, "url": "s3://trial", "auth": "s3", "key": key, "value": "x"}
            credentials = {"s3": {**fields, "endpoint": endpoint}}
            return Trial(config, credentials=credentials, fails=fails)

        return Trials(
            good=task("put", "a", server),
            failing=(
                task("get", "gone", server, "not_found"),
                task("get", "../a", server, "auth"),
                task("get", "a", f"{silent}/403", "auth"),
                task("get", "a", f"{silent}/503", "server_error"),
                task("get", "a", "http://127.0.0.1:1", "connection"),
            ),
            endless=task("get", "a", silent),
        )


class TestQuantum(Sandboxed):
    __test__ = True
    tool = quantum.TOOL

    @pytest.fixture
    def trials(self):
        hard = {"qubits": 26, "gates": [["h", n] for n in range(26)] * 200}
        return Trials(
            good=Trial({"op": "run", "circuit": [["x", 0]], "shots": 1}),
            failing=(
                Trial({"op": "run", "circuit": [["warp", 0]]}, fails="parse"),
                Trial({"op": "run"}, fails="client_error"),
                Trial({"op": "status", "job_id": "x"}, fails="not_found"),
            ),
            endless=Trial({"op": "run", "circuit": hard}),
        )


class TestContainer(ToolContract):
    tool = container.TOOL

    @pytest.fixture
    def trials(self, tmp_path, monkeypatch, silent):
        """With a stand-in for the engine: what it does is the subject of another module."""
        program = tmp_path / "docker"
        acts = "*good*) exit 0 ;; *) exec /bin/sleep 3600 ;;"
        program.write_text(f'#!/bin/sh\n[ "$1" = run ] || exit 0\ncase "$*" in {acts} esac\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        cluster = {"k8s": {"server": f"{silent}/403", "token": CANARY}}
        job = {"runtime": "kubernetes", "auth": "k8s", "image": "x"}
        engine = {"runtime": "docker"}
        return Trials(
            good=Trial({**engine, "image": "good"}),
            failing=(
                Trial(job, credentials=cluster, fails="auth"),
                Trial({"runtime": "podman", "image": "x"}, fails="not_found"),
                Trial({**engine, "image": "x", "command": "'"}, fails="client_error"),
            ),
            endless=Trial({**engine, "image": "sleep"}),
        )


class TestSql(ToolContract):
    """The other names of it (mysql, …) run the same code."""

    tool = sql.TOOLS[0]

    @pytest.fixture
    def trials(self, tmp_path):
        place = {"auth": "db"}
        credentials = {"db": {"url": f"sqlite:///{tmp_path}/t.db"}}
        return Trials(
            good=Trial({**place, "command": "SELECT 1"}, credentials=credentials),
            failing=(
                Trial({**place, "command": "SELEC 1"}, {}, credentials, "client_error"),
                Trial({**place, "command": "SELECT 1"}, fails="auth"),
            ),
            endless=Trial({**place, "command": ENDLESS}, credentials=credentials),
        )


class TestTransfer(ToolContract):
    tool = transfer.TOOL

    @pytest.fixture
    def trials(self, tmp_path, silent):
        (tmp_path / "a.csv").write_text("n\n1\n")
        target = {"kind": "file", "path": str(tmp_path / "b.csv")}
        gone = {"kind": "file", "path": str(tmp_path / "gone.csv")}
        web = {"kind": "http", "url": silent, "auth": "key"}
        refused = {**web, "url": f"{silent}/403"}
        source = {"kind": "file", "path": str(tmp_path / "a.csv")}
        return Trials(
            good=Trial({"source": source, "target": target}),
            failing=(
                Trial({"source": gone, "target": target}, fails="not_found"),
                Trial({"source": refused, "target": target}, {}, TOKEN, "auth"),
            ),
            endless=Trial({"source": web, "target": target}, credentials=TOKEN),
        )


class TestArtifact(ToolContract):
    tool = artifact.TOOL

    @pytest.fixture
    def trials(self):
        # Nothing is kept in a trial: what is no reference is its own value.
        return Trials(
            good=Trial({"ref": {"_ref": {"store": "result", "key": "k"}}}),
            failing=(Trial({"ref": {"no": "reference"}}, fails="client_error"),),
        )


def contracts(base: type[ToolContract]) -> Iterator[type[ToolContract]]:
    for case in base.__subclasses__():
        yield case
        yield from contracts(case)


def test_every_kind_that_runs_is_held_to_the_contract():
    held = {case.tool.kind for case in contracts(ToolContract) if hasattr(case, "tool")}
    names_of_sql = {tool.kind for tool in sql.TOOLS[1:]}

    assert held | names_of_sql == {tool.kind for tool in BUILT_IN if tool.run is not None}
