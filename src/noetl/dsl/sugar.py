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
from typing import TYPE_CHECKING

from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import COUNT, NAME, Inspection, Placed, When, field
from noetl.dsl.nodes import Node
from noetl.dsl.policies import TASKS, RuleList
from noetl.model.net import NOOP, AnyAction, Condition, Continue, Fail, Jump, Patch, Rule, Task
from noetl.model.problems import Place

if TYPE_CHECKING:
    from noetl.dsl.tasks import WrittenTasks

SUGAR = ("choose", "while", "until")
_START = "Start of the generated labels."


class _Branch(Placed, title="a branch of `choose`", first=("when", "else")):
    """`{when, do}`, or the closing `{else: [tasks]}`."""

    when: Node | None = field(When(), "The condition.")
    do: WrittenTasks = field(TASKS, "The tasks.")
    else_: WrittenTasks = field(TASKS, "The tasks when no branch held.")

    def check(self, look: Inspection) -> None:
        keys = self.node.entries.keys() & {"when", "do", "else"}
        if keys not in ({"when", "do"}, {"else"}):
            look.report.add("bad-rule", "a branch has `when` and `do`, or only `else`.", self.place)


class _Rounds(Placed, first=("when", "max")):
    when: Node | None = field(When(), "The condition.", required=True)
    max: int | None = field(COUNT, "Most rounds.")
    do: WrittenTasks = field(TASKS, "The tasks.", required=True)


class _While(_Rounds, title="a `while`"):
    pass


class _Until(_Rounds, title="an `until`"):
    pass


class WrittenChoose(Placed, title="a `choose`", first=("name",)):
    """The first branch whose condition holds."""

    choose: tuple[_Branch, ...] = field(RuleList(_Branch.shape))
    name: str | None = field(NAME, _START)


class WrittenWhile(Placed, title="a `while`", first=("name",)):
    """Rounds as long as a condition holds."""

    while_: _While = field(_While)
    name: str | None = field(NAME, _START)


class WrittenUntil(Placed, title="an `until`", first=("name",)):
    """Rounds until a condition holds."""

    until: _Until = field(_Until)
    name: str | None = field(NAME, _START)


WrittenSugar = WrittenChoose | WrittenWhile | WrittenUntil

Branch = Callable[["WrittenTasks", str], list[Task]]
"""Builds the tasks inside sugar; the text is the prefix of generated names."""

_HAND_ON = {"result": "{{ _prev | default(none) }}"}


def expand(building: Building, written: WrittenSugar, label: str, branch: Branch) -> list[Task]:
    """The tasks that a piece of sugar stands for."""

    def maker(word: str) -> _Maker:
        generated = (
            label.replace("task", word, 1) if label.startswith("task_") else f"{label}_{word}"
        )
        name = written.name or generated
        return _Maker(building, written.place, f"{word} {name}", name)

    match written:
        case WrittenChoose():
            return maker("choose").choose(written.choose, branch)
        case WrittenWhile():
            return maker("while").while_(written.while_, branch)
        case WrittenUntil():
            return maker("until").until(written.until, branch)


class _Maker:
    """Generates the tasks of one piece of sugar under one label."""

    def __init__(self, building: Building, place: Place, origin: str, label: str) -> None:
        self._building = building
        self._place = place
        self._origin = origin
        self._label = label
        self._counter = f"{label}_round"

    def choose(self, branches: tuple[_Branch, ...], branch: Branch) -> list[Task]:
        end = f"{self._label}_end"
        rules: list[Rule] = []
        tasks: list[Task] = []
        for index, written in enumerate(branches):
            is_else = "else" in written.node.entries
            inside = branch(written.else_ if is_else else written.do, f"{self._label}_{index}")
            inside.append(self._noop(f"{self._label}_{index}_done", self._goto("go", end)))
            condition = None if is_else else self._condition(written)
            rules.append(self._goto(f"branch_{index}", inside[0].name, condition))
            tasks += inside
        if not any(rule.when is None for rule in rules):
            rules.append(self._goto("otherwise", end))
        return [self._noop(self._label, *rules), *tasks, self._noop(end)]

    def while_(self, body: _Rounds, branch: Branch) -> list[Task]:
        start, end = self._label, f"{self._label}_end"
        return [
            self._noop(
                start,
                self._goto("holds", self._counter, self._condition(body)),
                self._goto("over", end),
            ),
            self._count(body, self._counter),
            *branch(body.do, self._label),
            self._noop(f"{self._label}_again", self._goto("go", start)),
            self._forget(end),
        ]

    def until(self, body: _Rounds, branch: Branch) -> list[Task]:
        start, end = self._label, f"{self._label}_end"
        return [
            self._count(body, start),
            *branch(body.do, self._label),
            self._noop(
                f"{self._label}_check",
                self._goto("reached", end, self._condition(body)),
                self._goto("again", start),
            ),
            self._forget(end),
        ]

    def _count(self, body: _Rounds, name: str) -> Task:
        """Count the round, and fail if it is one too many."""
        most = body.max
        counter = f"iter.{self._counter}"
        next_round = Patch(iter={self._counter: f"{{{{ ({counter} | default(0)) + 1 }}}}"})
        go_on = Rule(label="round", actions=(next_round, Continue()))
        if most is None:
            self._building.report.add(
                "sugar-unbounded",
                "no `max` bounds the rounds; only `spec.max_jumps` does. Say how many are enough.",
                self._place,
            )
            return self._noop(name, go_on)
        over = Rule(
            label="too_many",
            when=f"{{{{ ({counter} | default(0)) >= {most} }}}}",
            actions=(Fail(error=f"{self._label} is not over after {most} rounds"),),
        )
        return self._noop(name, over, go_on)

    def _forget(self, name: str) -> Task:
        """The merge point, which resets the count of rounds."""
        reset = Rule(label="reset", actions=(Patch(iter={self._counter: 0}), Continue()))
        return self._noop(name, reset)

    def _condition(self, written: _Branch | _Rounds) -> Condition:
        found = self._building.condition(written.when, Where.POLICY)
        return True if found is None else found

    def _goto(self, label: str, to: str, when: Condition | None = None) -> Rule:
        jump = Jump(to=to)
        self._building.mark(jump, self._place)
        actions: tuple[AnyAction, ...] = (jump,)
        return Rule(label=label, when=when, actions=actions)

    def _noop(self, name: str, *rules: Rule) -> Task:
        made = Task(name=name, kind=NOOP, config=_HAND_ON, rules=rules, origin=self._origin)
        self._building.mark(made, self._place)
        self._building.debug[f"{self._building.home.label}.{name}"] = self._place
        return made
