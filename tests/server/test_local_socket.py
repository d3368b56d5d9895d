"""The socket beside a database: who holds it is called by the same routes as a server."""

from __future__ import annotations

import asyncio
import getpass
import socket
import stat
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from noetl import wiring
from noetl.api import local_socket
from noetl.api.client import Client
from noetl.api.routes import catalog, executions
from noetl.api.routes.external import SEND_EVENT, External
from noetl.errors import BadRequest, NotFound, UnknownKey
from noetl.settings import Settings

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: tests/hello}
workflow:
  - step: start
    tool: {kind: noop}
"""


def settings_in(folder: Path) -> Settings:
    return Settings.from_environment({"NOETL_DATABASE_URL": f"sqlite:///{folder}/noetl.db"})


@asynccontextmanager
async def two_clients(settings: Settings):
    """A client in the process that holds the database and serves it, and one that calls it."""
    async with (
        wiring.embedded(settings, work=False, serves=True) as system,
        wiring.reached(settings) as caller,
    ):
        yield wiring.here(system).client, caller.client


def test_a_database_that_is_held_is_used_through_its_holder(tmp_path):
    async def work():
        async with two_clients(settings_in(tmp_path)) as (holder, caller):
            kept = await caller.call(catalog.REGISTER, body=catalog.Register(content=HELLO))
            wish = executions.StartExecution(path="tests/hello", workload={"a": 1})
            started = await caller.call(
                executions.START, body=wish, headers={"Idempotency-Key": "one"}
            )
            again = await holder.call(
                executions.START, body=wish, headers={"Idempotency-Key": "one"}
            )
            ids = {"execution_id": started.execution_id}
            shown = [await one.call(executions.GET, **ids) for one in (holder, caller)]
            page = await caller.call(
                executions.EVENTS,
                query=executions.WhichEvents(type=("workflow.started",), limit=5),
                **ids,
            )
            text = await caller.call(catalog.GET, path="tests/hello", query=catalog.OfVersion())
            return kept, started, again, shown, page, text

    kept, started, again, (here, there), page, text = asyncio.run(work())

    assert (kept.path, kept.version, started.path) == ("tests/hello", 1, "tests/hello")
    assert again.execution_id == started.execution_id
    assert msgspec.json.encode(here) == msgspec.json.encode(there)
    assert there.workload == {"a": 1}
    assert [event.name for event in page.events] in ([], ["workflow.started"])
    assert text.content == HELLO


def test_errors_are_what_they_were_raised_as(tmp_path):
    async def work(call):
        async with two_clients(settings_in(tmp_path)) as clients:
            for client in clients:
                await call(client)

    async def unknown(client: Client):
        with pytest.raises(NotFound, match="no execution 77"):
            await client.call(executions.STATUS, execution_id="77")
        event = External(name="a.b", data={"x": 1})
        with pytest.raises(NotFound):
            await client.call(SEND_EVENT, execution_id="77", body=event)
        with pytest.raises(BadRequest, match="status is one of"):
            await client.call(executions.LIST, query=executions.Which(status="odd"))

    asyncio.run(work(unknown))


def test_a_misspelt_key_is_refused_there_too(tmp_path):
    async def work():
        async with two_clients(settings_in(tmp_path)) as (_, caller):
            with pytest.raises(UnknownKey, match='Did you mean "status"'):
                await caller.get("/api/executions", stauts="RUNNING")

    asyncio.run(work())


def test_what_is_done_through_it_is_done_in_the_name_of_the_account(tmp_path):
    async def work():
        async with two_clients(settings_in(tmp_path)) as (_, caller):
            await caller.call(catalog.REGISTER, body=catalog.Register(content=HELLO))
            wish = executions.StartExecution(path="tests/hello")
            started = await caller.call(executions.START, body=wish)
            return await caller.call(executions.GET, execution_id=started.execution_id)

    actor = asyncio.run(work()).actor

    assert (actor.kind, actor.name) == ("local", getpass.getuser())


def test_only_the_owner_of_the_database_can_open_it_and_it_goes_with_the_holder(tmp_path):
    settings = settings_in(tmp_path)
    path = wiring.socket_path(settings)

    async def work():
        async with wiring.embedded(settings):
            return path.stat().st_mode

    mode = asyncio.run(work())

    assert path == tmp_path / "noetl.db.sock"
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_in_nobody_s_way(tmp_path):
    settings = settings_in(tmp_path)
    path = wiring.socket_path(settings)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def work():
        async with two_clients(settings) as (_, caller):
            return await caller.call(executions.LIST, query=executions.Which())

    assert asyncio.run(work()).executions == []


def test_a_socket_that_was_left_behind_is_not_taken_for_that_of_a_visitor(tmp_path):
    settings = settings_in(tmp_path)
    path = wiring.socket_path(settings)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def work():
        async with wiring.reached(settings):
            return path.exists()

    assert asyncio.run(work()) is False


def test_it_is_found_by_every_name_that_leads_to_the_file(tmp_path):
    """A link may be elsewhere, or short where the real path is too long for a socket."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    (tmp_path / "short").symlink_to(deep)
    (tmp_path / "link.db").symlink_to(deep / "noetl.db")
    written = (deep / "noetl.db", tmp_path / "short" / "noetl.db", tmp_path / "link.db")
    settings = [Settings(database_url=f"sqlite:///{path}") for path in written]

    assert len({wiring.socket_path(one) for one in settings}) == 1


def test_where_the_path_is_too_long_it_lies_in_the_users_own_folder(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    settings = settings_in(deep)
    path = wiring.socket_path(settings)

    async def work():
        async with two_clients(settings) as (_, caller):
            assert path.is_socket()
            return await caller.call(executions.LIST, query=executions.Which())

    assert path.parent == local_socket.short_folder()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert asyncio.run(work()).executions == []
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(PermissionError, match="private to this user"):
        local_socket.path_of(deep / "noetl.db", open_to_all)
