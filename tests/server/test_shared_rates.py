"""`spec.rate: {key, limit}`: one rate for all workers of all servers, which holds no slot."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.server.processes import serving, working
from tests.stopwatch import PATIENCE
from tests.tools.services import answering

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: rates/%s}\n"
LOOP = """\
workload: {url: ""}
workflow:
  - step: start
    spec: {rate: {key: bank, limit: 10/s}}
    loop:
      in: "{{ range(12) | list }}"
      iterator: n
      spec: {mode: parallel, max_in_flight: 12, batch_size: 1}
    tool: {kind: http, method: POST, url: "{{ workload.url }}"}
"""
SLOW = """\
workflow:
  - step: start
    tool: {kind: noop, spec: {rate: {key: year, limit: 1/1d}}}
    next: again
  - step: again
    tool: {kind: noop, spec: {rate: {key: year, limit: 1/1d}}}
"""
TWICE = """\
workflow:
  - step: start
    tool:
      - first: {kind: noop, spec: {rate: {key: pair, limit: 1/2s}}}
      - second: {kind: shell, cmd: date +%s.%N, spec: {rate: {key: pair, limit: 1/2s}}}
"""
LONG = "workflow:\n  - {step: start, tool: {kind: shell, cmd: date +%s.%N; sleep 3; date +%s.%N}}\n"
PLAIN = "workflow:\n  - {step: start, tool: {kind: noop}}\n"


def test_calls_of_all_workers_keep_to_one_rate(tmp_path: Path, database_url: str):
    came: list[float] = []

    async def mark(request: web.Request) -> web.StreamResponse:
        came.append(asyncio.get_running_loop().time())
        return web.json_response({})

    given = {"NOETL_DATABASE_URL": database_url}
    with (
        answering(("POST", "/in", mark)) as url,
        serving(tmp_path, **given) as one,
        serving(tmp_path, **given) as two,
        working(tmp_path, one.url, "--slots", "4"),
        working(tmp_path, two.url, "--slots", "4"),
    ):
        one.post("/api/catalog/register", {"content": HEAD % "loop" + LOOP})
        body = {"path": "rates/loop", "workload": {"url": f"{url}/in"}}
        ids = [server.post("/api/execute", body)["execution_id"] for server in (one, two)]
        for execution_id in ids:
            one.ended(execution_id)

    assert len(came) == 24
    # 24 moments, a tenth of a second apart. If each worker had its own, they would take 1.1 s.
    assert max(came) - min(came) >= 1.6


def test_what_waits_for_its_moment_holds_no_slot_and_says_what_it_waits_for(tmp_path: Path):
    with serving(tmp_path) as server, working(tmp_path, server.url, "--slots", "1"):
        slow = [server.start(HEAD % "slow" + SLOW) for _ in range(3)]
        deadline = time.monotonic() + PATIENCE

        def reasons() -> list[str]:
            found = [server.get(f"/api/executions/{one}/why") for one in slow]
            return [str(one) for one in found]

        while not all("its rate (1/1d of year)" in one for one in reasons()):
            assert time.monotonic() < deadline, reasons()
            time.sleep(0.1)
        server.ended(server.start(HEAD % "plain" + PLAIN))  # the only slot is free
        for one in slow:
            server.post(f"/api/executions/{one}/cancel", {})
        server.ended(server.start(HEAD % "plain" + PLAIN))


def test_a_call_whose_moment_comes_waits_for_a_free_place_on_its_worker(tmp_path: Path):
    with serving(tmp_path) as server, working(tmp_path, server.url, "--slots", "1"):
        limited = server.start(HEAD % "twice" + TWICE)
        server.wait_for(limited, "task.done")
        long = server.start(HEAD % "long" + LONG)
        (second,), (began, ended) = (times(server.ended(one)) for one in (limited, long))
    # Unless this machine took two seconds to begin it, the long call has the only place when the
    # moment of the second call comes.
    assert not began < second < ended


def times(document: dict[str, Any]) -> list[float]:
    """What a call of `date` printed."""
    return [float(line) for line in document["steps"][0]["result"]["stdout"].split()]
