"""The state of one compilation: problems, places, and every template.

The net itself knows no places. So everything that is built is marked here with its place in the
text, and checks can work on the net and still point into the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.dsl import nodes
from noetl.dsl.grammar import Inspection, has_template, templates_in
from noetl.dsl.nodes import Node, Scalar
from noetl.dsl.walk import Parts, bodies, parts_of
from noetl.model.duration import seconds
from noetl.model.net import (
    Amount,
    Block,
    Condition,
    Limits,
    Net,
    Patch,
    ResultSchema,
    Step,
    Task,
    Values,
)
from noetl.model.problems import Place

if TYPE_CHECKING:
    from noetl.dsl.layers import WrittenTracing


class Where(Enum):
    """In which scope a template is evaluated; decides what names it can see."""

    WORKLOAD = "a workload default"
    KEYCHAIN = "a keychain entry"
    STEP = "a step's own config"
    LOOP_ARGS = "the args of a looped step"
    ADMIT = "an admission rule"
    LOOP = "a loop's collection"
    TASK = "a task"
    LATER = "a later task"
    HOOK = "a task after another"
    POLICY = "a task policy rule"
    RETRY = "a retry rule"
    SINK = "a sink"
    AFTER = "a value taken after success"
    KEPT = "`set` and `vars` of a step"
    CASE = "an event rule"
    CASE_SERVER = "a rule for this event"
    CASE_TASK = "a task of an event rule"
    CASE_NEXT = "`next` of an event rule"
    ARC = "an arc"


class Home(msgspec.Struct, frozen=True):
    """The step or workbook entry in which something stands, with what its templates may name."""

    name: str = ""
    """The step; empty at the root."""
    block: str = ""
    """The workbook entry, if it is one."""
    iterators: tuple[str, ...] = ()
    hands_over: bool = False
    """Whether it is what a playbook or workbook entry is given: no secret is."""

    @property
    def label(self) -> str:
        """The name of the step or workbook entry."""
        return self.name or self.block


class Use(msgspec.Struct, frozen=True):
    """A template, its place, and the scope in which it will be evaluated."""

    source: str
    place: Place
    where: Where
    home: Home
    condition: bool = False


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Documents that a playbook may name: the files beside it, or those of the catalog."""

    schemas: Mapping[str, ResultSchema] = {}
    """As they are named: `path`, or `path@version`."""
    playbooks: Mapping[str, Net] = {}
    """The newest version of each path."""


class Building:
    """The state of one compilation."""

    def __init__(self, look: Inspection, limits: Limits, text: str, known: Known | None) -> None:
        self.look = look
        self.report, self.tools, self.expressions = look.report, look.tools, look.expressions
        self.text = text
        self.limits = limits
        self.kind_defaults: dict[str, Values] = {}
        """Config per tool kind from the executor's placement."""
        self.inline_max: int | None = None
        """Larger results are kept by reference, unless the task says otherwise."""
        self.tracing: WrittenTracing | None = None
        """The executor's tracing settings for all steps."""
        self.known = known or Known()
        self.unresolved: dict[str, Place] = {}
        """Schemas that the playbook names and that are not known."""
        self.home = Home()
        """What is being built; nothing at the root."""
        self.uses: list[Use] = []
        self.secret_uses: list[Use] = []
        """Templates of the keychain, which any step may evaluate."""
        self.blocks: dict[str, tuple[Block, list[Use]]] = {}
        """Workbook entries with their templates, for the steps that call them."""
        self.debug: dict[str, Place] = {}
        """Generated label (`step.task`) → the place it was generated from."""
        self.code_lines: dict[str, int] = {}
        """Task (`step.task`) → the line of the document at which its code begins."""
        self.absent: dict[Place, set[str]] = {}
        """Reserved names that do not exist where a template reads them, with `default` or so."""
        self._places: dict[int, dict[str, Place]] = {}
        """By the id of what was built: its place, and those of its parts by name."""
        self._marked: list[object] = []
        self._parts: dict[int, Parts] = {}

    @contextmanager
    def inside(self, **home: Any) -> Iterator[None]:
        """What is built in this block stands in that home."""
        outer = self.home
        self.home = msgspec.structs.replace(outer, **home)
        yield
        self.home = outer

    def mark(self, thing: object, place: Place, /, **parts: Place | None) -> None:
        """Remember where `thing` and its parts were written."""
        # Keeping the object keeps its id unique while we compile.
        self._marked.append(thing)
        written = {part: where for part, where in parts.items() if where is not None}
        self._places[id(thing)] = {"": place, **written}

    def changed(self, task: Task, **fields: Any) -> Task:
        """The task with other fields, at the same places."""
        made = msgspec.structs.replace(task, **fields)
        self._marked.append(made)
        self._places[id(made)] = self._places[id(task)]
        return made

    def written(self, thing: object, part: str) -> Place | None:
        """The place of a part; None if it was not written."""
        return self._places[id(thing)].get(part)

    def at(self, thing: object, part: str = "") -> Place:
        """The place to report: that of the part, or of the whole if the part was not written."""
        return self.written(thing, part) or self._places[id(thing)][""]

    def parts(self, body: Step | Block) -> Parts:
        """The tasks and actions of a body of the net that was built."""
        parts = self._parts.get(id(body))
        if parts is None:
            parts = self._parts[id(body)] = parts_of(body)
        return parts

    def tasks(self, net: Net) -> Iterator[Task]:
        """Every task of the net."""
        for body in bodies(net):
            yield from self.parts(body).tasks

    def note(self, template: str, place: Place, where: Where, *, condition: bool = False) -> None:
        """Remember a template, which is checked when all is built."""
        self.uses.append(Use(template, place, where, self.home, condition))

    def value(self, node: Node | None, where: Where) -> Any:
        """The plain value. Records every template in it."""
        for template, place in templates_in(node):
            self.note(template, place, where)
        return nodes.plain(node)

    def values(self, node: Node | None, where: Where) -> Values:
        """The same for a mapping; empty if it is none."""
        if not isinstance(node, nodes.Mapping):
            return {}
        found: Values = self.value(node, where)
        return found

    def condition(self, node: Node | None, where: Where) -> Condition | None:
        if not isinstance(node, Scalar) or node.value is None:
            return None
        if isinstance(node.value, str):
            if has_template(node.value):
                self.note(node.value, node.place, where, condition=True)
            return node.value
        return bool(node.value)

    def amount(self, node: Node | None, where: Where) -> Amount | None:
        """A number, the seconds of a duration, or a template."""
        if not isinstance(node, Scalar) or isinstance(node.value, bool) or node.value is None:
            return None
        if isinstance(node.value, str) and has_template(node.value):
            self.note(node.value, node.place, where)
            return node.value
        length = seconds(node.value)
        return node.value if length == node.value or length is None else length

    def patch(self, node: Node | None, where: Where) -> Patch | None:
        """`set: {ctx.a: …, iter.b: …, vars.v: …, ctx: {c: …}, d: …}`."""
        written = self.values(node, where)
        if not written:
            return None
        ctx: Values = {}
        iteration: Values = {}
        variables: Values = {}
        local: Values = {}
        for key, value in written.items():
            root, dot, rest = key.partition(".")
            target = {"ctx": ctx, "iter": iteration, "vars": variables}.get(root, local)
            if target is not local and dot:
                target[rest] = value
            elif target is not local and isinstance(value, dict):
                target.update(value)
            else:
                local[key] = value
        patch = Patch(
            ctx=_sorted(ctx), iter=_sorted(iteration), local=_sorted(local), vars=_sorted(variables)
        )
        assert isinstance(node, nodes.Mapping)
        self.mark(patch, node.place, **node.keys)
        return patch


def _sorted(values: Values) -> Values:
    return {key: values[key] for key in sorted(values)}
