"""What the log of each example makes possible: what-if, tests from runs, forks at every event.

Recorded outcomes stand in for all tools, so nothing is called that was not recorded.
"""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from noetl.control import history
from noetl.control.forks import Wish
from noetl.control.recordings import Recording, keep, read_bytes, recorded
from noetl.dsl.walk import all_tasks
from noetl.engine.evolve import evolve
from noetl.model import refs
from noetl.model.events import (
    ApprovalReceived,
    IterationDone,
    IterationFailed,
    MessageReceived,
    TaskDone,
    WorkflowFinished,
)
from noetl.model.net import PLAYBOOK, digest
from noetl.model.state import ExecutionState
from noetl.settings import Settings
from noetl.store.log import Log
from noetl.store.sqlite.store import SqliteStore
from noetl.trials.clock import VirtualLoop
from noetl.trials.files import Expect, Signal, read_trials
from noetl.trials.from_run import trial_of, written
from noetl.trials.playbooks import Playbooks, Target, adapted
from noetl.trials.recorded import Calls, RecordedTools, calls_of, compared
from noetl.trials.stand_ins import standing_in
from noetl.trials.verdict import differences
from noetl.trials.world import World, run_trial, surroundings
from tests.control.test_moments import Reading
from tests.examples.system import on_bench
from tests.server.example_runs import NAMES, prepared

QUICK = (
    *("approval", "delayed_reminder", "error_recovery", "fork_join", "job_polling"),
    *("nested_loops", "pagination", "parallel_map", "routing", "saga"),
    *("refine", "running_balance", "sub_playbooks", "timeouts", "weather_loop_example"),
)
"""Examples that need no service of their own; `make test-long` takes all others, too."""
NOT_RECORDED = {"work_queue": "cursor", "locked_work": "cursor", "placement": "labels"}
"""Rows that a loop over a cursor claimed are in no record; no worker here has labels."""
SAMPLED = 12
SETTINGS = Settings.from_environment({})


def recording_of(name: str, folder) -> Recording:
    with prepared(name, folder, {}) as example:

        async def work(bench) -> bytes:
            for credential, (kind, data) in example.credentials.items():
                await bench.system.keys.put(credential, kind, data)
            for text in example.called:
                await bench.system.catalog.register(text)
            execution_id = await bench.start(example.text, example.workload)
            if example.answer is not None:
                await bench.system.executions.signal(execution_id, *example.answer)
            await bench.ended(execution_id)
            pieces = await recorded(bench.system.store, execution_id, 0.0)
            return b"".join([piece async for piece in pieces])

        return read_bytes(on_bench(work))


def virtually(work):
    async def run():
        async with surroundings(SETTINGS) as around:
            return await work(around)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def chosen() -> list:
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in NAMES
        if name not in NOT_RECORDED
    ]


@pytest.fixture(scope="module", params=chosen())
def example(request, tmp_path_factory) -> Recording:
    return recording_of(request.param, tmp_path_factory.mktemp(request.param))


def test_the_same_playbook_goes_the_same_way_over_its_own_record(example):
    found = virtually(lambda around: compared(example, example.net, around))

    assert found.verdict == "same", found


def test_a_test_made_of_a_run_passes(example):
    async def work(around):
        text = written(await trial_of(example, "it.yaml"))
        read = read_trials(text)
        assert read.file is not None, (text, read.problems)
        [trial] = read.file.tests
        playbooks = Playbooks(example.net, {})
        story = await run_trial(trial, playbooks, around)
        assert not story.complaints, (story.complaints, text)
        return differences(trial.expect or Expect(), story, playbooks.nets)

    assert virtually(work) == []


def test_every_moment_is_the_fold_of_the_log_up_to_it(example, monkeypatch):
    """From checkpoints at every seventh event, in an order in which people drag a slider."""
    monkeypatch.setattr(history, "CHECKPOINT_EVERY", 7)
    monkeypatch.setattr(history, "STRIDE", 2)

    async def work() -> None:
        store = await SqliteStore.open(":memory:", threads=False)
        try:
            await keep(store, example)
            execution_id = example.head.execution_id
            last = example.head.events
            folded, state = [], ExecutionState()
            async for _, fact in history.facts(store.log, execution_id):
                evolve(state, fact)
                folded.append(refs.encode(state))
            log = Reading(store.log)
            moments = history.Moments(cast(Log, log))
            order = [*range(last, 0, -max(1, last // 200)), *range(1, last + 1, last // 200 + 1)]
            for seq in order:
                found = await moments.at(execution_id, seq)
                assert refs.encode(found.state) == folded[seq - 1], seq
            assert log.read < sum(order), "checkpoints made most looks short"
        finally:
            await store.close()

    asyncio.run(work())


def test_a_fork_at_any_event_replays_to_the_same_end(example):
    """What was recorded before the event is not called again; what follows is answered by it."""
    last = example.head.events
    step = max(1, last // SAMPLED)
    end = next(fact for fact in example.facts if isinstance(fact, WorkflowFinished))
    is_bounded = any(one.quotas.max_calls is not None for one in example.net.steps)

    async def work(around):
        for seq in [*range(1, last + 1, step), last]:
            state, unknown, left = await forked(example, seq, around)
            where = (seq, example.facts[seq - 1])
            assert unknown is None, where
            assert state.status == end.status, (where, state.failure)
            # A call that is made again counts again: where calls have a quota, later ones may be
            # left, and the end is another.
            if is_bounded:
                continue
            assert left == set(), where
            original = await whole(example)
            assert shown(state) == shown(original), where

    virtually(work)


def shown(state) -> tuple:
    steps = {name: (one.status, one.runs) for name, one in state.steps.items()}
    return state.ctx.keys(), state.vars.keys(), steps


async def whole(recording: Recording):
    state = ExecutionState()
    for fact in recording.facts:
        evolve(state, fact)
    return state


async def forked(recording: Recording, seq: int, around):
    """The state in which a fork ends, the first call that was not recorded, and how many recorded
    calls after the event were not made."""
    async with World.opened(around, recording.facts[-1].at) as world:
        children = [
            Target("", step.name, task.name)
            for step in recording.net.steps
            for task in all_tasks(step)
            if task.kind == PLAYBOOK
        ]
        tested = adapted(Playbooks(recording.net, {}), children, {}).net
        await keep(world.store, msgspec.structs.replace(recording, net=tested))
        assert await world.store.catalog.net(digest(tested)) is not None
        source = recording.head.execution_id
        plan = (await world.executions.planned_fork(source, Wish(seq=seq))).document
        calls = await again(recording, plan.reused_upto)
        recorded = RecordedTools(calls, world)
        signals = [
            Signal(name=fact.name, data=fact.data, step=fact.step or None)
            for fact in recording.facts[plan.reused_upto :]
            if isinstance(fact, MessageReceived | ApprovalReceived)
        ]

        async def fork() -> str:
            return (await world.executions.fork(source, Wish(seq=seq)))[0]

        tools = standing_in(around.tools, recorded.call)
        async with world.played(tools, fork, signals) as execution_id:
            state = await world.orchestrator.state(execution_id)
        assert not world.stop.complaints, (seq, world.stop.complaints)
        # A workbook entry is not a call, and the end of a child may be known before its call is.
        indirect = {
            (step.name, task.name)
            for step in recording.net.steps
            for task in step.tasks
            if task.kind in ("workbook", "playbook")
        }
        left = {key for key, waiting in calls.items() if waiting and key[:2] not in indirect}
        return state, recorded.unknown, left


async def again(recording: Recording, cut: int) -> Calls:
    """The calls that a fork makes: those after the event, and of iterations that had not ended,
    all of them."""
    ended = {
        (fact.step_run_id, fact.iteration): number
        for number, fact in enumerate(recording.facts, 1)
        if isinstance(fact, IterationDone | IterationFailed)
    }
    kept = [
        fact
        if number > cut
        or not isinstance(fact, TaskDone)
        or (fact.iteration is not None and ended.get((fact.step_run_id, fact.iteration), 0) > cut)
        else None
        for number, fact in enumerate(recording.facts, 1)
    ]
    facts = [one if one is not None else recording.facts[0] for one in kept]
    return await calls_of(msgspec.structs.replace(recording, facts=facts))
