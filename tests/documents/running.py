"""Runs an example of the documents in a whole system, and tells what happened.

An account holds what must be the same every time: how it ended, what it yielded, what was asked of
the services and written into tables, and what happened to each step in order. Ids, times, addresses
and what only says who worked (commands, tokens, leases) are left out; iterations stand for
themselves, since parallel ones end in any order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from noetl.model.events import Event
from tests.documents.services import Services, serving
from tests.documents.verdicts import HERE
from tests.examples.system import Bench, Run, on_bench

ADDRESS = "http://127.0.0.1:8080"
HOSTS_OF_THE_DOCUMENTS = ("https://api.example.com", "https://example.com")
VOLATILE = frozenset({"headers", "elapsed", "_tokens", "duration", "counts"})
"""Keys of results whose values are different each time."""
OF_POSTGRES = ("pg_local", "pg_k8s", "pg_creds")
"""The credentials by which examples reach the tables."""
_ROWS = sql.SQL("SELECT to_jsonb(found) - 'id' FROM {} AS found ORDER BY 1")
IDS = re.compile(r"\b\d{13,19}\b|\baer-[0-9a-f]{24}\b")
TOLD = (
    "task",
    "name",
    "event",
    "trigger_event",
    "order",
    "branch",
    "winner",
    "attempt",
    "directive",
    "targets",
    "purpose",
    "reason",
    "status",
)
"""What is told of an event besides its name, where it has it."""
UNTOLD = (
    "command.",
    "token.",
    "task.started",
    "task.log",
    "task.waiting",
    "loop.iteration.started",
)
UNTOLD += ("playbook.", "workflow.")

Drive = Callable[[Bench, str], Awaitable[None]]
"""What the world does to a running execution."""


class Life(NamedTuple):
    """An example that has run, and what it left in the world."""

    run: Run
    asked: list[str]
    rows: dict[str, list[Any]]
    """What it wrote, by table."""
    url: str


def lived(text: str, postgres: dict[str, Any], drive: Drive | None = None) -> Life:
    """Run the example, with its tables as it expects to find them if it names them at all."""
    services = Services()
    has_tables = any(name in text for name in OF_POSTGRES)
    if has_tables:
        _make_tables(postgres)
    before = _contents(postgres) if has_tables else {}
    with serving(services) as url:
        for written in (ADDRESS, *HOSTS_OF_THE_DOCUMENTS):
            text = text.replace(written, url)

        async def work(bench: Bench) -> Run:
            await _prepare(bench, postgres)
            execution_id = await bench.start(text)
            if drive is not None:
                await drive(bench, execution_id)
            return await bench.ended(execution_id)

        run = on_bench(work)
    after = _contents(postgres) if has_tables else {}
    return Life(
        run=run,
        asked=sorted(f"{one.method} {one.path}" for one in services.asked),
        rows={name: rows for name, rows in after.items() if rows != before[name]},
        url=url,
    )


def _make_tables(postgres: dict[str, Any]) -> None:
    with psycopg.connect(**postgres) as database:
        database.execute("DROP SCHEMA public CASCADE")
        database.execute("CREATE SCHEMA public")
        database.execute((HERE / "schema.sql").read_text(encoding="utf-8"))  # type: ignore[call-overload]


def _contents(postgres: dict[str, Any]) -> dict[str, list[Any]]:
    """The rows of each table in an order of their own: parallel iterations write as they come."""
    with psycopg.connect(**postgres) as database:
        names = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {
            name: [row for (row,) in database.execute(_ROWS.format(sql.Identifier(name)))]
            for (name,) in names.fetchall()
        }


async def _prepare(bench: Bench, postgres: dict[str, Any]) -> None:
    """Credentials by the names the examples use, and the playbook that one of them calls."""
    keys = bench.system.keys
    for name in OF_POSTGRES:
        await keys.put(name, "postgres", postgres)
    await keys.put("openai_token", "secret", {"value": "canary-openai"})
    child = (HERE / "000_2_1_next_string.yaml").read_text()
    await bench.system.catalog.register(child)


def told(life: Life) -> dict[str, Any]:
    """The account of the example."""
    run, url = life.run, life.url
    document = run.document
    found: dict[str, Any] = {"status": document["status"]}
    for part in ("result", "ctx", "vars"):
        if document[part]:
            found[part] = plain(document[part], url)
    if document["error"]:
        found["error"] = plain(document["error"]["message"], url)
    if life.asked:
        found["asked"] = life.asked
    if life.rows:
        found["rows"] = plain(life.rows, url)
    found["steps"] = story(run.events)
    return found


def story(events: list[Event]) -> dict[str, list[str]]:
    """What happened to each step, and to each iteration of a loop, in order."""
    steps: dict[str, list[str]] = {}
    step_of: dict[str, str] = {}
    for event in events:
        kind = str(type(event).__struct_config__.tag)
        place = place_of(event, step_of)
        if not kind.startswith(UNTOLD):
            steps.setdefault(place, []).append(_line(kind, event))
    return dict(sorted(steps.items(), key=lambda item: _order(item[0])))


def place_of(event: Event, step_of: dict[str, str]) -> str:
    """The step or the iteration that an event is about; `step_of` learns which run is whose."""
    run_id = getattr(event, "step_run_id", None) or ""
    step = getattr(event, "step", "") or step_of.get(run_id, "")
    if step and run_id:
        step_of[run_id] = step
    iteration = getattr(event, "iteration", None)
    place = step or "the execution"
    return place if iteration is None else f"{place}[{iteration}]"


def _order(name: str) -> tuple[str, int]:
    step, _, rest = name.partition("[")
    return step, int(rest[:-1]) if rest else -1


def _line(kind: str, event: Event) -> str:
    words = [kind]
    for name in TOLD:
        value = getattr(event, name, None)
        if isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        if value not in (None, "", 1) or (name == "attempt" and kind == "retry.started"):
            words.append(str(value))
    outcome = getattr(event, "outcome", None)
    if outcome is not None:
        words.append(outcome.status)
    written = getattr(event, "values", None)
    if isinstance(written, dict):
        words.append(",".join(sorted(written)))
    return " ".join(words)


def plain(value: Any, url: str) -> Any:
    """The value without what is different each time."""
    if isinstance(value, dict):
        return {key: plain(part, url) for key, part in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [plain(part, url) for part in value]
    if isinstance(value, str):
        return IDS.sub("<id>", value.replace(url, ADDRESS))
    return value


async def until_waiting(bench: Bench, execution_id: str) -> None:
    """Come back when a step of the execution waits for the world."""
    while True:
        if any(event_type(event) == "step.waiting" for event in await bench.events(execution_id)):
            return
        await asyncio.sleep(0.01)


def event_type(event: Event) -> str:
    return str(type(event).__struct_config__.tag)
