"""T41: after the answer to a pause nothing new begins, wherever the work runs; resuming goes on
exactly there."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving, working
from tests.stopwatch import PATIENCE

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: pausing, path: tests/pausing}
workload: {done: ""}
workflow:
"""
STEPS = {
    "sequential": """\
  - step: start
    loop: {in: "{{ range(60) | list }}", iterator: n, spec: {mode: sequential}}
    tool: {kind: shell, cmd: "sleep 0.1"}
""",
    "parallel": """\
  - step: start
    loop: {in: "{{ range(60) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool:
      - first: {kind: shell, cmd: "sleep 0.1"}
      - second: {kind: shell, cmd: "sleep 0.1"}
""",
    "pipeline": "  - step: start\n    tool:\n"
    + "".join(f'      - t{n}: {{kind: shell, cmd: "sleep 0.1"}}\n' for n in range(20)),
    "retries": """\
  - step: start
    tool:
      kind: shell
      cmd: 'sleep 0.1; test -e "$DONE"'
      env: {DONE: "{{ workload.done }}"}
      spec: {policy: {rules: [
        {when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 30, delay: 0.01}}]}}
""",
}
STARTS = ("task.started", "loop.iteration.started", "step.started", "step.scheduled")


@pytest.fixture(scope="module")
def served():
    """A server, and a worker in a process of its own."""
    with (
        temporary_folder() as folder,
        serving(folder) as server,
        working(folder, server.url, "--slots", "8"),
    ):
        yield server


def begun_after(server: Server, execution_id: str, moment: float) -> list[str]:
    """What began after that moment; server and worker have the clock of this machine."""
    return [
        f"{event['name']} {event['iteration']}"
        for event in server.events(execution_id)
        if event["name"] in STARTS
        and datetime.fromisoformat(event["timestamp"]).timestamp() > moment
    ]


def quiet(server: Server, execution_id: str) -> None:
    """Come back when no worker has anything of it any more."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        why = server.get(f"/api/executions/{execution_id}/why")["waits_for"]
        if not any(reason["waits_for"] == "lease" for reason in why):
            return
        time.sleep(0.02)
    raise AssertionError(why)


@pytest.mark.parametrize("shape", STEPS)
def test_t41_nothing_begins_after_the_answer_and_resuming_does_the_rest(
    served: Server, shape: str, tmp_path: Path
):
    done = tmp_path / "done"
    execution_id = served.start(HEAD + STEPS[shape], {"done": str(done)})
    served.wait_for(execution_id, "task.done")

    answer = served.post(f"/api/executions/{execution_id}/pause", {"reason": "T41"})
    answered = time.time()
    quiet(served, execution_id)

    assert (answer["status"], answer["unconfirmed"]) == ("PAUSED", [])
    # Times are shown in whole milliseconds.
    assert begun_after(served, execution_id, answered + 0.001) == []
    assert served.get(f"/api/executions/{execution_id}")["status"] == "PAUSED"

    done.touch()
    served.post(f"/api/executions/{execution_id}/resume")
    served.wait_for(execution_id, "playbook.processed")
    document = served.get(f"/api/executions/{execution_id}")
    assert document["status"] == "COMPLETED"
    events = served.events(execution_id)
    ended = Counter(
        (event["iteration"], event["payload"]["task"])
        for event in events
        if event["name"] == "task.done" and event["payload"]["outcome"]["status"] == "ok"
    )
    assert set(ended.values()) == {1}
    tasks = {"sequential": 60, "parallel": 120, "pipeline": 20, "retries": 1}
    assert len(ended) == tasks[shape]


def test_t41_what_waits_for_a_worker_is_not_given_to_one_while_it_is_paused(tmp_path):
    with serving(tmp_path) as server:
        execution_id = server.start(HEAD + STEPS["sequential"])
        server.wait_for(execution_id, "loop.started")

        server.post(f"/api/executions/{execution_id}/pause")
        other = server.start(
            HEAD.replace("pausing", "other") + "  - {step: start, tool: {kind: noop}}"
        )
        with working(tmp_path, server.url):
            server.wait_for(other, "playbook.processed")
            started = [one for one in server.events(execution_id) if one["name"] == "step.started"]
            assert started == []
            server.post(f"/api/executions/{execution_id}/resume")
            server.wait_for(execution_id, "task.done")
            server.post(f"/api/executions/{execution_id}/cancel")


LONG = """\
  - step: start
    tool:
      - first:
          kind: shell
          cmd: 'while ! test -e "$DONE"; do sleep 0.05; done'
          env: {DONE: "{{ workload.done }}"}
      - second: {kind: noop}
"""


def test_t41_a_call_that_takes_long_does_not_keep_the_answer_waiting(
    served: Server, tmp_path: Path
):
    done = tmp_path / "done"
    execution_id = served.start(HEAD + LONG, {"done": str(done)})
    served.wait_for(execution_id, "task.started")

    answer = served.post(f"/api/executions/{execution_id}/pause")
    names = [event["name"] for event in served.events(execution_id)]

    # The worker has said that nothing more begins, though the call goes on.
    assert (answer["status"], answer["unconfirmed"]) == ("PAUSED", [])
    assert (names.count("command.paused"), "task.done" in names) == (1, False)

    done.touch()
    quiet(served, execution_id)
    started = [one for one in served.events(execution_id) if one["name"] == "task.started"]
    assert [one["payload"]["task"] for one in started] == ["first"]
    served.post(f"/api/executions/{execution_id}/resume")
    assert served.ended(execution_id)["status"] == "COMPLETED"
