"""Work for a worker that runs some tool kinds only: commands that need no others.

Such a worker looks for work a few times a second instead of being handed it. Workers that run
everything, which is the rule, pay nothing for that.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from noetl.control.clock import Clock, Deadline
from noetl.control.leases import LOOK_SECONDS, Dispatch
from noetl.control.orchestrator import Orchestrator
from noetl.dsl.walk import all_tasks
from noetl.engine.program import Program
from noetl.model.commands import Command, Lease, is_apart, serves
from noetl.model.net import OWN_KINDS, WORKBOOK
from noetl.store.queue import Queue


async def lease_of_kinds(
    orchestrator: Orchestrator,
    queue: Queue,
    clock: Clock,
    worker_id: str,
    kinds: Collection[str],
    *,
    pool: str,
    want: int,
    wait: float,
) -> list[Lease]:
    """Commands that need these kinds and no others, waiting for the first at most so long."""
    deadline = Deadline(clock, wait)
    while True:
        fitting = [
            command
            for command, holder, _ in await queue.open_commands()
            if holder is None and await _needs(orchestrator, command) <= set(kinds)
        ]
        now = clock.now()
        for name, most in _queues(orchestrator.dispatch, worker_id, pool, want, fitting, now):
            claim = queue.claim_of(
                worker_id,
                [one.command_id for one in fitting if one.pool == name],
                pool=name,
                limit=most,
                expires_at=now + orchestrator.dispatch.lease_seconds,
            )
            if leases := await orchestrator.leases.taken(worker_id, claim, now):
                if is_apart(name):
                    orchestrator.dispatch.watch(worker_id, leases[0], now)
                return leases
        if deadline.left() <= 0:
            return []
        await clock.sleep(LOOK_SECONDS)


def _queues(
    dispatch: Dispatch, worker_id: str, pool: str, want: int, fitting: list[Command], now: float
) -> list[tuple[str, int]]:
    """The queues from which this worker may take now, and how many commands of each.

    As in `Leases.lease`: a command that may kill its worker goes to one that has nothing else.
    """
    served = sorted({one.pool for one in fitting if serves(pool, one.pool)})
    queues: list[tuple[str, int]] = []
    if dispatch.is_free(worker_id):
        queues += [(name, 1) for name in served if is_apart(name)]
    if not dispatch.is_watched(worker_id, now):
        queues += [(name, want) for name in served if not is_apart(name)]
    return queues


async def _needs(orchestrator: Orchestrator, command: Command) -> frozenset[str]:
    program = await orchestrator.programs.by_digest(command.digest)
    return _kinds(program, command.step) - OWN_KINDS  # every worker runs these itself


@lru_cache(maxsize=200)
def _kinds(program: Program, step: str) -> frozenset[str]:
    """What a step may run: its own tasks, and the workbook's if it calls any of them."""
    body = program.steps[step].step
    own = {task.kind for task in all_tasks(body)}
    if WORKBOOK in own or body.compensate is not None:
        own |= {task.kind for block in program.net.workbook for task in all_tasks(block)}
    return frozenset(own)
