"""What a command says is recorded in order, however many of its lanes wait for that at once."""

from __future__ import annotations

import asyncio

import pytest

from noetl.errors import LeaseLost, NoetlError, StoreError, TooMany
from noetl.model.commands import Answer, Command, Lease, Report
from noetl.model.events import Event, TaskLogged
from noetl.worker.reporter import TRIES, Pulse, Reporter

LEASE = Lease(
    command=Command(command_id="c", execution_id="1", digest="d", step="start", step_run_id="r"),
    token="t",
    expires_at=0.0,
)


class Desk:
    """The far side: it accepts every report, and answers a moment later. Before that it answers
    with these errors."""

    def __init__(self, *errors: NoetlError) -> None:
        self.errors = list(errors)
        self.numbers: list[int] = []
        self.recorded: list[Event] = []

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        self.numbers.append(report.number)
        self.recorded += report.events
        return Answer(accepted=True)


def line(text: str) -> TaskLogged:
    return TaskLogged(at=0.0, step_run_id="r", step="start", task="t", text=text)


def reporting_to(desk: Desk) -> Reporter:
    return Reporter(
        control=desk,
        lease=LEASE,
        pool="default",
        worker_id="w",
        pulse=Pulse(),
        stop=lambda: None,
    )


def test_a_report_is_sent_again_whatever_the_server_answered_in_that_moment():
    desk = Desk(NoetlError("the server answered 500."), StoreError("it restarts"), TooMany("busy"))

    async def work() -> None:
        reporter = reporting_to(desk)
        reporter.say(line("said"))
        assert (await reporter.close(None, want=0)).accepted

    asyncio.run(work())

    assert desk.recorded == [line("said")]


@pytest.mark.parametrize("error", [LeaseLost("another worker has it"), NoetlError("no")])
def test_what_no_repetition_changes_is_not_sent_for_ever(error: NoetlError):
    desk = Desk(*[error] * 100)

    async def work() -> None:
        with pytest.raises(type(error)):
            await reporting_to(desk).close(None, want=0)

    asyncio.run(work())

    assert len(desk.errors) == (99 if isinstance(error, LeaseLost) else 100 - TRIES)


def test_who_waits_for_a_record_is_not_disturbed_by_those_who_begin_the_next():
    desk = Desk()

    async def lane(reporter: Reporter, name: str) -> None:
        for n in range(50):
            said = line(f"{name}{n}")
            reporter.say(said)
            assert await reporter.recorded()
            assert said in desk.recorded

    async def work() -> None:
        reporter = reporting_to(desk)
        await asyncio.gather(*(lane(reporter, name) for name in "abc"))
        reporter.say(line("last"))
        reporter.flush_soon()
        assert (await reporter.close(None, want=0)).accepted

    asyncio.run(work())

    assert desk.numbers == list(range(1, len(desk.numbers) + 1))
    assert len(desk.recorded) == 151
