"""S28: a pool serves executions in turn. A wide fan-out does not starve the next one.

Nor does opening it: of a loop that may have all of its iterations in flight, a window is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.effort import IS_LONG
from tests.server.processes import Server, serving, working

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: %s}\nworkflow:\n"
SLEEP = "tool: {kind: python, code: 'import time; time.sleep(.02)'}\n"
SMALL = HEAD % "s28/small" + "- step: start\n  tool: {kind: noop}\n"
CHILD = HEAD % "s28/child" + "- step: start\n  " + SLEEP
WIDE = 1500 if IS_LONG else 600
LOOP = (
    "- step: start\n"
    f"  loop: {{in: '{{{{ range({WIDE}) | list }}}}', iterator: n,"
    f" spec: {{mode: parallel, max_in_flight: {WIDE}, batch_size: 1}}}}\n"
)
FANS = {
    "iterations": (HEAD % "s28/fan" + LOOP + "  " + SLEEP, "task.started"),
    "executions": (
        HEAD % "s28/fan" + LOOP + "  tool: {kind: playbook, path: s28/child}\n",
        "child.finished",
    ),
}
ALL_AT_ONCE = HEAD % "s28/all" + (
    "- step: start\n"
    "  loop: {in: {from: 0, to: 100000}, iterator: n,"
    " spec: {mode: parallel, max_in_flight: 100000, batch_size: 1}}\n"
    "  " + SLEEP
)
SLOTS = 4
AHEAD_MAX = 8 * SLOTS
"""Calls of the fan-out that may begin while the other execution waits for its first step: those for
which the slots are taken already, and as many again as a slow machine may need. Whoever goes
through commands by their age begins all that is left of the fan-out."""

QUEUED_MAX = 2000
"""Of 100 000 commands, those that a loop may have opened at once."""


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    given = {}
    if request.param == "postgres":
        given["NOETL_DATABASE_URL"] = request.getfixturevalue("database_url")
    with (
        serving(tmp_path, **given) as started,
        working(tmp_path, started.url, "--slots", str(SLOTS)),
    ):
        yield started


@pytest.mark.parametrize("kind", FANS)
def test_s28_a_wide_fan_out_does_not_starve_the_next_execution(server: Server, kind: str):
    text, sign = FANS[kind]
    server.post("/api/catalog/register", {"content": CHILD})
    fan = server.start(text)
    server.wait_for(fan, sign)

    ids = [server.start(SMALL) for _ in range(3)]
    waits = [waited(server, execution_id) for execution_id in ids]

    moments = [event["timestamp"] for event in server.events(fan) if event["event_type"] == sign]
    ahead = [sum(asked < at < began for at in moments) for asked, began in waits]
    assert server.get(f"/api/executions/{fan}")["status"] == "RUNNING"
    assert max(ahead) <= AHEAD_MAX, (ahead, len(moments))


def waited(server: Server, execution_id: str) -> tuple[str, str]:
    """From when to when an execution waited for its first step."""
    server.ended(execution_id)
    events = server.events(execution_id)
    [began] = [event["timestamp"] for event in events if event["event_type"] == "task.started"]
    return events[0]["timestamp"], began


def test_s28_a_loop_with_100_000_in_flight_fills_no_queue_and_keeps_nobody_waiting(server: Server):
    fan = server.start(ALL_AT_ONCE)
    small = server.start(SMALL)

    asked, began = waited(server, small)
    [queue] = server.get("/api/queues")["queues"]
    page = server.get(f"/api/executions/{fan}/events", type="task.started", limit=1000)
    ahead = [one for one in page["events"] if asked < one["timestamp"] < began]
    server.post(f"/api/executions/{fan}/cancel")
    assert server.ended(fan)["status"] == "CANCELLED"
    assert 0 < queue["waiting"] + queue["leased"] <= QUEUED_MAX
    assert len(ahead) <= AHEAD_MAX, len(ahead)
