"""What tests with processes share: a place for them, on either store, and a counter of effects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.system import temporary_folder
from tests.faults.cluster import Cluster, Effects, Served, effects
from tests.servers import empty_database, url_of


@pytest.fixture(params=["sqlite", "postgres"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """No process yet, on each store."""
    is_shared = request.param == "postgres"
    made = Cluster(tmp_path, request.getfixturevalue("database_url") if is_shared else None)
    yield made
    made.end()


@pytest.fixture
def counted() -> Iterator[Effects]:
    with effects() as found:
        yield found


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server and two workers for all tests of a module, on each store."""
    url = fresh_database(request) if request.param == "postgres" else None
    with temporary_folder() as folder, effects() as found:
        cluster = Cluster(folder, url, patient=True)
        try:
            server = cluster.server()
            for _ in range(2):
                cluster.worker(server)
            yield Served(cluster, server, found)
        finally:
            cluster.end()


def fresh_database(request: pytest.FixtureRequest) -> str:
    postgres: Any = request.getfixturevalue("postgres_server")
    empty_database(postgres, "served")
    return url_of(postgres, "served")
