"""Failures that one call cannot bring about: something must have happened before, or elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest

from noetl.tools.processes.tree import descendants
from tests.tools.running import Bench, failure, on_bench, ran
from tests.tools.services import nats_server


def filled(value: Any, words: dict[str, str]) -> Any:
    """The value with these words replaced in its texts."""
    if isinstance(value, dict):
        return {key: filled(part, words) for key, part in value.items()}
    if not isinstance(value, str):
        return value
    for word, meant in words.items():
        value = value.replace(word, meant)
    return value


STORAGE = "jetstream { max_mem: 1KB, max_file: 20KB }\n"


async def fill(url: str) -> None:
    connection = await nats.connect(url)
    bucket = await connection.jetstream().create_key_value(bucket="full")
    await bucket.put("large", b"x" * 100_000)
    await connection.close()


def test_a_nats_server_that_is_full_is_a_server_error(tmp_path):
    (tmp_path / "nats.conf").write_text(STORAGE)
    with nats_server("-c", str(tmp_path / "nats.conf")) as url:
        asyncio.run(fill(url))
        task = {"url": url, "op": "kv_put", "bucket": "full", "key": "k", "value": "x"}
        outcome = ran("nats", task)

    kind, message = failure(outcome)
    assert (kind, outcome.error.retryable) == ("server_error", True)
    assert "insufficient resources" in message


def simulators() -> list[int]:
    """The processes for code that this one has started: below the spawner and their supervisors."""
    found = descendants(os.getpid(), deep=False)
    spawners = [pid for pid in found if b"spawner" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    supervisors = [pid for one in spawners for pid in descendants(one, deep=False)]
    return [pid for one in supervisors for pid in descendants(one, deep=False)]


def worked(pid: int) -> float:
    """How many seconds of processor time a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="looks for processes as Linux does"
)
def test_a_simulation_that_breaks_down_is_a_server_error():
    gates = [[gate, n] for gate in ("h", "t") for n in range(24)]  # without `t` it would be easy
    hard = {"qubits": 24, "gates": gates * 100}

    async def work(bench: Bench) -> Any:
        call = asyncio.create_task(bench.run("quantum", {"op": "run", "circuit": hard}))
        while not call.done():
            for pid in simulators():
                # One that has not begun is replaced by another.
                with suppress(FileNotFoundError, ProcessLookupError):
                    if worked(pid) > 1:
                        os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.05)
        return await call

    kind, message = failure(on_bench(work))

    assert kind == "server_error"
    assert "SIGKILL" in message


def test_a_file_that_cannot_be_a_value_is_a_schema_error_of_artifact(web):
    nul = {"hex": b"a\0b".hex(), "type": "text/plain"}
    task = {"url": f"{web.url}/body", "method": "POST", "json": nul, "download": True}

    async def work(bench: Bench) -> Any:
        made = await bench.run("http", task)
        return await bench.run("artifact", {"ref": made.result["data"], "decode": "text"})

    kind, message = failure(on_bench(work))

    assert kind == "schema"
    assert "NUL" in message


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (
            "http",
            {
                "url": "WEB/body",
                "method": "POST",
                "json": {"hex": DEEP.encode().hex(), "type": "application/json"},
            },
        ),
        ("shell", {"cmd": "cat FILE", "decode": "json"}),
        ("sqlite", {"command": "CREATE TABLE t (n)", "table": "t", "rows": "FILE"}),
        (
            "transfer",
            {
                "source": {"kind": "file", "path": "FILE"},
                "target": {"kind": "file", "path": "FOLDER/o.csv"},
            },
        ),
    ],
)
def test_t25_data_that_is_nested_too_deeply_is_a_parse_error(kind, config, tmp_path, web):
    (tmp_path / "deep.json").write_text(DEEP)
    found = {"WEB": web.url, "FILE": f"{tmp_path}/deep.json", "FOLDER": str(tmp_path)}

    assert failure(ran(kind, filled(config, found)))[0] == "parse"
