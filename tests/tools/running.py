"""What the tests of tools stand on: a context, the real sandbox, and a way to run a task."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import msgspec

from noetl.errors import NotFound
from noetl.model import refs
from noetl.model.net import KeychainEntry
from noetl.model.outcome import Outcome
from noetl.secrets.keychain import Sources, resolve
from noetl.tools.base import TaskLog, ToolContext
from noetl.tools.failures import known_failure
from noetl.tools.files.results import in_memory
from noetl.tools.registry import tools
from noetl.tools.resources import ToolResources
from noetl.tools.rules import Rules
from tests.stopwatch import PATIENCE

KEY = "00c0ffee00c0ffee00"
SEAL = "seal"


def kept(value: Any) -> dict[str, Any]:
    """The reference to what a bench with `results={KEY: value}` keeps."""
    return refs.reference("1", KEY, refs.encode(value), value, SEAL)


TOOLS = tools()


class Bench:
    """One worker's worth of tools, with known credentials and stored results."""

    def __init__(
        self,
        *,
        credentials: Mapping[str, dict[str, Any]] | None = None,
        results: Mapping[str, Any] | None = None,
        rules: Rules | None = None,
        sources: Sources | None = None,
    ) -> None:
        self.sources = sources
        self.resources = ToolResources(
            msgspec.structs.replace(rules or Rules(), python_processes=2)
        )
        self.credentials = dict(credentials or {})
        self.log = TaskLog()
        self.bodies: dict[tuple[str, str], bytes] = {
            ("1", key): refs.encode(value) for key, value in (results or {}).items()
        }
        """What tools have kept: values, and files part by part."""

    async def credential(self, name: str | Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(name, str):
            if "kind" not in name:
                return dict(name)
            fields = dict(name)
            entry = KeychainEntry(kind=fields.pop("kind"), name=fields.pop("name"), config=fields)
            return await resolve(entry, self.credential, self.sources)
        if name not in self.credentials:
            raise NotFound(f'there is no credential "{name}".')
        return dict(self.credentials[name])

    async def read_result(self, reference: Any) -> Any:
        _, get = in_memory(self.bodies)
        return await refs.fetched(refs.real(reference, "1", SEAL), get)

    async def run(self, kind: str, config: Mapping[str, Any], **context: Any) -> Outcome:
        tool = TOOLS[kind]
        assert tool.run is not None
        self.log = TaskLog()
        values = {
            "execution_id": "1",
            "step": "s",
            "task": "t",
            "action_id": "action-1",
            "credential": self.credential,
            "log": self.log,
            "resources": self.resources,
            "read_result": self.read_result,
        } | context
        files = self.resources.files("1", SEAL, values["action_id"], *in_memory(self.bodies))
        settled = msgspec.convert(dict(config), tool.config)
        try:
            outcome = await tool.run(settled, ToolContext(**values, open_files=lambda: files))
        except Exception as error:
            known = known_failure(error)
            if known is None:
                raise
            outcome = known
        finally:
            await files.close()
        msgspec.json.encode(outcome)
        assert outcome.error is None or outcome.error.kind in tool.errors, outcome
        return outcome


@asynccontextmanager
async def elsewhere(bench: Bench) -> AsyncIterator[Bench]:
    """Another worker: it reaches the same results, and has none of them on its own disk."""
    other = Bench(rules=bench.resources.rules)
    other.bodies = bench.bodies
    try:
        yield other
    finally:
        await other.resources.close()


def on_bench(work: Callable[[Bench], Awaitable[Any]], **settings: Any) -> Any:
    """Do the work with tools that are closed afterwards."""

    async def all_of_it() -> Any:
        bench = Bench(**settings)
        try:
            return await work(bench)
        finally:
            await bench.resources.close()

    return asyncio.run(all_of_it())


def ran(
    kind: str,
    config: Mapping[str, Any],
    *,
    settings: Mapping[str, Any] | None = None,
    **context: Any,
) -> Outcome:
    """The outcome of one task."""
    return on_bench(lambda bench: bench.run(kind, config, **context), **(settings or {}))


def failure(outcome: Outcome) -> tuple[str, str]:
    """Kind and message of an outcome that must be an error."""
    assert outcome.error is not None, outcome
    return outcome.error.kind, outcome.error.message


# --- Two tasks at once -------------------------------------------------------------------------


@asynccontextmanager
async def held(
    bench: Bench, folder: Path, config: Mapping[str, Any]
) -> AsyncIterator[asyncio.Task[Outcome]]:
    """A task of kind duckdb that waits before the last of its `commands` while this is entered."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    waits = f"FROM read_csv('{pipe}', header = false, columns = {{'a': 'VARCHAR'}})"
    *before, last = config["commands"]
    call = bench.run("duckdb", {**config, "commands": [*before, waits, last]})
    task = asyncio.create_task(call)
    with await _reader_of(pipe) as end:
        yield task
        end.write("go on\n")


async def beside(
    bench: Bench, folder: Path, first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[Outcome, Outcome]:
    """The outcomes of two tasks of kind duckdb; the second runs while the first is held."""
    async with held(bench, folder, first) as task:
        outcome = await bench.run("duckdb", second)
    return await task, outcome


async def _reader_of(pipe: Path) -> TextIO:
    """Wait until a statement reads from the pipe."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return open(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w")
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
            await asyncio.sleep(0.01)
