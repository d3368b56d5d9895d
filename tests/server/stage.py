"""A server whose every byte is written by the test: each connection plays a part of its own."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.stopwatch import PATIENCE

SMALL = 64 * 1024
"""For the buffers of the kernel, so that what is long does not fit into them."""


class Caller:
    """The far end of one connection."""

    def __init__(self, sock: socket.socket, asked: list[bytes]) -> None:
        self._sock = sock
        self.asked = asked

    def hear(self) -> bytes | None:
        """The next request, and None if there is none any more."""
        said = b""
        while b"\r\n\r\n" not in said:
            piece = self._sock.recv(65536)
            if not piece:
                return None
            said += piece
        head, _, body = said.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        while len(body) < length:
            body += self._sock.recv(65536)
        self.asked.append(head + b"\r\n\r\n" + body)
        return self.asked[-1]

    def take(self) -> int:
        """Read a little of what they say; how much it was."""
        return len(self._sock.recv(65536))

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def reset(self) -> None:
        """Hang up so that the other side sees an error, not an end."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._sock.close()

    def has_hung_up(self) -> bool:
        """Waits until they have."""
        return self._sock.recv(1) == b""


Part = Callable[[Caller], None]


class Stage:
    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[bytes] = []
        """Requests as they came, on all connections."""
        self.connections = 0


def answer(body: bytes, status: str = "200 OK", more: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n".encode()
    return head + more + b"\r\n" + body


def echo(caller: Caller) -> None:
    """Answer every request with its number among all, for as long as they come."""
    while caller.hear() is not None:
        caller.say(answer(str(len(caller.asked)).encode()))


@contextmanager
def playing(
    *parts: Part, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[Stage]:
    """The n-th connection plays the n-th part; those after the last play the last one again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    place = f"[{host}]" if ":" in host else host
    scheme = "http" if tls is None else "https"
    stage = Stage(f"{scheme}://{place}:{listener.getsockname()[1]}")
    failures: list[BaseException] = []

    def play(sock: socket.socket, part: Part) -> None:
        try:
            sock.settimeout(PATIENCE)
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True)
            part(Caller(sock, stage.asked))
        except BaseException as error:  # noqa: BLE001  told where the test can see it
            # They may hang up on us, and need not trust us.
            if not isinstance(error, ssl.SSLError | ConnectionError):
                failures.append(error)
        finally:
            sock.close()

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # The test is over.
            part = parts[min(stage.connections, len(parts) - 1)]
            stage.connections += 1
            threading.Thread(target=play, args=(sock, part), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield stage
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)
    assert failures == []
