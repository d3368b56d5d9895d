"""Hooks on several servers and after a death: a delivery does its work once."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noetl import wiring
from noetl.api.services import Services
from noetl.control import deliveries, hooks
from noetl.control.hooks import Delivery, Taken
from noetl.errors import BadInputs
from noetl.model.execution_query import parse
from tests.control.servers import run, servers
from tests.control.test_schedules import WAITING, embedded, register, until

TYPED = "executor: {spec: {inputs: {count: {type: number}}}}\nworkflow:"

TWICE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: twice, path: t/twice}
workflow:
  - step: first
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {next: second}}]
  - step: second
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {result: {from: done}}}]
"""


def hook(**spec: Any) -> str:
    given = {"verify": "none", "target": {"playbook": "t/waiting"}, "id": "{{ hook.body.id }}"}
    head = "apiVersion: noetl.io/v2\nkind: Hook\nmetadata: {name: h, path: t/h}\n"
    return f"{head}spec: {msgspec.json.encode(given | spec).decode()}\n"


async def deliver(system: Services, **body: Any) -> Taken:
    known = await system.hooks.lately("t/h")
    assert known is not None
    return await system.hooks.take(known, Delivery({}, {}, msgspec.json.encode(body)))


def test_the_same_delivery_to_three_servers_at_once_starts_one_execution(database_url: str):
    async def story() -> None:
        async with servers(database_url, 3) as found:
            await register(found[0], WAITING)
            await register(found[0], hook())
            for number in range(10):
                sent = (deliver(one, id=f"d{number}") for one in found for _ in range(2))
                taken = await asyncio.gather(*sent)
                assert len({one.execution_ids for one in taken}) == 1
            assert len(await found[0].store.records.summaries()) == 10

    run(story)


def test_only_the_same_id_at_the_same_hook_is_the_same_delivery(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, WAITING)
            await register(system, hook())
            await register(system, hook().replace("path: t/h}", "path: t/other}"))
            long = "x" * hooks.ID_MAX
            for name in ("d1", f"{long}1", f"{long}2"):
                assert (await deliver(system, id=name)).status == "started"
                assert (await deliver(system, id=name)).status == "repeated"
            known = await system.hooks.lately("t/other")
            assert known is not None
            given = Delivery({}, {}, msgspec.json.encode({"id": "d1"}))
            assert (await system.hooks.take(known, given)).status == "started"

    run(story)


def test_a_signal_that_is_delivered_again_wakes_nobody_again(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, TWICE)
            await register(system, hook(target={"signal": "go"}))
            entry = await system.catalog.playbook("t/twice", None)
            waits = await system.executions.start(entry.digest, entry.path, entry.version, {})
            for _ in range(2):
                await deliver(system, id="d1")
            assert not (await system.orchestrator.state(waits)).is_finished
            await deliver(system, id="d2")
            await system.executions.wait(waits)

    run(story)


def test_each_burst_of_deliveries_is_one_start_of_each_key(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, WAITING)
            key = "{{ hook.body.key }}"
            await register(system, hook(debounce={"wait": "10ms", "key": key}, id="{{ '' }}"))
            long = "k" * hooks.ID_MAX
            for count in (1, 2):
                for name in ("branch-a", "branch-b", f"{long}1", f"{long}2"):
                    assert (await deliver(system, key=name)).status == "debounced"
                await tried(system)
                assert not await waiting_rows(system)
                assert len(await system.store.records.summaries()) == 4 * count

    run(story)


def test_what_was_debounced_is_not_started_before_it_is_due(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, WAITING)
            await register(system, hook(debounce={"wait": "1h"}))
            await deliver(system, n=1)
            [row] = [one for one in await system.store.triggers.of_kind("Hook") if one.key]
            await system.hooks.settle(row)
            assert await waiting_rows(system) == [row.key]
            assert not await system.store.records.summaries()

    run(story)


def test_what_was_debounced_is_started_once_by_whoever_is_left(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as [first]:
            await register(first, WAITING)
            await register(first, hook(debounce={"wait": "300ms"}))
            for number in range(3):
                assert (await deliver(first, n=number)).status == "debounced"
        async with AsyncExitStack() as stack:
            found = await stack.enter_async_context(servers(database_url, 2))
            for system in found:
                await stack.enter_async_context(wiring.keeping_triggers(system))
            rows = await until(found[0].store.records.summaries)
            assert len(rows) == 1
            state = await found[0].orchestrator.state(rows[0].execution_id)
            assert state.workload["hook"]["body"] == {"n": 2}
            assert await found[0].store.triggers.of_kind("Hook") == [
                await found[0].store.triggers.get("t/h")
            ]

    run(story)


def test_debouncing_does_not_wait_for_ever(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, hook(debounce={"wait": "10m", "max_wait": "500ms"}))
            first = await deliver(system, n=1)
            second = await deliver(system, n=2)
            assert first.due == second.due
            assert len(await until(system.store.records.summaries)) == 1

    run(story)


def test_what_was_debounced_waits_for_its_playbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hooks, "AGAIN_SECONDS", 0.2)

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, hook(debounce={"wait": "100ms"}))
            assert (await deliver(system, n=1)).status == "debounced"

            async def told() -> list[tuple[str, bool]]:
                return [
                    (one.outcome, "t/waiting" in one.reason)
                    for one in await system.hooks.deliveries.of("t/h", limit=9)
                    if one.outcome == "waiting"
                ]

            assert await until(told) == [("waiting", True)]
            assert not await system.store.records.summaries()
            await register(system, WAITING)
            [row] = await until(system.store.records.summaries)
            state = await system.orchestrator.state(row.execution_id)
            assert state.workload["hook"]["body"] == {"n": 1}
            assert await told() == [("waiting", True)]

    run(story)


def test_a_debounced_delivery_that_comes_again_starts_nothing_more(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as found:
            await register(found[0], WAITING)
            await register(found[0], hook(debounce={"wait": "100ms"}))
            sent = (deliver(one, id="d1") for one in found for _ in range(2))
            together = await asyncio.gather(*sent)
            assert sorted(one.status for one in together) == ["debounced", *["repeated"] * 3]
            await tried(found[0])
            assert (await deliver(found[1], id="d1")).status == "repeated"
            assert await waiting_rows(found[1]) == []
            assert len(await found[1].store.records.summaries()) == 1

    run(story)


def test_the_execution_of_debounced_deliveries_is_listed_with_them(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, hook(debounce={"wait": "10ms"}))
            await deliver(system)
            await deliver(system)
            await tried(system)

            [execution] = await system.store.records.summaries()
            told = await system.hooks.deliveries.of("t/h", limit=9)
            assert [(one.outcome, one.execution_id) for one in told] == [
                ("started", execution.execution_id),
                ("debounced", None),
                ("debounced", None),
            ]

    run(story)


async def tried(system: Services) -> None:
    """Settle what was debounced, as soon as it is due."""
    for row in await system.store.triggers.of_kind("Hook"):
        if row.key:
            await asyncio.sleep(max(0.0, (row.next_at or 0.0) - time.time()) + 0.01)
            await system.hooks.settle(row)


async def waiting_rows(system: Services) -> list[str]:
    return [row.key for row in await system.store.triggers.of_kind("Hook") if row.key]


async def listed(system: Services) -> list[str]:
    """The outcomes that are listed once all are written, but for deliveries that were debounced."""
    await asyncio.sleep(2 * deliveries.MOMENT)
    told = await system.hooks.deliveries.of("t/h", limit=9)
    return [one.outcome for one in told if one.outcome != "debounced"]


@pytest.fixture
def _again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "AGAIN_SECONDS", 0.05)


@pytest.mark.usefixtures("_again_at_once")
def test_what_was_debounced_goes_with_its_hook(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, hook(debounce={"wait": "10ms"}))
            await deliver(system, n=1)
            await tried(system)
            assert await waiting_rows(system)
            known = await system.hooks.lately("t/h")
            assert known is not None
            await system.hooks.delete("t/h")
            await register(system, WAITING)
            assert not await waiting_rows(system)
            # A server that has not heard of it takes one more.
            await system.hooks.take(known, Delivery({}, {}, b"{}"))
            await tried(system)
            assert not await waiting_rows(system)
            assert not await system.store.records.summaries()

    run(story)


@pytest.mark.usefixtures("_again_at_once")
def test_what_was_debounced_starts_what_its_corrected_hook_names(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, WAITING)
            wrong = {"playbook": "t/wating", "workload": {"a": "{{ hook.body.n }}"}}
            await register(system, hook(debounce={"wait": "10ms"}, target=wrong))
            await deliver(system, n=1)
            await tried(system)
            right = {"playbook": "t/waiting", "workload": {"b": 2}}
            await register(system, hook(debounce={"wait": "10ms"}, target=right))
            await tried(system)
            [row] = await system.store.records.summaries()
            state = await system.orchestrator.state(row.execution_id)
            assert (row.path, state.workload["a"]) == ("t/waiting", 1)
            assert "b" not in state.workload
            assert not await waiting_rows(system)

    run(story)


@pytest.mark.usefixtures("_again_at_once")
def test_more_deliveries_while_a_playbook_is_missing_are_not_listed_again(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, hook(debounce={"wait": "10ms"}))
            for number in range(3):
                await deliver(system, n=number)
                await tried(system)
            assert await listed(system) == ["waiting"]

    run(story)


def test_an_outcome_that_another_delivery_overtook_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with embedded(tmp_path, keeps=False) as system:
            await register(system, hook(debounce={"wait": "10ms"}))

            async def overtaken(*_: object, **__: object) -> None:
                await deliver(system, n=2)
                raise BadInputs("too many")

            monkeypatch.setattr(system.hooks, "start", overtaken)
            await deliver(system, n=1)
            await tried(system)
            assert await waiting_rows(system)
            assert await listed(system) == []

    run(story)


def test_what_was_debounced_and_does_not_fit_is_listed_with_the_reason(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING.replace("workflow:", TYPED, 1))
            target = {"playbook": "t/waiting", "workload": {"count": "many"}}
            await register(system, hook(debounce={"wait": "100ms"}, target=target))
            await deliver(system, n=1)

            async def told() -> list[str]:
                found = await system.hooks.deliveries.of("t/h", limit=9)
                return [one.reason for one in found if one.outcome == "failed"]

            [reason] = await until(told)
            assert "count" in reason
            assert await system.store.triggers.of_kind("Hook") == [
                await system.store.triggers.get("t/h")
            ]
            assert not await system.store.records.summaries()

    run(story)


def test_a_debounced_delivery_that_did_not_fit_may_come_again(database_url: str):
    """As people send it again once the playbook or the hook is corrected."""

    async def story() -> None:
        async with servers(database_url, 1) as [system]:
            await register(system, WAITING.replace("workflow:", TYPED, 1))
            target = {"playbook": "t/waiting", "workload": {"count": "{{ hook.body.n }}"}}
            await register(system, hook(debounce={"wait": "10ms"}, target=target))
            await deliver(system, id="d1", n="one")
            await deliver(system, id="d2", n="two")
            await tried(system)
            assert await listed(system) == ["failed"]

            await register(system, WAITING)
            assert (await deliver(system, id="d2", n="two")).status == "debounced"
            await tried(system)
            assert len(await system.store.records.summaries()) == 1

    run(story)


def test_a_changed_hook_holds_on_other_servers_soon(database_url: str):
    async def story() -> None:
        async with servers(database_url, 2) as found:
            await register(found[0], WAITING)
            await register(found[0], hook())
            assert (await deliver(found[1], id="1")).status == "started"
            await register(found[0], hook(when="{{ false }}"))
            assert (await deliver(found[0], id="2")).status == "ignored"

            async def is_known() -> bool:
                return (await deliver(found[1], id="1")).status == "ignored"

            await until(is_known)

    run(story)


def test_the_log_says_once_that_a_credential_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(hooks, "KNOWN_SECONDS", 0.0)
    monkeypatch.setattr(hooks, "KNOWN_MAX", 2)

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, hook(verify={"token": {"secret": ["first", "second"]}}))
            for _ in range(3):
                known = await system.hooks.lately("t/h")
                assert known is not None
                assert known.missing == ("first", "second")
                # Strangers who call what is not there leave no room for it.
                for path in ("t/a", "t/b"):
                    assert await system.hooks.lately(path) is None

    run(story)

    said = [one.getMessage() for one in caplog.records if "takes nothing" in one.getMessage()]
    assert len(said) == 2
    assert '"first"' in said[0]
    assert '"second"' in said[1]


def test_a_hook_that_is_paused_while_it_is_being_read_takes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, hook())
            get = system.store.triggers.get

            async def paused_meanwhile(path: str) -> Any:
                monkeypatch.setattr(system.store.triggers, "get", get)
                row = await get(path)
                await system.hooks.pause(path)
                return row

            monkeypatch.setattr(system.store.triggers, "get", paused_meanwhile)
            await system.hooks.lately("t/h")
            assert await system.hooks.lately("t/h") is None

    run(story)


def test_a_signal_reaches_the_others_when_one_that_waits_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            target = {"signal": "go", "playbook": "t/waiting"}
            await register(system, hook(target=target))
            entry = await system.catalog.playbook("t/waiting")
            started = system.executions.start
            ids = [await started(entry.digest, entry.path, entry.version, {}) for _ in range(2)]
            while await system.store.records.count(parse("waits:event", 0.0)) < 2:
                await asyncio.sleep(0.01)
            summaries = system.store.records.summaries

            async def deleted_meanwhile(*wanted: Any, **options: Any) -> Any:
                monkeypatch.setattr(system.store.records, "summaries", summaries)
                found = await summaries(*wanted, **options)
                await system.executions.cancel(ids[1])
                await system.retention.delete(ids[1])
                return found

            monkeypatch.setattr(system.store.records, "summaries", deleted_meanwhile)
            assert (await deliver(system)).execution_ids == (ids[0],)

    run(story)
