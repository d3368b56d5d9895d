"""Databases of other kinds attached to DuckDB.

DuckDB does that with extensions, which are not in its package: they come from DuckDB's own server,
or lie in the extension directory of the machine. Where neither is so, the task must say it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import duckdb
import pytest

from tests.tools.running import failure, ran


def is_here(extension: str) -> bool:
    """Whether this machine has the extension; it is not fetched for a test."""
    with closing(duckdb.connect()) as connection:
        connection.execute("SET autoinstall_known_extensions = false")
        try:
            connection.execute(f"LOAD {extension}")
        except duckdb.Error:
            return False
    return True


def needs(extension: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not is_here(extension), reason=f"this machine has no DuckDB extension {extension}"
    )


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, n INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1, 5), (2, 7)")
        connection.commit()
    return {"kind": "sqlite", "database": str(path)}


def good(config):
    outcome = ran("duckdb", config)
    assert outcome.is_ok, outcome
    return outcome.result


@needs("sqlite")
def test_a_sqlite_file_is_read_and_written(shop):
    attach = {"attach": {"shop": shop}}
    good({**attach, "command": "INSERT INTO shop.orders VALUES (3, 8)"})

    assert good({**attach, "command": "SELECT sum(n) AS n FROM shop.orders"})["rows"] == [{"n": 20}]
    read_only = {"attach": {"shop": {**shop, "read_only": True}}}
    refused = ran("duckdb", {**read_only, "command": "DELETE FROM shop.orders"})
    assert failure(refused)[0] == "client_error"


@needs("postgres")
def test_postgres_is_read_and_written_beside_a_file(postgres, tmp_path):
    assert ran("postgres", {"auth": postgres, "command": "CREATE TABLE sold (id int, n int)"}).is_ok
    (tmp_path / "new.csv").write_text("id,n\n1,5\n2,7\n")
    config = {
        "attach": {"pg": {"kind": "postgres", "auth": postgres}},
        "files": {"new": str(tmp_path / "new.csv")},
    }
    good({**config, "command": "INSERT INTO pg.sold SELECT * FROM new"})

    assert good({**config, "command": "SELECT sum(n)::INT AS n FROM pg.sold"})["rows"] == [
        {"n": 12}
    ]


@pytest.mark.skipif(is_here("sqlite"), reason="this machine has the extension")
def test_an_extension_that_is_not_here_is_named_with_what_to_do(shop):
    kind, message = failure(ran("duckdb", {"attach": {"shop": shop}, "command": "SELECT 1"}))

    assert kind == "not_found"
    assert '"sqlite"' in message
    assert "INSTALL sqlite" in message
