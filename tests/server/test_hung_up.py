"""Whoever hangs up in the middle of something is no error in the log."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from tests.faults.cluster import until
from tests.server.processes import Server, serving

WAITING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waiting, path: tests/waiting}
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
  - {step: end, tool: {kind: noop}}
"""


def hang_up(server: Server, method: str, path: str, body: bytes = b"", *, size: int = 0) -> None:
    """Ask, send so much of the body, and be gone: without a word if an answer is under way."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(head.encode() + body)
        if not size:
            line.recv(1)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_whoever_hangs_up_in_the_middle_of_a_body_or_a_stream_is_no_error(tmp_path: Path):
    with serving(tmp_path) as server:
        execution_id = server.start(WAITING)
        for method, path in (
            ("POST", "/api/execute"),
            ("POST", "/api/catalog/register"),
            ("POST", "/api/commands/report"),
            ("PUT", f"/api/results/{execution_id}/k"),
        ):
            hang_up(server, method, path, b'{"path"', size=100_000)
        for path in ("events", "stream"):
            hang_up(server, "GET", f"/api/executions/{execution_id}/{path}")
        server.post(f"/api/executions/{execution_id}/events", {"name": "go"})
        until(lambda: server.ask("GET", "/health").status == 200, "the server is gone")
        assert server.terminate() == 0
        log = server.log.read_text()

    assert '"level":"error"' not in log, log
    assert "Traceback" not in log, log
