"""OpenTelemetry: a span per execution, below it the parts of step runs, below those the calls.

Ids are derived, not random. The trace id is derived from the execution, and every event shows it;
whether an execution is traced follows from it, so all processes agree, and a run that continues
elsewhere stays in its trace. The id of the execution's span is derived, too: workers send the spans
below it, and the server that stores the end of the execution sends the span itself
(`control.traces`).

A span holds names, ids, times and the outcome: no results, no messages. Attributes from a playbook
(`tracing.attributes`) are rendered with secrets masked.

Nothing waits for a collector. Ended spans are put into a bounded queue, from which a thread sends
them in batches; those that do not fit, or that the collector does not accept, are dropped and
counted. The queue is our own: the SDK's does not say how many it dropped, and may take half a
minute to end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.engine.pipeline.frame import Frame
from noetl.engine.pipeline.machine import CallEnded
from noetl.engine.pipeline.rules import TaskProgram
from noetl.engine.program import Program
from noetl.engine.scope import state_scope
from noetl.errors import NoetlError
from noetl.model.commands import Ending
from noetl.model.ids import ExecutionId, root_span_of, trace_of
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState
from noetl.templates import Compiled, Scope, mask
from noetl.worker.reporter import Reporter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from noetl.worker.driver import Driver

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
QUEUE_MAX = 10_000
BATCH_MAX = 512
SEND_EVERY = 1.0
CLOSE_SECONDS = 2.0
STOP_SECONDS = 1.0
"""How long the current request may take after the time for the rest is over."""
TEXT_MAX = 1000


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables name a collector and do not switch tracing off."""
    return (
        any(environment.get(name) for name in ENDPOINTS)
        and environment.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
    )


def sample_of(environment: Mapping[str, str]) -> float:
    """The fraction of executions to trace, unless a playbook sets it."""
    sampler = environment.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_")
    if sampler == "always_off":
        return 0.0
    if sampler != "traceidratio":
        return 1.0
    try:
        return float(environment.get("OTEL_TRACES_SAMPLER_ARG") or 1.0)
    except ValueError:
        logger.warning("OTEL_TRACES_SAMPLER_ARG is not a number: every execution is traced.")
        return 1.0


def is_sampled(trace_id: str, sample: float) -> bool:
    """The same for everyone with the same trace id, here and in other programs (the rule is
    OpenTelemetry's `traceidratio`).
    """
    return int(trace_id[16:], 16) < sample * 2**64


class Spans:
    """The spans of one process, on their way to a collector."""

    def __init__(
        self,
        exporter: SpanExporter,
        about: Mapping[str, str],
        sample: float,
        *,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        """`about` describes the process; `sample` is for steps without a setting."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._exporter = exporter
        self._resource = Resource.create(dict(about))
        self._scope = InstrumentationScope("noetl", about.get("service.version"))
        self._sample = sample
        self._queue: deque[ReadableSpan] = deque()
        self._queue_max = queue_max
        self.taken = 0
        """Spans that were added."""
        self.done = 0
        """How many of them were sent or dropped."""
        self.dropped = 0
        """Spans that no collector received."""
        self._told = 0
        self._news = threading.Event()
        self._is_closing = False
        self._is_late = False
        """The time for sending the rest is over."""
        self._sender = threading.Thread(target=self._send_all, name="noetl-spans", daemon=True)
        self._sender.start()

    async def run(self, driver: Driver) -> Ending | None:
        """Run the driver's command; within a span, if its execution is traced."""
        sample = driver.step.step.tracing.sample
        trace_id = trace_of(driver.command.execution_id)
        if not is_sampled(trace_id, self._sample if sample is None else sample):
            return await driver.run()
        return await _Piece(self, driver, trace_id).run()

    def execution(
        self, execution_id: ExecutionId, state: ExecutionState, program: Program | None
    ) -> None:
        """An execution has ended: the root span of its trace, if any of its steps may be traced. An
        execution that another one called links to that one's span.
        """
        trace_id = trace_of(execution_id)
        if not is_sampled(trace_id, self._sample_of(program)):
            return
        ended = state.ended_at if state.ended_at is not None else state.requested_at
        parent = state.parent.execution_id if state.parent is not None else None
        is_cancelled = state.status == "CANCELLED"
        says = _how("cancelled") if is_cancelled else _how("ok", state.failure)
        names = {
            "noetl.execution_id": execution_id,
            "noetl.parent_execution_id": parent,
            "noetl.playbook": state.path,
            "noetl.version": state.version,
            "noetl.status": state.status,
            **says,
        }
        own: dict[str, Any] = {}
        if program is not None and program.span_attributes:
            scope = state_scope(state, execution_id, at=ended, seed=execution_id, args={})
            own = _rendered(program.span_attributes, scope)
        self.add(
            f"execution {state.path}",
            trace_id,
            root_span_of(execution_id),
            None,
            state.requested_at,
            ended,
            {**own, **names},
            called_by=parent,
        )

    def _sample_of(self, program: Program | None) -> float:
        """The largest of its steps: a span of one of them is below that of the execution."""
        if program is None:
            return self._sample
        said = (step.tracing.sample for step in program.net.steps)
        return max(self._sample if sample is None else sample for sample in said)

    def add(
        self,
        name: str,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        began: float,
        ended: float,
        attributes: Mapping[str, Any],
        *,
        is_client: bool = False,
        called_by: ExecutionId | None = None,
    ) -> None:
        """A span has ended. It is dropped if the queue is full."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

        if len(self._queue) >= self._queue_max:
            self.dropped += 1
            return
        self.taken += 1

        def context(one: str, trace_id: str = trace_id) -> SpanContext:
            flags = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(int(trace_id, 16), int(one, 16), is_remote=False, trace_flags=flags)

        links = []
        if called_by is not None:
            links.append(Link(context(root_span_of(called_by), trace_of(called_by))))
        failed = "error.type" in attributes
        span = ReadableSpan(
            name,
            context(span_id),
            parent=context(parent_id) if parent_id is not None else None,
            resource=self._resource,
            attributes={key: value for key, value in attributes.items() if value is not None},
            links=links,
            kind=SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if failed else StatusCode.OK),
            start_time=int(began * 1e9),
            end_time=int(ended * 1e9),
            instrumentation_scope=self._scope,
        )
        self._queue.append(span)
        if len(self._queue) >= BATCH_MAX:
            self._news.set()

    async def close(self) -> None:
        """Send what is queued, if that is possible soon."""
        self._is_closing = True
        self._news.set()
        await asyncio.to_thread(self._sender.join, CLOSE_SECONDS)
        self._is_late = True
        await asyncio.to_thread(self._exporter.shutdown)
        await asyncio.to_thread(self._sender.join, STOP_SECONDS)
        self.dropped += len(self._queue)
        self._tell()

    # --- In the thread ---

    def _send_all(self) -> None:
        while not self._is_closing:
            self._news.wait(SEND_EVERY)
            self._news.clear()
            self._send_queued()
        self._send_queued()

    def _send_queued(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        while self._queue and not self._is_late:
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            try:
                taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception:
                logger.exception("spans could not be sent")
                taken = False
            self.done += len(batch)
            if not taken:
                self.dropped += len(batch)
                self._tell()

    def _tell(self) -> None:
        if self.dropped > self._told:
            self._told = self.dropped
            logger.warning(
                "%d spans were dropped so far: the collector does not take them, or not as fast"
                " as they come. Executions are not concerned. See OTEL_EXPORTER_OTLP_ENDPOINT.",
                self.dropped,
            )


class _Piece:
    """The part of a step run under one lease, as a span with its calls below it."""

    def __init__(self, spans: Spans, driver: Driver, trace_id: str) -> None:
        command = driver.command
        self._spans = spans
        self._driver = driver
        self._trace_id = trace_id
        self._id = _span_id(command.command_id, command.deliveries)
        self._calls = 0
        self._call = driver.call
        self._names = {
            "noetl.execution_id": command.execution_id,
            "noetl.parent_execution_id": command.parent_execution_id,
            "noetl.playbook": driver.program.net.path,
            "noetl.step": command.step,
            "noetl.step_run_id": command.step_run_id,
        }
        self._own: dict[str, Any] | None = None

    @contextmanager
    def _span(
        self,
        name: str,
        span_id: str,
        parent_id: str,
        names: Mapping[str, Any],
        *,
        is_client: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Around what the span is of, which says how it went."""
        now = self._driver.now
        began, says = now(), _how("cancelled")
        try:
            yield says
        finally:
            said = {**self._attributes(), **self._names, **names, **says}
            place = self._trace_id, span_id, parent_id
            self._spans.add(name, *place, began, now(), said, is_client=is_client)

    async def run(self) -> Ending | None:
        driver, command = self._driver, self._driver.command
        driver.call = self._traced
        root = root_span_of(command.execution_id)
        with self._span(f"step {command.step}", self._id, root, {}) as says:
            try:
                ending = await driver.run()
            except Exception:
                says.update(_how("error", TaskError(kind="exception", message="")))
                raise
            if ending is None:
                says.update(_how("part"))
            else:
                says.update(_how("skipped" if ending.skipped else "ok", ending.error))
            return ending

    async def _traced(
        self, program: TaskProgram, frame: Frame, action_id: str, reporter: Reporter
    ) -> CallEnded:
        self._calls += 1
        span_id, task = _span_id(self._id, self._calls), program.task
        names = {
            "noetl.task": task.name,
            "noetl.kind": task.kind,
            "noetl.attempt": frame.tries.attempt,
            "noetl.action_id": action_id,
            "noetl.iteration": frame.iteration,
        }
        tool = self._driver.caller.tool(task.kind)
        is_client = tool is not None and tool.is_client
        name, parent = f"task {task.name}", f"00-{self._trace_id}-{span_id}-01"
        with self._span(name, span_id, self._id, names, is_client=is_client) as says:
            ended = await self._call(program, frame, action_id, reporter, parent)
            outcome = ended.outcome
            says.update(_how(outcome.status, outcome.error))
            meta = msgspec.structs.replace(outcome.meta, trace_id=self._trace_id)
            shown = msgspec.structs.replace(outcome, meta=meta)
            return msgspec.structs.replace(ended, outcome=shown)

    def _attributes(self) -> dict[str, Any]:
        """The attributes from the playbook."""
        if self._own is None:
            driver = self._driver
            compiled = driver.step.span_attributes
            self._own = {}
            if compiled:
                scope = Frame(driver.program, driver.command, dict(driver.command.ctx)).scope
                self._own = _rendered(compiled, scope)
        return self._own


def _rendered(compiled: Mapping[str, Compiled], scope: Scope) -> dict[str, Any]:
    """The attributes from the playbook. Those that cannot be evaluated are left out, and nothing
    fails.
    """
    found: dict[str, Any] = {}
    for name, value in compiled.items():
        try:
            found[name] = _plain(mask(value.render(scope, f"attribute {name}")))
        except NoetlError as error:
            logger.info("attribute %s of a span is left out: %s", name, error.code)
    return found


def _how(outcome: str, error: TaskError | None = None) -> dict[str, Any]:
    """The outcome. The message of an error is only in the log."""
    if error is None:
        return {"noetl.outcome": outcome}
    code = None if error.code is None else str(error.code)
    return {"noetl.outcome": "error", "error.type": error.kind, "noetl.error.code": code}


def _plain(value: Any) -> str | int | float | bool | None:
    """A value for a span; others as JSON. Long texts are cut."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return text[:TEXT_MAX]


def _span_id(*causes: object) -> str:
    return blake2b("\x1f".join(map(str, causes)).encode(), digest_size=8).hexdigest()
