"""Executions that wait for the world, in the whole system: timers, signals, answers, interruptions.

Nothing is slept for: whoever waits is told by an event that was stored.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from noetl.control import live
from noetl.errors import Finished, SignalRefused
from noetl.model.events import (
    ApprovalReceived,
    ChildStarted,
    SignalConsidered,
    StepDone,
    StepWaiting,
    TimerFired,
    decode,
)
from noetl.store.log import Loaded
from tests.examples.system import Bench, Run, on_bench, playbook

APPROVAL = playbook(
    """
- step: start
  spec:
    eval_mode: on_event
    timers: [{id: late, after: "{{ workload.patience }}"}]
    form:
      - {name: approved, type: boolean, label: "Pay {{ workload.amount }}?"}
      - {name: account, type: choice, options: [main, travel], default: main}
  case:
    - when: "{{ event.name == 'approval.received' and event.data.approved }}"
      then: {next: [{step: pay, args: {account: "{{ event.data.account }}"}}]}
    - when: "{{ event.name == 'approval.received' }}"
      then: {next: refuse}
    - when: "{{ event.name == 'timer.fired' and event.data.timer_id == 'late' }}"
      then: {next: remind}
- step: pay
  tool: {kind: python, args: {account: "{{ args.account }}"}, code: "result = f'paid by {account}'"}
- step: refuse
  tool: {kind: python, code: "result = 'refused'"}
- step: remind
  tool: {kind: python, code: "result = 'nobody answered'"}
""",
    workload="amount: 120\npatience: 1h",
)


async def reached(bench: Bench, execution_id: str, kind: type[Any]) -> Any:
    """Come back when the first such fact was stored."""
    tag = str(kind.__struct_config__.tag)
    [row] = await bench.system.executions.next_events(
        execution_id, after=0, limit=1, wait=30, types=(tag,)
    )
    return decode(row.body)


async def waiting(bench: Bench, text: str, workload: dict[str, Any] | None = None) -> str:
    """An execution that has come to its first wait."""
    execution_id = await bench.start(text, workload)
    await reached(bench, execution_id, StepWaiting)
    return execution_id


def signal(bench: Bench, execution_id: str, name: str, data: Any = None, **more: Any) -> Any:
    return bench.system.executions.signal(execution_id, name, data, **more)


def test_an_approval_before_the_timeout_goes_its_way():
    async def work(bench: Bench) -> Run:
        execution_id = await waiting(bench, APPROVAL)
        await signal(bench, execution_id, "approval.received", {"approved": "yes"})
        return await bench.ended(execution_id)

    run = on_bench(work)

    assert run.result == "paid by main"
    assert run.step("start")["result"] == {"approved": True, "account": "main"}
    assert run.of(TimerFired) == []


def test_an_approval_after_the_timeout_changes_nothing():
    async def work(bench: Bench) -> Run:
        execution_id = await bench.start(APPROVAL, {"patience": "50ms"})
        run = await bench.ended(execution_id)
        with pytest.raises(Finished):
            await signal(bench, execution_id, "approval.received", {"approved": True})
        return run

    run = on_bench(work)

    assert run.result == "nobody answered"
    assert len(run.of(TimerFired)) == 1


def test_a_bad_answer_is_refused_and_a_good_one_still_counts():
    async def work(bench: Bench) -> Run:
        execution_id = await waiting(bench, APPROVAL)
        with pytest.raises(SignalRefused, match='field "account" takes one of main, travel'):
            await signal(
                bench, execution_id, "approval.received", {"approved": True, "account": "mine"}
            )
        with pytest.raises(SignalRefused, match="is reserved for events of NoETL"):
            await signal(bench, execution_id, "timer.fired", {"timer_id": "late"})
        await signal(bench, execution_id, "approval.received", {"approved": False})
        return await bench.ended(execution_id)

    run = on_bench(work)

    assert run.result == "refused"
    assert len(run.of(ApprovalReceived)) == 1


def test_the_same_signal_twice_counts_once_and_says_so():
    text = playbook(
        """
- step: start
  spec: {eval_mode: on_event}
  case:
    - when: "{{ event.name == 'vote' }}"
      then: {set: {ctx.votes: "{{ ctx.votes | default(0) + 1 }}"}}
    - when: "{{ event.name == 'closed' }}"
      then: {result: {value: "{{ ctx.votes }}"}}
"""
    )

    async def work(bench: Bench) -> tuple[Run, list[bool]]:
        execution_id = await waiting(bench, text)
        known = []
        for one in ("a", "b", "a", "b", "a"):
            signal_id, was_known = await signal(bench, execution_id, "vote", signal_id=one)
            assert signal_id == one
            known.append(was_known)
        await signal(bench, execution_id, "closed")
        return await bench.ended(execution_id), known

    run, known = on_bench(work)

    assert run.result == 2
    assert known == [False, False, True, True, True]


def test_signals_that_come_before_the_wait_are_not_lost():
    text = playbook(
        """
- step: start
  tool: {kind: shell, command: "while [ ! -e {{ workload.gate }} ]; do sleep 0.01; done"}
  next: wait
- step: wait
  spec: {eval_mode: on_event}
  case: [{when: "{{ event.name == 'message.received' }}", then: {next: end}}]
- step: end
  tool: {kind: python, args: {said: "{{ wait.said }}"}, code: "result = said"}
""",
        workload='gate: ""',
    )

    async def work(bench: Bench) -> Run:
        gate = bench.folder / "gate"
        execution_id = await bench.start(text, {"gate": str(gate)})
        await signal(bench, execution_id, "message.received", {"said": "first"})
        await signal(bench, execution_id, "message.received", {"said": "second"})
        why = (await bench.system.executions.why(execution_id)).reasons
        assert any("2 kept events" in reason.text for reason in why)
        gate.touch()
        return await bench.ended(execution_id)

    run = on_bench(work)

    assert run.result == "first"
    assert [fact.taken for fact in run.of(SignalConsidered)] == [True]


def test_why_and_the_document_show_what_is_asked_and_until_when():
    async def work(bench: Bench) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        execution_id = await waiting(bench, APPROVAL)
        executions = bench.system.executions
        why = msgspec.to_builtins((await executions.why(execution_id)).reasons)
        return why, await executions.document(execution_id)

    why, document = on_bench(work)

    [event, timer] = why
    assert (event["waits_for"], event["events"]) == ("event", ["approval.received"])
    assert event["form"][0]["label"] == "Pay 120?"
    assert event["form"][1]["options"] == ["main", "travel"]
    assert event["until"] == timer["until"]
    assert 'its timer "late" fires' in timer["text"]
    assert document["steps"][0]["waiting"]["form"] == event["form"]


def test_cancelling_ends_a_wait_for_good():
    async def work(bench: Bench) -> Run:
        execution_id = await waiting(bench, APPROVAL)
        await bench.system.executions.cancel(execution_id)
        run = await bench.ended(execution_id)
        assert await bench.system.store.queue.next_timer() is None
        with pytest.raises(Finished):
            await signal(bench, execution_id, "approval.received", {"approved": True})
        return run

    assert on_bench(work).document["status"] == "CANCELLED"


def test_a_paused_wait_hears_and_goes_on_when_it_is_resumed():
    async def work(bench: Bench) -> Run:
        execution_id = await waiting(bench, APPROVAL)
        await bench.system.executions.pause(execution_id)
        await signal(bench, execution_id, "approval.received", {"approved": True})
        state = await bench.system.orchestrator.state(execution_id)
        assert state.status == "PAUSED"
        assert [run.step for run in state.runs.values()] == ["start"]
        await bench.system.executions.resume(execution_id)
        return await bench.ended(execution_id)

    assert on_bench(work).result == "paid by main"


def test_a_rerun_waits_anew():
    async def work(bench: Bench) -> Run:
        first = await waiting(bench, APPROVAL)
        await signal(bench, first, "approval.received", {"approved": False})
        await bench.ended(first)
        second = await bench.system.executions.rerun(first, step="start")
        await reached(bench, second, StepWaiting)
        await signal(bench, second, "approval.received", {"approved": True, "account": "travel"})
        return await bench.ended(second)

    assert on_bench(work).result == "paid by travel"


def test_what_waits_in_a_child_is_answered_there():
    parent = playbook(
        "- step: start\n  tool: {kind: playbook, path: tried, args: {amount: 7}}"
    ).replace("path: tried}", "path: parent}", 1)

    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(APPROVAL)
        execution_id = await bench.start(parent)
        started = await reached(bench, execution_id, ChildStarted)
        await reached(bench, started.child, StepWaiting)
        await signal(bench, started.child, "approval.received", {"approved": True})
        return await bench.ended(execution_id)

    assert on_bench(work).result == "paid by main"


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many executions that wait stay in memory: as two hundred elsewhere."""
    monkeypatch.setattr(live, "QUIET_KEPT", 20)
    return 20


def test_executions_that_were_forgotten_go_on_when_something_happens_to_them(
    few_kept: int, monkeypatch: pytest.MonkeyPatch
):
    count = few_kept + 5

    async def work(bench: Bench) -> list[Run]:
        ids = [await waiting(bench, APPROVAL, {"amount": one}) for one in range(count)]
        log, read = bench.system.store.log, []
        load = log.load

        async def noted(execution_id: str) -> Loaded | None:
            read.append(execution_id)
            return await load(execution_id)

        monkeypatch.setattr(log, "load", noted)
        for one in (ids[0], ids[-1]):
            await signal(bench, one, "approval.received", {"approved": True})
        assert read == [ids[0]], "the first is not in memory any more, the last still is"
        return [await bench.ended(one) for one in (ids[0], ids[-1])]

    for run in on_bench(work):
        assert run.result == "paid by main"


def test_a_timer_of_a_forgotten_execution_fires(few_kept: int):
    async def work(bench: Bench) -> Run:
        first = await waiting(bench, APPROVAL, {"patience": "3s"})
        for _ in range(few_kept + 1):
            await waiting(bench, APPROVAL)
        return await bench.ended(first)

    run = on_bench(work)

    assert run.result == "nobody answered"
    assert len(run.of(StepDone)) == 2
