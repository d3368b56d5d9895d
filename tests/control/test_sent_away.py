"""T35: a server that ends sends workers away with what it was giving them, or with nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.control.kinds import lease_of_kinds
from noetl.model.commands import Lease
from tests.control.servers import leased, run, servers, started, waiting

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


def test_t35_a_worker_that_waits_is_sent_away_and_others_are_not(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            one = await waiting(system, "w-1")
            other = await waiting(system, "w-2")

            system.orchestrator.dispatch.send_away("w-1")

            assert await one == []
            await started(system, ONE_STEP)
            assert len(await other) == 1

    run(story)


def test_t35_a_worker_that_was_sent_away_may_take_what_is_open_but_does_not_wait(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            await started(system, ONE_STEP)
            system.orchestrator.dispatch.send_away("w")

            assert len(await leased(system, "w", wait=60)) == 1
            assert await leased(system, "w", wait=60) == []

    run(story)


def test_t35_what_is_being_given_to_a_worker_it_gets_though_it_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            given = await waiting(system, "w")
            commit = system.store.log.commit

            async def sent_away_meanwhile(writes, **options):
                [[command]] = [write.commands for write in writes]
                assert command.worker_id == "w"
                system.orchestrator.dispatch.send_away("w")
                return await commit(writes, **options)

            monkeypatch.setattr(system.store.log, "commit", sent_away_meanwhile)
            execution_id = await started(system, ONE_STEP)

            [lease] = await given
            assert lease.command.execution_id == execution_id

    run(story)


def test_what_a_worker_of_some_kinds_was_just_given_when_it_went_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            queue = system.store.queue
            claim_of = queue.claim_of

            async def gone_meanwhile(*chosen: Any, **options: Any) -> list[Lease]:
                found = await claim_of(*chosen, **options)
                asking.cancel()
                await asyncio.sleep(0)
                return found

            monkeypatch.setattr(queue, "claim_of", gone_meanwhile)
            await started(system, ONE_STEP)
            parts = system.orchestrator, queue, system.clock
            asking = asyncio.create_task(
                lease_of_kinds(*parts, "w", ["noop"], pool="default", want=1, wait=0.0)
            )
            await asyncio.wait([asking])

            assert asking.cancelled()
            assert len(await leased(system, "other", wait=5)) == 1

    run(story)
