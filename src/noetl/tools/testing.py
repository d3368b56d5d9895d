"""The contract of a tool kind as tests, for our kinds and for yours.

It states what a playbook's author may rely on with any kind: unknown fields are refused, a failure
has an error kind, a cancelled call ends within a second, and no secret gets out. A test module
subclasses `ToolContract`, names its tool, and provides calls of it:

    class TestGreet(ToolContract):
        tool = TOOL

        @pytest.fixture
        def trials(self):
            unnamed = Trial({"whom": ""}, fails="client_error")
            return Trials(good=Trial({"whom": "you"}), failing=(unnamed,))

The calls are real: real servers, real files, the tool's own code.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from noetl.errors import NotFound
from noetl.model.outcome import ERROR_KINDS, ErrorKind, Outcome
from noetl.tools.base import TaskLog, Tool, ToolContext
from noetl.tools.failures import known_failure
from noetl.tools.files.results import in_memory
from noetl.tools.resources import THREADS, ToolResources
from noetl.tools.rules import Rules

CANARY = "canary-7f3e9a51-c4d2"
"""Use it as the secret in the credentials of a trial. It must not come out."""
SEAL = "seal"
"""Marks the references of a trial; see `noetl.model.refs`."""
SECONDS_ALLOWED = 0.3


class Trial(msgspec.Struct, frozen=True):
    """One call of the tool, and its expected outcome."""

    config: Mapping[str, Any]
    """What a playbook writes beside `kind`, rendered."""
    inputs: Mapping[str, Any] = {}
    credentials: Mapping[str, Mapping[str, Any]] = {}
    fails: ErrorKind | None = None
    """The expected error kind; None: the call must succeed."""


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that exercise a tool."""

    good: Trial
    failing: tuple[Trial, ...]
    """At least one for each of the tool's `errors`, except those in `shown_by`."""
    endless: Trial | None = None
    """A call that would take very long; None if the tool has none."""


class Ran(msgspec.Struct, frozen=True):
    """An outcome and the output."""

    outcome: Outcome
    log: str


class ToolContract:
    """The promises of every kind. Subclass it, set `tool` and write the fixture `trials`."""

    tool: ClassVar[Tool]
    rules: ClassVar[Rules] = Rules()
    seconds_to_stop: ClassVar[float] = 5.0
    """The contract promises one second; the rest is for busy machines."""
    yields_secrets: ClassVar[bool] = False
    """For a tool whose result itself is a secret; the worker masks it."""
    shown_by: ClassVar[Mapping[ErrorKind, Callable[..., None]]] = {}
    """For errors that a single call cannot cause: the test that shows each of them."""

    @pytest.fixture
    def trials(self) -> Trials:
        raise LookupError(f"write the fixture `trials` in {type(self).__name__}")

    # --- The promises ---

    def test_a_field_it_does_not_know_is_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"no_such_field": 1}, self.tool.config)

    def test_every_field_has_a_line_of_help(self) -> None:
        schema = msgspec.json.schema(self.tool.config)
        [fields] = [
            part["properties"]
            for name, part in schema["$defs"].items()
            if name == self.tool.config.__name__
        ]
        for name, field in fields.items():
            assert field.get("description"), f"`{name}` has no help; write `about(…)`"

    def test_it_does_what_it_is_for(self, trials: Trials) -> None:
        ran = self.ran(trials.good)

        assert ran.outcome.is_ok, f"it failed: {ran.outcome.error}"

    def test_its_failures_have_names(self, trials: Trials) -> None:
        for trial in trials.failing:
            error = self.ran(trial).outcome.error
            assert error is not None, f"{trial.config} did not fail"
            assert error.kind in ERROR_KINDS, f"there is no error kind {error.kind}"
            assert error.kind == trial.fails, f"{trial.config} ended with {error}"
            assert error.message.strip(), f"{trial.config}: the message is empty"

    def test_every_kind_of_error_it_names_is_shown(self, trials: Trials) -> None:
        shown = {trial.fails for trial in trials.failing if trial.fails} | set(self.shown_by)
        if trials.endless is not None:
            shown.add("timeout")
        named = set(self.tool.errors)
        assert not shown - named, f"name them in the tool's `errors`: {shown - named}"
        assert not named - shown, f"no trial of `failing` ends with {named - shown}"

    def test_no_secret_gets_out(self, trials: Trials) -> None:
        encoded = base64.b64encode(CANARY.encode()).decode().rstrip("=")
        for trial in (trials.good, *trials.failing):
            ran = self.ran(trial)
            shown = msgspec.json.encode(ran.outcome).decode()
            for secret in (CANARY, encoded):
                assert secret not in ran.log, f"{trial.config}: the log shows a secret"
                said = secret in shown and not (self.yields_secrets and ran.outcome.is_ok)
                assert not said, f"{trial.config}: the outcome shows a secret: {shown}"

    def test_it_stops_soon_when_it_is_cancelled(self, trials: Trials) -> None:
        if trials.endless is None:
            pytest.skip("no call of this tool takes long")
        asyncio.run(self._cancelled(trials.endless))

    def test_it_ends_when_its_time_is_up(self, trials: Trials) -> None:
        if trials.endless is None:
            pytest.skip("no call of this tool takes long")
        asyncio.run(self._out_of_time(trials.endless))

    # --- How they are tried ---

    def ran(self, trial: Trial) -> Ran:
        """Run one call to its end, with resources of its own."""

        async def run() -> Ran:
            log = TaskLog()
            resources = ToolResources(self.rules)
            try:
                outcome = await self.call(trial, resources, log)
            finally:
                await resources.close()
            assert isinstance(outcome, Outcome), f"`run` returned {outcome!r:.60}, not an Outcome"
            msgspec.json.encode(outcome)
            return Ran(outcome, log.text())

        return asyncio.run(run())

    async def call(
        self, trial: Trial, resources: ToolResources, log: TaskLog, timeout: float | None = None
    ) -> Outcome:
        """Call the tool as a worker would."""

        async def credential(name: str | Mapping[str, Any]) -> dict[str, Any]:
            if not isinstance(name, str):
                return dict(name)
            if name not in trial.credentials:
                raise NotFound(f'there is no credential "{name}".')
            return dict(trial.credentials[name])

        async def read_result(reference: Any) -> Any:
            return reference

        assert self.tool.run is not None, f"kind {self.tool.kind} has no `run`"
        files = resources.files("1", SEAL, "trial-1", *in_memory({}))
        context = ToolContext(
            execution_id="1",
            step="trial",
            task="trial",
            action_id="trial-1",
            inputs=dict(trial.inputs),
            timeout=timeout,
            credential=credential,
            log=log,
            resources=resources,
            read_result=read_result,
            open_files=lambda: files,
        )
        config = msgspec.convert(dict(trial.config), self.tool.config)
        try:
            return await self.tool.run(config, context)
        except Exception as error:
            outcome = known_failure(error)
            if outcome is None:
                raise
            return outcome

    async def _cancelled(self, trial: Trial) -> None:
        resources = ToolResources(self.rules)
        before = asyncio.all_tasks()
        try:
            call = asyncio.create_task(self.call(trial, resources, TaskLog()))
            await asyncio.wait([call], timeout=SECONDS_ALLOWED)
            assert not call.done(), f"it is over already, so it is not endless: {call}"
            call.cancel()
            await asyncio.wait([call], timeout=self.seconds_to_stop)
            assert call.done(), f"it runs on {self.seconds_to_stop:g} s after it was cancelled"
            assert call.cancelled(), "it hid that it was cancelled: let CancelledError pass"
        finally:
            await resources.close()
        left = asyncio.all_tasks() - before
        assert not left, f"it left tasks running: {left}"
        for thread in threading.enumerate():
            if thread.name.startswith(THREADS):
                thread.join(self.seconds_to_stop)
                assert not thread.is_alive(), f"it left {thread.name} at work"

    async def _out_of_time(self, trial: Trial) -> None:
        resources = ToolResources(self.rules)
        try:
            async with asyncio.timeout(SECONDS_ALLOWED + self.seconds_to_stop):
                outcome = await self.call(trial, resources, TaskLog(), SECONDS_ALLOWED)
        finally:
            await resources.close()
        assert outcome.error is not None, "it succeeded after its time was up"
        assert outcome.error.kind == "timeout", f"this is not a timeout: {outcome.error}"
