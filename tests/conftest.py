"""Servers that tests of several packages need, one of each for a whole test session."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies

from noetl.wiring import look_rarely_for_cycles
from tests.forked import make_once
from tests.servers import empty_database, postgres_running, unused_database, url_of
from tests.tools.services import nats_server

pytest_plugins = ["tests.processes"]
TESTS = Path(__file__).parent
LONGEST_FIRST = (
    *("ui", "documents", "faults", "simulation", "server", "templates", "tools", "field"),
    *("control", "cli", "worker", "behaviour", "examples", "engine", "."),
)
"""Folders with files that take long, those that wait among those that compute; then the others,
whose files are short."""
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
OF_RUN = "noetl-run-"
"""What a run of tests leaves lies in a directory with this name and the number of its process."""


def pytest_configure() -> None:
    _choose_places()
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]
    # What is told to hang up hangs up, also where `nohup` began the tests.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Thousands of tests are made here, and none of them is garbage: see below.
    gc.disable()


def _choose_places() -> None:
    """Put the files of tests into memory, where waiting for the disk costs nothing, and into one
    directory that goes when they end.

    Tests kill processes and never cut the power: what a killed process wrote is there either way,
    and what it would have cleared away is left.
    """
    is_there = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    has_room = is_there and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    place = str(MEMORY) if has_room and "TMPDIR" not in os.environ else tempfile.gettempdir()
    for left in Path(place).glob(f"{OF_RUN}*"):
        if not Path("/proc", left.name.removeprefix(OF_RUN)).exists():  # It was killed.
            shutil.rmtree(left, ignore_errors=True)
    own = Path(place, f"{OF_RUN}{os.getpid()}")
    own.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    # `tmp_path` of a test that failed stays, to be looked at.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", place)
    # Test modules are rewritten and compiled once for all runs, also where Python is told to
    # write nothing beside its sources.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = f"{place}/noetl-tests-{os.getuid()}"


def pytest_unconfigure() -> None:
    own = Path(tempfile.gettempdir())
    if own.name == f"{OF_RUN}{os.getpid()}":
        shutil.rmtree(own, ignore_errors=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what was collected out of every later collection of garbage."""
    if session.config.option.processes > 1:
        # Once for all of them: the first text on a new machine makes Hypothesis try each character.
        strategies.text().validate()
        make_once()
    gc.enable()
    gc.collect()
    gc.freeze()
    look_rarely_for_cycles()


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
