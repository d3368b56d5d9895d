"""T21: the disk is full: new work is refused, nothing is half written, and when there is room
again everything goes on.

The disk is a small one of its own: for SQLite it holds the whole database, for PostgreSQL the
tables of ours. Where this process may not mount one, there is nothing to test with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.cluster import Cluster, playbook, until
from tests.server.processes import Server
from tests.servers import url_of

DISK = "48m"
STEPS = playbook(
    "faults/steps",
    """
- step: start
  spec: {eval_mode: on_event}
  case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
- {step: end, tool: {kind: noop, result: "{{ workload.text | length }}"}}
""",
    '{text: ""}',
)
LONG = "x" * 60_000


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small one, where whoever runs the database may look, too."""
    if shutil.which("mount") is None:
        pytest.skip("nothing can be mounted here")
    folder = Path(tempfile.mkdtemp(prefix="noetl-disk-"))
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0755", "noetl-test", str(folder)]
    mounted = subprocess.run(words, capture_output=True, check=False)
    try:
        folder.chmod(0o755)
        if mounted.returncode:
            pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode()}")
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)
    finally:
        folder.rmdir()


@pytest.fixture(params=["sqlite", "postgres"])
def crowded(request: pytest.FixtureRequest, tmp_path: Path, disk: Path) -> Iterator[Cluster]:
    """A cluster whose database is on the small disk."""
    if request.param == "sqlite":
        cluster = Cluster(tmp_path, f"sqlite:///{disk}/noetl.db", patient=True)
    else:
        cluster = Cluster(tmp_path, database_on(disk, request), patient=True)
    yield cluster
    cluster.end()
    if request.param == "postgres":
        forget_database(request)


def database_on(disk: Path, request: pytest.FixtureRequest) -> str:
    postgres: Any = request.getfixturevalue("postgres_server")
    folder = disk / "tables"
    folder.mkdir()
    # Tables belong to whom the database runs as.
    owner = postgres.pgdata.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    with psycopg.connect(url_of(postgres, "postgres"), autocommit=True) as db:
        db.execute(f"CREATE TABLESPACE small LOCATION '{folder}'".encode())
        db.execute("CREATE DATABASE crowded TABLESPACE small")
    return url_of(postgres, "crowded")


def forget_database(request: pytest.FixtureRequest) -> None:
    postgres: Any = request.getfixturevalue("postgres_server")
    with psycopg.connect(url_of(postgres, "postgres"), autocommit=True) as db:
        db.execute("DROP DATABASE crowded WITH (FORCE)")
        db.execute("DROP TABLESPACE small")


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(file, size)
    return filler


def write_for_ever(file: RawIOBase, size: int) -> None:
    while file.write(b"x" * size):
        pass


def asked_to_start(server: Server) -> int:
    wanted = {"path": "faults/steps", "workload": {"text": LONG}}
    return server.ask("POST", "/api/execute", wanted).status


def test_t21_a_full_disk_refuses_new_work_and_loses_none(crowded: Cluster, disk: Path):
    server = crowded.server()
    crowded.worker(server)
    server.post("/api/catalog/register", {"content": STEPS})
    wanted = {"path": "faults/steps", "workload": {"text": LONG}}
    ids = [server.post("/api/execute", wanted)["execution_id"] for _ in range(20)]
    filler = fill(disk)

    until(lambda: asked_to_start(server) == 503, "a full disk refuses nothing")
    health = server.ask("GET", "/health")
    assert (health.status, health.json["status"]) == (503, "failing")
    assert "disk of the database is full" in health.json["reason"]
    goes = [server.ask("POST", f"/api/executions/{one}/events", {"name": "go"}) for one in ids]
    refused = [one for one, reply in zip(ids, goes, strict=True) if reply.status != 200]
    assert {reply.status for reply in goes} <= {200, 503}
    assert server.ask("GET", f"/api/executions/{ids[0]}/status").status == 200
    filler.unlink()

    until(lambda: server.ask("GET", "/health").status == 200, "room again, and health is bad")
    until(lambda: asked_to_start(server) == 200, "room again, and still nothing is taken")
    for one in refused:
        server.post(f"/api/executions/{one}/events", {"name": "go"})
    for one in ids:
        document = server.ended(one)
        assert (document["status"], document["result"]) == ("COMPLETED", len(LONG))
        names = [event["name"] for event in server.events(one)]
        assert names.count("message.received") == 1
    server.terminate()
    assert crowded.check() == "", "what is stored is whole"
