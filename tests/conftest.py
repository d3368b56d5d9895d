"""Servers that tests of several packages need, one of each for a whole test session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.servers import postgres_running, url_of
from tests.tools.services import nats_server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What hangs is a failure that shows where, also among those that may take long."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(3600))


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
    postgres_server.psql("DROP DATABASE IF EXISTS trial WITH (FORCE);")
    postgres_server.psql("CREATE DATABASE trial;")
    return {"host": str(postgres_server.pgdata), "user": "postgres", "dbname": "trial"}


@pytest.fixture
def database_url(postgres_server: Any) -> str:
    """A database without a trace of NoETL."""
    with psycopg.connect(url_of(postgres_server, "postgres"), autocommit=True) as db:
        db.execute("DROP DATABASE IF EXISTS noetl WITH (FORCE)")
        db.execute("CREATE DATABASE noetl")
    return url_of(postgres_server, "noetl")
