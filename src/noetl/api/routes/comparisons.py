"""/api/executions/diff and /critical-path: two executions side by side, and where time went."""

from __future__ import annotations

from noetl.api.route import Caller, Query, Route, Services
from noetl.control import comparison
from noetl.model.retrospect import CriticalPath, DiffDocument


class Both(Query, frozen=True, kw_only=True):
    """Two executions."""

    a: str
    b: str


async def diff(services: Services, caller: Caller, *, query: Both) -> DiffDocument:
    """How two executions differ, aligned by step, run, iteration, task and attempt."""
    return await comparison.diff(services.store.log, services.store.records, query.a, query.b)


async def critical(services: Services, caller: Caller, *, execution_id: str) -> CriticalPath:
    """The chain of step runs that decided how long an execution took, and what the time went to."""
    return await services.timelines.critical_path(execution_id, services.clock.now())


DIFF = Route("executions.diff", "GET", "/api/executions/diff", "read", diff, query=Both)
CRITICAL = Route(
    "executions.critical", "GET", "/api/executions/{execution_id}/critical-path", "read", critical
)
ROUTES = (DIFF, CRITICAL)
