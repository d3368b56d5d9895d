"""E1 for the examples of tools that talk to services: each against a local one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nats
import pytest
from aiohttp import web

from noetl.model.events import RetryStarted
from tests.examples.system import Bench, Run, example, on_bench
from tests.tools.chat_server import Chat
from tests.tools.mcp_server import OverHttp
from tests.tools.services import answering, nats_server


def run(name: str, workload: dict[str, Any]) -> Run:
    return on_bench(lambda bench: bench.run(example(name), workload))


def test_object_store_passes_files_on_by_reference(tmp_path):
    done = run("object_store", {"store": tmp_path.as_uri(), "rows": 100})

    assert done.result == {
        "keys": ["squares/all.ndjson"],
        "sum": {"rows": 100, "total": sum(n * n for n in range(100))},
    }
    written = (tmp_path / "squares" / "all.ndjson").read_text().splitlines()
    assert json.loads(written[-1]) == {"number": 99, "square": 9801}


def test_nats_messages_counts_and_tells(tmp_path):
    with nats_server() as url:

        async def work(bench: Bench) -> Any:
            connection = await nats.connect(url)
            heard = await connection.subscribe("visits.counted")
            await connection.flush()
            runs = [await bench.run(example("nats_messages"), {"nats_url": url}) for _ in range(2)]
            told = [json.loads((await heard.next_msg(timeout=10)).data) for _ in range(2)]
            await connection.close()
            return runs, told

        runs, told = on_bench(work)

    assert [done.result["data"] for done in runs] == [
        "ada was here 1 times",
        "ada was here 2 times",
    ]
    assert told == [{"visitor": "ada", "visits": 1}, {"visitor": "ada", "visits": 2}]


class Sorter(Chat):
    """Knows the topics, but its first answer is not in the form it was asked for."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        letter = (await request.json())["messages"][-1]["content"]
        words = {"parcel": "delivery", "charged": "billing"}
        topic = next((topic for word, topic in words.items() if word in letter), "other")
        self.says = {"topic": topic} if self.asked else "I think it is about delivery."
        return await super().completions(request)


def test_llm_sorting_asks_again_until_the_answer_fits():
    chat = Sorter()
    with answering(*chat.routes()) as url:
        done = run("llm_sorting", {"model_url": f"{url}/v1"})

    assert done.result == {"topics": ["delivery", "billing", "other"], "tokens": 36}
    assert len(done.of(RetryStarted)) == 1
    assert len(chat.asked) == 4


def test_mcp_tools_lists_and_calls():
    server = OverHttp()
    routes = [("POST", "/mcp", server.post), ("DELETE", "/mcp", server.delete)]
    with answering(*routes) as url:
        done = run("mcp_tools", {"mcp_url": f"{url}/mcp", "b": 40})

    assert done.result == {"tools": ["add", "words", "fail", "env"], "sum": 42}


def test_quantum_sweep_turns_the_qubit(tmp_path):
    done = run("quantum_sweep", {"database": f"{tmp_path}/q.db", "shots": 200})

    rows = [(row["ones"], row["shots"]) for row in done.result["rows"]]
    assert rows[0] == (0, 200)
    assert 50 < rows[1][0] < 150
    assert rows[2] == (200, 200)


ENGINE = f"""#!{sys.executable}
import pathlib, subprocess, sys
words = sys.argv[1:]
lines = pathlib.Path(words[words.index("--env-file") + 1]).read_text().splitlines()
environment = dict(line.split("=", 1) for line in lines)
command = words[words.index("python:3.12-alpine") + 1 :]
done = subprocess.run([sys.executable, *command[1:]], env=environment)
sys.exit(done.returncode)
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A docker that runs the command without a container."""
    program = Path(tmp_path / "docker")
    program.write_text(ENGINE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("engine")
def test_container_job_goes_on_with_what_was_printed():
    assert run("container_job", {"numbers": [40, 2]}).result == 42


def test_secret_manager_shows_the_key_to_the_service_only():
    seen: list[str | None] = []

    async def vault(request: web.Request) -> web.StreamResponse:
        assert request.headers["X-Vault-Token"] == "canary-vault"
        data = {"data": {"api_key": "canary-api-key"}, "metadata": {}}
        return web.json_response({"data": data})

    async def orders(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("X-Api-Key"))
        return web.json_response({"orders": 3, "echo": request.headers["X-Api-Key"]})

    routes = [("GET", "/v1/kv/data/shop", vault), ("GET", "/orders", orders)]
    with answering(*routes) as url:

        async def work(bench: Bench) -> Run:
            await bench.system.keys.put("vault", "generic", {"url": url, "token": "canary-vault"})
            workload = {"service_url": f"{url}/orders"}
            return await bench.run(example("secret_manager"), workload)

        done = on_bench(work)

    assert seen == ["canary-api-key"]
    assert done.result["data"]["orders"] == 3
    assert "canary" not in str(done)
