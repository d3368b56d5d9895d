"""T1: `noetl run` killed with -9 in the middle of rule chains, in each of their tasks, and resumed.

Every effect hangs when it happens for the first time, and is killed there, after it has happened
and before it is recorded. So each happens once more than the playbook says, and none that was
recorded happens again: the counts are exact.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.runs import Place, kill
from tests.stopwatch import PATIENCE

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chain, path: faults/chain}
workload: {folder: FOLDER}
"""
EFFECT = "sh {{ workload.folder }}/effect.sh"
SCRIPT = """\
cd FOLDER
echo "$1" >> effects.txt
[ $(grep -cx "$1" effects.txt) -gt 1 ] || exec sleep 600
[ $(grep -cx "$1" effects.txt) -gt "${2:-1}" ] || exit 1
echo "$1"
"""
"""Hangs the first time, fails until it has happened more than $2 times, then says its name."""

CHAIN = """
workflow:
  - step: start
    tool: {kind: shell, cmd: "EFFECT call"}
    case:
      - when: "{{ event.name == 'call.done' }}"
        retry: {scope: chain, max_attempts: 3, backoff: {type: fixed, delay_seconds: 0}}
        then:
          - first: {tool: {kind: shell, cmd: "EFFECT first"}}
          - collect: {from: first.stdout, into: seen}
          - second: {tool: {kind: shell, cmd: "EFFECT second"}}
          - breaks: {tool: {kind: shell, cmd: "EFFECT breaks 2"}}
          - third: {tool: {kind: shell, cmd: "EFFECT third"}}
          - next: [{step: end, args: {seen: "{{ seen }}"}}]
  - step: end
    tool: {kind: noop, result: "{{ args.seen | map('trim') | list }}"}
"""
PAGES = """
workflow:
  - step: start
    tool: {kind: noop}
    case:
      - when: "{{ event.name == 'EVENT' }}"
        then:
          - fetch:
              tool: {kind: shell, cmd: "EFFECT page$N", env: {N: "1"}}
              retry:
                - when: "{{ error is not defined and _retry.index < 3 }}"
                  then:
                    max_attempts: 9
                    next_call: {env: {N: "{{ _retry.index + 1 }}"}}
                    collect: {path: stdout, into: seen}
                    sink: {tool: {kind: shell, cmd: "EFFECT sink{{ _retry.index }}"}}
          - next: [{step: end, args: {seen: "{{ seen }}"}}]
  - step: end
    tool: {kind: noop, result: "{{ args.seen | map('trim') | list }}"}
"""
LOOP = """
workflow:
  - step: start
    loop: {in: [0, 1], iterator: n, spec: {mode: sequential}}
    tool: {kind: shell, cmd: "EFFECT call{{ n }}"}
    case:
      - when: "{{ event.name == 'call.done' }}"
        then:
          - first: {tool: {kind: shell, cmd: "EFFECT first{{ n }}"}}
          - second: {tool: {kind: shell, cmd: "EFFECT second{{ n }}"}}
"""


CALLS = ("task.done", "sink.processed")
ITERATIONS = ("loop.iteration.done",)


class Chain:
    """A playbook whose effects hang when they happen for the first time."""

    def __init__(self, folder: Path, workflow: str) -> None:
        self.place = Place(folder)
        self._effects = folder / "effects.txt"
        text = (HEAD + workflow).replace("EFFECT", EFFECT)
        self.place.write("chain.yaml", text.replace("FOLDER", str(folder)))
        self.place.write("effect.sh", SCRIPT.replace("FOLDER", str(folder)))

    @property
    def effects(self) -> Counter[str]:
        return Counter(self._effects.read_text().split() if self._effects.exists() else ())

    def die_in(self, effect: str, *, recorded: int, of: tuple[str, ...] = CALLS) -> None:
        """Go on until the effect hangs and everything before it is recorded, and be killed."""
        process = self.place.start("run", "chain.yaml", "--resume")
        deadline = time.monotonic() + PATIENCE
        while effect not in self.effects or self.place.count(*of) < recorded:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"{effect} was not reached: {self.effects}"
            time.sleep(0.02)
        kill(process)

    def end(self) -> dict[str, object]:
        ended = self.place.run("run", "chain.yaml", "--resume")
        assert ended.returncode == 0, ended.stderr
        [(execution_id, status)] = self.place.executions()
        assert status == "COMPLETED", ended.stderr
        return dict(self.place.json("executions", "show", execution_id))

    def recorded(self) -> Counter[str]:
        """How often each task was recorded as done."""
        return Counter(event["task"] for event in self._done())

    def ids(self) -> set[tuple[str, str]]:
        """The idempotency keys that each task was called with."""
        return {(event["task"], event["action_id"]) for event in self._done()}

    def _done(self) -> list[dict[str, str]]:
        [(execution_id, _)] = self.place.executions()
        return list(self.place.events(execution_id, *CALLS))


def test_a_chain_goes_on_behind_its_last_recorded_task_also_when_it_was_begun_again(tmp_path):
    chain = Chain(tmp_path, CHAIN)
    for recorded, effect in enumerate(["call", "first", "second", "breaks"]):
        chain.die_in(effect, recorded=recorded)
    # `breaks` fails once, so the whole chain begins again, and then comes to `third`.
    chain.die_in("third", recorded=4 + 3)

    document = chain.end()

    assert document["result"] == ["first"], "what the chain collected before it began again is gone"
    assert chain.effects == {"call": 2, "first": 3, "second": 3, "breaks": 3, "third": 2}
    recorded = {"start_task": 1, "first": 2, "second": 2, "breaks": 2, "third": 1, "end_task": 1}
    assert chain.recorded() == recorded
    assert chain.place.count("chain.restarted") == 1
    assert len(chain.ids()) == 6, "a call keeps its idempotency key over all tries"


@pytest.mark.parametrize("event", ["call.done", "step.exit"])
def test_pages_of_a_rules_task_go_on_behind_the_last_one_that_was_stored(event, tmp_path):
    chain = Chain(tmp_path, PAGES.replace("EVENT", event))
    for recorded, effect in enumerate(["page1", "sink1", "page2", "sink2", "page3"]):
        chain.die_in(effect, recorded=recorded + 1)

    document = chain.end()

    assert document["result"] == ["page1", "page2"]
    assert chain.effects == dict.fromkeys(["page1", "sink1", "page2", "sink2", "page3"], 2)
    assert len(chain.ids()) == 7, "two of them the tools of the steps"


def test_in_a_loop_the_iteration_is_what_is_done_again(tmp_path):
    chain = Chain(tmp_path, LOOP)
    for iteration in (0, 1):
        for effect in ("call", "first", "second"):
            chain.die_in(f"{effect}{iteration}", recorded=iteration, of=ITERATIONS)

    document = chain.end()

    assert document["status"] == "COMPLETED"
    # Each death costs one more of everything in its iteration, and nothing of the one before.
    for iteration in (0, 1):
        assert chain.effects[f"call{iteration}"] == 4
        assert chain.effects[f"first{iteration}"] == 3
        assert chain.effects[f"second{iteration}"] == 2
    assert chain.place.count(*ITERATIONS) == 2
    assert len(chain.ids()) == 6, "a call keeps its idempotency key over all tries"
