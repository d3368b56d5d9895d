"""A proxy before a service that falls silent: it keeps connections and passes nothing on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.stopwatch import PATIENCE

BYTES_AT_ONCE = 64 * 1024


class Proxy:
    """Passes bytes between TCP clients and a Unix socket, or a port of this machine, in an event
    loop of its own.

    A connection that was open while the proxy was silent has lost bytes: it stays silent for good,
    like one whose other end has vanished. Connections made afterwards work.
    """

    def __init__(self, target: Path | int) -> None:
        self._target = target
        self._silences = 0
        self.is_silent = False
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    def go_silent(self) -> None:
        self._silences += 1
        self.is_silent = True

    def let_through(self) -> None:
        self.is_silent = False

    async def run(self, ready: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._ended.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        born = self._silences
        if isinstance(self._target, int):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        else:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        is_dead = self.is_silent
        self._writers += [writer, far_writer]

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(BYTES_AT_ONCE):
                    if not (is_dead or self._silences > born):
                        sink.write(data)
                        await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


@contextmanager
def proxy_to(target: Path | int) -> Iterator[Proxy]:
    proxy = Proxy(target)
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.run(ready)))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield proxy
    finally:
        proxy.end()
        thread.join()
