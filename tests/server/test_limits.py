"""Limits on executions: who waits, who starts when, who makes room, and what `why` says."""

from __future__ import annotations

import time

import pytest

from noetl.dsl import compile_text
from noetl.tools.registry import tools
from tests.server.processes import Server
from tests.stopwatch import PATIENCE

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: limits/{name}}}
executor: {{spec: {{{spec}}}}}
workload: {{key: a, number: 0, fail: false}}
workflow:
  - step: start
    tool: {{kind: noop}}
    spec: {{eval_mode: on_event, case_mode: exclusive}}
    case:
      - when: "{{{{ event.name == 'message.received' }}}}"
        then: {{next: {{step: end}}}}
  - step: end
    tool: {{kind: noop}}
"""
CALLER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: caller, path: limits/caller}
executor: {spec: {concurrency: {key: "calls {{ workload.own }}"}}}
workload: {own: x, called: y}
workflow:
  - step: start
    loop: {in: [1, 2, 3, 4], iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: playbook, path: limits/called, args: {key: "{{ workload.called }}"}}
"""
CALLED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: called, path: limits/called}
executor: {spec: {concurrency: {key: "calls {{ workload.key }}"}}}
workload: {key: z}
workflow: [{step: start, tool: {kind: noop}}]
"""


def playbook(name: str, spec: str) -> str:
    return PLAYBOOK.format(name=name, spec=spec)


class Line:
    """Executions of one playbook, which end when they are told to."""

    def __init__(self, server: Server, name: str, spec: str) -> None:
        self.server, self.path = server, f"limits/{name}"
        server.post("/api/catalog/register", {"content": playbook(name, spec)})

    def start(self, key: str = "a", **more) -> str:
        body = {"path": self.path, "workload": {"key": key}, **more}
        return str(self.server.post("/api/execute", body)["execution_id"])

    def status(self, execution_id: str) -> str:
        return str(self.server.get(f"/api/executions/{execution_id}/status")["status"])

    def end(self, execution_id: str) -> None:
        self.server.post(f"/api/executions/{execution_id}/events", {"name": "message.received"})
        self.server.ended(execution_id)

    def until(self, execution_id: str, status: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.status(execution_id) != status:
            assert time.monotonic() < deadline, (status, self.status(execution_id))
            time.sleep(0.02)


def test_those_beyond_the_limit_wait_and_start_in_order(dev):
    line = Line(dev, "queue", "concurrency: {key: 'queue {{ workload.key }}', limit: 2}")
    first, second, third, fourth = [line.start() for _ in range(4)]
    other = line.start(key="b")

    assert [line.status(one) for one in (first, second, other)] == ["RUNNING"] * 3
    assert [line.status(one) for one in (third, fourth)] == ["PENDING"] * 2
    line.end(second)
    line.until(third, "RUNNING")
    assert line.status(fourth) == "PENDING"
    line.end(first)
    line.until(fourth, "RUNNING")
    for one in (third, fourth, other):
        line.end(one)


def test_why_names_those_that_hold_the_slots(dev):
    line = Line(dev, "why", "concurrency: {key: why, limit: 1}")
    holder, waiting = line.start(), line.start()

    [reason] = dev.get(f"/api/executions/{waiting}/why")["waits_for"]

    assert reason["waits_for"] == "slot"
    assert reason["holders"] == [holder]
    assert f'the concurrency key "why" allows 1 at a time, and that is {holder}' in reason["text"]
    names = [event["name"] for event in dev.events(waiting)]
    assert names[-2:] == ["playbook.bounded", "playbook.queued"]
    line.end(holder)
    line.end(waiting)


def test_one_that_waits_can_be_cancelled_and_leaves_nothing(dev):
    line = Line(dev, "cancelled", "concurrency: {key: cancelled, limit: 1}")
    holder, waiting, last = [line.start() for _ in range(3)]

    dev.post(f"/api/executions/{waiting}/cancel", {"reason": "not needed"})

    assert line.status(waiting) == "CANCELLED"
    dev.post(f"/api/executions/{holder}/cancel")
    line.until(last, "RUNNING")
    line.end(last)


def test_one_that_waits_cannot_be_paused_and_hears_why(dev):
    line = Line(dev, "unpaused", "concurrency: {key: unpaused, limit: 1}")
    holder, waiting = line.start(), line.start()

    reply = dev.ask("POST", f"/api/executions/{waiting}/pause", {})

    assert (reply.status, reply.code) == (409, "conflict")
    assert "waits for its turn" in reply.json["error"]["message"]
    line.end(holder)
    line.end(waiting)


def test_a_paused_execution_keeps_its_slot(dev):
    line = Line(dev, "paused", "concurrency: {key: paused, limit: 1}")
    holder, waiting = line.start(), line.start()
    dev.post(f"/api/executions/{holder}/pause")

    assert line.status(waiting) == "PENDING"
    dev.post(f"/api/executions/{holder}/resume")
    line.end(holder)
    line.until(waiting, "RUNNING")
    line.end(waiting)


def test_a_start_under_the_same_key_of_the_caller_is_the_one_that_waits(dev):
    line = Line(dev, "idempotent", "concurrency: {key: idempotent, limit: 1}")
    holder = line.start()
    headers = {"Idempotency-Key": "limits-idempotent"}
    body = {"path": line.path, "workload": {"key": "a"}}
    once, again = [dev.post("/api/execute", body, headers=headers) for _ in range(2)]

    assert once == again
    assert once["status"] == "PENDING"
    line.end(holder)
    line.end(once["execution_id"])


def test_a_rerun_and_a_fork_wait_for_their_turn_too(dev):
    line = Line(dev, "rerun", "concurrency: {key: rerun, limit: 1}")
    old = line.start()
    line.end(old)
    holder = line.start()

    again = dev.post(f"/api/executions/{old}/rerun", {"from": "end"})["execution_id"]
    ended = dev.wait_for(old, "step.done")["seq"]
    fork = dev.post(f"/api/executions/{old}/fork", {"seq": ended + 1})["execution_id"]

    assert [line.status(one) for one in (again, fork)] == ["PENDING", "PENDING"]
    line.end(holder)
    for one in (again, fork):
        assert dev.ended(one)["status"] == "COMPLETED"


@pytest.mark.parametrize(("policy", "status"), [("fail", "FAILED"), ("cancel_new", "CANCELLED")])
def test_one_that_may_not_wait_ends_at_once_and_says_why(dev, policy, status):
    line = Line(dev, policy, f"concurrency: {{key: {policy}, limit: 1, on_limit: {policy}}}")
    holder, refused = line.start(), line.start()

    ended = dev.ended(refused)
    assert ended["status"] == status
    assert f'with the concurrency key "{policy}"' in str(ended)
    line.end(holder)
    after = line.start()
    assert line.status(after) == "RUNNING"
    line.end(after)


def test_the_newest_replaces_those_before_it(dev):
    line = Line(dev, "newest", "concurrency: {key: newest, limit: 1, on_limit: cancel_running}")
    started = [line.start() for _ in range(4)]

    line.until(started[-1], "RUNNING")
    for one in started[:-1]:
        line.until(one, "CANCELLED")
    shown = dev.get(f"/api/executions/{started[0]}")
    assert "replaces it" in shown["acts"][-1]["reason"]
    line.end(started[-1])


def test_a_playbook_runs_so_often_at_a_time_whatever_its_keys(dev):
    spec = "limits: {max_running: 2}, concurrency: {key: 'most {{ workload.key }}'}"
    line = Line(dev, "most", spec)
    first, same, second, third = [line.start(key=key) for key in "aabc"]

    assert [line.status(one) for one in (first, same, second, third)] == [
        *("RUNNING", "PENDING", "RUNNING", "PENDING")
    ]
    line.end(second)
    # `same` is next, and waits for its key: it does not keep others from their turn.
    line.until(third, "RUNNING")
    assert line.status(same) == "PENDING"
    line.end(first)
    line.until(same, "RUNNING")
    line.end(same)
    line.end(third)


def test_higher_priorities_have_their_turn_first(dev):
    low = Line(dev, "low", "concurrency: {key: priorities}, priority: 1")
    high = Line(dev, "high", "concurrency: {key: priorities}, priority: 5")
    holder, waits, urgent = low.start(), low.start(), high.start()

    low.end(holder)
    high.until(urgent, "RUNNING")
    assert low.status(waits) == "PENDING"
    high.end(urgent)
    low.until(waits, "RUNNING")
    low.end(waits)


def test_called_executions_wait_for_each_other_and_not_for_their_caller(dev):
    for text in (CALLED, CALLER):
        dev.post("/api/catalog/register", {"content": text})
    body = {"path": "limits/caller", "workload": {"own": "same", "called": "same"}}
    within = dev.post("/api/execute", body)["execution_id"]
    others = dev.post("/api/execute", {"path": "limits/caller"})["execution_id"]

    for one in (within, others):
        ended = dev.ended(one)
        assert ended["status"] == "COMPLETED", ended["error"]
    children = dev.get("/api/executions", parent=others)["executions"]
    assert len(children) == 4
    queued = [
        one["execution_id"]
        for one in children
        if dev.get(f"/api/executions/{one['execution_id']}/events", type="playbook.bounded")[
            "events"
        ]
    ]
    assert len(queued) == 4


def test_a_key_that_cannot_be_evaluated_fails_the_execution(dev):
    line = Line(dev, "broken", "concurrency: {key: '{{ workload.missing.deeper }}'}")

    ended = dev.ended(line.start())

    assert ended["status"] == "FAILED"
    assert "missing" in ended["error"]["message"]


def test_an_empty_key_bounds_nothing(dev):
    line = Line(dev, "empty", "concurrency: {key: '{{ workload.key }}'}")
    started = [line.start(key="") for _ in range(3)]

    assert [line.status(one) for one in started] == ["RUNNING"] * 3
    for one in started:
        line.end(one)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("concurrency: {limit: 1}", "missing-key"),
        ("concurrency: {key: a, limit: 0}", "bad-value"),
        ("concurrency: {key: a, on_limit: wait}", "bad-value"),
        ("limits: {max_runing: 1}", "unknown-key"),
        ("limits: {max_running: many}", "wrong-type"),
        ("priority: high", "wrong-type"),
        ("concurrency: {key: '{{ iter.x }}'}", "not-in-scope"),
    ],
)
def test_what_makes_no_sense_is_said_where_it_stands(spec, code):
    found = compile_text(playbook("wrong", spec), tools=tools())

    assert [problem.code for problem in found.problems if problem.severity == "error"] == [code]
    assert found.problems[0].line == 4
