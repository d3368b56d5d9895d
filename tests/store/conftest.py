"""Every store keeps the same promises: a new one joins the suite as one entry of STORES.

Tests here are plain `async def` functions; each runs on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from noetl.store.base import Store
from noetl.store.sqlite import SqliteStore

Opener = Callable[[Path], Awaitable[Store]]

STORES: dict[str, Opener] = {
    "sqlite-file": lambda directory: SqliteStore.open(f"sqlite:///{directory}/noetl.db"),
    "sqlite-file-inline": lambda directory: SqliteStore.open(
        f"sqlite:///{directory}/noetl.db", threads=False
    ),
    "sqlite-memory": lambda _: SqliteStore.open(":memory:"),
    "sqlite-memory-inline": lambda _: SqliteStore.open(":memory:", threads=False),
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


@pytest.fixture(params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, runner: asyncio.Runner
) -> Iterator[Store]:
    async def opened() -> Store:
        return await STORES[request.param](tmp_path)

    store = runner.run(opened())
    yield store
    runner.run(store.close())
