"""Fast path for reports: from the bytes of the request to the bytes of the answer, without a task.

A worker idles while it waits for the answer to its report, so every microsecond the server spends
before and after the commit is added to every step. A report from a known caller about a command
leased by this server goes into the inbox of the commit loop straight from the parser. Its answer is
encoded while the commit is being written, and sent the moment the commit succeeds, before anyone
else is notified.

The rules are those of `routes.commands`. A report that is not plain takes that route, untouched by
this one.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from noetl.api.errors import problem_of
from noetl.api.routes.commands import SLOTS_MAX, Next, report_taken
from noetl.control.commit_loop import Entry
from noetl.errors import LeaseLost, NoetlError
from noetl.model.commands import Lease, Report
from noetl.model.inputs import Reported

if TYPE_CHECKING:
    from noetl.api.protocol import Request
    from noetl.api.rights import Principal
    from noetl.api.services import Services

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(list[Report]).decode


class Answering:
    """The reports of one request, until each has its answer."""

    __slots__ = ("_left", "_reports", "_send", "begun", "request", "request_id", "who")

    def __init__(
        self,
        request: Request,
        who: Principal,
        request_id: str | None,
        send: Callable[[Answering, bytes], None],
    ) -> None:
        self.begun = time.perf_counter()
        self.request = request
        self.who = who
        self.request_id = request_id or f"{random.getrandbits(64):016x}"
        self._send = send
        self._reports: list[PlainReport] = []
        self._left = 0

    def add(self, report: PlainReport) -> None:
        self._reports.append(report)
        self._left += 1

    def answered(self) -> None:
        """One more answer is known; the last one sends them all."""
        self._left -= 1
        if self._left:
            return
        answers = b",".join([one.answer for one in self._reports])
        try:
            self._send(self, b'{"answers":[' + answers + b"]}")
        except Exception:
            # An error here must not stop the commit loop, which calls this.
            logger.exception("a report was not answered", extra={"request_id": self.request_id})
            self.request.break_off()


class PlainReport(Entry):
    """A report on its way through the commit loop, answered the moment it is stored."""

    prepares: ClassVar[bool] = True
    services: Services | None = None
    answering: Answering | None = None
    answer: bytes = b""
    """The encoded answer; empty until it is known."""
    foreseen: tuple[list[Lease], bool, bytes] | None = None
    """The answer if everything is stored as decided: with these leases, and whether the run
    continues.
    """

    def prepare(self) -> None:
        if self.refusal is None and not self.answer:
            leases = self.waiter.promised if self.waiter is not None else []
            self.foreseen = leases, self.is_over, self._encoded(leases)

    def settle(self) -> None:
        if self.answer:
            return
        assert self.services is not None
        assert isinstance(self.input, Reported)
        if self.refusal is not None:
            self.fail(self.refusal)
            return
        leases = self.waiter.given if self.waiter is not None else []
        foreseen = self.foreseen
        if foreseen is not None and foreseen[0] == leases and foreseen[1] is self.is_over:
            answer = foreseen[2]
        else:
            try:
                answer = self._encoded(leases)
            except Exception as error:  # noqa: BLE001  it becomes an answer, as anywhere
                self.fail(error)
                return
        self._tell(answer)
        # The worker has its answer; its next request is read when this is done.
        self.services.holders.remember(leases, self.input.report.worker)
        self.services.metrics.reports.inc("taken")

    def fail(self, error: Exception) -> None:
        if self.answer:
            return
        assert self.services is not None
        assert self.answering is not None
        if isinstance(error, LeaseLost):
            self.services.metrics.reports.inc("refused")
        self._tell(_encode(problem_of(error, self.answering.request_id)[1]))

    def _encoded(self, leases: Sequence[Lease]) -> bytes:
        return _encode(report_taken(leases, cancelled=self.is_over))

    def _tell(self, answer: bytes) -> None:
        assert self.answering is not None
        self.answer = answer
        self.answering.answered()


class PlainReports:
    """Takes reports that are plain."""

    def __init__(self, services: Services, send: Callable[[Answering, bytes], None]) -> None:
        self._services = services
        self._send = send

    def take(self, request: Request, who: Principal, wish: Next, request_id: str | None) -> bool:
        """Take the reports in the body of the request, and answer when they are stored. False: the
        request has to take the general path.
        """
        services = self._services
        want = 0 if services.draining.is_set() else wish.want
        body = request.at_hand()
        if body is None or body[:1] != b"[":
            return False
        try:
            who.require("work")
            if want:
                who.require_pool(wish.pool)
            reports = _read(body)
            if not 0 < len(reports) <= SLOTS_MAX:
                return False
            answering = Answering(request, who, request_id, self._send)
            entries = [self._entry(one, who, answering, want, wish.pool) for one in reports]
        except (NoetlError, msgspec.MsgspecError):
            return False
        if not all(entries):
            return False
        put = services.orchestrator.inbox.put
        for entry in entries:
            assert entry is not None
            answering.add(entry)
            put(entry)
        return True

    def _entry(
        self, report: Report, who: Principal, answering: Answering, want: int, pool: str
    ) -> PlainReport | None:
        """None if something has to be looked up first. Raises LeaseLost for a wrong lease token."""
        services = self._services
        worker = services.holders.known_holder(who, report)
        if worker is None or any(one.child is not None for one in report.suspensions):
            return None
        if report.worker != worker:
            report = msgspec.structs.replace(report, worker=worker)
        given, waiter = services.orchestrator.reported(report, want, pool)
        return PlainReport(given, waiter=waiter, services=services, answering=answering)
