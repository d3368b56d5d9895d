"""Executions that wait for their turn: started when a limit has room, cancelled when replaced.

What waits, what runs and what has ended is in the store, and only the store says whether there is
room, in the transaction that starts an execution. So nothing here can let too many run or lose a
slot. A server looks after what it has stored itself: an execution that waits, or one whose end made
room. If it dies before it has looked, another one does within a second.
"""

from __future__ import annotations

import asyncio
import logging

from noetl.control.clock import Clock, heard
from noetl.control.commit_loop import Inbox
from noetl.control.orchestrator import Orchestrator
from noetl.errors import NoetlError
from noetl.model.events import Actor
from noetl.model.inputs import Admitted, Cancelled
from noetl.store.limits import Admissions

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two looks for what another server left behind."""
AT_ONCE = 100


async def admit(
    orchestrator: Orchestrator, admissions: Admissions, clock: Clock, patience: float | None
) -> None:
    """Start what waits as soon as there is room, until cancelled. Where others may leave something
    behind, it is looked for after `patience` seconds.
    """
    changed = orchestrator.commits.slots_changed
    changed.set()  # a process before this one may have left some
    while True:
        await heard(changed, patience)
        changed.clear()
        try:
            await _look(orchestrator.inbox, admissions, clock)
        except NoetlError as error:
            logger.warning("waiting executions could not be checked: %s", error)
            await asyncio.sleep(LOOK_SECONDS)
            changed.set()


async def _look(inbox: Inbox, admissions: Admissions, clock: Clock) -> None:
    while True:
        moved = False
        for execution_id, newer in await admissions.displaced(limit=AT_ONCE):
            reason = f"execution {newer}, which has the same concurrency key, replaces it"
            actor = Actor(kind="playbook", name=newer)
            moved |= await _submit(
                inbox,
                Cancelled(execution_id=execution_id, at=clock.now(), reason=reason, actor=actor),
            )
        waiting = [
            Admitted(execution_id=one, at=clock.now())
            for one in await admissions.admissible(limit=AT_ONCE)
        ]
        started = await asyncio.gather(*[_submit(inbox, one) for one in waiting])
        if not moved and not any(started):
            return


async def _submit(inbox: Inbox, given: Admitted | Cancelled) -> bool:
    """Whether something changed. An execution that cannot be read must not hold up the others."""
    try:
        return (await inbox.submit(given)).changed
    except NoetlError as error:
        logger.warning(
            "an execution that waits for its turn cannot go on: %s",
            error,
            extra={"execution_id": given.execution_id},
        )
        return False
