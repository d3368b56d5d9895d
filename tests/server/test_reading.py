"""How queries and bodies are read, on the routes that are called most.

A slash at the end is not a letter of the path, so it leads to the same route.
"""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from noetl.api.routes.commands import REPORT_MAX
from tests.server.conftest import Guarded
from tests.server.processes import Reply
from tests.stopwatch import PATIENCE

REPORT, LEASE, RENEW = (f"/api/commands/{name}" for name in ("report", "lease", "renew"))
START = "/api/execute"
SAID = {"command_id": "c", "execution_id": "7", "token": "c.1", "number": 1, "closes": True}
WISH = {"worker_id": "w", "pool": "nobody's"}
DEEP = b"[" * 100_000


def as_bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def with_and_without_slash(
    guarded: Guarded, path: str, query: str, body: Any, role: str
) -> list[Reply]:
    token, raw = guarded.tokens[role], as_bytes(body)
    spellings = (f"{path}{query}", f"{path}/{query}")
    return [guarded.server.ask("POST", one, token=token, raw=raw) for one in spellings]


def seen(reply: Reply) -> tuple[int, dict[str, str], Any]:
    headers = {name: value for name, value in reply.headers.items() if name != "x-request-id"}
    return reply.status, headers, reply.json


@pytest.mark.parametrize(
    ("path", "query", "body", "status"),
    [
        (REPORT, "", SAID, 409),
        (REPORT, "?want=2&pool=other", SAID, 409),
        (REPORT, "?want=%32&pool=%C3%BC&more=1", [SAID], 200),
        (REPORT, "?want=1001", [SAID], 400),
        (REPORT, "?want=-1", [SAID], 400),
        (REPORT, "?want=x&pool=", [SAID], 400),
        (REPORT, "?want=1&want=x", [SAID], 400),
        (REPORT, "?want=1&want=2", [SAID], 400),
        (REPORT, "?want", [SAID], 400),
        (REPORT, "?want=%FF", [SAID], 400),
        (REPORT, "", [], 200),
        (REPORT, "", [SAID, {}], 200),
        (REPORT, "", {"no": "report"}, 400),
        (REPORT, "", b"", 400),
        (REPORT, "", b"\xff", 400),
        (REPORT, "", DEEP, 400),
        (LEASE, "", WISH, 200),
        (LEASE, "?wait=x", {**WISH, "kinds": ["noop"]}, 200),
        (LEASE, "", {**WISH, "slots": "3"}, 200),
        (LEASE, "", {**WISH, "slots": 0}, 400),
        (LEASE, "", {**WISH, "wait": 61}, 400),
        (LEASE, "", {"slots": 1}, 400),
        (LEASE, "", b"", 400),
        (LEASE, "", b'{"worker_id": "\xff"}', 400),
        (LEASE, "", DEEP, 400),
        (RENEW, "", {"leases": ["c.1"]}, 200),
        (RENEW, "", {"leases": "c.1"}, 400),
        (RENEW, "", [1], 400),
        (START, "", {"path": "nobody's"}, 404),
        (START, "", {"path": "nobody's", "version": "latest"}, 404),
        (START, "", {"path": "nobody's", "version": "newest"}, 400),
        (START, "", {"path": "nobody's", "worklod": {}}, 422),
        (START, "?wait=1", {"path": "nobody's"}, 422),
        (START, "", {"path": 1}, 400),
        (START, "", b"", 400),
        (START, "", b"\xff", 400),
        (START, "", DEEP, 400),
    ],
)
def test_a_request_is_read_as_the_route_declares(
    guarded: Guarded, path: str, query: str, body: Any, status: int
):
    role = "operator" if path == START else "worker"
    plain, slashed = with_and_without_slash(guarded, path, query, body, role)

    assert seen(plain) == seen(slashed)
    assert plain.status == status, plain.raw


@pytest.mark.parametrize("path", [REPORT, LEASE, RENEW])
def test_a_slash_at_the_end_needs_the_same_right(guarded: Guarded, path: str):
    plain, slashed = with_and_without_slash(guarded, path, "", {}, "author")

    assert seen(plain) == seen(slashed)
    assert (plain.status, plain.code) == (403, "not_allowed")


def test_a_slash_at_the_end_is_counted_as_the_same_route(guarded: Guarded):
    def counted() -> dict[str, float]:
        text = guarded.server.ask("GET", "/metrics", token=guarded.tokens["admin"]).raw.decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if RENEW in line)
        return {name: float(value) for name, _, value in lines if "_count{" in name}

    before = counted()
    with_and_without_slash(guarded, RENEW, "", {"leases": []}, "worker")
    after = counted()

    assert sum(after.values()) == sum(before.values()) + 2
    assert len(after) == 1


@pytest.mark.parametrize("path", [REPORT, f"{REPORT}/"])
def test_a_report_that_is_too_large_is_refused_before_it_is_read(guarded: Guarded, path: str):
    connection = http.client.HTTPConnection("127.0.0.1", guarded.server.port, timeout=PATIENCE)
    connection.putrequest("POST", path)
    connection.putheader("Authorization", f"Bearer {guarded.tokens['worker']}")
    connection.putheader("Content-Length", str(REPORT_MAX + 1))
    connection.endheaders()

    answer = connection.getresponse()

    assert (answer.status, json.load(answer)["error"]["code"]) == (413, "too_large")
    connection.close()


@pytest.mark.parametrize("path", [RENEW, f"{RENEW}/"])
def test_a_body_whose_length_is_not_told_is_read_too(guarded: Guarded, path: str):
    connection = http.client.HTTPConnection("127.0.0.1", guarded.server.port, timeout=PATIENCE)
    parts = (part for part in (b'{"leases"', b": []}"))
    shown = {"Authorization": f"Bearer {guarded.tokens['worker']}"}
    connection.request("POST", path, parts, shown, encode_chunked=True)

    answer = connection.getresponse()

    assert (answer.status, json.load(answer)) == (200, {"held": [], "lost": []})
    connection.close()
