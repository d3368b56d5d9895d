"""Servers that tests of several packages need, one of each for a whole test session."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import empty_database, postgres_running, unused_database, url_of
from tests.tools.services import nats_server

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    *("ui", "faults", "server", "tools", "documents", "cli", "control", "field", "dsl"),
    *("simulation", "store", "templates", "."),
)
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30


def pytest_configure() -> None:
    """Put the files of tests into memory, where waiting for the disk costs nothing.

    Tests kill processes and never cut the power: what a killed process wrote is there either way.
    """
    is_there = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    has_room = is_there and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    if has_room and "TMPDIR" not in os.environ:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
    # Test modules are rewritten and compiled once for all runs, also where Python is told to
    # write nothing beside its sources.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = f"{tempfile.gettempdir()}/noetl-tests-{os.getuid()}"
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    # Thousands of tests are made here, and none of them is garbage: see below.
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was collected out of every later collection of garbage."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: nobody waits for it in the end.

    What hangs is a failure that shows where, also among those that may take long.
    """
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(3600))
    last = len(LONGEST_FIRST)
    rank = {TESTS / name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.parent, last))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    with postgres_running() as server:
        yield server


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    with nats_server() as url:
        yield url


@pytest.fixture
def postgres(postgres_server: Any) -> dict[str, str]:
    """The fields of a credential for an empty database."""
    empty_database(postgres_server, "trial")
    return {"host": str(postgres_server.pgdata), "user": "postgres", "dbname": "trial"}


@pytest.fixture
def new_database_url(postgres_server: Any) -> str:
    """A database without a trace of NoETL, for tests of how one begins."""
    empty_database(postgres_server, "noetl")
    return url_of(postgres_server, "noetl")


@pytest.fixture
def database_url(postgres_server: Any) -> str:
    """A database of NoETL in which nothing has happened yet."""
    return unused_database(postgres_server, "noetl")
