"""Task policy: what an outcome leads to. Pure; the worker performs it.

The first rule that holds decides. A `retry` whose tries are used up no longer holds, and the rules
after it are tried; if none of them says otherwise the task fails. Without rules: ok goes on, an
error fails. With rules of which none holds: the pipeline goes on, and that is recorded.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from noetl.engine.backoff import wait_before
from noetl.errors import EvaluationFailed
from noetl.model.duration import seconds
from noetl.model.net import (
    AnyAction,
    Break,
    Continue,
    Fail,
    Jump,
    Limits,
    Patch,
    Retry,
    Rule,
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
    overrides: Values = {}
    unmatched: bool = False


class RuleProgram:
    """A rule with its templates compiled."""

    __slots__ = ("amounts", "error", "last", "overrides", "patches", "rule", "when")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.when: Condition | None = None if rule.when is None else compile_condition(rule.when)
        self.patches = tuple(
            tuple(compile_value(part) for part in (action.ctx, action.iter, action.local))
            for action in rule.actions
            if isinstance(action, Patch)
        )
        self.last: AnyAction = rule.actions[-1] if rule.actions else Continue()
        self.error = compile_value(self.last.error if isinstance(self.last, Fail) else None)
        self.amounts: dict[str, Compiled] = {}
        self.overrides = compile_value({})
        if isinstance(self.last, Retry):
            self.overrides = compile_value(self.last.overrides)
            self.amounts = {
                name: compile_value(getattr(self.last, name))
                for name in ("attempts", "delay", "max_delay", "multiplier")
            }


class TaskProgram:
    """A task with its templates compiled."""

    __slots__ = (
        "after",
        "before",
        "config",
        "finally_",
        "inputs",
        "patch",
        "retries",
        "rules",
        "task",
    )

    def __init__(self, task: Task) -> None:
        self.task = task
        self.config = compile_value(task.config)
        self.inputs = compile_value(task.inputs)
        self.rules = tuple(RuleProgram(rule) for rule in task.rules)
        self.retries = tuple(RuleProgram(rule) for rule in task.retries)
        patch = task.patch or Patch()
        self.patch = tuple(compile_value(part) for part in (patch.ctx, patch.iter, patch.local))
        self.before = tuple(TaskProgram(hook) for hook in task.before)
        self.after = tuple(TaskProgram(hook) for hook in task.after)
        self.finally_ = tuple(TaskProgram(hook) for hook in task.finally_)


def decide(
    program: TaskProgram,
    outcome: Outcome,
    scope: Scope,
    *,
    attempt: int,
    seed: str,
    limits: Limits,
) -> Directive:
    """What this outcome leads to. Raises EvaluationFailed if a rule cannot be evaluated."""
    exhausted = False
    for rule in (*program.retries, *program.rules):
        if rule.when is not None and not rule.when.holds(scope):
            continue
        if isinstance(rule.last, Retry):
            again = _retry(rule, rule.last, outcome, scope, attempt, seed, limits)
            if again is None:
                # Further pages of a success (`retry` of the task) may simply run out.
                exhausted = exhausted or not outcome.is_ok or rule in program.rules
                continue
            return again
        return _directive(rule, outcome, scope)
    if exhausted or (not program.rules and not outcome.is_ok):
        return Directive(kind="fail", error=outcome.error or _exhausted(program, attempt))
    return Directive(kind="continue", unmatched=bool(program.rules))


def _exhausted(program: TaskProgram, attempt: int) -> TaskError:
    return TaskError(
        kind="client_error",
        code="retries_exhausted",
        message=f'task "{program.task.name}" succeeded, but after {attempt} tries its policy still'
        " asked for another.",
    )


def _directive(rule: RuleProgram, outcome: Outcome, scope: Scope) -> Directive:
    ctx, iteration, local = _written(rule, scope)
    written: dict[str, Any] = {"ctx": ctx, "iter": iteration, "local": local}
    match rule.last:
        case Jump(to=to):
            return Directive(kind="jump", to=to, **written)
        case Break():
            return Directive(kind="break", **written)
        case Fail():
            return Directive(kind="fail", error=_error(rule, outcome, scope), **written)
        case _:
            return Directive(kind="continue", **written)


def _written(rule: RuleProgram, scope: Scope) -> tuple[Values, Values, Values]:
    found: tuple[Values, Values, Values] = ({}, {}, {})
    for parts in rule.patches:
        for target, part in zip(found, parts, strict=True):
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
    if said is None:
        return outcome.error or TaskError(
            kind="client_error", code="failed_by_rule", message="a policy rule failed the task"
        )
    if isinstance(said, dict):
        message = str(said.get("message", said))
        return TaskError(kind="client_error", code=said.get("code"), message=message, details=said)
    return TaskError(kind="client_error", code="failed_by_rule", message=str(said))


def _retry(
    rule: RuleProgram,
    action: Retry,
    outcome: Outcome,
    scope: Scope,
    attempt: int,
    seed: str,
    limits: Limits,
) -> Directive | None:
    attempts = _number(rule, "attempts", scope, 3)
    if limits.max_attempts is not None:
        attempts = min(attempts, limits.max_attempts)
    if attempt >= attempts:
        return None
    max_delay = rule.amounts["max_delay"].render(scope)
    delay = wait_before(
        action,
        attempt,
        delay=_number(rule, "delay", scope, 0),
        max_delay=None if max_delay is None else _number(rule, "max_delay", scope, 0),
        multiplier=_number(rule, "multiplier", scope, 2),
        retry_after=outcome.error.retry_after if outcome.error is not None else None,
        seed=seed,
    )
    ctx, iteration, local = _written(rule, scope)
    return Directive(
        kind="retry",
        delay=delay,
        ctx=ctx,
        iter=iteration,
        local=local,
        overrides=rendered(rule.overrides, scope, f"next_call of {rule.rule.label}"),
    )


def _number(rule: RuleProgram, name: str, scope: Scope, default: float) -> float:
    found = rule.amounts[name].render(scope, f"{name} of {rule.rule.label}")
    if found is None:
        return default
    length = seconds(found) if isinstance(found, int | float | str) else None
    if length is None or isinstance(found, bool):
        raise EvaluationFailed(f"{name} of {rule.rule.label} is {found!r}, which is no number.")
    return length
