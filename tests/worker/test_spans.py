"""Tracing, against a collector that speaks OTLP over HTTP."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from noetl.model.events import TaskDone
from noetl.model.ids import root_span_of, trace_of
from noetl.worker.spans import Spans, is_sampled
from tests.canaries import forms
from tests.examples.system import Run, playbook, ran, temporary_folder
from tests.faults import dies_at_the_end
from tests.server.processes import Server, serving, working
from tests.stopwatch import PATIENCE

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="noetl[otel] is missing")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

CANARY = "cnry-7Qv!zT/x+41"
OK, ERROR = 1, 2
WORKFLOW = """
- step: start
  spec: {policy: {tracing: {attributes: {shop: "{{ workload.shop }}", size: 3}}}}
  tool:
    - name: fetch
      kind: http
      url: "{{ workload.url }}/orders"
      auth: {type: bearer, token: "{{ keychain.service }}"}
      spec:
        policy:
          rules:
            - when: "{{ outcome.status == 'error' }}"
              then: {do: retry, attempts: 2}
            - else: {then: {do: continue}}
    - name: echo
      kind: noop
      result: "{{ keychain.service }}"
  next: {arcs: [{step: each}]}
- step: each
  spec: {policy: {tracing: {attributes: {got: "{{ start }}", broken: "{{ workload.no.no }}"}}}}
  loop: {in: [a, b], iterator: x, spec: {mode: parallel}}
  tool: {kind: noop, result: "{{ iter.x }}"}
  next: {arcs: [{step: fail}]}
- step: fail
  tool: {kind: noop, result: "{{ workload.nothing.at.all }}"}
"""
KEYCHAIN = "- {name: service, kind: env, variable: SERVICE_TOKEN}"
EXECUTOR = "spec: {policy: {tracing: {sample: %s, attributes: {team: sales, shop: none}}}}"


class Collector:
    """What arrived, as it was sent and as it reads."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.arrived = Event()
        """Some spans are there."""
        self.asked: list[dict[str, str]] = []
        """Headers of requests for orders. The first is refused."""

    def spans(self) -> list[dict[str, Any]]:
        return [
            {
                "name": span.name,
                "trace": span.trace_id.hex(),
                "id": span.span_id.hex(),
                "parent": span.parent_span_id.hex(),
                "links": [(one.trace_id.hex(), one.span_id.hex()) for one in span.links],
                "status": span.status.code,
                "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                **{one.key: _value(one.value) for one in span.attributes},
            }
            for body in self.bodies
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def collecting() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            found.arrived.set()
            self._answer(200, b"")

        def do_GET(self) -> None:
            found.asked.append({name.lower(): value for name, value in self.headers.items()})
            self._answer(503 if len(found.asked) == 1 else 200, b"[]")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        serving_thread = Thread(target=server.serve_forever)
        serving_thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            serving_thread.join()


def traced(collector: Collector, monkeypatch: pytest.MonkeyPatch, sample: float = 1) -> Run:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("SERVICE_TOKEN", CANARY)
    text = playbook(
        WORKFLOW,
        keychain=KEYCHAIN,
        executor=EXECUTOR % sample,
    )
    workload = {"url": collector.url, "shop": "north"}
    return ran(text, workload, env_secrets=("SERVICE_TOKEN",))


def test_spans_form_a_tree_with_the_ids_of_the_log_and_without_secrets(monkeypatch):
    with collecting() as collector:
        run = traced(collector, monkeypatch)
    spans = collector.spans()
    execution_id = run.document["execution_id"]

    assert run.error["kind"] == "schema"
    assert {span["trace"] for span in spans} == {trace_of(execution_id)}
    assert {span["noetl.execution_id"] for span in spans} == {execution_id}
    assert len({span["id"] for span in spans}) == len(spans)
    [root] = [span for span in spans if not span["parent"]]
    steps = [span for span in spans if span["parent"] == root["id"]]
    assert {span["name"] for span in steps} == {"step start", "step each", "step fail"}
    below = {span["parent"] for span in spans} - {"", root["id"]}
    assert below == {span["id"] for span in steps}

    # A span for each call of the log, which names the trace as well.
    told = [(fact.step, fact.task, fact.attempt, fact.outcome.status) for fact in run.of(TaskDone)]
    calls = [span for span in spans if span["parent"] in below]
    names = ("noetl.step", "noetl.task", "noetl.attempt", "noetl.outcome")
    assert sorted(tuple(span[name] for name in names) for span in calls) == sorted(told)
    assert {fact.outcome.meta.trace_id for fact in run.of(TaskDone)} == {trace_of(execution_id)}
    ids = {span["noetl.action_id"] for span in calls}
    assert ids == {fact.outcome.meta.action_id for fact in run.of(TaskDone)}
    assert {span["noetl.kind"] for span in calls} == {"http", "noop"}
    assert sorted(span.get("noetl.iteration", -1) for span in calls) == [-1, -1, -1, -1, 0, 1]
    assert all(span["seconds"] >= 0 for span in spans)

    # How each ended.
    refused, fetched = sorted(
        (span for span in calls if span["noetl.kind"] == "http"),
        key=lambda span: span["noetl.attempt"],
    )
    assert (refused["status"], refused["error.type"]) == (ERROR, "server_error")
    assert (fetched["status"], fetched.get("error.type")) == (OK, None)
    (failed,) = (span for span in spans if span["name"] == "step fail")
    assert (failed["status"], failed["error.type"]) == (ERROR, "schema")
    assert root["name"] == f"execution {run.document['path']}"
    assert (root["status"], root["error.type"], root["noetl.status"]) == (ERROR, "schema", "FAILED")
    assert root["seconds"] >= max(span["seconds"] for span in steps)

    # Whoever is called joins below the call.
    assert [asked["traceparent"] for asked in collector.asked] == [
        f"00-{span['trace']}-{span['id']}-01" for span in (refused, fetched)
    ]
    assert collector.asked[0]["authorization"] == f"Bearer {CANARY}"

    # The step's words stand over those of the executor.
    own = {(span["name"], span["team"], span["shop"], span.get("size")) for span in spans}
    assert ("step start", "sales", "north", 3) in own
    assert ("task fetch", "sales", "north", 3) in own
    assert ("step each", "sales", "none", None) in own
    assert (root["name"], "sales", "none", None) in own
    (each,) = (span for span in spans if span["name"] == "step each")
    assert (each["got"], each.get("broken")) == ("***", None)
    assert not [form for form in forms(CANARY) for body in collector.bodies if form in body]


def test_an_execution_that_is_not_sampled_sends_nothing(monkeypatch):
    with collecting() as collector:
        run = traced(collector, monkeypatch, sample=0)

    assert collector.bodies == []
    assert {fact.outcome.meta.trace_id for fact in run.of(TaskDone)} == {""}
    assert all("traceparent" not in asked for asked in collector.asked)


def test_sampling_follows_from_the_trace_id():
    ids = [trace_of(str(n)) for n in range(4000)]
    some = {one for one in ids if is_sampled(one, 0.25)}

    assert 800 < len(some) < 1200
    assert some <= {one for one in ids if is_sampled(one, 0.5)}
    assert all(is_sampled(one, 1) for one in ids)


def test_a_collector_that_is_not_there_harms_no_execution(monkeypatch, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}"
        )
        run = ran(playbook("- step: start\n  tool: {kind: noop, result: 1}"))

    assert run.result == 1
    assert "3 spans were dropped" in caplog.text


def test_spans_beyond_the_queue_are_dropped_and_counted():
    class Refusing(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.FAILURE

    spans = Spans(Refusing(), {}, 1.0, queue_max=0)
    for n in range(3):
        spans.add("x", trace_of("1"), f"{n + 1:016x}", None, 0.0, 1.0, {})

    assert spans.dropped == 3


def test_without_the_libraries_it_is_said_and_nothing_is_traced(monkeypatch, caplog):
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        run = ran(playbook("- step: start\n  tool: {kind: noop, result: 1}"))

    assert run.result == 1
    assert collector.bodies == []
    assert 'pip install "noetl[otel]"' in caplog.text


def test_no_collector_no_spans(monkeypatch):
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        ran(playbook("- step: start\n  tool: {kind: noop, result: 1}"))

    assert collector.bodies == []


LOOP = """
- step: start
  loop: {in: [1, 2, 3, 4], iterator: n, spec: {mode: parallel, batch_size: 1}}
  tool: {kind: noop, result: "{{ iter.n }}"}
  next: {arcs: [{step: last}]}
- step: last
  tool: {kind: playbook, path: called}
"""


def test_servers_and_workers_write_one_trace_with_one_root_and_the_envelope_names_it(database_url):
    child = playbook("- step: start\n  tool: {kind: noop}").replace("path: tried", "path: called")
    with collecting() as collector, temporary_folder() as folder:
        say = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        given = {**say, "NOETL_DATABASE_URL": database_url}
        with (
            serving(folder, **given) as server,
            serving(folder, **given) as other,
            working(folder, server.url, **say) as one,
            working(folder, other.url, **say) as two,
        ):
            server.post("/api/catalog/register", {"content": child})
            execution_id = server.start(playbook(LOOP))
            server.ended(execution_id)
            events = server.events(execution_id)
            for ending in (one, two, server, other):
                ending.process.terminate()
                ending.process.wait(timeout=PATIENCE)
    spans = [span for span in collector.spans() if span["trace"] == trace_of(execution_id)]
    called = [span for span in collector.spans() if span not in spans]

    assert {event["trace_id"] for event in events} == {trace_of(execution_id)}
    [root] = [span for span in spans if not span["parent"]]
    assert (root["name"], root["status"], root["links"]) == ("execution tried", OK, [])
    steps = [span for span in spans if span["parent"] == root["id"]]
    calls = [span for span in spans if span["parent"] in {step["id"] for step in steps}]
    assert [span["noetl.step"] for span in calls] == ["start"] * 4
    assert len(spans) == 1 + len(steps) + len(calls)
    ended = {event["step_run_id"] for event in events if event["event_type"] == "step.done"}
    assert {span["noetl.step_run_id"] for span in steps} == ended

    # What was called is a trace of its own, whose root names the one that called it.
    [child_root] = [span for span in called if not span["parent"]]
    assert child_root["links"] == [(root["trace"], root["id"])]
    assert child_root["noetl.parent_execution_id"] == execution_id
    assert {span["trace"] for span in called} == {trace_of(child_root["noetl.execution_id"])}


@pytest.mark.parametrize(("all_steps", "one_step"), [(0, 1), (1, 0)])
def test_a_step_that_is_traced_alone_stands_below_its_execution(
    monkeypatch, all_steps: int, one_step: int
):
    policy = f"spec: {{policy: {{tracing: {{sample: {one_step}}}}}}}"
    text = playbook(
        f"""
- step: start
  {policy}
  tool: {{kind: noop}}
  next: other
- step: other
  tool: {{kind: noop}}
""",
        executor=EXECUTOR % all_steps,
    )
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        ran(text)
    spans = collector.spans()

    [root] = [span for span in spans if not span["parent"]]
    seen = {span["name"] for span in spans if span["parent"] == root["id"]}
    assert seen == ({"step start"} if one_step else {"step other"})


def test_an_execution_that_is_cancelled_has_its_span():
    with (
        collecting() as collector,
        temporary_folder() as folder,
        serving(folder, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as server,
    ):
        execution_id = server.start(playbook("- step: start\n  tool: {kind: noop}"))
        server.post(f"/api/executions/{execution_id}/cancel")
        server.ended(execution_id)
        server.process.terminate()
        server.process.wait(timeout=PATIENCE)

    [root] = collector.spans()
    assert (root["noetl.outcome"], root["noetl.status"]) == ("cancelled", "CANCELLED")


class DyingServer(Server):
    """A server that may be killed when it has stored the end of an execution."""

    command = (sys.executable, str(Path(dies_at_the_end.__file__)))


AT_ONCE = "- step: start\n  next: {arcs: []}"
"""It ends in the commit that starts it."""


@pytest.mark.parametrize(
    ("kind", "survives"), [("sqlite", False), ("postgresql", False), ("postgresql", True)]
)
def test_a_server_that_dies_with_the_end_of_an_execution_leaves_its_span_to_the_next(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, survives: bool
):
    """Another server that was there before, or one that comes later."""
    with collecting() as collector:
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        if kind == "postgresql":
            given["NOETL_DATABASE_URL"] = request.getfixturevalue("database_url")
        servers = [DyingServer(tmp_path, **given)] if survives else []
        try:
            how = "beside another" if survives else "alone"
            dying = DyingServer(tmp_path, DIES_AT_THE_END=how, **given)
            servers.append(dying)
            with pytest.raises(ConnectionError):
                dying.start(playbook(AT_ONCE))
            assert dying.process.wait(PATIENCE) == -signal.SIGKILL
            if not survives:
                servers.insert(0, DyingServer(tmp_path, **given))
            assert collector.arrived.wait(PATIENCE)
            [execution] = servers[0].get("/api/executions")["executions"]
            servers[0].terminate()
        finally:
            for server in servers:
                server.end()
        with serving(tmp_path, **given) as later:
            later.terminate()
    # A server that is stopped just then sends it again, under the same id.
    [root] = {span["id"]: span for span in collector.spans()}.values()

    assert execution["status"] == "COMPLETED"
    assert (root["name"], root["noetl.status"]) == ("execution tried", "COMPLETED")
    assert root["id"] == root_span_of(execution["execution_id"])
