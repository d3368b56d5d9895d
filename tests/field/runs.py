"""The playbooks of this directory: how to run one, and what is expected of it.

Beside each `playbooks/NAME.yaml` stands `NAME.expect.yaml`:

* `status`, `result`, `error`: how the execution ends (COMPLETED unless said otherwise);
* `results`: what single steps yield;
* `rows`: what is in the database afterwards, by query;
* `events`: what happens, line by line, for the steps whose order is determined;
* `any_order`: steps that take turns in any order (parallel branches and loops), and their lines;
* `repeats`: lines that stand once for as often as they come (how often a job is asked about).

Of a mapping only the keys that are written are compared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psycopg
import yaml

from noetl.control import documents
from noetl.model.events import Event
from noetl.rewrite.migrate import migrate_text
from noetl.tools.registry import tools
from tests.examples.system import Bench, running
from tests.server.processes import Server
from tests.stopwatch import PATIENCE

FOLDER = Path(__file__).parent / "playbooks"
EXPECT = ".expect.yaml"
NAMES = sorted(p.stem for p in FOLDER.glob("*.yaml") if not p.name.endswith(EXPECT))
PARTS = sorted((FOLDER / "parts").glob("*.yaml"))
"""Playbooks that others call."""
TOOLS = tools()
TOLD = {
    *("step.started", "step.done", "step.failed", "step.skipped", "task.done", "loop.done"),
    *("sink.processed", "ctx.patched", "vars.set", "next.unmatched"),
    *("loop.iteration.done", "loop.iteration.failed", "poll.finished", "playbook.processed"),
}


class Ran(NamedTuple):
    """How a playbook ended, and what happened on the way."""

    document: dict[str, Any]
    events: list[dict[str, Any]]
    facts: Sequence[Event] = ()
    """The same as facts, of a run in this process."""

    @property
    def results(self) -> dict[str, Any]:
        """What its steps yielded."""
        return {step["step"]: step["result"] for step in self.document["steps"]}


class Expected(msgspec.Struct, forbid_unknown_fields=True):
    """What `NAME.expect.yaml` says."""

    events: list[str]
    status: str = "COMPLETED"
    result: Any = None
    error: dict[str, Any] = {}
    results: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    any_order: dict[str, list[str]] = {}
    repeats: list[str] = []


def expected(name: str) -> Expected:
    text = (FOLDER / f"{name}{EXPECT}").read_text()
    return msgspec.convert(yaml.safe_load(text), Expected)


def written(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text()


def migrated(name: str) -> str:
    return migrate_text(written(name), TOOLS).text


# --- Running -----------------------------------------------------------------------------------


class Embedded:
    """A system in this process that stays for all playbooks."""

    def __init__(self, runner: asyncio.Runner, bench: Bench) -> None:
        self._runner = runner
        self.bench = bench

    def keep(self, credentials: dict[str, tuple[str, dict[str, Any]]]) -> None:
        async def put() -> None:
            for name, (kind, data) in credentials.items():
                await self.bench.system.keys.put(name, kind, data)

        self._runner.run(put())

    def register(self, text: str) -> None:
        self._runner.run(self.bench.system.catalog.register(text))

    def run(self, text: str, workload: dict[str, Any]) -> Ran:
        return self._runner.run(self._run(text, workload))

    async def _run(self, text: str, workload: dict[str, Any]) -> Ran:
        system = self.bench.system
        execution_id = await self.bench.start(text, workload)
        async with asyncio.timeout(PATIENCE):
            document = msgspec.to_builtins(await system.executions.wait(execution_id))
        rows = await system.store.log.events(execution_id, limit=1_000_000)
        events = msgspec.to_builtins([documents.event(execution_id, row) for row in rows])
        return Ran(document, events, await self.bench.events(execution_id))


@contextmanager
def embedded() -> Iterator[Embedded]:
    """The system of `noetl run`, on SQLite."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        bench = runner.run(stack.enter_async_context(running()))
        try:
            yield Embedded(runner, bench)
        finally:
            runner.run(stack.aclose())


def served(server: Server, text: str, workload: dict[str, Any]) -> Ran:
    execution_id = server.start(text, workload)
    return Ran(server.ended(execution_id), server.events(execution_id))


# --- Looking -----------------------------------------------------------------------------------


def line(event: dict[str, Any]) -> str:
    """What happened, where: `task.done fetch fetch_task ok`."""
    payload = event["payload"]
    words = [event["name"], event["step"] or ""]
    if event["name"] == "task.done":
        words += [payload["task"], payload["outcome"]["status"]]
    if event["iteration"] is not None:
        words.append(f"[{event['iteration']}]")
    if event["name"] in ("ctx.patched", "vars.set"):
        words += sorted(payload["values"])
    return " ".join(word for word in words if word)


def story(events: list[dict[str, Any]], wanted: Expected) -> list[str]:
    """The lines of the steps whose order is determined."""
    found: list[str] = []
    for event in events:
        if event["name"] in TOLD and event["step"] not in wanted.any_order:
            new = line(event)
            if new not in wanted.repeats or new not in found:
                found.append(new)
    return found


def turns(events: list[dict[str, Any]], step: str, wanted: Expected) -> Counter[str]:
    """The lines of one of the other steps."""
    found = Counter(line(e) for e in events if e["name"] in TOLD and e["step"] == step)
    return Counter({line: 1 if line in wanted.repeats else n for line, n in found.items()})


def part(value: Any, like: Any) -> Any:
    """The value, of mappings only the keys that the other one has."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {key: part(value[key], like[key]) for key in like if key in value}
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [part(*pair) for pair in zip(value, like, strict=True)]
    return value


def in_database(postgres: dict[str, Any], query: str) -> list[Any]:
    with psycopg.connect(**postgres) as connection:
        return msgspec.to_builtins([list(row) for row in connection.execute(query).fetchall()])
