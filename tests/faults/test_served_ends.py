"""T16, T27, T28 over HTTP: what is cancelled ends, once and for good, whoever speaks meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.faults.cluster import Served, playbook, start_many, until
from tests.server.processes import Reply, Server

TALKERS = 16
FAREWELLS = 1000
"""So many that most of them wait for a talker."""
QUICK = playbook("faults/quick", "- {step: start, tool: {kind: noop, result: 1}}")
BY_HAND = playbook(
    "faults/by_hand",
    """
- {step: start, next: [a, b]}
- {step: a, spec: {pool: hand}, tool: {kind: noop}, next: end}
- {step: b, spec: {pool: hand}, tool: {kind: noop}, next: end}
- {step: end, spec: {pool: hand}, tool: {kind: noop}}
""",
)


def at_once(words: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(TALKERS) as talkers:
        return list(talkers.map(lambda say: say(), words))


def names(server: Server, execution_id: str) -> list[str]:
    return [event["name"] for event in server.events(execution_id)]


# --- T16 ---------------------------------------------------------------------------------------


def last_words(server: Server, command: dict[str, Any]) -> Callable[[], Reply]:
    body = {
        "command_id": command["command_id"],
        "execution_id": command["execution_id"],
        "token": command["lease"]["token"],
        "worker": "by-hand",
        "number": 1,
        "ending": {"result": 1},
        "closes": True,
    }
    headers = {"X-NoETL-Worker": "by-hand"}
    return lambda: server.ask("POST", "/api/commands/report", body, headers=headers)


@pytest.mark.parametrize("seed", range(5))
def test_t16_what_is_cancelled_and_reported_at_once_ends_once(served: Served, seed: int):
    server, dice = served.server, random.Random(seed)
    [execution_id] = start_many(server, BY_HAND, [{}])
    path = f"/api/executions/{execution_id}"
    wish = {"worker_id": "by-hand", "pool": "hand", "slots": 9, "wait": 0}
    said: list[Callable[[], Reply]] = []
    while server.get(f"{path}/status")["status"] in ("RUNNING", "PAUSED"):
        leased = server.post("/api/commands/lease", wish)["commands"]
        words = [last_words(server, command) for command in leased] * 2
        acts = ["pause", "resume", "resume", *(["cancel"] * 2 if dice.random() < 0.4 else [])]
        words += [lambda act=act: server.ask("POST", f"{path}/{act}", {}) for act in acts]
        dice.shuffle(words)
        replies = at_once(words)
        assert {reply.status for reply in replies} <= {200, 409}, [one.raw for one in replies]
        said += words

    before = server.events(execution_id)
    ended = server.get(path)
    at_once(said)

    assert server.events(execution_id) == before
    assert server.get(path) == ended
    assert [event["name"] for event in before].count("playbook.processed") == 1
    assert before[-1]["name"] == "playbook.processed"
    until(served.is_free, "something of it is left")


# --- T27 ---------------------------------------------------------------------------------------

SLOW = '{kind: shell, env: {FILE: "{{ workload.file }}"}, command: "echo -n $$ > $FILE; sleep 600"}'
CASES = {
    "queued": ("- {step: start, spec: {pool: nobody}, tool: {kind: noop}}", "step.scheduled"),
    "running": (f"- {{step: start, tool: {SLOW}}}", "step.started"),
    "retrying": (
        """
- step: start
  tool:
    kind: noop
    result: "{{ 1 / 0 }}"
    spec:
      policy:
        rules:
          - {when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 9, delay: 1h}}
          - {else: {then: {do: continue}}}
""",
        "step.waiting",
    ),
    "waiting": (
        """
- step: start
  spec: {eval_mode: on_event, timers: [{id: late, after: 1h}]}
  case: [{when: "{{ event.name == 'go' }}", then: {result: {value: 1}}}]
""",
        "step.waiting",
    ),
    "a loop": (
        f"- {{step: start, loop: {{in: [1, 2, 3], iterator: n, mode: parallel}}, tool: {SLOW}}}",
        "step.started",
    ),
}


@pytest.mark.parametrize("is_paused", [False, True], ids=["", "and paused"])
@pytest.mark.parametrize("case", CASES)
def test_t27_cancelled_it_ends_frees_everything_and_never_revives(
    served: Served, case: str, is_paused: bool
):
    server, (workflow, sign) = served.server, CASES[case]
    file = served.cluster.folder / f"pid-{case}-{is_paused}"
    text = playbook(f"faults/{case.replace(' ', '_')}", workflow, '{file: ""}')
    [execution_id] = start_many(server, text, [{"file": str(file)}])
    server.wait_for(execution_id, sign)
    if is_paused:
        server.post(f"/api/executions/{execution_id}/pause")

    server.post(f"/api/executions/{execution_id}/cancel", {"reason": "no longer wanted"})

    assert server.ended(execution_id)["status"] == "CANCELLED"
    until(served.is_free, "a command is left")
    assert served.query("SELECT count(*) FROM noetl.timer") == [(0,)]
    before = server.events(execution_id)
    for act, body in (("resume", {}), ("cancel", {}), ("events", {"name": "go"})):
        assert server.ask("POST", f"/api/executions/{execution_id}/{act}", body).status == 409
    # Every slot is free again.
    quick = start_many(server, QUICK, [{}] * 8)
    assert [server.ended(one)["status"] for one in quick] == ["COMPLETED"] * 8
    assert server.events(execution_id) == before
    assert names(server, execution_id).count("playbook.processed") == 1


# --- T28 ---------------------------------------------------------------------------------------


MARKING = '- {step: start, tool: {kind: http, method: POST, url: "{{ workload.url }}"}}'


def test_t28_a_thousand_executions_are_cancelled_at_once(served: Served):
    server, farewells = served.server, served.many(FAREWELLS)
    kinds = [*(CASES[case][0] for case in ("waiting", "retrying", "queued")), MARKING]
    starts = []
    for number, workflow in enumerate(kinds):
        text = playbook(f"faults/farewell_{number}", workflow, '{url: ""}')
        path = server.post("/api/catalog/register", {"content": text})["path"]
        wanted = {"path": path, "workload": {"url": f"{served.effects.url}/farewell"}}
        starts += [lambda one=wanted: server.post("/api/execute", one)] * (farewells // len(kinds))
    ids = [started["execution_id"] for started in at_once(starts)]

    replies = at_once(
        [lambda one=one: server.ask("POST", f"/api/executions/{one}/cancel", {}) for one in ids]
    )

    # The answer says how it ended; whatever had ended long before refuses.
    assert {reply.status for reply in replies} <= {200, 409}
    told = {
        execution_id: reply.json["status"] if reply.status == 200 else "COMPLETED"
        for execution_id, reply in zip(ids, replies, strict=True)
    }
    sql = "SELECT execution_id, status FROM noetl.execution WHERE path LIKE 'faults/farewell%'"
    assert dict(served.query(sql)) == told
    assert Counter(told.values())["CANCELLED"] >= len(ids) * 3 // 4
    ends = served.query(
        "SELECT count(*) FROM noetl.event WHERE type = 'playbook.processed'"
        " AND execution_id IN (SELECT execution_id FROM noetl.execution"
        " WHERE path LIKE 'faults/farewell%')"
    )
    assert ends == [(len(ids),)]
    until(served.is_free, "commands are left")
    assert served.query("SELECT count(*) FROM noetl.timer") == [(0,)]
    [quick] = start_many(server, QUICK, [{}])
    assert server.ended(quick)["status"] == "COMPLETED"
