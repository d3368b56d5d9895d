"""`choose`, `while` and `until`, written out as tasks that jump.

Generated tasks are `noop`s with stable labels that hand the previous result on, so that a
pipeline with sugar yields what the same tasks in a row would yield. Every branch ends in a jump
to the merge point `<label>_end`; nothing falls through.

    choose_1          which branch?            while_2        does it hold?
    … tasks …                                  while_2_round  count, stop at max
    choose_1_0_done   → choose_1_end           … tasks …
    … tasks …                                  while_2_again  → while_2
    choose_1_end                               while_2_end    forget the count
"""

from __future__ import annotations

from collections.abc import Callable

from noetl.dsl.building import Building, Home, Where, entries, field, items, text, whole
from noetl.dsl.nodes import Node
from noetl.model.net import NOOP, AnyAction, Condition, Continue, Fail, Jump, Patch, Rule, Task

Branch = Callable[[Node | None, str], list[Task]]
"""Builds the tasks inside sugar; the text starts the names of those without one."""

_HAND_ON = {"result": "{{ _prev | default(none) }}"}


def expand(
    building: Building, word: str, node: Node, label: str, home: Home, branch: Branch
) -> list[Task]:
    """The tasks that one piece of sugar stands for."""
    label = text(node, "name") or label
    maker = _Maker(building, node, f"{word} {label}", label, home)
    match word:
        case "choose":
            return maker.choose(field(node, "choose"), branch)
        case "while":
            return maker.while_(field(node, "while"), branch)
        case _:
            return maker.until(field(node, "until"), branch)


class _Maker:
    """Generates the tasks of one piece of sugar under one label."""

    def __init__(self, building: Building, node: Node, origin: str, label: str, home: Home) -> None:
        self._building = building
        self._node = node
        self._origin = origin
        self._label = label
        self._home = home
        self._counter = f"{label}_round"

    def choose(self, body: Node | None, branch: Branch) -> list[Task]:
        end = f"{self._label}_end"
        rules: list[Rule] = []
        tasks: list[Task] = []
        for index, node in enumerate(items(body)):
            is_else = "else" in entries(node)
            inside = branch(field(node, "else" if is_else else "do"), f"{self._label}_{index}")
            inside.append(self._noop(f"{self._label}_{index}_done", self._goto("go", end)))
            condition = None if is_else else self._condition(node)
            rules.append(self._goto(f"branch_{index}", inside[0].name, condition))
            tasks += inside
        if not any(rule.when is None for rule in rules):
            rules.append(self._goto("otherwise", end))
        return [self._noop(self._label, *rules), *tasks, self._noop(end)]

    def while_(self, body: Node | None, branch: Branch) -> list[Task]:
        start, end = self._label, f"{self._label}_end"
        return [
            self._noop(
                start,
                self._goto("holds", self._counter, self._condition(body)),
                self._goto("over", end),
            ),
            self._count(body, self._counter),
            *branch(field(body, "do"), self._label),
            self._noop(f"{self._label}_again", self._goto("go", start)),
            self._forget(end),
        ]

    def until(self, body: Node | None, branch: Branch) -> list[Task]:
        start, end = self._label, f"{self._label}_end"
        return [
            self._count(body, start),
            *branch(field(body, "do"), self._label),
            self._noop(
                f"{self._label}_check",
                self._goto("reached", end, self._condition(body)),
                self._goto("again", start),
            ),
            self._forget(end),
        ]

    def _count(self, body: Node | None, name: str) -> Task:
        """Count the round; the round after the last allowed one is a failure."""
        most = whole(body, "max")
        counter = f"iter.{self._counter}"
        next_round = Patch(iter={self._counter: f"{{{{ ({counter} | default(0)) + 1 }}}}"})
        go_on = Rule(label="round", actions=(next_round, Continue()))
        if most is None:
            self._building.report.add(
                "sugar-unbounded",
                "no `max` bounds the rounds; only `spec.max_jumps` does. Say how many are enough.",
                self._node.place,
            )
            return self._noop(name, go_on)
        over = Rule(
            label="too_many",
            when=f"{{{{ ({counter} | default(0)) >= {most} }}}}",
            actions=(Fail(error=f"{self._label} is not over after {most} rounds"),),
        )
        return self._noop(name, over, go_on)

    def _forget(self, name: str) -> Task:
        """The merge point; the next time round counts from 0 again."""
        reset = Rule(label="reset", actions=(Patch(iter={self._counter: 0}), Continue()))
        return self._noop(name, reset)

    def _condition(self, node: Node | None) -> Condition:
        found = self._building.condition(field(node, "when"), Where.POLICY, self._home)
        return True if found is None else found

    def _goto(self, label: str, to: str, when: Condition | None = None) -> Rule:
        jump = Jump(to=to)
        self._building.mark(jump, self._node.place)
        actions: tuple[AnyAction, ...] = (jump,)
        return Rule(label=label, when=when, actions=actions)

    def _noop(self, name: str, *rules: Rule) -> Task:
        made = Task(name=name, kind=NOOP, config=_HAND_ON, rules=rules, origin=self._origin)
        self._building.mark(made, self._node.place)
        self._building.debug[f"{self._home.name or self._home.block}.{name}"] = self._node.place
        return made
