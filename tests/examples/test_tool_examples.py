"""E1 for the examples of tools that talk to services: each against a local one."""

from __future__ import annotations

import json
from typing import Any

import nats
import pytest

from noetl.model.events import RetryStarted
from tests.examples.services import Sorter, Vault, mcp_routes, put_docker
from tests.examples.system import Bench, Run, example, on_bench
from tests.stopwatch import PATIENCE
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
            told = [json.loads((await heard.next_msg(timeout=PATIENCE)).data) for _ in range(2)]
            await connection.close()
            return runs, told

        runs, told = on_bench(work)

    assert [done.result["data"] for done in runs] == [
        "ada was here 1 times",
        "ada was here 2 times",
    ]
    assert told == [{"visitor": "ada", "visits": 1}, {"visitor": "ada", "visits": 2}]


def test_llm_sorting_asks_again_until_the_answer_fits():
    chat = Sorter()
    with answering(*chat.routes()) as url:
        done = run("llm_sorting", {"model_url": f"{url}/v1"})

    assert done.result == {"topics": ["delivery", "billing", "other"], "tokens": 36}
    assert len(done.of(RetryStarted)) == 1
    assert len(chat.asked) == 4


def test_mcp_tools_lists_and_calls():
    with answering(*mcp_routes()) as url:
        done = run("mcp_tools", {"mcp_url": f"{url}/mcp", "b": 40})

    assert done.result == {"tools": ["add", "words", "fail", "env"], "sum": 42}


def test_quantum_sweep_turns_the_qubit(tmp_path):
    done = run("quantum_sweep", {"database": f"{tmp_path}/q.db", "shots": 200})

    rows = [(row["ones"], row["shots"]) for row in done.result["rows"]]
    assert rows[0] == (0, 200)
    assert 50 < rows[1][0] < 150
    assert rows[2] == (200, 200)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    put_docker(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("engine")
def test_container_job_goes_on_with_what_was_printed():
    assert run("container_job", {"numbers": [40, 2]}).result == 42


def test_secret_manager_shows_the_key_to_the_service_only():
    vault = Vault()
    with answering(*vault.routes()) as url:

        async def work(bench: Bench) -> Run:
            await bench.system.keys.put("vault", "generic", {"url": url, "token": vault.token})
            workload = {"service_url": f"{url}/orders"}
            return await bench.run(example("secret_manager"), workload)

        done = on_bench(work)

    assert vault.shown == [vault.key]
    assert done.result["data"]["orders"] == 3
    assert "canary" not in str(done)
