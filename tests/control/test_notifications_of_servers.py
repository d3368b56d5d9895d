"""Notifications on several servers: a rule holds from its registration on, whoever heard of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from noetl import wiring
from noetl.api.services import Services
from noetl.control import notifications
from noetl.errors import NotFound
from tests.control.servers import deaf, run, servers
from tests.control.test_schedules import WAITING, embedded, register

TELL = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: tell, path: t/tell}
workload: {about: ""}
workflow: [{step: start, tool: {kind: noop}}]
"""
WORKING = TELL.replace("tell", "working")
RULE = """\
apiVersion: noetl.io/v2
kind: Notification
metadata: {name: told, path: t/told}
spec:
  on: [%s]
  path: t/waiting
  window: %s
  target: {playbook: t/tell, workload: {about: "{{ notification.execution_id }}"}}
"""


async def failed(system: Services) -> str:
    """An execution that has failed at this server."""
    entry = await system.catalog.playbook("t/waiting", None)
    found = await system.executions.start(entry.digest, entry.path, entry.version, {})
    await system.executions.signal(found, "break", {})
    await system.executions.wait(found)
    return found


def of_execution(key: str) -> str:
    """Which execution a message is about: `notification/t/told/failed/ID[/step]`."""
    return key.removeprefix("notification/t/told/").split("/")[1]


async def told(system: Services, count: int) -> list[str]:
    """Which executions messages were started for, as soon as there are so many."""
    while True:
        found = [one for one in await system.store.records.summaries() if one.path == "t/tell"]
        if len(found) >= count:
            return sorted(of_execution(one.idempotency_key or "") for one in found)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("window", "messages"), [("0s", 3), ("1h", 1)])
def test_what_a_server_did_before_it_heard_of_a_rule_is_told_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch, window: str, messages: int
):
    monkeypatch.setattr(notifications, "HEARD_SECONDS", 3.0)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            knows, deaf_one = await stack.enter_async_context(servers(database_url, 2))
            for system in (knows, deaf_one):
                await stack.enter_async_context(wiring.keeping_triggers(system))
            await register(knows, WAITING)
            await register(knows, TELL)
            before = await failed(deaf_one)
            async with deaf(database_url, 2):
                await register(knows, RULE % ("failed", window))
                told_of = {await failed(knows), await failed(deaf_one), await failed(deaf_one)}
                found = await told(knows, messages)
                while (await knows.notifications.find("t/told"))[1].unheard_since is not None:
                    await asyncio.sleep(0.05)
                while any(
                    row.key.startswith("failed/")
                    for row in await knows.store.triggers.of_kind("Notice")
                ):
                    await asyncio.sleep(0.05)
            assert before not in found
            assert {*found} <= told_of
            assert len(await told(knows, messages)) == messages

    run(story)


async def begun(system: Services, path: str = "t/waiting") -> str:
    """An execution that waits at this server."""
    entry = await system.catalog.playbook(path, None)
    return await system.executions.start(entry.digest, entry.path, entry.version, {})


async def completed(system: Services) -> str:
    found = await begun(system)
    await system.executions.signal(found, "go", {})
    await system.executions.wait(found)
    return found


@pytest.mark.parametrize("on", ["waiting", "recovered", "late"])
def test_other_notices_of_a_server_that_was_deaf_are_written_as_well(
    database_url: str, monkeypatch: pytest.MonkeyPatch, on: str
):
    """Only what happened after the registration counts, on either server."""
    monkeypatch.setattr(notifications, "HEARD_SECONDS", 3.0)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            knows, deaf_one = await stack.enter_async_context(servers(database_url, 2))
            for system in (knows, deaf_one):
                await stack.enter_async_context(wiring.keeping_triggers(system))
            await register(knows, WAITING)
            await register(knows, TELL)
            await begun(deaf_one)
            await failed(deaf_one)
            async with deaf(database_url, 2):
                rule = RULE % (on, "0s")
                if on == "late":
                    await register(knows, WORKING)
                    rule = rule.replace("window", "late: 1s\n  window").replace(
                        "waiting", "working"
                    )
                await register(knows, rule)
                if on == "late":
                    expected = sorted([await begun(one, "t/working") for one in (knows, deaf_one)])
                elif on == "waiting":
                    expected = sorted([await begun(knows), await begun(deaf_one)])
                else:
                    await failed(deaf_one)
                    expected = [await completed(deaf_one)]
                keys = await told(knows, len(expected))
                while (await knows.notifications.find("t/told"))[1].unheard_since is not None:
                    await asyncio.sleep(0.05)
            assert keys == expected

    run(story)


def test_a_rule_that_cannot_be_settled_rests_as_any_trigger(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notifications, "HEARD_SECONDS", 0.0)

    async def lost(**_: object) -> None:
        raise NotFound("what it looks at is not stored.")

    async def story() -> None:
        async with servers(database_url, 1) as [system]:
            await register(system, TELL)
            await register(system, RULE % ("failed", "0s"))
            row = await system.store.triggers.get("t/told")
            assert row is not None
            monkeypatch.setattr(system.store.retention, "ended", lost)
            with pytest.raises(NotFound, match="not stored"):
                await system.notifications.settle(row)
            await system.notifications.delete("t/told")
            await system.notifications.settle(row)

    run(story)


def test_the_log_says_once_that_messages_wait_for_their_playbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def story() -> None:
        tries = 0
        async with embedded(tmp_path) as system:
            start = system.notifications.start

            async def counted(*which: Any, **more: Any) -> Any:
                nonlocal tries
                tries += 1
                return await start(*which, **more)

            monkeypatch.setattr(system.notifications, "start", counted)
            await register(system, WAITING)
            await register(system, RULE % ("failed", "0s"))
            for _ in range(2):
                await failed(system)
            while tries < 5:
                await asyncio.sleep(0.05)
            await register(system, TELL)
            await told(system, 2)

    run(story)

    said = [one for one in caplog.records if "trigger cannot go on" in one.getMessage()]
    assert [one.exc_info for one in said] == [None]
    assert 'no playbook "t/tell" is registered' in said[0].getMessage()


def test_what_waited_for_its_playbook_is_told_as_it_happened(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, RULE % ("failed, recovered", "1h"))
            happened = [await failed(system), await completed(system)]
            again = [await failed(system), await failed(system)]  # one window, so one is told
            await register(system, TELL)
            await told(system, 3)
            while await waiting_notices(system):
                await asyncio.sleep(0.05)
            messages = [
                one for one in await system.store.records.summaries() if one.path == "t/tell"
            ]
            messages.sort(key=lambda one: one.execution_id)
            *before, last = [of_execution(one.idempotency_key or "") for one in messages]
            assert before == happened
            assert last in again

    run(story)


def test_what_may_be_late_in_an_hour_wakes_nobody_now(tmp_path: Path):
    """Only the first one is due before anything that servers know of."""

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, (RULE % ("late", "0s")).replace("window", "late: 1h\n  window"))
            announced: list[None] = []
            system.triggers.on_changed = lambda: announced.append(None)
            while True:
                before = len(announced)
                await begun(system)
                if before == len(announced):
                    break
                await asyncio.sleep(0.01)

    run(story)


def test_what_is_due_before_the_others_look_is_told_to_them(tmp_path: Path):
    """This server looks before it itself, and the others do not."""

    async def story() -> None:
        async with embedded(tmp_path) as system:
            system.triggers.look_seconds = 0.05
            await register(system, WAITING)
            await register(system, (RULE % ("late", "0s")).replace("window", "late: 9s\n  window"))
            announced: list[None] = []
            system.triggers.on_changed = lambda: announced.append(None)
            for count in range(1, 20):
                await begun(system)
                assert len(announced) == count
                await asyncio.sleep(0.01)

    run(story)


def test_what_waits_in_order_is_told_at_a_cost_that_grows_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Not with its square: a rule that could tell nothing for a while has many notices."""

    async def story() -> None:
        looks = 0
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, RULE % ("failed, recovered", "0s"))
            for _ in range(30):
                await asyncio.gather(failed(system), completed(system))
            get = system.store.triggers.get

            async def counted(*which: str) -> Any:
                nonlocal looks
                looks += 1
                return await get(*which)

            monkeypatch.setattr(system.store.triggers, "get", counted)
            await register(system, TELL)
            while await waiting_notices(system):
                await asyncio.sleep(0.05)
            assert looks < 60 * 15

    run(story)


async def waiting_notices(system: Services) -> list[str]:
    rows = await system.store.triggers.of_kind("Notice")
    return [row.key for row in rows if row.key.startswith(("failed/", "recovered/"))]


def test_a_failure_that_a_deaf_server_did_after_it_worked_again_is_told(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notifications, "HEARD_SECONDS", 3.0)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            knows, deaf_one = await stack.enter_async_context(servers(database_url, 2))
            for system in (knows, deaf_one):
                await stack.enter_async_context(wiring.keeping_triggers(system))
            await register(knows, WAITING)
            await register(knows, TELL)
            async with deaf(database_url, 2):
                await register(knows, RULE % ("failed, recovered", "1h"))
                happened = [await failed(knows), await completed(knows)]
                await told(knows, 2)
                happened.append(await failed(deaf_one))
                assert await told(knows, 3) == sorted(happened)

    run(story)


def test_what_worked_before_it_failed_does_not_work_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notifications, "HEARD_SECONDS", 3.0)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            knows, deaf_one = await stack.enter_async_context(servers(database_url, 2))
            for system in (knows, deaf_one):
                await stack.enter_async_context(wiring.keeping_triggers(system))
            await register(knows, WAITING)
            await register(knows, TELL)
            async with deaf(database_url, 2):
                await register(knows, RULE % ("failed, recovered", "1h"))
                await completed(deaf_one)
                happened = [await failed(knows)]
                await told(knows, 1)
                while (await knows.notifications.find("t/told"))[1].unheard_since is not None:
                    await asyncio.sleep(0.05)
                while await waiting_notices(knows):
                    await asyncio.sleep(0.05)
                assert await told(knows, 1) == happened

    run(story)
