"""One attempt of one tool: render, run, and prepare the outcome for the record."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from noetl.engine.pipeline.actions import rendered
from noetl.engine.pipeline.calls import (
    configured,
    overridden,
    repeats_of,
    timeout_of,
    total_seconds,
    unmet,
)
from noetl.engine.pipeline.frame import Frame
from noetl.engine.pipeline.machine import NO_OUTPUT, CallEnded, Printed
from noetl.engine.pipeline.rules import TaskProgram
from noetl.engine.scope import job_value
from noetl.model.chains import Tries
from noetl.model.events import TaskLogged, TaskWaiting
from noetl.model.outcome import Meta, Outcome, TaskError, failed
from noetl.secrets.keychain import Sources
from noetl.secrets.masking import Mask
from noetl.templates import Tainted, mask, reveal
from noetl.tools.base import Tool, ToolContext
from noetl.tools.failures import known_failure
from noetl.tools.files.results import Files
from noetl.tools.limits import listen, time_limit
from noetl.tools.resources import ToolResources
from noetl.worker.bodies import Bodies
from noetl.worker.control import Control
from noetl.worker.keyring import CallTokens, Keyring
from noetl.worker.printing import Printing
from noetl.worker.rates import Rates
from noetl.worker.reporter import Reporter

GRACE_SECONDS = 0.5
WAIT_TOLD_SECONDS = 1.0
REPEAT_PAUSE_MAX = 5.0
"""Longer waits are left to the task's policy, which need not hold a slot."""
LINES_SHOWN = 20
"""Of the calls that led to a tool's fault, so many of the last."""


class Caller:
    """Runs tools for one worker."""

    def __init__(
        self,
        control: Control,
        tools: Mapping[str, Tool],
        resources: ToolResources,
        now: Callable[[], float],
        sources: Sources,
    ) -> None:
        self.control = control
        self.resources = resources
        self.sources = sources
        self.now = now
        self.tool = cache(tools.get)
        """The tool of a kind; None if there is none. A kind is loaded by its first call."""
        self.rates = Rates(control)

    async def call(
        self,
        program: TaskProgram,
        frame: Frame,
        action_id: str,
        reporter: Reporter,
        traceparent: str = "",
    ) -> CallEnded:
        """The outcome of one attempt, and its output. Raises only cancellation.

        Output is reported while it runs.
        """
        task = program.task
        call = Call(self, program, frame, action_id, reporter, traceparent, frame.tries)
        started = self.now()
        tool = self.tool(task.kind)
        if tool is None or tool.has_effect:
            reporter.has_effect = True
            listen(call.wait)
        elif "rate" in task.spec:
            listen(call.wait)
        reporter.calls += 1
        try:
            outcome = await self._attempt(call, tool)
            if outcome.status != "ok":
                if outcome.error is not None and outcome.error.retryable:
                    outcome = await self._attempt_again(call, tool, outcome)
                outcome = _recordable(outcome, task.kind)
            elif outcome.http or outcome.pg or outcome.py or outcome.sh:
                outcome = _recordable(outcome, task.kind)
        except asyncio.CancelledError:
            running = asyncio.current_task()
            if running is None or running.cancelling():
                raise
            # We were not cancelled: something inside the tool was.
            outcome = failed("exception", f'task "{task.name}" was cancelled from within')
        except AttributeError:
            # What a tool forgot to return, or returned instead, has no `error`.
            returned = type(outcome).__name__
            told = f"kind {task.kind} returned a {returned}, not an Outcome: `return ok(…)`"
            outcome = failed("exception", told)
        finally:
            reporter.calls -= 1
            call.end()
        ended = self.now()
        secrets = call.secrets
        shown = outcome if secrets is None else secrets.outcome(outcome)
        if tool is not None and tool.secret_result and outcome.is_ok:
            # For the later tasks of this pipeline; the record holds a mask.
            shown = msgspec.structs.replace(shown, result=Tainted(outcome.result))
        meta = Meta(
            attempt=call.tries.attempt,
            duration=ended - started,
            started_at=started,
            ended_at=ended,
            action_id=action_id,
            usage=outcome.meta.usage,
        )
        shown = msgspec.structs.replace(shown, meta=meta)
        return CallEnded(shown, call.printed(), None if secrets is None else secrets.text)

    async def _attempt_again(self, call: Call, tool: Tool | None, outcome: Outcome) -> Outcome:
        """Retries as `spec.retry` allows, while the error is retryable."""
        repeats, pause = repeats_of(call.program, call.frame)
        for _ in range(repeats):
            error = outcome.error
            if error is None or not error.retryable:
                break
            wait = error.retry_after if error.retry_after is not None else pause
            if wait > REPEAT_PAUSE_MAX:
                break
            await asyncio.sleep(wait)
            outcome = await self._attempt(call, tool)
        return outcome

    async def _attempt(self, call: Call, tool: Tool | None) -> Outcome:
        """Render the config and run the tool; what either raises becomes the outcome."""
        program, frame = call.program, call.frame
        kind = program.task.kind
        if tool is None or tool.run is None:
            return failed("client_error", _lacking(kind, tool), code="no_tool")
        try:
            if program.is_literal:
                frame.names.pop("keychain", None)
            else:
                await call.keyring.show(frame.scope, program.config, program.inputs)
            config, inputs = _rendered(call, tool)
            typed = configured(config, tool)
            if isinstance(typed, Outcome):
                return typed
            if "assert" in program.task.spec:
                lacking = unmet(program.task, {**_args(frame), **inputs})
                if lacking is not None:
                    return lacking
            if "rate" in program.task.spec:
                await self.rates.wait(program.task.spec["rate"], kind, config, frame, call.reporter)
            context = call.context(inputs, tool)
            limit = total_seconds(context.timeout) if context.timeout is not None else None
            if limit is None:
                return await tool.run(typed, context)
            # A tool keeps its own time; two timeouts at the same moment would cut its clean-up
            # short.
            async with time_limit(limit + GRACE_SECONDS):
                return await tool.run(typed, context)
        except (Exception, SystemExit) as error:  # noqa: BLE001  nobody foresees all of them
            return known_failure(error) or _unforeseen(error)
        finally:
            if call.files is not None:
                files, call.files = call.files, None
                await files.close()


class Call(msgspec.Struct):
    """One call of one task, and what its tool receives. Rarely used parts are made on demand."""

    caller: Caller
    program: TaskProgram
    frame: Frame
    action_id: str
    reporter: Reporter
    traceparent: str
    tries: Tries
    secrets: Mask | None = None
    """Knows the secrets of this call, if there are any."""
    files: Files | None = None
    """The files of the current attempt, if its tool asked for them."""
    _keyring: Keyring | None = None
    _printing: Printing | None = None
    _is_over: bool = False
    _waits: list[str] = []
    """What it waits for at this moment."""
    _waits_since: float = 0.0
    _told: str = ""
    """The wait that was last reported."""

    # --- Its input ---

    def context(self, inputs: dict[str, Any], tool: Tool | None = None) -> ToolContext:
        """The context of this attempt for its tool, with these inputs."""
        caller, frame, task = self.caller, self.frame, self.program.task
        command = frame.command
        is_timed = task.timeout is not None or frame.program.is_timed
        return ToolContext(
            execution_id=command.execution_id,
            playbook=command.digest,
            step=command.step,
            task=task.name,
            action_id=self.action_id,
            attempt=self.tries.attempt,
            iteration=frame.iteration,
            inputs=inputs,
            look_around=lambda: _surroundings(
                frame,
                whole=bool(tool and tool.reads_context and tool.reads_context(task.config)),
            ),
            timeout=timeout_of(self.program, frame) if is_timed else None,
            spec=task.spec,
            credential=lambda name: self.keyring.credential(name),
            log=self._print,
            resources=caller.resources,
            read_result=lambda value: Bodies(caller.control, command).real(value),
            open_files=self._open_files,
            is_masked=lambda text: self.mask.text(text) != text,
            open_tokens=lambda: CallTokens(caller.control, command.execution_id, self.mask),
            traceparent=self.traceparent,
        )

    @property
    def mask(self) -> Mask:
        if self.secrets is None:
            self.secrets = Mask()
        return self.secrets

    def _open_files(self) -> Files:
        if self.files is None:
            command, caller = self.frame.command, self.caller
            self.files = caller.resources.files(
                command.execution_id,
                command.seal,
                self.action_id,
                caller.control.put_result,
                caller.control.get_result,
                self.mask,
            )
        return self.files

    @property
    def keyring(self) -> Keyring:
        if self._keyring is None:
            caller = self.caller
            self._keyring = Keyring(
                self.frame, caller.control, caller.sources, self.mask, lambda: self.context({})
            )
        return self._keyring

    # --- What it waits for ---

    def wait(self, what: str, begins: bool, ago: float) -> None:
        """It waits for capacity or an answer, or no longer. Reported if it takes a while."""
        reporter = self.reporter
        if begins:
            self._waits.append(what)
            if len(self._waits) == 1:
                self._waits_since = self.caller.now() - ago
                reporter.sources.append(self._wait_news)
                reporter.wake()
            return
        self._waits.remove(what)
        if not self._waits:
            reporter.sources.remove(self._wait_news)
            if self._told:
                reporter.say(TaskWaiting(what=self._told, over=True, **self._names()))
                self._told = ""

    def _wait_news(self) -> TaskWaiting | None:
        if self._told:
            return None
        if self.caller.now() - self._waits_since < WAIT_TOLD_SECONDS:
            self.reporter.wake()
            return None
        self._told = self._waits[0]
        return TaskWaiting(what=self._told, **{**self._names(), "at": self._waits_since})

    def _names(self) -> dict[str, Any]:
        """What every fact says of this call."""
        frame = self.frame
        return {
            "at": self.caller.now(),
            "step_run_id": frame.command.step_run_id,
            "step": frame.command.step,
            "task": self.program.task.name,
            "attempt": self.tries.attempt,
            "action_id": self.action_id,
            "iteration": frame.iteration,
        }

    # --- Its output ---

    def _print(self, text: str) -> None:
        if self._is_over:
            return
        if self._printing is None:
            self._printing = Printing(self.mask, self.reporter.wake)
            self.reporter.sources.append(self._news)
        self._printing(text)

    def _news(self) -> TaskLogged | None:
        """The output since the last call."""
        assert self._printing is not None
        return self._logged(self._printing.taken())

    def end(self) -> None:
        """Stop reporting output."""
        self._is_over = True
        if self._printing is not None:
            self.reporter.sources.remove(self._news)

    def printed(self) -> Printed:
        """All of its output, or the end of it; the part that was not shown yet is reported."""
        if self._printing is None:
            return NO_OUTPUT
        rest = self._logged(self._printing.rest())
        if rest is not None:
            self.reporter.say(rest)
        return self._printing.printed()

    def _logged(self, text: str) -> TaskLogged | None:
        return TaskLogged(text=text, **self._names()) if text else None


def _recordable(outcome: Outcome, kind: str) -> Outcome:
    """The outcome, unless a tool made up what no log can hold, such as an error kind. Its result is
    judged where it is recorded.
    """
    told = msgspec.structs.replace(outcome, result=None)
    try:
        read = msgspec.json.decode(msgspec.json.encode(told), type=Outcome)
        if read.is_ok or read.error is not None:
            return outcome
        why: object = "it has no `error`"
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as problem:
        why = problem
    said = f": {outcome.error.message}" if outcome.error is not None else ""
    return failed("exception", _valid(f"kind {kind} returned no valid outcome ({why}){said}"))


def _lacking(kind: str, tool: Tool | None) -> str:
    if tool is not None:
        return f"kind {kind} can be checked, but not run: its `Tool` has no `run`."
    return (
        f"this worker has no tool kind {kind}. Install the package that brings it where the worker"
        " runs, and start the worker again."
    )


def _unforeseen(error: BaseException) -> Outcome:
    """A fault of the tool itself, with the lines that led there, for whoever wrote it."""
    name = type(error).__name__
    message = _valid(f"{name}: {error}")
    # Without the line of ours that called it.
    lines = traceback.format_tb(error.__traceback__)[1:][-LINES_SHOWN:]
    shown = _valid("".join(["Traceback (of the tool):\n", *lines, message]))
    return Outcome(
        status="error",
        error=TaskError(kind="exception", message=message, details={"traceback": shown}),
        py={"exception_type": name},
    )


def _valid(text: str) -> str:
    """The text, with halves of surrogate pairs as escapes: no log can hold them."""
    return text.encode(errors="backslashreplace").decode()


def _args(frame: Frame) -> dict[str, Any]:
    """The args of the step, or of the workbook entry that it has called."""
    args = frame.names["args"]
    assert isinstance(args, dict)
    return args


def _surroundings(frame: Frame, *, whole: bool) -> dict[str, Any]:
    """The data that exists everywhere. As `context` of Python code, `whole`: with the results of
    finished steps, then the keys of args, ctx and workload. Earlier entries take precedence.
    """
    command = frame.command
    ctx = mask(frame.ctx) if frame.is_tainted else frame.ctx
    args = _args(frame)
    assert isinstance(ctx, dict)
    found = {
        "workload": command.workload,
        "ctx": ctx,
        "vars": command.vars,
        "args": args,
        "execution_id": command.execution_id,
        "step": command.step,
        "job": job_value(command.execution_id),
    }
    if not whole:
        return found
    steps = {name: with_body(result.value) for name, result in command.steps.items()}
    for layer in (steps, args, ctx, command.workload):
        found = {**layer, **found}
    return found


HTTP_KEYS = frozenset({"status_code", "headers", "data", "url", "elapsed"})


def with_body(value: Any) -> Any:
    """An HTTP answer passed whole to code has its body under both of its names; so has each answer
    of a loop.
    """
    if type(value) is dict:
        if value.keys() == HTTP_KEYS:
            return {**value, "body": value["data"]}
        if value.keys() >= {"results", "stats"}:
            return {**value, "results": with_body(value["results"])}
    elif type(value) is list and value and type(value[0]) is dict and value[0].keys() == HTTP_KEYS:
        return [with_body(one) for one in value]
    return value


def _rendered(call: Call, tool: Tool) -> tuple[Any, Any]:
    """Config and inputs of a call for its tool; the secrets among them are noted."""
    program, frame = call.program, call.frame
    task, overrides = program.task, call.tries.overrides
    below = frame.given
    if tool.runs_code:
        below = {**_args(frame), **below}
        below.pop("_tokens", None)
    if program.is_literal and not below and not overrides:
        return task.config, dict(task.inputs)
    config = rendered(program.config, frame.scope, f"task {task.name}")
    inputs = {**below, **rendered(program.inputs, frame.scope, f"args of task {task.name}")}
    config, inputs = overridden(config, inputs, overrides, tool)
    if tool.runs_code:
        inputs = {name: with_body(value) for name, value in inputs.items()}
    for secret in _secrets(config), _secrets(inputs):
        call.mask.add_given(secret)
    return reveal(config), reveal(inputs)


def _secrets(value: Any) -> list[Any]:
    """Every secret in a rendered value."""
    if isinstance(value, Tainted):
        return [reveal(value)]
    if isinstance(value, dict):
        return [secret for part in value.values() for secret in _secrets(part)]
    if isinstance(value, list):
        return [secret for part in value for secret in _secrets(part)]
    return []
