"""Our own HTTP against servers that behave, and servers that do not."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from noetl.api import connection as module
from noetl.api.client import Client
from noetl.api.connection import Answer, Connection, Connections
from noetl.api.routes.executions import CANCEL, RESUME, START, Cancel, Resume, StartExecution
from noetl.errors import NoetlError, Unreachable
from tests.server.stage import SMALL, Caller, Part, answer, echo, playing
from tests.stopwatch import PATIENCE
from tests.tools.services import free_port
from tests.tools.test_http_tls import Authority

T = TypeVar("T")


def told(url: str, story: Callable[[Connections], Awaitable[T]], *, repeats: bool = False) -> T:
    async def tell() -> T:
        connections = Connections(url, "secret", repeats=repeats)
        try:
            async with asyncio.timeout(PATIENCE):
                return await story(connections)
        finally:
            connections.close()

    return asyncio.run(tell())


def saying(*pieces: bytes) -> Part:
    """Answer the first request with these bytes, and hang up."""

    def play(caller: Caller) -> None:
        caller.hear()
        for piece in pieces:
            caller.say(piece)

    return play


async def get(connections: Connections) -> Answer:
    return await connections.ask("GET", "/")


async def post_twice(connections: Connections) -> list[Answer]:
    return [await connections.ask("POST", "/", b"{}"), await connections.ask("POST", "/", b"{}")]


# --- What is said ---


def test_questions_follow_each_other_on_one_connection():
    with playing(echo) as stage:
        found = told(stage.url + "/below/", post_twice)

        assert [one.body for one in found] == [b"1", b"2"]
        assert stage.connections == 1
        head, _, body = stage.asked[1].partition(b"\r\n\r\n")
        assert body == b"{}"
        assert head.split(b"\r\n")[0] == b"POST /below/ HTTP/1.1"
        assert b"Host: " + stage.url.removeprefix("http://").encode() in head.split(b"\r\n")
        assert b"Authorization: Bearer secret" in head.split(b"\r\n")


def test_a_question_that_waits_for_long_holds_up_no_other():
    others_are_done = threading.Event()

    def slow(caller: Caller) -> None:
        caller.hear()
        assert others_are_done.wait(PATIENCE)
        caller.say(answer(b"late"))

    async def story(connections: Connections) -> list[bytes]:
        late = asyncio.create_task(get(connections))
        while not stage.asked:
            await asyncio.sleep(0.01)
        quick = [(await get(connections)).body for _ in range(3)]
        others_are_done.set()
        return [*quick, (await late).body]

    with playing(slow, echo) as stage:
        assert told(stage.url, story) == [b"2", b"3", b"4", b"late"]
        assert stage.connections == 2


def test_a_password_in_the_address_is_shown_and_a_line_break_in_a_header_is_not_sent():
    async def story() -> None:
        connections = Connections(stage.url.replace("//", "//me:p%40ss@"))
        await get(connections)
        with pytest.raises(ValueError, match="line break in one of the headers Key"):
            await connections.ask("GET", "/", headers={"Key": "a\r\nHost: elsewhere"})
        connections.close()

    with playing(echo) as stage:
        asyncio.run(asyncio.wait_for(story(), PATIENCE))

    assert len(stage.asked) == 1
    assert b"Authorization: Basic bWU6cEBzcw==" in stage.asked[0]
    assert b"p%40ss" not in stage.asked[0]


def test_servers_are_reached_over_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with playing(echo, host="::1") as stage:
        assert told(stage.url, get).body == b"1"
        assert b"Host: [::1]:" in stage.asked[0]


# --- What is heard ---

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FORMS = {
    "length": (answer(b"hello"), 200, b"hello"),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200, b"hello"),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nSum: 1\r\n\r\n", 200, b"hello"),
    "go on": (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"hello"), 200, b"hello"),
    "hints": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + answer(b"a"), 200, b"a"),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nhello", 200, b"hello"),
    "old": (b"HTTP/1.0 200 OK\r\n\r\nhello", 200, b"hello"),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "refused": (answer(b"no", "409 Conflict"), 409, b"no"),
    "large": (answer(b"x" * 1_000_000), 200, b"x" * 1_000_000),
}


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_understood_in_every_form(form: str):
    written, status, body = FORMS[form]
    with playing(saying(written)) as stage:
        found = told(stage.url, get)

    assert (found.status, found.body) == (status, body)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "large"])
def test_answers_may_come_a_byte_at_a_time(form: str):
    written, status, body = FORMS[form]
    with playing(saying(*(bytes([one]) for one in written))) as stage:
        found = told(stage.url, get)

    assert (found.status, found.body) == (status, body)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed the connection"),
        (answer(b"hello")[:-1], "closed the connection"),
        (CHUNKED + b"5\r\nhello\r\n", "closed the connection"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP"),
        (CHUNKED + b"five\r\nhello\r\n", "not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n?", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "head is over 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, "head is over 65536 bytes"),
    ],
)
def test_half_an_answer_is_none_and_the_next_question_has_another_connection(
    written: bytes, why: str
):
    async def story(connections: Connections) -> Answer:
        with pytest.raises(ConnectionError, match=why):
            await get(connections)
        return await get(connections)

    with playing(saying(written), echo) as stage:
        assert told(stage.url, story).body == b"2"
        assert stage.connections == 2


@pytest.mark.parametrize(
    "written",
    [
        answer(b"1", more=b"Connection: close\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n1",
        answer(b"1") + answer(b"nobody asked"),
        answer(b"1") + b"HTTP/1.1 2",
        answer(b"1") + b"rubbish",
    ],
)
def test_a_connection_that_is_not_clean_is_not_used_again(written: bytes):
    def play(caller: Caller) -> None:
        caller.hear()
        caller.say(written)
        assert caller.has_hung_up()

    with playing(play, echo) as stage:
        assert [one.body for one in told(stage.url, post_twice)] == [b"1", b"2"]
        assert stage.connections == 2


# --- Connections that break ---


def hangs_up_on_the_second(caller: Caller) -> None:
    caller.hear()
    caller.say(answer(b"first"))
    caller.hear()


def resets_the_second(caller: Caller) -> None:
    hangs_up_on_the_second(caller)
    caller.reset()


@pytest.mark.parametrize("part", [hangs_up_on_the_second, resets_the_second])
def test_a_kept_connection_that_breaks_is_replaced_if_the_question_may_be_asked_twice(part: Part):
    async def get_twice(connections: Connections) -> list[Answer]:
        return [await get(connections), await get(connections)]

    with playing(part, echo) as stage:
        assert [one.body for one in told(stage.url, get_twice)] == [b"first", b"3"]
    with playing(part, echo) as stage:
        assert [one.body for one in told(stage.url, post_twice, repeats=True)] == [b"first", b"3"]
    with playing(part, echo) as stage:
        with pytest.raises(ConnectionError):
            told(stage.url, post_twice)
        assert len(stage.asked) == 2


def test_no_question_is_asked_twice_once_its_answer_has_begun():
    def play(caller: Caller) -> None:
        hangs_up_on_the_second(caller)
        caller.say(b"H")

    with playing(play, echo) as stage:
        with pytest.raises(ConnectionError):
            told(stage.url, post_twice, repeats=True)
        assert len(stage.asked) == 2


def test_a_connection_that_was_not_used_for_long_is_not_trusted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "KEEP_SECONDS", 0.0)
    with playing(echo) as stage:
        assert [one.body for one in told(stage.url, post_twice)] == [b"1", b"2"]
        assert stage.connections == 2


def test_whoever_gives_up_waiting_takes_the_connection_along():
    gone = threading.Event()

    def play(caller: Caller) -> None:
        caller.hear()
        assert caller.has_hung_up()
        gone.set()

    async def story(connections: Connections) -> Answer:
        waiting = asyncio.create_task(get(connections))
        while not stage.asked:
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await asyncio.to_thread(gone.wait, PATIENCE)
        return await get(connections)

    with playing(play, echo) as stage:
        assert told(stage.url, story).body == b"2"


def test_at_the_end_whoever_waits_is_told_and_nobody_connects_any_more():
    def play(caller: Caller) -> None:
        caller.hear()
        caller.has_hung_up()

    async def story(connections: Connections) -> None:
        waiting = asyncio.create_task(get(connections))
        while not stage.asked:
            await asyncio.sleep(0.01)
        connections.close()
        with pytest.raises(ConnectionError):
            await waiting
        with pytest.raises(ConnectionError, match="closed by us"):
            await get(connections)

    with playing(play) as stage:
        told(stage.url, story)


# --- Silence ---


class Hurrying(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return time.monotonic() + self.ahead


def asked_in_a_hurry(story: Callable[[Hurrying, Connection], Awaitable[T]], url: str) -> T:
    async def tell() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Hurrying)
        host, _, port = url.removeprefix("http://").partition(":")
        sock = socket.create_connection((host, int(port)))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        _, connection = await loop.create_connection(lambda: Connection(lambda _: None), sock=sock)
        try:
            return await story(loop, connection)
        finally:
            connection.close()

    with asyncio.Runner(loop_factory=Hurrying) as runner:
        return runner.run(tell())


def test_a_server_that_says_nothing_is_given_up():
    async def story(loop: Hurrying, connection: Connection) -> str:
        asking = asyncio.create_task(connection.ask(b"GET / HTTP/1.1\r\n\r\n"))
        while not stage.asked:
            await asyncio.sleep(0.01)
        loop.ahead += module.ANSWER_SECONDS
        with pytest.raises(TimeoutError) as caught:
            await asking
        assert not connection.is_usable()
        return str(caught.value)

    with playing(lambda caller: caller.hear() and caller.has_hung_up()) as stage:
        assert asked_in_a_hurry(story, stage.url) == "no answer within 60 s"


def test_an_answer_may_take_its_time_as_long_as_it_goes_on():
    more = threading.Semaphore(0)

    def play(caller: Caller) -> None:
        caller.hear()
        for one in answer(b"hello"):
            assert more.acquire(timeout=PATIENCE)
            caller.say(bytes([one]))

    async def story(loop: Hurrying, connection: Connection) -> Answer:
        asking = asyncio.create_task(connection.ask(b"GET / HTTP/1.1\r\n\r\n"))
        await asyncio.sleep(0)
        while not asking.done():
            before = connection.last_heard
            more.release()
            while connection.last_heard == before and not asking.done():
                await asyncio.sleep(0.001)
            loop.ahead += module.ANSWER_SECONDS / 2
        return await asking

    with playing(play) as stage:
        assert asked_in_a_hurry(story, stage.url).body == b"hello"


def test_a_question_may_take_its_time_as_long_as_it_is_taken():
    size = 2_000_000  # More than the kernel takes at once, in buffers this small.
    more = threading.Semaphore(0)

    def play(caller: Caller) -> None:
        taken = 0
        while taken < size:
            assert more.acquire(timeout=PATIENCE)
            taken += caller.take()
        caller.say(answer(b"thanks"))

    async def story(loop: Hurrying, connection: Connection) -> Answer:
        asking = asyncio.create_task(connection.ask(b"x" * size))
        await asyncio.sleep(0)
        while left := connection.unsent():
            while connection.unsent() == left:
                more.release()
                await asyncio.sleep(0.001)
            loop.ahead += module.ANSWER_SECONDS / 3
        assert loop.ahead > 2 * module.ANSWER_SECONDS
        more.release(size)
        return await asking

    with playing(play) as stage:
        assert asked_in_a_hurry(story, stage.url).body == b"thanks"


# --- What people are told ---


async def refusal(*urls: str) -> str:
    async with Client(urls) as client:
        with pytest.raises(NoetlError) as caught:
            await client.get("/api/x")
    return str(caught.value)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.0.0.1", "connection refused"),
        ("localhost", "connection refused"),
        ("a..b", "a..b is not the name of a host"),
    ],
)
def test_nobody_there_is_said_in_a_few_words(host: str, why: str):
    url = f"http://{host}:{free_port()}"
    said = asyncio.run(refusal(url))

    assert said.startswith(f"no server answers at {url} ({why}")


def test_of_several_servers_each_is_named_with_its_reason():
    nobody = f"http://127.0.0.1:{free_port()}"
    with playing(saying(b"")) as stage:
        said = asyncio.run(refusal(nobody, stage.url))

    assert said.startswith(
        f"no server answers at {nobody} (connection refused),"
        f" {stage.url} (the server closed the connection)."
    )


def test_a_server_that_hangs_up_is_named_with_the_reason():
    with playing(saying(b"")) as stage:
        said = asyncio.run(refusal(stage.url))

    assert f"no server answers at {stage.url} (the server closed the connection)" in said


STARTED = b'{"execution_id": "4711", "status": "RUNNING", "path": "tests/x", "version": 1}'


def test_a_start_that_a_lost_server_may_have_made_is_sent_to_another_under_the_same_key():
    async def start(*urls: str) -> str:
        async with Client(urls) as client:
            return (await client.call(START, body=StartExecution(path="tests/x"))).execution_id

    with playing(saying(b"")) as lost, playing(saying(answer(STARTED))) as there:
        assert asyncio.run(start(lost.url, there.url)) == "4711"

        [key] = {key_of(one) for one in (*lost.asked, *there.asked)}
        assert key is not None


def test_a_cancellation_is_sent_to_another_server_under_the_same_key():
    async def cancel(*urls: str) -> int:
        async with Client(urls) as client:
            return (await client.call(CANCEL, execution_id="4711", body=Cancel())).cancelled

    done = STARTED.replace(b"{", b'{"cancelled": 1, ')
    with playing(saying(b"")) as lost, playing(saying(answer(done))) as there:
        assert asyncio.run(cancel(lost.url, there.url)) == 1

        [key] = {key_of(one) for one in (*lost.asked, *there.asked)}
        assert key is not None


def test_what_a_lost_server_may_have_done_is_not_asked_of_another():
    async def resume(*urls: str) -> None:
        async with Client(urls) as client:
            await client.call(RESUME, execution_id="4711", body=Resume())

    with playing(saying(b"")) as lost, playing(saying(answer(STARTED))) as there:
        with pytest.raises(Unreachable):
            asyncio.run(resume(lost.url, there.url))

        assert (len(lost.asked), there.asked) == (1, [])


def key_of(request: bytes) -> bytes | None:
    found = [one for one in request.split(b"\r\n") if one.startswith(b"Idempotency-Key: ")]
    return found[0] if found else None


def test_we_go_where_we_were_told_to_and_nowhere_else():
    elsewhere = answer(b"", "308 Permanent Redirect", b"Location: https://elsewhere/api/x\r\n")
    with playing(saying(elsewhere)) as stage:
        said = asyncio.run(refusal(stage.url))

    assert said.startswith(f"{stage.url} redirects to https://elsewhere/api/x (308)")
    assert len(stage.asked) == 1


def test_a_certificate_is_looked_at(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    authority = Authority(tmp_path_factory.mktemp("pem"))
    authority.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.place / "server.pem", authority.place / "server.key")
    with playing(echo, tls=context) as stage:
        said = asyncio.run(refusal(stage.url))
        assert "certificate verify failed" in said
        assert "name its file in SSL_CERT_FILE" in said

        monkeypatch.setenv("SSL_CERT_FILE", str(authority.place / "ca.pem"))
        assert [one.body for one in told(stage.url, post_twice)] == [b"1", b"2"]
        assert stage.connections == 2


def test_a_server_without_tls_is_not_taken_for_one_with():
    with playing(lambda caller: caller.say(answer(b"", "400 Bad Request"))) as stage:
        said = asyncio.run(refusal(stage.url.replace("http:", "https:")))

    assert "no server answers" in said
    assert "SSL" in said


def test_of_two_servers_the_one_that_answers_is_asked():
    async def story() -> tuple[str, str]:
        async with Client([bad.url, good.url]) as client:
            found = await client.get("/api/x")
            return found, client.url

    with playing(saying(b"")) as bad, playing(saying(answer(b'"yes"'))) as good:
        assert asyncio.run(story()) == ("yes", good.url)


def test_a_password_in_the_url_is_not_said():
    said = asyncio.run(refusal(f"http://ada:canary@127.0.0.1:{free_port()}"))

    assert "no server answers at http://ada:" in said
    assert "canary" not in said
