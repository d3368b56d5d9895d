"""A whole system in this process, to run playbooks with and to look at what they left.

Nothing here is a stand-in: the store is a SQLite file, tools run, python code runs in its own
processes. Each system has a directory of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from noetl import configured, wiring
from noetl.api.services import Services
from noetl.control.forks import REUSED
from noetl.control.integrity import problems
from noetl.engine.evolve import evolve
from noetl.model.events import Event, StepScheduled, decode
from noetl.model.state import ExecutionState
from noetl.settings import Settings
from noetl.store.sqlite.connections import connect
from noetl.store.sqlite.database import QUERIES
from noetl.store.sqlite.schema import migrate
from tests.stopwatch import PATIENCE

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
PAGE = 1000


class Run(NamedTuple):
    """An execution that has ended: its document and all that happened in it."""

    document: dict[str, Any]
    events: list[Event]

    @property
    def result(self) -> Any:
        """What it yielded; an execution that did not complete yields nothing to look at."""
        assert self.document["status"] == "COMPLETED", self.document["error"]
        return self.document["result"]

    @property
    def error(self) -> dict[str, Any]:
        assert self.document["status"] == "FAILED", self.document["status"]
        return dict(self.document["error"])

    @property
    def ctx(self) -> dict[str, Any]:
        return dict(self.document["ctx"])

    def step(self, name: str) -> dict[str, Any]:
        """The step's part of the document; empty if no token reached it."""
        return next((step for step in self.document["steps"] if step["step"] == name), {})

    def of(self, kind: type[Event]) -> list[Any]:
        """The facts of one class, in order."""
        return [fact for fact in self.events if isinstance(fact, kind)]


class Bench:
    """A running system and how tests use it."""

    def __init__(self, system: Services, settings: Settings, folder: Path) -> None:
        self.system = system
        self.settings = settings
        self.folder = folder

    async def start(self, text: str, workload: Mapping[str, Any] | None = None) -> str:
        """Start a playbook given as text; its execution's id."""
        compiled = configured.compiler(self.settings)(text)
        net = compiled.unwrap()
        await self.system.orchestrator.programs.keep(net, compiled.digest)
        return await self.system.executions.start(
            compiled.digest, net.path, None, dict(workload or {})
        )

    async def ended(self, execution_id: str) -> Run:
        """Wait for the end."""
        async with asyncio.timeout(PATIENCE):
            document = await self.system.executions.wait(execution_id)
        events = await self.events(execution_id)
        _require_same_fold(events)
        return Run(document, events)

    async def run(self, text: str, workload: Mapping[str, Any] | None = None) -> Run:
        """Run a playbook to its end."""
        return await self.ended(await self.start(text, workload))

    async def events(self, execution_id: str) -> list[Event]:
        found: list[Event] = []
        after = 0
        while rows := await self.system.store.log.events(execution_id, after=after, limit=PAGE):
            after = rows[-1].seq
            found += [decode(row.body) for row in rows]
        return found


def _require_same_fold(events: list[Event]) -> None:
    """What a rerun reads of a log is enough: it sees what was there before each step."""
    whole, part = ExecutionState(), ExecutionState()
    for fact in events:
        if type(fact) is StepScheduled:
            assert (part.ctx, part.vars, part.results) == (whole.ctx, whole.vars, whole.results)
        evolve(whole, fact)
        if fact.__struct_config__.tag in REUSED:
            evolve(part, fact)


@contextmanager
def temporary_folder() -> Any:
    """An empty directory, where `TMPDIR` says: in tests, in memory if that is possible."""
    folder = Path(tempfile.mkdtemp(prefix="noetl-test-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@cache
def _empty_store() -> bytes:
    """The file of a store that nobody has used yet."""
    with temporary_folder() as folder:
        file = Path(folder, "noetl.db")
        with closing(connect(file, "writer")) as db:
            migrate(db, str(file))
        return file.read_bytes()


def _put_store(file: Path) -> None:
    """As `wiring.embedded` would make it, in a tenth of the time: a system finds nothing to do."""
    file.write_bytes(_empty_store())
    file.chmod(0o600)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(QUERIES["make_another"])


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Bench]:
    """A system with an empty store, for as long as the body lasts."""
    with temporary_folder() as folder:
        _put_store(folder / "noetl.db")
        chosen = msgspec.structs.replace(
            Settings.from_environment({}),
            database_url=f"sqlite:///{folder}/noetl.db",
            **settings,
        )
        async with wiring.embedded(chosen) as system:
            yield Bench(system, chosen, folder)


def on_bench(work: Callable[[Bench], Awaitable[Any]], **settings: Any) -> Any:
    """Do the work with a system that is closed afterwards."""

    async def all_of_it() -> Any:
        async with running(**settings) as bench:
            return await work(bench)

    return asyncio.run(all_of_it())


def ran(text: str, workload: Mapping[str, Any] | None = None, **settings: Any) -> Run:
    """Run one playbook in a system of its own; what stands beside its log follows from it."""

    async def work(bench: Bench) -> Run:
        run = await bench.run(text, workload)
        assert await problems(bench.system.store) == []
        return run

    return on_bench(work, **settings)


def playbook(workflow: str, **sections: str) -> str:
    """A playbook of this workflow, with what every playbook has."""
    parts = ["apiVersion: noetl.io/v2", "kind: Playbook", "metadata: {name: tried, path: tried}"]
    for name, body in {**sections, "workflow": workflow}.items():
        parts += [f"{name}:", *(f"  {line}" for line in body.strip("\n").splitlines())]
    return "\n".join(parts) + "\n"


def example(name: str) -> str:
    """The text of an example."""
    return (EXAMPLES / f"{name}.yaml").read_text()
