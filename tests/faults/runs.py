"""`noetl` in processes of its own that can be killed at any moment, and what is left of them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.stopwatch import PATIENCE


def environment(**more: str) -> dict[str, str]:
    return clean_environment(NO_COLOR="1", PYTHONUNBUFFERED="1", **more)


class Place:
    """A directory with a database in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin `noetl …`; its remarks can be read from `stderr`."""
        return forked.popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `noetl …` to its end."""
        return forked.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def json(self, *arguments: str) -> Any:
        ran = self.run(*arguments, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the database, past the product; nothing if there is none yet."""
        path = self.folder / ".noetl" / "noetl.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
            try:
                return db.execute(sql, values).fetchall()
            except sqlite3.OperationalError:
                return []

    def executions(self) -> list[tuple[str, str]]:
        """Id and status of what people started, oldest first."""
        return self.query(
            "SELECT execution_id, status FROM noetl_execution"
            " WHERE parent_execution_id IS NULL ORDER BY requested_at, execution_id"
        )

    def events(self, execution_id: str, *types: str) -> Iterator[dict[str, Any]]:
        rows = self.query(
            "SELECT type, body FROM noetl_event WHERE execution_id = ? ORDER BY seq", execution_id
        )
        for name, body in rows:
            if not types or name in types:
                yield json.loads(body)

    def count(self, *types: str) -> int:
        marks = ", ".join("?" * len(types))
        rows = self.query(f"SELECT count(*) FROM noetl_event WHERE type IN ({marks})", *types)
        return rows[0][0] if rows else 0


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Read remarks until one has the word; all of them, also when the process ends first."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if word in line:
            break
    return said


def is_running(pid: int) -> bool:
    """Whether a process is there; a zombie that nobody has waited for yet is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # The latter if it goes while it is read.
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def kill(process: subprocess.Popen[str]) -> None:
    """As the power plug would."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
