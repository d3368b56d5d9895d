"""Who is given work: everybody who waits in turn, and at once, whenever it was that it came."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from noetl.api.services import Services
from noetl.errors import StoreError
from noetl.model.commands import Lease
from tests.control.servers import done, lapse, leased, run, servers, started, waiting
from tests.stopwatch import PATIENCE

FORK = """\
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}, {step: d}]}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
  - {step: c, tool: {kind: noop}}
  - {step: d, tool: {kind: noop}}
"""

FAN = """\
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}]}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: d}]}}
  - {step: b, tool: {kind: noop}}
  - {step: c, tool: {kind: noop}}
  - {step: d, tool: {kind: noop}}
"""
"""Two of its commands wait while the first is worked on, from which another follows."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        found: str = request.getfixturevalue("new_database_url")
        return found
    return f"sqlite:///{tmp_path}/noetl.db"


def test_four_commands_for_two_workers_are_two_for_each(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            await started(system, FORK)
            [first] = await leased(system, "w-0")
            others = [await waiting(system, name, want=64) for name in ("w-1", "w-2")]

            await system.orchestrator.report(done(first, "w-0"))

            assert [len(await given) for given in others] == [2, 2]

    run(story)


def test_what_is_opened_while_a_worker_looks_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            claim = system.store.queue.claim

            async def opened_just_behind(*words, **options):
                found = await claim(*words, **options)
                if not found:
                    await started(system, FORK)
                return found

            monkeypatch.setattr(system.store.queue, "claim", opened_just_behind)

            async with asyncio.timeout(30):
                [_] = await leased(system, "w", wait=60)

    run(story)


ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


def test_a_slot_whose_execution_has_ended_is_given_the_next_one_in_the_same_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            orchestrator, claim = system.orchestrator, system.store.queue.claim
            ids = [await started(system, ONE_STEP) for _ in range(3)]
            [held] = await leased(system, "w")
            monkeypatch.setattr(system.store.queue, "claim", None)
            given = [held]
            for _ in range(2):
                [following] = (await orchestrator.report(done(given[-1], "w"), want=1)).leases
                given.append(following)
            assert (await orchestrator.report(done(given[-1], "w"), want=1)).leases == ()

            assert [one.command.execution_id for one in given] == ids
            for execution_id in ids:
                assert (await orchestrator.wait_for_end(execution_id)).status == "COMPLETED"
            # Nobody who was answered counts as waiting.
            monkeypatch.setattr(system.store.queue, "claim", claim)
            last = await started(system, ONE_STEP)
            [lease] = await leased(system, "other")
            assert lease.command.execution_id == last

    run(story)


def test_what_was_to_be_given_with_a_commit_that_fails_is_claimed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            for _ in range(2):
                await started(system, ONE_STEP)
            [held] = await leased(system, "w")

            async def full(*_: object, **__: object) -> None:
                raise StoreError("the disk is full.")

            with monkeypatch.context() as broken:
                broken.setattr(system.store.log, "commit", full)
                with pytest.raises(StoreError, match="full"):
                    await system.orchestrator.report(done(held, "w"), want=1)

            async with asyncio.timeout(30):
                [_] = await leased(system, "other", wait=60)
            assert (await system.orchestrator.report(done(held, "w"), want=1)).leases == ()

    run(story)


def test_s24_commands_that_were_lost_twice_are_given_to_workers_that_run_nothing_else(
    tmp_path: Path,
):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            for _ in range(3):
                await started(system, ONE_STEP)
            for name in ("a", "b"):
                lost = await leased(system, name, want=4)
                assert len(lost) == 3
                for one in lost:
                    await lapse(system.orchestrator, one, name)

            [first] = await leased(system, "c", want=4)
            await started(system, ONE_STEP)
            # It may die of what it has, so it is given nothing beside it.
            assert await leased(system, "c", want=3, wait=0.1) == []
            [second] = await leased(system, "d", want=4)
            [third] = await leased(system, "e", want=4)
            [fresh] = await leased(system, "f", want=4)
            assert [one.command.deliveries for one in (first, second, third, fresh)] == [3, 3, 3, 1]

            # What has ended did not kill its worker, which goes on as any other.
            await system.orchestrator.report(done(first, "c"))
            await started(system, ONE_STEP)
            await started(system, ONE_STEP)
            assert len(await leased(system, "c", want=4)) == 2

    run(story)


def test_s24_a_busy_worker_runs_dry_for_a_command_that_was_lost_twice(tmp_path: Path):
    async def story() -> None:
        async with servers(f"sqlite:///{tmp_path}/noetl.db", 1) as (system,):
            await started(system, ONE_STEP)
            for name in ("a", "b"):
                [lost] = await leased(system, name)
                if name == "b":
                    await started(system, ONE_STEP)
                    await started(system, ONE_STEP)
                    [busy] = await leased(system, "c")
                    [other] = await leased(system, "d")
                await lapse(system.orchestrator, lost, name)
            for _ in range(2):
                await started(system, ONE_STEP)

            # One worker takes nothing more until it has ended what it runs; the others go on.
            assert await leased(system, "c", want=4, wait=0.1) == []
            assert len(await leased(system, "d", want=4, wait=0.1)) == 2
            await system.orchestrator.report(done(busy, "c"))
            [suspect] = await leased(system, "c", want=4)
            assert suspect.command.deliveries == 3
            assert other.command.deliveries == 1

    run(story)


async def fanned_out(system: Services) -> Lease:
    """The first of three commands of an execution; the two others wait, with an earlier start."""
    await started(system, FAN)
    [first] = await leased(system, "w")
    await system.orchestrator.report(done(first, "w"))
    [given] = await leased(system, "w")
    assert given.command.step == "a"
    return given


def test_the_next_report_of_a_fan_out_takes_whoever_came_meanwhile(url: str):
    async def story() -> None:
        async with servers(url, 1) as (system,):
            first = await fanned_out(system)
            newcomer = await started(system, ONE_STEP)

            answer = await system.orchestrator.report(done(first, "w"), want=1)
            [given] = answer.leases
            assert given.command.execution_id == newcomer
            # What followed from the report joined the line, and is not lost.
            found = await leased(system, "w", want=4)
            assert [one.command.step for one in found] == ["b", "c", "d"]

    run(story)


def test_a_fan_out_goes_on_with_what_follows_while_nobody_else_is_there(url: str):
    async def story() -> None:
        async with servers(url, 1) as (system,):
            first = await fanned_out(system)

            answer = await system.orchestrator.report(done(first, "w"), want=1)
            assert [one.command.step for one in answer.leases] == ["d"]

    run(story)


def test_a_newcomer_goes_on_if_the_report_that_made_room_is_not_stored(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with servers(url, 1) as (system,):
            system.orchestrator.dispatch.lease_seconds = 3600  # It does not lapse meanwhile.
            first = await fanned_out(system)
            newcomer = await started(system, ONE_STEP)

            async def full(*_: object, **__: object) -> NoReturn:
                raise StoreError("the disk is full")

            with monkeypatch.context() as patch:
                patch.setattr(system.store.log, "commit", full)
                with pytest.raises(StoreError, match="disk is full"):
                    await system.orchestrator.report(done(first, "w"), want=1)

            executions = set()
            async with asyncio.timeout(PATIENCE):
                while newcomer not in executions:
                    given = await leased(system, "v", want=4)
                    executions |= {one.command.execution_id for one in given}

    run(story)


def test_a_worker_that_got_all_there_was_is_not_sent_to_look_for_more(url: str):
    async def story() -> None:
        async with servers(url, 1) as (system,):
            dispatch = system.orchestrator.dispatch
            assert await leased(system, "w", wait=0) == []
            await started(system, FAN)
            [first] = await leased(system, "w")
            assert dispatch.backlog["default"] == 0

            dispatch.claimed_at["default"] -= 1  # Somebody else would have its turn by now.
            answer = await system.orchestrator.report(done(first, "w"), want=1)
            assert [one.command.step for one in answer.leases] == ["a"]

            # Two are left, and one is taken of them.
            assert len(await leased(system, "w")) == 1
            assert dispatch.backlog["default"] == 1

    run(story)


def test_what_could_not_be_claimed_while_paused_is_found_by_whoever_comes_after_it(url: str):
    async def story() -> None:
        async with servers(url, 1) as (system,):
            paused = await started(system, ONE_STEP)
            await system.orchestrator.pause(paused)
            assert await leased(system, "w", wait=0) == []

            await system.orchestrator.resume(paused)
            [given] = await leased(system, "w", wait=0)
            assert given.command.execution_id == paused

    run(story)
