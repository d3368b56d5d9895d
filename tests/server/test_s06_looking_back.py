"""S6: whatever is asked about an execution afterwards, no answer holds a secret that it used.

The GET routes are searched with each example and tool kind. These are the questions that need more
than an id: two executions, a text, a moment, an expression, a stream.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.canaries import assert_clean
from tests.server.processes import Reply, Server

FIRST, SECOND = "canary-first-hunter2", "canary-other-swordfish"
TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: secretive, path: tests/secretive}
keychain:
  - {name: shop, kind: static, data: {password: "SECRET"}}
workflow:
  - step: start
    loop: {in: [1, 2], iterator: n, spec: {on_error: continue}}
    tool:
      kind: python
      args: {password: "{{ keychain.shop.password }}", n: "{{ iter.n }}"}
      code: |
        print("it is", password)
        if n == 2:
            raise ValueError(f"{password} was refused")
        result = {"told": password, "length": len(password)}
    next: {arcs: [{step: tell, when: "{{ start.results[0].length > 5 }}"}]}
  - step: tell
    tool:
      kind: shell
      command: 'echo "$P"; echo "failed with $P" >&2; exit 3'
      env: {P: "{{ keychain.shop.password }}"}
"""
SPELLINGS = (
    "{{ keychain.shop.password }}",
    "{{ keychain }}",
    "{{ start.results[0].told }}",
    "{{ start.errors }}",
    "{{ error }}",
    "{{ workload }}",
)


class Told(NamedTuple):
    server: Server
    ids: tuple[str, str]


@pytest.fixture(scope="module")
def told(dev: Server) -> Told:
    ids = []
    for secret in (FIRST, SECOND):
        ids.append(dev.start(TEXT.replace("SECRET", secret)))
        assert dev.ended(ids[-1])["status"] == "FAILED"
    return Told(dev, (ids[0], ids[1]))


def questions(told: Told) -> Iterator[tuple[str, Reply]]:
    server, (first, second) = told
    one = f"/api/executions/{first}"
    events = server.events(first)

    def get(path: str, **query: Any) -> tuple[str, Reply]:
        return f"{path} {query}", server.ask("GET", path, **query)

    def post(path: str, body: dict[str, Any]) -> tuple[str, Reply]:
        return f"{path} {body}", server.ask("POST", path, body)

    yield get("/api/executions/diff", a=first, b=second)
    for secret in (FIRST, FIRST.upper(), f'"{FIRST}"', f"error:{FIRST}", "canary"):
        yield get("/api/executions", q=secret, workload="x")
        yield get(f"{one}/logs", grep=secret.strip('"').removeprefix("error:"))
    for event in events:
        yield get(f"{one}/state", seq=event["seq"])
        yield post(f"{one}/fork", {"seq": event["seq"], "dry_run": True})
        if event["action_id"]:
            yield get(f"{one}/calls/{event['action_id']}")
    for step in ("start", "tell"):
        yield get(f"{one}/why", step=step)
    yield get(f"{one}/test")
    yield get(f"{one}/timeline")
    yield get(f"{one}/stream")
    for run in {event["step_run_id"] for event in events if event["step_run_id"]}:
        yield get(f"{one}/loops/{run}/iterations")
    yield post("/api/whatif", {"path": "tests/secretive", "executions": [first, second]})
    edited = TEXT.replace("SECRET", "x").replace("length > 5", "length > 99")
    yield post("/api/whatif", {"content": edited, "executions": [first, second]})
    for template in SPELLINGS:
        for step in ("start", "tell"):
            wish = {"execution_id": first, "step": step}
            yield post("/api/context/render", {**wish, "template": template})
            yield post("/api/language", {**wish, "want": "value", "expression": template})
    for path in ("/api/versions", "/api/version-diff"):
        yield get(f"{path}/tests/secretive", **({"from": 1, "to": 2} if "diff" in path else {}))
    yield post("/api/executions/bulk", {"action": "rerun", "ids": [first], "dry_run": True})
    for path in ("/api/overview", "/api/inbox", "/api/queues", "/api/views", "/metrics"):
        yield get(path)


def test_s06_no_question_about_the_past_is_answered_with_a_secret(told: Told):
    statuses = []
    for asked, reply in questions(told):
        assert reply.status < 500, (asked, reply.raw)
        if "version-diff" in asked or "/api/versions" in asked:
            continue  # What authors wrote into a playbook, for whoever may read playbooks.
        for secret in (FIRST, SECOND):
            shown = reply.raw.replace(asked.encode(), b"")
            assert_clean((secret,), shown)
        statuses.append(reply.status)
    assert statuses.count(200) > len(statuses) / 2


def test_s06_recordings_of_both_are_clean(told: Told):
    for execution_id in told.ids:
        packed = told.server.ask("GET", f"/api/executions/{execution_id}/export").raw
        assert_clean((FIRST, SECOND), gzip.decompress(packed))


def test_s06_a_fork_keeps_and_says_nothing_either(told: Told):
    server, (first, _) = told
    failed = next(
        event["seq"] for event in server.events(first) if event["name"] == "loop.iteration.failed"
    )
    forked = server.post(f"/api/executions/{first}/fork", {"seq": failed, "failed": True})
    server.ended(forked["execution_id"])

    for path in ("", "/events?limit=1000", "/state", "/timeline", "/logs"):
        reply = server.ask("GET", f"/api/executions/{forked['execution_id']}{path}")
        assert reply.status == 200
        assert_clean((FIRST, SECOND), reply.raw)
