"""Tells the control plane what happens under one lease, in order and in batches.

Facts gather and are sent at least every second, so that people can watch; the last report closes
the command and may bring the next one.
"""

from __future__ import annotations

import asyncio

from noetl.model.commands import Answer, Ending, Lease, Report, Suspension
from noetl.model.events import Event
from noetl.worker.control import Control

FLUSH_SECONDS = 1.0
FLUSH_FACTS = 200


class Reporter:
    """The voice of one lease."""

    def __init__(self, control: Control, lease: Lease, pool: str) -> None:
        self._control = control
        self._lease = lease
        self._pool = pool
        self._facts: list[Event] = []
        self._suspensions: list[Suspension] = []
        self._number = 0
        self._sending = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None

    def say(self, fact: Event) -> None:
        """Report this soon."""
        self._facts.append(fact)
        if len(self._facts) >= FLUSH_FACTS:
            self._flush_now()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FLUSH_SECONDS, self._flush_now)

    def suspend(self, suspension: Suspension) -> None:
        """An iteration goes on later; the rest of the chunk goes on now."""
        self._suspensions.append(suspension)

    def flush_soon(self) -> None:
        """Something was done that should not be done twice: record it without waiting for it."""
        self._flush_now()

    def _flush_now(self) -> None:
        self._cancel_timer()
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._send_gathered())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _send_gathered(self) -> None:
        async with self._sending:
            if self._facts or self._suspensions:
                await self._control.report(self._next_report())

    def _next_report(self, ending: Ending | None = None, *, closes: bool = False) -> Report:
        self._number += 1
        command = self._lease.command
        report = Report(
            command_id=command.command_id,
            execution_id=command.execution_id,
            token=self._lease.token,
            number=self._number,
            events=tuple(self._facts),
            suspensions=tuple(self._suspensions),
            ending=ending,
            closes=closes,
        )
        self._facts = []
        self._suspensions = []
        return report

    async def close(self, ending: Ending | None, *, want: int) -> Answer:
        """The last report. Raises LeaseLost if somebody else has taken over."""
        self._cancel_timer()
        if self._flush is not None:
            await asyncio.wait([self._flush])
            # What went wrong with an earlier report goes wrong with this one, too, and is said.
            self._flush.cancelled() or self._flush.exception()
        async with self._sending:
            report = self._next_report(ending, closes=True)
            return await self._control.report(report, want=want, pool=self._pool)

    def abandon(self) -> None:
        """Nobody wants to hear of this lease any more."""
        self._cancel_timer()
        if self._flush is not None:
            self._flush.cancel()
