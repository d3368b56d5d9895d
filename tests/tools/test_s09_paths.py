"""S9: no setting of any kind leads out of the directory that the operator allows."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from noetl.model.outcome import Outcome
from noetl.tools.registry import BUILT_IN, tools
from noetl.tools.rules import Rules
from tests.tools.running import Bench, failure, on_bench, ran
from tests.tools.test_shapes import help_of, structs_of

INSIDE = "what-nobody-may-read"
WAYS = ("absolute", "dots", "link", "address", "encoded address")
OUT_OF_IT = re.compile(r"lies outside|leads out|is not a file|is not allowed")
FILE = re.compile(r"\b(files?|path|director(y|ies)|script)\b", re.IGNORECASE)
TABLE = {"auth": "POSTGRES", "table": "t"}
CSV = {"kind": "file", "path": "ROOT/in.csv"}
OUT = {"kind": "file", "path": "ROOT/out.csv"}
FORM = {"url": "WEB/echo", "method": "POST"}

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Python.script": ("python", {"script": "PLACE"}),
    "Postgres.script": ("postgres", {"auth": "POSTGRES", "script": "PLACE"}),
    "DuckDb.script": ("duckdb", {"script": "PLACE"}),
    "Sqlite.script": ("sqlite", {"script": "PLACE"}),
    "Sql.script": ("sql", {"url": "sqlite://", "script": "PLACE"}),
    "Http.files": ("http", {**FORM, "files": {"f": "PLACE"}}),
    "FilePart.path": ("http", {**FORM, "files": {"f": {"path": "PLACE"}}}),
    "Http.ca": ("http", {"url": "WEB/echo", "ca": "PLACE"}),
    "ClientCertificate.cert": ("http", {"url": "WEB/echo", "client_cert": {"cert": "PLACE"}}),
    "Http.download": ("http", {"url": "WEB/echo", "download": "PLACE"}),
    "Postgres.rows": ("postgres", {**TABLE, "rows": "PLACE"}),
    "Copy.source": ("postgres", {**TABLE, "copy": {"source": "PLACE"}}),
    "Copy.target": ("postgres", {**TABLE, "copy": {"target": "PLACE"}}),
    "DuckDb.rows": ("duckdb", {"table": "t", "rows": "PLACE"}),
    "DuckDb.database": ("duckdb", {"database": "PLACE", "command": "SELECT * FROM t"}),
    "DuckDb.files": ("duckdb", {"files": {"t": "PLACE"}, "command": "SELECT * FROM t"}),
    "Attach.database": (
        "duckdb",
        {"attach": {"x": {"kind": "duckdb", "database": "PLACE"}}, "command": "SELECT 1 FROM x.t"},
    ),
    "a query of DuckDB": ("duckdb", {"command": "SELECT * FROM read_text('PLACE')"}),
    "a COPY of DuckDB": ("duckdb", {"command": "COPY (SELECT 1) TO 'PLACE'"}),
    "Sqlite.rows": ("sqlite", {"table": "t", "rows": "PLACE"}),
    "Sqlite.database": ("sqlite", {"database": "PLACE", "command": "SELECT * FROM t"}),
    "Sqlite.attach": ("sqlite", {"attach": {"x": "PLACE"}, "command": "SELECT * FROM x.t"}),
    "an ATTACH of SQLite": ("sqlite", {"command": "ATTACH 'PLACE' AS x; SELECT * FROM x.t"}),
    "Sql.rows": ("sql", {"url": "sqlite://", "table": "t", "rows": "PLACE"}),
    "Sql.url": ("sql", {"url": "sqlite:///PLACE", "command": "SELECT * FROM t"}),
    "an ATTACH of kind sql": (
        "sql",
        {"url": "sqlite://", "command": "ATTACH 'PLACE' AS x; SELECT * FROM x.t"},
    ),
    "Shell.cwd": ("shell", {"cmd": "cat *", "cwd": "PLACE"}),
    "Mcp.cwd": ("mcp", {"command": ["cat"], "cwd": "PLACE", "tool_name": "x"}),
    "Mount.source": (
        "container",
        {"image": "x", "runtime": "docker", "mounts": [{"source": "PLACE", "target": "/x"}]},
    ),
    "InFile.path": ("transfer", {"source": {"kind": "file", "path": "PLACE"}, "target": OUT}),
    "a target's path": ("transfer", {"source": CSV, "target": {"kind": "file", "path": "PLACE"}}),
    "FromSqlite.database": (
        "transfer",
        {"source": {"kind": "sqlite", "database": "PLACE", "table": "t"}, "target": OUT},
    ),
    "ToSqlite.database": (
        "transfer",
        {"source": CSV, "target": {"kind": "sqlite", "database": "PLACE", "table": "t"}},
    ),
    "FromDuckDb.database": (
        "transfer",
        {"source": {"kind": "duckdb", "database": "PLACE", "table": "t"}, "target": OUT},
    ),
    "ToDuckDb.database": (
        "transfer",
        {"source": CSV, "target": {"kind": "duckdb", "database": "PLACE", "table": "t"}},
    ),
    "Store.url": ("store", {"op": "list", "url": "file://PLACE"}),
    "Store.file": (
        "store",
        {"op": "put", "url": "file://ROOT", "key": "k", "file": "PLACE"},
    ),
    "Store.key": ("store", {"op": "get", "url": "file://ROOT", "key": "PLACE"}),
}
"""Each setting that says where a file is, in a task whose file is PLACE; and SQL that names one."""
SQL = {name for name in SETTINGS if "." not in name and "path" not in name}
NO_FILE_OF_THE_WORKER = {
    "Python.auth",
    "Python.result_as",
    "Http.store_auth",
    "FilePart.content",
    "FilePart.content_type",
    "Postgres.result_as",
    "Postgres.store_auth",
    "Postgres.schema",
    "DuckDb.result_as",
    "DuckDb.store_auth",
    "Sqlite.result_as",
    "Sqlite.store_auth",
    "Sqlite.busy_timeout",
    "Sql.result_as",
    "Sql.store_auth",
    "Playbook.path",
    "Secrets.secret",  # tested in test_secrets.py: the operator names a directory for them
    "FromHttp.records",
    "Paging.next",
    "Paging.more",
    "Container.cwd",  # inside the container
    "Container.mounts",
}
SQLITE_FILES = {
    *("Sqlite.database", "Sqlite.attach", "an ATTACH of SQLite", "Sql.url"),
    *("an ATTACH of kind sql", "FromSqlite.database", "ToSqlite.database"),
}


def test_s09_every_setting_that_may_name_a_file_is_tried():
    named = {
        f"{struct.cls.__name__}.{field.encode_name}"
        for kind in BUILT_IN
        for struct in structs_of(tools()[kind])
        for field in struct.fields
        if FILE.search(help_of(field))
    }

    assert named <= set(SETTINGS) | NO_FILE_OF_THE_WORKER


class Place:
    """An allowed directory, and beside it one that is not, with something in it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.outside = folder / "root", folder / "outside"
        self.root.mkdir()
        self.outside.mkdir()
        (self.root / "link").symlink_to(self.outside)
        (self.root / "in.csv").write_text("n\n1\n")

    def fill(self, setting: str) -> Path:
        """A file of the form that the setting reads."""
        file = self.outside / f"found{self._ending(setting)}"
        if setting in ("Shell.cwd", "Mcp.cwd", "Mount.source"):
            (self.outside / "found").mkdir()
            (self.outside / "found" / "x").write_text(INSIDE)
            return self.outside / "found"
        if setting in SQLITE_FILES:
            with closing(sqlite3.connect(file)) as db, db:
                db.execute(f"CREATE TABLE t AS SELECT '{INSIDE}' AS n")
        elif "database" in setting:
            with closing(duckdb.connect(str(file))) as db:
                db.execute(f"CREATE TABLE t AS SELECT '{INSIDE}' AS n")
        else:
            file.write_text(f"n\n{INSIDE}\n")
        return file

    def _ending(self, setting: str) -> str:
        return ".py" if setting == "Python.script" else ".csv" if "rows" in setting else ".txt"

    def spelled(self, way: str, file: Path) -> str:
        below = file.relative_to(self.outside)
        return {
            "absolute": str(file),
            "dots": f"../outside/{below}",
            "link": f"link/{below}",
            "address": f"file://{file}",
            "encoded address": f"file://{self.root}/%2e%2e/outside/{below}",
        }[way]


def filled(value: Any, words: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: filled(part, words) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, words) for part in value]
    if value in words:
        return words[value]
    if isinstance(value, str):
        for word, meant in words.items():
            value = value.replace(word, str(meant))
    return value


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if stat.S_ISREG(path.stat().st_mode)
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_s09_no_setting_leads_out_of_the_allowed_directory(
    setting, way, tmp_path, web, request, monkeypatch
):
    kind, config = SETTINGS[setting]
    place = Place(tmp_path)
    file = place.fill(setting)
    before = contents(place.outside)
    monkeypatch.chdir(place.root)
    words = {"PLACE": place.spelled(way, file), "ROOT": place.root, "WEB": web.url}
    if kind == "postgres":
        words["POSTGRES"] = request.getfixturevalue("postgres")

    outcome = ran(
        kind,
        filled(config, words),
        settings={"rules": Rules(file_root=str(place.root))},
    )

    # DuckDB takes an encoded address for a name, and finds nothing of that name.
    if not (setting.endswith("of DuckDB") and way == "encoded address"):
        kind, message = failure(outcome)
        assert kind == "auth"
        assert setting in SQL or OUT_OF_IT.search(message), message
    assert INSIDE not in repr(outcome)
    assert contents(place.outside) == before
    assert INSIDE.encode() not in b"".join(contents(place.root).values())
    assert INSIDE not in str(web.seen)


CERTIFICATES = {"Http.ca", "ClientCertificate.cert"}
"""What the file below holds is none, so it is refused for that."""


@pytest.mark.parametrize("setting", sorted(set(SETTINGS) - CERTIFICATES - SQL - {"Store.url"}))
def test_s09_the_same_setting_may_name_a_file_below_it(
    setting, tmp_path, web, request, monkeypatch
):
    kind, config = SETTINGS[setting]
    place = Place(tmp_path)
    shutil.move(place.fill(setting), place.root / "found")
    monkeypatch.chdir(place.root)
    words = {"PLACE": "found", "ROOT": place.root, "WEB": web.url}
    if kind == "postgres":
        words["POSTGRES"] = request.getfixturevalue("postgres")
    rules = Rules(file_root=str(place.root))

    outcome = ran(kind, filled(config, words), settings={"rules": rules})

    assert outcome.error is None or outcome.error.kind != "auth", outcome


# --- SQL of a transfer --------------------------------------------------------------------------


def transferred(config: dict[str, Any], root: Path) -> Any:
    return ran("transfer", config, settings={"rules": Rules(file_root=str(root))})


@pytest.mark.parametrize(
    "source",
    [
        {"command": "SELECT * FROM read_text('FILE')"},
        {"command": "SELECT * FROM 'FILE'"},
        {"table": '"FILE"'},
        {"table": "stored"},
        {"command": "SELECT * FROM made()"},
    ],
    ids=["function", "name", "table", "view", "macro"],
)
def test_s09_sql_of_a_transfer_from_duckdb_reads_no_other_file(source, tmp_path):
    place = Place(tmp_path)
    file = place.fill("Sql.rows")
    with closing(duckdb.connect(str(place.root / "in.duckdb"))) as db:
        db.execute(f"CREATE VIEW stored AS FROM read_csv('{file}')")
        db.execute(f"CREATE MACRO made() AS TABLE FROM read_csv('{file}')")
    end = {"kind": "duckdb", "database": str(place.root / "in.duckdb")}
    config = {"source": {**end, **source}, "target": OUT}

    outcome = transferred(filled(config, {"FILE": file, "ROOT": place.root}), place.root)

    assert failure(outcome)[0] == "auth"
    assert INSIDE.encode() not in b"".join(contents(place.root).values())


@pytest.mark.parametrize("command", ["VACUUM INTO 'FILE'", "ATTACH 'FILE' AS x"])
def test_s09_sql_of_a_transfer_from_sqlite_opens_no_other_file(command, tmp_path):
    place = Place(tmp_path)
    with closing(sqlite3.connect(place.root / "in.db")) as db:
        db.execute("CREATE TABLE t (n)")
    source = {"kind": "sqlite", "database": str(place.root / "in.db"), "command": command}
    words = {"FILE": place.outside / "made", "ROOT": place.root}

    outcome = transferred(filled({"source": source, "target": OUT}, words), place.root)

    assert failure(outcome)[0] == "auth"
    assert not list(place.outside.iterdir())


def test_s09_a_pattern_of_a_transfer_finds_no_file_behind_a_link(tmp_path):
    place = Place(tmp_path)
    file = place.fill("Sql.rows")
    source = {"kind": "file", "path": f"{place.root}/l*k/{file.name}"}

    outcome = transferred(
        filled({"source": source, "target": OUT}, {"ROOT": place.root}), place.root
    )

    assert failure(outcome)[0] == "auth"


def test_s09_confined_transfers_copy_within_a_file_and_to_and_fro(tmp_path):
    place = Place(tmp_path)
    for name in ("one", "two"):
        with closing(duckdb.connect(str(place.root / f"{name}.duckdb"))) as db:
            db.execute("CREATE TABLE t AS SELECT range AS n FROM range(1000)")
            db.execute("CREATE TABLE copy (n BIGINT)")

    def copying(source: str, target: str) -> dict[str, Any]:
        return {
            "source": {"kind": "duckdb", "database": f"{place.root}/{source}.duckdb", "table": "t"},
            "target": {
                "kind": "duckdb",
                "database": f"{place.root}/{target}.duckdb",
                "table": "copy",
            },
            "batch_size": 100,
        }

    async def all_of_them(bench: Bench) -> list[Outcome]:
        ways = [("one", "two"), ("two", "one"), ("one", "one")] * 3
        return await asyncio.gather(
            *(
                bench.run("transfer", copying(*way), action_id=f"action-{number}", timeout=60)
                for number, way in enumerate(ways)
            )
        )

    outcomes = on_bench(all_of_them, rules=Rules(file_root=str(place.root)))

    assert [outcome.result["records"] for outcome in outcomes] == [1000] * 9


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql://u@127.0.0.1:1/d?local_infile=1",
        "mysql+pymysql://u@127.0.0.1:1/d?read_default_file=/etc/passwd",
        "postgresql+psycopg://u@127.0.0.1:1/d?sslrootcert=/etc/passwd",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3D/tmp/x.so",
    ],
)
def test_s09_parameters_of_an_url_make_no_driver_read_files(url, tmp_path):
    rules = Rules(file_root=str(tmp_path))

    kind, message = failure(
        ran("sql", {"url": url, "command": "SELECT 1"}, settings={"rules": rules})
    )

    assert kind == "auth"
    assert "files of one directory only" in message


def test_s09_parameters_of_an_url_that_name_no_files_stay_possible(postgres, tmp_path):
    there = f"host={postgres['host']}&application_name=x"
    url = f"postgresql+psycopg://{postgres['user']}@/{postgres['dbname']}?{there}"
    rules = Rules(file_root=str(tmp_path))

    outcome = ran("sql", {"url": url, "command": "SELECT 1"}, settings={"rules": rules})

    assert outcome.is_ok, outcome
