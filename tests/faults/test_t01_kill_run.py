"""T1: `noetl run` killed with -9 at random moments, again and again, and resumed.

Nothing that was recorded as done is done again, no result is lost, and it ends as if nothing had
happened. A kind of effect that was not recorded when the process died may happen once more.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.runs import Place, kill, wait_for
from tests.stopwatch import PATIENCE

PARENT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: parent, path: faults/parent}
workload: {effects: effects.txt}
workflow:
  - step: start
    tool:
      kind: python
      args: {file: "{{ workload.effects }}", key: "{{ execution_id }} start"}
      code: &effect |
        import time
        with open(file, "a") as out:
            out.write(f"{time.time()} {key}\\n")
        time.sleep(0.03)
        result = key
    next: pipeline
  - step: pipeline
    tool:
      - first:
          kind: shell
          env: &shell {FILE: "{{ workload.effects }}", KEY: "{{ execution_id }} pipeline"}
          command: echo "$(date +%s.%N) $KEY.first" >> $FILE; sleep 0.03; echo 1
      - second:
          kind: shell
          env: *shell
          command: echo "$(date +%s.%N) $KEY.second" >> $FILE; sleep 0.03; echo 2
      - third:
          kind: shell
          env: *shell
          command: echo "$(date +%s.%N) $KEY.third" >> $FILE; sleep 0.03; echo 3
    next: loop
  - step: loop
    loop:
      in: [0, 1, 2, 3, 4, 5, 6, 7]
      iterator: item
      spec: {mode: parallel, max_in_flight: 2}
    tool:
      kind: python
      args: {file: "{{ workload.effects }}", key: "{{ execution_id }} loop.{{ iter.item }}"}
      code: *effect
    next: sub
  - step: sub
    tool: {kind: playbook, path: faults/child, args: {effects: "{{ workload.effects }}"}}
    next: end
  - step: end
    tool: {kind: python, code: "result = 'reached the end'"}
"""
CHILD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child, path: faults/child}
workload: {effects: effects.txt}
workflow:
  - step: start
    tool:
      kind: shell
      env: {FILE: "{{ workload.effects }}", KEY: "{{ execution_id }} child"}
      command: echo "$(date +%s.%N) $KEY" >> $FILE; sleep 0.03; echo grown up
    next: last
  - step: last
    tool: {kind: python, code: "result = 'child done'"}
"""
PROGRESS = ("task.done", "loop.iteration.done", "playbook.processed")
LOST_IN_A_ROW_MAX = 3
"""A command that is lost five times without getting anywhere is given up, and rightly so."""


class Killer:
    """Runs the playbook and kills it, until it was killed often enough."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.dice = random.Random(seed)
        self.kills = 0
        self._progress = 0
        self._fruitless = 0

    def strike(self) -> None:
        """One run, killed somewhere between its first breath and, perhaps, its end."""
        process = self.place.start("run", "parent.yaml", "--resume")
        if self.dice.random() < 0.2:
            time.sleep(self.dice.uniform(0, 0.5))
        else:
            wait_for(process, "execution")
            time.sleep(self.dice.uniform(0, 0.6))
        if self._fruitless >= LOST_IN_A_ROW_MAX:
            self._wait_for_progress()
        kill(process)
        self.kills += 1
        found = self.place.count(*PROGRESS)
        self._fruitless = 0 if found > self._progress else self._fruitless + 1
        self._progress = found

    def _wait_for_progress(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.place.count(*PROGRESS) <= self._progress and time.monotonic() < deadline:
            time.sleep(0.02)


def effects_of(place: Place) -> dict[str, list[float]]:
    """When each effect happened, by its key."""
    found: dict[str, list[float]] = {}
    for line in (place.folder / "effects.txt").read_text().splitlines():
        at, _, key = line.partition(" ")
        found.setdefault(key, []).append(float(at))
    return found


def recorded_of(place: Place, execution_id: str) -> dict[str, float]:
    """When each task was recorded as done, by the key of its effect."""
    found: dict[str, float] = {}
    for event in place.events(execution_id, "task.done", "loop.iteration.done"):
        step, task = event["step"], event.get("task", "")
        key = f"{execution_id} {step}"
        if step == "pipeline":
            key += f".{task}"
        elif event["type"] == "loop.iteration.done":
            key += f".{event['iteration']}"
        elif step == "loop":
            continue  # a loop's unit is the iteration
        found.setdefault(key, event["at"])
    return found


def check(place: Place, execution_id: str) -> None:
    effects = effects_of(place)
    document = place.json("executions", "show", execution_id)

    assert document["status"] == "COMPLETED", document["error"]
    assert document["result"] == "reached the end"
    results = {step["step"]: step["result"] for step in document["steps"]}
    assert results["start"] == f"{execution_id} start"
    assert results["loop"]["results"] == [f"{execution_id} loop.{n}" for n in range(8)]
    assert results["loop"]["stats"] == {"total": 8, "success": 8, "failed": 0}
    assert results["sub"] == "child done"

    recorded = recorded_of(place, execution_id)
    expected = {f"{execution_id} start", *(f"{execution_id} loop.{n}" for n in range(8))}
    expected |= {f"{execution_id} pipeline.{n}" for n in ("first", "second", "third")}
    for key in expected:
        assert key in effects, f"{key} was never done"
        assert max(effects[key]) <= recorded[key], f"{key} was done again after it was recorded"
    done = Counter(
        (event["step"], event["task"], event.get("iteration"))
        for event in place.events(execution_id, "task.done")
        if event["step"] != "loop"
    )
    assert set(done.values()) == {1}, "a task was recorded as done twice"
    ends = list(place.events(execution_id, "step.done"))
    assert Counter(end["step"] for end in ends) == Counter(
        ["start", "pipeline", "loop", "sub", "end"]
    )


def place_in(folder: Path) -> Place:
    place = Place(folder)
    for name, text in (("parent.yaml", PARENT), ("child.yaml", CHILD)):
        # Shell commands run in a directory of their own.
        place.write(name, text.replace("effects.txt", str(folder / "effects.txt")))
    return place


def kill_and_check(folder: Path, seed: int, kills: int) -> None:
    place = place_in(folder)
    killer = Killer(place, seed)
    while killer.kills < kills:
        killer.strike()
    ended = place.run("executions", "resume-all")
    assert ended.returncode == 0, ended.stderr

    executions = place.executions()
    assert executions, "nothing was ever started"
    for execution_id, _ in executions:
        check(place, execution_id)
    [(integrity,)] = place.query("PRAGMA integrity_check")
    assert integrity == "ok"
    for children in place.query(
        "SELECT status FROM noetl_execution WHERE parent_execution_id IS NOT NULL"
    ):
        assert children == ("COMPLETED",)
    assert place.query("SELECT * FROM noetl_command") == []
    assert place.query("SELECT * FROM noetl_timer") == []


def test_nothing_is_lost_or_done_twice_however_often_it_is_killed(tmp_path):
    kill_and_check(tmp_path, seed=1, kills=12)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 7))
def test_killed_fifty_times_in_a_row(tmp_path, seed):
    kill_and_check(tmp_path, seed, kills=50)


def test_the_check_would_see_an_effect_that_is_done_again(tmp_path):
    place = place_in(tmp_path)
    document = json.loads(place.run("run", "parent.yaml", "--json").stdout)
    execution_id = document["execution_id"]
    check(place, execution_id)

    with (tmp_path / "effects.txt").open("a") as file:
        file.write(f"{time.time()} {execution_id} pipeline.second\n")
    with pytest.raises(AssertionError, match="done again after it was recorded"):
        check(place, execution_id)
