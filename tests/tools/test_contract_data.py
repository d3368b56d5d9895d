"""The kinds that work with tables and files keep the contract of `noetl.tools.testing`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from noetl.model import refs
from noetl.tools import artifact, duckdb, postgres, sqlalchemy, sqlite, transfer
from noetl.tools.testing import CANARY, SEAL, Trial, Trials
from tests.tools import test_duckdb, test_failures, test_table_files
from tests.tools.canary_system import Searched

NOWHERE = {"host": "127.0.0.1", "port": 1, "user": "u", "password": CANARY}
LATE = {"timeout": "200ms"}
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
CHECKED = "CREATE TABLE checked (n int CHECK (n > 0)); INSERT INTO checked VALUES (0)"
DEADLOCK = "DO 'BEGIN RAISE EXCEPTION USING ERRCODE = ''deadlock_detected''; END'"


def writing(rows: Any) -> dict[str, Any]:
    """A task that makes a table and writes these rows."""
    return {"command": "CREATE TABLE made (n int)", "table": "made", "rows": rows}


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A file that is not what its name says."""
    path = tmp_path / "broken.json"
    path.write_text('{"a": ')
    return str(path)


class TestPostgres(Searched):
    tool = postgres.TOOL

    @pytest.fixture
    def trials(self, postgres, broken):
        def task(fails: Any, config: dict[str, Any], **fields: Any) -> Trial:
            credentials = {"db": {**postgres, **fields}}
            return Trial({**config, "auth": "db"}, credentials=credentials, fails=fails)

        asked = {"command": "SELECT 1"}
        endless = {"command": "SELECT pg_sleep(3600)"}
        return Trials(
            good=task(None, asked),
            failing=(
                task("auth", asked, user="locked", password=CANARY),
                task("db_connection", asked, **NOWHERE),
                task("client_error", {"command": "SELEC 1"}),
                task("db_constraint", {"command": CHECKED}),
                task("db_deadlock", {"command": DEADLOCK}),
                task("db_timeout", endless | LATE),
                task("schema", writing([{"strange": 1}])),
                task("not_found", writing("/no/such.csv")),
                task("parse", writing(broken)),
            ),
            endless=task(None, endless),
        )


class TestSqlite(Searched):
    tool = sqlite.TOOL

    @pytest.fixture
    def trials(self, tmp_path, broken):
        place = {"database": str(tmp_path / "t.db")}
        return Trials(
            good=Trial({**place, "command": "SELECT 1"}),
            failing=(
                Trial({"auth": "nobody", "command": "SELECT 1"}, fails="auth"),
                Trial({"database": broken, "command": "SELECT 1 FROM t"}, fails="db_connection"),
                Trial({**place, "command": "SELEC 1"}, fails="client_error"),
                Trial({**place, "command": CHECKED}, fails="db_constraint"),
                Trial({**place, "command": ENDLESS, **LATE}, fails="db_timeout"),
                Trial({**place, **writing([{"strange": 1}])}, fails="schema"),
                Trial({**place, **writing("/no/such.csv")}, fails="not_found"),
                Trial({**place, **writing(broken)}, fails="parse"),
            ),
            endless=Trial({**place, "command": ENDLESS}),
        )


class TestDuckDb(Searched):
    tool = duckdb.TOOL
    shown_by: ClassVar = {
        "db_deadlock": test_duckdb.test_two_tasks_that_change_one_row_at_once_are_told_apart
    }

    @pytest.fixture
    def trials(self, broken, tmp_path):
        (tmp_path / "no.duckdb").write_text("no database " * 1000)
        wrong = {"database": str(tmp_path / "no.duckdb"), "command": "SELECT 1"}
        slow = (
            "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range % 7 = b.range"
        )
        return Trials(
            good=Trial({"command": "SELECT 1"}),
            failing=(
                Trial({"auth": "nobody", "command": "SELECT 1"}, fails="auth"),
                Trial(wrong, fails="db_connection"),
                Trial({"command": "SELEC 1"}, fails="client_error"),
                Trial({"command": CHECKED}, fails="db_constraint"),
                Trial({"command": slow, **LATE}, fails="db_timeout"),
                Trial(writing([{"strange": 1}]), fails="schema"),
                Trial(writing("/no/such.csv"), fails="not_found"),
                Trial(writing(broken), fails="parse"),
            ),
            endless=Trial({"command": slow}),
        )


class TestSql(Searched):
    """On SQLite, and on PostgreSQL for what SQLite cannot show."""

    tool = sqlalchemy.TOOLS[0]

    @pytest.fixture
    def trials(self, tmp_path, broken, postgres):
        def at(url: str, fails: Any, config: dict[str, Any]) -> Trial:
            return Trial({**config, "auth": "db"}, credentials={"db": {"url": url}}, fails=fails)

        file = f"sqlite:///{tmp_path}/t.db"
        server = f"/trial?host={postgres['host']}"
        asked = {"command": "SELECT 1"}
        return Trials(
            good=at(file, None, asked),
            failing=(
                at(f"postgresql+psycopg://locked:{CANARY}@{server}", "auth", asked),
                at(f"postgresql+psycopg://u:{CANARY}@127.0.0.1:1/d", "db_connection", asked),
                at(f"postgresql+psycopg://postgres@{server}", "db_deadlock", {"command": DEADLOCK}),
                at(f"nosuch://u:{CANARY}@h/d", "not_found", asked),
                at(file, "client_error", {"command": "SELEC 1"}),
                at(file, "db_constraint", {"command": CHECKED}),
                at(file, "db_timeout", {"command": ENDLESS, **LATE}),
                at(file, "schema", writing([{"strange": 1}])),
                at(file, "parse", writing(broken)),
            ),
            endless=at(file, None, {"command": ENDLESS}),
        )


BY_NAME = {tool.kind: tool for tool in sqlalchemy.TOOLS}


class TestMysql(TestSql):
    """A name of kind sql, like those below, which prove it again. MariaDB itself is asked in
    `test_sqlalchemy.py`."""

    tool = BY_NAME["mysql"]


@pytest.mark.long
class TestSnowflake(TestSql):
    tool = BY_NAME["snowflake"]


@pytest.mark.long
class TestClickhouse(TestSql):
    tool = BY_NAME["clickhouse"]


@pytest.mark.long
class TestBigquery(TestSql):
    tool = BY_NAME["bigquery"]


@pytest.mark.long
class TestMssql(TestSql):
    tool = BY_NAME["mssql"]


@pytest.mark.long
class TestOracle(TestSql):
    tool = BY_NAME["oracle"]


REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION USING ERRCODE = TG_ARGV[0]; END $$;
CREATE TABLE db_constraint (n int CHECK (n > 1));
CREATE TABLE db_deadlock (n int);
CREATE TRIGGER refused BEFORE INSERT ON db_deadlock FOR EACH ROW EXECUTE FUNCTION refuse('40P01');
CREATE TABLE db_timeout (n int);
CREATE TRIGGER refused BEFORE INSERT ON db_timeout FOR EACH ROW EXECUTE FUNCTION refuse('55P03');
"""
"""A table for each way in which a database refuses a record."""


class TestTransfer(Searched):
    tool = transfer.TOOL

    @pytest.fixture
    def trials(self, tmp_path, silent, broken, postgres):
        with psycopg.connect(**postgres) as connection:
            connection.execute(REFUSING)
        (tmp_path / "a.csv").write_text("n\n1\n")
        source = {"kind": "file", "path": str(tmp_path / "a.csv")}
        target = {"kind": "file", "path": str(tmp_path / "b.csv")}
        known = {"key": {"token": CANARY}, "db": postgres, "nowhere": NOWHERE}

        def reading(fails: Any, **source: Any) -> Trial:
            return Trial({"source": source, "target": target}, {}, known, fails)

        def web(fails: Any, path: str, **more: Any) -> Trial:
            return reading(fails, kind="http", url=f"{silent}{path}", auth="key", **more)

        def refused(fails: Any) -> Trial:
            table = {"kind": "postgres", "auth": "db", "table": fails}
            return Trial({"source": source, "target": table}, {}, known, fails)

        return Trials(
            good=Trial({"source": source, "target": target}),
            failing=(
                web("auth", "/403"),
                web("client_error", "/400"),
                web("not_found", "/404"),
                web("rate_limit", "/429"),
                web("server_error", "/503"),
                web("schema", "/ok", records="nowhere"),
                reading("connection", kind="http", url="http://127.0.0.1:1", auth="key"),
                reading("db_connection", kind="postgres", auth="nowhere", table="t"),
                reading("parse", kind="file", path=broken),
                refused("db_constraint"),
                refused("db_deadlock"),
                refused("db_timeout"),
            ),
            endless=web(None, "/wait"),
        )


class TestArtifact(Searched):
    tool = artifact.TOOL
    shown_by: ClassVar = {
        "parse": test_table_files.test_a_file_that_is_not_what_was_written_is_not_handed_out,
        "schema": test_failures.test_a_file_that_cannot_be_a_value_is_a_schema_error_of_artifact,
    }

    @pytest.fixture
    def trials(self):
        # Nothing is kept in a trial: what is not a reference is its own value.
        known = refs.reference("1", "00c0ffee", b"1", 1, SEAL)
        return Trials(
            good=Trial({"ref": known}),
            failing=(
                Trial({"ref": {"no": "reference"}}, fails="client_error"),
                Trial({"ref": "00c0ffee"}, fails="not_found"),
            ),
        )
