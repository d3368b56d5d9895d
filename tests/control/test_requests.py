"""What one process asks of another: answered, or withdrawn with nothing done."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager

import pytest

from noetl.control.requests import STALE_SECONDS, Answer, Request, ask, serve
from noetl.errors import Finished

CANCEL = Request(action="cancel", execution_id="1", reason="enough")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "noetl.db.requests"


@asynccontextmanager
async def serving(folder, act):
    server = asyncio.create_task(serve(folder, act))
    try:
        yield
    finally:
        assert not server.done(), "the server broke down"
        server.cancel()


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_request_is_done_and_answered_within_a_second(folder):
    done: list[Request] = []

    async def act(request: Request) -> None:
        done.append(request)

    async def work() -> Answer | None:
        async with serving(folder, act):
            begun = time.monotonic()
            answer = await ask(folder, CANCEL, patience=5)
            assert time.monotonic() - begun < 1
            return answer

    assert asyncio.run(work()) == Answer(done=True)
    assert done == [CANCEL]
    assert names_in(folder) == []


def test_a_refusal_comes_back_with_its_reason(folder):
    async def act(request: Request) -> None:
        raise Finished("it has ended")

    async def work() -> Answer | None:
        async with serving(folder, act):
            return await ask(folder, CANCEL, patience=5)

    assert asyncio.run(work()) == Answer(done=False, message="it has ended", code="finished")


def test_what_nobody_takes_is_withdrawn_and_never_done(folder):
    done: list[Request] = []

    async def act(request: Request) -> None:
        done.append(request)

    async def work() -> None:
        assert await ask(folder, CANCEL, patience=0.2) is None
        async with serving(folder, act):
            await asyncio.sleep(0.5)

    asyncio.run(work())
    assert done == []
    assert names_in(folder) == []


def test_what_was_taken_is_waited_for(folder):
    async def act(request: Request) -> None:
        await asyncio.sleep(1)

    async def work() -> Answer | None:
        async with serving(folder, act):
            return await ask(folder, CANCEL, patience=0.7)

    assert asyncio.run(work()) == Answer(done=True)


def test_requests_that_were_left_behind_are_not_obeyed_later(folder):
    done: list[Request] = []
    folder.mkdir()
    for name in ("old.request", "old.answer", "dead.taken"):
        (folder / name).write_bytes(b'{"action": "cancel", "execution_id": "1"}')
        then = time.time() - STALE_SECONDS - 5
        os.utime(folder / name, (then, then))

    async def act(request: Request) -> None:
        done.append(request)

    async def work() -> None:
        async with serving(folder, act):
            await asyncio.sleep(0.5)

    asyncio.run(work())
    assert done == []
    assert names_in(folder) == []


@pytest.mark.parametrize("body", [b"", b"no json", b'{"action": "explode"}', b"\xff" * 100])
def test_nonsense_harms_nobody(folder, body):
    folder.mkdir()
    (folder / "x.request").write_bytes(body)

    async def act(request: Request) -> None:
        """Whatever it is."""

    async def work() -> Answer | None:
        async with serving(folder, act):
            return await ask(folder, CANCEL, patience=5)

    assert asyncio.run(work()) == Answer(done=True)


def test_the_folder_is_for_its_owner_only(folder):
    asyncio.run(ask(folder, CANCEL, patience=0.05))

    assert folder.stat().st_mode & 0o777 == 0o700


def test_many_ask_at_once_and_each_gets_its_own_answer(folder):
    async def act(request: Request) -> None:
        if request.execution_id == "3":
            raise Finished("three")

    async def work() -> list[Answer | None]:
        async with serving(folder, act):
            requests = [Request(action="pause", execution_id=str(number)) for number in range(20)]
            return await asyncio.gather(*(ask(folder, one, patience=5) for one in requests))

    answers = asyncio.run(work())
    assert [answer.done for answer in answers] == [number != 3 for number in range(20)]
