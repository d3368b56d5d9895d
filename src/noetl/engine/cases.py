"""Event rules: which of a step's rules answer an event. The same code on server and worker.

Exclusive: the first rule that holds. Inclusive: every one. A rule is considered for the events
its condition names. One that names none answers the calls of the step (in a pipeline of several
tasks: the last one), or its end if it calls nothing, or, while the step waits for the world,
whatever the world says. A failure is shown only to rules that read `error` or name the failure
itself, as with arcs; `else` answers what no other rule does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import msgspec

from noetl.engine.actions import (
    ActionProgram,
    CallProgram,
    RetryProgram,
    RunProgram,
    program_of,
)
from noetl.model.facts import Undefined, near_misses
from noetl.model.net import CaseSettings, EventRule, Run, Step, Task
from noetl.templates import Condition, EventView, Scope, compile_condition

Kind = Literal["enter", "call", "exit", "external"]
Repeat = RetryProgram | CallProgram
"""What asks for another call."""
SINK = "sink"
"""The label under which a step's own `sink` is followed, as if it were a rule."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the rules of a step may answer."""

    kind: Kind
    name: str
    aliases: frozenset[str] = frozenset()
    general: frozenset[str] = frozenset()
    """Names that mean this failure only to rules that read `error`."""
    failed: bool = False
    last: bool = True
    """No other call of this pass follows."""


def entering() -> Happening:
    return Happening(
        kind="enter", name="step.enter", aliases=frozenset({"step.started", "StepStarted"})
    )


def called(*, ok: bool, last: bool) -> Happening:
    """A call of the step is settled."""
    both = {"task.done", "tool.processed"}
    if ok:
        names = frozenset({*both, "ToolCompleted"})
        return Happening(kind="call", name="call.done", aliases=names, last=last)
    return Happening(
        kind="call",
        name="call.error",
        aliases=frozenset({*both, "ToolErrored"}),
        general=frozenset({"call.done"}),
        failed=True,
    )


def exiting(*, ok: bool, looped: bool) -> Happening:
    """The body of the step is through; with `looped`, the whole loop is.

    In a looped step `step.exit` is the end of each iteration, and `loop.done` that of the loop.
    """
    if looped:
        loop = frozenset({"loop.finished", "LoopFinished", "LoopDone"})
        if ok:
            return Happening(kind="exit", name="loop.done", aliases=loop)
        return Happening(kind="exit", name="loop.failed", general=loop | {"loop.done"}, failed=True)
    general = frozenset({"step.exit", "step.finished", "StepFinished"})
    if ok:
        return Happening(kind="exit", name="step.done", aliases=general)
    return Happening(
        kind="exit",
        name="step.failed",
        aliases=frozenset({"StepFailed"}),
        general=general,
        failed=True,
    )


def outside(name: str) -> Happening:
    """The world said something to a step that waits for it."""
    return Happening(kind="external", name=name)


_SAME = {
    **dict.fromkeys(("call.error", "task.done", "tool.processed"), "call.done"),
    **dict.fromkeys(("ToolCompleted", "ToolErrored"), "call.done"),
    **dict.fromkeys(("step.done", "step.failed", "step.finished", "StepFinished"), "step.exit"),
    **dict.fromkeys(("loop.finished", "LoopFinished", "LoopDone"), "loop.done"),
}
"""Names under which the same event is known, where several rules answer it."""


class EventRuleProgram:
    """A rule with its templates compiled."""

    def __init__(self, rule: EventRule, step: str) -> None:
        self.rule = rule
        self.when: Condition | None = None if rule.when is None else compile_condition(rule.when)
        roots = {path[0] for path in self.when.reads} if self.when is not None else set()
        self.reads_error = "error" in roots
        self.reads_event = "event" in roots
        self.names = frozenset(rule.events) if rule.events is not None else None
        self.events = frozenset(_SAME.get(name, name) for name in self.names or ())
        """What it answers, whichever of its names is written; nothing if none is."""
        self.actions: tuple[ActionProgram, ...] = tuple(
            program_of(action, rule.label, f"{step}#{rule.label}.{index}")
            for index, action in enumerate(rule.actions)
        )
        self.repeats: tuple[RetryProgram | CallProgram, ...] = tuple(
            one for one in self.actions if isinstance(one, RetryProgram | CallProgram)
        )
        """What asks for another call, which may be one too many."""
        self.restart = RetryProgram(rule.retry, rule.label) if rule.retry is not None else None

    @cached_property
    def needs_worker(self) -> bool:
        return any(not action.is_plain for action in self.actions)

    @cached_property
    def reads(self) -> frozenset[tuple[str, ...]]:
        """The paths that choosing it and following its plain actions may read."""
        found: frozenset[tuple[str, ...]] = (
            self.when.reads if self.when is not None else frozenset()
        )
        for action in self.actions:
            found |= action.reads
        return found


class CaseProgram:
    """The event rules of a step, in the order they are tried."""

    def __init__(self, step: Step) -> None:
        self.settings: CaseSettings = step.case
        written = [EventRuleProgram(rule, step.name) for rule in step.rules]
        self.rules = tuple(rule for rule in written if rule.when is not None)
        self.otherwise = next((rule for rule in written if rule.when is None), None)
        if self.settings.order == "priority":
            self.rules = tuple(sorted(self.rules, key=lambda one: -one.rule.priority))
        self.by_label = {rule.rule.label: rule for rule in written}
        self.source = tuple(self.by_label)
        if step.sink is not None:
            actions = (Run(task=step.sink, sink=True),)
            self.by_label[SINK] = EventRuleProgram(
                EventRule(label=SINK, actions=actions), step.name
            )
        self._home: set[Kind] = set()
        """What rules answer that name no event."""
        if step.tasks:
            self._home.add("call")
        elif not step.case.wait:
            self._home.add("exit")
        if step.case.wait:
            self._home.add("external")
        self._named = frozenset().union(*(rule.names or () for rule in self.rules), frozenset())

    @cached_property
    def reads(self) -> frozenset[tuple[str, ...]]:
        return frozenset().union(*(rule.reads for rule in self.by_label.values()), frozenset())

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """The tasks that its rules run, by name."""
        return {
            action.task.task.name: action.task.task
            for rule in self.by_label.values()
            for action in rule.actions
            if isinstance(action, RunProgram)
        }

    def answers(self, kind: Kind) -> bool:
        """Whether any rule could answer an event of this kind at all."""
        return kind in self._answered

    @cached_property
    def _answered(self) -> frozenset[Kind]:
        possible = {
            "enter": (entering(),),
            "call": (called(ok=True, last=True), called(ok=False, last=True)),
            "exit": tuple(
                exiting(ok=ok, looped=looped) for ok in (True, False) for looped in (True, False)
            ),
        }
        rules = [*self.rules, *([self.otherwise] if self.otherwise is not None else [])]
        found: set[Kind] = {"external"} if self.settings.wait else set()
        for kind, happenings in possible.items():
            if any(self._considers(rule, one) for rule in rules for one in happenings):
                found.add(kind)  # type: ignore[arg-type]
        return frozenset(found)

    def selected(
        self,
        happening: Happening,
        scope: Scope,
        event: dict[str, Any],
        exhausted: Callable[[Repeat], bool],
    ) -> list[EventRuleProgram]:
        """The rules that answer, in the order in which they are followed.

        A rule whose `retry` or `call` has no tries left does not hold. Raises EvaluationFailed.
        """
        found: list[EventRuleProgram] = []
        for rule in self.rules:
            if not self._considers(rule, happening) or self._excluded(rule, found):
                continue
            scope.roots["event"] = _shown(happening, event, rule)
            assert rule.when is not None
            if rule.when.holds(scope) and not any(map(exhausted, rule.repeats)):
                found.append(rule)
        if not found and self.otherwise is not None and self._considers(self.otherwise, happening):
            found.append(self.otherwise)
        scope.roots["event"] = _shown(happening, event, None)
        return found

    def misspelt(self, happening: Happening, scope: Scope, event: dict[str, Any]) -> Undefined:
        """Of rules none of which answered: names that are nearly those that are there."""
        found: Undefined = {}
        for rule in self.rules:
            if self._considers(rule, happening) and rule.when is not None:
                scope.roots["event"] = _shown(happening, event, rule)
                found |= near_misses(rule.when.undefined(scope))
        scope.roots["event"] = _shown(happening, event, None)
        return found

    def _excluded(self, rule: EventRuleProgram, found: list[EventRuleProgram]) -> bool:
        """Exclusive: another rule has answered. Mapping-form rules exclude those of their event."""
        if self.settings.mode == "inclusive":
            return False
        if not self.settings.independent:
            return bool(found)
        events = rule.events
        return any(not events or not one.events or events & one.events for one in found)

    def _considers(self, rule: EventRuleProgram, happening: Happening) -> bool:
        if rule.when is None:
            return self._falls_through(happening)
        if rule.names is None:
            shown = not happening.failed or rule.reads_error or rule.reads_event
            return shown and self._is_home(happening)
        return not rule.names.isdisjoint(_names(happening, rule))

    def _falls_through(self, happening: Happening) -> bool:
        """`else` answers what rules without a name do; if all rules name other events, those."""
        homeless = all(rule.names is not None for rule in self.rules) and self._named
        calls = {"call.done", "call.error", "task.done", "tool.processed"}
        if homeless and "call" in self._home and not self._named & calls:
            every = {happening.name, *happening.aliases, *happening.general}
            return happening.kind != "enter" and not self._named.isdisjoint(every)
        return self._is_home(happening)

    def _is_home(self, happening: Happening) -> bool:
        return happening.kind in self._home and happening.last


def _names(happening: Happening, rule: EventRuleProgram | None) -> frozenset[str]:
    names = happening.aliases | {happening.name}
    return names | happening.general if rule is None or rule.reads_error else names


def _shown(happening: Happening, event: dict[str, Any], rule: EventRuleProgram | None) -> EventView:
    """The event as this rule sees it; as the actions of all rules see it, if none is given."""
    return EventView({**event, "name": happening.name}, _names(happening, rule))


def needs_worker(rules: list[EventRuleProgram]) -> bool:
    """Whether following them takes more than the server can do."""
    return any(rule.needs_worker for rule in rules)
