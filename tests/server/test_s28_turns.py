"""S28: a pool serves executions in turn. A fan-out of thousands does not starve the next one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import Server, serving, working

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: %s}\nworkflow:\n"
SLEEP = "tool: {kind: python, code: 'import time; time.sleep(.02)'}\n"
SMALL = HEAD % "s28/small" + "- step: start\n  tool: {kind: noop}\n"
CHILD = HEAD % "s28/child" + "- step: start\n  " + SLEEP
LOOP = (
    "- step: start\n"
    "  loop: {in: '{{ range(1500) | list }}', iterator: n,"
    " spec: {mode: parallel, max_in_flight: 1500, batch_size: 1}}\n"
)
FANS = {
    "iterations": (HEAD % "s28/fan" + LOOP + "  " + SLEEP, "task.started"),
    "executions": (
        HEAD % "s28/fan" + LOOP + "  tool: {kind: playbook, path: s28/child}\n",
        "child.finished",
    ),
}
SLOTS = 4
AHEAD_MAX = 8 * SLOTS
"""Calls of the fan-out that may begin while the other execution waits for its first step: those for
which the slots are taken already, and as many again as a slow machine may need. Whoever goes
through commands by their age begins all that is left of the fan-out."""


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
def test_s28_a_fan_out_of_thousands_does_not_starve_the_next_execution(server: Server, kind: str):
    text, sign = FANS[kind]
    server.post("/api/catalog/register", {"content": CHILD})
    fan = server.start(text)
    server.wait_for(fan, sign)

    ids = [server.start(SMALL) for _ in range(3)]
    waits = []
    for execution_id in ids:
        server.ended(execution_id)
        events = server.events(execution_id)
        [began] = [event["timestamp"] for event in events if event["event_type"] == "task.started"]
        waits.append((events[0]["timestamp"], began))

    moments = [event["timestamp"] for event in server.events(fan) if event["event_type"] == sign]
    ahead = [sum(asked < at < began for at in moments) for asked, began in waits]
    assert server.get(f"/api/executions/{fan}")["status"] == "RUNNING"
    assert max(ahead) <= AHEAD_MAX, (ahead, len(moments))
