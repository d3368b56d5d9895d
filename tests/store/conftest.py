"""Every store keeps the same promises: a new one joins the suite as one entry of STORES.

Tests here are plain `async def` functions; each runs on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from noetl.store.base import Store
from noetl.store.postgres import PostgresStore
from noetl.store.sqlite import SqliteStore
from tests.effort import later

Opener = Callable[[pytest.FixtureRequest], Coroutine[Any, Any, Store]]


def file_url(request: pytest.FixtureRequest) -> str:
    return f"sqlite:///{request.getfixturevalue('tmp_path')}/noetl.db"


STORES: dict[str, Opener] = {
    "sqlite-file": lambda request: SqliteStore.open(file_url(request)),
    "sqlite-file-inline": lambda request: SqliteStore.open(file_url(request), threads=False),
    "sqlite-memory": lambda _: SqliteStore.open(":memory:"),
    "sqlite-memory-inline": lambda _: SqliteStore.open(":memory:", threads=False),
    "postgres": lambda request: PostgresStore.open(request.getfixturevalue("database_url")),
}


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**given))
    return True


CROSSED = ("sqlite-file-inline", "sqlite-memory")
"""Files and memory, threads and none are shown by the two others of SQLite."""


@pytest.fixture(params=[*(name for name in STORES if name not in CROSSED), *later(CROSSED)])
def store(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Store]:
    store = runner.run(STORES[request.param](request))
    yield store
    runner.run(store.close())
