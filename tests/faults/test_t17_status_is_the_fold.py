"""T17: at every moment the status that is shown is the fold of the log at that moment.

Somebody else looks into the database while executions run. Each look is one read transaction, so
what it sees belongs to one moment.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from noetl.engine.evolve import evolve
from noetl.model.events import decode
from noetl.model.state import ExecutionState
from tests.examples.system import Bench, on_bench, playbook
from tests.faults.cluster import Served, start_many
from tests.stopwatch import PATIENCE

STORIES = {
    "a loop": """
- step: start
  loop: { in: "{{ range(300) }}", iterator: n, spec: { mode: parallel } }
  tool: { kind: noop, result: "{{ 'x' * 500 }}" }
  next: end
- { step: end, tool: { kind: noop } }
""",
    "forks and joins": """
- { step: start, tool: { kind: noop }, next: [a, b, c] }
- { step: a, tool: { kind: noop }, next: end }
- { step: b, tool: { kind: python, code: result = 1 }, next: end }
- { step: c, tool: { kind: shell, cmd: sleep 0.1 }, next: end }
- { step: end, tool: { kind: noop } }
""",
    "a failure": """
- { step: start, tool: { kind: noop }, spec: { compensate: undo }, next: bad }
- { step: bad, tool: { kind: noop, result: "{{ 1 / 0 }}" } }
- { step: undo, tool: { kind: noop } }
""",
    "a wait": """
- { step: start, tool: { kind: noop }, next: { arcs: [{ step: end, spec: { delay: 100ms } }] } }
- { step: end, tool: { kind: noop } }
""",
}
GATE = """
- step: start
  spec: { eval_mode: on_event }
  case: [{ when: "{{ event.name == 'go' }}", then: { next: begin } }]
"""
"""Before a story, so that somebody sees it run and can cancel it, however quick it is."""
SHOWN = """
SELECT execution_id, seq, status, ended_at, current_steps, error,
       (SELECT count(*) FROM noetl.event AS event
         WHERE event.execution_id = execution.execution_id)
  FROM noetl.execution AS execution
"""
LOG = "SELECT CAST(body AS text) FROM noetl.event WHERE execution_id = '{}' ORDER BY seq"


class Shown(NamedTuple):
    execution_id: str
    seq: int
    status: str
    ended_at: float | None
    current_steps: str
    error: str | None
    events: int
    """How many there are in the log."""


class Look(NamedTuple):
    """What was shown of one execution at one moment, and its log at that moment."""

    shown: Shown
    log: list[str]


Ask = Callable[[str], list[tuple[Any, ...]]]


@contextmanager
def moment_of(database: Path) -> Iterator[Ask]:
    """One moment of a file that somebody else writes."""
    db = sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)
    try:
        db.execute("BEGIN")
        yield lambda sql: db.execute(sql.replace("noetl.", "noetl_")).fetchall()
        db.execute("COMMIT")
    finally:
        db.close()


def looked(ask: Ask, known: Container[Shown]) -> Iterator[Look]:
    """What has changed: a row, or how many events there are."""
    for row in ask(SHOWN):
        shown = Shown(*row)
        if shown not in known:
            yield Look(shown, [body for (body,) in ask(LOG.format(shown.execution_id))])


class Watcher(threading.Thread):
    """Looks as often as it can."""

    def __init__(self, moment: Callable[[], AbstractContextManager[Ask]]) -> None:
        super().__init__(daemon=True)
        self._moment = moment
        self._enough = threading.Event()
        self.looks: dict[Shown, Look] = {}

    def has_seen(self, status: str) -> bool:
        return any(shown.status == status for shown in list(self.looks))

    def run(self) -> None:
        last = False
        while not last:
            # Once more after everything has ended.
            last = self._enough.is_set()
            with self._moment() as ask:
                for look in looked(ask, self.looks):
                    self.looks[look.shown] = look

    def end(self) -> list[Look]:
        self._enough.set()
        self.join()
        return list(self.looks.values())


def check(looks: list[Look]) -> None:
    """The looks at one execution, in the order of its events: what each log had was there before,
    so each event is folded once."""
    state, known = ExecutionState(), list[str]()
    for look in sorted(looks, key=lambda look: len(look.log)):
        assert look.log[: len(known)] == known
        for body in look.log[len(known) :]:
            evolve(state, decode(body))
        shown, known = look.shown, look.log
        assert shown.seq == state.seq == len(look.log) == shown.events
        assert shown.status == state.status
        assert shown.ended_at == state.ended_at
        steps = {run.step for run in state.runs.values()}
        assert sorted(json.loads(shown.current_steps)) == sorted(steps)
        assert shown.error == (state.failure.message if state.failure is not None else None)


def check_all(looks: list[Look]) -> list[str]:
    """How the three executions ended."""
    for execution_id in {look.shown.execution_id for look in looks}:
        check([look for look in looks if look.shown.execution_id == execution_id])
    ended = [look.shown.status for look in looks if look.shown.ended_at is not None]
    assert len(ended) == 3
    return ended


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_t17_the_status_that_is_shown_is_the_fold_of_the_log(story):
    async def work(bench: Bench) -> list[Look]:
        watcher = Watcher(lambda: moment_of(bench.folder / "noetl.db"))
        watcher.start()
        gated = playbook(GATE + story.replace("step: start", "step: begin"))
        runs = [await bench.start(gated) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while not watcher.has_seen("RUNNING"):
                await asyncio.sleep(0.01)
        for run in runs[:2]:
            await bench.system.executions.signal(run, "go")
        await bench.system.executions.cancel(runs[2], "enough")
        await asyncio.gather(*(bench.ended(run) for run in runs))
        return watcher.end()

    looks = on_bench(work)

    ended = check_all(looks)
    assert ended.count("CANCELLED") == 1


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_t17_the_status_is_the_fold_while_processes_work(served: Served, story: str):
    server = served.server
    watcher = Watcher(served.moment)
    watcher.start()
    runs = start_many(server, playbook(story), [{}] * 3)
    server.ask("POST", f"/api/executions/{runs[2]}/cancel", {})
    for execution_id in runs:
        assert server.ended(execution_id)["status"] in ("COMPLETED", "FAILED", "CANCELLED")
    looks = watcher.end()

    check_all([look for look in looks if look.shown.execution_id in runs])
