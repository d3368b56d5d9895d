"""S30: large bodies pass through the server piece by piece, and what is refused leaves nothing."""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.store.postgres.bodies import BODY_MAX
from tests.effort import IS_LONG
from tests.examples.system import temporary_folder
from tests.faults.cluster import until
from tests.server.processes import Server, serving
from tests.stopwatch import PATIENCE

MEBI = 1024 * 1024
SIZE = 200 * MEBI
PIECE = bytes(range(256)) * 4096
"""A mebibyte."""
HELLO = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large, path: tried/large}
workflow: [{step: start, tool: {kind: noop}}]
"""


class Kept:
    """A server with an execution in it, and where its bodies are."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.execution_id = server.start(HELLO)

    def route(self, key: str) -> str:
        return f"/api/results/{self.execution_id}/{key}"

    def put(self, key: str, count: int, digest: str | None = None) -> tuple[int, bytes]:
        """Send so many pieces, without their number beforehand."""
        line = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json"}
        if digest is not None:
            headers["Content-Digest"] = f"sha-256=:{digest}:"
        try:
            pieces = (PIECE for _ in range(count))
            line.request("PUT", self.route(key), pieces, headers, encode_chunked=True)
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    def get(self, key: str) -> tuple[int, str, int]:
        """Status, sha256 and size of what comes."""
        line = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        seen, size = hashlib.sha256(), 0
        try:
            line.request("GET", self.route(key))
            answer = line.getresponse()
            while piece := answer.read(MEBI):
                seen.update(piece)
                size += len(piece)
            return answer.status, seen.hexdigest(), size
        finally:
            line.close()

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob(".noetl/*.results/*"))

    def peak(self) -> int:
        """The most memory that the server has had, in bytes."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024


@pytest.fixture
def kept() -> Iterator[Kept]:
    with temporary_folder() as folder, serving(folder) as server:
        yield Kept(server, Path(folder))


def sha256(count: int) -> hashlib._Hash:
    seen = hashlib.sha256()
    for _ in range(count):
        seen.update(PIECE)
    return seen


def test_s30_a_large_body_passes_through_the_server_in_little_memory(kept: Kept):
    count = SIZE // MEBI
    kept.put("first", 2)
    kept.get("first")
    before = kept.peak()

    wanted = sha256(count)
    status, answer = kept.put("large", count, base64.b64encode(wanted.digest()).decode())
    after_put = kept.peak()
    found = kept.get("large")
    after_get = kept.peak()

    assert status == 200, answer
    assert wanted.hexdigest() in answer.decode()
    assert found == (200, wanted.hexdigest(), SIZE)
    assert after_put - before < 16 * MEBI
    assert after_get - before < 24 * MEBI


def test_s30_a_body_that_is_not_what_its_sender_says_leaves_nothing(kept: Kept):
    wrong = base64.b64encode(hashlib.sha256(b"other").digest()).decode()

    refused = [kept.put("wrong", count, wrong)[0] for count in (1, 8)]
    unreadable = kept.put("wrong", 1, "???")[0]

    assert refused == [400, 400]
    assert unreadable == 200  # no digest that we know of
    assert kept.files() == []


def test_s30_a_body_that_is_too_large_or_cut_off_leaves_nothing(kept: Kept):
    head = (
        f"PUT {kept.route('cut')} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {{}}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", kept.server.port), timeout=PATIENCE) as line:
        line.sendall(head.format(1024 * MEBI).encode())
        assert b" 413 " in line.recv(1000)
    with socket.create_connection(("127.0.0.1", kept.server.port), timeout=PATIENCE) as line:
        line.sendall(head.format(100 * MEBI).encode())
        for _ in range(20):
            line.sendall(PIECE)
        until(lambda: kept.files(), "what has come is written")

    until(lambda: not kept.files(), "what was written is gone")
    assert kept.get("cut")[0] == 404


def test_s30_a_body_that_was_damaged_on_disk_is_not_sent(kept: Kept):
    assert kept.put("large", 20)[0] == 200
    [file] = kept.folder.glob(".noetl/*.results/*")
    with file.open("r+b") as body:
        body.seek(15 * MEBI)
        body.write(b"damage")

    reply = kept.server.ask("GET", kept.route("large"))

    assert reply.status == 503
    assert reply.code == "corrupted"


@pytest.mark.long
def test_s30_postgres_refuses_a_body_that_is_too_large_for_it(database_url: str):
    most = BODY_MAX // MEBI
    with (
        temporary_folder() as folder,
        serving(folder, NOETL_DATABASE_URL=database_url) as server,
    ):
        kept = Kept(server, Path(folder))

        assert kept.put("larger", most + 1)[0] == 413
        assert kept.get("larger")[0] == 404
        assert kept.peak() < (most + 300) * MEBI


def test_s30_postgres_reads_a_large_body_piece_by_piece(database_url: str):
    count = 50 if IS_LONG else 36
    with (
        temporary_folder() as folder,
        serving(folder, NOETL_DATABASE_URL=database_url) as server,
    ):
        kept = Kept(server, Path(folder))
        assert kept.put("large", count)[0] == 200
        server.end()
        with serving(folder, NOETL_DATABASE_URL=database_url) as again:
            kept.server = again
            again.get("/health")
            before = kept.peak()
            found = kept.get("large")
            grown = kept.peak() - before

    assert found == (200, sha256(count).hexdigest(), count * MEBI)
    assert grown < 24 * MEBI
