"""Streams on which nothing happens: readers hear now and then that they are still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from noetl import wiring
from noetl.api import stream, topics
from noetl.settings import Settings
from tests.server.test_routes import WAITING
from tests.stopwatch import PATIENCE


async def until_second_beat(frames: AsyncGenerator[bytes, None]) -> list[bytes]:
    """What comes until then."""
    found: list[bytes] = []
    async with aclosing(frames):
        async for frame in frames:
            found.append(frame)
            if found.count(stream.HEARTBEAT) == 2:
                return found
    raise AssertionError(f"the stream has ended after {found}")


async def heard(folder: Path) -> tuple[list[list[bytes]], list[bytes]]:
    """What three readers hear of an execution that waits, and a fourth until the server drains."""
    url = f"sqlite:///{folder}/beats.db"
    settings = msgspec.structs.replace(Settings.from_environment({}), database_url=url)
    async with wiring.embedded(settings) as system:
        _, compiled = await system.catalog.register(WAITING)
        execution_id = await system.executions.start(
            compiled.digest, compiled.unwrap().path, None, {}
        )
        with system.orchestrator.watchers.follow(execution_id) as tail:
            while not (await system.orchestrator.state(execution_id)).runs:
                await tail.signal.wait()
                tail.signal.clear()
        seq = (await system.orchestrator.state(execution_id)).seq
        at_end = await until_second_beat(system.streams.frames(execution_id, seq))
        assert at_end == [stream.HEARTBEAT, stream.HEARTBEAT]
        beating = [
            until_second_beat(system.streams.frames(execution_id, 0)),
            until_second_beat(system.streams.frames(execution_id, 0)),
            until_second_beat(system.topics.frames([f"execution:{execution_id}"], {})),
        ]
        beats = await asyncio.gather(*beating)
        last: list[bytes] = []
        async for frame in system.streams.frames(execution_id, 0):
            last.append(frame)
            system.draining.set()
        return beats, last


def test_readers_hear_that_they_are_still_there_and_leave_when_the_server_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(topics, "HEARTBEAT_SECONDS", 0.1)

    beats, last = asyncio.run(asyncio.wait_for(heard(tmp_path), PATIENCE))

    for one in beats:
        assert one[0].startswith(stream.RETRY)
        assert one[-1] == stream.HEARTBEAT
    assert last[0].startswith(stream.RETRY)
