"""Stand-ins: tools that give the answers of a test file and do nothing else; calls are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from noetl.errors import EvaluationFailed
from noetl.model.duration import seconds
from noetl.model.outcome import DETAILS, Meta, Outcome, TaskError, failed
from noetl.templates import Scope, compile_condition, compile_value
from noetl.tools.base import Tool, ToolContext
from noetl.trials.clock import VirtualClock
from noetl.trials.files import Answer, StandIn
from noetl.trials.playbooks import BY_THE_WORKER, Target, kind_for

REAL_SECONDS_MAX = 60.0
"""How long a tool that really runs may take."""


Call = Callable[[Tool, Any, ToolContext], Awaitable[Outcome]]


def standing_in(known: Mapping[str, Tool], call: Call) -> dict[str, Tool]:
    """The tools of a test's worker: `call` answers instead of each."""

    def made(tool: Tool) -> Tool:
        async def run(config: Any, context: ToolContext) -> Outcome:
            return await call(tool, config, context)

        return msgspec.structs.replace(tool, run=run)

    handed_over = {kind_for(kind): known[kind] for kind in BY_THE_WORKER}
    return {kind: made(tool) for kind, tool in {**known, **handed_over}.items()}


class Answers:
    """The answers to the calls of one task, each given as often as it says."""

    def __init__(self, written: StandIn) -> None:
        alone = isinstance(written, Answer)
        self._answers = [written] if isinstance(written, Answer) else list(written)
        self._left = [_times(answer, alone=alone) for answer in self._answers]

    def next(self, scope: Scope) -> Answer | None:
        """The first answer that fits the call and is not used up."""
        for number, answer in enumerate(self._answers):
            fits = answer.when is None or compile_condition(answer.when).holds(scope, "`when`")
            if fits and self._left[number] > 0:
                self._left[number] -= 1
                return answer
        return None


def _times(answer: Answer, *, alone: bool) -> float:
    if answer.times == "always" or (answer.times is None and alone):
        return float("inf")
    return answer.times or 1


class StandIns:
    """All stand-ins of one test.

    `path_of` gives the path of the playbook that an execution runs; `complain` reports what the
    test file lacks.
    """

    def __init__(
        self,
        answers: Mapping[Target, StandIn],
        clock: VirtualClock,
        path_of: Callable[[str], Awaitable[str]],
        complain: Callable[[Target, str], None],
    ) -> None:
        self._answers = {target: Answers(written) for target, written in answers.items()}
        self._clock = clock
        self._path_of = path_of
        self._complain = complain
        self.calls: Counter[Target] = Counter()

    async def call(self, tool: Tool, config: Any, context: ToolContext) -> Outcome:
        """Answer a call; a harmless tool without a stand-in really runs."""
        path = await self._path_of(context.execution_id)
        target = Target(path, context.step, context.task)
        self.calls[target] += 1
        answers = self._answers.get(target)
        if answers is not None:
            return await self._answer(answers, target, config, context)
        if tool.run is None or not _is_harmless(tool, config):
            return self._refused(target, _needs_one(tool.kind, target))
        with self._clock.real_work():
            async with asyncio.timeout(REAL_SECONDS_MAX):
                return await tool.run(config, context)

    async def _answer(
        self, answers: Answers, target: Target, config: Any, context: ToolContext
    ) -> Outcome:
        scope = _scope(config, context, self._clock.now())
        try:
            answer = answers.next(scope)
            if answer is None:
                return self._refused(target, _has_no_answer(self.calls[target], target))
            takes, allowed = seconds(answer.takes) or 0.0, _allowed(config, context)
            await self._clock.sleep(min(takes, allowed))
            if takes > allowed:
                return failed("timeout", f"{target} took longer than {allowed:g} s", retryable=True)
            return _outcome(answer, scope)
        except (EvaluationFailed, msgspec.ValidationError) as error:
            # The playbook must not take this for an outcome, and handle it.
            return self._refused(target, f"the stand-in of {target} cannot answer: {error}")

    def _refused(self, target: Target, why: str) -> Outcome:
        self._complain(target, why)
        return failed("client_error", why, code="no_stand_in")


def _is_harmless(tool: Tool, config: Any) -> bool:
    """Whether it touches nothing outside; code that lies elsewhere would have to be fetched."""
    return tool.is_harmless and "://" not in (getattr(config, "script", None) or "")


def _scope(config: Any, context: ToolContext, now: float) -> Scope:
    """The call, as templates of a stand-in see it."""
    roots = {
        "config": msgspec.to_builtins(config),
        "args": context.inputs,
        "attempt": context.attempt,
        "iteration": context.iteration,
        **{name: context.context.get(name) for name in ("workload", "ctx")},
    }
    return Scope(roots, now=datetime.fromtimestamp(now, UTC), seed=context.action_id)


def _allowed(config: Any, context: ToolContext) -> float:
    """How long the call may take, as the tool itself would see it."""
    written = [msgspec.to_builtins(getattr(config, "timeout", None)), context.timeout]
    limits = [one for limit in written if (one := _longest(limit)) is not None]
    return min(limits, default=float("inf"))


def _longest(timeout: Any) -> float | None:
    if isinstance(timeout, dict):
        total = timeout.get("total")
        timeout = timeout.get("read") if total is None else total
    return None if timeout is None else seconds(timeout)


def _outcome(answer: Answer, scope: Scope) -> Outcome:
    written = {
        name: getattr(answer, name)
        for name in ("result", "error", "usage", *DETAILS)
        if getattr(answer, name) is not None
    }
    said: Any = compile_value(msgspec.to_builtins(written)).render(scope, "the stand-in")
    error = said.pop("error", None)
    said["meta"] = Meta(usage=said.pop("usage", None))
    if error is None:
        return Outcome(status="ok", **said)
    if error.get("status") is not None:
        said.setdefault("http", {"status": error["status"], "headers": {}})
    return Outcome(status="error", error=msgspec.convert(error, TaskError), **said)


def _needs_one(kind: str, target: Target) -> str:
    return (
        f"{target} needs a stand-in: kind {kind} reaches outside, and tests do not. Say what it"
        f" answers, for example\n  stand_ins:\n    {target}: {{ result: {{}} }}"
    )


def _has_no_answer(calls: int, target: Target) -> str:
    return (
        f"the stand-in of {target} has no answer to call {calls}: those that fit are used up. Add"
        " one, or give the last one `times: always`."
    )
