"""Writing executions: all or nothing, once, and only if nobody was faster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from noetl.errors import StoreError
from noetl.store.access import AuditEntry
from noetl.store.base import Store
from noetl.store.database import columns_of
from noetl.store.log import Write
from tests.store.making import (
    NOON,
    ONE,
    THREE,
    TWO,
    born_leased,
    events,
    facts,
    free,
    more,
    start,
    summary,
)


async def everything(store: Store, execution_id: str = ONE) -> dict[str, Any]:
    """All that can be seen of an execution."""
    return {
        "loaded": await store.log.load(execution_id),
        "events": await store.log.events(execution_id),
        "summary": await store.records.summary(execution_id),
        "commands": await store.queue.open_commands(execution_id),
        "timers": await store.queue.due_timers(now=NOON * 2),
        "vars": await store.log.variables(execution_id),
        "result": await store.bodies.get(execution_id, "r"),
    }


def full(seq_before: int, word: str) -> Write:
    """A write that touches everything there is."""
    return Write(
        execution_id=ONE,
        seq_before=seq_before,
        events=facts(events(seq_before + 1, seq_before + 2)),
        commands=free(f"command {word}"),
        timers=[(f"timer {word}", NOON)],
        results=[("r", word.encode())],
        summary=summary(ONE, current_steps=(word,)),
        snapshot=word.encode(),
        vars={word: b"1"},
    )


async def test_what_is_written_together_is_there_together(store: Store):
    assert await store.log.commit([full(0, "a")]) == []

    seen = await everything(store)
    assert seen["loaded"] == (2, b"a", [])
    assert seen["events"] == events(1, 2)
    assert seen["summary"] == summary(ONE, current_steps=("a",))
    assert [command.command_id for command, _, _ in seen["commands"]] == ["command a"]
    assert seen["timers"] == [(ONE, "timer a", NOON)]
    assert seen["vars"] == {"a": b"1"}
    assert seen["result"] == b"a"


async def test_no_writes_are_no_work(store: Store):
    assert await store.log.commit([]) == []


async def test_of_a_moved_execution_nothing_is_kept_and_its_id_is_the_answer(store: Store):
    await store.log.commit([full(0, "a")])
    before = await everything(store)

    for seq_before in (0, 1, 3):
        assert await store.log.commit([full(seq_before, "b")]) == [ONE]

    assert await everything(store) == before


async def test_the_same_write_twice_has_the_effect_of_once(store: Store):
    await store.log.commit([full(0, "a")])
    before = await everything(store)

    assert await store.log.commit([full(0, "a")]) == [ONE]

    assert await everything(store) == before


async def test_the_others_of_a_batch_are_not_affected_by_one_that_moved(store: Store):
    await store.log.commit([start(ONE), start(TWO)])

    moved = await store.log.commit([more(1, ONE), more(0, TWO), start(THREE)])

    assert moved == [TWO]
    assert await store.log.events(ONE) == events(1, 2)
    assert await store.log.events(TWO) == events(1, 1)
    assert await store.log.events(THREE) == events(1, 1)


async def test_an_execution_that_does_not_exist_is_at_seq_0(store: Store):
    assert await store.log.commit([more(5)]) == [ONE]
    assert await store.log.load(ONE) is None


async def test_one_batch_may_carry_an_execution_further_in_several_writes(store: Store):
    moved = await store.log.commit(
        [
            start(ONE, commands=free("a")),
            more(1, closed=["a"], commands=free("b")),
            more(2, closed=["b"]),
            more(1),
        ]
    )

    assert moved == [ONE]
    assert await store.log.events(ONE) == events(1, 3)
    assert await store.queue.open_commands(ONE) == []


async def test_commits_that_wait_together_are_each_judged_by_themselves(store: Store):
    await store.log.commit([start(ONE)])

    answers = await asyncio.gather(*(store.log.commit([more(1)]) for _ in range(20)))

    assert sorted(answers) == [[], *[[ONE]] * 19]
    assert await store.log.events(ONE) == events(1, 2)


async def test_many_callers_at_once_lose_nothing(store: Store):
    async def caller(execution_id: str) -> None:
        assert await store.log.commit([start(execution_id)]) == []
        for seq in range(1, 20):
            assert await store.log.commit([more(seq, execution_id)]) == []

    ids = [str(number) for number in range(100, 130)]
    await asyncio.gather(*map(caller, ids))

    for execution_id in ids:
        assert await store.log.events(execution_id) == events(1, 20)


async def test_a_write_that_cannot_be_stored_fails_alone(store: Store):
    def unstorable() -> Write:
        return start(TWO, summary=summary(TWO, path="\ud800"))

    good = [store.log.commit([start(str(number))]) for number in range(10, 15)]
    answers = await asyncio.gather(
        *good,
        store.log.commit([unstorable()]),
        store.log.commit([start(THREE)]),
        return_exceptions=True,
    )

    assert [answer for answer in answers if answer == []] == [[]] * 6
    assert isinstance(answers[5], StoreError)
    assert await store.log.load(TWO) is None
    assert await store.log.events(THREE) == events(1, 1)


@pytest.mark.parametrize(
    "nonsense",
    [
        start(ONE, summary=None),
        start(ONE, summary=summary(TWO)),
        start(ONE, summary=summary(status="ALMOST")),
        start(ONE, summary=summary(status="COMPLETED", ended_at=None)),
        start(ONE, summary=summary(status="RUNNING", ended_at=NOON)),
        start(ONE, commands=[born_leased("a", "w1", NOON)._replace(expires_at=None)]),
        start(ONE, commands=[born_leased("a", "w1", NOON)._replace(worker_id=None)]),
        start(ONE, commands=free("a", "a")),
    ],
    ids=lambda write: "",
)
async def test_nonsense_is_refused_and_leaves_nothing(store: Store, nonsense: Write):
    with pytest.raises(StoreError, match=r"Nothing|not"):
        await store.log.commit([start(TWO), nonsense])

    assert await store.log.load(ONE) is None
    assert await store.log.load(TWO) is None


async def test_of_executions_that_are_tied_all_are_kept_or_none(store: Store):
    await store.log.commit([start(ONE), start(TWO), start(THREE)])

    moved = await store.log.commit([more(0, ONE), more(1, TWO), more(1, THREE)], tied=[{ONE, TWO}])

    assert sorted(moved) == [ONE, TWO]
    assert await store.log.heads([ONE, TWO, THREE]) == {ONE: 1, TWO: 1, THREE: 2}
    assert await store.log.commit([more(1, ONE), more(1, TWO)], tied=[{ONE, TWO, THREE}]) == []
    assert await store.log.heads([ONE, TWO]) == {ONE: 2, TWO: 2}


async def test_a_tie_to_a_new_execution_that_cannot_be_holds_the_other_back(store: Store):
    await store.log.commit([start(ONE, summary=summary(ONE, idempotency_key="k"))])
    await store.log.commit([start(TWO)])
    child = start(THREE, summary=summary(THREE, idempotency_key="k"))

    assert sorted(await store.log.commit([more(1, TWO), child], tied=[{TWO, THREE}])) == [
        TWO,
        THREE,
    ]

    assert await store.log.heads([TWO, THREE]) == {TWO: 1}


async def test_a_write_without_events_changes_the_rest(store: Store):
    await store.log.commit([start(ONE, count=2)])

    assert await store.log.commit([more(2, events=[], vars={"x": b"1"}, snapshot=b"s")]) == []

    assert await store.log.variables(ONE) == {"x": b"1"}
    assert await store.log.load(ONE) == (2, b"s", [])


async def test_what_one_write_sets_and_clears_is_gone(store: Store):
    await store.log.commit(
        [start(commands=free("a"), closed=["a"], timers=[("t", NOON)], timers_cleared=["t"])]
    )

    assert await store.log.commit([more(1, commands=free("b"), closed=["b"])]) == []

    assert await store.queue.open_commands(ONE) == []
    assert await store.queue.next_timer() is None


async def test_a_cancelled_caller_does_not_disturb_the_others(store: Store):
    hurried = asyncio.create_task(store.log.commit([start(ONE)]))
    patient = asyncio.create_task(store.log.commit([start(TWO)]))
    await asyncio.sleep(0)
    hurried.cancel()

    assert await patient == []
    assert await store.log.commit([more(1, TWO)]) == []


async def test_a_closed_store_says_so(store: Store):
    await store.log.commit([start(ONE)])
    await store.close()

    with pytest.raises(StoreError, match="closed"):
        await store.log.load(ONE)
    with pytest.raises(StoreError, match="closed"):
        await store.log.commit([more(1)])


async def test_closing_finishes_what_is_being_written(store: Store):
    writing = [asyncio.create_task(store.log.commit([start(str(n))])) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()

    assert await asyncio.gather(*writing) == [[]] * 50


async def test_who_acted_is_kept_with_what_they_did_or_not_at_all(store: Store):
    def acted(execution_id: str, seq_before: int, action: str) -> Write:
        entry = AuditEntry(
            at=NOON, who="ada", action=action, target="t", execution_id=execution_id, details="d"
        )
        whole = summary(execution_id)
        written = facts(events(seq_before + 1, seq_before + 1))
        about: dict[str, Any] = {"summary": whole, "events": written, "audit": [entry]}
        return Write(execution_id=execution_id, seq_before=seq_before, **about)

    assert await store.log.commit([acted(ONE, 0, "execution.start")]) == []
    # Somebody was faster: the second one does not continue the log, and so did not happen.
    assert await store.log.commit([acted(ONE, 0, "execution.start")]) == [ONE]
    both = [acted(ONE, 1, "execution.pause"), acted(TWO, 7, "execution.pause")]
    assert await store.log.commit(both) == [TWO]
    tied = [acted(ONE, 2, "execution.cancel"), acted(TWO, 7, "execution.cancel")]
    assert set(await store.log.commit(tied, tied=[{ONE, TWO}])) == {ONE, TWO}

    found = await store.access.audit()
    assert [(entry.execution_id, entry.action) for entry in found] == [
        (ONE, "execution.pause"),
        (ONE, "execution.start"),
    ]
    [written] = acted(ONE, 0, "execution.start").audit
    assert columns_of(found[1]).items() > columns_of(written).items()
