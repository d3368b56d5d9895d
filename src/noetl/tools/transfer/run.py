"""Copies records from one end to the other in a thread, batch by batch."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec
import psycopg
from yarl import URL

from noetl.model.ids import derive
from noetl.model.outcome import Outcome, ok
from noetl.model.secrets import without_values
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of
from noetl.tools.failures import Failed, failed_with, known_failure
from noetl.tools.files.formats import form_of
from noetl.tools.files.objects import fetched, is_object, store_and_key, stored
from noetl.tools.limits import shortest
from noetl.tools.sql.duckdb import beside, bounded, of_file
from noetl.tools.sql.duckdb import failure as duckdb_failure
from noetl.tools.sql.postgres import BadCredential, connected, login_of
from noetl.tools.sql.postgres import failure as postgres_failure
from noetl.tools.sql.sqlite import BUSY_SECONDS, connection_to
from noetl.tools.sql.sqlite import failure as sqlite_failure
from noetl.tools.sql.text import BadSql
from noetl.tools.sql.threads import Halt, alone, database_of, in_thread
from noetl.tools.transfer import (
    FromDuckDb,
    FromHttp,
    FromPostgres,
    FromSqlite,
    InFile,
    InStore,
    Source,
    Target,
    ToDuckDb,
    ToHttp,
    ToPostgres,
    ToSqlite,
    Transfer,
    files,
    sources,
    tables,
    targets,
)
from noetl.tools.transfer.batches import Batches
from noetl.tools.web.request import Request

Awaited = TypeVar("Awaited")


async def run(config: Transfer, context: ToolContext) -> Outcome:
    total, halt = shortest(context.timeout), Halt(None)
    begin, end = _placed(config.source), _placed(config.target)
    meant = msgspec.structs.replace(config, source=begin, target=end)
    source = await _prepared(begin, context, "source")
    target = await _prepared(end, context, "target")
    loop = asyncio.get_running_loop()
    copying = Copying(meant, context, source, target, halt, loop, context.files.folder)
    return ok(await in_thread(context.resources.threads, copying.run, halt, total))


def _placed(end: Any) -> Any:
    """An end with its path resolved: it may be the address of an object."""
    if not isinstance(end, InFile) or not is_object(end.path):
        return end
    written = msgspec.structs.asdict(end)
    url, key = store_and_key(written.pop("path"))
    return InStore(url=url, key=key, **written)


# msgspec builds a type on first use, and crashes if two threads do so at the same time: build it
# here, before there are any.
msgspec.convert({}, Request)


class Prepared(msgspec.Struct, frozen=True):
    """What an end needs from the event loop: credentials, files, objects."""

    login: dict[str, str] = {}
    path: Path | None = None
    form: str = ""

    __repr__ = without_values


async def _prepared(end: Source | Target, context: ToolContext, side: str) -> Prepared:
    match end:
        case FromPostgres() | ToPostgres():
            if end.auth is None:
                raise BadCredential(f"{side}: postgres needs `auth`, a credential to connect with.")
            return Prepared(login=await login_of(await fields_of(end.auth, context)))
        case FromDuckDb() | FromSqlite() | ToDuckDb() | ToSqlite():
            path = await database_of(end, context)
            if path is None:
                raise BadSql(f"{side}: write `database`, the path of the file.")
            if side == "source" and not path.is_file():
                told = f'{side}: the file "{end.database or path.name}" does not exist.'
                raise Failed("not_found", told)
            return Prepared(path=path)
        case InFile():
            return Prepared(path=context.resources.path(end.path), form=_form(end, end.path, side))
        case InStore():
            form = _form(end, end.key, side)
            if side == "source":
                path = await fetched(end.url, end.key, end.auth, context)
                return Prepared(path=path, form=form)
            return Prepared(form=form)
    return Prepared()


def _form(end: InFile | InStore, name: str, side: str) -> str:
    form = end.format or form_of(name)
    if form is None or form == "arrow":
        raise BadSql(f'{side}: "{name}" does not tell its form; write `format`.')
    return form


class Copying(msgspec.Struct):
    """One transfer, in its own thread."""

    config: Transfer
    context: ToolContext
    source: Prepared
    target: Prepared
    halt: Halt
    loop: asyncio.AbstractEventLoop
    folder: Path
    part: files.Part | None = None
    databases: dict[Path, duckdb.DuckDBPyConnection] = {}
    """The DuckDB files that are open."""

    def run(self) -> dict[str, Any]:
        try:
            return self._run()
        except Exception as error:
            known = known_failure(error)
            problem = known.error if known is not None else None
            is_final = problem and not problem.retryable and problem.kind != "unknown"
            if is_final and self.part is not None:
                # An older attempt's lines; there should be none.
                self.part.remove()
            raise

    def _run(self) -> dict[str, Any]:
        try:
            with ExitStack() as stack:
                return self._copied(stack)
        except psycopg.Error as error:
            raise failed_with(postgres_failure(error)) from None
        except duckdb.Error as error:
            raise duckdb_failure(error, self.halt) from None
        except sqlite3.Error as error:
            raise sqlite_failure(error, self.halt) from None

    def _copied(self, stack: ExitStack) -> dict[str, Any]:
        self._lock_databases(stack)
        target = self._opened_target(stack)
        reached = target.mark()
        earlier = reached.records
        if reached.done:
            self._say(f"All {earlier:,} records were written before.")
            return {"records": earlier, "batches": reached.batches, "skipped": earlier}
        if earlier:
            self._say(f"{earlier:,} records were written before; continuing after them.")
        for batch in stack.enter_context(closing(self._batches(stack, earlier))):
            self.halt.check()
            reached = reached._replace(
                records=reached.records + batch.count, batches=reached.batches + 1
            )
            target.write(batch, reached)
            self._say(f"{reached.records:,} records in {reached.batches:,} batches.")
        self.halt.check()
        target.finish(reached)
        return {"records": reached.records, "batches": reached.batches, "skipped": earlier}

    def _say(self, text: str) -> None:
        self.loop.call_soon_threadsafe(self.context.log, f"{text}\n")

    # --- Both ends ---

    def _batches(self, stack: ExitStack, skip: int) -> Batches:
        config, path, root = self.config, self.source.path, self.context.resources.rules.file_root
        here = skip, self.folder, self.halt, root
        wanted = sources.Wanted(config.mapping, config.batch_size, *here)
        match config.source:
            case FromPostgres() as end:
                return sources.from_postgres(end, self.source.login, wanted)
            case FromDuckDb() as end:
                assert path is not None
                return sources.from_duckdb(end, self._duckdb(stack, path), wanted)
            case FromSqlite() as end:
                assert path is not None
                return sources.from_sqlite(end, path, wanted)
            case FromHttp() as end:
                return sources.from_http(end, self._ask, wanted)
            case InFile() | InStore() as end:
                assert path is not None
                return sources.from_file(end, path, self.source.form, wanted)
        raise AssertionError(config.source)

    def _opened_target(self, stack: ExitStack) -> targets.Target:
        resume, path = self.config.resume, self.target.path
        mark_id = self.context.action_id if resume else None
        match self.config.target:
            case ToPostgres() as end:
                line = stack.enter_context(connected(self.target.login, self.halt))
                return tables.ToPostgres(end, mark_id, line)
            case ToDuckDb() as end:
                assert path is not None
                path.parent.mkdir(parents=True, exist_ok=True)
                database = self._duckdb(stack, path)
                return tables.ToDuckDb(end, mark_id, database, self.folder)
            case ToSqlite() as end:
                assert path is not None
                path.parent.mkdir(parents=True, exist_ok=True)
                opened = connection_to(path, wait=BUSY_SECONDS)
                connection = stack.enter_context(closing(opened))
                stack.enter_context(self.halt.stoppable(connection.interrupt))
                reader = targets.Reader(self._duckdb(stack, None), self.folder)
                return tables.ToSqlite(end, mark_id, connection, reader)
            case ToHttp() as end:
                reader = targets.Reader(self._duckdb(stack, None), self.folder)
                return targets.ToService(end, self._send, reader, self._notes())
            case InFile() | InStore() as end:
                self.part = stack.enter_context(files.gathering(self._part_place(end), resume))
                place = end, self.target.form, path, self._publish
                return files.ToFile(*place, self.part, self.folder, self.halt, self._notes())
        raise AssertionError(self.config.target)

    def _notes(self) -> targets.Notes:
        return targets.Notes(self.context.files, self._awaited, self.config.resume)

    def _part_place(self, end: InFile | InStore) -> Path:
        """Where attempts of this call collect lines: beside the file, so that it can be moved
        there.
        """
        if isinstance(end, InStore):
            folder = Path(self.context.resources.rules.cache).expanduser() / "transfers"
            goal = derive(end.url, end.key)
        else:
            assert self.target.path is not None
            folder, goal = self.target.path.parent, self.target.path.name
        return folder / files.PART.format(id=derive(self.context.action_id, goal))

    def _publish(self, whole: Path) -> None:
        end = self.config.target
        if isinstance(end, InStore):
            self._awaited(stored(whole, end.url, end.key, end.auth, self.context))
        else:
            assert self.target.path is not None
            whole.replace(self.target.path)

    def _lock_databases(self, stack: ExitStack) -> None:
        """What DuckDB may read is set for everyone who has a file open, and cannot be changed."""
        ends = (self.config.source, self.source.path), (self.config.target, self.target.path)
        paths = {
            path.resolve() for end, path in ends if path and isinstance(end, FromDuckDb | ToDuckDb)
        }
        if self.context.resources.rules.file_root is not None:
            # In this order everywhere: another transfer may go the other way.
            for path in sorted(paths):
                stack.enter_context(alone(path, self.halt))

    def _duckdb(self, stack: ExitStack, path: Path | None) -> duckdb.DuckDBPyConnection:
        if path is None:
            return stack.enter_context(bounded(self.folder, self.halt))
        known = self.databases.get(path.resolve())
        if known is not None:  # source and target are in one file
            return stack.enter_context(beside(known, self.halt))
        root = self.context.resources.rules.file_root
        made = stack.enter_context(of_file(path, self.folder, self.halt, root))
        self.databases[path.resolve()] = made
        return made

    # --- Web services, called in the event loop ---

    def _ask(self, request: Mapping[str, Any]) -> Any:
        end = self.config.source
        assert isinstance(end, FromHttp)
        home, there = _origin(end.url), _origin(request["url"])
        if there != home:
            # An answer said where the next page is. As with a redirect, no secret goes elsewhere.
            told = msgspec.json.encode([end.headers, end.json]).decode()
            if end.auth is not None or self.context.is_masked(told):
                raise Failed(
                    "client_error",
                    f"source: the next page is said to be at {there}, to which the secrets for"
                    f" {home} are not sent. Page by a cursor or by number, or write that address"
                    " as `url`.",
                )
        return self._answer(request, self.context)["data"]

    def _send(self, request: Mapping[str, Any], number: int) -> None:
        # The key of a batch is the same on every attempt, and unique to it.
        key = derive(self.context.action_id, number)
        self._answer(request, msgspec.structs.replace(self.context, action_id=key))

    def _answer(self, request: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        from noetl.tools.web.client import run

        try:
            config = msgspec.convert(dict(request), Request)
        except msgspec.ValidationError as error:
            raise Failed("client_error", f"The web service's end is not right: {error}.") from None
        found: dict[str, Any] = self._awaited(run(config, context)).result
        return found

    def _awaited(self, work: Coroutine[Any, Any, Awaited]) -> Awaited:
        """Run the work in the event loop and wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        with self.halt.stoppable(future.cancel):
            try:
                return future.result()
            except CancelledError:
                raise InterruptedError("the task was stopped") from None


def _origin(url: str) -> str:
    """Scheme, host and port; an address that cannot be read as it is."""
    try:
        return str(URL(url).origin())
    except ValueError:
        return url
