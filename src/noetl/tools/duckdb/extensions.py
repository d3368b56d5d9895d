"""DuckDB extensions: where they come from, and what statements may not do.

An extension is a file that fits one version of DuckDB. It comes from an installed package, from
DuckDB's own directory, or from its server. In each case DuckDB loads it only if its makers have
signed it.

Database extensions open files and connections regardless of DuckDB's own settings, so they could
escape the worker's directory and the egress policy. A task therefore names what they open under
`attach`, where both are enforced; statements may not open anything. Nor may text that is built
while a statement runs, because it cannot be checked.

Views and macros that are stored in a file can do what statements cannot, but only where an
extension is loaded. DuckDB has one instance of a file for all tasks of this process, so an
extension that one of them loads is there for all of them. Therefore a task looks at what is stored
if any task that has the file open may load an extension (`sharing`); and one that may do so while
others have the file open looks before it loads the first, too. Other tasks need not look, which
would take longer than all else that a small task does.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import duckdb
import msgspec

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
OPENS = re.compile(r"\b(?:sqlite|postgres|mysql)_(?:scan\w*|attach)\b", re.IGNORECASE)
"""Functions that open what their caller names. Also checked inside quotes, which may become SQL."""
RUNS_TEXT = re.compile(r"\bjson_execute_serialized_sql\b|\bquery\"?\s*(?:\(|--|/\*)", re.IGNORECASE)
EXPLAINED = re.compile(r"\b(?:attach|load|install)\b", re.IGNORECASE)
LOADS_UNNAMED = re.compile(r"known_extensions|reset|import", re.IGNORECASE)
"""In settings and statements: DuckDB may be told to load extensions where it finds their functions.
The statements of an imported database are known only when it is imported."""
VIEWS = "SELECT database_name, view_name, sql FROM duckdb_views() WHERE NOT internal"
MACROS = """
    SELECT database_name, function_name, macro_definition FROM duckdb_functions()
     WHERE NOT internal AND macro_definition IS NOT NULL
"""


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


# --- Tasks that have the same file open --------------------------------------------------------


def may_load(extensions: Collection[str], texts: Iterable[str]) -> bool:
    """Whether a task may load an extension: it names one, or its settings or statements could make
    DuckDB do so by itself.
    """
    return bool(extensions) or any(LOADS_UNNAMED.search(text) for text in texts)


class Instance(msgspec.Struct):
    """DuckDB's instance of a file, as the tasks of this process share it."""

    tasks: int = 0
    is_extended: bool = False
    """Whether an extension is loaded, or will be."""
    stays: bool = False


_INSTANCES: dict[str, Instance] = {}
_INSTANCES_CHANGE = threading.Lock()


@contextmanager
def sharing(path: Path | None, *, extends: bool) -> Iterator[Instance]:
    """The instance that a task shares while this is entered, from before it opens the file until
    after it has closed it. `extends`: the task may load an extension.
    """
    if path is None:
        yield Instance(1, extends)
        return
    key = os.path.abspath(path)
    with _INSTANCES_CHANGE:
        instance = _INSTANCES.setdefault(key, Instance())
        instance.tasks += 1
        instance.is_extended |= extends
    try:
        yield instance
    except BaseException:
        # Its connection may have to stay open (`closed_in_the_end`), and the extension with it.
        instance.stays |= extends
        raise
    finally:
        with _INSTANCES_CHANGE:
            instance.tasks -= 1
            if not instance.tasks and not instance.stays:
                del _INSTANCES[key]


# --- What statements may not do ----------------------------------------------------------------


def check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise BadSql for a statement that would open or load what the task does not name."""
    _check_text(sql, "A statement")
    for one in connection.extract_statements(sql):
        # DuckDB may expand a statement: IMPORT DATABASE reads files.
        _check_text(one.query, "A statement")
        is_explained = one.type == duckdb.StatementType.EXPLAIN and EXPLAINED.search(one.query)
        if one.type == duckdb.StatementType.ATTACH or is_explained:
            raise BadSql("A statement may not ATTACH. Name the database under `attach`.")
        if one.type == duckdb.StatementType.LOAD:
            raise BadSql("A statement may not LOAD or INSTALL. Name it under `extensions`.")


def check_stored(connection: duckdb.DuckDBPyConnection, kinds: Collection[str]) -> None:
    """Raise BadSql for stored views and macros that would do so when they are used.

    `kinds` are those of the files that are open: macros are stored only in DuckDB's own.
    """
    queries = [VIEWS, MACROS] if "duckdb" in kinds else [VIEWS] if kinds else []
    for query in queries:
        for database, name, text in connection.execute(query).fetchall():
            _check_text(str(text), f'"{name}" in the database "{database}"')


def _check_text(text: str, what: str) -> None:
    if found := OPENS.search(text):
        raise BadSql(f"{what} may not use {found.group()}. Name the database under `attach`.")
    if found := RUNS_TEXT.search(text):
        name = re.match(r"\w+", found.group())
        assert name is not None
        raise BadSql(f"{what} may not use {name.group()}, which runs a text as SQL. Write the SQL.")
