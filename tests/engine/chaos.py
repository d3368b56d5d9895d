"""A world that does to an execution whatever a world can do, by dice.

Workers that run chunks in lanes, wait, break, lose their leases and repeat themselves; clocks that
fire timers in any order; children that end in any way; people who pause, resume and cancel.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from noetl.model.chains import Chain, Goal, Routing
from noetl.model.commands import Command, Ending, Report, Suspension
from noetl.model.events import (
    ChildFinished,
    IterationDone,
    IterationFailed,
    IterationsKeyed,
    Progress,
    TaskDone,
    TaskStarted,
)
from noetl.model.inputs import ChildEnded, Leased, Reported, TimerDue
from noetl.model.outcome import Meta, ok
from tests.engine.generated import PARTITIONS
from tests.engine.playing import Play, error, todo

MOVES_MAX = 5_000
"""No generated net takes nearly as many."""


class Worker:
    """Runs one command: how many lanes it has, and what is left to do."""

    def __init__(self, command: Command) -> None:
        chunk = command.chunk
        self.lanes = chunk.concurrency if chunk is not None else 1
        self.left = [[one] for one in todo(command)] if chunk is not None else []
        """Iterations that follow one another stand together."""
        if chunk is not None and chunk.chains and command.iteration is None:
            self.left = [list(chain) for chain in chunk.chains]

    def take(self) -> int:
        """The next iteration, of the first chain of which none runs."""
        return self.left[0][0]

    def done(self, *, waits: bool) -> None:
        """It has ended, or waits: then what follows it does, too."""
        chain = self.left.pop(0)
        if chain[1:] and not waits:
            self.left.append(chain[1:])


def _chain_of(command: Command) -> Chain | None:
    """Rules that the command is about: whoever works on it keeps them in mind."""
    return command.progress.chain if command.progress is not None else None


class World:
    """One execution and its fate."""

    def __init__(
        self,
        text: str,
        dice: random.Random,
        result: Callable[[int], Any] = lambda index: index,
    ) -> None:
        self.dice = dice
        self.result = result
        """What an iteration yields."""
        self.played = Play(text)
        self.workers: dict[str, Worker] = {}
        self.waiting: set[tuple[str, int]] = set()
        """Iterations that were suspended and have not ended."""
        self.said: list[Report | ChildFinished | str] = []
        """Everything that may be said again."""
        self.calm = False
        """The faults have stopped."""
        self.played.start()
        self.check()

    def live(self, moves: int, *, people: bool = True) -> None:
        """So many moves of chaos, then calm until the end."""
        for _ in range(moves):
            if self.played.state.is_finished:
                return
            self.move(people=people)
        self.calm = True
        if self.played.status == "PAUSED":
            self.played.resume()
        for _ in range(MOVES_MAX):
            if self.played.state.is_finished:
                return
            self.move(people=False)
        raise AssertionError("the execution does not end")

    def move(self, *, people: bool) -> None:
        played = self.played
        choices: list[Callable[[], Any]] = [
            *(lambda command=command: self._work(command) for command in played.open.values()),
            *(lambda timer=timer: self._fire(timer) for timer in played.state.timers),
            *(lambda child=child: self._end_child(child) for child in played.children),
        ]
        if not choices or (people and self.dice.random() < 0.1):
            choices = [self._person]
        self.dice.choice(choices)()
        self.check()
        if not self.calm and self.dice.random() < 0.3:
            self._repeat()

    # --- What the world does ---

    def _person(self) -> None:
        if self.dice.random() < 0.05:
            self.played.cancel()
        elif self.played.status == "PAUSED":
            self.played.resume()
        else:
            self.played.pause()

    def _fire(self, timer: str) -> None:
        if self.calm or self.dice.random() < 0.5:
            self.played.fire(timer)
            self.said.append(timer)

    def _end_child(self, child: str) -> None:
        status = self.dice.choice(("COMPLETED", "COMPLETED", "FAILED", "CANCELLED"))
        self.said.append(self.played.end_child(child, status, 1))

    def _repeat(self) -> None:
        """Say something again: nothing may follow from it."""
        if not self.said:
            return
        again = self.dice.choice(self.said)
        before = self.played.state.seq
        match again:
            case Report():
                decision = self.played.happen(Reported, report=again)
            case ChildFinished():
                decision = self.played.happen(ChildEnded, fact=again)
            case _:
                decision = self.played.happen(TimerDue, timer_id=again)
        assert not decision.events
        assert not decision.effects
        assert self.played.state.seq == before

    def _work(self, command: Command) -> None:
        played, dice = self.played, self.dice
        if not self.calm and dice.random() < 0.1:
            played.lapse(command)
            return
        if dice.random() < 0.2:
            played.happen(
                Leased,
                command_id=command.command_id,
                step_run_id=command.step_run_id,
                worker="w-1",
            )
        if command.chunk is not None:
            self._iterate(command)
        elif not self.calm and dice.random() < 0.2:
            self.said.append(played.report(command, *self._calls(command, None)))
        elif not self.calm and dice.random() < 0.2:
            self.said.append(self._wait(command, None, closes=dice.random() < 0.7))
        else:
            ending = self._ending(command)
            self.said.append(played.report(command, *self._calls(command, None), ending=ending))

    def _ending(self, command: Command) -> Ending:
        """The body's end, or what the rules that a worker followed came to."""
        dice = self.dice
        error_found = error() if dice.random() < 0.15 else None
        said = self._next(command) if dice.random() < 0.3 else None
        skipped = "so be it" if dice.random() < 0.05 and self._has_rules(command) else None
        result = {"flag": dice.random() < 0.5} if error_found is None else None
        return Ending(error=error_found, result=result, next=said, skipped=skipped)

    def _has_rules(self, command: Command) -> bool:
        return bool(self.played.program.steps[command.step].step.rules)

    def _next(self, command: Command) -> Routing | None:
        """Where a rule sends tokens: to a later step, so that all comes to an end."""
        names = [name for name in self.played.program.steps if not name.startswith("undo")]
        later = names[names.index(command.step) + 1 :] if command.step in names else []
        if not later or not self._has_rules(command):
            return None
        goal = self.dice.choice([*later, "nowhere"])
        label = f"{command.step}#case_0.0.0"
        return Routing(branch="case_0", goals=(Goal(step=goal, label=label),))

    def _calls(self, command: Command, iteration: int | None) -> list[Any]:
        chain = _chain_of(command)
        progress = Progress(chain=chain) if chain is not None else None
        names: dict[str, Any] = {
            "at": self.played.at,
            "step_run_id": command.step_run_id,
            "step": command.step,
            "task": "t",
            "iteration": iteration,
        }
        meta = Meta(duration=self.dice.randint(0, 4) / 4)
        outcome = ok("x" * self.dice.randint(0, 30), meta=meta)
        return [TaskStarted(**names), TaskDone(outcome=outcome, progress=progress, **names)]

    def _wait(self, command: Command, iteration: int | None, *, closes: bool) -> Report:
        # Wherever it goes on, it has got further than before.
        progress = Progress(position=1 + len(self.said), chain=_chain_of(command))
        named: dict[str, Any] = {"iteration": iteration, "closes": closes, "progress": progress}
        if self.dice.random() < 0.5:
            return self.played.suspend(command, child="p", **named)
        until = self.played.at + self.dice.choice((0, 10, 100))
        return self.played.suspend(command, until=until, **named)

    def _iterate(self, command: Command) -> None:
        """Some lanes of the chunk get to the end of an iteration, or begin to wait."""
        assert command.chunk is not None
        if command.chunk.keys:
            self.said.append(self.played.report(command, self._keys(command), closes=True))
            return
        worker = self.workers.setdefault(command.command_id, Worker(command))
        facts: list[Any] = []
        waits: list[Suspension] = []
        for _ in range(self.dice.randint(0, worker.lanes) if not self.calm else worker.lanes):
            if not worker.left:
                break
            index = worker.take()
            waits_now = not self.calm and self.dice.random() < 0.2
            worker.done(waits=waits_now)
            self._check_order(command, index, facts)
            if waits_now:
                worker.lanes -= 1
                waits.append(Suspension(progress=Progress(position=1), iteration=index, until=0.0))
                self.waiting.add((command.step_run_id, index))
                continue
            facts += self._calls(command, index)
            result = error() if self.dice.random() < 0.1 else self.result(index)
            ended = self.played.iteration(command, index, result)
            if self.dice.random() < 0.1:
                ended = msgspec.structs.replace(ended, next=self._next(command))
            facts.append(ended)
            self.waiting.discard((command.step_run_id, index))
        closes = not worker.left or worker.lanes == 0
        if facts or waits or closes:
            report = self.played.report(command, *facts, suspensions=tuple(waits), closes=closes)
            self.said.append(report)

    def _keys(self, command: Command) -> IterationsKeyed:
        chunk = command.chunk
        assert chunk is not None
        return IterationsKeyed(
            at=self.played.at,
            step_run_id=command.step_run_id,
            step=command.step,
            start=chunk.start,
            keys=tuple(str(index % PARTITIONS) for index in range(chunk.start, chunk.stop)),
        )

    def _check_order(self, command: Command, index: int, facts: list[Any]) -> None:
        """Whoever has an iteration of a partitioned loop has it after those it follows."""
        loop = self.played.state.runs[command.step_run_id].loop
        if loop is None or loop.parts is None:
            return
        now = {fact.iteration for fact in facts if type(fact) in (IterationDone, IterationFailed)}
        before = range(index % PARTITIONS, index, PARTITIONS)
        assert all(one in now or loop.has_ended(one) for one in before), (index, before)

    # --- What must hold at every moment ---

    def check(self) -> None:
        played = self.played
        if played.state.is_finished:
            assert played.owners() == []
            assert not played.state.tokens
            assert not played.state.runs
            return
        assert played.owners(), "nobody owns an execution that has not ended"
        for run in played.state.runs.values():
            owned = run.commands or run.children or run.timers or run.loop or not run.waiting
            assert owned, f"nobody owns the run of {run.step}"
            self._check_loop(run)
            self._check_quotas(run)

    def _check_quotas(self, run: Any) -> None:
        """What used more than it may has ended."""
        quotas = self.played.program.steps[run.step].step.quotas
        for bound, used in (
            (quotas.max_calls, run.used.calls),
            (quotas.max_bytes, run.used.bytes),
            (quotas.max_seconds, run.used.seconds),
        ):
            assert bound is None or used <= bound or run.following is not None

    def _check_loop(self, run: Any) -> None:
        if run.loop is None:
            return
        running = 0
        for command_id in run.commands:
            command = self.played.open[command_id]
            if command.iteration is None and not (command.chunk and command.chunk.keys):
                worker = self.workers.setdefault(command_id, Worker(command))
                running += min(worker.lanes, len(worker.left))
        waiting = sum(run_id == run.step_run_id for run_id, _ in self.waiting)
        spec = self.played.program.steps[run.step].step.loop
        assert spec is not None
        assert running + waiting <= (spec.max_in_flight or 1)
