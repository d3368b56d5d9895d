"""Rules: when this happened and this holds, do these actions. One form, one evaluator.

A playbook has six ways to say such a thing. When a program is made, five of them become
`RuleProgram`s, which name where they came from; hooks stay pipelines:

    origin   written as                      answers                        goes first
    poll     `poll` of a task                a success that is not the      ┐
                                             one waited for                 │ one call: the first
    retry    `retry` of a task or step       an outcome of the task         │ rule that holds
    policy   `spec.policy.rules` of a task   an outcome of the task         ┘
    case     `case` of a step                the events that it names       after the policy has
                                                                            settled the call
    sink     `sink` of a step                each success of its pipeline   after `case`
    hook     `before after finally`          each try of a task             pipelines of their own,
                                                                            which the machine runs

`answering` asks the rules of one task, or of one `case`, which of them answer. A rule whose tries
are used up does not. Of a policy, `else` then does not either, because a rule did match.
The net keeps the written forms apart; its bytes name it (decision 0031).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final, Literal, assert_never

import msgspec

from noetl.engine.pipeline.actions import (
    NO_WRITES,
    CallProgram,
    CollectProgram,
    FailProgram,
    MoveProgram,
    PatchProgram,
    Paths,
    PlainProgram,
    ResultProgram,
    RetryProgram,
    RouteProgram,
    SkipProgram,
    Writing,
    advanced,
    next_branch,
    number,
    perform,
    program_of,
    rendered,
)
from noetl.errors import EvaluationFailed
from noetl.model import schemas
from noetl.model.chains import Chain, Tries
from noetl.model.events import CaseEvaluated
from noetl.model.facts import Undefined, near_misses, sentence
from noetl.model.net import (
    PLAYBOOK,
    Break,
    CaseSettings,
    Collect,
    Continue,
    DirectiveKind,
    EventRule,
    Jump,
    Limits,
    NextPolicy,
    Patch,
    Poll,
    Rule,
    Run,
    Step,
    Task,
    Values,
)
from noetl.model.outcome import Outcome, TaskError, error_from
from noetl.templates import (
    Condition,
    EventView,
    Scope,
    compile_condition,
    compile_value,
    undefined_in,
)

Origin = Literal["poll", "retry", "policy", "case", "sink"]
Kind = Literal["enter", "call", "exit", "event"]
Repeat = RetryProgram | CallProgram
"""What asks for another call."""
SINK = "sink"
"""The label under which a step's own `sink` is followed, as if it were a rule."""


# --- A rule, and a task with its rules ---------------------------------------------------------


class RunProgram:
    """Runs a task: a named one, or a sink."""

    reads: Paths = frozenset()

    def __init__(self, action: Run) -> None:
        self.task = TaskProgram(action.task)
        self.sink = action.sink


class PollProgram:
    """Looks again until what is waited for is there, or until it has looked often enough."""

    reads: Paths = frozenset()

    def __init__(self, poll: Poll, until: Condition, task: str) -> None:
        self._task = task
        self._until = until
        self._interval = compile_value(poll.interval)
        self._most = compile_value(poll.max_attempts)
        self._deadline = compile_value(poll.deadline)

    def wait(self, scope: Scope, looks: int, waited: float) -> float | None:
        """Seconds until the next look; None if there were enough of them, or it took too long."""
        interval = number(self._interval, scope, f"poll.interval of {self._task}", 5)
        most = number(self._most, scope, f"poll.max_attempts of {self._task}", math.inf)
        deadline = number(self._deadline, scope, f"poll.deadline of {self._task}", math.inf)
        return None if looks >= most or waited + interval > deadline else interval

    def exhausted(self, scope: Scope, looks: int) -> TaskError:
        undefined = self._until.undefined(scope)
        why = f" {sentence(undefined)}" if undefined else ""
        message = f'task "{self._task}" was polled {looks} times, and what it waits for'
        message += f" did not come.{why}"
        return TaskError(kind="timeout", code="poll_exhausted", message=message)


ActionProgram = PlainProgram | RunProgram | PollProgram


_PLACES: Final[dict[Origin, str]] = {
    "retry": "`when` of the retry of task ",
    "poll": "`until` of the poll of task ",
    "policy": "a policy rule of task ",
    "case": "an event rule of step ",
    "sink": "the sink of step ",
}


class RuleProgram:
    """A rule with its templates compiled."""

    def __init__(self, rule: Rule, origin: Origin, step: str) -> None:
        self.rule = rule
        self.place = _PLACES[origin] + step
        """Where its condition stands, for messages."""
        self.label = rule.label
        self.origin: Origin = origin
        self.when: Condition | None = None if rule.when is None else compile_condition(rule.when)
        self.unless = False
        """It answers while its condition does not hold."""
        of_task = origin in ("retry", "policy")
        self.actions: tuple[ActionProgram, ...] = tuple(
            RunProgram(action)
            if isinstance(action, Run)
            else program_of(action, rule.label, f"{step}#{rule.label}.{index}", of_task=of_task)
            for index, action in enumerate(rule.actions)
        )
        self.repeats: tuple[Repeat, ...] = tuple(
            one for one in self.actions if isinstance(one, RetryProgram | CallProgram)
        )
        """What asks for another call, which may be one too many."""
        events = rule.events if isinstance(rule, EventRule) else None
        self.names = frozenset(events) if events is not None else None
        """The events that it answers; None: those of the place where it stands."""
        self.events = frozenset(_SAME.get(name, name) for name in self.names or ())
        """The same, whichever of an event's names is written; nothing if none is."""
        self.priority = rule.priority if isinstance(rule, EventRule) else 0
        again = rule.retry if isinstance(rule, EventRule) else None
        self.restart = RetryProgram(again, rule.label) if again is not None else None
        """Its chain begins again when one of its tasks fails."""
        self.extras = any(isinstance(action, Collect | Run) for action in rule.actions)
        """It keeps or stores something before it goes on."""

    @classmethod
    def of_poll(cls, poll: Poll, task: str) -> RuleProgram:
        """A success that is not the one waited for is followed by another look."""
        made = cls(Rule(label="poll", when=poll.until), "poll", task)
        assert made.when is not None
        made.unless = True
        made.actions = (PollProgram(poll, made.when, task),)
        return made

    def holds(self, scope: Scope) -> bool:
        return self.when is None or self.when.holds(scope, self.place) is not self.unless

    @cached_property
    def reads_error(self) -> bool:
        return self.when is not None and any(path[0] == "error" for path in self.when.reads)

    @cached_property
    def reads_event(self) -> bool:
        return self.when is not None and any(path[0] == "event" for path in self.when.reads)

    @cached_property
    def needs_worker(self) -> bool:
        return any(isinstance(action, RunProgram | Repeat) for action in self.actions)

    @cached_property
    def reads(self) -> Paths:
        """The paths that choosing it and following its plain actions may read."""
        found: Paths = self.when.reads if self.when is not None else frozenset()
        for action in self.actions:
            found |= action.reads
        return found


class TaskProgram:
    """A task with its templates compiled."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.schema = schemas.compiled(task.schema.schema) if task.schema is not None else None
        self.timeout = compile_value(task.timeout)
        self.max_jumps = compile_value(task.max_jumps)
        self.config = compile_value(task.config)
        self.inputs = compile_value(task.inputs)
        self.starts_child = task.kind == PLAYBOOK
        """It is another execution, which the run waits for without a worker."""
        self.is_literal = self.config.is_literal and self.inputs.is_literal
        self.reads_output = any(
            path[0] in ("outcome", "output") for path in self.config.reads | self.inputs.reads
        )
        """It wants the outcome of the task before it."""
        polls = [RuleProgram.of_poll(task.poll, task.name)] if task.poll is not None else []
        self.rules = (
            *polls,
            *(RuleProgram(rule, "retry", task.name) for rule in task.retries),
            *(RuleProgram(rule, "policy", task.name) for rule in task.rules),
        )
        """What its outcomes lead to, in the order in which they are asked."""
        self.judges_nothing = not (self.rules or task.patch)
        """A success is simply followed by the next task."""
        patch = task.patch or Patch()
        self.patch = PatchProgram(patch, f"task {task.name}")
        self.patch_after_error = PatchProgram(
            _without_result(patch, task.name), f"task {task.name}"
        )
        """After an error that the policy tolerates: entries that read the result are left out."""
        self.before = tuple(TaskProgram(hook) for hook in task.before)
        self.after = tuple(TaskProgram(hook) for hook in task.after)
        self.finally_ = tuple(TaskProgram(hook) for hook in task.finally_)
        self.promises = "assert" in task.spec or self.schema is not None
        """Its result is checked before anything else reads it."""
        self.has_hooks = bool(task.before or task.after or task.finally_)


_RESULT_PATHS = {
    *(("outcome", "result"), ("output", "result"), ("output", "data"), ("outcome", "data")),
    *(("this", "result"), ("this", "data")),
}


def _without_result(patch: Patch, task: str) -> Patch:
    """Those entries of a `set` that do not read the result of their task."""

    def reads_result(value: Any) -> bool:
        return any(
            path[0] in ("result", "response", task) or path[:2] in _RESULT_PATHS
            for path in compile_value(value).reads
        )

    def kept(values: Values) -> Values:
        return {name: value for name, value in values.items() if not reads_result(value)}

    return Patch(
        ctx=kept(patch.ctx), iter=kept(patch.iter), local=kept(patch.local), vars=kept(patch.vars)
    )


# --- Asking them -------------------------------------------------------------------------------


def answering(
    rules: Iterable[RuleProgram],
    scope: Scope,
    *,
    offered: Callable[[RuleProgram, list[RuleProgram]], bool],
    has_tries: Callable[[RuleProgram], bool],
    first_only: bool,
) -> list[RuleProgram]:
    """The rules that answer what has just happened, in their order.

    `offered`: whether this rule is asked at all, beside those found so far. `has_tries`: whether
    the calls that it asks for are not used up. A rule without condition is an `else`: it answers
    what no rule before it does. Raises EvaluationFailed.
    """
    found: list[RuleProgram] = []
    for rule in rules:
        if not offered(rule, found) or (rule.when is None and found):
            continue
        if rule.holds(scope) and (not rule.repeats or has_tries(rule)):
            found.append(rule)
            if first_only:
                break
    return found


# --- The policy of a task ----------------------------------------------------------------------


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pipeline goes, and what is written on the way."""

    kind: DirectiveKind
    to: str = ""
    delay: float = 0.0
    error: TaskError | None = None
    writes: Patch = NO_WRITES
    overrides: Values = {}
    new_page: bool = False
    """A retry that is another logical call: the next page, or the next look of a poll."""
    poll: bool = False
    """What is polled for is not there: look again, or fail because there were enough looks."""
    rule: str = ""
    """A rule of `retry` that keeps or stores something before it repeats the call."""
    unmatched: bool = False
    undefined: Undefined = {}
    """No rule held: names that they nearly spelt right."""


GO_ON = Directive(kind="continue")


def decide(
    program: TaskProgram,
    outcome: Outcome,
    scope: Scope,
    *,
    tries: Tries,
    seed: str,
    limits: Limits,
    at: float = 0.0,
    gave_up: bool = False,
) -> Directive:
    """What this outcome leads to. Raises EvaluationFailed if a rule cannot be evaluated.

    Without a policy: ok goes on, an error fails. With a policy of which no rule holds: the
    pipeline goes on, and that is recorded. After a `retry` whose tries are used up, rules that have
    a condition are asked, but not `else`, because a rule did match; if none of them says otherwise
    the task fails with its last error. The same holds for a poll that gave up, which no rule
    repeats.
    """
    is_ok = outcome.is_ok
    spent = gave_up

    def offered(rule: RuleProgram, _: list[RuleProgram]) -> bool:
        if rule.origin == "poll":
            return is_ok
        if gave_up and rule.repeats:
            return False
        return rule.when is not None or not spent

    def has_tries(rule: RuleProgram) -> bool:
        nonlocal spent
        again = rule.actions[-1]
        if not isinstance(again, RetryProgram):
            return True
        if not again.is_exhausted(scope, again.used(tries), limits):
            return True
        # Further pages of a success (`retry` of the task) may simply run out.
        spent = spent or not is_ok or rule.origin == "policy"
        return False

    found = answering(program.rules, scope, offered=offered, has_tries=has_tries, first_only=True)
    if found:
        return _directive(found[0], outcome, scope, tries, seed, at)
    if spent or (not program.task.rules and not is_ok):
        return Directive(kind="fail", error=outcome.error or _exhausted(program, tries.attempt))
    if not program.task.rules:
        return GO_ON
    asked = [rule.when for rule in program.rules if rule.origin != "poll"]
    misspelt = near_misses(undefined_in(asked, scope))
    return Directive(kind="continue", unmatched=True, undefined=misspelt)


def _exhausted(program: TaskProgram, attempt: int) -> TaskError:
    return TaskError(
        kind="client_error",
        code="retries_exhausted",
        message=f'task "{program.task.name}" succeeded, but after {attempt} tries its policy still'
        " asked for another.",
    )


class _Written:
    """What a policy rule writes: gathered, and applied when the call is settled."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.patch = NO_WRITES

    def write(self, patch: Patch) -> None:
        done = self.patch
        self.patch = Patch(
            ctx=done.ctx | patch.ctx,
            iter=done.iter | patch.iter,
            local=done.local | patch.local,
            vars=done.vars | patch.vars,
        )

    def say_result(self, value: Any) -> None:
        raise AssertionError("a policy rule does not say what the step yields")


def _directive(
    rule: RuleProgram, outcome: Outcome, scope: Scope, tries: Tries, seed: str, at: float
) -> Directive:
    """What the actions of a rule amount to."""
    written = _Written(scope)
    for action in rule.actions:
        if isinstance(action, PatchProgram):
            action.perform(written)
    match rule.actions[-1] if rule.actions else None:
        case RetryProgram() as again:
            return Directive(
                kind="retry",
                delay=again.delay(scope, again.used(tries), outcome.error, seed),
                writes=written.patch,
                overrides=rendered(again.overrides, scope, f"next_call of {rule.label}"),
                new_page=bool(again.action.overrides),
                rule=rule.label if rule.extras else "",
            )
        case PollProgram() as poll:
            looks = tries.polls + 1
            delay = poll.wait(scope, looks, at - (tries.poll_began or at))
            if delay is None:
                return Directive(kind="fail", error=poll.exhausted(scope, looks), poll=True)
            return Directive(kind="retry", delay=delay, new_page=True, poll=True)
        case FailProgram() as fails:
            error = fails.error(scope, outcome.error)
            return Directive(kind="fail", error=error, writes=written.patch)
        case MoveProgram(action=move):
            to = move.to if isinstance(move, Jump) else ""
            return Directive(kind=_MOVES[type(move)], to=to, writes=written.patch)
        case (
            None
            | PatchProgram()
            | CollectProgram()
            | ResultProgram()
            | RouteProgram()
            | SkipProgram()
            | CallProgram()
            | RunProgram()
        ):
            return Directive(kind="continue", writes=written.patch)
        case other:
            assert_never(other)


_MOVES: dict[type[Continue | Break | Jump], DirectiveKind] = {
    Continue: "continue",
    Break: "break",
    Jump: "jump",
}


# --- The event rules of a step -----------------------------------------------------------------


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the rules of a step may answer."""

    kind: Kind
    name: str
    aliases: frozenset[str] = frozenset()
    general: frozenset[str] = frozenset()
    """Names that mean this failure only to rules that read `error`."""
    failed: bool = False
    last: bool = True
    """No other call of this pass follows."""

    @property
    def every(self) -> frozenset[str]:
        """All its names."""
        return self.general | self.aliases | {self.name}


_CALL = {"task.done", "tool.processed"}
_EXIT = frozenset({"step.exit", "step.finished", "StepFinished"})
_LOOP = frozenset({"loop.finished", "LoopFinished", "LoopDone"})
ENTER = StepEvent(
    kind="enter", name="step.enter", aliases=frozenset({"step.started", "StepStarted"})
)
CALL_DONE = StepEvent(kind="call", name="call.done", aliases=frozenset({*_CALL, "ToolCompleted"}))
CALL_ERROR = StepEvent(
    kind="call",
    name="call.error",
    aliases=frozenset({*_CALL, "ToolErrored"}),
    general=frozenset({"call.done"}),
    failed=True,
)
STEP_DONE = StepEvent(kind="exit", name="step.done", aliases=_EXIT)
STEP_FAILED = StepEvent(
    kind="exit",
    name="step.failed",
    aliases=frozenset({"StepFailed"}),
    general=_EXIT,
    failed=True,
)
LOOP_DONE = StepEvent(kind="exit", name="loop.done", aliases=_LOOP)
LOOP_FAILED = StepEvent(kind="exit", name="loop.failed", general=_LOOP | {"loop.done"}, failed=True)
_CALLS = CALL_DONE.every | CALL_ERROR.every
INNER = (ENTER, CALL_DONE, CALL_ERROR, STEP_DONE, STEP_FAILED, LOOP_DONE, LOOP_FAILED)
"""All that happens to a step without the world."""


def called(*, ok: bool, last: bool) -> StepEvent:
    """A call of the step is settled."""
    if not ok:
        return CALL_ERROR
    return CALL_DONE if last else msgspec.structs.replace(CALL_DONE, last=False)


def exiting(*, ok: bool, looped: bool) -> StepEvent:
    """The body of the step is through; with `looped`, the whole loop is.

    In a looped step `step.exit` is the end of each iteration, and `loop.done` that of the loop.
    """
    if looped:
        return LOOP_DONE if ok else LOOP_FAILED
    return STEP_DONE if ok else STEP_FAILED


def outside(name: str) -> StepEvent:
    """The world said something to a step that waits for it."""
    return StepEvent(kind="event", name=name)


_SAME = {
    name: next(other.name for other in INNER if not other.every.isdisjoint(one.every))
    for one in INNER
    for name in one.every
}
"""Each name of an event → one of them. A failure shares general names with the success."""


class CaseProgram:
    """The event rules of a step, in the order they are tried."""

    def __init__(self, step: Step) -> None:
        self.settings: CaseSettings = step.case
        written = [RuleProgram(rule, "case", step.name) for rule in step.rules]
        self.rules = tuple(rule for rule in written if rule.when is not None)
        self.otherwise = next((rule for rule in written if rule.when is None), None)
        if self.settings.order == "priority":
            self.rules = tuple(sorted(self.rules, key=lambda one: -one.priority))
        self._asked = self.rules if self.otherwise is None else (*self.rules, self.otherwise)
        self.by_label = {rule.label: rule for rule in written}
        self.source = tuple(self.by_label)
        if step.sink is not None:
            actions = (Run(task=step.sink, sink=True),)
            self.by_label[SINK] = RuleProgram(Rule(label=SINK, actions=actions), "sink", step.name)
        self._home: set[Kind] = set()
        """What rules answer that name no event."""
        if step.tasks:
            self._home.add("call")
        elif not step.case.wait:
            self._home.add("exit")
        if step.case.wait:
            self._home.add("event")
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

    def current(self, chain: Chain) -> RuleProgram:
        """The rule whose actions the chain is at."""
        return self.by_label[chain.rules[chain.branch]]

    def answers(self, kind: Kind) -> bool:
        """Whether any rule could answer an event of this kind at all."""
        return kind in self._answered

    @cached_property
    def _answered(self) -> frozenset[Kind]:
        kinds = {
            one.kind for one in INNER if any(self._considers(rule, one) for rule in self._asked)
        }
        return frozenset(kinds | {"event"}) if self.settings.wait else frozenset(kinds)

    def answer(
        self,
        chain: Chain,
        on: StepEvent,
        scope: Scope,
        event: Values,
        limits: Limits,
    ) -> Undefined | None:
        """Have the chain follow the rules that answer, or end with the error that kept them from
        it. If no rule does: the names that they nearly spelt right.
        """

        def exhausted(one: Repeat) -> bool:
            # When a step is entered, nothing has been called.
            return on.kind != "enter" and one.is_exhausted(scope, one.used(chain.call), limits)

        chain.event = on.name
        try:
            rules = self.selected(on, scope, event, exhausted)
        except EvaluationFailed as error:
            chain.error = error_from(error)
            return None
        chain.rules = tuple(rule.label for rule in rules)
        return None if rules else self.misspelt(on, scope, event)

    def selected(
        self,
        on: StepEvent,
        scope: Scope,
        event: Values,
        exhausted: Callable[[Repeat], bool],
    ) -> list[RuleProgram]:
        """The rules that answer, in the order in which they are followed.

        A rule whose `retry` or `call` has no tries left does not hold. Raises EvaluationFailed.
        """

        def offered(rule: RuleProgram, found: list[RuleProgram]) -> bool:
            if not self._considers(rule, on) or self._excluded(rule, found):
                return False
            scope.roots["event"] = _shown(on, event, rule)
            return True

        found = answering(
            self._asked,
            scope,
            offered=offered,
            has_tries=lambda rule: not any(map(exhausted, rule.repeats)),
            first_only=False,
        )
        scope.roots["event"] = _shown(on, event, None)
        return found

    def evaluated(self, chain: Chain, /, **where: Any) -> CaseEvaluated:
        """The fact that the rules of this chain answered its event."""
        return CaseEvaluated(
            trigger_event=chain.event,
            matched=tuple(label for label in self.source if label in chain.rules),
            order=chain.rules,
            case_mode=self.settings.mode,
            eval_mode="on_event" if self.settings.wait else "on_entry",
            **where,
        )

    def misspelt(self, on: StepEvent, scope: Scope, event: dict[str, Any]) -> Undefined:
        """Of rules none of which answered: names that are nearly those that are there."""
        found: Undefined = {}
        for rule in self.rules:
            if self._considers(rule, on) and rule.when is not None:
                scope.roots["event"] = _shown(on, event, rule)
                found |= near_misses(rule.when.undefined(scope))
        scope.roots["event"] = _shown(on, event, None)
        return found

    def _excluded(self, rule: RuleProgram, found: list[RuleProgram]) -> bool:
        """Exclusive: another rule has answered. Mapping-form rules exclude those of their event."""
        if self.settings.mode == "inclusive":
            return False
        if not self.settings.independent:
            return bool(found)
        events = rule.events
        return any(not events or not one.events or events & one.events for one in found)

    def _considers(self, rule: RuleProgram, on: StepEvent) -> bool:
        if rule.when is None:
            return self._falls_through(on)
        if rule.names is None:
            shown = not on.failed or rule.reads_error or rule.reads_event
            return shown and self._is_home(on)
        return not rule.names.isdisjoint(_names(on, rule))

    def _falls_through(self, on: StepEvent) -> bool:
        """`else` answers what rules without a name do; if all rules name other events, those."""
        homeless = all(rule.names is not None for rule in self.rules) and self._named
        if homeless and "call" in self._home and not self._named & _CALLS:
            return on.kind != "enter" and not self._named.isdisjoint(on.every)
        return self._is_home(on)

    def _is_home(self, on: StepEvent) -> bool:
        return on.kind in self._home and on.last


def _names(on: StepEvent, rule: RuleProgram | None) -> frozenset[str]:
    names = on.aliases | {on.name}
    return names | on.general if rule is None or rule.reads_error else names


def _shown(on: StepEvent, event: dict[str, Any], rule: RuleProgram | None) -> EventView:
    """The event as this rule sees it; as the actions of all rules see it, if none is given."""
    return EventView({**event, "name": on.name}, _names(on, rule))


# --- Following them ----------------------------------------------------------------------------


def following(
    chain: Chain,
    rule_of: Callable[[Chain], RuleProgram],
    writing: Writing,
    default: NextPolicy,
    show: Callable[[], None] = lambda: None,
) -> Iterator[tuple[RuleProgram, RunProgram | RetryProgram]]:
    """Perform what is left of a chain. Server and worker follow chains by this and nothing else.

    Actions that take a call are yielded: the caller makes the call and moves the chain on. `show`
    is called before each action: the one before may have changed what it sees. Raises
    EvaluationFailed.
    """
    while not chain.is_over and chain.error is None:
        rule = rule_of(chain)
        if chain.action >= len(rule.actions):
            next_branch(chain)
            continue
        action = rule.actions[chain.action]
        show()
        if isinstance(action, RunProgram | RetryProgram):
            yield rule, action
        else:
            assert not isinstance(action, PollProgram)
            advanced(chain, perform(action, chain, writing, default))
