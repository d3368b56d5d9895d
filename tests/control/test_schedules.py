"""Schedules at work, on real stores: each time once, whatever runs, changes or is asked twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noetl import configured, wiring
from noetl.api.services import Services
from noetl.control.retention import Retention
from noetl.control.schedules import ScheduleState
from noetl.dsl import Compiled
from noetl.errors import Conflict, NotFound, StoreError
from noetl.model.retention import keep_rules
from noetl.model.triggers import (
    PlaybookRef,
    Schedule,
    TriggerRow,
    TriggerTime,
    digest,
    encode,
)
from noetl.settings import Settings
from noetl.store.catalog import CatalogEntry
from tests.control.servers import deaf, run, servers
from tests.server.processes import SECRET_KEY
from tests.stopwatch import PATIENCE, Stopwatch


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("database_url"))
    return f"sqlite:///{tmp_path}/noetl.db"


WAITING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waiting, path: t/waiting}
workload: {time: "", fail: false}
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case:
      - {when: "{{ event.name == 'go' }}", then: {result: {from: "{{ workload.time }}"}}}
      - {when: "{{ event.name == 'break' }}", then: {fail: {message: broken}}}
"""


def document(**spec: Any) -> str:
    given = {"playbook": "t/waiting", "workload": {"time": "{{ schedule.time }}"}, "every": "1s"}
    body = {key: value for key, value in (given | spec).items() if value is not None}
    head = "apiVersion: noetl.io/v2\nkind: Schedule\nmetadata: {name: s, path: t/s}\n"
    return f"{head}spec: {msgspec.json.encode(body).decode()}\n"


async def register(system: Services, text: str) -> CatalogEntry:
    compiled: Compiled = configured.document_compiler(Settings.from_environment({}))(text)
    assert compiled.is_valid, compiled.problems
    if compiled.trigger is None:
        return await system.catalog.keep(text, compiled)
    return await system.trigger_documents[compiled.trigger.kind].register(text, compiled)


@asynccontextmanager
async def embedded(folder: Path, *, keeps: bool = True) -> AsyncIterator[Services]:
    """A server on SQLite that has no worker."""
    given = {"NOETL_DATABASE_URL": f"sqlite:///{folder}/noetl.db", "NOETL_SECRET_KEY": SECRET_KEY}
    settings = Settings.from_environment(given)
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(wiring.embedded(settings, work=False, serves=True))
        if keeps:
            await stack.enter_async_context(wiring.keeping_triggers(system))
        yield system


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    while not (found := await holds()):
        await asyncio.sleep(0.02)
    return found


async def times(system: Services, outcome: str = "") -> list[TriggerTime]:
    """What became of times, oldest first."""
    found = await system.store.triggers.times("t/s", limit=1000)
    return [one for one in reversed(found) if outcome in ("", one.outcome)]


async def started(system: Services, count: int) -> list[TriggerTime]:
    async def enough() -> list[TriggerTime]:
        found = await times(system, "started")
        return found if len(found) >= count else []

    found: list[TriggerTime] = await until(enough)
    return found


async def end(system: Services, one: TriggerTime, name: str = "go") -> None:
    assert one.execution_id is not None
    await system.executions.signal(one.execution_id, name)
    await system.executions.wait(one.execution_id)


async def check_each_once(system: Services) -> list[TriggerTime]:
    """Every time from the first to the last has been decided, and each started one has one
    execution of its own, under its key, by its schedule.
    """
    found = await times(system)
    seconds = [round(one.time) for one in found]
    assert seconds == list(range(seconds[0], seconds[-1] + 1)), "a time is missing or came twice"
    rows = {row.execution_id: row for row in await system.store.records.summaries(limit=1000)}
    begun = [one for one in found if one.outcome == "started"]
    assert Counter(one.execution_id for one in begun) == Counter(rows.keys())
    for one in begun:
        assert one.execution_id is not None
        key = rows[one.execution_id].idempotency_key or ""
        assert key.startswith(f"schedule/t/s/{moment(one.time)}"), key
        state = await system.orchestrator.state(one.execution_id)
        assert str(state.actor) == "schedule t/s"
        assert state.workload["time"].startswith("20")
    return found


def test_each_time_starts_one_execution_with_its_workload(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(overlap="allow_all"))
            await started(system, 3)
            await system.schedules.pause("t/s")
            found = await check_each_once(system)
            document_ = await system.executions.shown(str(found[0].execution_id))
            assert document_.workload["time"] == f"{moment(found[0].time)}+00:00"
            audit = await system.store.access.audit(limit=100)
            assert [one.who for one in audit].count("schedule t/s") == len(found)

    run(story)


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def test_what_was_missed_while_nothing_ran_is_caught_up_each_time_once(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, WAITING)
            await register(system, document(overlap="allow_all"))
        await asyncio.sleep(3.1)
        async with embedded(tmp_path) as system:
            await started(system, 3)
            await system.schedules.pause("t/s")
            await check_each_once(system)

    run(story)


def test_overlap_skip_starts_the_next_time_after_the_end(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document())
            [first] = await started(system, 1)
            skipped = await until(lambda: times(system, "skipped"))
            assert skipped[0].reason == f"execution {first.execution_id} was running"
            await end(system, first)
            assert (await started(system, 2))[1].time > skipped[0].time

    run(story)


def test_overlap_buffer_starts_what_waits_as_soon_as_the_execution_has_ended(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(overlap="buffer_one"))
            [first] = await started(system, 1)
            waits = (await until(lambda: times(system, "buffered")))[0]
            dropped = (await until(lambda: times(system, "skipped")))[0]
            assert "another time waits already" in dropped.reason
            await end(system, first)
            second = (await started(system, 2))[1]
            assert second.time == waits.time

    run(story)


def test_overlap_cancel_other_stops_what_runs(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(overlap="cancel_other"))
            first, *_ = await started(system, 2)
            state = await system.orchestrator.state(str(first.execution_id))
            assert state.status == "CANCELLED"
            assert str(state.acts[-1].actor) == "schedule t/s"

    run(story)


UNDOING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: undoing, path: t/waiting}
executor: {spec: {policy: {compensate_on: [cancel]}}}
workload: {time: ""}
workflow:
  - step: start
    spec: {eval_mode: on_event, compensate: undo}
    case: [{when: "{{ event.name == 'go' }}", then: {next: rest}}]
  - step: rest
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'never' }}", then: {result: {value: 1}}}]
  - step: undo
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'undone' }}", then: {result: {value: 1}}}]
"""


def test_overlap_cancel_other_waits_for_what_undoes_its_work(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, UNDOING)
            await register(system, document(overlap="cancel_other", every="2s"))
            [first] = await started(system, 1)
            execution_id = str(first.execution_id)
            await system.executions.signal(execution_id, "go")

            async def rests() -> bool:
                state = await system.orchestrator.state(execution_id)
                row = await system.store.triggers.get("t/s")
                return state.cancelling and (row.next_at or 0) > system.clock.now() + 9

            await until(rests)
            await system.schedules.settle(TriggerRow(path="t/s", kind="Schedule"))
            state = await system.orchestrator.state(execution_id)
            assert (state.status, [run.step for run in state.runs.values()]) == (
                "RUNNING",
                ["undo"],
            )
            await system.executions.signal(execution_id, "undone")
            assert (await started(system, 2))[1].time > first.time
            assert (await system.orchestrator.state(execution_id)).status == "CANCELLED"

    run(story)


def test_a_failure_pauses_and_people_resume(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(pause_on_failure=True))
            [first] = await started(system, 1)
            await end(system, first, "break")

            async def paused() -> bool:
                return (await system.schedules.find("t/s"))[1].status == "paused"

            await until(paused)
            state = (await system.schedules.find("t/s"))[1]
            assert state.reason == f"execution {first.execution_id} failed (pause_on_failure)"
            await system.schedules.resume("t/s")
            await started(system, 2)

    run(story)


def test_a_playbook_that_is_not_there_is_said_for_each_time(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, document())
            [first, *_] = await until(lambda: times(system, "missed"))
            assert 'no playbook "t/waiting" is registered' in first.reason

    run(story)


def test_the_log_says_once_that_a_playbook_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async def missed(system: Services, name: str, count: int) -> None:
        await until(lambda: some(system, name, count))

    async def some(system: Services, name: str, count: int) -> bool:
        return len([one for one in await times(system, "missed") if name in one.reason]) >= count

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, document())
            await missed(system, "t/waiting", 3)
            await register(system, document(playbook="t/other"))
            await missed(system, "t/other", 2)

    run(story)

    said = [one.getMessage() for one in caplog.records if "starts nothing" in one.getMessage()]
    assert len(said) == 2
    assert "t/waiting" in said[0]
    assert "t/other" in said[1]


def test_a_workload_that_cannot_be_rendered_is_said_for_each_time(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(workload={"x": "{{ schedule.time / 2 }}"}))
            [first, *_] = await until(lambda: times(system, "missed"))
            assert "it could not be started" in first.reason

    run(story)


def test_backfill_twice_starts_nothing_twice(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(every="1h", overlap="skip"))
            last = system.clock.now() - 3600
            args = ("t/s", last - 3 * 3600, last)
            assert len((await system.schedules.backfill(*args, dry_run=True))[0]) == 3
            assert await times(system) == []
            new, _ = await system.schedules.backfill(*args, dry_run=False)
            again, known = await system.schedules.backfill(*args, dry_run=False)
            assert (len(new), again, len(known)) == (3, [], 3)
            for number in range(1, 4):
                begun = await started(system, number)
                assert len(begun) == number, "one after the other"
                await end(system, begun[-1])
            assert [one.time for one in await times(system)] == new
            assert (await system.schedules.backfill(*args, dry_run=False))[0] == []
            assert len(await system.store.records.summaries()) == 3

    run(story)


def test_backfill_starts_no_time_before_it_is_due(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(every="1h", overlap="allow_all"))
            now = system.clock.now()
            for is_paused in (False, True):
                if is_paused:
                    await system.schedules.pause("t/s")
                args = ("t/s", now - 2 * 3600, now + 5 * 3600)
                wanted, known = await system.schedules.backfill(*args, dry_run=False)
                found = [*wanted, *(one.time for one in known)]
                assert len(found) == 2
                assert max(found) <= now

    run(story)


def test_what_was_due_during_a_pause_is_left_to_backfill(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(overlap="allow_all", catchup_window="1h"))
            await started(system, 1)
            await system.schedules.pause("t/s")
            before = len(await times(system))
            begun = system.clock.now()
            await asyncio.sleep(2.5)
            resumed = system.clock.now()
            paused, _ = await system.schedules.backfill("t/s", begun, resumed, dry_run=True)
            assert len(paused) >= 2, "also while it is paused"
            await system.schedules.resume("t/s")
            found = await started(system, before + 1)
            assert [one.time for one in found if begun < one.time <= resumed] == []
            new, _ = await system.schedules.backfill("t/s", begun, resumed, dry_run=True)
            assert len(new) >= 2

    run(story)


def test_times_outlive_their_executions_and_are_not_started_again(store_url: str):
    async def story() -> None:
        async with servers(store_url, 1) as (system,), wiring.keeping_triggers(system):
            await register(system, WAITING)
            await register(system, document(every="1h", overlap="allow_all"))
            last = system.clock.now() - 3600
            span = ("t/s", last - 2 * 3600, last)
            new, _ = await system.schedules.backfill(*span, dry_run=False)
            begun = await started(system, 2)
            for one in begun:
                await end(system, one)
            retention = Retention(system.store, system.clock, keep_rules("1ms"))

            async def all_gone() -> bool:
                await retention.prune()
                return await system.store.records.count() == 0

            await until(all_gone)
            kept = await times(system, "started")
            assert [one.time for one in kept] == new
            assert [one.execution_id for one in kept] == [one.execution_id for one in begun]
            again, known = await system.schedules.backfill(*span, dry_run=False)
            assert (again, len(known)) == ([], 2)
            assert await system.store.records.count() == 0

    run(story)


def test_a_time_that_could_not_be_stored_is_tried_again_and_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            commit, refused = system.store.log.commit, 0

            async def full_once(*given: Any, **more: Any) -> Any:
                nonlocal refused
                refused += 1
                if refused == 1:
                    raise StoreError("the disk is full. Nothing of this was written.")
                return await commit(*given, **more)

            await register(system, WAITING)
            monkeypatch.setattr(system.store.log, "commit", full_once)
            await register(system, document(overlap="allow_all"))
            await started(system, 2)
            assert {one.outcome for one in await check_each_once(system)} == {"started"}

    run(story)


def test_an_execution_that_was_removed_does_not_run_any_more(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document())
            [first] = await started(system, 1)
            await system.schedules.pause("t/s")
            await end(system, first)
            keeping = Retention(system.store, system.clock, keep_rules("1ms"))
            assert await keeping.delete(str(first.execution_id)) == 1
            await system.schedules.resume("t/s")
            await started(system, 2)

    run(story)


def test_the_end_of_one_that_people_started_does_not_hide_the_one_that_runs(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document())
            [first] = await started(system, 1)
            asked_for, _ = await system.schedules.start_now("t/s")
            await system.executions.signal(asked_for, "go")
            await system.executions.wait(asked_for)
            ended = system.clock.now()

            async def skipped() -> Any:
                found = [one for one in await times(system, "skipped") if one.time > ended]
                return found[1:]

            [second, *_] = await until(skipped)
            assert second.reason == f"execution {first.execution_id} was running"
            assert len(await times(system, "started")) == 2

    run(story)


def test_run_starts_one_now_also_while_it_is_paused(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(every="1h"))
            await system.schedules.pause("t/s", "stocktaking")
            execution_id, _ = await system.schedules.start_now("t/s")
            [one] = await times(system)
            assert (one.execution_id, one.origin) == (execution_id, "run")
            both = await asyncio.gather(*(system.schedules.start_now("t/s") for _ in range(2)))
            found = await times(system, "started")
            assert {one.execution_id for one in found} == {execution_id, *(new for new, _ in both)}
            assert len(found) == 3

    run(story)


def test_a_new_version_a_pause_and_a_deletion_hold_at_once(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(every="1h"))
            await register(system, document(overlap="allow_all"))
            await started(system, 1)
            assert (await system.schedules.find("t/s"))[1].version == 2
            await system.schedules.pause("t/s", "stocktaking")
            await register(system, document(overlap="allow_all", catchup_window="2h"))
            state = (await system.schedules.find("t/s"))[1]
            assert (state.version, state.status, state.reason) == (3, "paused", "stocktaking")
            count = len(await times(system, "started"))
            await system.schedules.delete("t/s")
            with pytest.raises(NotFound):
                await system.schedules.find("t/s")
            assert (await system.store.triggers.get("t/s")).next_at is None  # type: ignore[union-attr]
            await register(system, document(overlap="allow_all"))
            await started(system, count + 1)

    run(story)


def test_times_that_wait_are_skipped_when_their_schedule_is_deleted(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(overlap="buffer_all"))
            [running] = await started(system, 1)
            assert running.execution_id is not None
            await until(lambda: times(system, "buffered"))
            await system.schedules.delete("t/s")
            assert await times(system, "buffered") == []
            skipped = await times(system, "skipped")
            assert {one.reason for one in skipped} == {"the schedule was deleted"}
            await system.executions.cancel(running.execution_id)
            await register(system, document(every="1h", overlap="buffer_all"))
            await system.schedules.start_now("t/s")
            assert len(await times(system, "started")) == 2

    run(story)


def test_times_before_a_new_version_are_not_its_own(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(every="1h", catchup_window="1h"))
            await asyncio.sleep(2.1)
            renewed = system.clock.now()
            await register(system, document(overlap="allow_all", catchup_window="1h"))
            found = await started(system, 1)
            assert found[0].time > renewed

    run(story)


def test_times_while_a_schedule_was_deleted_are_not_caught_up(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            text = document(overlap="allow_all", catchup_window="1h")
            await register(system, text)
            await started(system, 1)
            await system.schedules.delete("t/s")
            before, deleted = len(await times(system)), system.clock.now()
            await asyncio.sleep(2.1)
            again = system.clock.now()
            await register(system, text)
            found = await started(system, before + 1)
            assert [one.time for one in found if deleted < one.time <= again] == []

    run(story)


def test_what_is_due_when_a_new_version_comes_is_the_old_ones(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, WAITING)
            await register(system, document())
            await asyncio.sleep(1.1)
            await register(system, document(every="1h"))
            [first, *_] = await times(system)
            assert first.outcome == "started"

    run(story)


def test_missed_times_can_be_filled_in(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, document(overlap="allow_all"))
            await until(lambda: times(system, "missed"))
            await system.schedules.pause("t/s")
            missed = [one.time for one in await times(system, "missed")]
            await register(system, WAITING)
            new, known = await system.schedules.backfill(
                "t/s", missed[0], missed[-1], dry_run=False
            )
            assert (new, known) == (missed, [])
            await system.schedules.resume("t/s")
            begun = await started(system, len(missed))
            assert [one.time for one in begun if one.origin == "backfill"] == missed

    run(story)


def test_a_schedule_cannot_take_the_path_of_a_playbook(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING.replace("t/waiting", "t/s"))
            with pytest.raises(Conflict):
                await register(system, document())
            await register(system, document().replace("path: t/s", "path: t/other"))
            with pytest.raises(NotFound, match="is a Schedule, not a playbook"):
                await system.catalog.wanted("t/other", None, None)

    run(story)


# --- Several servers ---------------------------------------------------------------------------


def test_three_servers_start_each_time_once(database_url: str):
    async def story() -> None:
        async with AsyncExitStack() as stack:
            found = await stack.enter_async_context(servers(database_url, 3))
            for system in found:
                await stack.enter_async_context(wiring.keeping_triggers(system))
            await register(found[0], WAITING)
            await register(found[1], document(overlap="allow_all"))
            await started(found[2], 3)
            await found[2].schedules.pause("t/s")
            await check_each_once(found[0])

    run(story)


def test_servers_that_all_decide_at_once_start_it_once(database_url: str):
    """Nobody leaves it to its owner: all settle at the same moment."""

    async def story() -> None:
        async with servers(database_url, 3) as found:
            await register(found[0], WAITING)
            await register(found[0], document(overlap="allow_all"))
            for _ in range(3):
                await asyncio.sleep(1)
                due = TriggerRow(path="t/s", kind="Schedule")
                await asyncio.gather(*(one.schedules.settle(due) for one in found for _ in "ab"))
            await check_each_once(found[0])
            assert len(await times(found[0], "started")) >= 3

    run(story)


def test_a_run_that_is_asked_of_two_servers_at_once_under_one_key_is_one(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(database_url, 2) as (first, second):
            await register(first, WAITING)
            await register(first, document(every="10h", overlap="allow_all"))
            by_key, started = second.store.records.by_key, []

            async def overtaken(key: str) -> Any:
                found = await by_key(key)
                if not started:
                    started.append((await first.schedules.start_now("t/s", key="one"))[0])
                return found

            monkeypatch.setattr(second.store.records, "by_key", overtaken)
            assert await second.schedules.start_now("t/s", key="one") == (*started, True)
            assert [one.outcome for one in await times(first)] == ["started"]

    run(story)


def test_an_end_that_another_server_stores_lets_go_on_what_waits(database_url: str):
    async def story() -> None:
        async with AsyncExitStack() as stack:
            found = await stack.enter_async_context(servers(database_url, 2))
            for system in found:
                await stack.enter_async_context(wiring.keeping_triggers(system))
            await register(found[0], WAITING)
            await register(found[0], document(every="1h", overlap="skip"))
            now = found[0].clock.now()
            await found[0].schedules.backfill("t/s", now - 3 * 3600, now, dry_run=False)
            for number in range(1, 4):
                begun = await started(found[0], number)
                await end(found[number % 2], begun[-1])
            assert len(await times(found[0], "started")) == 3

    run(story)


def test_a_pause_holds_on_servers_that_did_not_hear_of_it(database_url: str):
    async def story() -> None:
        async with AsyncExitStack() as stack:
            found = await stack.enter_async_context(servers(database_url, 2))
            for system in found:
                await stack.enter_async_context(wiring.keeping_triggers(system))
            await register(found[0], WAITING)
            await register(found[0], document(overlap="allow_all"))
            await started(found[0], 1)
            async with deaf(database_url, 2):
                await found[0].schedules.pause("t/s")
                before = await times(found[0])
                await asyncio.sleep(2.5)
                assert await times(found[1]) == before

    run(story)


def test_what_a_command_registers_before_it_ends_is_taken_over_at_once(database_url: str):
    """The server has nothing to wait for, and would look again in half a minute."""

    async def story() -> None:
        async with AsyncExitStack() as stack:
            [server] = await stack.enter_async_context(servers(database_url, 1))
            await stack.enter_async_context(wiring.keeping_triggers(server))
            await register(server, WAITING)
            given = {"NOETL_DATABASE_URL": database_url, "NOETL_SECRET_KEY": SECRET_KEY}
            settings = Settings.from_environment(given)
            async with wiring.embedded(settings, work=False) as visitor:
                await register(visitor, document())
            watch = Stopwatch()
            async with asyncio.timeout(PATIENCE):
                await started(server, 1)
            assert watch.seconds() < 10

    run(story)


def test_a_machine_that_has_slept_starts_what_was_due_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The clock on the wall is an hour on, and that of leases is not."""

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, document(every="1h"))
            before, plain = system.clock.now(), time.time
            monkeypatch.setattr(time, "time", lambda: plain() + 3600)
            async with asyncio.timeout(PATIENCE):
                await started(system, 1)
            assert system.clock.now() - before < 60

    run(story)


# --- Many --------------------------------------------------------------------------------------


def test_ten_thousand_schedules_cost_a_start_nothing_and_no_query_while_none_is_due(tmp_path: Path):
    """What a server does for schedules that are not due does not grow with their number."""

    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, document(every="1h"))
            await fill(system, 10_000)
        watch = Stopwatch()
        async with embedded(tmp_path) as system:
            assert watch.seconds() < 5
            asked = 0
            plain = system.store.triggers.next_due

            async def counting() -> float | None:
                nonlocal asked
                asked += 1
                return await plain()

            system.store.triggers.next_due = counting  # type: ignore[method-assign]
            # On a busy machine what is looked at first may still come in the first seconds.
            for _ in range(5):
                before = asked
                await asyncio.sleep(3)
                if asked == before:
                    break
            before = asked
            await asyncio.sleep(3)
            assert asked == before, "a server that waits asks for nothing"

    run(story)


async def fill(system: Services, count: int) -> None:
    """So many schedules, each due in an hour, written as registering would."""
    schedule = Schedule(name="many", path="m", playbook=PlaybookRef(path="t/waiting"), every=3600.0)
    net = encode(schedule)
    now = system.clock.now()
    state = ScheduleState(version=1, digest=digest(schedule), since=now)
    entry = CatalogEntry(
        catalog_id="1", path="m/0", version=1, kind="Schedule", digest=state.digest, content="m"
    )
    await system.store.catalog.register(entry, net)
    for begin in range(0, count, 500):
        await asyncio.gather(
            *(
                system.store.catalog.register(
                    msgspec.structs.replace(entry, catalog_id=f"c{n}", path=f"m/{n}"),
                    net,
                    lambda _, __, n=n: TriggerRow(
                        path=f"m/{n}",
                        kind="Schedule",
                        next_at=now + 3600,
                        state=msgspec.json.encode(state),
                    ),
                )
                for n in range(begin, begin + 500)
            )
        )


LIMITED = WAITING.replace(
    "workflow:", "executor: {spec: {concurrency: {key: one, limit: 1}}}\nworkflow:"
)


def test_what_a_schedule_starts_waits_for_its_turn_where_a_limit_has_no_room(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as [system]:
            await register(system, LIMITED)
            await register(system, document(every="1h", overlap="allow_all"))
            ids = [(await system.schedules.start_now("t/s"))[0] for _ in range(3)]
            states = [await system.orchestrator.state(one) for one in ids]
            assert [state.status for state in states] == ["RUNNING", "PENDING", "PENDING"]
            assert [one.outcome for one in await times(system)] == ["started"] * 3

    run(story)
