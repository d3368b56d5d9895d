"""Steps that wait for external events, without a worker.

A step with `eval_mode: on_event` runs its body, if it has one, and then waits until a rule or its
timeout ends it. External events and its own timers are offered to its rules (`engine.signals`).
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
"""Prefixes of event names that are reserved for the system itself."""


def must_wait(run: Run) -> bool:
    """Whether a run of a step that waits must now wait, after its body.

    Not if a rule has already decided its `next`, nor if a workbook entry compensates the step.
    """
    return run.listens is None and run.next is None and run.block is None


def waiting_facts(turn: Turn, run: Run, result: Any) -> list[StepWaiting | TimerSet]:
    """The facts with which the run begins to wait; `result` is that of its body.

    Raises EvaluationFailed if a timer or the form cannot be evaluated.
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
        **turn.about(run), listens=listens, yields=(result,) if program.step.tasks else ()
    )
    return [waiting, *timers]


def listened(rules: tuple[EventRule, ...]) -> tuple[str, ...]:
    """The external events that these rules name."""
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
