"""S21: what is compiled and rendered on request keeps nobody else waiting."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.effort import IS_LONG
from tests.server.conftest import Guarded, guarding
from tests.server.processes import Server
from tests.stopwatch import PATIENCE, meanwhile

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: tests/s21}\nworkflow:\n"
SORT = "{{ range(300000) | sort | length }}"
"""Most of what one template may do."""


def steps(count: int) -> str:
    """A long playbook."""
    chain = (
        f"- step: s{n}\n  tool: {{kind: python, code: 'result = 1'}}\n  next: s{n + 1}\n"
        for n in range(1, count)
    )
    last = f"- step: s{count}\n  tool: {{kind: noop}}\n"
    return f"{HEAD}- step: start\n  next: s1\n{''.join(chain)}{last}"


def others(server: Server, token: str) -> AbstractContextManager[list[float]]:
    """How long somebody else waits for each answer meanwhile."""
    return meanwhile(lambda: server.get("/api/executions", token=token), server.process.pid)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """It starts its processes as it does for users: `tests/forked.py` would fork them."""
    with guarding(PYTHONUTF8="1") as found:
        yield found


@pytest.fixture(scope="module")
def execution(guarded: Guarded) -> str:
    server, admin = guarded.server, guarded.tokens["admin"]
    text = HEAD + "- step: start\n  tool: {kind: noop}\n"
    server.post("/api/catalog/register", {"content": text}, token=admin)
    body = {"path": "tests/s21", "workload": {"name": "ada"}}
    return str(server.post("/api/execute", body, token=admin)["execution_id"])


def test_s21_all_templates_of_a_request_share_one_budget_off_the_loop(
    guarded: Guarded, execution: str
):
    server, viewer = guarded.server, guarded.tokens["viewer"]
    body = {"execution_id": execution, "object": [SORT] * 1000}

    with others(server, guarded.tokens["operator"]) as waits:
        reply = server.ask("POST", "/api/context/render", body, token=viewer)

    assert (reply.status, reply.code) == (422, "budget_exceeded")
    assert "seconds" in reply.json["error"]["message"]
    assert max(waits) < 1


def test_s21_a_template_is_rendered_as_before(guarded: Guarded, execution: str):
    body = {"execution_id": execution, "object": {"hello": ["{{ workload.name | upper }}", 7]}}
    reply = guarded.server.post("/api/context/render", body, token=guarded.tokens["viewer"])

    assert reply == {"rendered": {"hello": ["ADA", 7]}}


def test_s21_a_long_text_is_compiled_off_the_loop(guarded: Guarded):
    server = guarded.server
    with others(server, guarded.tokens["operator"]) as waits:
        body = {"content": steps(6000 if IS_LONG else 3000)}
        reply = server.ask("POST", "/api/catalog/validate", body, token=guarded.tokens["viewer"])

    assert reply.status in (200, 422)
    assert max(waits) < 1


def test_s21_few_at_a_time_of_one_caller_and_others_have_their_turn(
    guarded: Guarded, execution: str
):
    server, viewer = guarded.server, guarded.tokens["viewer"]
    body = {"execution_id": execution, "object": [SORT] * (8 if IS_LONG else 3)}
    small = {"execution_id": execution, "template": "{{ 1 + 1 }}"}
    with ThreadPoolExecutor(12) as threads:
        asked = [
            threads.submit(server.ask, "POST", "/api/context/render", body, token=viewer)
            for _ in range(12)
        ]
        while not any(one.done() for one in asked):
            time.sleep(0.01)
        other = server.ask("POST", "/api/context/render", small, token=guarded.tokens["operator"])
        answers = sorted((one.result() for one in asked), key=lambda one: one.status)

    assert (other.status, other.json) == (200, {"rendered": 2})
    assert answers[0].status == 200
    assert (answers[-1].status, answers[-1].headers["retry-after"]) == (429, "10")


def test_s21_a_large_workload_keeps_nobody_waiting(guarded: Guarded, execution: str):
    server = guarded.server
    rows = [{"number": n, "text": "x" * 80} for n in range(100_000)]
    raw = json.dumps({"path": "tests/s21", "workload": {"rows": rows}}).encode()
    with others(server, guarded.tokens["viewer"]) as waits:
        reply = server.ask("POST", "/api/execute", raw=raw, token=guarded.tokens["operator"])

    assert reply.status == 200
    assert max(waits) < 1


def test_s21_a_process_that_was_killed_is_replaced(guarded: Guarded, execution: str):
    server, viewer = guarded.server, guarded.tokens["viewer"]
    body = {"execution_id": execution, "template": "{{ 1 + 1 }}"}
    assert server.post("/api/context/render", body, token=viewer) == {"rendered": 2}
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    for pid in children.read_text().split():
        os.kill(int(pid), signal.SIGKILL)

    deadline = time.monotonic() + PATIENCE
    while server.ask("POST", "/api/context/render", body, token=viewer).status != 200:
        assert time.monotonic() < deadline


def test_s21_the_process_that_evaluates_has_none_of_our_secrets(guarded: Guarded, execution: str):
    server, viewer = guarded.server, guarded.tokens["viewer"]
    body = {"execution_id": execution, "template": "{{ 1 + 1 }}"}
    server.post("/api/context/render", body, token=viewer)

    [pid, *_] = (
        Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    )
    assert b"NOETL" not in Path(f"/proc/{pid}/environ").read_bytes()
