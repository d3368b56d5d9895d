"""The actions of rules, made ready; what each does that takes no tool; and where a chain then is.

All rules of a playbook hold the same actions: those of a task's policy, of its `retry`, of a
step's `case` and of its sink. `Continue`, `Break` and `Jump` are for policies, `Call`, `Result`,
`Route` and `Skip` for event rules; the compiler checks that.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Any, Literal, Protocol, assert_never

from noetl.engine.durations import duration
from noetl.errors import EvaluationFailed
from noetl.model.chains import Again, Chain, Goal, Routing, Tries
from noetl.model.duration import seconds
from noetl.model.net import (
    AnyAction,
    Break,
    Call,
    Collect,
    Continue,
    Fail,
    Jump,
    Limits,
    NextPolicy,
    Patch,
    Result,
    Retry,
    Route,
    Run,
    Skip,
    Values,
)
from noetl.model.outcome import TaskError
from noetl.model.spelling import did_you_mean
from noetl.templates import Compiled, Scope, compile_value, view
from noetl.templates.views import ResultView

Move = Literal["go on", "next branch", "stop"]
"""After an action: the next one, the next branch, or none any more."""
Paths = frozenset[tuple[str, ...]]
NO_PATHS: Paths = frozenset()
NO_WRITES = Patch()
DELAY_MAX = 7 * 24 * 3600.0
"""A computed wait is a week at most: a longer one is a mistake in the arithmetic."""


class Writing(Protocol):
    """Where the actions of a chain write."""

    @property
    def scope(self) -> Scope: ...

    def write(self, patch: Patch) -> None:
        """Write these values, with their templates filled in, so that what follows sees them."""

    def say_result(self, value: Any) -> None:
        """A rule says what the step yields."""


class PatchProgram:
    def __init__(self, action: Patch, label: str) -> None:
        self._place = f"set of {label}"
        written = (action.ctx, action.iter, action.local, action.vars)
        self._parts = tuple(compile_value(part) for part in written)
        self.reads = frozenset().union(*(part.reads for part in self._parts))

    def perform(self, writing: Writing) -> None:
        scope, place = writing.scope, self._place
        # Most write to one place, or two: the others hold nothing to render.
        ctx, own, local, variables = [
            rendered(part, scope, place) if part.source else {} for part in self._parts
        ]
        writing.write(Patch(ctx=ctx, iter=own, local=local, vars=variables))


class CollectProgram:
    def __init__(self, action: Collect, label: str) -> None:
        self._action = action
        self._label = label
        self._source = compile_value(f"{{{{ {action.source} }}}}")
        self._into = compile_value(f"{{{{ {action.into} | default(none) }}}}")
        self.reads = self._source.reads | self._into.reads

    def perform(self, writing: Writing) -> None:
        """Add to the accumulator, wherever one of that name stands; else begin one."""
        found = self._source.render(writing.scope, f"collect of {self._label}")
        before = self._into.render(writing.scope, f"collect of {self._label}")
        total = self._added(before, found)
        root, dot, rest = self._action.into.partition(".")
        if dot and root == "ctx":
            writing.write(Patch(ctx={rest: total}))
        elif dot and root == "iter":
            writing.write(Patch(iter={rest: total}))
        else:
            writing.write(Patch(local={self._action.into: total}))

    def _added(self, before: Any, found: Any) -> Any:
        match self._action.mode:
            case "replace":
                return found
            case "append":
                return [*self._checked(before, list), found]
            case "extend":
                more = found if isinstance(found, list) else [found]
                return [*self._checked(before, list), *more]
            case _:
                return {**self._checked(before, dict), **self._checked(found, dict)}

    def _checked(self, value: Any, kind: type) -> Any:
        if value is None:
            return kind()
        if not isinstance(value, kind):
            wanted = "list" if kind is list else "mapping"
            raise EvaluationFailed(
                f"collect of {self._label} ({self._action.mode}) needs a {wanted} in"
                f" {self._action.into}, not {value!r:.60}."
            )
        return value


class ResultProgram:
    def __init__(self, action: Result, label: str) -> None:
        self._label = label
        self._value = compile_value(action.value)
        self.reads = self._value.reads

    def perform(self, writing: Writing) -> None:
        value = self._value.render(writing.scope, f"result of {self._label}")
        writing.say_result(value)
        writing.scope.roots["result"] = view(ResultView, value)


class RouteProgram:
    def __init__(self, action: Route, label: str, place: str) -> None:
        self.action = action
        self._label = label
        self.targets: tuple[tuple[str, Compiled, Compiled], ...] = tuple(
            (f"{place}.{index}", compile_value(target.step), compile_value(target.args))
            for index, target in enumerate(action.targets)
        )
        self._delay = compile_value(action.delay)
        self.reads = self._delay.reads.union(
            *(step.reads | args.reads for _, step, args in self.targets)
        )

    def routing(self, scope: Scope, default: NextPolicy) -> Routing:
        return Routing(
            branch=self._label,
            goals=tuple(
                Goal(
                    step=str(step.render(scope, f"next of {self._label}")),
                    args=rendered(args, scope, f"args of next of {self._label}"),
                    label=label,
                )
                for label, step, args in self.targets
            ),
            policy=self.action.policy or default,
            priority=self.action.priority or 0,
            delay=duration(self._delay, scope, f"delay of next of {self._label}") or 0.0,
        )


class FailProgram:
    def __init__(self, action: Fail, label: str, *, of_task: bool) -> None:
        self._place = f"error of {label}" if of_task else f"fail of {label}"
        self._otherwise = (
            "a policy rule failed the task" if of_task else f"rule {label} failed the step"
        )
        self._code = None if of_task else _FAILED_BY_RULE
        self._error = compile_value(action.error)
        self.reads = self._error.reads

    def error(self, scope: Scope, cause: TaskError | None) -> TaskError:
        """The rule's own words, if it has any; else what went wrong."""
        said = self._error.render(scope, self._place)
        if said is None:
            return cause or _failed_by_rule(self._otherwise)
        if not isinstance(said, dict):
            return _failed_by_rule(str(said))
        message = str(said.get("message") or self._otherwise)
        code = _code(said.get("code", self._code))
        return TaskError(kind="client_error", code=code, message=message, details=said)


_FAILED_BY_RULE = "failed_by_rule"


def _failed_by_rule(message: str) -> TaskError:
    return TaskError(kind="client_error", code=_FAILED_BY_RULE, message=message)


def _code(said: Any) -> str | int | None:
    """A code as events hold it; a template may yield anything."""
    if said is None or (isinstance(said, str | int) and not isinstance(said, bool)):
        return said
    return str(said)


class SkipProgram:
    def __init__(self, action: Skip, label: str) -> None:
        self._place = f"skip of {label}"
        self._reason = compile_value(action.reason)
        self.reads = self._reason.reads

    def reason(self, scope: Scope) -> str:
        said = self._reason.render(scope, self._place)
        return "a rule skipped it" if said is None or said == "" else str(said)


class MoveProgram:
    """Where the pipeline goes: to the next task, to a named one, or to its end."""

    reads = NO_PATHS

    def __init__(self, action: Continue | Break | Jump) -> None:
        self.action = action


class CallProgram:
    """Asks for another call of the step's tool."""

    def __init__(self, action: Call, label: str) -> None:
        self._label = label
        self._overrides = compile_value(action.overrides)
        self._most = compile_value(action.max_calls)
        self.reads = self._overrides.reads | self._most.reads

    def used(self, tries: Tries) -> int:
        """How many calls there have been: each is a page of its own."""
        return tries.page + 1

    def is_exhausted(self, scope: Scope, used: int, limits: Limits) -> bool:
        return used >= number(self._most, scope, f"max_calls of {self._label}", math.inf)

    def again(self, scope: Scope) -> Again:
        return Again(overrides=rendered(self._overrides, scope, f"call of {self._label}"))


class RetryProgram:
    """A `retry` with its templates compiled."""

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


def rendered(part: Compiled, scope: Scope, place: str) -> Values:
    """A mapping with its templates filled in."""
    values = part.render(scope, place)
    assert isinstance(values, dict)
    return values


def number(written: Compiled, scope: Scope, what: str, default: float) -> float:
    """An amount: a number, a duration, or a template that yields one."""
    found = written.render(scope, what)
    if found is None:
        return default
    length = seconds(found) if isinstance(found, int | float | str) else None
    if length is None or isinstance(found, bool):
        raise EvaluationFailed(f"{what} is {found!r}, which is not a number.")
    return length


def wait_before(
    action: Retry,
    attempt: int,
    *,
    delay: float,
    max_delay: float | None,
    multiplier: float,
    retry_after: float | None,
    seed: str,
) -> float:
    """Seconds to wait after failed try number `attempt`.

    The wait is no shorter than the other side asks for (`Retry-After`).
    """
    match action.backoff:
        case "none":
            waited = 0.0
        case "linear":
            waited = delay * attempt
        case "exponential":
            waited = _grown(delay, multiplier, attempt - 1)
        case _:
            waited = delay
    if max_delay is not None:
        waited = min(waited, max_delay)
    if action.jitter:
        waited *= 0.5 + 0.5 * _fraction(seed, attempt)
    return min(max(waited, retry_after or 0.0), DELAY_MAX)


def _grown(delay: float, multiplier: float, times: int) -> float:
    try:
        return min(delay * float(multiplier) ** times, DELAY_MAX)
    except OverflowError:
        return DELAY_MAX


def _fraction(seed: str, attempt: int) -> float:
    digest = blake2b(f"{seed}\x1f{attempt}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32


PlainProgram = (
    PatchProgram
    | CollectProgram
    | ResultProgram
    | RouteProgram
    | FailProgram
    | SkipProgram
    | MoveProgram
    | CallProgram
    | RetryProgram
)
"""All but `Run`, which needs a task (`rules.RunProgram`)."""


def program_of(action: AnyAction, label: str, place: str, *, of_task: bool = False) -> PlainProgram:
    """The action with its templates compiled."""
    match action:
        case Patch():
            return PatchProgram(action, label)
        case Collect():
            return CollectProgram(action, label)
        case Result():
            return ResultProgram(action, label)
        case Route():
            return RouteProgram(action, label, place)
        case Fail():
            return FailProgram(action, label, of_task=of_task)
        case Skip():
            return SkipProgram(action, label)
        case Call():
            return CallProgram(action, label)
        case Retry():
            return RetryProgram(action, label)
        case Continue() | Break() | Jump():
            return MoveProgram(action)
        case Run():
            raise AssertionError("`Run` is compiled with its task (`rules.RunProgram`)")
        case _:
            return assert_never(action)


def perform(action: PlainProgram, chain: Chain, writing: Writing, default: NextPolicy) -> Move:
    """Do what an action says that takes no tool; note in the chain what it decided."""
    scope = writing.scope
    match action:
        case PatchProgram() | CollectProgram():
            action.perform(writing)
        case ResultProgram():
            action.perform(writing)
            chain.recovered = True
        case CallProgram():
            chain.again = chain.again or action.again(scope)
        case RouteProgram():
            routing = action.routing(scope, default)
            chain.routes = (*chain.routes, routing)
            return _MOVES[routing.policy]
        case FailProgram():
            cause = chain.outcome.error if chain.outcome is not None else None
            chain.error = action.error(scope, cause)
            return "stop"
        case SkipProgram():
            chain.skipped = action.reason(scope)
            return "stop"
        case _:
            raise AssertionError(f"{type(action).__name__} is not for a chain to perform")
    return "go on"


_MOVES: dict[NextPolicy, Move] = {
    "end_step": "stop",
    "break_chain": "next branch",
    "defer": "go on",
}


def advanced(chain: Chain, move: Move) -> None:
    """Put the chain behind the action that was just performed."""
    match move:
        case "go on":
            chain.action += 1
        case "next branch":
            next_branch(chain)
        case _:
            chain.dropped = chain.rules[chain.branch + 1 :]
            chain.branch = len(chain.rules)


def next_branch(chain: Chain) -> None:
    chain.branch += 1
    chain.action = chain.restarts = 0


def winner(routes: tuple[Routing, ...]) -> Routing:
    """Of several `next`s the first that was reached.

    If that one was only put off (`defer`), the one with the highest priority, of equal ones the
    first.
    """
    first = routes[0]
    return max(routes, key=lambda one: one.priority) if first.policy == "defer" else first


def suppressed(chain: Chain) -> tuple[str, ...]:
    """Branches whose `next` lost, and those that were not followed because another's won."""
    if not chain.routes:
        return ()
    won = winner(chain.routes).branch
    lost = [one.branch for one in chain.routes if one.branch != won]
    return tuple(dict.fromkeys([*lost, *chain.dropped]))


def checked_goals(routing: Routing, step: str, steps: Any) -> None:
    """Targets are step names; a template may yield anything. Raises EvaluationFailed."""
    for goal in routing.goals:
        if goal.step not in steps:
            raise EvaluationFailed(
                f'rule {routing.branch} of step "{step}" sends its token to "{goal.step}", which is'
                f" not a step.{did_you_mean(goal.step, steps)}"
            )
