"""A net made ready to run: templates compiled, and what its graph says about who can reach whom.

Made once per net and shared by all its executions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct, to_builtins

from noetl.engine.pipeline.actions import Paths, RouteProgram
from noetl.engine.pipeline.rules import CaseProgram, TaskProgram
from noetl.model import labels, schemas
from noetl.model.commands import placed
from noetl.model.graph import strongly_connected
from noetl.model.net import (
    Arc,
    Block,
    Collect,
    Executor,
    Loop,
    Net,
    Patch,
    Quotas,
    Select,
    Step,
    Tracing,
    Values,
)
from noetl.templates import Compiled, Condition, compile_condition, compile_value
from noetl.templates.views import LOOP, ResultView

STATE_ROOTS = frozenset({"args", "ctx", "execution_id", "job", "vars", "workload"})
"""Names that every template sees, whatever has happened."""
FIGURES = (("stats",), ("errors",))
"""What the result of a loop has beside its `results`, and never apart from the log."""
GATHERING = ("all", "count")
"""Joins that say that they gather tokens: their runs list them, also if there was only one."""


class Sending(Struct, frozen=True):
    """A token to place, with everything on it evaluated."""

    label: str
    priority: int
    target: str
    args: Values
    patch: Values
    delay: float
    dedupe: str = ""
    partition: str = ""


class ArcProgram:
    """An arc with its templates compiled."""

    def __init__(self, arc: Arc, label: str, step: str) -> None:
        self.arc = arc
        self.label = label
        self.place = f"`when` of the arc from {step} to {arc.step}"
        """Where its guard stands, for messages."""
        self.step = compile_value(arc.step)
        self.guard: Condition | None = None if arc.when is None else compile_condition(arc.when)
        self.args = compile_value(arc.args)
        self.patch = compile_value(arc.patch.ctx if arc.patch is not None else {})
        self.delay = compile_value(arc.delay)
        self.dedupe = compile_value(arc.dedupe)
        self.partition = compile_value(arc.partition)
        self.parts = (self.step, self.args, self.patch, self.delay, self.dedupe, self.partition)
        self.sends_plainly = all(part.is_literal for part in self.parts)
        """No template has a say in what it sends, only perhaps in whether it does."""
        self.is_literal = self.sends_plainly and (self.guard is None or self.guard.template is None)
        self.sending: Sending | None = None
        """What an arc that sends plainly sent first; it sends the same with every token."""


class AdmitProgram(NamedTuple):
    """An admission rule with its templates compiled."""

    allow: bool
    when: Condition | None
    args: Compiled | None
    place: str
    """Where its condition stands, for messages."""


class LoopProgram:
    """A loop, of a step or of a workbook entry, with its templates compiled."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.items = compile_value(loop.items)
        span = loop.range
        self.span = (
            tuple(compile_value(part) for part in (span.start, span.stop, span.step))
            if span is not None
            else None
        )
        """The three amounts of a range, if it goes over one."""
        self.in_flight = compile_value(loop.max_in_flight)
        self.batch = compile_value(loop.batch_size)
        self.partition = compile_value(loop.partition)


class StepProgram:
    """A step with the templates that the server evaluates compiled."""

    def __init__(self, step: Step, index: int, pool: str) -> None:
        self.step = step
        self._index = index
        self.pool = pool
        """Whose workers run it."""
        self.arcs = tuple(
            ArcProgram(arc, f"{step.name}#{index}", step.name)
            for index, arc in enumerate(step.router.arcs)
        )
        self.end_event = "step.done" if step.loop is None else "loop.done"
        """The stored name of the event that ends it well."""
        self.routes_plainly = all(arc.is_literal for arc in self.arcs)
        """No template has a say in where its tokens go."""
        self.sendings: list[Sending] | None = None
        """If it routes plainly, what its arcs sent first when it was done: they always send that.
        """
        self.admit = tuple(
            AdmitProgram(
                rule.allow,
                None if rule.when is None else compile_condition(rule.when),
                compile_value(rule.args) if rule.args else None,
                f"an admission rule of step {step.name}",
            )
            for rule in step.admit
        )
        self.loop = LoopProgram(step.loop) if step.loop is not None else None
        varying = _varying(step)
        self.entry_args = {k: v for k, v in step.args.items() if k not in varying}
        self.args = compile_value(self.entry_args)
        self.iteration_args = compile_value(varying)
        """Those that read the iteration, which are rendered for each."""
        self.timeout = compile_value(step.timeout)
        self.deadline = compile_value(step.deadline)
        self.is_limited = step.timeout is not None or step.deadline is not None
        self.has_one_command = bool(step.tasks) and step.loop is None
        """One command does all of it."""
        needs = step.needs
        self.reads_state = any((needs.ctx, needs.workload, needs.vars, needs.steps, needs.bare))
        """Its body reads something that a command has to carry."""
        # `set: {vars.x: …}` of a step is one more way to write its `vars`.
        self.vars = compile_value({**step.vars, **(step.patch.vars if step.patch else {})})
        self.patch = compile_value(step.patch.ctx if step.patch is not None else {})
        self.keeps = bool(self.vars.source or self.patch.source)
        """It writes something when it is done."""
        self.match: Condition | None = None if step.match is None else compile_condition(step.match)
        self.timers = tuple(
            (timer.id, compile_value(timer.after), compile_value(timer.at)) for timer in step.timers
        )
        self.form = compile_value([to_builtins(question) for question in step.form])

    @cached_property
    def tasks(self) -> tuple[TaskProgram, ...]:
        """What its body runs."""
        return tuple(TaskProgram(task) for task in self.step.tasks)

    @cached_property
    def span_attributes(self) -> dict[str, Compiled]:
        """What its spans say, by name."""
        return _attributes(self.step.tracing)

    @cached_property
    def case(self) -> CaseProgram | None:
        """Its event rules, and its sink as one; None if it has neither."""
        return CaseProgram(self.step) if self.step.rules or self.step.sink is not None else None

    @cached_property
    def has_enter_rules(self) -> bool:
        """A rule may answer that it begins."""
        return self.case is not None and self.case.answers("enter")

    @cached_property
    def enters_plainly(self) -> bool:
        """It always begins, at once, with args that no template has a say in, and for as long as
        it takes."""
        return self.args.is_literal and not (
            self.admit or self.is_limited or self.step.join.kind in GATHERING
        )

    @cached_property
    def selects(self) -> dict[str, tuple[Select, ...]]:
        """By task, the fields that have names of their own; those of the step under no name."""
        tasks = self.step.tasks
        found = {task.name: task.select for task in tasks if task.select}
        if found and self.step.loop is None and tasks[-1].name in found:
            found[""] = tasks[-1].select
        return found

    @cached_property
    def names_itself(self) -> bool:
        """A rule of it writes a name of its own that is the step's: then that name is meant."""
        rules = [*self.step.rules]
        for task in self.step.tasks:
            rules += [*task.rules, *task.retries]  # type: ignore[list-item]
        actions = [action for rule in rules for action in rule.actions]
        patches = [action for action in actions if isinstance(action, Patch)]
        patches += [task.patch for task in self.step.tasks if task.patch is not None]
        collected = {action.into for action in actions if isinstance(action, Collect)}
        return self.step.name in collected.union(*(patch.local for patch in patches))

    @cached_property
    def bit(self) -> int:
        """Stands for it in masks of steps."""
        return 1 << self._index

    @cached_property
    def ways(self) -> tuple[tuple[str, str | None], ...]:
        """Every way out, by arc or by rule: its label, and the step unless a template names it."""
        arcs = [(arc.label, arc.arc.step if arc.step.is_literal else None) for arc in self.arcs]
        rules = self.case.by_label.values() if self.case is not None else ()
        routes = [
            (label, target.step if step.is_literal else None)
            for rule in rules
            for action in rule.actions
            if isinstance(action, RouteProgram)
            for (label, step, _), target in zip(action.targets, action.action.targets, strict=True)
        ]
        return (*arcs, *routes)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The first names of everything the server's templates of this step read."""
        return frozenset(path[0] for path in self._paths)

    @cached_property
    def reads_inside(self) -> frozenset[str]:
        """Those of them of which more is read than the figures of a loop."""
        return frozenset(path[0] for path in self._paths if path[1:2] not in FIGURES)

    @cached_property
    def _paths(self) -> Paths:
        paths = set(self.args.reads) | self.vars.reads | self.patch.reads
        paths |= self.timeout.reads | self.deadline.reads
        if self.loop is not None:
            loop = self.loop
            for part in (loop.items, loop.in_flight, loop.batch, *(loop.span or ())):
                paths |= part.reads
        for _, when, added, _ in self.admit:
            paths |= when.reads if when is not None else frozenset()
            paths |= added.reads if added is not None else frozenset()
        paths |= self.case.reads if self.case is not None else frozenset()
        paths |= self.form.reads | (self.match.reads if self.match is not None else frozenset())
        for _, after, at in self.timers:
            paths |= after.reads | at.reads
        for arc in self.arcs:
            paths = paths.union(*(part.reads for part in arc.parts))
            paths |= arc.guard.reads if arc.guard is not None else frozenset()
        return frozenset(paths)

    @cached_property
    def reads_plainly(self) -> bool:
        """The server's templates of it read the state, and neither results nor events."""
        return self.reads <= STATE_ROOTS

    @cached_property
    def kind(self) -> str:
        """The kind whose result this step yields."""
        if self.step.loop is not None:
            return LOOP
        return self.step.tasks[-1].kind if self.step.tasks else ""


def _varying(step: Step) -> Values:
    """The args of a looped step that read the iteration."""
    if step.loop is None:
        return {}
    own = {step.loop.iterator, "iter", "loop", "loop_index"}
    return {
        name: value
        for name, value in step.args.items()
        if any(path[0] in own for path in compile_value(value).reads)
    }


class BlockProgram:
    """A workbook entry with its templates compiled."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.name = block.name
        self.loop = LoopProgram(block.loop) if block.loop is not None else None
        self.inputs = compile_value(block.inputs)
        self.computed = frozenset(
            name for name, value in block.inputs.items() if not compile_value(value).is_literal
        )
        """What an entry writes out is a default; what it computes is its own."""

    @cached_property
    def tasks(self) -> tuple[TaskProgram, ...]:
        return tuple(TaskProgram(task) for task in self.block.tasks)


def _attributes(tracing: Tracing) -> dict[str, Compiled]:
    return {name: compile_value(value) for name, value in tracing.attributes.items()}


class ReadsAhead(dict[str, frozenset[str]]):
    """For each step the names that deciding what follows its end may read, found when asked for.

    They are what its own arcs read, the entrance of the steps they lead to, and so on through steps
    without tasks, which are over as soon as they are entered.
    """

    def __init__(
        self,
        steps: Mapping[str, StepProgram],
        reads: Callable[[StepProgram], frozenset[str]] = lambda step: step.reads,
    ) -> None:
        super().__init__()
        self._steps = steps
        self._reads = reads

    def __missing__(self, name: str) -> frozenset[str]:
        steps = self._steps
        seen: set[str] = set()
        ahead: set[str] = set()
        stack = [name]
        leads_anywhere = False
        while stack:
            step = steps[stack.pop()]
            ahead |= self._reads(step)
            for _, way in step.ways:
                if way is None and leads_anywhere:
                    continue
                leads_anywhere = leads_anywhere or way is None
                targets = {way} if way is not None else set(steps)
                for target in targets - seen:
                    seen.add(target)
                    ahead |= self._reads(steps[target])
                    if not steps[target].step.tasks:
                        stack.append(target)
        found = self[name] = frozenset(ahead)
        return found


class Program:
    """A net, ready to run."""

    def __init__(self, net: Net, digest: str, views: Mapping[str, type[ResultView]]) -> None:
        self.net = net
        self.digest = digest
        self.views = views
        """How templates read the results of its tasks, by tool kind."""
        self.labels = labels.of_playbook(net.labels)
        """Of its executions."""
        executor = net.executor
        self.concurrency_key = (
            compile_value(executor.concurrency.key) if executor.concurrency is not None else None
        )
        self.result = (
            schemas.compiled(executor.result.schema) if executor.result is not None else None
        )
        """What its executions yield."""
        self.quotas = executor.limits.quotas
        """Of one execution."""
        quotas = [self.quotas, *(step.quotas for step in net.steps)]
        self.is_metered = any(one != Quotas() for one in quotas)
        """What calls use is counted."""
        self.counts_calls = any(one.max_calls is not None for one in quotas)
        """A call is counted before it is made, so that none is made beyond a quota."""
        self.is_timed = executor.limits.timeout is not None
        """Calls may take so long and no longer, whatever their tasks say."""
        self.is_bounded = executor.concurrency is not None or executor.max_running is not None
        """Its executions may have to wait for their turn."""
        self.on_failure = executor.on_failure
        """The step that runs once when one of them fails."""
        self.steps = {
            step.name: StepProgram(step, index, _queue(executor, step))
            for index, step in enumerate(net.steps)
        }
        self.reads_ahead = ReadsAhead(self.steps)
        self.reads_inside_ahead = (
            self.reads_ahead  # a selection may have any name, and be a part of anything
            if any(step.selects for step in self.steps.values())
            else ReadsAhead(self.steps, lambda step: step.reads_inside)
        )
        """Of these names, more is read than the figures of a loop."""
        self.blocks = {block.name: BlockProgram(block) for block in net.workbook}
        self.incoming = _incoming(self)
        self.arc_order = {
            label: index
            for index, label in enumerate(
                label for step in self.steps.values() for label, _ in step.ways
            )
        }
        """The place of each arc in the playbook."""
        self.absorbing = frozenset(
            step.name for step in net.steps if step.join.kind in ("any", "count")
        )
        """Joins that do not wait for every token, and absorb those that come late."""
        self.has_partitions = any(
            arc.partition is not None for step in net.steps for arc in step.router.arcs
        )

    @cached_property
    def span_attributes(self) -> dict[str, Compiled]:
        """What the spans of its executions say, by name."""
        return _attributes(self.net.executor.tracing)

    @cached_property
    def reach(self) -> Reach:
        """Computed at its first use: its size grows with the square of the steps, and nothing uses
        it where one token is alive at a time.
        """
        return Reach(self.steps)

    def reaching(self, live: int, step: str) -> int:
        """Those of the live steps, other than this one, from which a token could come here."""
        return live & self.reach.ancestors[step] & ~self.steps[step].bit


def _queue(executor: Executor, step: Step) -> str:
    """Where the commands of a step wait: the pool, with the labels that they ask for."""
    pool = step.pool or executor.pool or "default"
    return placed(pool, {**executor.labels, **step.labels})


def _incoming(program: Program) -> dict[str, tuple[str, ...]]:
    """For each step that waits for all of them, the labels of the arcs that lead to it."""
    found: dict[str, list[str]] = {
        name: [] for name, step in program.steps.items() if step.step.join.kind == "all"
    }
    for step in program.steps.values():
        for label, way in step.ways:
            for name in [way] if way is not None else found:
                if name in found:
                    found[name].append(label)
    return {name: tuple(labels) for name, labels in found.items()}


ANYWHERE = ""
"""Stands in the graph for an arc whose target a template names: it may lead to every step."""


class Reach:
    """Which steps a token could come from, as masks: a step's bit stands for it."""

    def __init__(self, steps: Mapping[str, StepProgram]) -> None:
        self.ancestors: dict[str, int] = {}
        """For each step those from which a token could get there."""
        self.mutual: dict[str, int] = {}
        """For each step those that it can reach and that can reach it."""
        graph = {
            name: [ANYWHERE if way is None else way for _, way in step.ways]
            for name, step in steps.items()
        }
        graph[ANYWHERE] = list(steps)
        came = dict.fromkeys(graph, 0)
        for together in strongly_connected(graph):
            before = inside = 0
            for name in together:
                before |= came.pop(name)
                inside |= steps[name].bit if name in steps else 0
            passed = before | inside
            is_cycle = len(together) > 1 or any(name in graph[name] for name in together)
            for name in together:
                self.ancestors[name] = passed if is_cycle else before
                self.mutual[name] = inside if is_cycle else 0
                for target in came.keys() & graph[name]:
                    came[target] |= passed
