"""Reports to the control plane what happens under one lease, in order and in batches.

Facts are collected and sent at least every second, so that people can watch; the last report closes
the command and may bring the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from noetl.errors import LeaseLost, NoetlError
from noetl.model.commands import Answer, Ending, Lease, Report, Suspension
from noetl.model.events import Event
from noetl.patience import PASSING, persist
from noetl.worker.control import Control

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
FLUSH_FACTS = 200
TRIES = 5
RETRY_PAUSE = 0.5


class Pulse:
    """Flushes reporters whose facts have waited for a while: at most a second.

    One timer for all commands of a worker. Most end sooner, and a timer for each would cost them.
    """

    def __init__(self) -> None:
        self._waiting: dict[Reporter, float] = {}
        self._is_beating = False

    def add(self, reporter: Reporter) -> None:
        if reporter in self._waiting:
            return
        loop = asyncio.get_running_loop()
        self._waiting[reporter] = loop.time()
        if not self._is_beating:
            self._is_beating = True
            loop.call_later(BEAT_SECONDS, self._beat)

    def remove(self, reporter: Reporter) -> None:
        self._waiting.pop(reporter, None)

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        long_ago = loop.time() - BEAT_SECONDS
        for reporter in [one for one, since in self._waiting.items() if since <= long_ago]:
            reporter.flush_soon()
        self._is_beating = bool(self._waiting)
        if self._is_beating:
            loop.call_later(BEAT_SECONDS, self._beat)


class Reporter(msgspec.Struct, eq=False):
    """Reports on one lease."""

    control: Control
    lease: Lease
    pool: str
    worker_id: str
    pulse: Pulse
    stop: Callable[[], None]
    """Interrupts the run: the answer to a report says that it is over, or a report was refused."""
    sources: list[Callable[[], Event | None]] = []
    """Called for each report; they contribute pending facts, if any."""
    is_closed: bool = False
    """Its last report was accepted."""
    calls: int = 0
    """Calls of its command that are under way."""
    has_effect: bool = False
    """A tool was called that may have had an external effect since everything was last known to be
    recorded.
    """
    _facts: list[Event] = []
    _held: list[Event] = []
    """Facts that may be recorded only together with the position after them."""
    _suspensions: list[Suspension] = []
    _number: int = 0
    _flush: asyncio.Task[None] | None = None
    _flush_wanted: bool = False
    """Facts added while a report is under way go with the next one."""

    def hold(self, fact: Event) -> None:
        """Report this together with the next fact that holds a position, or with the end.

        Otherwise a read-modify-write could be done twice after a crash.
        """
        self._held.append(fact)

    def say(self, fact: Event) -> None:
        """Report this soon."""
        if self._held and getattr(fact, "progress", None) is not None:
            self._release()
        self._facts.append(fact)
        if self._flush_wanted:
            return
        if len(self._facts) >= FLUSH_FACTS:
            self.flush_soon()
        else:
            self.pulse.add(self)

    def wake(self) -> None:
        """There is something to report: now, or within a second."""
        self.pulse.add(self)

    def suspend(self, suspension: Suspension) -> None:
        """An iteration continues later; the rest of the chunk continues now."""
        self._suspensions.append(suspension)

    def flush_soon(self) -> None:
        """Have pending facts recorded, without waiting for it."""
        self.pulse.remove(self)
        self._flush_wanted = True
        if self._flush is None or (self._flush.done() and not _error_of(self._flush)):
            self._flush = asyncio.create_task(self._send_gathered())

    async def recorded(self) -> bool:
        """Return when all facts so far are recorded; False: they were refused, and `close` raises
        why.
        """
        self.has_effect = False
        self.flush_soon()
        flush = self._flush  # Others may begin the next one before this coroutine goes on.
        assert flush is not None
        await asyncio.wait([flush])
        return not flush.cancelled() and _error_of(flush) is None

    async def _send_gathered(self) -> None:
        while self._flush_wanted and self._has_news():
            self._flush_wanted = False
            try:
                answer = await self._send(self._next_report())
            except NoetlError:
                # What the run does from now on could not be recorded, and its lease may be lost.
                self.stop()
                raise
            if answer.cancelled:
                self.stop()
        self._flush_wanted = False

    def _has_news(self) -> bool:
        """Whether there is something to report, including what the sources contribute."""
        self._facts += [fact for source in self.sources if (fact := source()) is not None]
        return bool(self._facts or self._suspensions)

    async def _send(self, report: Report, *, want: int = 0) -> Answer:
        """Send until it is accepted: repeating a report changes nothing. For what may pass it
        waits; what else a server answers may come of one moment, too, and is tried a few times.
        """
        for tries_left in reversed(range(TRIES)):
            try:
                return await self.control.report(report, want=want, pool=self.pool)
            except LeaseLost:
                raise
            except PASSING:
                return await persist(lambda: self.control.report(report, want=want, pool=self.pool))
            except NoetlError as error:
                if not tries_left:
                    raise
                logger.warning("a report was not accepted, and is sent again: %s", error)
                await asyncio.sleep(RETRY_PAUSE)
        raise AssertionError("the last try returns or raises")

    def _release(self) -> None:
        self._facts += self._held
        self._held = []

    def _next_report(self, ending: Ending | None = None, *, closes: bool = False) -> Report:
        if self._held and (closes or self._suspensions):
            self._release()
        self._number += 1
        command = self.lease.command
        report = Report(
            command_id=command.command_id,
            execution_id=command.execution_id,
            token=self.lease.token,
            number=self._number,
            worker=self.worker_id,
            events=tuple(self._facts),
            suspensions=tuple(self._suspensions),
            ending=ending,
            closes=closes,
        )
        self._facts = []
        self._suspensions = []
        return report

    async def close(self, ending: Ending | None, *, want: int) -> Answer:
        """The last report. Raises LeaseLost if another worker has taken over.

        Raises the error that kept an earlier report, or this one, from being accepted.
        """
        self.pulse.remove(self)
        while self._flush is not None and not self._flush.done():
            await asyncio.wait([self._flush])
        if self._flush is not None and (error := _error_of(self._flush)):
            # The record would have a gap: another worker repeats the work from what is stored.
            raise error
        answer = await self._send(self._next_report(ending, closes=True), want=want)
        self.is_closed = True
        return answer

    def abandon(self) -> None:
        """The lease is over: send nothing more."""
        self.pulse.remove(self)
        if self._flush is not None and not self._flush.cancel():
            _error_of(self._flush)  # Marks the error as seen: no one waits for it any more.


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
