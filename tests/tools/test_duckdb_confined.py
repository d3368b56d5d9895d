"""Extensions for databases open files and connections past DuckDB's own settings.

No statement may use them to get where the rules of the worker do not allow.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import duckdb
import pytest

from noetl.tools.duckdb import extensions
from noetl.tools.rules import Rules
from tests.effort import later
from tests.tools.running import failure, ran

ATTACHED_ONLY = {
    *("sqlite_query", "postgres_query", "postgres_execute", "postgres_configure_pool"),
    *("pg_clear_cache", "read_postgres_binary", "mysql_query", "mysql_execute"),
    *("mysql_clear_cache", "mysql_debug_execution_plan", "mysql_explain_federated"),
}
"""Table functions of the extensions that open nothing new, or files as DuckDB itself does."""
SCAN = "sqlite_scan('SECRET', 't')"
STATEMENTS = {
    "scan": f"FROM {SCAN}",
    "quoted": "FROM system.main.\"SQLite_Scan\"('SECRET', 't')",
    "behind a comment": f"SELECT 1 AS a -- \rUNION ALL FROM {SCAN}",
    "attach": "ATTACH 'SECRET' AS x (TYPE sqlite)",
    "attach by prefix": "ATTACH 'sqlite:SECRET' AS x",
    "attach by function": "CALL sqlite_attach('SECRET')",
    "text": "FROM query('FROM sqlite_' || 'scan(''SECRET'', ''t'')')",
    "text, spaced": "FROM \"query\" /* */ ('SELECT 1')",
    "json": "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "view": f"CREATE VIEW v AS FROM {SCAN}; FROM v",
    "macro": f"CREATE MACRO m() AS TABLE FROM {SCAN}; FROM m()",
    "prepared": f"PREPARE p AS FROM {SCAN}; EXECUTE p",
    "server": "FROM postgres_scan('host=169.254.169.254', 'public', 't')",
    "server by function": "CALL postgres_attach('host=169.254.169.254')",
    "attach server": "ATTACH 'host=169.254.169.254' AS x (TYPE postgres)",
    "load": "LOAD postgres",
    "install": "INSTALL postgres",
    "explained": "EXPLAIN ANALYZE LOAD postgres",
}


def table_in(path, *statements):
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for one in ("CREATE TABLE t (a)", "INSERT INTO t VALUES ('canary')", *statements):
            connection.execute(one)
        connection.commit()


@pytest.fixture
def places(tmp_path):
    """A SQLite file in the directory that tasks may use, and one beside it."""
    table_in(tmp_path / "secret.db")
    table_in(tmp_path / "root" / "mine.db")
    return tmp_path


def tried(config, places, *, confined=True):
    rules = Rules(file_root=str(places / "root")) if confined else Rules()
    attach = {"mine": {"kind": "sqlite", "database": str(places / "root" / "mine.db")}}
    config = {"attach": attach, "extensions": ["postgres"], **config}
    return ran("duckdb", config, settings={"rules": rules})


@pytest.mark.parametrize("confined", [True, *later([False])])
@pytest.mark.parametrize("name", STATEMENTS)
def test_s09_s14_statements_open_nothing_themselves(name, confined, places):
    check_refused(name, confined, places)


@pytest.mark.parametrize("name", ["scan", "attach", "load"])
def test_s09_s14_statements_open_nothing_themselves_where_every_directory_is_allowed(name, places):
    check_refused(name, False, places)


def check_refused(name, confined, places):
    statement = STATEMENTS[name]
    text = statement.replace("SECRET", str(places / "secret.db"))
    # Loading an extension takes longer than all the rest: only where the statement is about it.
    needed = ["postgres"] if "postgres" in statement else []
    outcome = tried({"command": text, "extensions": needed}, places, confined=confined)

    assert failure(outcome)[0] == "client_error"
    assert "may not" in failure(outcome)[1]
    assert "canary" not in repr(outcome)


def test_s09_an_attached_file_is_read_and_written_inside_the_allowed_directory(places):
    outcome = tried({"commands": ["INSERT INTO mine.t VALUES ('b')", "FROM mine.t"]}, places)

    assert outcome.is_ok, outcome
    assert len(outcome.result["rows"]) == 2


def test_s09_a_file_outside_of_the_allowed_directory_is_not_attached(places):
    attach = {"x": {"kind": "sqlite", "database": str(places / "secret.db")}}

    assert failure(tried({"attach": attach, "command": "FROM x.t"}, places))[0] == "auth"


def test_s09_a_view_in_a_sqlite_file_leads_nowhere(places):
    secret = places / "secret.db"
    table_in(
        places / "root" / "other.db", f"CREATE VIEW v AS SELECT * FROM sqlite_scan('{secret}', 't')"
    )
    attach = {"x": {"kind": "sqlite", "database": str(places / "root" / "other.db")}}
    kind, message = failure(tried({"attach": attach, "command": "FROM x.v"}, places))

    assert kind == "client_error"
    assert '"v" in the database "x"' in message


def test_s09_views_and_macros_in_a_duckdb_file_lead_nowhere(places):
    for name, what in {
        "view": f"VIEW v AS FROM sqlite_scan('{places / 'secret.db'}', 't')",
        "macro": f"MACRO v() AS TABLE FROM sqlite_scan('{places / 'secret.db'}', 't')",
    }.items():
        database = places / "root" / f"{name}.duckdb"
        with closing(duckdb.connect(str(database))) as connection:
            extensions.load(connection, "sqlite")
            connection.execute(f"CREATE {what}")
        opened = tried({"database": str(database), "command": "SELECT 1"}, places)
        attach = {"x": {"kind": "duckdb", "database": str(database)}}
        attached = tried(
            {"attach": attach, "extensions": ["sqlite"], "command": "SELECT 1"}, places
        )

        assert failure(opened)[0] == failure(attached)[0] == "client_error"


def test_s09_a_database_that_is_imported_leads_nowhere(places):
    dump = places / "root" / "dump"
    dump.mkdir()
    (dump / "schema.sql").write_text(f"ATTACH '{places / 'secret.db'}' AS x (TYPE sqlite);")
    (dump / "load.sql").write_text("")
    outcome = tried({"commands": [f"IMPORT DATABASE '{dump}'"]}, places)

    assert "may not ATTACH" in failure(outcome)[1]


def test_every_function_of_the_extensions_that_opens_something_is_known():
    """A new version may bring one; it must be looked at before it is allowed."""
    listed = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'table'"
    with closing(duckdb.connect()) as connection:
        before = set(connection.execute(listed).fetchall())
        for extension in ("sqlite", "postgres", "mysql"):
            extensions.load(connection, extension)
        brought = {name for (name,) in set(connection.execute(listed).fetchall()) - before}

    assert {name for name in brought if not extensions.OPENS.fullmatch(name)} == ATTACHED_ONLY
