"""`noetl run` killed with -9 while it waits: what was heard stays so, timers keep their moment."""

from __future__ import annotations

import time

import pytest

from tests.faults.runs import Place, kill, wait_for

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: faults/waits}
workload: {patience: 1h}
workflow:
  - step: start
    tool: {kind: shell, command: "echo begun"}
    next: collect
  - step: collect
    spec:
      eval_mode: on_event
      timers: [{id: late, after: "{{ workload.patience }}"}]
    case:
      - when: "{{ event.name == 'item' }}"
        then: {set: {ctx.items: "{{ (ctx.items | default([])) + [event.data] }}"}}
      - when: "{{ event.name == 'closed' }}"
        then: {next: end}
      - when: "{{ event.name == 'timer.fired' }}"
        then: {next: late}
  - step: end
    tool: {kind: python, args: {items: "{{ ctx.items }}"}, code: "result = ','.join(items)"}
  - step: late
    tool: {kind: python, code: "result = 'too late'"}
"""


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.write("waits.yaml", PLAYBOOK)
    return found


def killed_while_waiting(place: Place, *command: str) -> None:
    process = place.start(*command)
    assert "collect: waits for" in wait_for(process, "collect: waits for")
    kill(process)


def test_nothing_that_was_heard_is_lost_and_nothing_is_done_again(place):
    killed_while_waiting(place, "run", "waits.yaml")
    for item in "abc":
        process = place.start("executions", "resume", "last")
        wait_for(process, "collect: waits for")
        sent = place.run("signal", "last", "--name", "item", "--data", f'"{item}"')
        assert sent.returncode == 0, sent.stderr
        kill(process)
    place.run("signal", "last", "--name", "item", "--data", '"d"')
    place.run("signal", "last", "--name", "closed")

    ended = place.run("executions", "resume", "last")

    assert ended.stdout == "a,b,c,d\n"
    assert place.count("task.done") == 2, "one for each step that works"
    assert place.count("message.received") == 5
    assert place.count("step.waiting") == 1


def test_a_timer_fires_at_its_moment_although_nobody_was_there(place):
    for seconds in (1, 4, 16):
        killed_while_waiting(place, "run", "waits.yaml", "--set", f"patience={seconds}s")
        killed, status = place.executions()[-1]
        if status == "RUNNING":
            break  # On a busy machine the timer may fire before the kill: then it gets longer.
    [timer] = list(place.events(killed, "timer.set"))
    while time.time() < timer["fires_at"]:
        time.sleep(0.05)

    ended = place.run("executions", "resume", killed)

    assert ended.stdout == "too late\n"


def test_a_timer_that_is_not_due_is_kept_over_a_crash(place):
    begun = time.time()
    killed_while_waiting(place, "run", "waits.yaml")

    reasons = place.json("executions", "why", "last")["waits_for"]

    assert [reason["waits_for"] for reason in reasons] == ["event", "timer"]
    [timer] = list(place.events(place.executions()[0][0], "timer.set"))
    assert timer["fires_at"] > begun + 3000


def test_a_wait_may_be_cancelled_while_no_process_runs_it(place):
    killed_while_waiting(place, "run", "waits.yaml")

    cancelled = place.run("executions", "cancel", "last")

    assert cancelled.returncode == 0, cancelled.stderr
    assert place.executions()[0][1] == "CANCELLED"
    late = place.run("signal", "last", "--name", "closed")
    assert late.returncode == 1
