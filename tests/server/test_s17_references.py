"""S17: a reference is what NoETL made. What only looks like one is data, wherever it comes from."""

from __future__ import annotations

import asyncio
import http.server
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from noetl import wiring
from noetl.model import refs
from noetl.settings import Settings
from tests.examples.system import Bench, Run, playbook, temporary_folder
from tests.server.processes import Server
from tests.stopwatch import PATIENCE

HEX = "ab" * 32
FILE_BY_PATH = {
    "_ref": {
        "store": "result",
        "key": "00c0ffee00c0ffee00",
        "size": 4,
        "checksum": "/",
        "format": "/etc/passwd",
        "parts": 1,
    }
}
"""Its `local` name was `/./etc/passwd`."""
WELL_SPELLED = {
    "_ref": {
        "store": "result",
        "execution_id": "1",
        "key": "00c0ffee00c0ffee00",
        "size": 4,
        "checksum": HEX,
        "format": "csv",
        "parts": 1,
        "seal": "ab" * 16,
    },
    "_store": "result",
    "_preview": "x",
}
FORGED = {"by_path": FILE_BY_PATH, "well_spelled": WELL_SPELLED}


def endless(length: int, kept: list[list[int]]) -> dict[str, Any]:
    about = {**WELL_SPELLED["_ref"], "segments": {"length": length, "width": 1, "kept": kept}}
    del about["parts"], about["format"]
    return {"_ref": about}


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """A web service that answers with something that looks like a reference."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(FORGED).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


SOURCES = """
- step: start
  tool: { kind: http, url: "{{ workload.url }}" }
  next: row
- step: row
  tool:
    kind: sqlite
    auth: { path: ":memory:" }
    command: "SELECT :text AS value"
    params: { text: "{{ workload.forged | tojson }}" }
  next: code
- step: code
  tool: { kind: python, args: { x: "{{ workload.forged }}" }, code: "result = x" }
  vars: { kept: "{{ result }}" }
  set: { ctx: { kept: "{{ result }}" } }
  next: child
- step: child
  tool: { kind: playbook, path: tried/child, args: { forged: "{{ code }}" } }
  next: every
- step: every
  loop:
    in: "{{ [workload, start.data, row[0].value | fromjson, code, vars.kept, ctx.kept] }}"
    iterator: it
  tool:
    kind: python
    args:
      by_path: "{{ (iter.it.forged | default(iter.it)).by_path }}"
      well_spelled: "{{ (iter.it.forged | default(iter.it)).well_spelled }}"
    code: "result = {'by_path': by_path, 'well_spelled': well_spelled}"
  next: end
- step: end
  tool: { kind: noop, result: "{{ [child, every.results] }}" }
"""
CHILD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child, path: tried/child}
workflow:
  - step: start
    tool: {kind: python, args: {x: "{{ workload.forged.by_path }}"}, code: "result = x"}
"""


def test_s17_what_looks_like_a_reference_is_data_wherever_it_comes_from(dev: Server, web: str):
    dev.post("/api/catalog/register", {"content": CHILD})
    document = dev.ended(dev.start(playbook(SOURCES), {"forged": FORGED, "url": web}))

    assert document["error"] is None
    child, every = document["result"]
    assert child == FILE_BY_PATH
    assert every == [FORGED] * 6


TOOLS = {
    "duckdb": {"files": {"t": "{{ workload.forged }}"}, "command": "SELECT * FROM t"},
    "sqlite": {"auth": {"path": ":memory:"}, "table": "t", "rows": "{{ workload.forged }}"},
    "artifact": {"ref": "{{ workload.forged }}", "decode": "text"},
}


@pytest.mark.parametrize("forged", FORGED)
def test_s17_a_tool_that_needs_a_reference_fails_on_a_forged_one(dev: Server, forged: str):
    tasks = [
        {"step": kind, "tool": {"kind": kind, **config}, "next": {"arcs": arcs}}
        for (kind, config), after in zip(TOOLS.items(), [*list(TOOLS)[1:], "end"], strict=True)
        for arcs in [[{"step": after, "when": "{{ event.name == 'step.failed' }}"}]]
    ]
    text = playbook(json.dumps([*tasks, {"step": "end", "tool": {"kind": "noop"}}]))
    document = dev.ended(dev.start(text, {"forged": FORGED[forged]}))

    assert document["status"] == "COMPLETED", document["error"]
    for step in document["steps"][:-1]:
        assert step["status"] == "failed"
        assert "root:" not in json.dumps(step)
        assert step["error"]["kind"] in ("client_error", "schema"), step


@pytest.mark.parametrize(
    "forged",
    [endless(9_000_000, [[8_999_999, 9_000_000]]), endless(10**15, [[0, 10**15]]), WELL_SPELLED],
    ids=["nulls", "many", "file"],
)
def test_s17_forged_segments_cost_nothing_and_stop_nothing(dev: Server, forged: Any):
    flow = """
- step: start
  tool: { kind: python, args: { x: "{{ workload.forged }}" }, code: "result = {'results': x}" }
  next:
    arcs: [{ step: each, args: { n: "{{ start.results._ref.key }}" }, when: "{{ start.results }}" }]
- step: each
  loop: { in: "{{ workload.forged }}", iterator: pair }
  tool: { kind: noop, result: "{{ iter.pair }}" }
  next: end
- step: end
  tool: { kind: noop, result: "{{ each.results | length }}" }
"""
    execution_id = dev.start(playbook(flow), {"forged": forged})
    document = dev.ended(execution_id)

    assert document["status"] == "COMPLETED", document["error"]
    assert document["result"] == len(forged)


def test_s17_a_reference_that_another_execution_made_is_data(dev: Server):
    large = "result = {'rows': ['x' * 100_000]}"
    flow = f'- step: start\n  tool: {{ kind: python, code: "{large}" }}'
    other = dev.ended(dev.start(playbook(flow)))["steps"][0]["result"]
    assert other["_ref"]["seal"]

    use = """
- step: start
  tool: { kind: python, args: { x: "{{ workload.other }}" }, code: "result = sorted(x)" }
  next: read
- step: read
  tool: { kind: artifact, ref: "{{ workload.other }}" }
"""
    document = dev.ended(dev.start(playbook(use), {"other": other}))

    assert document["steps"][0]["result"] == ["_preview", "_ref", "_store"]
    assert document["error"]["kind"] == "client_error"


def test_s17_nobody_is_shown_the_seal_of_an_execution(dev: Server):
    execution_id = dev.start(playbook("- { step: start, tool: { kind: noop } }"))
    dev.ended(execution_id)
    shown = [
        dev.ask("GET", f"/api/executions/{execution_id}/events", limit=1000).raw,
        dev.ask("GET", f"/api/executions/{execution_id}").raw,
    ]

    assert b"playbook.execution.requested" in shown[0]
    assert not any(b'"seal"' in answer for answer in shown)


# --- References that are ours, but lead nowhere ------------------------------------------------

READ_BY_THE_SERVER = """
- step: start
  tool: { kind: python, code: "result = {'n': 7, 'rows': ['x' * 100_000]}" }
  next: wait
- step: wait
  spec: { eval_mode: on_event }
  case: [{ when: "{{ event.name == 'go' }}", then: { next: [{ step: use }] } }]
- step: use
  args: { n: "{{ start.n }}" }
  tool: { kind: noop, result: "{{ args.n }}" }
"""


PROMISED = """
- step: start
  tool: { kind: noop }
  next: [end, wait]
- step: end
  loop: { in: [1, 2], iterator: n }
  tool: { kind: python, code: "result = {'n': 7, 'rows': ['x' * 100_000]}" }
- step: wait
  spec: { eval_mode: on_event }
  case: [{ when: "{{ event.name == 'go' }}", then: { skip: true } }]
"""
RESULT = "spec: { result: { schema: { properties: { results: { maxItems: 1 } } } } }"


def gone_on(text: str, steps: int, *, without_bodies: bool = False) -> Run:
    """An execution that goes on in another process when so many steps had ended or waited; perhaps
    somebody has removed its results from the database."""

    async def begun() -> str:
        async with wiring.embedded(settings) as system:
            bench = Bench(system, settings, folder)
            execution_id = await bench.start(text)
            awaited = ["step.waiting", "step.done"]
            async with asyncio.timeout(PATIENCE):
                while len(await system.store.log.events(execution_id, types=awaited)) < steps:
                    await asyncio.sleep(0.02)
            return execution_id

    async def ended(execution_id: str) -> Run:
        async with wiring.embedded(settings) as system:
            await system.executions.signal(execution_id, "go", {})
            return await Bench(system, settings, folder).ended(execution_id)

    with temporary_folder() as folder:
        database = folder / "noetl.db"
        settings = msgspec.structs.replace(
            Settings.from_environment({}), database_url=f"sqlite:///{database}"
        )
        execution_id = asyncio.run(begun())
        if without_bodies:
            with closing(sqlite3.connect(database)) as db, db:
                assert db.execute("DELETE FROM noetl_result").rowcount
        return asyncio.run(ended(execution_id))


def test_s17_a_body_that_is_gone_fails_the_step_that_reads_it():
    done = gone_on(playbook(READ_BY_THE_SERVER), 2, without_bodies=True)

    assert "has no result" in done.error["message"]


def test_s17_an_execution_whose_result_is_gone_does_not_keep_its_promise():
    message = gone_on(playbook(PROMISED, executor=RESULT), 3, without_bodies=True).error["message"]

    assert message.startswith("the result of the execution cannot be checked: ")
    assert "has no result" in message


def test_a_large_result_is_checked_against_its_schema_also_by_another_process():
    text = PROMISED.replace("end", "last").replace("  loop: { in: [1, 2], iterator: n }\n", "")
    promise = "spec: { result: { schema: { type: object, required: [n] } } }"

    assert gone_on(playbook(text, executor=promise), 3).document["status"] == "COMPLETED"


# --- Executions of older date ------------------------------------------------------------------


def test_s17_references_without_a_seal_are_those_of_executions_without_one():
    body = b'"x"'
    old = refs.reference("7", "00c0ffee00c0ffee00", body, "x", "")
    new = refs.reference("7", "00c0ffee00c0ffee00", body, "x", "sealed")

    assert "seal" not in old["_ref"]
    assert refs.key_of(old, "") == refs.key_of(new, "sealed") == "00c0ffee00c0ffee00"
    assert refs.key_of(old, "sealed") is refs.key_of(new, "another") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"checksum": "/"},
        {"checksum": HEX + "\n"},
        {"format": "../../etc"},
        {"format": None},
        {"key": "../x"},
        {"execution_id": "a/b"},
        {"size": -1},
        {"parts": 0},
        {"store": "file"},
        {"segments": {"length": 10**9, "width": 10**9, "kept": []}},
        {"segments": {"length": 10, "width": 1, "kept": [[0, 11]]}},
        {"segments": {"length": 10, "width": 1, "kept": [[5, 6], [0, 1]]}},
        {"segments": {"length": 10, "width": 0, "kept": []}},
    ],
    ids=str,
)
def test_s17_even_without_a_seal_a_reference_is_spelled_as_ours_are(wrong: dict[str, Any]):
    about = {**WELL_SPELLED["_ref"], **wrong}

    assert refs.about(WELL_SPELLED, "") is not None
    assert refs.about({"_ref": about}, "") is None
