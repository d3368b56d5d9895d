"""The database of the examples: `running.py` puts the tables there that one of them names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers import empty_database


@pytest.fixture(scope="session")
def postgres(postgres_server: Any) -> dict[str, str]:
    """The fields of a credential for it."""
    return made_database(postgres_server)


def made_database(server: Any) -> dict[str, str]:
    empty_database(server, "documents")
    return {"host": str(server.pgdata), "user": "postgres", "dbname": "documents"}
