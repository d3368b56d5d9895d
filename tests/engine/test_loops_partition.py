"""Partitioned loops: iterations with the same key follow one another, whatever workers do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from noetl.engine.loops import KEYED_AHEAD, KEYS
from noetl.model.commands import Command
from noetl.model.events import IterationsKeyed, StepFailed
from tests.engine.playing import Play, error

LOOP = """
workflow:
- step: start
  loop:
    in: {{from: 0, to: {total}}}
    iterator: x
    spec:
      mode: parallel
      max_in_flight: {width}
      on_error: {on_error}
      policy: {{partition: {{key: "{{{{ iter.x % {keys} }}}}"}}}}
  tool: {{kind: noop}}
  next: last
- step: last
  tool: {{kind: noop}}
"""


class Workers:
    """Runs the commands of a partitioned loop, one end of an iteration at a time."""

    def __init__(
        self, total: int, keys: int, width: int = 8, on_error: str = "fail", checked: bool = True
    ) -> None:
        text = LOOP.format(total=total, keys=keys, width=width, on_error=on_error)
        self.played = Play(text, checked=checked).start()
        self.keys = keys
        self.width = width
        self.at: dict[str, dict[int, int]] = {}
        """By command, how far each of its chains has come."""
        self.stopped: dict[str, set[int]] = {}
        """By command, chains that wait behind an iteration which waits."""
        self.waiting: dict[int, str] = {}
        self.last: dict[int, int] = {}
        """By key, the iteration that ended last."""
        self.most = 0

    @property
    def state(self) -> Any:
        return self.played.state.runs[next(iter(self.played.state.runs))].loop

    def commands(self) -> list[Command]:
        return [one for one in self.played.open.values() if one.step == "start"]

    def find_keys(self, command: Command) -> None:
        chunk = command.chunk
        assert chunk is not None
        fact = IterationsKeyed(
            at=self.played.at,
            step_run_id=command.step_run_id,
            step="start",
            start=chunk.start,
            keys=tuple(str(one % self.keys) for one in range(chunk.start, chunk.stop)),
        )
        self.played.report(command, fact, closes=True)

    def begun(self, command: Command) -> list[int]:
        """The iterations that the worker of a command is in the middle of."""
        if command.iteration is not None:
            return [command.iteration]
        assert command.chunk is not None
        chunk, at = command.chunk, self.at.setdefault(command.command_id, {})
        stopped = self.stopped.setdefault(command.command_id, set())
        busy = [n for n in range(len(chunk.chains)) if n not in stopped]
        busy = [n for n in busy if at.get(n, 0) < len(chunk.chains[n])]
        return [chunk.chains[n][at.get(n, 0)] for n in busy[: chunk.concurrency - len(stopped)]]

    def end(self, command: Command, iteration: int, result: Any = None) -> None:
        key = iteration % self.keys
        assert self.last.get(key, -1) < iteration, "it ended before one that it follows"
        assert iteration - self.keys < 0 or self.last.get(key) == iteration - self.keys
        self.last[key] = iteration
        event = self.played.iteration(command, iteration, iteration if result is None else result)
        if command.iteration is not None:
            self.played.report(command, event, closes=True)
            return
        assert command.chunk is not None
        chain = next(n for n, one in enumerate(command.chunk.chains) if iteration in one)
        self.at[command.command_id][chain] = command.chunk.chains[chain].index(iteration) + 1
        self.played.report(command, event, closes=self._is_through(command))

    def wait(self, command: Command, iteration: int) -> None:
        assert command.chunk is not None
        if command.iteration is None:
            chain = next(n for n, one in enumerate(command.chunk.chains) if iteration in one)
            self.stopped[command.command_id].add(chain)
        closes = command.iteration is not None or self._is_through(command)
        self.played.suspend(command, until=self.played.at + 5, iteration=iteration, closes=closes)

    def _is_through(self, command: Command) -> bool:
        return not self.begun(command)

    def look(self) -> None:
        """Never more at once than may be, and of each key one."""
        begun = [
            one
            for command in self.commands()
            if not _is_keys(command)
            for one in self.begun(command)
        ]
        waiting = list(self.state.suspended) if self.played.state.runs else []
        keys = [one % self.keys for one in {*begun, *waiting}]
        assert len(keys) == len(set(keys)), (begun, waiting)
        assert len({*begun, *waiting}) <= self.width
        self.most = max(self.most, len(keys))


def _is_keys(command: Command) -> bool:
    return command.chunk is not None and command.chunk.keys


@pytest.mark.parametrize("seed", range(12))
def test_iterations_of_a_key_follow_one_another_through_losses_waits_and_pauses(seed: int) -> None:
    dice = random.Random(seed)
    total, keys = dice.choice([(60, 7), (90, 3), (40, 40), (1100, 9)])
    workers = Workers(total, keys, checked=total < 200)
    played = workers.played
    while "last" not in played.steps:
        workers.look()
        commands = workers.commands()
        chance = dice.random()
        if played.status == "PAUSED":
            played.resume()
        elif not commands:
            played.fire()
        elif chance < 0.02:
            played.pause()
        elif chance < 0.1:
            played.lapse(dice.choice(commands))
        else:
            command = dice.choice(commands)
            begun = [] if _is_keys(command) else workers.begun(command)
            if _is_keys(command):
                workers.find_keys(command)
            elif not begun:
                played.report(command, closes=True)
            elif chance < 0.2:
                workers.wait(command, dice.choice(begun))
            else:
                workers.end(command, dice.choice(begun))

    assert played.result("start")["results"] == list(range(total))
    assert workers.most > 1


def test_a_key_that_takes_long_holds_up_no_other() -> None:
    workers = Workers(400, 20)
    while True:
        found = [
            (command, one)
            for command in workers.commands()
            if not _is_keys(command)
            for one in workers.begun(command)
            if one % 20
        ]
        if keyed := [command for command in workers.commands() if _is_keys(command)]:
            workers.find_keys(keyed[0])
        elif found:
            workers.end(*found[0])
        else:
            break

    assert len(workers.state.results) == 380, "all but those of the key that takes long"


def test_what_is_known_ahead_is_bounded_and_commands_grow_with_the_loop_alone() -> None:
    issued = {}
    for total in (4000, 8000):
        workers = Workers(total, 50, width=32, checked=False)
        most = 0
        while workers.commands():
            for command in workers.commands():
                if _is_keys(command):
                    workers.find_keys(command)
                else:
                    for iteration in workers.begun(command):
                        workers.end(command, iteration)
                if workers.played.state.steps["start"].status == "running":
                    parts = workers.state.parts
                    most = max(most, len(parts.followers) + len(parts.ready) + len(parts.handed))
        assert most <= 2 * (KEYED_AHEAD + KEYS)
        issued[total] = len(workers.played.issued)

    assert issued[8000] < 2.2 * issued[4000]


def test_one_iteration_that_kills_its_workers_fails_alone() -> None:
    workers = Workers(40, 4, on_error="continue")
    played = workers.played
    for _ in range(3000):
        commands = workers.commands()
        if not commands:
            break
        command = commands[0]
        if _is_keys(command):
            workers.find_keys(command)
        elif 13 in workers.begun(command):
            played.lapse(command, alone=True)
        elif begun := workers.begun(command):
            workers.last.setdefault(1, -3)
            if begun[0] == 17:
                workers.last[1] = 13
            workers.end(command, begun[0])

    assert played.steps == ["last"]
    assert played.result("start")["stats"] == {"total": 40, "success": 39, "failed": 1}
    assert [one["index"] for one in played.result("start")["errors"]] == [13]


@pytest.mark.parametrize("keys", [1, 2, 3, 5])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("poison", range(5))
def test_no_iteration_fails_for_another_that_was_lost_with_it(
    keys: int, alone: bool, poison: int
) -> None:
    workers = Workers(5, keys, on_error="continue")
    played = workers.played
    for _ in range(200):
        if not (commands := workers.commands()):
            break
        command = commands[0]
        if _is_keys(command):
            workers.find_keys(command)
        elif poison in workers.begun(command):
            played.lapse(command, alone=alone)
            workers.last[poison % keys] = max(workers.last.get(poison % keys, -1), poison - keys)
        else:
            begun = workers.begun(command)
            if begun[0] - keys == poison:
                workers.last[poison % keys] = poison
            workers.end(command, begun[0])

    assert [one["index"] for one in played.result("start")["errors"]] == [poison]


def test_a_key_that_cannot_be_found_fails_the_step() -> None:
    workers = Workers(4, 2)
    [command] = workers.commands()
    fact = IterationsKeyed(
        at=workers.played.at,
        step_run_id=command.step_run_id,
        step="start",
        error=error("`x` is undefined", kind="schema"),
    )
    workers.played.report(command, fact, closes=True)

    [failed] = workers.played.events(StepFailed)
    assert failed.error.kind == "schema"
