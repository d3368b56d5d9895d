"""Which notices are told and which are not, in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noetl.api.services import Services
from noetl.control import triggers
from tests.control.servers import run
from tests.control.test_notifications_of_servers import TELL, begun, failed
from tests.control.test_schedules import (
    WAITING,
    document,
    embedded,
    register,
    started,
    until,
)

ASKS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waiting, path: t/waiting}
workflow:
  - step: first
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {next: second}}]
  - step: second
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {next: works}}]
  - {step: works, tool: {kind: noop}}
"""


def rule(name: str, **spec: Any) -> str:
    target = {
        "playbook": "t/tell",
        "workload": {"about": f"{name} {{{{ notification.schedule }}}}"},
    }
    head = "apiVersion: noetl.io/v2\nkind: Notification\n"
    body = msgspec.json.encode({"target": target} | spec).decode()
    return f"{head}metadata: {{name: n, path: {name}}}\nspec: {body}\n"


async def told(system: Services, count: int) -> list[str]:
    """The keys of messages, oldest first, as soon as there are so many."""
    while True:
        found = [one for one in await system.store.records.summaries() if one.path == "t/tell"]
        if len(found) >= count:
            return [
                (one.idempotency_key or "").removeprefix("notification/")
                for one in sorted(found, key=lambda one: one.execution_id)
            ]
        await asyncio.sleep(0.02)


async def settled(system: Services, kind: str) -> None:
    """No notice of that kind is left."""

    async def none() -> bool:
        rows = await system.store.triggers.of_kind("Notice")
        return not any(row.key.startswith(f"{kind}/") for row in rows)

    await until(none)


def test_every_wait_is_told_and_nothing_is_late_before_its_time(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, ASKS)
            await register(system, TELL)
            await register(system, rule("t/r", on=["waiting", "late"], late="1h"))
            one, two = await begun(system), await begun(system)
            await told(system, 2)
            await system.executions.signal(one, "go", {})
            found = await told(system, 3)

            first, second = f"t/r/waiting/{one}", f"t/r/waiting/{two}"
            assert sorted(found) == sorted([f"{first}/first", f"{second}/first", f"{first}/second"])

    run(story)


def test_who_waits_no_more_when_it_could_be_told_is_not_told_of(tmp_path: Path):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, ASKS)
            await register(system, rule("t/r", on=["waiting"]))
            answered = await begun(system)

            async def problem() -> str:
                return (await system.notifications.find("t/r"))[1].problem

            assert "t/tell" in await until(problem)
            for _ in range(2):
                await system.executions.signal(answered, "go", {})
            waits = await begun(system)
            await register(system, TELL)
            await settled(system, "waiting")

            assert await told(system, 1) == [f"t/r/waiting/{waits}/first"]
            assert not await problem(), "it is over"

    run(story)


def test_missed_times_are_told_by_the_paths_of_schedule_and_playbook_each_schedule_once(
    tmp_path: Path,
):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, TELL)
            await register(system, rule("r/all", on=["missed"]))
            await register(system, rule("r/playbook", on=["missed"], path="t/none"))
            await register(system, rule("r/schedule", on=["missed"], path="t/s1"))
            await register(system, rule("r/other", on=["missed"], path="t/other*"))
            await register(system, rule("r/labels", on=["missed"], labels={"team": "shop"}))
            for name in ("t/s1", "t/s2"):
                head = (
                    f"apiVersion: noetl.io/v2\nkind: Schedule\nmetadata: {{name: s, path: {name}}}"
                )
                await register(system, f"{head}\nspec: {{playbook: t/none, every: 1s}}\n")

            async def missed() -> bool:
                counts = [len(await system.store.triggers.times(f"t/s{n}")) for n in (1, 2)]
                return min(counts) >= 2

            await until(missed)
            for name in ("t/s1", "t/s2"):
                await system.schedules.delete(name)
            await settled(system, "missed")

            found = sorted("/".join(key.split("/")[:5]) for key in await told(system, 5))
            assert found == [
                "r/all/missed/t/s1",
                "r/all/missed/t/s2",
                "r/playbook/missed/t/s1",
                "r/playbook/missed/t/s2",
                "r/schedule/missed/t/s1",
            ]

    run(story)


def test_notices_that_cannot_be_told_hide_nothing_that_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(triggers, "BATCH", 2)

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, WAITING)
            await register(system, rule("t/r", on=["failed"], window="0s"))
            for _ in range(3):
                await failed(system)
            await register(system, document())
            await started(system, 1)

    run(story)
