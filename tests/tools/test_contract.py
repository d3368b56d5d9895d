"""The kinds that run programs and talk to services keep the contract of `noetl.tools.testing`.

Those that work with tables are in `test_contract_data.py`, those that the system itself runs in
`test_contract_system.py`; `test_kinds.py` sees that none is forgotten.
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

import nats as nats_client
import pytest
from nats.js.api import StreamConfig

from noetl.tools import (
    container,
    http,
    llm,
    mcp,
    nats,
    noop,
    python,
    quantum,
    secrets,
    shell,
    store,
)
from noetl.tools.testing import CANARY, Trial, Trials
from tests.tools import test_failures
from tests.tools.canary_system import Searched
from tests.tools.chat_server import Chat
from tests.tools.services import answering, nats_server, s3_server

MCP_SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
TOKEN = {"key": {"token": CANARY}}
NOWHERE = "http://127.0.0.1:1"


class TestNoop(Searched):
    tool = noop.TOOL

    @pytest.fixture
    def trials(self):
        return Trials(good=Trial({"result": 1}), failing=())


class TestPython(Searched):
    tool = python.TOOL

    @pytest.fixture
    def trials(self, silent, tmp_path):
        broken = tmp_path / "broken.py"
        broken.write_text("break")
        return Trials(
            good=Trial({"code": "result = 1"}),
            failing=(
                Trial({"code": "1 / 0"}, fails="exception"),
                Trial({"script": str(broken)}, fails="parse"),
                Trial({"code": "result = {1}"}, fails="schema"),
                Trial({"script": "/no/such.py"}, fails="not_found"),
                Trial({"script": "/"}, fails="auth"),
                Trial({"code": "", "libs": ["no-such-package"]}, fails="client_error"),
                Trial({"script": "http://127.0.0.1:1/a.py"}, fails="connection"),
                Trial({"script": f"{silent}/429/a.py"}, fails="rate_limit"),
                Trial({"script": f"{silent}/503/a.py", "auth": "key"}, {}, TOKEN, "server_error"),
            ),
            endless=Trial({"code": "import time\ntime.sleep(3600)"}),
        )


class TestShell(Searched):
    tool = shell.TOOL

    @pytest.fixture
    def trials(self):
        return Trials(
            good=Trial({"cmd": "echo hello"}),
            failing=(
                Trial({"cmd": "exit 3"}, fails="exception"),
                Trial({"cmd": ["no-such-program"]}, fails="not_found"),
                Trial({"cmd": "true", "env_allow": ["NOETL_TOKEN"]}, fails="auth"),
                Trial({"cmd": ["echo", "a\0b"]}, fails="client_error"),
                Trial({"cmd": "echo x", "decode": "json"}, fails="parse"),
            ),
            endless=Trial({"cmd": "trap '' TERM; sleep 3600 & wait; sleep 3600"}),
        )


class TestHttp(Searched):
    tool = http.TOOL

    @pytest.fixture
    def trials(self, silent):
        return Trials(
            good=Trial({"url": f"{silent}/ok", "auth": "key"}, credentials=TOKEN),
            failing=(
                Trial({"url": f"{silent}/403", "auth": "key"}, credentials=TOKEN, fails="auth"),
                Trial({"url": f"{silent}/404", "auth": "key"}, {}, TOKEN, "not_found"),
                Trial({"url": f"{silent}/429", "auth": "key"}, {}, TOKEN, "rate_limit"),
                Trial({"url": f"{silent}/503", "auth": "key"}, {}, TOKEN, "server_error"),
                Trial({"url": f"{silent}/ok", "decode": "xml"}, fails="parse"),
                Trial({"url": f"{silent}/nul"}, fails="schema"),
                Trial({"url": "no address"}, fails="client_error"),
                Trial({"url": "http://127.0.0.1:1"}, fails="connection"),
            ),
            endless=Trial({"url": f"{silent}/wait"}),
        )


class TestSecrets(Searched):
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
                Trial({**managed, "url": f"{silent}/429"}, credentials=TOKEN, fails="rate_limit"),
                Trial({**managed, "url": f"{silent}/text"}, credentials=TOKEN, fails="parse"),
                Trial({**managed, "url": NOWHERE}, credentials=TOKEN, fails="connection"),
                Trial({**managed}, credentials=TOKEN, fails="client_error"),
            ),
            endless=Trial({**managed, "url": silent}, credentials=TOKEN),
        )


class TestLlm(Searched):
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
                    Trial({**asked, "url": f"{silent}/400"}, {}, TOKEN, "client_error"),
                    Trial({**asked, "url": f"{silent}/404"}, {}, TOKEN, "not_found"),
                    Trial({**asked, "url": f"{silent}/429"}, {}, TOKEN, "rate_limit"),
                    Trial({**asked, "url": f"{silent}/503"}, {}, TOKEN, "server_error"),
                    Trial({**asked, "url": NOWHERE}, {}, TOKEN, "connection"),
                    Trial({**asked, "url": f"{silent}/ok"}, {}, TOKEN, "parse"),
                ),
                endless=Trial({**asked, "url": silent}, credentials=TOKEN),
            )


class TestMcp(Searched):
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
                Trial({"command": ["no-such-server"], "tool_name": "x"}, fails="not_found"),
                Trial({**web, "url": f"{silent}/429"}, credentials=TOKEN, fails="rate_limit"),
                Trial({**web, "url": f"{silent}/503"}, credentials=TOKEN, fails="server_error"),
                Trial({**web, "url": f"{silent}/ok"}, credentials=TOKEN, fails="parse"),
                Trial({**web, "url": NOWHERE}, credentials=TOKEN, fails="connection"),
            ),
            endless=Trial({**started, "tool_name": "sleep"}),
        )


async def prepare(url: str) -> None:
    """A text that is not JSON, and a subject that is listened to without an answer."""
    connection = await nats_client.connect(url, user="me", password=CANARY)
    stream = connection.jetstream()
    bucket = await stream.create_key_value(bucket="texts")
    await bucket.put("greeting", b"hello")
    await stream.add_stream(StreamConfig(name="deaf", subjects=["deaf"], no_ack=True))
    await connection.close()


class TestNats(Searched):
    tool = nats.TOOL
    shown_by: ClassVar = {
        "server_error": test_failures.test_a_nats_server_that_is_full_is_a_server_error
    }

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with nats_server("--user", "me", "--pass", CANARY) as url:
            asyncio.run(prepare(url))
            yield url

    @pytest.fixture
    def trials(self, server):
        def task(config: dict[str, Any], password: str = CANARY, fails: Any = None) -> Trial:
            fields = {"url": server, "user": "me", "password": password}
            return Trial({**config, "auth": "nats"}, credentials={"nats": fields}, fails=fails)

        published = {"op": "publish", "subject": "a", "value": 1}
        greeting = {"op": "kv_get", "bucket": "texts", "key": "greeting"}
        return Trials(
            good=task(published),
            failing=(
                task(published, f"{CANARY}-wrong", "auth"),
                task({"op": "kv_get", "bucket": "gone", "key": "k"}, fails="not_found"),
                task({"op": "request", "subject": "nobody"}, fails="connection"),
                task({"op": "kv_get", "bucket": "texts", "key": "a b"}, fails="client_error"),
                task({**greeting, "decode": "json"}, fails="parse"),
            ),
            endless=task({"op": "request", "subject": "deaf", "timeout": "1h"}),
        )


class TestStore(Searched):
    tool = store.TOOL

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with s3_server() as url:
            plain = {"Content-Type": "text/plain"}
            text = urllib.request.Request(f"{url}/trial/text", b"hello", plain, method="PUT")
            urllib.request.urlopen(text).close()
            yield url

    @pytest.fixture
    def trials(self, server, silent):
        def task(op: str, key: str, endpoint: str, fails: Any = None, **more: Any) -> Trial:
            fields = {"access_key_id": "AK", "secret_access_key": CANARY, "region": "eu-west-1"}
            config = {"op": op, "url": "s3://trial", "auth": "s3", "key": key, "value": "x", **more}
            credentials = {"s3": {**fields, "endpoint": endpoint}}
            return Trial(config, credentials=credentials, fails=fails)

        return Trials(
            good=task("put", "a", server),
            failing=(
                task("get", "gone", server, "not_found"),
                task("get", "../a", server, "auth"),
                task("get", "a", f"{silent}/403", "auth"),
                task("put", "text", server, "client_error", overwrite=False),
                task("get", "text", server, "parse", decode="json"),
                task("get", "a", f"{silent}/429", "rate_limit"),
                task("get", "a", f"{silent}/503", "server_error"),
                task("get", "a", "http://127.0.0.1:1", "connection"),
            ),
            endless=task("get", "a", silent),
        )


class TestQuantum(Searched):
    tool = quantum.TOOL
    shown_by: ClassVar = {
        "server_error": test_failures.test_a_simulation_that_breaks_down_is_a_server_error
    }

    @pytest.fixture
    def trials(self):
        hard = {"qubits": 26, "gates": [["h", n] for n in range(26)] * 200}
        return Trials(
            good=Trial({"op": "run", "circuit": [["x", 0]], "shots": 1}),
            failing=(
                Trial({"op": "run", "circuit": [["warp", 0]]}, fails="parse"),
                Trial(
                    {"op": "run", "circuit": [["x", 0]], "parameters": {"t": 1}},
                    fails="client_error",
                ),
                Trial({"op": "status", "job_id": "x"}, fails="not_found"),
            ),
            endless=Trial({"op": "run", "circuit": hard}),
        )


class TestContainer(Searched):
    tool = container.TOOL

    @pytest.fixture
    def trials(self, tmp_path, monkeypatch, silent):
        """With a stand-in for the engine: what it does is the subject of another module."""
        program = tmp_path / "docker"
        acts = "*good*) echo x ;; *three*) exit 3 ;; *) exec /bin/sleep 3600 ;;"
        program.write_text(f'#!/bin/sh\n[ "$1" = run ] || exit 0\ncase "$*" in {acts} esac\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        job = {"runtime": "kubernetes", "auth": "k8s", "image": "x"}

        def refused(server: str, fails: Any) -> Trial:
            return Trial(job, {}, {"k8s": {"server": server, "token": CANARY}}, fails)

        engine = {"runtime": "docker"}
        return Trials(
            good=Trial({**engine, "image": "good"}),
            failing=(
                refused(f"{silent}/403", "auth"),
                refused(f"{silent}/503", "server_error"),
                refused(NOWHERE, "connection"),
                Trial({**engine, "image": "three"}, fails="exception"),
                Trial({**engine, "image": "good", "decode": "json"}, fails="parse"),
                Trial({"runtime": "podman", "image": "x"}, fails="not_found"),
                Trial({**engine, "image": "x", "command": "'"}, fails="client_error"),
            ),
            endless=Trial({**engine, "image": "sleep"}),
        )
