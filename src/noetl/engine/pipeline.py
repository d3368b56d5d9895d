"""Task policy: what an outcome leads to. Pure; the worker performs it.

The first rule that holds decides. A `retry` whose tries are used up no longer holds: the rules
after it that have a condition are tried, but not `else`, because a rule did match; if none of them
says otherwise the task fails with its last error. Without rules: ok goes on, an
error fails. With rules of which none holds: the pipeline goes on, and that is recorded.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from noetl.engine.backoff import wait_before
from noetl.errors import EvaluationFailed
from noetl.model.chains import Tries
from noetl.model.duration import seconds
from noetl.model.facts import Undefined, near_misses
from noetl.model.net import (
    AnyAction,
    Break,
    Collect,
    Continue,
    Fail,
    Jump,
    Limits,
    Patch,
    Poll,
    Retry,
    Rule,
    Run,
    Task,
    Values,
)
from noetl.model.outcome import Outcome, TaskError
from noetl.templates import Compiled, Condition, Scope, compile_condition, compile_value

Kind = Literal["continue", "retry", "jump", "break", "fail"]


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pipeline goes, and what is written on the way."""

    kind: Kind
    to: str = ""
    delay: float = 0.0
    error: TaskError | None = None
    ctx: Values = {}
    iter: Values = {}
    local: Values = {}
    vars: Values = {}
    overrides: Values = {}
    new_page: bool = False
    """A retry that is another logical call: the next page, or the next look of a poll."""
    poll: bool = False
    """Not a failure: what is polled for is not there yet."""
    rule: str = ""
    """A rule of `retry` that keeps or stores something before it repeats the call."""
    unmatched: bool = False
    undefined: Undefined = {}
    """No rule held: names that they nearly spelt right."""


GO_ON = Directive(kind="continue")


class RetryProgram:
    """A `retry` with its templates compiled."""

    is_plain = False

    def __init__(self, action: Retry, label: str) -> None:
        self.action = action
        self._label = label
        self.overrides = compile_value(action.overrides)
        self._amounts: dict[str, Compiled] = {
            name: compile_value(getattr(action, name))
            for name in ("attempts", "delay", "max_delay", "multiplier")
        }
        self.reads = self.overrides.reads.union(*(one.reads for one in self._amounts.values()))

    def used(self, tries: Tries) -> int:
        """How often this rule's tries have been used: pages count for one that asks for pages."""
        return tries.page + 1 if self.action.overrides else tries.attempt

    def is_exhausted(self, scope: Scope, used: int, limits: Limits) -> bool:
        attempts = self._number("attempts", scope, 3)
        if limits.max_attempts is not None:
            attempts = min(attempts, limits.max_attempts)
        return used >= attempts

    def delay(self, scope: Scope, used: int, error: TaskError | None, seed: str) -> float:
        """Seconds to wait before the next try."""
        max_delay = self._amounts["max_delay"].render(scope)
        return wait_before(
            self.action,
            used,
            delay=self._number("delay", scope, 0),
            max_delay=None if max_delay is None else self._number("max_delay", scope, 0),
            multiplier=self._number("multiplier", scope, 2),
            retry_after=error.retry_after if error is not None else None,
            seed=seed,
        )

    def _number(self, name: str, scope: Scope, default: float) -> float:
        what = f"{name} of {self._label}"
        return number(self._amounts[name], scope, what, default)


def number(written: Compiled, scope: Scope, what: str, default: float) -> float:
    """An amount: a number, a duration, or a template that yields one."""
    found = written.render(scope, what)
    if found is None:
        return default
    length = seconds(found) if isinstance(found, int | float | str) else None
    if length is None or isinstance(found, bool):
        raise EvaluationFailed(f"{what} is {found!r}, which is no number.")
    return length


class RuleProgram:
    """A rule with its templates compiled."""

    __slots__ = ("again", "error", "extras", "last", "patches", "rule", "when")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.when: Condition | None = None if rule.when is None else compile_condition(rule.when)
        self.patches = tuple(
            tuple(
                compile_value(part) for part in (action.ctx, action.iter, action.local, action.vars)
            )
            for action in rule.actions
            if isinstance(action, Patch)
        )
        self.last: AnyAction = rule.actions[-1] if rule.actions else Continue()
        self.error = compile_value(self.last.error if isinstance(self.last, Fail) else None)
        self.again = RetryProgram(self.last, rule.label) if isinstance(self.last, Retry) else None
        self.extras = any(isinstance(action, Collect | Run) for action in rule.actions)
        """It keeps or stores something before it goes on."""


class PollProgram:
    """A `poll` with its templates compiled."""

    def __init__(self, poll: Poll, task: str) -> None:
        self._task = task
        self.until = compile_condition(poll.until)
        self._interval = compile_value(poll.interval)
        self._most = compile_value(poll.max_attempts)
        self._deadline = compile_value(poll.deadline)

    def wait(self, scope: Scope, looks: int, waited: float) -> float | None:
        """Seconds until the next look; None if there were enough of them, or it took too long."""
        interval = number(self._interval, scope, f"poll.interval of {self._task}", 5)
        most = number(self._most, scope, f"poll.max_attempts of {self._task}", math.inf)
        deadline = number(self._deadline, scope, f"poll.deadline of {self._task}", math.inf)
        return None if looks >= most or waited + interval > deadline else interval


class TaskProgram:
    """A task with its templates compiled."""

    __slots__ = (
        "after",
        "before",
        "config",
        "finally_",
        "inputs",
        "is_literal",
        "judges_nothing",
        "max_jumps",
        "patch",
        "patch_after_error",
        "poll",
        "reads_output",
        "retries",
        "rules",
        "task",
        "timeout",
    )

    def __init__(self, task: Task) -> None:
        self.task = task
        self.timeout = compile_value(task.timeout)
        self.max_jumps = compile_value(task.max_jumps)
        self.config = compile_value(task.config)
        self.inputs = compile_value(task.inputs)
        self.is_literal = self.config.is_literal and self.inputs.is_literal
        self.reads_output = any(
            path[0] in ("outcome", "output") for path in self.config.reads | self.inputs.reads
        )
        """It wants the outcome of the task before it."""
        self.rules = tuple(RuleProgram(rule) for rule in task.rules)
        self.retries = tuple(RuleProgram(rule) for rule in task.retries)
        self.poll = PollProgram(task.poll, task.name) if task.poll is not None else None
        self.judges_nothing = not (task.rules or task.retries or task.poll or task.patch)
        """A success is simply followed by the next task."""
        patch = task.patch or Patch()
        written = (patch.ctx, patch.iter, patch.local, patch.vars)
        self.patch = tuple(compile_value(part) for part in written)
        self.patch_after_error = tuple(
            compile_value(_without_result(part, task.name)) for part in written
        )
        """After an error that the policy tolerates: entries that read the result are left out."""
        self.before = tuple(TaskProgram(hook) for hook in task.before)
        self.after = tuple(TaskProgram(hook) for hook in task.after)
        self.finally_ = tuple(TaskProgram(hook) for hook in task.finally_)


_RESULT_PATHS = {
    *(("outcome", "result"), ("output", "result"), ("output", "data"), ("outcome", "data")),
    *(("this", "result"), ("this", "data")),
}


def _without_result(values: Values, task: str) -> Values:
    """Those entries of a `set` that do not read the result of their task."""

    def reads_result(value: Any) -> bool:
        return any(
            path[0] in ("result", "response", task) or path[:2] in _RESULT_PATHS
            for path in compile_value(value).reads
        )

    return {name: value for name, value in values.items() if not reads_result(value)}


def decide(
    program: TaskProgram,
    outcome: Outcome,
    scope: Scope,
    *,
    tries: Tries,
    seed: str,
    limits: Limits,
) -> Directive:
    """What this outcome leads to. Raises EvaluationFailed if a rule cannot be evaluated."""
    exhausted = False
    for rule in (*program.retries, *program.rules):
        if exhausted if rule.when is None else not rule.when.holds(scope):
            continue
        if rule.again is not None:
            used = rule.again.used(tries)
            if rule.again.is_exhausted(scope, used, limits):
                # Further pages of a success (`retry` of the task) may simply run out.
                exhausted = exhausted or not outcome.is_ok or rule in program.rules
                continue
            return _retry(rule, rule.again, outcome, scope, used, seed)
        return _directive(rule, outcome, scope)
    if exhausted or (not program.rules and not outcome.is_ok):
        return Directive(kind="fail", error=outcome.error or _exhausted(program, tries.attempt))
    if not program.rules:
        return GO_ON
    return Directive(kind="continue", unmatched=True, undefined=_misspelt(program, scope))


def _misspelt(program: TaskProgram, scope: Scope) -> Undefined:
    found: Undefined = {}
    for rule in (*program.retries, *program.rules):
        found |= near_misses(rule.when.undefined(scope)) if rule.when is not None else {}
    return found


def _exhausted(program: TaskProgram, attempt: int) -> TaskError:
    return TaskError(
        kind="client_error",
        code="retries_exhausted",
        message=f'task "{program.task.name}" succeeded, but after {attempt} tries its policy still'
        " asked for another.",
    )


def _directive(rule: RuleProgram, outcome: Outcome, scope: Scope) -> Directive:
    written = _written(rule, scope)
    match rule.last:
        case Jump(to=to):
            return Directive(kind="jump", to=to, **written)
        case Break():
            return Directive(kind="break", **written)
        case Fail():
            return Directive(kind="fail", error=_error(rule, outcome, scope), **written)
        case _:
            return Directive(kind="continue", **written)


def _written(rule: RuleProgram, scope: Scope) -> dict[str, Any]:
    found: dict[str, Values] = {"ctx": {}, "iter": {}, "local": {}, "vars": {}}
    for parts in rule.patches:
        for target, part in zip(found.values(), parts, strict=True):
            target.update(rendered(part, scope, f"set of {rule.rule.label}"))
    return found


def rendered(part: Compiled, scope: Scope, place: str) -> Values:
    """A mapping with its templates filled in."""
    values = part.render(scope, place)
    assert isinstance(values, dict)
    return values


def _error(rule: RuleProgram, outcome: Outcome, scope: Scope) -> TaskError:
    """The rule's own words, if it has any; else what went wrong."""
    said = rule.error.render(scope, f"error of {rule.rule.label}")
    return said_error(said, outcome.error, "a policy rule failed the task")


def said_error(said: Any, cause: TaskError | None, otherwise: str) -> TaskError:
    """What `fail` says, as an error; without words of its own, the cause."""
    if said is None:
        return cause or TaskError(kind="client_error", code="failed_by_rule", message=otherwise)
    if isinstance(said, dict):
        message = str(said.get("message", said))
        return TaskError(kind="client_error", code=said.get("code"), message=message, details=said)
    return TaskError(kind="client_error", code="failed_by_rule", message=str(said))


def _retry(
    rule: RuleProgram, again: RetryProgram, outcome: Outcome, scope: Scope, used: int, seed: str
) -> Directive:
    return Directive(
        kind="retry",
        delay=again.delay(scope, used, outcome.error, seed),
        **_written(rule, scope),
        overrides=rendered(again.overrides, scope, f"next_call of {rule.rule.label}"),
        new_page=bool(again.action.overrides),
        rule=rule.rule.label if rule.extras else "",
    )
