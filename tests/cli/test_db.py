"""`noetl db`: both databases, upgraded and checked."""

from __future__ import annotations

import sqlite3
import subprocess
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


def noetl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [*COMMAND, *arguments],
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
