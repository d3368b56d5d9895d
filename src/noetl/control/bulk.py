"""One action on many executions: which ones it concerns, and its outcome for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from noetl.control.records import matching
from noetl.errors import BadRequest, NoetlError
from noetl.model.desk import BulkAction, BulkDone, BulkFailure
from noetl.model.events import Actor
from noetl.model.execution_query import Condition, Term, Wanted
from noetl.model.ids import ExecutionId

if TYPE_CHECKING:
    from noetl.control.executions import Executions
    from noetl.store.records import Records

BULK_MAX = 5000
AT_ONCE = 16
RERUNS = "rerun/"
"""The idempotency keys of reruns that a bulk action starts begin with this and with its key."""
FAILURES_MAX = 100
ELIGIBLE: dict[BulkAction, tuple[str, ...]] = {
    "cancel": ("PENDING", "RUNNING", "PAUSED"),
    "pause": ("PENDING", "RUNNING"),
    "resume": ("PAUSED",),
    "rerun": ("COMPLETED", "FAILED", "CANCELLED"),
}
"""Statuses in which an action makes sense."""


class Bulk:
    """Actions on executions that a query or a list of ids names."""

    def __init__(self, records: Records, executions: Executions) -> None:
        self._records = records
        self._executions = executions

    async def act(
        self,
        action: BulkAction,
        wanted: Wanted,
        *,
        now: float,
        dry_run: bool,
        reason: str = "",
        actor: Actor | None = None,
        key: str | None = None,
    ) -> BulkDone:
        """Act on all that match. Which those are is settled before the first one: executions that
        a rerun starts are not among them. Raises BadRequest if they are too many.

        Under the same `key` no execution is cancelled or run again twice.
        """
        statuses = tuple(Condition("status", status) for status in ELIGIBLE[action])
        eligible = (*wanted, Term(statuses))
        matched = await self._records.count(wanted, now=now)
        count = await self._records.count(eligible, now=now)
        done = BulkDone(
            action=action,
            dry_run=dry_run,
            matched=matched,
            eligible=count,
            done=0,
            failed=[],
            started=[],
        )
        if dry_run:
            return done
        if count > BULK_MAX:
            raise BadRequest(
                f"{count} executions match, and at most {BULK_MAX} are acted on at once."
                " Narrow the query, e.g. with since: and until:. Nothing was done."
            )
        # Sent again, the query may match what it has started.
        ids = [
            row.execution_id
            async for row in matching(self._records, eligible, now=now)
            if key is None or (row.idempotency_key or "").rpartition("/")[0] != f"{RERUNS}{key}"
        ]
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(execution_id: ExecutionId) -> ExecutionId | BulkFailure:
            async with gate:
                try:
                    return await self._one(action, execution_id, reason, actor, key)
                except NoetlError as error:
                    return BulkFailure(
                        execution_id=execution_id, code=error.code, message=str(error)
                    )

        found = await asyncio.gather(*(one(execution_id) for execution_id in ids))
        failed = [each for each in found if isinstance(each, BulkFailure)]
        new = [each for each in found if not isinstance(each, BulkFailure)]
        return msgspec.structs.replace(
            done,
            done=len(new),
            failed=failed[:FAILURES_MAX],
            started=new if action == "rerun" else [],
        )

    async def _one(
        self,
        action: BulkAction,
        execution_id: ExecutionId,
        reason: str,
        actor: Actor | None,
        key: str | None,
    ) -> ExecutionId:
        """The execution acted on; of a rerun the new one."""
        match action:
            case "cancel":
                await self._executions.cancel(execution_id, reason, actor=actor, key=key)
            case "pause":
                await self._executions.pause(execution_id, reason, actor=actor)
            case "resume":
                await self._executions.resume(execution_id, actor=actor)
            case "rerun":
                of_one = None if key is None else f"{RERUNS}{key}/{execution_id}"
                return await self._executions.rerun(execution_id, actor=actor, key=of_one)
        return execution_id
