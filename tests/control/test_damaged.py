"""One damaged execution hides no other: not from signals, not from the desk, not from rules."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from noetl import wiring
from noetl.control import notifications
from tests.control.servers import run, servers
from tests.control.test_lapses import damage
from tests.control.test_notifications_of_servers import RULE, TELL, begun, failed, told
from tests.control.test_schedules import WAITING, register

ASKING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: asking, path: t/waiting}
workflow:
  - step: start
    spec: {eval_mode: on_event, form: {fields: [{name: ok, type: boolean}]}}
"""


def test_a_signal_and_the_inbox_leave_a_damaged_execution_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async def story() -> None:
        url = f"sqlite:///{tmp_path}/noetl.db"
        async with servers(url, 1) as (before,):
            await register(before, ASKING)
            sound, damaged = [await begun(before) for _ in range(2)]
        damage(tmp_path / "noetl.db", [damaged])
        async with servers(url, 1) as (after,):
            inbox = await after.desk.inbox(before=None, limit=10)
            assert [form.execution_id for form in inbox.forms] == [sound]
            names = {"match": "", "labels": None, "path": "t/waiting"}
            terms = {"signal_id": None, "actor": None, **names}
            signal = after.executions.signal_matching
            assert await signal("approval.received", {"ok": True}, **terms) == [(sound, False)]
            assert (await after.executions.wait(sound))["status"] == "COMPLETED"

    run(story)

    said = {one.getMessage() for one in caplog.records if "damaged" in one.getMessage()}
    assert any("a damaged execution is left out" in one for one in said)


def test_a_rule_that_a_server_had_not_heard_of_is_settled_beside_a_damaged_execution(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notifications, "HEARD_SECONDS", 2.0)

    async def story() -> None:
        async with servers(database_url, 2) as (knows, mute), wiring.keeping_triggers(knows):
            for text in (WAITING, TELL, RULE % ("failed", "0s")):
                await register(knows, text)
            damaged, sound = [await failed(mute) for _ in range(2)]
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as db:
                change = "UPDATE noetl.log SET events = '\\x00' WHERE execution_id = %s"
                await db.execute(change, [damaged])
            assert await told(knows, 1) == [sound]
            while (await knows.notifications.find("t/told"))[1].unheard_since is not None:
                await asyncio.sleep(0.05)

    run(story)
