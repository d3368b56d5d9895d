"""Waiting for the world: a step that holds no worker until it hears something.

A step with `eval_mode: on_event` does what its body says, if it has one, and then waits. What it
hears are external events and its own timers (`engine.signals` offers them to its rules). It
waits until a rule ends it, or its timeout does.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from noetl.engine.durations import duration
from noetl.engine.program import StepProgram
from noetl.engine.scope import server_scope
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed
from noetl.model.events import StepWaiting, TimerSet
from noetl.model.fields import options, wrong_bounds
from noetl.model.ids import derive
from noetl.model.net import EventRule, FormField
from noetl.model.signals import ANY, Listening
from noetl.model.state import Run
from noetl.templates import Compiled, Scope

OWN_PREFIXES = (
    *("playbook.", "workflow.", "token.", "step.", "task.", "tool.", "call.", "loop.", "case."),
    *("next.", "retry.", "poll.", "sink.", "policy.", "ctx.", "vars.", "command.", "timer."),
    *("child.", "signal."),
)
"""What names of events begin with that only the system itself may say."""


def is_to_wait(run: Run) -> bool:
    """Whether a run of a step that waits, its body being through, has to wait before it can end.

    It does not if a rule has already said where to go, nor while it undoes something.
    """
    return run.listens is None and run.next is None and run.compensates is None


def waiting_facts(turn: Turn, run: Run, result: Any) -> list[StepWaiting | TimerSet]:
    """With these facts the run begins to wait, its body having come to `result`.

    Raises EvaluationFailed if a timer or the form cannot be made.
    """
    program = turn.program.steps[run.step]
    scope = server_scope(turn, run.step, seed=run.step_run_id, args=run.args)
    timers = [
        TimerSet(
            at=turn.at,
            timer_id=derive(run.step_run_id, "timer", index),
            fires_at=_moment(run, name, after, at, scope),
            purpose="listener",
            step_run_id=run.step_run_id,
            name=name,
        )
        for index, (name, after, at) in enumerate(program.timers)
    ]
    listens = Listening(
        events=listened(program.step.rules),
        form=_form(program, scope),
        role=program.step.form_role,
    )
    waiting = StepWaiting(
        **turn.of(run), listens=listens, yields=(result,) if program.step.tasks else ()
    )
    return [waiting, *timers]


def listened(rules: tuple[EventRule, ...]) -> tuple[str, ...]:
    """The external events that these rules speak of."""
    names: dict[str, None] = {}
    for rule in rules:
        for name in (ANY,) if rule.events is None else rule.events:
            if not name.startswith(OWN_PREFIXES):
                names[name] = None
    return tuple(names)


def _moment(run: Run, name: str, after: Compiled, at: Compiled, scope: Scope) -> float:
    """When a timer fires: so long after the step began, or at a moment."""
    where = f'timer "{name}" of step "{run.step}"'
    length = duration(after, scope, f"length of {where}")
    if length is not None:
        return run.scheduled_at + length
    written: Any = at.render(scope, where)
    try:
        moment = written if isinstance(written, datetime) else datetime.fromisoformat(str(written))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise EvaluationFailed(
            f"{where} is to fire at {written!r}, which is not a moment."
            " Write one with its zone, such as 2030-01-31T12:00:00Z."
        )
    return moment.timestamp()


def _form(program: StepProgram, scope: Scope) -> tuple[FormField, ...]:
    where = f'form of step "{program.step.name}"'
    try:
        form = msgspec.convert(program.form.render(scope, where), tuple[FormField, ...])
    except msgspec.ValidationError as error:
        raise EvaluationFailed(f"the {where} cannot be shown: {error}.") from None
    for field in form:
        if field.type == "choice" and not options(field):
            raise EvaluationFailed(
                f'field "{field.name}" of the {where} is a choice, and `options` yields'
                f" {field.options!r} to choose from. Write a list, or a template that yields one."
            )
        if problem := wrong_bounds(field):
            raise EvaluationFailed(f'field "{field.name}" of the {where}: {problem}')
    return form
