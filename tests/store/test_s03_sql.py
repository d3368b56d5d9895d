"""S3: no SQL is built from input. One test reads our source, the others attack every store."""

from __future__ import annotations

import ast
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

import noetl
from noetl.model.execution_query import exactly
from noetl.store.access import AuditEntry
from noetl.store.base import Runtime, Store
from tests.store.making import MINUTE, NOON, ONE, TWO, entry, event, free, start, summary
from tests.store.making import credential as made_credential
from tests.store.test_access import ADA, session, token

SRC = Path(noetl.__file__).parent
TASKS = SRC / "tools"
"""There statements are what playbooks say; `tests/tools` attacks those."""
SENDING = {"execute", "executemany", "executescript", "execute_values", "mogrify", "composed"}
FILES = sorted(path for path in SRC.rglob("*.py") if TASKS not in path.parents)


@cache
def statements(path: Path) -> list[ast.expr]:
    """What is sent to a database, wherever a file does so."""
    return [
        node.args[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SENDING
        and node.args
    ]


def is_fixed(sent: ast.expr) -> bool:
    """Whether a statement is written in our source or files: nothing from outside is part of it."""
    match sent:
        case ast.Constant():
            return True
        case ast.Subscript(value=ast.Name(id="QUERIES")):
            return True
        case ast.JoinedStr(values=parts):
            return all(is_fixed(part) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)):
            return name.isupper()
        case ast.Call(func=ast.Attribute(value=value, attr="encode"), args=[]):
            return is_fixed(value)
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(func=ast.Attribute(attr="SQL"), args=[ast.Constant()]),
                attr="format",
            )
        ):
            return True  # psycopg quotes the names that it puts in
        case ast.Attribute(value=ast.Name(id="migration"), attr="script"):
            return True
        case ast.Name(id="statement"):
            return True  # of a migration or of a list of ours; see the next test
    return False


def test_s03_every_statement_we_send_is_written_in_our_source():
    found = [
        f"{path.relative_to(SRC)}:{sent.lineno}"
        for path in FILES
        for sent in statements(path)
        if not is_fixed(sent)
    ]

    assert found == []


def test_s03_the_scan_finds_what_it_looks_for(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        'db.execute(f"SELECT {name}")\n'
        'db.execute("SELECT " + name)\n'
        'db.execute("SELECT %s" % name)\n'
        "db.execute(made(name))\n"
        'db.execute("SELECT ?", (name,))\n'
    )

    assert [is_fixed(sent) for sent in statements(path)] == [False, False, False, False, True]
    assert sum(len(statements(path)) for path in FILES) > 50


def test_s03_statements_without_a_name_come_from_our_own_files():
    named = {
        path.relative_to(SRC).as_posix()
        for path in FILES
        for sent in statements(path)
        if isinstance(sent, ast.Name)
    }

    assert named <= {
        "store/sqlite/schema.py",
        "store/sqlite/connections.py",
        "store/postgres/commit_connection.py",
        # Put together by `store/records.py` from named conditions of our own files.
        "store/records.py",
        "store/postgres/database.py",
        "store/sqlite/database.py",
        # Constants, into which psycopg puts quoted names.
        "control/sources.py",
    }


# --- Attacks -----------------------------------------------------------------------------------

HOSTILE = [
    "'; DROP TABLE noetl_execution; --",
    "x'); DELETE FROM noetl.execution; SELECT ('",
    '" OR ""="',
    "' OR '1'='1",
    "%(name)s %s %% :name ? $1",
    "{0} {name} \\' \\",
    "*/ UNION SELECT password_hash FROM noetl_user /*",
    "noetl%",
    "_______",
    "ü‮\u2028😀",
]


async def witness(store: Store) -> None:
    """Something that an attack would destroy or find."""
    await store.log.commit([start(ONE, commands=free("kept"))])
    await store.access.put_user(ADA)
    await store.credentials.put(made_credential("kept"))


async def is_untouched(store: Store) -> bool:
    execution = await store.records.summary(ONE)
    names = [user.name for user in await store.access.users()]
    return execution is not None and "ada" in names and await store.check() == []


@pytest.mark.parametrize("text", HOSTILE)
async def test_s03_names_that_are_sql_are_names_and_nothing_else(store: Store, text: str):
    await witness(store)
    await store.access.put_user(type(ADA)(name=text, password_hash="h", roles=(text,)))
    await store.access.put_token(token(text))
    await store.sessions.put(session(text, "b", user=text))
    await store.credentials.put(made_credential(text))
    await store.access.put_audit(AuditEntry(at=NOON, who=text, action=text, target=text))
    await store.runtimes.beat(
        Runtime(name=text, kind="worker", started_at=NOON, seen_at=NOON, pool=text)
    )
    await store.bodies.put(ONE, text, b"1")
    await store.catalog.register(entry(text, path=text, digest=sha256(b"net").hexdigest()), b"net")

    assert {user.name for user in await store.access.users()} == {"ada", text}
    assert [one.name for one in await store.access.tokens()] == [text]
    assert [one.user for one in await store.sessions.of_user(text)] == [text]
    assert {one.name for one in await store.credentials.all()} == {"kept", text}
    assert (await store.access.audit())[0].target == text
    assert [one.pool for one in await store.runtimes.all()] == [text]
    assert await store.bodies.get(ONE, text) == b"1"
    assert [one.path for one in await store.catalog.entries(prefix=text)] == [text]
    assert await store.access.delete_user(text)
    assert await store.credentials.delete(text)
    assert await store.runtimes.leave(text)
    assert await is_untouched(store)


@pytest.mark.parametrize("text", HOSTILE)
async def test_s03_what_is_looked_for_matches_itself_only(store: Store, text: str):
    await witness(store)

    assert await store.access.user(text) is None
    assert await store.credentials.get(text) is None
    assert await store.access.token(text) is None
    assert await store.sessions.get(text) is None
    assert await store.records.summary(text) is None
    assert await store.log.load(text) is None
    assert await store.records.by_key(text) is None
    assert await store.bodies.get(ONE, text) is None
    assert await store.catalog.entries(prefix=text) == []
    assert await store.catalog.entry(text) is None
    for chosen in ({"path": text}, {"parent": text}, {"status": text}):
        assert await store.records.summaries(exactly(**chosen)) == []
    assert await store.log.events(ONE, types=[text]) == await store.log.events(ONE, step=text) == []
    assert await store.queue.holders([text]) == await store.log.heads([text]) == {}
    assert await store.queue.claim(text, pool=text, limit=9, expires_at=NOON) == []
    assert await store.queue.renew([text], now=NOON, expires_at=NOON) == set()
    assert not await store.access.delete_user(text)
    assert not await store.sessions.delete(text)
    assert await is_untouched(store)


@pytest.mark.parametrize("text", HOSTILE)
async def test_s03_an_execution_may_be_called_anything(store: Store, text: str):
    await witness(store)
    fields = {"path": text, "idempotency_key": text, "error": text, "current_steps": (text,)}
    whole = summary(TWO, **fields)
    moment = event(1, type=text, step=text, step_run_id=text, event_id=text)
    commands = free(text, execution_id=TWO, pool=text)
    timers = [(text, NOON)]
    variables = {text: b"1"}
    write = start(TWO, events=[moment], summary=whole, commands=commands, timers=timers)
    write.vars = variables

    assert await store.log.commit([write]) == []

    assert await store.records.summary(TWO) == await store.records.by_key(text) == whole
    assert await store.log.events(TWO, types=[text], step=text) == [moment]
    assert await store.queue.due_timers(now=NOON) == [(TWO, text, NOON)]
    assert await store.log.variables(TWO) == variables
    [lease] = await store.queue.claim("w", pool=text, limit=9, expires_at=NOON + MINUTE)
    assert lease.command.command_id == text
    assert await is_untouched(store)
