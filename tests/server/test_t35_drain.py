"""T35, T33, T3 and T4: processes that end, well or badly, and what is left of their work."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster import Cluster
from tests.server.processes import Server, Worker, serving, working
from tests.stopwatch import PATIENCE, Stopwatch

COUNTING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: counting, path: tried/counting}
workload: {file: "", seconds: 0.5}
workflow:
  - step: start
    tool:
      kind: shell
      command: echo begun >> "$FILE"; sleep "$SECONDS_LONG"; echo ended >> "$FILE"
      env: {FILE: "{{ workload.file }}", SECONDS_LONG: "{{ workload.seconds }}"}
    next: after
  - step: after
    tool: {kind: shell, command: 'echo after >> "$FILE"', env: {FILE: "{{ workload.file }}"}}
"""
MANY = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: many, path: tried/many}
workflow:
  - step: start
    loop: {in: "{{ range(40) | list }}", iterator: n, mode: parallel}
    tool: {kind: python, args: {n: "{{ iter.n }}"}, code: "result = n * n"}
    next: sum
  - step: sum
    tool: {kind: noop, result: "{{ start.results | sum }}"}
"""
SUM = sum(n * n for n in range(40))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Processes whose leases are short."""
    made = Cluster(tmp_path)
    yield made
    made.end()


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def wait_until_begun(target: Path) -> None:
    """That a worker was given the work says nothing yet: the answer may be on its way."""
    deadline = time.monotonic() + PATIENCE
    while not lines(target):
        assert time.monotonic() < deadline, "no worker has begun"
        time.sleep(0.01)


def test_t35_a_worker_that_is_asked_to_end_finishes_what_it_runs(tmp_path):
    target = tmp_path / "count"
    with serving(tmp_path) as server, working(tmp_path, server.url) as first:
        execution_id = server.start(COUNTING, {"file": str(target)})
        wait_until_begun(target)

        code = first.terminate()

        assert code == 0
        assert lines(target)[:2] == ["begun", "ended"]
        assert server.get("/api/worker/pools")["pools"][0]["workers"] == []
        with working(tmp_path, server.url):
            assert server.ended(execution_id)["status"] == "COMPLETED"
        assert lines(target) == ["begun", "ended", "after"]
        names = [event["name"] for event in server.events(execution_id)]
        assert "command.lost" not in names


def test_t35_a_worker_hears_with_its_next_heartbeat_that_it_is_to_drain(tmp_path):
    with serving(tmp_path, kind="dev") as server:
        me = {"worker_id": "w1", "pool": "p", "slots": 2, "host": "here"}

        def beat(route: str = "heartbeat") -> bool:
            return bool(server.post(f"/api/worker/pool/{route}", me)["drain"])

        def draining() -> list[bool]:
            pools = server.get("/api/worker/pools")["pools"]
            return [
                one["draining"] for pool in pools for one in pool["workers"] if one["slots"] == 2
            ]

        assert not beat("register")
        assert not beat()
        assert server.post("/api/worker/drain", {"worker_id": "w1"}) == {"worker_id": "w1"}
        assert draining() == [True]
        assert beat()
        assert beat(), "what it missed it is told again"
        assert not beat("register"), "one that comes anew takes work again"
        assert draining() == [False]
        [own] = [p for p in server.get("/api/worker/pools")["pools"] if p["pool"] == "default"]
        embedded = {"worker_id": own["workers"][0]["name"]}
        assert server.ask("POST", "/api/worker/drain", embedded).status == 409
        assert server.ask("POST", "/api/worker/drain", {"worker_id": "nobody"}).status == 404


@pytest.mark.long
def test_t35_a_worker_that_is_drained_from_afar_finishes_what_it_runs_and_ends(tmp_path):
    target = tmp_path / "count"
    with serving(tmp_path) as server, working(tmp_path, server.url) as worker:
        server.start(COUNTING, {"file": str(target), "seconds": 20})
        wait_until_begun(target)
        [pool] = server.get("/api/worker/pools")["pools"]

        server.post("/api/worker/drain", {"worker_id": pool["workers"][0]["name"]})

        assert worker.process.wait(PATIENCE) == 0
        assert lines(target)[:2] == ["begun", "ended"]


def test_t35_what_takes_too_long_is_handed_back_and_goes_on_elsewhere(tmp_path):
    target = tmp_path / "count"
    with serving(tmp_path) as server:
        with working(tmp_path, server.url, "--grace", "0.1") as first:
            execution_id = server.start(COUNTING, {"file": str(target), "seconds": 1})
            wait_until_begun(target)
            assert first.terminate() == 0
        with working(tmp_path, server.url):
            assert server.ended(execution_id)["status"] == "COMPLETED"

        assert lines(target)[-2:] == ["ended", "after"]
        lost = [one for one in server.events(execution_id) if one["name"] == "command.lost"]
        assert [one["payload"]["reason"] for one in lost] == ["its worker was stopped"]


def test_t35_a_server_that_is_asked_to_end_answers_whoever_waits_and_ends(tmp_path):
    with serving(tmp_path) as server:
        execution_id = server.start(COUNTING, {"file": str(tmp_path / "x")})
        answers = []

        def wait() -> None:
            path = f"/api/executions/{execution_id}/events"
            answers.append(server.ask("GET", path, after=1000, wait=60).status)

        def lease() -> None:
            body = {"worker_id": "w", "pool": "empty", "slots": 1, "wait": 60}
            answers.append(server.ask("POST", "/api/commands/lease", body).json)

        waiting = [threading.Thread(target=wait), threading.Thread(target=lease)]
        for one in waiting:
            one.start()
        while "/api/commands/lease" not in server.ask("GET", "/metrics").raw.decode():
            if server.ask("GET", "/api/worker/pools").status == 200:
                break
        watch = Stopwatch(server.process.pid)
        assert server.terminate() == 0
        for one in waiting:
            one.join(PATIENCE)

        assert watch.seconds() < 30
        assert {"commands": []} in answers or 200 in answers


def test_t04_a_server_that_is_killed_comes_back_and_loses_nothing(tmp_path):
    target = tmp_path / "count"
    server = Server(tmp_path)
    worker = Worker(tmp_path, server.url)
    try:
        slow = server.start(COUNTING, {"file": str(target), "seconds": 1})
        others = [server.start(MANY) for _ in range(2)]
        wait_until_begun(target)

        server.kill()
        server = Server(tmp_path, port=server.port)

        document = server.ended(slow)
        assert document["status"] == "COMPLETED"
        assert [server.ended(one)["result"] for one in others] == [SUM] * 2
        # The worker had finished while nobody listened: what it had to say was not lost.
        assert lines(target) == ["begun", "ended", "after"]
        assert "command.lost" not in [event["name"] for event in server.events(slow)]
    finally:
        worker.end()
        server.end()


@pytest.mark.long  # `tests/faults/test_t01_workers_killed.py` does it with many, on both databases
def test_t01_workers_that_are_killed_are_replaced_by_others(tmp_path, cluster):
    target = tmp_path / "count"
    server = cluster.server()
    first = cluster.worker(server)
    execution_id = server.start(COUNTING, {"file": str(target), "seconds": 1})
    wait_until_begun(target)
    first.kill()
    cluster.worker(server)
    document = server.ended(execution_id)

    assert document["status"] == "COMPLETED"
    assert lines(target)[-2:] == ["ended", "after"]


def test_t03_a_worker_whose_lease_was_taken_over_has_no_voice(tmp_path, cluster):
    target = tmp_path / "count"
    server = cluster.server()
    stale = cluster.worker(server)
    execution_id = server.start(COUNTING, {"file": str(target), "seconds": 0.2})
    wait_until_begun(target)
    stale.process.send_signal(signal.SIGSTOP)
    cluster.worker(server)
    document = server.ended(execution_id)
    stale.process.send_signal(signal.SIGCONT)
    stale.terminate()

    names = [event["name"] for event in server.events(execution_id)]
    assert document["status"] == "COMPLETED", document["error"]
    assert names.count("playbook.processed") == 1
    done = [one for one in server.events(execution_id) if one["name"] == "step.done"]
    assert [one["step"] for one in done] == ["start", "after"]


def test_cancelling_reaches_a_remote_worker_at_once(tmp_path):
    target = tmp_path / "count"
    with serving(tmp_path) as server, working(tmp_path, server.url) as worker:
        execution_id = server.start(COUNTING, {"file": str(target), "seconds": 600})
        wait_until_begun(target)

        server.post(f"/api/executions/{execution_id}/cancel")

        # It is idle again: asked to end, it has nothing to finish.
        assert worker.terminate() == 0
        assert lines(target) == ["begun"]


LARGE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large, path: tried/large}
workflow:
  - step: start
    loop: {in: "{{ range(400) | list }}", iterator: n, mode: parallel}
    tool: {kind: noop, result: "{{ 'x' * 50000 }}"}
"""


def memory(pid: int) -> int:
    """Bytes of memory that belong to a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_t33_a_slow_reader_of_a_stream_does_not_grow_the_server(tmp_path):
    with serving(tmp_path) as server:
        with working(tmp_path, server.url):
            execution_id = server.start(LARGE)
            server.ended(execution_id)
        total = sum(len(json.dumps(one)) for one in server.events(execution_id))
        before = memory(server.process.pid)
        readers = []
        own = f"/api/executions/{execution_id}/stream HTTP/1.1"
        shared = f"/api/stream?topics=execution:{execution_id} HTTP/1.1"
        begun = f"Last-Event-ID: {execution_id}=1\r\n"
        for path, header in [(own, ""), (shared, begun)] * 5:
            reader = socket.create_connection(("127.0.0.1", server.port))
            reader.sendall(f"GET {path}\r\nHost: localhost\r\n{header}\r\n".encode())
            assert reader.recv(12) == b"HTTP/1.1 200"
            readers.append(reader)
        for _ in range(50):
            server.ask("GET", "/health")
        grown = memory(server.process.pid) - before
        for reader in readers:
            reader.close()

    assert total > 15_000_000
    assert grown < total, "ten readers that read nothing cost less than one copy of the events"
