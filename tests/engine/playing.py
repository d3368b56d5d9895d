"""Plays an execution without anything around it: given what happens, then what follows.

The test is the worker, the clock and the children: it answers commands in any order, fires timers,
ends children, loses leases. Everything is pure. Every decision is checked on its way: folding its
facts onto a snapshot of the state before gives the state after.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from noetl.dsl.compile import compile_text
from noetl.engine.advance import advance
from noetl.engine.elements import element
from noetl.engine.evolve import evolve
from noetl.engine.pipeline.frame import Frame
from noetl.engine.pipeline.machine import Pipeline, StepRun
from noetl.engine.program import Program
from noetl.engine.turn import (
    CancelChild,
    Close,
    Decision,
    EndLoop,
    Issue,
    Keep,
    StartChild,
    TellParent,
)
from noetl.model import events as facts
from noetl.model import refs
from noetl.model.commands import ChildRequest, Command, Ending, Report, Suspension
from noetl.model.events import (
    ChildFinished,
    Event,
    ExecutionRequested,
    IterationDone,
    IterationFailed,
    Parent,
    Progress,
)
from noetl.model.facts import Actor
from noetl.model.inputs import (
    Cancelled,
    ChildEnded,
    Input,
    Lapsed,
    LoopEnded,
    Paused,
    Reported,
    Resumed,
    Start,
    TimerDue,
)
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState
from noetl.templates import Views
from noetl.tools.playbook import TOOL as PLAYBOOK
from noetl.tools.registry import tool_of, tools

VIEWS = Views(tool_of)
EXECUTION = "4611686018427387904"
SEAL = "sealed"
RESULT_MAX = 1_000_000
HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: played, path: tests/played}
"""


@lru_cache(maxsize=2000)
def program_of(text: str) -> Program:
    """A playbook, ready to run. Texts without a head get one."""
    whole = text if "apiVersion" in text else HEAD + text
    compiled = compile_text(whole, tools=tools())
    return Program(compiled.unwrap(), compiled.digest, VIEWS)


def error(message: str = "broken", **fields: Any) -> TaskError:
    return TaskError(**{"kind": "exception", "message": message, **fields})


def snapshot(state: ExecutionState) -> ExecutionState:
    """The state as it comes back from the store."""
    return msgspec.json.decode(msgspec.json.encode(state), type=ExecutionState)


class Play:
    """One execution and the world around it, in the hands of a test."""

    def __init__(self, text: str, *, checked: bool = True) -> None:
        self.program = program_of(text)
        self.state = ExecutionState()
        self.at = 1_000.0
        self.checked = checked
        self.history: list[Event] = []
        self.open: dict[str, Command] = {}
        """Commands that workers have or may take, oldest first."""
        self.issued: list[Command] = []
        self.children: dict[str, StartChild] = {}
        self.cancelled_children: list[str] = []
        self.told: list[TellParent] = []
        self.closed: list[str] = []
        self.kept: dict[str, bytes] = {}
        """Bodies that are stored beside the facts."""
        self._numbers: dict[str, int] = {}

    # --- What happens ---

    def start(self, *, parent: Parent | None = None, **workload: Any) -> Play:
        request = ExecutionRequested(
            at=self.at, path="tests/played", digest="d", parent=parent, seal=SEAL
        )
        merged = {**self.program.net.workload, **workload}
        self.happen(Start, request=request, workload=merged)
        return self

    def happen(self, kind: type[Input], **fields: Any) -> Decision:
        """Something happened: decide, check, and take in what follows."""
        before = snapshot(self.state) if self.checked else None
        given = kind(**{"execution_id": EXECUTION, "at": self.at, **fields})
        decision = advance(self.program, self.state, given)
        if before is not None:
            for event in decision.events:
                evolve(before, facts.decode(facts.encode(event)))
            assert before == snapshot(self.state) == self.state
        self._take(decision)
        return decision

    def _take(self, decision: Decision) -> None:
        self.history += decision.events
        over: list[EndLoop] = []
        for effect in decision.effects:
            match effect:
                case Keep(key=key, body=body):
                    assert self.kept.setdefault(key, body) == body
                case EndLoop():
                    over.append(effect)
                case Issue(command=command):
                    assert command.command_id not in self.open
                    assert command.command_id in self.state.holders
                    self.open[command.command_id] = command
                    self.issued.append(command)
                case Close(command_id=command_id):
                    del self.open[command_id]
                    self.closed.append(command_id)
                case StartChild(child=child):
                    assert child not in self.children
                    self.children[child] = effect
                case CancelChild(child=child):
                    del self.children[child]
                    self.cancelled_children.append(child)
                case TellParent():
                    self.told.append(effect)
        assert set(self.open) == set(self.state.holders), "commands out and commands known differ"
        for loop in over:
            self.happen(LoopEnded, step_run_id=loop.step_run_id, result=loop.result)

    def report(
        self,
        command: Command | str,
        *events: Event,
        suspensions: tuple[Suspension, ...] = (),
        ending: Ending | None = None,
        closes: bool = False,
    ) -> Report:
        """A worker says something about a command; returns the report, to say it again."""
        command = self[command] if isinstance(command, str) else command
        number = self._numbers.get(command.command_id, 0) + 1
        self._numbers[command.command_id] = number
        report = Report(
            command_id=command.command_id,
            execution_id=EXECUTION,
            token="t",
            number=number,
            events=events,
            suspensions=suspensions,
            ending=ending,
            closes=closes,
        )
        if closes or ending is not None:
            self.open.pop(command.command_id, None)
        self.happen(Reported, report=report)
        return report

    def done(self, which: Command | str, result: Any = None, **tasks: Any) -> Report:
        """The whole run ended well."""
        return self.report(which, ending=Ending(result=result, tasks=tasks))

    def fail(self, which: Command | str, message: str = "broken", **fields: Any) -> Report:
        return self.report(which, ending=Ending(error=error(message, **fields)))

    def iterate(
        self, which: Command | str, *, results: dict[int, Any] | None = None, closes: bool = True
    ) -> Report:
        """A whole chunk ended. Results that are errors are failures; by default, the element."""
        command = self[which] if isinstance(which, str) else which
        ended = [
            self.iteration(
                command, index, (results or {}).get(index, element_of(self, command, index))
            )
            for index in todo(command)
        ]
        return self.report(command, *ended, closes=closes)

    def iteration(self, command: Command, index: int, result: Any = None, **ctx: Any) -> Event:
        names: dict[str, Any] = {
            "at": self.at,
            "step_run_id": command.step_run_id,
            "step": command.step,
            "iteration": index,
            "ctx": ctx,
        }
        if isinstance(result, TaskError):
            return IterationFailed(error=result, **names)
        return IterationDone(result=result, **names)

    def suspend(
        self,
        which: Command | str,
        *,
        until: float | None = None,
        child: str | None = None,
        iteration: int | None = None,
        closes: bool = True,
        progress: Progress | None = None,
    ) -> Report:
        """The run, or one iteration of it, waits for a moment or for a child."""
        suspension = Suspension(
            progress=progress or Progress(position=1),
            iteration=iteration,
            until=until,
            child=ChildRequest(path=child) if child is not None else None,
        )
        return self.report(which, suspensions=(suspension,), closes=closes)

    def lapse(self, which: Command | str, *, given_back: bool = False, alone: bool = False) -> None:
        command = self[which] if isinstance(which, str) else which
        del self.open[command.command_id]
        self.happen(
            Lapsed,
            command_id=command.command_id,
            worker="w-1",
            given_back=given_back,
            alone=alone,
        )

    def fire(self, timer_id: str | None = None) -> None:
        """The next timer's moment comes."""
        timer = self.state.timers[timer_id] if timer_id else self.next_timer()
        self.at = max(self.at, timer.fires_at)
        self.happen(TimerDue, timer_id=timer.timer_id)

    def next_timer(self) -> Any:
        return min(self.state.timers.values(), key=lambda timer: (timer.fires_at, timer.timer_id))

    def end_child(self, child: str, status: Any = "COMPLETED", result: Any = None) -> ChildFinished:
        asked = self.children.pop(child)
        fact = ChildFinished(
            at=self.at,
            step_run_id=asked.parent.step_run_id,
            child=child,
            status=status,
            result=result,
            error=None if status == "COMPLETED" else error("child broke"),
            iteration=asked.parent.iteration,
        )
        self.happen(ChildEnded, fact=fact)
        return fact

    def cancel(self, reason: str = "enough", actor: Actor | None = None, key: str = "") -> None:
        self.happen(Cancelled, reason=reason, actor=actor, key=key)

    def pause(self) -> None:
        self.happen(Paused, reason="wait")

    def resume(self) -> None:
        self.happen(Resumed)

    # --- What followed ---

    def read(self, asking: refs.Bodies) -> Any:
        """What the bodies that are asked for amount to."""
        try:
            wanted = next(asking)
            while True:
                wanted = asking.send(msgspec.json.decode(self.kept[wanted[1]]))
        except StopIteration as done:
            return done.value

    def result(self, step: str) -> Any:
        """What a step yielded, with what references in it stand for."""
        return self.read(refs.real(self.state.results[step].value, EXECUTION, SEAL))

    def __getitem__(self, step: str) -> Command:
        """The oldest open command of a step."""
        return next(command for command in self.open.values() if command.step == step)

    @property
    def steps(self) -> list[str]:
        """Steps that have open commands."""
        return [command.step for command in self.open.values()]

    @property
    def status(self) -> str:
        return self.state.status

    def events(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.history if isinstance(event, kind)]

    def ran(self) -> list[str]:
        """The steps whose runs were scheduled, in order."""
        return [event.step for event in self.events(facts.StepScheduled)]

    def owners(self) -> list[str]:
        """Who will make the execution go on."""
        listeners = [run.step for run in self.state.runs.values() if run.listens is not None]
        found = [*self.open, *self.state.timers, *self.children, *listeners]
        return [*found, "resume"] if self.status == "PAUSED" else found


def todo(command: Command) -> list[int]:
    """The iterations a worker runs for this command."""
    chunk = command.chunk
    assert chunk is not None
    if command.iteration is not None:
        return [command.iteration]
    return [index for index in range(chunk.start, chunk.stop) if index not in chunk.skip]


def machine_of(play: Play, command: Command) -> Pipeline:
    """The pipeline of a command, as its worker would begin it."""
    run = StepRun(play.program, command, PLAYBOOK, RESULT_MAX, command.at)
    frame = Frame(play.program, command, dict(command.ctx), command.progress)
    return Pipeline(run, run.step.tasks, frame, top=True)


def element_of(play: Play, command: Command, index: int) -> Any:
    loop = play.program.steps[command.step].step.loop
    assert loop is not None
    chunk = command.chunk
    assert chunk is not None
    about = refs.about(chunk.items, command.seal)
    if about is not None:
        elements = play.read(refs.part(about, EXECUTION, chunk.start, chunk.stop))
        chunk = msgspec.structs.replace(chunk, items=elements)
    return element(loop, index, chunk)


def play(text: str, **workload: Any) -> Play:
    """A playbook that has just been started."""
    return Play(text).start(**workload)
