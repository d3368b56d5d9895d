"""/api/executions/{id} over time: the state at a moment, the timeline, what decided how long it
took, loops and calls; and two executions side by side.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import structs

from noetl.api.route import Caller, Query, Route, Services
from noetl.api.routes.executions import Limit, Seq
from noetl.control import calls, comparison, documents
from noetl.control.preview import Seen, seen_in
from noetl.errors import EvaluationFailed, NotFound
from noetl.model.retrospect import CriticalPath, DiffDocument
from noetl.model.timeline import (
    CallDocument,
    IterationPage,
    IterationStatus,
    MomentDocument,
    Timeline,
)

Buckets = Annotated[int, msgspec.Meta(ge=1, le=2000)]


class Both(Query, frozen=True, kw_only=True):
    """Two executions."""

    a: str
    b: str


class AtSeq(Query, frozen=True, kw_only=True):
    """Which moment."""

    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)] | None = None
    """The state after this event; by default after the last one."""


class WhichRuns(Query, frozen=True, kw_only=True):
    """Which step runs, and the resolution of loops."""

    after: Seq = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=2000)] = 2000
    buckets: Buckets = 200


class WhichIterations(Query, frozen=True, kw_only=True):
    """Which iterations."""

    status: IterationStatus | None = None
    after: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    """The number of an iteration: only those after it."""
    limit: Limit = 100


class Nearby(Query, frozen=True, kw_only=True):
    """Where to look."""

    after: Seq = 0
    """The number of an event before the call began, if known; it speeds up the search in a long
    log.
    """


async def diff(services: Services, caller: Caller, *, query: Both) -> DiffDocument:
    """How two executions differ, aligned by step, run, iteration, task and attempt."""
    return await comparison.diff(services.store.log, services.store.records, query.a, query.b)


async def critical(services: Services, caller: Caller, *, execution_id: str) -> CriticalPath:
    """The chain of step runs that decided how long an execution took, and what the time went to."""
    return await services.timelines.critical_path(execution_id, services.clock.now())


async def state(
    services: Services, caller: Caller, *, execution_id: str, query: AtSeq
) -> MomentDocument:
    """The execution as it was after one of its events: its document, tokens and open runs."""
    now = await services.orchestrator.state(execution_id) if query.seq is None else None
    if now is not None and now.is_finished:
        found = await services.moments.end(execution_id, now)
    else:
        found = await services.moments.at(execution_id, query.seq)
    program = await services.orchestrator.programs.by_digest(found.state.digest)
    return documents.moment_of(execution_id, found, program)


async def timeline(
    services: Services, caller: Caller, *, execution_id: str, query: WhichRuns
) -> Timeline:
    """How each step run spent its time; loops in at most this many buckets."""
    return await services.timelines.timeline(
        execution_id, after=query.after, limit=query.limit, buckets=query.buckets
    )


async def iterations(
    services: Services,
    caller: Caller,
    *,
    execution_id: str,
    step_run_id: str,
    query: WhichIterations,
) -> IterationPage:
    """Iterations of a loop by number, and the errors of failed ones, grouped.

    `status=failed&limit=1&after=N` finds the next failed one.
    """
    return await services.timelines.iterations(
        execution_id, step_run_id, status=query.status, after=query.after, limit=query.limit
    )


async def call(
    services: Services, caller: Caller, *, execution_id: str, action_id: str, query: Nearby
) -> CallDocument:
    """One call of a tool: its input without secrets, its attempts and its outcome."""
    found = await calls.recorded(services.store.log, execution_id, action_id, after=query.after)
    at = await services.moments.at(execution_id, found.seq)
    program = await services.orchestrator.programs.by_digest(at.state.digest)
    started = found.started
    task = await calls.written_task(services.store.log, execution_id, program, found)
    rendered: dict[str, Any] = {}
    unknown: dict[str, str] = {}

    def seen(written: Any) -> Seen:
        return seen_in(
            program,
            at.state,
            execution_id,
            written,
            at=started.at,
            step=started.step,
            iteration=started.iteration,
        )

    for name, written in task.config.items():
        try:
            rendered[name] = await services.evaluator.rendered(written, seen(written), caller.name)
        except (EvaluationFailed, NotFound) as error:
            unknown[name] = str(error)
    attempts = []
    conditions = task.conditions
    for attempt in found.attempts:
        rule = None
        outcome = found.outcomes.get(attempt.attempt)
        if outcome is not None and conditions:
            with suppress(EvaluationFailed, NotFound):
                here = seen(conditions)
                seen_as = program.views[started.kind]
                names = calls.names_of(seen_as, outcome, attempt.attempt)
                roots = {**here.roots, **names}
                held = await services.evaluator.rendered(
                    conditions, structs.replace(here, roots=roots), caller.name
                )
                rule = task.matched(msgspec.json.decode(held), attempt.directive)
        attempts.append(structs.replace(attempt, rule=rule))
    return documents.of(
        CallDocument,
        started,
        task,
        found,
        rendered=rendered,
        unknown=unknown,
        rules=[msgspec.to_builtins(rule) for rule in task.rules],
        attempts=attempts,
    )


ONE = "/api/executions/{execution_id}"
DIFF = Route("executions.diff", "GET", "/api/executions/diff", "read", diff, query=Both)
CRITICAL = Route("executions.critical", "GET", f"{ONE}/critical-path", "read", critical)
STATE = Route("executions.state", "GET", f"{ONE}/state", "read", state, query=AtSeq)
TIMELINE = Route("executions.timeline", "GET", f"{ONE}/timeline", "read", timeline, query=WhichRuns)
ITERATIONS = Route(
    "executions.iterations",
    "GET",
    f"{ONE}/loops/{{step_run_id}}/iterations",
    "read",
    iterations,
    query=WhichIterations,
)
CALL = Route("executions.call", "GET", f"{ONE}/calls/{{action_id}}", "read", call, query=Nearby)
