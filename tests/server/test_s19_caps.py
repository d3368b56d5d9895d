"""S19 and S31: strangers with sockets of their own, and others who are answered meanwhile."""

from __future__ import annotations

import json
import resource
import socket
import time
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

import pytest

from noetl.api import protocol
from tests.server.conftest import Guarded
from tests.server.processes import Server, serving, working
from tests.stopwatch import PATIENCE, Stopwatch, meanwhile

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def connected(server: Server, address: str = "127.0.0.1") -> socket.socket:
    target = ("127.0.0.1", server.port)
    return socket.create_connection(target, PATIENCE, source_address=(address, 0))


def received(sock: socket.socket) -> bytes:
    """Everything that comes until the server hangs up."""
    said = b""
    try:
        while piece := sock.recv(65536):
            said += piece
    except ConnectionResetError:
        pass
    return said


def status_in(said: bytes) -> int:
    return int(said.split(b" ", 2)[1])


def answered(server: Server, sent: bytes) -> bytes:
    with closing(connected(server)) as sock:
        sock.sendall(sent)
        return received(sock)


def others(server: Server) -> AbstractContextManager[list[float]]:
    """How long somebody at another address waits for each answer meanwhile."""

    def ask() -> None:
        with closing(connected(server, "127.0.0.2")) as sock:
            sock.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert b"200 OK" in received(sock)

    return meanwhile(ask, server.process.pid)


def test_s19_an_endless_header_is_refused_and_starves_nobody(guarded: Guarded):
    with others(guarded.server) as waits, closing(connected(guarded.server)) as sock:
        sock.sendall(HEAD + b"X-Endless: ")
        sent = 0
        try:
            while sent < 200 * 2**20:
                sent += sock.send(b"a" * 65536)
        except OSError:
            pass
        said = received(sock)

    assert sent < 50 * 2**20
    assert status_in(said) == 431
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_large"
    assert max(waits) < 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"X-A: b\r\n" * 90, 200),
        (b"X-A: b\r\n" * 200, 431),
        (b"X-A: " + b"b" * 30_000 + b"\r\n", 200),
        (b"X-A: " + b"b" * 40_000 + b"\r\n", 431),
        ((b"X-A: " + b"b" * 1000 + b"\r\n") * 50, 431),
    ],
)
def test_s19_a_head_has_a_size_and_a_number_of_fields(guarded, fields, status):
    said = answered(guarded.server, HEAD + fields + b"Connection: close\r\n\r\n")

    assert status_in(said) == status


def test_s19_an_endless_trailer_is_refused(guarded: Guarded):
    head = b"POST /api/auth/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    with closing(connected(guarded.server)) as sock:
        sock.sendall(head + b"Content-Type: application/json\r\n\r\n2\r\n{}\r\n0\r\nX-Endless: ")
        sent = 0
        try:
            while sent < 50 * 2**20:
                sent += sock.send(b"a" * 65536)
        except OSError:
            pass

    assert sent < 50 * 2**20


def test_s19_what_is_half_sent_is_given_up(guarded: Guarded):
    head = b"POST /api/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = {
        "nothing": b"",
        "empty lines": b"\r\n\r\n",
        "a line": b"GET /hea",
        "half a head": HEAD + b"X-Half: ",
        "half a body": head + b"Content-Length: 1000\r\n\r\n{",
        "half a chunk": head + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n{",
    }
    watch = Stopwatch(guarded.server.process.pid)
    with ExitStack() as stack, others(guarded.server) as waits:
        socks = {}
        for name, text in sent.items():
            socks[name] = stack.enter_context(closing(connected(guarded.server)))
            socks[name].sendall(text)
        said = {name: received(sock) for name, sock in socks.items()}

    assert watch.seconds() < 45
    assert said.pop("nothing") == b""
    assert {name: status_in(one) for name, one in said.items()} == dict.fromkeys(said, 408)
    assert max(waits) < 1


def test_s19_a_body_that_comes_slowly_but_steadily_is_taken(guarded: Guarded):
    body = b'{"user": "nobody", "password": "' + b"x" * 900 + b'"}'
    head = b"POST /api/auth/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with closing(connected(guarded.server)) as sock:
        sock.sendall(head)
        for at in range(0, len(body), 200):
            sock.sendall(body[at : at + 200])
            time.sleep(0.3)

        assert status_in(received(sock)) == 401


def test_s19_one_address_does_not_take_all_connections(guarded: Guarded):
    with ExitStack() as stack:
        socks = [
            stack.enter_context(closing(connected(guarded.server, "127.0.0.3")))
            for _ in range(protocol.CONNECTIONS_MAX + 50)
        ]
        with others(guarded.server) as waits:
            last = [received(sock) for sock in socks[-50:]]

    assert {status_in(said) for said in last} == {429}
    assert b"retry-after: " in last[0]
    assert max(waits) < 1


def test_s19_all_connections_leave_files_for_the_server_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2000, 4000))
    protocol.connections_max.cache_clear()

    assert protocol.connections_max() == (872, 2000 - protocol.FILES_RESERVED)
    protocol.connections_max.cache_clear()


@pytest.mark.long
def test_s19_an_answer_that_nobody_reads_is_given_up(guarded: Guarded):
    """Also where the connection waits to be closed, because half a request came behind."""
    ask = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
    asked = ask + guarded.tokens["viewer"].encode() + b"\r\n\r\n"
    with closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", guarded.server.port))
        sock.settimeout(protocol.UNREAD_SECONDS + 60)
        begun = time.monotonic()
        with pytest.raises(ConnectionError):
            sock.sendall(asked * 100_000)

        took = time.monotonic() - begun
        assert protocol.UNREAD_SECONDS - 5 < took < protocol.UNREAD_SECONDS + 45


# --- S31: what is not a plain request -------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: evil.example@localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST /h HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 100,
    ],
)
def test_s31_what_is_not_a_plain_request_is_refused(guarded: Guarded, sent: bytes):
    said = answered(guarded.server, sent)

    assert status_in(said) == 400
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"


def test_s31_whoever_sends_letters_that_must_be_escaped_is_told_how(guarded: Guarded):
    said = answered(
        guarded.server, "GET /api/executions?q=größe HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    )

    assert status_in(said) == 400
    message = json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert "ö as %C3%B6" in message


def test_s31_an_old_request_without_a_host_is_answered(guarded: Guarded):
    assert status_in(answered(guarded.server, b"GET /health HTTP/1.0\r\n\r\n")) == 200


def test_s31_trailers_are_not_headers(guarded: Guarded):
    token = guarded.tokens["admin"].encode()
    head = b"POST /api/catalog/list HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    shown = b"Authorization: Bearer " + token + b"\r\n"
    chunks = b"\r\n2\r\n{}\r\n0\r\n"

    assert status_in(answered(guarded.server, head + shown + chunks + b"\r\n")) == 200
    assert status_in(answered(guarded.server, head + chunks + shown + b"\r\n")) == 401


def test_s31_requests_that_come_together_are_answered_one_after_the_other(guarded: Guarded):
    sent = HEAD + b"\r\n" + HEAD + b"\r\n" + HEAD + b"Connection: close\r\n\r\n"

    assert answered(guarded.server, sent).count(b"200 OK") == 3


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/executions/%00", None),
        ("GET", "/api/executions?path=a%00b", None),
        ("GET", "/api/catalog/a%00b", None),
        ("POST", "/api/execute", {"path": "a\0b"}),
        ("POST", "/api/execute", {"path": "p", "workload": {"x": ["a\0b"]}}),
        ("POST", "/api/catalog/register", {"content": "a: 1\n\0"}),
        ("POST", "/api/credentials", {"name": "a\0b", "type": "t", "data": {}}),
        ("POST", "/api/access/tokens", {"name": "a\0b", "roles": ["viewer"]}),
        ("POST", "/api/auth/login", {"user": "a\0b", "password": "x"}),
        ("POST", "/api/events", {"execution_id": "1", "name": "a.b", "data": "a\0b"}),
        ("POST", "/v1/events", [{"execution_id": "1", "name": "a.b", "event_id": "a\0b"}]),
        ("POST", "/api/commands/lease", {"worker_id": "a\0b"}),
        ("POST", "/api/commands/renew", {"leases": ["a\0b"]}),
        ("POST", "/api/worker/pool/register", {"worker_id": "w", "pool": "a\0b"}),
    ],
)
def test_s31_a_text_with_nul_is_refused(guarded: Guarded, method, path, body):
    reply = guarded.server.ask(method, path, body, token=guarded.tokens["admin"])

    assert (reply.status, reply.code) == (422, "bad_text")


def test_s31_a_backslash_before_u0000_is_no_nul(guarded: Guarded):
    body = {"path": "nowhere", "workload": {"pattern": "\\u0000"}}
    reply = guarded.server.ask("POST", "/api/execute", body, token=guarded.tokens["admin"])

    assert reply.status == 404


FAILS_WITH_NUL = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: nul, path: tests/nul}
workflow:
- step: start
  tool: {kind: python, code: 'raise ValueError("a" + chr(0) + "b")'}
"""


def test_s31_what_a_task_fails_with_may_hold_nul_and_a_report_never_breaks_the_server(
    tmp_path: Path, database_url: str
):
    given = {"NOETL_DATABASE_URL": database_url}
    with serving(tmp_path, **given) as server, working(tmp_path, server.url):
        document = server.ended(server.start(FAILS_WITH_NUL))

        assert document["status"] == "FAILED"
        for path, body in (
            ("/api/execute", {"path": "a\0b"}),
            ("/api/commands/report", {"execution_id": "a\0b", "command_id": "1", "token": "1:1"}),
        ):
            assert 400 <= server.ask("POST", path, body).status < 500
