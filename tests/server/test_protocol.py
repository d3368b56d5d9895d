"""How answers travel: at once, and each in one piece, whoever the client is."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from noetl.api.listener import listening
from noetl.api.protocol import Connections, Request, lines_of
from tests.stopwatch import PATIENCE

DATA_SEGMENTS_AT = 152
"""Where Linux has tcpi_data_segs_in in what it tells of a connection."""


def pieces_received(sock: socket.socket) -> int:
    """How many segments with data came in."""
    told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("=I", told, DATA_SEGMENTS_AT)[0])


def answered(sock: socket.socket, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer on a connection that stays open."""
    sock.sendall(request)
    said = b""
    while b"\r\n\r\n" not in said:
        said += sock.recv(65536)
    head, _, body = said.partition(b"\r\n\r\n")
    sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    size = int(sizes[0].split(b":")[1]) if sizes and not request.startswith(b"HEAD") else 0
    while len(body) < size:
        body += sock.recv(65536)
    return head, body


def request(method: str, path: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    if body:
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", b""),
        ("POST", "/api/catalog/list", b"{}"),
        ("POST", "/api/commands/renew", b'{"leases": []}'),
        ("GET", "/api/executions/1", b""),
    ],
)
def test_an_answer_is_one_piece(dev, method, path, body):
    with socket.create_connection(("127.0.0.1", dev.port), timeout=PATIENCE) as sock:
        for number in range(1, 4):
            head, said = answered(sock, request(method, path, body))
            assert json.loads(said), head
            assert pieces_received(sock) == number, head


async def app(request: Request) -> None:
    """Answers in the ways that there are, and says what it was sent."""
    if request.head.path == "/echo":
        request.answer(200, b"", await request.read(10_000_000))
    elif request.head.path == "/small":
        request.answer(200, b"", await request.read(5))
    elif request.head.path == "/refused":
        request.answer(401, b"", b"who are you?")
    elif request.head.path == "/empty":
        request.answer(204, b"", b"")
    elif request.head.path == "/stream":
        request.begin(200, b"", None)
        await request.gone()
    elif request.head.path == "/broken":
        raise RuntimeError("this was to be expected")
    else:
        request.begin(200, b"", 10 if request.head.path == "/sized" else None)
        for piece in (b"01234", b"56789") if request.head.path != "/short" else (b"0",):
            await request.send(piece)
        request.end()


def talked(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]) -> Any:
    """What a client makes of the app; and every connection of the server sends at once."""

    async def tell() -> Any:
        connections = Connections(app)
        with listening("127.0.0.1", 0) as listener:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(connections.made, sock=listener)
            try:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                async with asyncio.timeout(PATIENCE):
                    found = await talk(reader, writer)
                for connection in connections.open:
                    sock = connection.transport.get_extra_info("socket")
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                writer.close()
                return found
            finally:
                server.close()
                await connections.drain(PATIENCE)
                assert not connections.open

    return asyncio.run(tell())


def test_a_connection_sends_at_once_and_an_answer_in_parts_arrives_whole():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        said = b""
        for path in ("/sized", "/empty", "/sized"):
            writer.write(request("GET", path))
            said += await reader.readuntil(b"\r\n\r\n")
            if path == "/sized":
                said += await reader.readexactly(10)
        writer.write(request("HEAD", "/sized"))
        return said + await reader.readuntil(b"\r\n\r\n")

    said = talked(talk)
    assert said.count(b"0123456789") == 2
    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert said.count(b"HTTP/1.1 204") == 1


def test_the_head_of_a_stream_does_not_wait_for_its_first_event():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(request("GET", "/stream"))
        return await reader.readuntil(b"\r\n\r\n")

    assert talked(talk).startswith(b"HTTP/1.1 200 OK")


def said_to(*sent: bytes) -> bytes:
    """Everything that the server says until it hangs up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(0.02)  # a piece of its own on the network
        return await reader.read()

    return bytes(talked(talk))


CLOSE = b"GET /empty HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def test_requests_that_come_together_are_answered_in_their_order():
    said = said_to(request("GET", "/sized") + request("POST", "/echo", b"{1}") + CLOSE)

    assert said.index(b"0123456789") < said.index(b"{1}") < said.index(b"HTTP/1.1 204")
    assert said.count(b"HTTP/1.1 ") == 3


@pytest.mark.parametrize(
    "broken",
    [
        b"BROKEN\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_what_cannot_be_read_takes_no_answer_from_the_requests_before_it(broken: bytes):
    said = said_to(request("GET", "/sized") + request("POST", "/echo", b"{1}") + broken)

    assert said.index(b"0123456789") < said.index(b"{1}")
    assert said.count(b"HTTP/1.1 200") == said.count(b"HTTP/1.1 ") == 2
    assert said.count(b"connection: close") == 1


def test_a_request_whose_own_body_breaks_off_while_it_is_answered_ends_the_connection():
    chunked = b"POST /stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(chunked)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"xyz\r\n")
        return await reader.read()

    assert talked(talk) == b""


def test_many_requests_that_come_together_wait_with_the_client():
    """What is not read yet costs the server nothing, and every one of them is answered."""
    count = 20_000

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(request("GET", "/empty") * count + CLOSE)
        await asyncio.sleep(0.5)  # the server has read what it wants to
        return await reader.read()

    assert talked(talk).count(b"HTTP/1.1 204") == count + 1


def test_a_body_may_come_in_pieces_and_after_it_was_asked_for():
    body = b"x" * 300_000
    head = request("POST", "/echo", b"")[:-4].replace(b"Length: 0", b"Length: 300000")
    assert said_to(head, b"\r\n\r\n", body[:100], body[100:], CLOSE).count(body) == 1

    said = said_to(head + b"\r\nExpect: 100-continue\r\n\r\n", body, CLOSE)
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert said.count(body) == 1


@pytest.mark.parametrize(("body", "is_read"), [(b"01234", True), (b"012345", False)])
def test_a_body_whose_length_is_not_told_is_as_limited_as_any(body: bytes, is_read: bool):
    head = b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n\r\n"
    said = said_to(head + b"Connection: close\r\n\r\n", chunks)

    assert said.endswith(b"\r\n\r\n01234") is is_read
    assert bool(said) is is_read


def test_whoever_was_not_asked_for_a_body_is_not_believed_to_send_it():
    head = b"POST /refused HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    said = said_to(head, request("GET", "/sized"))

    assert said.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in said
    assert b"0123456789" not in said


def test_an_answer_that_comes_before_the_body_is_read_by_whoever_still_sends():
    head = b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n"
    assert said_to(head + b"Connection: close\r\n\r\n", b"x" * 900_000).endswith(b"who are you?")
    assert said_to(head + b"\r\n" + b"x" * 900_000, CLOSE).count(b"HTTP/1.1 ") == 2


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"


def test_whoever_offers_another_protocol_is_answered_in_this_one():
    """As Java's own client does with every first request of a connection."""
    smuggled = request("GET", "/sized")
    head = b"POST /echo HTTP/1.1\r\nHost: a\r\n" + UPGRADE
    length = b"Content-Length: %d\r\n\r\n" % len(smuggled)
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    for sent in (
        (head + length + smuggled, CLOSE),
        (head + length, smuggled, CLOSE),
        (head + chunks % (len(smuggled), smuggled) + CLOSE,),
    ):
        said = said_to(*sent)
        assert said.count(smuggled) == 1, "the body is a body"
        assert b"0123456789" not in said
        assert said.count(b"HTTP/1.1 2") == 2
    many = b"GET /empty HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"\r\n"
    assert said_to(many * 2_000 + CLOSE).count(b"HTTP/1.1 204") == 2_001


def test_an_answer_that_breaks_off_ends_its_connection():
    assert said_to(request("GET", "/broken")) == b""
    said = said_to(request("GET", "/short"), CLOSE)
    assert said.count(b"HTTP/1.1 ") == 2, "a stream may end when it likes"


def test_what_is_being_answered_is_answered_before_the_end():
    async def talk() -> tuple[bytes, bytes]:
        go_on = asyncio.Event()

        async def slow(request: Request) -> None:
            if request.head.path == "/slow":
                await go_on.wait()
            request.answer(200, b"", b"here")

        connections = Connections(slow)
        with listening("127.0.0.1", 0) as listener:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(connections.made, sock=listener)
            first, idle = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
            for (reader, writer), path in ((idle, "/"), (first, "/"), (first, "/slow")):
                writer.write(request("GET", path))
                if path == "/":
                    await reader.readuntil(b"here")
            while len(connections.tasks) < 1:
                await asyncio.sleep(0.01)
            server.close()
            draining = asyncio.ensure_future(connections.drain(PATIENCE))
            nothing = await idle[0].read()
            assert not draining.done()
            go_on.set()
            await draining
            said = await first[0].read()
            for _, writer in (first, idle):
                writer.close()
            return nothing, said

    nothing, said = asyncio.run(talk())

    assert nothing == b""
    assert b"connection: close" in said
    assert said.endswith(b"here")


def test_clients_of_long_ago_are_told_the_end_of_a_stream_by_the_end_of_the_connection():
    said = said_to(b"GET /chunked HTTP/1.0\r\n\r\n")

    assert b"transfer-encoding" not in said
    assert said.endswith(b"\r\n\r\n0123456789")


def test_a_line_break_in_a_header_is_never_sent():
    async def split(request: Request) -> None:
        request.answer(200, lines_of(((b"x-a", b"b\r\nset-cookie: c=d"),)), b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "app", split)
        assert said_to(request("GET", "/")) == b""


# --- Heads that are known by their bytes ---


TURNS = 20
"""Of the loop, in which requests that are all there are answered."""


def understood(pieces: list[bytes], *, knows: bool = True) -> tuple[list[Any], int]:
    """What the server understands of what arrives on one connection in these pieces, and how many
    heads it knows in the end. All that a piece completes is answered before the next one comes."""
    seen: list[Any] = []

    async def tell() -> int:
        async def look(request: Request) -> None:
            body, head = await request.read(10_000_000), request.head
            keeps = request.keeps_alive
            seen.append((head.method, head.path, head.query, head.headers, keeps, body))
            request.answer(200, b"", b"")

        connections = Connections(look)
        if not knows:
            connections.keep_head = lambda written, head: None  # type: ignore[method-assign]
        with listening("127.0.0.1", 0) as listener:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(connections.made, sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            async with asyncio.timeout(PATIENCE):
                while not connections.open:
                    await asyncio.sleep(0)
                [connection] = connections.open
                for piece in pieces:
                    connection.data_received(piece)
                    for _ in range(TURNS):
                        await asyncio.sleep(0)
            writer.close()
            server.close()
            await connections.drain(PATIENCE)
        return len(connections.heads)

    kept = asyncio.run(tell())
    return seen, kept


LONG, ALIKE = request("POST", "/a?b=c", b"x" * 700), request("POST", "/a?b=c", b"y" * 700)
OTHER = request("GET", "/a%20b").replace(b"Host", b"X-Twice: 1\r\nX-Twice: 2\r\nHost")
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
)


def test_a_head_that_is_known_means_what_it_meant_when_it_was_parsed():
    pieces = [LONG, ALIKE, OTHER, CHUNKED, OTHER, LONG + OTHER, ALIKE, CHUNKED, OTHER + LONG, LONG]

    known, kept = understood(pieces)
    parsed, none = understood(pieces, knows=False)

    assert known == parsed
    assert len(known) == 12
    assert (kept, none) == (2, 0)


@pytest.mark.parametrize("cut", [3, 40, LONG.index(b"\r\n\r\n") + 4, len(LONG) - 1])
def test_a_known_head_that_comes_in_pieces_is_one_request(cut: int):
    known, _ = understood([LONG, LONG[:cut], LONG[cut:] + OTHER, OTHER])
    parsed, _ = understood([LONG, LONG, OTHER, OTHER], knows=False)

    assert known == parsed
