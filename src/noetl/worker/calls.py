"""One attempt of one tool: render, run, and make the outcome fit for the record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from noetl.engine.pipeline import TaskProgram
from noetl.errors import EvaluationFailed, NoetlError, NotFound, WrongKey
from noetl.model.call_events import TaskLogged
from noetl.model.ids import derive
from noetl.model.net import Task
from noetl.model.outcome import Meta, Outcome, TaskError, failed
from noetl.secrets.keychain import Sources
from noetl.secrets.masking import Mask
from noetl.templates import Tainted, reveal
from noetl.tools.base import TaskLog, Tool, ToolContext
from noetl.tools.running.failures import Failed
from noetl.tools.running.files import Files
from noetl.tools.running.resources import ToolResources
from noetl.worker.allowances import repeats_of, timeout_of
from noetl.worker.bodies import Bodies
from noetl.worker.control import Control
from noetl.worker.frame import Frame
from noetl.worker.keyring import Keyring
from noetl.worker.printing import Printing
from noetl.worker.rates import Rates
from noetl.worker.reporter import Reporter
from noetl.worker.tokens import CallTokens

GRACE_SECONDS = 0.5
REPEAT_PAUSE_MAX = 5.0
"""Who asks for a longer wait is answered by the task's policy, which need not hold a slot."""


class Caller:
    """Runs tools for one worker."""

    def __init__(
        self,
        control: Control,
        tools: Mapping[str, Tool],
        resources: ToolResources,
        now: Any,
        sources: Sources,
    ) -> None:
        self._control = control
        self._tools = tools
        self._resources = resources
        self._now = now
        self._sources = sources
        self._rates = Rates()

    async def call(
        self, program: TaskProgram, frame: Frame, reporter: Reporter
    ) -> tuple[Outcome, str]:
        """The outcome of one attempt, and what it printed. Never raises but for cancellation.

        What it prints while it runs is reported at once.
        """
        action_id = action_of(frame, program.task)
        mask = Mask()
        printing = Printing(mask, reporter.wake)
        log = TaskLog(printing)

        def printed(text: str) -> TaskLogged | None:
            return self._logged(program.task, frame, action_id, text) if text else None

        def taken() -> TaskLogged | None:
            return printed(printing.taken())

        reporter.sources.append(taken)
        try:
            outcome = await self._outcome(program, frame, action_id, log, mask)
        finally:
            reporter.sources.remove(taken)
        last = printed(printing.rest())
        if last is not None:
            reporter.say(last)
        return outcome, mask.text(log.text())

    def _logged(self, task: Task, frame: Frame, action_id: str, text: str) -> TaskLogged:
        return TaskLogged(
            at=self._now(),
            step_run_id=frame.command.step_run_id,
            step=frame.command.step,
            task=task.name,
            text=text,
            attempt=frame.attempt,
            action_id=action_id,
            iteration=frame.iteration,
        )

    async def _outcome(
        self, program: TaskProgram, frame: Frame, action_id: str, log: TaskLog, mask: Mask
    ) -> Outcome:
        """What came of it, whatever happened, as everyone may see it."""
        task = program.task
        started = self._now()
        try:
            outcome = await self._attempt_repeatedly(program, frame, action_id, log, mask)
        except EvaluationFailed as error:
            outcome = failed("schema", str(error), code=error.code)
        except Failed as problem:
            outcome = problem.outcome
        except TimeoutError:
            outcome = failed("timeout", f'task "{task.name}" took too long', retryable=True)
        except NotFound as error:
            outcome = failed("not_found", str(error), code=error.code)
        except WrongKey as error:
            outcome = failed("auth", str(error), code=error.code)
        except NoetlError as error:
            outcome = failed("unknown", str(error), code=error.code)
        except asyncio.CancelledError:
            task_running = asyncio.current_task()
            if task_running is None or task_running.cancelling():
                raise
            # Nobody stopped us: something inside the tool was cancelled.
            outcome = failed("exception", f'task "{task.name}" was cancelled from within')
        except (Exception, SystemExit) as error:  # noqa: BLE001  nobody foresees all of them
            outcome = Outcome(
                status="error",
                error=TaskError(kind="exception", message=f"{type(error).__name__}: {error}"),
                py={"exception_type": type(error).__name__},
            )
        ended = self._now()
        shown = mask.outcome(outcome) if mask else outcome
        if task.kind == "secrets" and outcome.is_ok:
            # For the tasks after it in this pipeline; what is recorded is a mask.
            shown = msgspec.structs.replace(shown, result=Tainted(outcome.result))
        return msgspec.structs.replace(
            shown,
            meta=Meta(
                attempt=frame.attempt,
                duration=ended - started,
                started_at=started,
                ended_at=ended,
                action_id=action_id,
                usage=outcome.meta.usage,
            ),
        )

    async def _attempt_repeatedly(
        self, program: TaskProgram, frame: Frame, action_id: str, log: TaskLog, mask: Mask
    ) -> Outcome:
        """One try, and as many more as `spec.retry` allows while the error is worth another."""
        repeats, pause = repeats_of(program, frame)
        while True:
            outcome = await self._attempt(program, frame, action_id, log, mask)
            error = outcome.error
            if error is None or not error.retryable or repeats < 1:
                return outcome
            wait = error.retry_after if error.retry_after is not None else pause
            if wait > REPEAT_PAUSE_MAX:
                return outcome
            repeats -= 1
            await asyncio.sleep(wait)

    async def _attempt(
        self, program: TaskProgram, frame: Frame, action_id: str, log: TaskLog, mask: Mask
    ) -> Outcome:
        task = program.task
        tool = self._tools.get(task.kind)
        if tool is None or tool.run is None:
            return failed("client_error", f"kind {task.kind} cannot run here", code="no_tool")
        files = self._resources.files(
            frame.command.execution_id,
            action_id,
            self._control.put_result,
            self._control.get_result,
        )

        def context(inputs: Any) -> ToolContext:
            return self._context(frame, program, action_id, inputs, log, keyring, files)

        keyring = Keyring(frame, self._control, self._sources, mask, lambda: context({}))
        try:
            await keyring.show(frame.scope, program.config, program.inputs)
            return await self._run(tool, program, frame, mask, context)
        finally:
            await files.close()

    async def _run(
        self,
        tool: Tool,
        program: TaskProgram,
        frame: Frame,
        mask: Mask,
        context: Callable[[Any], ToolContext],
    ) -> Outcome:
        """Render what the task says, and let its tool do that. `context` is made for inputs."""
        task = program.task
        assert tool.run is not None
        config, inputs = _rendered(program, frame, mask)
        try:
            typed = msgspec.convert(config, tool.config, strict=False)
        except msgspec.ValidationError as error:
            return failed("schema", f"kind {task.kind}: {mask.text(str(error))}", code="config")
        await self._rates.wait(task.spec.get("rate"), task.kind, config, frame)
        made = context(inputs)
        limit = total_seconds(made.timeout)
        if limit is None:
            return await tool.run(typed, made)
        # A tool keeps its own time; two alarms at the same moment would cut its clean-up short.
        async with asyncio.timeout(limit + GRACE_SECONDS):
            return await tool.run(typed, made)

    def _context(
        self,
        frame: Frame,
        program: TaskProgram,
        action_id: str,
        inputs: Any,
        log: TaskLog,
        keyring: Keyring,
        files: Files,
    ) -> ToolContext:
        command, task = frame.command, program.task

        async def read_result(reference: Any) -> Any:
            return await Bodies(self._control, command.execution_id).real(reference)

        return ToolContext(
            execution_id=command.execution_id,
            step=command.step,
            task=task.name,
            action_id=action_id,
            attempt=frame.attempt,
            iteration=frame.iteration,
            inputs=inputs,
            context={
                "workload": command.workload,
                "ctx": frame.ctx,
                "vars": command.vars,
                "args": command.args,
                "execution_id": command.execution_id,
                "step": command.step,
            },
            timeout=timeout_of(program, frame),
            spec=task.spec,
            credential=keyring.credential,
            log=log,
            resources=self._resources,
            read_result=read_result,
            files=files,
            shared_tokens=CallTokens(self._control, command.execution_id, keyring.mask),
        )


# A call is named in everything that it says, renders and is judged by.
_derive_again = lru_cache(maxsize=256)(derive)


def action_of(frame: Frame, task: Task) -> str:
    """The same on every attempt of a logical call, another for every other call."""
    place = (frame.cause, task.name, frame.page, frame.jumps)
    chain = frame.chain
    if chain is None:
        return _derive_again(*place)
    # The same task may stand in several rules, and the same rule may answer several events.
    return derive(*place, *chain.place)


def total_seconds(timeout: Any) -> float | None:
    """How long a whole call may take; None if nothing says so."""
    if isinstance(timeout, dict):
        timeout = timeout.get("total")
    return float(timeout) if isinstance(timeout, int | float) else None


def _rendered(program: TaskProgram, frame: Frame, mask: Mask) -> tuple[Any, Any]:
    """Config and inputs of a call, as its tool sees them; the secrets among them are noted."""
    name, overrides = program.task.name, frame.tries.overrides
    config = program.config.render(frame.scope, f"task {name}")
    inputs = program.inputs.render(frame.scope, f"args of task {name}")
    assert isinstance(config, dict)
    assert isinstance(inputs, dict)
    if program.is_literal and not frame.given and not overrides:
        return config, dict(inputs)
    config = _overridden(config, overrides)
    inputs = {**frame.given, **inputs}
    for secret in _secrets(config), _secrets(inputs):
        mask.add(secret)
    return reveal(config), reveal(inputs)


def _overridden(config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The next page: some of the config changed; mappings keep what is not named."""
    merged = dict(config)
    for key, value in overrides.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = {**below, **value} if both else value  # type: ignore[dict-item]
    return merged


def _secrets(value: Any) -> list[Any]:
    """Every secret that stands in a rendered value."""
    if isinstance(value, Tainted):
        return [reveal(value)]
    if isinstance(value, dict):
        return [secret for part in value.values() for secret in _secrets(part)]
    if isinstance(value, list):
        return [secret for part in value for secret in _secrets(part)]
    return []
