"""DuckDB extensions: where they come from.

An extension is a file that fits one version of DuckDB. It comes from an installed package, from
DuckDB's own directory, or from its server. In each case DuckDB loads it only if its makers have
signed it. What statements may not do with them is in `noetl.tools.sql.duckdb`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import duckdb

from noetl.tools.failures import Failed
from noetl.tools.sql.duckdb import literal
from noetl.tools.sql.text import BadSql

FILES = {
    "postgres": "postgres_scanner",
    "sqlite": "sqlite_scanner",
    "sqlite3": "sqlite_scanner",
    "mysql": "mysql_scanner",
}
"""Extensions whose file has another name."""


# --- Loading -----------------------------------------------------------------------------------


def load(connection: duckdb.DuckDBPyConnection, extension: str) -> None:
    """Load an extension that the task names. Raises Failed with a remedy if it cannot be found."""
    if not re.fullmatch(r"\w+", extension):
        raise BadSql(f'extensions: "{extension}" is not the name of an extension.')
    packaged = file_of_package(connection, extension)
    if packaged is not None:
        _load_file(connection, extension, packaged)
        return
    try:
        connection.execute(f"LOAD {extension}")
    except duckdb.IOException:
        _fetch(connection, extension)


def package_of(extension: str) -> str:
    """The PyPI package that contains it."""
    return f"duckdb-extension-{FILES.get(extension, extension).replace('_', '-')}"


def file_of_package(connection: duckdb.DuckDBPyConnection, extension: str) -> Path | None:
    """The file for this version of DuckDB in an installed package; None if there is none."""
    name = FILES.get(extension, extension)
    found = find_spec(f"duckdb_extension_{name}")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "extensions"
    path = folder / _version(connection) / f"{name}.duckdb_extension"
    return path if path.is_file() else None


def _version(connection: duckdb.DuckDBPyConnection) -> str:
    [row] = connection.execute("SELECT library_version FROM pragma_version()").fetchall()
    return str(row[0])


def _load_file(connection: duckdb.DuckDBPyConnection, extension: str, path: Path) -> None:
    try:
        connection.execute(f"LOAD {literal(str(path))}")
    except duckdb.Error as error:
        raise Failed(
            "not_found",
            f'The DuckDB extension "{extension}" is installed on this worker but cannot be loaded: '
            f"{_first_line(error)} Install {package_of(extension)} there anew.",
        ) from None


def _fetch(connection: duckdb.DuckDBPyConnection, extension: str) -> None:
    try:
        connection.execute(f"INSTALL {extension}; LOAD {extension}")
    except (duckdb.IOException, duckdb.HTTPException) as error:
        version = _version(connection)
        bringing = '"noetl[attach]"' if extension in FILES else package_of(extension)
        raise Failed(
            "not_found",
            f'The DuckDB extension "{extension}" is not on this worker and could not be fetched: '
            f"{_first_line(error)} Run `pip install {bringing}` there, which brings it together "
            f"with the DuckDB that it fits; this is {version}. Or run `INSTALL {extension}` in "
            f"DuckDB {version} where there is a network, and bring the file to the extension "
            "directory of this worker.",
        ) from None


def _first_line(error: duckdb.Error) -> str:
    return f"{str(error).strip().splitlines()[0].rstrip('.')}."
