"""Rows per second of `kind: transfer` against plain COPY, on the same data in the same run.

    python bench/transfer.py [rows]

Plain COPY is what people write by hand with the same driver: COPY TO STDOUT into a file, and the
file into the other database (`COPY FROM STDIN`, or DuckDB's own reading of CSV). A transfer also
keeps its place in the target with every batch, so that a crash repeats none.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import psycopg
from postgres import server_in
from psycopg.conninfo import conninfo_to_dict

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.tools.running import ran

TABLE = (
    "SELECT n AS id, (n * 1.5)::numeric(12,2) AS amount, 'customer ' || n AS name, "
    "timestamptz '2024-01-01' + n * interval '1 second' AS moment, n % 2 = 0 AS ok "
    "FROM generate_series(1, {rows}) AS n"
)
COLUMNS = "id integer, amount decimal(12,2), name varchar, moment timestamptz, ok boolean"
ROUNDS = 3
SHARE_MIN = 0.5
"""Of plain COPY; below that the command exits with 1."""


class Machine:
    """A PostgreSQL server with the rows in table `t`, and a directory for DuckDB's files."""

    def __init__(self, url: str, folder: Path, rows: int) -> None:
        self.url, self.folder, self.rows = url, folder, rows
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE TABLE t AS {TABLE.format(rows=rows)}")
            connection.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
            connection.execute("CREATE TABLE back (LIKE t)")

    def clean(self) -> None:
        for path in self.folder.glob("*"):
            path.unlink()
        with psycopg.connect(self.url) as connection:
            connection.execute("TRUNCATE back")

    def plain_out(self) -> None:
        """PostgreSQL → file → DuckDB."""
        path = self.folder / "t.csv"
        with (
            psycopg.connect(self.url) as connection,
            path.open("wb") as file,
            connection.cursor().copy("COPY t TO STDOUT (FORMAT csv)") as copy,
        ):
            for data in copy:
                file.write(data)
        with duckdb.connect(str(self.folder / "plain.duckdb")) as database:
            database.execute(f"CREATE TABLE t ({COLUMNS})")
            database.execute(f"COPY t FROM '{path}' (FORMAT csv, HEADER false)")

    def plain_back(self) -> None:
        """DuckDB → file → PostgreSQL."""
        path = self.folder / "back.csv"
        with duckdb.connect(str(self.folder / "plain.duckdb")) as database:
            database.execute(f"COPY t TO '{path}' (FORMAT csv, HEADER false)")
        with (
            psycopg.connect(self.url) as connection,
            path.open("rb") as file,
            connection.cursor().copy("COPY back FROM STDIN (FORMAT csv)") as copy,
        ):
            while data := file.read(256 * 1024):
                copy.write(data)

    def transfer_out(self) -> None:
        self._transfer({**self._server("t")}, {**self._file(), "create": True})

    def transfer_back(self) -> None:
        self._transfer(self._file(), self._server("back"))

    def _server(self, table: str) -> dict[str, Any]:
        return {"kind": "postgres", "auth": conninfo_to_dict(self.url), "table": table}

    def _file(self) -> dict[str, Any]:
        place = str(self.folder / "transfer.duckdb")
        return {"kind": "duckdb", "database": place, "table": "t"}

    def _transfer(self, source: dict[str, Any], target: dict[str, Any]) -> None:
        # A new action each time: one that is known to be done does nothing.
        action = f"bench-{time.monotonic_ns()}"
        outcome = ran("transfer", {"source": source, "target": target}, action_id=action)
        assert outcome.is_ok, outcome
        assert outcome.result["records"] == self.rows


def timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measured(machine: Machine) -> dict[str, float]:
    """Median seconds of each way; the ways take turns, so that a busy machine is busy for all."""
    ways = ("plain_out", "plain_back", "transfer_out", "transfer_back")
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        machine.clean()
        for way in ("plain_out", "transfer_out", "plain_back"):
            found[way].append(timed(getattr(machine, way)))
        with psycopg.connect(machine.url) as connection:
            connection.execute("TRUNCATE back")
        found["transfer_back"].append(timed(machine.transfer_back))
    return {way: median(times) for way, times in found.items()}


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as place:
        folder = Path(place, "files")
        folder.mkdir()
        with server_in(Path(place)) as url:
            found = measured(Machine(url, folder, rows))
    print(f"{rows:,} rows, median of {ROUNDS}")
    slow = False
    for way in ("out", "back"):
        plain, ours = rows / found[f"plain_{way}"], rows / found[f"transfer_{way}"]
        where = "PostgreSQL → DuckDB" if way == "out" else "DuckDB → PostgreSQL"
        print(
            f"{where}: COPY {plain:,.0f} rows/s, transfer {ours:,.0f} rows/s = {ours / plain:.0%}"
        )
        slow |= ours < SHARE_MIN * plain
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
