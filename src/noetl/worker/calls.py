"""One attempt of one tool: render, run, and make the outcome fit for the record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from noetl.engine.pipeline import TaskProgram
from noetl.errors import EvaluationFailed, NoetlError, NotFound
from noetl.model.ids import derive
from noetl.model.net import KeychainEntry, Task
from noetl.model.outcome import Meta, Outcome, TaskError, failed
from noetl.secrets.keychain import Sources, resolve
from noetl.secrets.masking import Mask
from noetl.templates import Tainted, reveal
from noetl.tools.base import TaskLog, Tool, ToolContext
from noetl.tools.running.files import Files
from noetl.tools.running.resources import ToolResources
from noetl.worker.bodies import Bodies
from noetl.worker.control import Control
from noetl.worker.frame import Frame
from noetl.worker.rates import Rates

GRACE_SECONDS = 0.5
REPEAT_PAUSE = 0.1
"""Seconds before a tool tries again by itself (`spec.retry`), where nothing else is said."""
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

    async def call(self, program: TaskProgram, frame: Frame) -> tuple[Outcome, str]:
        """The outcome of one attempt, and what it printed. Never raises but for cancellation."""
        task = program.task
        started = self._now()
        action_id = action_of(frame, task)
        log = TaskLog()
        mask = Mask()
        try:
            outcome = await self._attempt_repeatedly(program, frame, action_id, log, mask)
        except EvaluationFailed as error:
            outcome = failed("schema", str(error), code=error.code)
        except TimeoutError:
            outcome = failed("timeout", f'task "{task.name}" took too long', retryable=True)
        except NotFound as error:
            outcome = failed("not_found", str(error), code=error.code)
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
        outcome = msgspec.structs.replace(
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
        return outcome, mask.text(log.text())

    async def _attempt_repeatedly(
        self, program: TaskProgram, frame: Frame, action_id: str, log: TaskLog, mask: Mask
    ) -> Outcome:
        """One try, and as many more as `spec.retry` allows while the error is worth another."""
        repeats, pause = _own_retries(program.task)
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
        await self._resolve_keychain(program, frame, mask)
        config = program.config.render(frame.scope, f"task {task.name}")
        inputs = program.inputs.render(frame.scope, f"args of task {task.name}")
        assert isinstance(config, dict)
        assert isinstance(inputs, dict)
        inputs = {**frame.given, **inputs}
        if frame.tries.overrides:
            config = _overridden(config, frame.tries.overrides)
        for secret in _secrets(config), _secrets(inputs):
            mask.add(secret)
        try:
            typed = msgspec.convert(reveal(config), tool.config, strict=False)
        except msgspec.ValidationError as error:
            return failed("schema", f"kind {task.kind}: {mask.text(str(error))}", code="config")
        await self._rates.wait(task.spec.get("rate"), task.kind, config, frame)
        files = self._resources.files(
            frame.command.execution_id,
            action_id,
            self._control.put_result,
            self._control.get_result,
        )
        context = self._context(frame, task, action_id, reveal(inputs), log, mask, files)
        limit = total_seconds(task.timeout)
        # A tool keeps its own time; two alarms at the same moment would cut its clean-up short.
        try:
            async with asyncio.timeout(None if limit is None else limit + GRACE_SECONDS):
                return await tool.run(typed, context)
        finally:
            await files.close()

    def _context(
        self,
        frame: Frame,
        task: Task,
        action_id: str,
        inputs: Any,
        log: TaskLog,
        mask: Mask,
        files: Files,
    ) -> ToolContext:
        command = frame.command

        async def credential(name: str | Mapping[str, Any]) -> dict[str, Any]:
            fields = await self._credential(frame, name)
            mask.add(fields)
            return fields

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
            timeout=task.timeout,
            spec=task.spec,
            credential=credential,
            log=log,
            resources=self._resources,
            read_result=read_result,
            files=files,
        )

    async def _credential(self, frame: Frame, name: str | Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(name, str):
            if "kind" not in name:
                return dict(name)
            config = {key: value for key, value in name.items() if key not in ("name", "kind")}
            written = KeychainEntry(
                name=str(name.get("name", "")), kind=str(name["kind"]), config=config
            )
            return await self._resolved(written, frame)
        entry = next((found for found in frame.program.net.keychain if found.name == name), None)
        if entry is None:
            return await self._control.credential(name, frame.command.execution_id)
        return await self._resolved(entry, frame)

    async def _resolved(self, entry: KeychainEntry, frame: Frame) -> dict[str, Any]:
        async def stored(name: str) -> dict[str, Any]:
            return await self._control.credential(name, frame.command.execution_id)

        return await resolve(entry, stored, self._sources)

    async def _resolve_keychain(self, program: TaskProgram, frame: Frame, mask: Mask) -> None:
        """`keychain.<name>` is resolved at the moment of use, and only what is used."""
        wanted = {
            path[1]
            for path in program.config.reads | program.inputs.reads
            if path[0] == "keychain" and len(path) > 1
        }
        if not wanted:
            frame.scope.roots.pop("keychain", None)
            return
        known = {entry.name: entry for entry in frame.program.net.keychain}
        found = {}
        for name in wanted & known.keys():
            fields = await self._resolved(known[name], frame)
            mask.add(fields)
            found[name] = {key: Tainted(value) for key, value in fields.items()}
        frame.scope.roots["keychain"] = found
        frame.scope.tainted |= {"keychain"}


# A call is named in everything that it says, renders and is judged by.
_derive_again = lru_cache(maxsize=256)(derive)


def action_of(frame: Frame, task: Task) -> str:
    """The same on every attempt of a logical call, another for every other call."""
    place = (frame.cause, task.name, frame.page, frame.jumps)
    chain = frame.chain
    if chain is None:
        return _derive_again(*place)
    # The same task may stand in several rules, and the same rule may answer several events.
    branch = chain.rules[chain.branch]
    return derive(*place, chain.stage, chain.epoch, branch, chain.action, chain.tries.page)


def total_seconds(timeout: Any) -> float | None:
    """How long a whole call may take; None if nothing says so."""
    if isinstance(timeout, dict):
        timeout = timeout.get("total")
    return float(timeout) if isinstance(timeout, int | float) else None


def _own_retries(task: Task) -> tuple[int, float]:
    """How often the tool tries again by itself, and the seconds before each time."""
    written = task.spec.get("retry", 0)
    if isinstance(written, dict):
        return int(written.get("attempts", 1)), float(written.get("delay", REPEAT_PAUSE))
    return int(written), REPEAT_PAUSE


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
