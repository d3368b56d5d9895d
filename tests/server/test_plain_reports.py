"""Reports that go the short way are judged, stored and answered like those that go the long way."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noetl import wiring
from noetl.api.edge import Edge
from noetl.api.protocol import Connections, Request
from noetl.api.services import Services
from noetl.cli.workloads import chain
from noetl.settings import Settings
from tests.server.test_leases import last_word as by_hand
from tests.stopwatch import PATIENCE

LENGTH = 4000
"""Of every body: what does not change is the head, and a head that came before is known."""
PATH = "/api/commands/report?want=1&pool=default"
WISH = {"worker_id": "w", "slots": 2, "wait": 10}
"""More than there is, so that the server knows that nothing is left: else it sends the worker to
look for it after 50 ms, and no report brings what follows.
"""
SHORT, LONG = "identity", "gzip;q=0.5, identity"


class Watched(Edge):
    """Remembers which way each request went."""

    short = long = 0

    def __call__(self, request: Request) -> Coroutine[Any, Any, None] | None:
        found = super().__call__(request)
        if found is None:
            self.short += 1
        else:
            self.long += 1
        return found


class Client:
    """A connection that sends every request in one piece, as workers do."""

    def __init__(self, port: int, encoding: str) -> None:
        self._port = port
        self._encoding = encoding

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        written = json.dumps(body).encode().ljust(LENGTH)
        assert len(written) == LENGTH
        self.writer.write(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: same\r\n"
            b"Accept-Encoding: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), self._encoding.encode(), LENGTH, written)
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        answer = await self.reader.readexactly(int(length[1]))
        assert b"x-request-id: same\r\n" in head
        return int(head.split()[1]), json.loads(answer)

    async def report(self, *reports: Any) -> Any:
        status, answer = await self.ask(PATH, list(reports))
        assert status == 200, answer
        return answer["answers"]


def last_word(command: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**by_hand(command), "worker": "w", **changes}


async def story(client: Client, system: Services, path: str) -> dict[str, Any]:
    """What a worker is answered that does, and tries to do, all kinds of things."""
    # The first request with a head goes the long way, whatever it asks for.
    unknown = last_word({"command_id": "c", "execution_id": "1", "lease": {"token": "t"}})
    told: dict[str, Any] = {"unknown": await client.report(unknown)}
    _, started = await client.ask("/api/execute", {"path": path})
    _, leased = await client.ask("/api/commands/lease", WISH)
    [first] = leased["commands"]
    told["unknown again"] = await client.report(unknown)
    told["none"] = await client.report()
    told["no report"] = await client.report({"no": "report"})
    told["forged"] = await client.report(last_word(first, token="forged"))
    told["elsewhere"] = await client.report(last_word(first, execution_id="77"))
    told["before the last"] = await client.report(last_word(first, closes=False, ending=None))
    told["taken"] = await client.report(last_word(first, number=2))
    [second] = told["taken"][0]["commands"]
    told["late"] = await client.report(last_word(first, number=3))
    told["together"] = await client.report(last_word(first, number=3), last_word(second))
    [third] = told["together"][1]["commands"]
    system.draining.set()
    told["while draining"] = await client.report(last_word(third))
    assert await client.ask("/api/commands/lease", WISH) == (200, {"commands": []})
    system.draining.clear()
    _, leased = await client.ask("/api/commands/lease", WISH)
    [last] = leased["commands"]
    await system.orchestrator.cancel(started["execution_id"])
    told["cancelled"] = await client.report(last_word(last))
    events = await system.store.log.events(started["execution_id"])
    told["events"] = [(event.type, event.step) for event in events]
    told["status"] = (await system.orchestrator.state(started["execution_id"])).status
    return told


def neutral(told: Any) -> Any:
    """Without what is different in every execution: ids, tokens, moments."""
    text = re.sub(r'"[0-9a-z.-]{16,}"', '"id"', json.dumps(told))
    text = re.sub(r"(command|execution) [0-9a-z-]{8,}", r"\1 id", text)
    text = re.sub(r'"\d{4}-\d\d-\d\dT[^"]*"', '"moment"', text)
    return json.loads(re.sub(r"\b1\d{9}\.\d+", "0", text))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Services, Watched, int, str]]:
    """A server, its port, and the path of a playbook that it knows."""
    url = f"sqlite:///{folder}/plain.db"
    settings = msgspec.structs.replace(Settings.from_environment({}), database_url=url)
    async with wiring.embedded(settings, work=False, serves=True) as system:
        entry, _ = await system.catalog.register(chain(4))
        edge = Watched(system)
        connections = Connections(edge)
        server = await asyncio.get_running_loop().create_server(connections.made, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield system, edge, port, entry.path
        finally:
            server.close()
            await connections.drain(5)


async def told_both_ways(folder: Path) -> tuple[Any, Any, int]:
    async with served(folder) as (system, edge, port, path):
        async with Client(port, LONG) as client:
            by_long = await story(client, system, path)
        assert edge.short == 0
        async with Client(port, SHORT) as client:
            by_short = await story(client, system, path)
        return by_long, by_short, edge.short


def broken(*_: object) -> None:
    raise RuntimeError("something that nobody foresaw")


async def told_after_a_fault(folder: Path) -> tuple[bytes, Any]:
    """What comes after the answer that something broke behind, and what the next one is told."""
    async with served(folder) as (system, edge, port, path):
        async with Client(port, SHORT) as client:
            await client.report()  # The first with this head goes the long way.
            await client.ask("/api/execute", {"path": path})
            _, leased = await client.ask("/api/commands/lease", WISH)
            counted = system.metrics.answered
            system.metrics.answered = broken  # type: ignore[method-assign]
            [taken] = await client.report(last_word(leased["commands"][0]))
            assert edge.short == 1
            rest = await client.reader.read()
        system.metrics.answered = counted  # type: ignore[method-assign]
        async with Client(port, SHORT) as client:
            return rest, await client.report(last_word(taken["commands"][0]))


def test_the_short_way_answers_and_stores_what_the_long_way_does(tmp_path: Path):
    by_long, by_short, plain = asyncio.run(asyncio.wait_for(told_both_ways(tmp_path), PATIENCE))

    assert neutral(by_short) == neutral(by_long)
    assert by_short["status"] == "CANCELLED"
    assert [one["error"]["code"] for one in by_short["late"]] == ["lease_lost"]
    assert [set(one) for one in by_short["together"]] == [
        {"error"},
        {"accepted", "cancelled", "commands"},
    ]
    # Those that are plain: before the last, taken, late, together, while draining, cancelled.
    assert plain == 6


def test_whatever_breaks_while_one_is_answered_the_others_are_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rest, [after] = asyncio.run(asyncio.wait_for(told_after_a_fault(tmp_path), PATIENCE))

    assert rest == b""
    assert after["accepted"] is True
    assert "a report was not answered" in caplog.text
