"""`noetl db`: both databases, upgraded and checked."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.stopwatch import PATIENCE

HELLO = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: tests/hello}
workflow: [{step: start, tool: {kind: noop, result: hello}}]
"""
VARIABLES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: tests/hello}
workflow:
  - {step: start, tool: {kind: noop, result: {id: 7}}, vars: {user: "{{ result }}"}, next: end}
  - {step: end, tool: {kind: noop, result: "{{ vars.user.id }}"}}
"""


def noetl(
    folder: Path, *arguments: str, within: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [*within, *COMMAND, *arguments],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/noetl.db"
    return str(request.getfixturevalue("new_database_url"))


def damage(url: str) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            file.execute("UPDATE noetl_log SET events = x'5b5d'")
        file.close()
    else:
        with psycopg.connect(url) as database:
            database.execute("UPDATE noetl.log SET events = '[]'")


def test_a_database_is_made_used_checked_and_its_damage_named(url: str, tmp_path: Path):
    (tmp_path / "hello.yaml").write_text(HELLO)

    early = noetl(tmp_path, "db", "check", "--db", url)
    assert early.returncode == 1
    assert "noetl db migrate" in early.stderr or "does not exist" in early.stderr

    made = noetl(tmp_path, "db", "migrate", "--db", url)
    assert made.returncode == 0, made.stderr
    assert ("did not exist and was made" in made.stderr) == url.startswith("sqlite")
    ran = noetl(tmp_path, "run", "hello.yaml", "--db", url)
    assert ran.returncode == 0, ran.stderr
    listed = noetl(tmp_path, "executions", "list", "--db", url)
    assert "tests/hello" in listed.stdout

    good = noetl(tmp_path, "db", "check", "--db", url)
    assert (good.returncode, good.stdout) == (0, "")
    damage(url)
    bad = noetl(tmp_path, "db", "check", "--db", url)
    assert bad.returncode == 1
    assert "or one before it" in bad.stdout


def run_sql(url: str, statement: str) -> list[tuple[str, ...]]:
    """The rows of a statement, which names the table of variables as VARIABLES."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            rows = file.execute(statement.replace("VARIABLES", "noetl_transient")).fetchall()
        file.close()
        return rows
    with psycopg.connect(url) as database:
        cursor = database.execute(statement.replace("VARIABLES", "noetl.transient"))
        return cursor.fetchall() if cursor.description else []


def test_the_variables_that_a_rerun_takes_over_are_no_damage(url: str, tmp_path: Path):
    (tmp_path / "hello.yaml").write_text(VARIABLES)
    noetl(tmp_path, "run", "hello.yaml", "--db", url)
    [(first,)] = run_sql(url, "SELECT execution_id FROM VARIABLES")
    again = noetl(tmp_path, "executions", "rerun", first, "--from", "end", "--db", url)
    assert again.returncode == 0, again.stderr

    checked = noetl(tmp_path, "db", "check", "--db", url)
    rows = run_sql(url, "SELECT execution_id, name FROM VARIABLES")
    # As earlier versions left it.
    run_sql(url, f"DELETE FROM VARIABLES WHERE execution_id <> '{first}'")
    of_earlier = noetl(tmp_path, "db", "check", "--db", url)
    run_sql(url, "DELETE FROM VARIABLES")
    lost = noetl(tmp_path, "db", "check", "--db", url)

    assert (checked.returncode, checked.stdout) == (0, "")
    assert [name for _, name in rows] == ["user", "user"]
    assert len({execution_id for execution_id, _ in rows}) == 2
    assert (of_earlier.returncode, of_earlier.stdout) == (0, "")
    assert (lost.returncode, lost.stdout) == (
        1,
        f"Of execution {first}, variable user is missing\n",
    )


def forbid(folder: Path) -> list[str]:
    """Nobody may write there; how to run a command that heeds that also as root."""
    folder.chmod(0o555)
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root may write everywhere")
    return [setpriv, "--bounding-set=-dac_override", "--inh-caps=-all"]


def put_a_file_there(folder: Path) -> list[str]:
    (folder / ".noetl").write_text("")
    return []


@pytest.mark.parametrize("spoil", [forbid, put_a_file_there])
def test_who_cannot_write_here_is_told_to_name_a_database_elsewhere(
    tmp_path: Path, spoil: Callable[[Path], list[str]]
):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "hello.yaml").write_text(HELLO)
    within = spoil(here)

    refused = noetl(here, "run", "hello.yaml", within=within)
    assert refused.returncode == 1
    assert "cannot be written here" in refused.stderr
    assert "--db" in refused.stderr

    ran = noetl(here, "run", "hello.yaml", "--db", f"{elsewhere}/noetl.db", within=within)
    assert ran.returncode == 0, ran.stderr


def test_who_names_a_file_that_is_no_database_is_told_so_and_the_file_stays(tmp_path: Path):
    file = tmp_path / "hello.yaml"
    file.write_text(HELLO)

    refused = noetl(tmp_path, "run", "hello.yaml", "--db", "hello.yaml")

    assert refused.returncode == 1
    assert "hello.yaml: this file is not a database of NoETL" in refused.stderr
    assert "--db" in refused.stderr
    assert file.read_text() == HELLO


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "hello.yaml"],
        ["dev", "--port", "0"],
        ["executions", "list"],
        ["db", "migrate"],
        ["db", "check"],
    ],
    ids=" ".join,
)
def test_a_database_of_another_program_is_refused_and_stays_as_it_is(
    tmp_path: Path, command: list[str], journal: str
):
    (tmp_path / "hello.yaml").write_text(HELLO)
    file = tmp_path / "books.sqlite"
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        db.execute("CREATE TABLE book (title TEXT)")
        db.execute("INSERT INTO book VALUES ('Middlemarch')")
        db.commit()
    before = file.read_bytes()

    refused = noetl(tmp_path, *command, "--db", "books.sqlite")

    assert refused.returncode == 1
    assert "books.sqlite is a database of another program: it has tables (book)" in refused.stderr
    assert "--db" in refused.stderr
    assert file.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} <= {
        "books.sqlite",
        "hello.yaml",
        # The program itself has these while it runs; SQLite makes them to read.
        *("books.sqlite-wal", "books.sqlite-shm"),
    }


def test_an_empty_file_becomes_a_database(tmp_path: Path):
    (tmp_path / "hello.yaml").write_text(HELLO)
    (tmp_path / "empty.db").touch()

    ran = noetl(tmp_path, "run", "hello.yaml", "--db", "empty.db")

    assert ran.returncode == 0, ran.stderr


def test_an_older_spelling_of_postgresql_names_the_same_database(
    tmp_path: Path, new_database_url: str
):
    url = new_database_url.replace("postgresql://", "postgres://", 1)
    (tmp_path / "hello.yaml").write_text(HELLO)

    ran = noetl(tmp_path, "run", "hello.yaml", "--db", url)

    assert ran.returncode == 0, ran.stderr
    assert "completed" in noetl(tmp_path, "executions", "list", "--db", new_database_url).stdout
    assert [one.name for one in tmp_path.iterdir()] == ["hello.yaml"]


@pytest.mark.parametrize("directory", ["data", "/"])
def test_a_directory_is_refused_as_a_database_and_nothing_is_left_beside_it(
    tmp_path: Path, directory: str
):
    (tmp_path / "hello.yaml").write_text(HELLO)
    (tmp_path / "data").mkdir()

    refused = noetl(tmp_path, "run", "hello.yaml", "--db", directory)

    assert refused.returncode == 1
    assert "cannot be written here (Is a directory)" in refused.stderr
    assert {one.name for one in tmp_path.iterdir()} == {"data", "hello.yaml"}
