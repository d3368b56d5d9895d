"""How answers travel: at once, and each in one piece, whoever the client is."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from noetl.api.protocol import Protocol
from noetl.api.serving import listening
from tests.server.processes import SECONDS_MAX

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
    with socket.create_connection(("127.0.0.1", dev.port), timeout=SECONDS_MAX) as sock:
        for number in range(1, 4):
            head, said = answered(sock, request(method, path, body))
            assert json.loads(said), head
            assert pieces_received(sock) == number, head


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers in the ways that there are."""
    head: list[tuple[bytes, bytes]] = []
    if scope["path"] == "/sized":
        head = [(b"content-length", b"10")]
    status = 204 if scope["path"] == "/empty" else 200
    await send({"type": "http.response.start", "status": status, "headers": head})
    if scope["path"] == "/stream":
        await receive()  # The request's own end; what comes next is the end of the connection.
        await receive()
        return
    if scope["path"] == "/empty":
        await send({"type": "http.response.body"})
        return
    await send({"type": "http.response.body", "body": b"01234", "more_body": True})
    await send({"type": "http.response.body", "body": b"56789"})


def talked(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]) -> Any:
    """What a client makes of the app; and every connection of the server sends at once."""

    async def tell() -> Any:
        state = ServerState()
        config = uvicorn.Config(app, http=Protocol, log_config=None, lifespan="off", loop="none")
        with listening("127.0.0.1", 0) as listener:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(
                lambda: Protocol(config, state, {}), sock=listener, start_serving=True
            )
            try:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                async with asyncio.timeout(SECONDS_MAX):
                    found = await talk(reader, writer)
                for connection in state.connections:
                    sock = connection.transport.get_extra_info("socket")
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                writer.close()
                return found
            finally:
                server.close()

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
