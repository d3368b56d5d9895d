"""Law 4: what is read from the store while it is forgotten again does not come back older."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from noetl.api.route import Caller
from noetl.api.routes import moments
from noetl.control.commit_loop import BATCH_MAX
from noetl.errors import NotFound, StoreError
from noetl.store.log import EventRow, Loaded, Write
from tests.control.servers import done, leased, run, servers, started

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


def test_an_execution_that_moved_while_it_was_read_is_read_again(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            memory, read = system.orchestrator.memory, system.store.log.load
            was_read, goes_on = asyncio.Event(), asyncio.Event()

            async def slowly(wanted: str) -> Loaded | None:
                loaded = await read(wanted)
                was_read.set()
                await goes_on.wait()
                return loaded

            memory.drop(execution_id)
            system.store.log.load = slowly
            asking = asyncio.create_task(system.orchestrator.state(execution_id))
            await was_read.wait()
            system.store.log.load = read
            await system.orchestrator.cancel(execution_id)
            memory.drop(execution_id)
            goes_on.set()

            assert (await asking).status == "CANCELLED"
            assert (await system.orchestrator.wait_for_end(execution_id)).status == "CANCELLED"

    run(story)


def test_asking_for_what_is_not_there_leaves_nothing_behind(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):

            async def ask(count: int) -> None:
                for number in range(count):
                    with pytest.raises(NotFound):
                        await system.orchestrator.state(f"{count}-{number}")

            await ask(100)
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                await ask(1000)
                gc.collect()
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()

            assert after - before < 50_000

    run(story)


def test_whoever_waits_for_chosen_events_has_each_event_looked_at_once(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            begun = await system.store.log.heads([execution_id])
            read, looks, looked = system.store.log.events, [], asyncio.Event()

            async def noting(wanted: str, **how: Any) -> list[EventRow]:
                looks.append(how["after"])
                found = await read(wanted, **how)
                looked.set()
                return found

            system.store.log.events = noting
            chosen = {"types": ("playbook.processed",), "step": None}
            waiting = asyncio.create_task(
                system.executions.next_events(execution_id, after=0, limit=9, wait=60, **chosen)
            )
            await looked.wait()
            looked.clear()
            # Another server may have stored something.
            system.orchestrator.watchers.tell(execution_id, None, may_have_ended=False)
            await looked.wait()
            await system.orchestrator.cancel(execution_id)

            assert [row.type for row in await waiting] == ["playbook.processed"]
            # What this server has stored meanwhile is not read at all.
            assert looks == [0, begun[execution_id]]

    run(story)


@pytest.mark.parametrize("is_refused", [False, True])
def test_nobody_hears_of_what_is_decided_before_it_is_stored(tmp_path: Path, is_refused: bool):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            execution_id = await started(system, ONE_STEP)
            [lease] = await leased(system, "w")
            stored = system.store.log.commit
            is_being_stored, goes_on = asyncio.Event(), asyncio.Event()

            async def slowly(writes: Sequence[Write], **how: Any) -> Any:
                if any(write.closed for write in writes):
                    is_being_stored.set()
                    await goes_on.wait()
                    system.store.log.commit = stored
                    if is_refused:
                        raise StoreError("the disk is full.")
                return await stored(writes, **how)

            system.store.log.commit = slowly
            reporting = asyncio.create_task(system.orchestrator.report(done(lease, "w")))
            await is_being_stored.wait()
            memory = system.orchestrator.memory.find(execution_id)
            assert memory is not None
            assert memory.state.status == "COMPLETED"
            orchestrator, query = system.orchestrator, moments.AtSeq()
            caller = cast(Caller, None)
            asking = [
                asyncio.create_task(one)
                for one in (
                    orchestrator.state(execution_id),
                    orchestrator.last_known(execution_id),
                    system.executions.shown(execution_id),
                    moments.state(system, caller, execution_id=execution_id, query=query),
                )
            ]
            asked, _ = await asyncio.wait(asking, timeout=0.05)
            told = [one.result().status for one in asked]
            goes_on.set()
            told += [(await one).status for one in asking if one not in asked]
            outcomes = await asyncio.gather(reporting, return_exceptions=True)

            assert told == ["RUNNING" if is_refused else "COMPLETED"] * 4
            assert asked == set()
            assert isinstance(outcomes[0], StoreError) is is_refused

    run(story)


def test_nobody_hears_of_what_is_decided_while_they_read_the_store(tmp_path: Path):
    """The reader and the commit loop both find nothing in memory; the commit loop is faster."""

    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            orchestrator, log = system.orchestrator, system.store.log
            execution_id = await started(system, ONE_STEP)
            await orchestrator.last_known(execution_id)
            orchestrator.memory.drop(execution_id)
            load, commit = log.load, log.commit
            is_being_stored, goes_on = asyncio.Event(), asyncio.Event()

            async def load_late(wanted: str) -> Loaded | None:
                found = await load(wanted)
                if asyncio.current_task() is asking:
                    await is_being_stored.wait()
                return found

            async def commit_late(*writes: Any, **how: Any) -> Any:
                is_being_stored.set()
                await goes_on.wait()
                return await commit(*writes, **how)

            log.load, log.commit = load_late, commit_late
            cancelling = asyncio.create_task(orchestrator.cancel(execution_id))
            caller, query = cast(Caller, None), moments.AtSeq()
            asking = asyncio.create_task(
                moments.state(system, caller, execution_id=execution_id, query=query)
            )
            await is_being_stored.wait()
            early, _ = await asyncio.wait([asking], timeout=0.05)
            goes_on.set()
            await cancelling

            assert not early
            assert (await asking).status == "CANCELLED"

    run(story)


def test_whoever_asks_waits_for_the_batch_that_is_being_written_and_not_for_those_behind_it(
    tmp_path: Path,
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            orchestrator = system.orchestrator
            execution_id = await started(system, ONE_STEP)
            await orchestrator.last_known(execution_id)
            commit = system.store.log.commit
            is_being_stored, goes_on = asyncio.Event(), asyncio.Event()

            async def held(*writes: Any, **how: Any) -> Any:
                is_being_stored.set()
                await goes_on.wait()
                return await commit(*writes, **how)

            system.store.log.commit = held
            changes = [
                asyncio.create_task(orchestrator.change_vars(execution_id, {"n": number}))
                for number in range(3 * BATCH_MAX)
            ]
            await is_being_stored.wait()
            asking = asyncio.create_task(orchestrator.state(execution_id))
            await asyncio.sleep(0.02)
            assert not asking.done()
            goes_on.set()
            await asking

            assert 0 < sum(change.done() for change in changes) <= BATCH_MAX
            await asyncio.gather(*changes)

    run(story)
