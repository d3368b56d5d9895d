"""Reading an execution of tens of thousands of events, in processor time of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from noetl.cli.workloads import LOOP, of_length
from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.server.test_streams import IDS, needs_proc

ITERATIONS = 8_000
MANY = 260_000
"""Iterations that leave a million events."""


class Long(NamedTuple):
    server: Server
    path: str
    paged: float
    """What it costs to read all events in pages of a thousand."""

    def cost(self, ask: Callable[[], Any]) -> float:
        begin = self.server.cpu_seconds()
        ask()
        return self.server.cpu_seconds() - begin

    def read_in_pages(self) -> None:
        after, more = 0, True
        while more:
            page = self.server.get(f"{self.path}/events", after=after, limit=1000)
            after, more = page["next_after"], page["more"]


@pytest.fixture(scope="module")
def long() -> Iterator[Long]:
    with temporary_folder() as folder, serving(folder, kind="dev") as server:
        execution_id = server.start(of_length(LOOP, ITERATIONS))
        server.ended(execution_id)
        found = Long(server, f"/api/executions/{execution_id}", 0.0)
        yield found._replace(paged=found.cost(found.read_in_pages))


@needs_proc
def test_a_stream_from_the_start_is_read_in_large_pages(long):
    said = []
    cost = long.cost(lambda: said.append(long.server.ask("GET", f"{long.path}/stream").raw))

    ids = [int(number) for number in IDS.findall(said[0])]
    assert ids == list(range(1, ids[-1] + 1))
    assert len(ids) > 3 * ITERATIONS
    assert cost < 1.5 * long.paged


@needs_proc
def test_events_of_a_type_are_found_without_parsing_the_others(long):
    for name in ("step.failed", "playbook.processed"):
        cost = long.cost(lambda name=name: long.server.get(f"{long.path}/events", type=name))
        assert cost < 0.2 * long.paged, name


@needs_proc
def test_a_rerun_from_a_step_reads_only_what_it_needs(long):
    started = []
    body = {"from": "end"}
    cost = long.cost(lambda: started.append(long.server.post(f"{long.path}/rerun", body)))

    assert long.server.ended(started[0]["execution_id"])["status"] == "COMPLETED"
    assert cost < 0.2 * long.paged


@needs_proc
def test_any_moment_is_near_after_the_first_look(long):
    last = long.server.get(f"{long.path}/state", seq=2)["last_seq"]
    long.server.get(f"{long.path}/state", seq=last - 1)

    for part in range(1, 8):
        seq = last * part // 8
        shown: list[Any] = []
        cost = long.cost(
            lambda seq=seq, shown=shown: shown.append(
                long.server.get(f"{long.path}/state", seq=seq)
            )
        )
        assert shown[0]["seq"] == seq
        assert cost < 0.4 * long.paged, seq


@pytest.mark.long
@needs_proc
def test_any_moment_of_a_million_events_takes_a_tenth_of_a_second(capsys):
    with temporary_folder() as folder, serving(folder, kind="dev") as server:
        execution_id = server.start(of_length(LOOP, MANY))
        path = f"/api/executions/{execution_id}"
        for _ in range(20):
            with suppress(AssertionError):  # it takes longer than one wait
                server.wait_for(execution_id, "playbook.processed")
                break
        last = server.get(f"{path}/state", seq=2)["last_seq"]
        assert last >= 1_000_000
        for part in range(1, 21):  # the first look, in pieces that are answered in time
            server.get(f"{path}/state", seq=last * part // 20)
        begun = server.cpu_seconds()
        for part in range(1, 40):
            server.get(f"{path}/state", seq=last * part // 40)
        each = (server.cpu_seconds() - begun) / 39
    with capsys.disabled():
        print(f"\na moment of {last} events: {each * 1000:.0f} ms of the server's processor")
    assert each <= 0.1
