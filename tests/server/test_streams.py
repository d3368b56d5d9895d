"""Those who read an execution's events: they get all of them, and what they read hardly notices."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from noetl import wiring
from noetl.api.services import Services
from noetl.api.stream import Streams
from noetl.cli.workloads import chain
from noetl.errors import NotFound
from noetl.settings import Settings
from noetl.store.base import Store
from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving, working
from tests.server.test_routes import HELLO, SLOW, WAITING
from tests.stopwatch import PATIENCE

ROUNDS_MAX = 5
IDS = re.compile(rb"^id: (\d+)$", re.MULTILINE)
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with a worker of its own process, so that the server's time is its own."""
    with (
        temporary_folder() as folder,
        serving(folder) as found,
        working(folder, found.url, "--slots", "4"),
    ):
        yield found


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


async def read(server: Server, path: str, *headers: str) -> list[int]:
    """The ids of a stream, when it has ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**24)
    writer.write(request(path, "Connection: close", *headers))
    async with asyncio.timeout(PATIENCE):
        said = await reader.read()
    writer.close()
    return [int(number) for number in IDS.findall(said)]


async def get(server: Server, path: str) -> None:
    await asyncio.to_thread(server.get, path)


def be_quiet(server: Server) -> None:
    """Wait until the server has nothing more to do."""
    deadline = time.monotonic() + PATIENCE
    before = server.cpu_seconds()
    while time.monotonic() < deadline:
        time.sleep(0.25)
        now = server.cpu_seconds()
        if now - before < 0.03:
            return
        before = now
    raise AssertionError("the server is busy without reason")


async def started(server: Server, entry: dict[str, object]) -> str:
    wanted = {"path": entry["path"], "version": entry["version"]}
    answer = await asyncio.to_thread(server.post, "/api/execute", wanted)
    return f"/api/executions/{answer['execution_id']}"


async def cost(server: Server, entry: dict[str, object], *reads: str) -> float:
    """Processor time of the server for an execution, while all of this is read of it."""
    begin = server.cpu_seconds()
    path = await started(server, entry)
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(read(server, path + one)) for one in reads]
        await get(server, f"{path}/events?type=playbook.processed&wait=60")
        took = server.cpu_seconds() - begin
    page = await asyncio.to_thread(server.get, f"{path}/events", limit=1000)
    for one, ids in zip(reads, reading, strict=True):
        if one == "/stream":
            assert ids.result() == [event["seq"] for event in page["events"]]
    return took


def costs(server: Server, *wishes: tuple[str, ...]) -> list[float]:
    """The least cost of each, in turns: a busy machine only adds."""
    entry = server.post("/api/catalog/register", {"content": chain(100)})

    async def measured() -> list[list[float]]:
        await cost(server, entry)
        return [[await cost(server, entry, *wish) for wish in wishes] for _ in range(5)]

    return [min(column) for column in zip(*asyncio.run(measured()), strict=True)]


def beside(server: Server, path: str, readers: int, *, most: float) -> tuple[float, float]:
    """The least cost of an execution alone, and beside so many who read that path.

    A processor that others use as well counts up to twice the time for the same work. So they take
    turns until one pair was measured under the same conditions, or it is clear that none will be.
    """
    entry = server.post("/api/catalog/register", {"content": chain(100)})

    async def several() -> float:
        return min([await cost(server, entry) for _ in range(5)])

    alone = watched = math.inf
    for _ in range(ROUNDS_MAX):
        alone = min(alone, asyncio.run(several()))
        with ExitStack() as stack:
            for _ in range(readers):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                one.sendall(request(path))
                assert one.recv(12) == b"HTTP/1.1 200"
            be_quiet(server)
            watched = min(watched, asyncio.run(several()))
        if watched < most * alone:
            break
    return alone, watched


# --- What they cost ----------------------------------------------------------------------------


@needs_proc
def test_t44_twenty_readers_of_a_stream_cost_an_execution_little(server):
    alone, watched = costs(server, (), ("/stream",) * 20)

    # 1.4 on a quiet machine; more than 10 when each of them read and encoded by itself.
    assert watched < 3 * alone, (alone, watched)


@needs_proc
def test_t44_twenty_browsers_that_watch_the_list_cost_an_execution_little(server):
    list_of_all = "/api/stream?topics=executions,inbox,workers"
    alone, watched = beside(server, list_of_all, 20, most=2.5)

    # 1.1 on a quiet machine: rows are read and encoded once, four times a second at most.
    assert watched < 2.5 * alone, (alone, watched)


@needs_proc
def test_t44_five_hundred_idle_streams_cost_nothing(server):
    waiting = server.start(WAITING)
    server.wait_for(waiting, "step.waiting")
    alone, watched = beside(server, f"/api/executions/{waiting}/stream", 500, most=1.5)
    server.post(f"/api/executions/{waiting}/cancel")

    assert watched < 1.5 * alone, (alone, watched)


@needs_proc
def test_who_waits_for_events_of_a_type_is_not_woken_by_others(server):
    poll = "/events?type=step.failed&wait=2"
    alone, waited = costs(server, (), (poll,) * 20)

    # Each request costs something by itself; to be woken by each of 100 commits cost 20 times that.
    assert waited < 2.5 * alone, (alone, waited)


# --- What they get -----------------------------------------------------------------------------


def test_readers_that_come_at_any_time_read_all_events_to_the_last(server):
    entry = server.post("/api/catalog/register", {"content": chain(100)})

    async def story() -> tuple[list[list[int]], int]:
        path = await started(server, entry)
        async with asyncio.TaskGroup() as group:
            reading = []
            for number in range(12):
                after = f"Last-Event-ID: {number * 60}"
                reading.append(group.create_task(read(server, f"{path}/stream", after)))
                await get(server, f"{path}/events?after={number * 60}&wait=10&limit=1")
        page = await asyncio.to_thread(server.get, f"{path}/events", type="playbook.processed")
        return [one.result() for one in reading], page["events"][0]["seq"]

    found, last = asyncio.run(story())
    for number, ids in enumerate(found):
        assert ids == list(range(number * 60 + 1, last + 1))


@pytest.mark.parametrize(
    ("chosen", "last"),
    [
        ("", "playbook.processed"),
        ("&type=step.done&type=playbook.processed", "playbook.processed"),
        ("&type=step.done&step=s18", "step.done"),
    ],
)
def test_long_polls_of_what_runs_give_what_is_stored(server, chosen, last):
    entry = server.post("/api/catalog/register", {"content": chain(20)})
    started = server.post("/api/execute", {"path": entry["path"], "version": entry["version"]})
    path = f"/api/executions/{started['execution_id']}/events"
    polled: list[dict[str, Any]] = []
    while not polled or polled[-1]["event_type"] != last:
        after = polled[-1]["seq"] if polled else 0
        polled += server.get(f"{path}?after={after}&wait=60&limit=3{chosen}")["events"]

    server.get(path, type="playbook.processed", wait=60)
    assert polled == server.get(f"{path}?limit=1000{chosen}")["events"]


def test_a_reader_that_stops_for_a_while_goes_on_where_it_was(server):
    entry = server.post("/api/catalog/register", {"content": LARGE})

    async def story() -> tuple[list[int], int]:
        path = await started(server, entry)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**16)
        writer.write(request(f"{path}/stream", "Connection: close"))
        said = await reader.readuntil(b"\n\n")
        await get(server, f"{path}/events?type=playbook.processed&wait=60")
        async with asyncio.timeout(PATIENCE):
            while more := await reader.read(2**16):
                said += more
        writer.close()
        page = await asyncio.to_thread(server.get, f"{path}/events", type="playbook.processed")
        return [int(number) for number in IDS.findall(said)], page["events"][0]["seq"]

    ids, last = asyncio.run(story())
    assert ids == list(range(1, last + 1))


LARGE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large, path: streamed/large}
workflow:
  - step: start
    loop: {in: "{{ range(60) | list }}", iterator: n, mode: parallel}
    tool: {kind: noop, result: "{{ 'x' * 50000 }}"}
"""


# --- How they are told -------------------------------------------------------------------------


def test_the_time_to_connect_again_comes_with_the_first_event(dev):
    execution_id = dev.start(HELLO)
    dev.ended(execution_id)

    blocks = dev.ask("GET", f"/api/executions/{execution_id}/stream").raw.split(b"\n\n")

    assert blocks[0].startswith(b"retry: 1000\nid: 1\nevent: ")
    assert all(b"\ndata: {" in block for block in blocks[:-1])


def test_after_the_end_whoever_connects_again_is_told_not_to(dev):
    execution_id = dev.start(HELLO)
    dev.ended(execution_id)
    path = f"/api/executions/{execution_id}/stream"
    last = IDS.findall(dev.ask("GET", path).raw)[-1].decode()

    again = dev.ask("GET", path, headers={"Last-Event-ID": last})
    assert (again.status, again.raw) == (204, b"")
    assert dev.ask("GET", path, after=int(last)).status == 204
    assert dev.ask("GET", path, after=int(last) - 1).status == 200


@pytest.mark.parametrize("wrong", ["abc", "-1", "1.5", "9" * 30, "²"])
def test_an_event_id_that_is_none_is_refused(dev, wrong):
    execution_id = dev.start(SLOW)
    path = f"/api/executions/{execution_id}/stream"

    refused = dev.ask("GET", path, headers={"Last-Event-ID": wrong})
    dev.post(f"/api/executions/{execution_id}/cancel")

    assert refused.status == 400
    assert "Last-Event-ID" in refused.json["error"]["message"]


def test_a_stream_of_nothing_is_not_found(dev):
    assert dev.ask("GET", "/api/executions/77/stream").status == 404
    assert dev.ask("GET", "/api/executions/77/events").status == 404
    assert dev.ask("GET", "/api/executions/77/events", wait=1).status == 404


class Counted:
    """A store that counts what is read of it."""

    def __init__(self, store: Any, reads: Counter[str] | None = None) -> None:
        self._store = store
        self.reads: Counter[str] = Counter() if reads is None else reads

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return Counted(found, self.reads)
        self.reads[name] += 1
        return found


class Read(NamedTuple):
    """An execution that was just started, and those who read it."""

    execution_id: str
    streams: Streams
    reads: Counter[str]
    system: Services


@asynccontextmanager
async def started_here(folder: Path, text: str, *, work: bool) -> AsyncIterator[Read]:
    settings = Settings.from_environment({})
    here = msgspec.structs.replace(settings, database_url=f"sqlite:///{folder}/x.db")
    async with wiring.embedded(here, work=work, serves=True) as system:
        entry, _ = await system.catalog.register(text)
        store = Counted(system.store)
        watchers = system.orchestrator.watchers
        log, records = cast(Store, store).log, cast(Store, store).records
        streams = Streams(log, records, watchers, system.metrics, system.draining)
        started = await system.executions.start(entry.digest, entry.path, entry.version, {})
        yield Read(started, streams, store.reads, system)


def test_readers_that_come_together_share_also_what_was_there_before_them(tmp_path):
    async def story() -> tuple[list[bytes], Counter[str]]:
        async with started_here(tmp_path, WAITING, work=False) as found:

            async def first() -> bytes:
                assert await found.streams.look(found.execution_id, 0)
                async with aclosing(found.streams.frames(found.execution_id, 0)) as frames:
                    return await anext(frames)

            said = await asyncio.gather(*(first() for _ in range(20)))
            with pytest.raises(NotFound):
                await found.streams.look("1", 0)
            return said, found.reads

    said, reads = asyncio.run(story())

    assert len(set(said)) == 1
    assert b"\nevent: playbook.execution.requested\n" in said[0]
    # One read for all of them; what is not there is asked for in every way.
    assert reads == {"events": 2, "summary": 1, "heads": 1}


def test_what_this_server_stores_is_not_read_again_for_those_who_read_it(tmp_path):
    async def story() -> tuple[list[list[int]], int, Counter[str]]:
        async with started_here(tmp_path, chain(100), work=True) as found:

            async def ids() -> list[int]:
                async with aclosing(found.streams.frames(found.execution_id, 0)) as frames:
                    said = [frame async for frame in frames]
                return [int(number) for number in IDS.findall(b"".join(said))]

            read = await asyncio.gather(*(ids() for _ in range(3)))
            state = await found.system.orchestrator.state(found.execution_id)
            return read, state.seq, found.reads

    read, last, reads = asyncio.run(story())

    assert read == [list(range(1, last + 1))] * 3
    # Only what was there before them; each tenth of a second before the feed was handed the rest.
    assert reads == {"events": 1}


def test_others_have_a_turn_between_two_readers_that_are_sent_the_same(tmp_path):
    async def story() -> list[int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with started_here(tmp_path, WAITING, work=False) as found:

            async def turn() -> int:
                async with aclosing(found.streams.frames(found.execution_id, 0)) as frames:
                    await anext(frames)
                    return turns

            counting = asyncio.create_task(count())
            said = await asyncio.gather(*(turn() for _ in range(20)))
            counting.cancel()
            return said

    assert len(set(asyncio.run(story()))) == 20
