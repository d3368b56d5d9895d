"""SIM of random playbooks: whatever a playbook says and whatever happens to it, it ends, nothing of
it is left over, and no recorded call is made again.

A failure prints the playbook and its seed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from noetl.control.executions import Executions
from noetl.control.forks import Wish
from noetl.engine.evolve import evolve
from noetl.engine.signals import received
from noetl.errors import NoetlError
from noetl.model.events import IterationDone, IterationFailed, TaskDone, decode
from noetl.model.net import Net
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState
from tests.effort import IS_LONG
from tests.simulation.playbooks import Maker
from tests.simulation.world import World, simulate

ROOT = "1"
WITHIN = 40_000.0
PLAYBOOKS = 1000 if IS_LONG else 24
"""For each kind of trouble."""
Trouble = Callable[[World, random.Random], Awaitable[None]]


async def nothing_is_missing(net: Net) -> TaskError | None:
    return None


def executions(world: World) -> Executions:
    return Executions(world.orchestrator, world.store, world.clock, nothing_is_missing)


# --- What happens to a playbook ------------------------------------------------------------------


async def nothing(world: World, dice: random.Random) -> None:
    pass


async def cancel(world: World, dice: random.Random) -> None:
    await executions(world).cancel(ROOT, "enough")


async def pause(world: World, dice: random.Random) -> None:
    for _ in range(dice.randint(1, 3)):
        await executions(world).pause(ROOT)
        await asyncio.sleep(dice.choice((0, 1, 20)))
        await executions(world).resume(ROOT)
        await asyncio.sleep(dice.choice((0, 0.1, 3)))


async def kill_worker(world: World, dice: random.Random) -> None:
    for _ in range(dice.randint(1, 3)):
        await world.kill_worker()
        await asyncio.sleep(dice.random() * 5)


async def restart_server(world: World, dice: random.Random) -> None:
    await world.restart_server()


async def rerun(world: World, dice: random.Random) -> None:
    """Whatever the execution came to: twice from some step, and forks at some events."""
    state = await world.ended(ROOT, WITHIN)
    step = dice.choice(list(state.steps))
    for _ in range(2):
        # Of one that was undone or skipped, nothing can be repeated.
        with suppress(NoetlError):
            await executions(world).rerun(ROOT, step=step)
    for _ in range(3):
        with suppress(NoetlError):
            await executions(world).fork(ROOT, Wish(seq=dice.randint(1, state.seq)))


TROUBLES: tuple[Trouble, ...] = (nothing, cancel, pause, kill_worker, restart_server, rerun)


async def befall(world: World, trouble: Trouble, dice: random.Random) -> None:
    """It happens just after some commit, or at some time."""
    commit, left = world.store.log.commit, dice.choice((0, 1, 2, 3, 5, 8, 13, 21, 34))
    reached = asyncio.Event()

    async def counted(*words: Any, **named: Any) -> Any:
        nonlocal left
        stored = await commit(*words, **named)
        left -= 1
        if left < 0:
            reached.set()
        return stored

    world.store.log.commit = counted  # type: ignore[method-assign]
    with suppress(TimeoutError):
        async with asyncio.timeout(dice.choice((3, 60))):
            await reached.wait()
    for _ in range(dice.randint(0, 20)):
        await asyncio.sleep(0)
    with suppress(NoetlError):  # It has ended, or has not begun.
        await trouble(world, dice)


async def say_go(world: World) -> None:
    """To everything that waits, from time to time."""
    count = 0
    while True:
        await asyncio.sleep(20)
        count += 1
        for row in await world.store.records.summaries(limit=1000):
            if row.ended_at is None:
                for name, data in (("go", None), ("approval.received", {"approved": True})):
                    signal = received(world.clock.now(), f"{name}{count}", name, data, None)
                    # A server that dies never answers.
                    with suppress(NoetlError, TimeoutError):
                        async with asyncio.timeout(15):
                            await world.orchestrator.signal(row.execution_id, signal)


# --- What must hold ------------------------------------------------------------------------------


async def settled(world: World) -> None:
    """Every execution has ended, and nothing of it is left over."""
    while True:
        rows = await world.store.records.summaries(limit=1000)
        if all(row.ended_at is not None for row in rows):
            break
        for row in rows:
            await world.ended(row.execution_id, WITHIN)
    await asyncio.sleep(15)  # Leases of workers that died, and answers that are on their way.
    assert await world.store.queue.open_commands() == []
    assert await world.store.queue.next_timer() is None
    assert world.orchestrator.dispatch.held == {}
    for row in rows:
        await check_log(world, row.execution_id)


async def check_log(world: World, execution_id: str) -> None:
    replayed, calls, iterations = ExecutionState(), Counter[Any](), Counter[Any]()
    for row in await world.store.log.events(execution_id, limit=100_000):
        fact = decode(row.body)
        evolve(replayed, fact)
        if isinstance(fact, IterationDone | IterationFailed):
            iterations[fact.step_run_id, fact.iteration] += 1
        elif isinstance(fact, TaskDone) and fact.iteration is None and fact.progress is not None:
            calls[fact.action_id, fact.attempt] += 1
        error = getattr(fact, "error", None)
        assert error is None or error.code not in ("poison", "worker"), error.message
    assert replayed == await world.orchestrator.state(execution_id)
    left = (replayed.runs, replayed.tokens, replayed.timers, replayed.holders)
    assert not any(left), "an execution that has ended has something left"
    assert not [call for call, count in calls.items() if count > 1], "a recorded call was repeated"
    assert max(iterations.values(), default=1) == 1, "an iteration ended twice"


def play(made: Maker, seed: int, trouble: Trouble) -> ExecutionState:
    """The end of the playbook to which this happened."""
    dice = random.Random(seed)

    async def story(world: World) -> ExecutionState:
        world.faults.calm = True
        for child in made.children:
            await world.register(child)
        friend = asyncio.create_task(say_go(world))
        await world.execute(made.text, ROOT, {})
        try:
            await befall(world, trouble, dice)
            state = await world.ended(ROOT, WITHIN)
            await settled(world)
        finally:
            friend.cancel()
        return state

    try:
        return simulate(story, seed, workers=2)
    except BaseException as error:
        error.add_note("\n".join((f"seed {seed}", made.text, *made.children)))
        raise


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_playbook_ends_and_leaves_nothing_whatever_happens_to_it(
    trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "noetl")

    for seed in range(PLAYBOOKS):
        play(Maker(seed), seed, trouble)

    assert caplog.records == []


@pytest.mark.parametrize("trouble", [pause, kill_worker, restart_server])
def test_what_breaks_does_not_change_how_a_playbook_ends(trouble: Trouble) -> None:
    for seed in range(PLAYBOOKS):
        made = Maker(seed, steady=True)
        calm, troubled = play(made, seed, nothing), play(made, seed, trouble)

        assert troubled.status == calm.status, made.text
        if calm.status == "COMPLETED":
            assert came_to(troubled) == came_to(calm), made.text


def came_to(state: ExecutionState) -> str:
    """The names of children, in what is said of their failures, depend on when they began."""
    return re.sub(r"child execution \d+", "child execution", repr((state.result, state.ctx)))
