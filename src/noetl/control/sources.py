"""Where messages of consumers come from: NATS, PostgreSQL, files and objects.

A source hands out new messages, and is told when their outcome is stored. Messages of which it was
not told are handed out again: to us, or to the server that takes over. A message has an id
that no other message of its source has, so that a repeat is known.

Two kinds of source keep nothing: a NATS subject without a stream, and a channel of PostgreSQL
without a table. Their messages reach those that listen at that moment.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

import msgspec

from noetl.cancellation import heeded
from noetl.control.identity import new_id
from noetl.errors import BadRequest
from noetl.model.ids import derive
from noetl.model.triggers import Consumer, FilesSource, NatsSource, PostgresSource
from noetl.store.triggers import Messages
from noetl.tools.egress import check_egress
from noetl.tools.failures import Failed, need
from noetl.tools.plain_data import plain
from noetl.tools.resources import ToolResources

ACK_SECONDS = 10.0
"""Seconds after which JetStream hands out again what a lost server had."""
FETCH_SECONDS = 5.0
WAITING_MAX = 1000
"""Messages of a source that keeps nothing, held until they are taken."""
PAGE = 1000
LINE_SECONDS = 10
"""Seconds in which PostgreSQL answers when it has nothing to do. It may vanish without a word."""
STATEMENT_SECONDS = 60
"""Seconds in which it answers when it has."""
QUIET_SECONDS = 5
"""Seconds without a message after which it is asked whether it is there."""


class Message(NamedTuple):
    """A message as its source gives it."""

    id: str
    text: str | None = None
    """To be read as the consumer's `format` says; None: it is data already."""
    data: Any = None
    headers: Mapping[str, str] = {}
    subject: str = ""
    handle: Any = None
    """By which the source knows it again."""


class Source(Protocol):
    """Hands out messages."""

    async def next(self, most: int) -> list[Message]:
        """At least one, as soon as there is one, and at most so many."""

    async def done(self, messages: Sequence[Message]) -> None:
        """Their outcome is stored: they need not come again."""


class Surroundings(NamedTuple):
    """What sources are opened with."""

    credential: Callable[[str, str], Awaitable[dict[str, Any]]]
    """The fields of a credential: for a document of that path, the one of that name."""
    resources: ToolResources
    messages: Messages
    """The outcomes of messages that were taken."""
    now: Callable[[], float]


@asynccontextmanager
async def opened(consumer: Consumer, around: Surroundings) -> AsyncIterator[Source]:
    """The source of a consumer. Raises what keeps it from being reached."""
    source = consumer.source

    async def fields() -> dict[str, Any]:
        return await around.credential(consumer.path, source.auth) if source.auth else {}

    async with AsyncExitStack() as stack:
        match source:
            case NatsSource():
                known = await fields()
                with heeded():
                    made: Source = await _nats(source, consumer.path, known, around, stack)
            case PostgresSource():
                made = await _postgres(source, consumer.path, await fields(), around, stack)
            case FilesSource():
                from noetl.tools.files.objects import place_at

                _need("store", "obstore")
                place = await place_at(source.url, fields, around.resources)
                made = Files(source, consumer.path, place, around.messages)
        yield made


def _need(extra: str, module: str) -> None:
    try:
        need(extra, module)
    except Failed as lack:
        raise BadRequest(str(lack)) from None


# --- NATS ----------------------------------------------------------------------------------------


async def _nats(
    source: NatsSource,
    path: str,
    fields: dict[str, Any],
    around: Surroundings,
    stack: AsyncExitStack,
) -> Source:
    _need("nats", "nats")
    from noetl.tools.nats.run import Connection, servers_of

    servers = servers_of(source.url, fields)
    await check_egress(around.resources.rules.egress, *servers)
    connection = Connection(servers, fields)
    stack.push_async_callback(connection.close)
    client = await connection.client()
    if not source.stream:
        waiting: asyncio.Queue[Any] = asyncio.Queue(WAITING_MAX)
        await client.subscribe(source.subject, cb=waiting.put)
        await client.flush()
        return Subject(client, waiting, around.now)
    from nats.js.api import AckPolicy, ConsumerConfig

    stream = client.jetstream()
    info = await stream.stream_info(source.stream)
    # A stream that was deleted and made again counts from 1 again.
    birth = "" if info.created is None else info.created.isoformat()
    if source.consumer:
        found = await stream.pull_subscribe_bind(durable=source.consumer, stream=source.stream)
    else:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_SECONDS)
        durable = f"noetl-{derive('consumer', path, source.subject)}"
        found = await stream.pull_subscribe(
            source.subject, durable=durable, stream=source.stream, config=config
        )
    return Stream(client, found, f"{source.stream}@{birth}")


class Subject:
    """Messages of a NATS subject without a stream: they are not kept."""

    def __init__(self, client: Any, waiting: asyncio.Queue[Any], now: Callable[[], float]) -> None:
        self._client = client
        self._waiting = waiting
        self._now = now

    async def next(self, most: int) -> list[Message]:
        first = None
        while first is None:
            if not self._client.is_connected:
                raise ConnectionError("the connection to NATS is lost")
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    first = await self._waiting.get()
        found = [first]
        while len(found) < most and not self._waiting.empty():
            found.append(self._waiting.get_nowait())
        return [_of_nats(one, "", self._now()) for one in found]

    async def done(self, messages: Sequence[Message]) -> None:
        pass  # they are not kept


class Stream:
    """Messages of a JetStream consumer, each until it is acknowledged."""

    def __init__(self, client: Any, found: Any, name: str) -> None:
        self._client = client
        self._found = found
        self._name = name

    async def next(self, most: int) -> list[Message]:
        while True:
            if not self._client.is_connected:
                raise ConnectionError("the connection to NATS is lost")
            found: list[Any] = []
            with heeded(), suppress(TimeoutError):  # there is none just now
                found = await self._found.fetch(most, timeout=FETCH_SECONDS)
            if found:
                return [_of_nats(one, self._name, 0.0) for one in found]

    async def done(self, messages: Sequence[Message]) -> None:
        # Who is full waits next, for as long as it takes: a cancellation must not be lost here.
        with heeded():
            for one in messages:
                await one.handle.ack()
            await self._client.flush()


def _of_nats(found: Any, stream: str, now: float) -> Message:
    headers = dict(found.headers or {})
    number = found.metadata.sequence.stream if stream else 0
    name = headers.get("Nats-Msg-Id", "")
    return Message(
        id=f"{stream}/{number}" if stream else name or new_id(now),
        text=found.data.decode("utf-8", errors="replace"),
        headers=headers,
        subject=found.subject,
        handle=found,
    )


# --- PostgreSQL ----------------------------------------------------------------------------------


async def _postgres(
    source: PostgresSource,
    path: str,
    fields: dict[str, Any],
    around: Surroundings,
    stack: AsyncExitStack,
) -> Source:
    import psycopg
    from psycopg import sql
    from psycopg.rows import dict_row

    from noetl.tools.sql.postgres import NOT_LENT, login_of

    login: dict[str, Any] = {
        "application_name": "noetl",
        "connect_timeout": LINE_SECONDS,
        **NOT_LENT,
        **await login_of(fields),
    }
    db = await psycopg.AsyncConnection.connect(**login, autocommit=True, row_factory=dict_row)
    stack.push_async_callback(db.close)
    if source.channel:
        await _asked(db, sql.SQL("LISTEN {}").format(sql.Identifier(source.channel)))
    return Rows(source, path, db, around.messages) if source.table else Channel(db, around.now)


async def _asked(
    db: Any, statement: Any, values: Sequence[Any] | None = None, *, seconds: float = LINE_SECONDS
) -> Any:
    """The answer to a statement. Raises if the other end is gone."""
    from noetl.store.postgres.commit_connection import limited

    with limited(db, seconds):
        return await db.execute(statement, values)


class Rows:
    """Rows of a table that bear no mark yet.

    The id of a row names its database and table, however they are reached: another database may
    have a table of that name, with the same keys.
    """

    def __init__(self, source: PostgresSource, path: str, db: Any, messages: Messages) -> None:
        from psycopg import sql

        self._source = source
        self._path = path
        self._db = db
        self._messages = messages
        self._name = ""
        """Of the table, in ids; empty before the first rows."""
        self._names = {
            "table": sql.Identifier(*source.table.split(".")),
            "key": sql.Identifier(source.key),
            "mark": sql.Identifier(source.mark),
        }

    async def next(self, most: int) -> list[Message]:
        from psycopg import sql

        text = "SELECT * FROM {table} WHERE {mark} IS NULL ORDER BY {key} LIMIT %s"
        statement = sql.SQL(text).format(**self._names)
        while True:
            await _asked(self._db, "SELECT 1")
            found = await _asked(self._db, statement, [most], seconds=STATEMENT_SECONDS)
            if rows := await found.fetchall():
                self._name = self._name or await self._named()
                return [_of_row(row, self._source, self._name) for row in rows]
            if self._source.channel:
                # What was sent only says that there may be something.
                await _notices(self._db, self._source.every)
            else:
                await asyncio.sleep(self._source.every)

    async def _named(self) -> str:
        """The table with its database. Ids of 0.2.0a1 had no database: they get this one."""
        from psycopg import errors

        cluster = None
        # What only speaks the language of PostgreSQL may not have it.
        with suppress(errors.UndefinedFunction, errors.InsufficientPrivilege):
            found = await _asked(self._db, "SELECT system_identifier FROM pg_control_system()")
            cluster = (await found.fetchone())["system_identifier"]
        found = await _asked(
            self._db,
            "SELECT current_database() AS database, nspname, relname"
            " FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " WHERE pg_class.oid = %s::regclass",
            [self._names["table"].as_string(self._db)],
        )
        about = await found.fetchone()
        name = f"{self._source.table}@{derive('table', cluster, *about.values())}"
        while await self._messages.rename(self._path, f"{self._source.table}/", f"{name}/"):
            pass
        return name

    async def done(self, messages: Sequence[Message]) -> None:
        from psycopg import sql

        from noetl.store.postgres.commit_connection import limited

        text = "UPDATE {table} SET {mark} = now() WHERE {key} = %s"
        statement = sql.SQL(text).format(**self._names)
        with limited(self._db, STATEMENT_SECONDS):
            async with self._db.transaction():
                for one in messages:
                    await self._db.execute(statement, [one.handle])


def _of_row(row: dict[str, Any], source: PostgresSource, name: str) -> Message:
    if source.key not in row:
        raise BadRequest(f'the table {source.table} has no column "{source.key}".')
    key = row[source.key]
    shown = {name: value for name, value in row.items() if name != source.mark}
    return Message(id=f"{name}/{key}", data=plain(shown), subject=source.table, handle=key)


async def _notices(db: Any, seconds: float) -> list[Any]:
    """What is sent to the channels of a connection, as soon as it is; none if that takes longer.
    Raises if the other end is gone."""
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    while (left := deadline - now()) > 0:
        quiet = min(left, QUIET_SECONDS)
        if found := [one async for one in db.notifies(timeout=quiet, stop_after=1)]:
            return found
        await _asked(db, "SELECT 1")
    return []


class Channel:
    """Messages of a channel (NOTIFY): they are not kept."""

    def __init__(self, db: Any, now: Callable[[], float]) -> None:
        self._db = db
        self._now = now

    async def next(self, most: int) -> list[Message]:
        found = await _notices(self._db, math.inf)
        return [
            Message(new_id(self._now()), text=one.payload, subject=one.channel) for one in found
        ]

    async def done(self, messages: Sequence[Message]) -> None:
        pass  # they are not kept


# --- Files and objects ---------------------------------------------------------------------------


class Files:
    """Files and objects. One that is written again is a new message.

    A file of a directory is taken when two looks in a row find it the same: it may still be being
    written. What is known of files that are gone is forgotten.
    """

    def __init__(self, source: FilesSource, path: str, place: Any, messages: Messages) -> None:
        self._source = source
        self._path = path
        self._place = place
        self._messages = messages
        self._seen: set[str] = set()
        """What the last look found."""
        self._known: set[str] | None = None
        """Those of them that were taken; None before the first look."""

    async def next(self, most: int) -> list[Message]:
        while True:
            found = await self._look()
            new = [one for one in found if self._known is None or one.id not in self._known]
            if self._place.directory is not None:
                new = [one for one in new if one.id in self._seen]
            for page in range(0, len(new), PAGE):
                ids = [one.id for one in new[page : page + PAGE]]
                self._known = (self._known or set()) | await self._messages.known(self._path, ids)
            await self._forget({one.id for one in found})
            taken = [one for one in new if one.id not in (self._known or ())]
            if taken:
                return taken[:most]
            await asyncio.sleep(self._source.every)

    async def _look(self) -> list[Message]:
        import obstore

        source = self._source
        folder = source.prefix.rpartition("/")[0]
        found = []
        async for page in obstore.list(self._place.store, folder or None, chunk_size=PAGE):
            for one in page:
                key = one["path"]
                name = key.rpartition("/")[2]
                if key.startswith(source.prefix) and fnmatchcase(name, source.pattern):
                    found.append(_of_object(one, self._place.url))
        return sorted(found, key=lambda one: str(one.data["modified"]))

    async def _forget(self, present: set[str]) -> None:
        gone = [] if self._known is None else list(self._known - present)
        if not self._seen:  # the first look: files may have gone before it
            before = float("inf")
            while page := await self._messages.of(self._path, before=before, limit=PAGE):
                gone += [one.id for one in page if one.id not in present]
                before = page[-1].at
        self._seen = present
        self._known = (self._known or set()) & present
        if gone:
            await self._messages.forget(self._path, gone)

    async def done(self, messages: Sequence[Message]) -> None:
        self._known = (self._known or set()) | {one.id for one in messages}


def _of_object(one: Mapping[str, Any], url: str) -> Message:
    modified = plain(one["last_modified"])
    about = {
        "url": f"{url}/{one['path']}",
        "store": url,
        "key": one["path"],
        "size": one["size"],
        "modified": modified,
        "etag": one.get("e_tag"),
    }
    state = one.get("e_tag") or f"{modified}-{one['size']}"
    return Message(id=f"{one['path']}@{state}", data=about, subject=one["path"])


def read(message: Message, form: str) -> tuple[Any, str]:
    """The body of a message and its text. Raises BadRequest for one that is not what it should."""
    if message.text is None:
        return message.data, ""
    text = message.text.replace("\0", "\ufffd")
    if form == "text":
        return text, text
    try:
        return msgspec.json.decode(text), text
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"it is not JSON: {error}.") from None
