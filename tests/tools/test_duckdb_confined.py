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
from noetl.tools.sql.duckdb import OPENS
from tests.effort import later
from tests.tools.running import beside, failure, held, on_bench, ran

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
    "log": "CALL enable_logging('QueryLog')",
    "log, quoted": 'FROM "Enable_Logging"()',
    "log by setting": "SET GLOBAL enable_logging = true",
    "log of HTTP, which is of all": "SET enable_http_logging = true",
    "log into a file": "SET log_query_path = 'SECRET.log'",
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
    """Where only a directory is allowed, a task cannot use a file that others have open."""
    rules = Rules(file_root=str(places / "root")) if confined else Rules()
    attach = {"mine": {"kind": "sqlite", "database": str(places / "root" / "mine.db")}}
    config = {"attach": attach, "extensions": ["postgres"], **config}
    return ran("duckdb", config, settings={"rules": rules})


KEPT_APART = ["scan", "attach", "load", "server"]


@pytest.mark.parametrize("name", STATEMENTS)
def test_s14_statements_open_nothing_themselves(name, places, loaded):
    check_refused(name, places, confined=False, **loaded)


@pytest.mark.parametrize(
    "name", [*KEPT_APART, *later(n for n in STATEMENTS if n not in KEPT_APART)]
)
def test_s09_statements_open_nothing_themselves_outside_of_the_allowed_directory(name, places):
    check_refused(name, places, confined=True)


def check_refused(name, places, *, confined, **place):
    statement = STATEMENTS[name]
    text = statement.replace("SECRET", str(places / "secret.db"))
    # Loading an extension takes longer than all the rest: only where the statement is about it.
    needed = ["postgres"] if "postgres" in statement else []
    config = {**place, "command": text, "extensions": needed}
    outcome = tried(config, places, confined=confined)

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


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """Makes a file with a view or macro, also with one that needs an extension."""
    with closing(duckdb.connect()) as connection:
        extensions.load(connection, "sqlite")

        def make(path, what):
            connection.execute(f"ATTACH '{path}' AS made; USE made")
            connection.execute(f"CREATE {what}")
            connection.execute("USE memory; DETACH made")
            return str(path)

        yield make


def test_s09_views_and_macros_in_a_duckdb_file_lead_nowhere(places, evil):
    for name, what in {
        "view": f"VIEW v AS FROM sqlite_scan('{places / 'secret.db'}', 't')",
        "macro": f"MACRO v() AS TABLE FROM sqlite_scan('{places / 'secret.db'}', 't')",
    }.items():
        database = evil(places / "root" / f"{name}.duckdb", what)
        opened = tried({"database": database, "extensions": [], "command": "SELECT 1"}, places)
        attach = {"x": {"kind": "duckdb", "database": database}}
        attached = tried(
            {"attach": attach, "extensions": ["sqlite"], "command": "SELECT 1"}, places
        )

        assert failure(opened)[0] == failure(attached)[0] == "client_error"


def macro(secret):
    """A macro that reads another file by an extension."""
    return f"MACRO evil() AS TABLE FROM sqlite_scan('{secret}', 't')"


@pytest.mark.parametrize(
    "config",
    [
        {"settings": {"autoload_known_extensions": True}},
        {"command": "SET autoload_known_extensions = true; FROM evil()"},
        {"command": "RESET autoload_known_extensions; FROM evil()"},
        {"command": "IMPORT DATABASE 'somewhere'; FROM evil()"},
    ],
    ids=["setting", "set", "reset", "import"],
)
def test_s09_a_macro_is_looked_at_where_duckdb_might_load_its_extension_by_itself(
    config, places, evil
):
    database = evil(places / "mine.duckdb", macro(places / "secret.db"))
    outcome = ran("duckdb", {"database": database, "command": "FROM evil()", **config})

    assert failure(outcome)[0] == "client_error"
    assert '"evil" in the database "mine" may not use sqlite_scan' in failure(outcome)[1]


@pytest.mark.parametrize("name", ["enable_logging", "enable_http_logging", "LOG_query_path"])
def test_s27_a_setting_shows_no_statements_of_other_tasks(name, places):
    config = {"settings": {name: str(places / "log")}, "command": "SELECT 1"}

    assert "settings may not use" in failure(ran("duckdb", config))[1]
    assert not (places / "log").exists()


def test_a_macro_that_needs_no_extension_is_judged_only_where_one_is_loaded(places, evil):
    what = "MACRO counted(x) AS TABLE SELECT * FROM query('SELECT ' || x)"
    config = {"database": evil(places / "mine.duckdb", what), "command": "SELECT * FROM counted(7)"}

    assert ran("duckdb", config).result["rows"] == [{"7": 7}]
    kind, message = failure(ran("duckdb", {**config, "extensions": ["sqlite"]}))
    assert (kind, '"counted"' in message) == ("client_error", True)


def test_s14_an_extension_is_not_loaded_where_a_task_already_has_a_macro_for_it(places, evil):
    database = evil(places / "mine.duckdb", macro(places / "secret.db"))
    plain = {"database": database, "commands": ["FROM evil()"]}
    extended = {"database": database, "extensions": ["sqlite"], "commands": ["SELECT 1"]}
    plainly, refused = on_bench(lambda bench: beside(bench, places, plain, extended))

    assert "may not use sqlite_scan" in failure(refused)[1]
    assert failure(plainly)[0] == "client_error"
    assert "canary" not in repr(plainly)


def test_s14_a_macro_is_refused_where_another_task_has_loaded_its_extension(places, evil):
    database = str(places / "mine.duckdb")
    other = evil(places / "other.duckdb", macro(places / "secret.db"))
    extended = {"database": database, "extensions": ["sqlite"], "commands": ["SELECT 1"]}
    attach = {"x": {"kind": "duckdb", "database": other}}
    plain = {"database": database, "attach": attach, "commands": ["FROM x.evil()"]}
    done, refused = on_bench(lambda bench: beside(bench, places, extended, plain))

    assert done.is_ok, done
    assert '"evil" in the database "x" may not use sqlite_scan' in failure(refused)[1]
    assert "canary" not in repr(refused)


def test_s14_a_transfer_uses_no_extension_that_another_task_has_loaded(places, evil):
    database = evil(places / "mine.duckdb", macro(places / "secret.db"))
    empty = str(places / "empty.duckdb")
    extended = {"database": empty, "extensions": ["sqlite"], "commands": ["SELECT 1"]}
    scan = f"FROM sqlite_scan('{places / 'secret.db'}', 't')"
    target = {"kind": "file", "path": str(places / "out.csv")}

    async def copied(bench, source):
        return await bench.run("transfer", {"source": source, "target": target})

    async def tasks(bench):
        async with held(bench, places, extended) as task:
            refused = await copied(bench, {"kind": "duckdb", "database": empty, "command": scan})
        alone = await copied(
            bench, {"kind": "duckdb", "database": database, "command": "FROM evil()"}
        )
        return await task, refused, alone

    done, refused, alone = on_bench(tasks)

    assert done.is_ok, done
    assert "may not use sqlite_scan. Name the database under `attach` of a" in failure(refused)[1]
    assert not alone.is_ok
    assert not (places / "out.csv").exists()


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

    assert {name for name in brought if not OPENS.fullmatch(name)} == ATTACHED_ONLY
