"""T20: clocks that are an hour off: a database written in the future or the past, and workers
whose clock is not the control plane's."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest

from noetl import configured, wiring
from noetl.control import documents
from noetl.control.clock import SystemClock
from noetl.control.local import LocalControl
from noetl.control.orchestrator import Orchestrator
from noetl.control.timers import fire_timers
from noetl.model.events import ExecutionRequested
from noetl.settings import Settings
from noetl.store.sqlite.store import SqliteStore
from noetl.templates import Views
from noetl.tools.registry import tool_of, tools
from noetl.tools.resources import ToolResources
from noetl.worker.worker import Worker
from tests.examples.system import playbook
from tests.stopwatch import PATIENCE

HOUR = 3600.0
WORKFLOW = """
- { step: start, tool: { kind: noop, result: 1 }, next: each }
- step: each
  loop: { in: [1, 2, 3, 4], iterator: item, spec: { mode: parallel, max_in_flight: 2 } }
  tool: { kind: python, code: "import time; time.sleep(0.3); result = 1" }
  next: last
- { step: last, tool: { kind: noop, result: "{{ each.stats.success }}" } }
"""


class Skewed(SystemClock):
    """A clock that is off."""

    def __init__(self, skew: float) -> None:
        super().__init__()
        self._skew = skew

    def now(self) -> float:
        return super().now() + self._skew


async def begin(folder: Path, skew: float, worker_skew: float, *, to_end: bool) -> str:
    """Start an execution under a clock that is off; leave it in the middle, or at its end."""
    store = await SqliteStore.open(str(folder / "noetl.db"))
    clock = Skewed(skew)
    orchestrator = Orchestrator(store, clock, Views(tool_of))
    settings = Settings.from_environment({})
    compiled = configured.compiler(settings)(playbook(WORKFLOW))
    await orchestrator.programs.keep(compiled.unwrap(), compiled.digest)

    async def no_credentials(name: str) -> None:
        return None

    resources = ToolResources()
    worker = Worker(
        LocalControl(orchestrator, store.bodies, store.credentials, no_credentials),
        tools(),
        resources,
        worker_id="embedded-1",
        slots=2,
        renew_every=0.2,
        now=Skewed(worker_skew).now,
    )
    jobs = [
        asyncio.create_task(job)
        for job in (
            orchestrator.commits.run(),
            worker.run(),
            fire_timers(orchestrator, store.queue, clock),
            orchestrator.leases.requeue_lapsed(),
        )
    ]
    request = ExecutionRequested(at=clock.now(), path="tried", digest=compiled.digest, seal="s")
    await orchestrator.start("77", request, workload={})
    async with asyncio.timeout(PATIENCE):
        if to_end:
            await orchestrator.wait_for_end("77")
        else:
            while not await store.log.events("77", types=["loop.iteration.done"]):
                await asyncio.sleep(0.02)
    assert not any(job.done() for job in jobs)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    await resources.close()
    await store.close()
    return "77"


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_what_a_clock_that_was_off_has_left_goes_on_at_once(tmp_path, skew):
    async def work() -> dict[str, object]:
        execution_id = await begin(tmp_path, skew, skew, to_end=False)
        settings = Settings.from_environment(
            {"NOETL_DATABASE_URL": f"sqlite:///{tmp_path}/noetl.db"}
        )
        async with wiring.embedded(settings) as system, asyncio.timeout(PATIENCE):
            document = await system.executions.wait(execution_id)
            events = await system.store.log.events(execution_id, limit=1000)
            assert await system.store.queue.open_commands() == []
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        return document

    document = asyncio.run(work())

    assert (document["status"], document["result"]) == ("COMPLETED", 4)
    assert document["duration_seconds"] >= 0
    ended = datetime.fromisoformat(document["end_time"]).timestamp()
    assert abs(ended - time.time()) < 60


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_worker_whose_clock_is_off_keeps_its_leases_and_does_its_work_once(tmp_path, skew):
    async def work() -> dict[str, object]:
        execution_id = await begin(tmp_path, 0.0, skew, to_end=True)
        settings = Settings.from_environment(
            {"NOETL_DATABASE_URL": f"sqlite:///{tmp_path}/noetl.db"}
        )
        async with configured.open_for_reading(settings) as store:
            lost = await store.log.events(execution_id, types=["command.lost"])
            calls = await store.log.events(execution_id, types=["loop.iteration.done"])
            [summary] = await store.records.summaries()
        assert lost == []
        assert len(calls) == 4
        for row in calls:
            envelope = documents.plain(documents.event(execution_id, row))
            said, recorded = (
                datetime.fromisoformat(envelope[name]).timestamp()
                for name in ("timestamp", "recorded_at")
            )
            assert abs(said - time.time() - skew) < 60, "by the worker's clock"
            assert abs(recorded - time.time()) < 60, "by the server's"
        return {"status": summary.status}

    assert asyncio.run(work()) == {"status": "COMPLETED"}
