"""Services that tools talk to: real ones from packages, and small ones that speak a protocol."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
S3_PAGE = 20
"""How many objects the server of S3 lists in one answer."""
START_SECONDS = 60.0


@contextmanager
def answering(*routes: tuple[str, str, Handler]) -> Iterator[str]:
    """The address of a web server in a thread, with these routes: method, path, handler."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    address: list[str] = []

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        # Answers that are still being waited for, on purpose.
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(START_SECONDS)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_SECONDS)


@functools.cache
def _ports() -> Iterator[int]:
    first = 100 * (os.getpid() * 29 % 120)
    return itertools.islice(itertools.cycle(range(20_000, 32_000)), first, None)


def free_port() -> int:
    """A port on which nobody listens, and which nobody else is given before it is used: it is below
    those that the system chooses, and each process of a test run begins elsewhere."""
    for port in _ports():
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports of this machine are all taken")


@contextmanager
def program(
    words: list[str], ready: Callable[[], bool], settings: dict[str, str] | None = None
) -> Iterator[None]:
    """A server process that is ready, and gone afterwards."""
    process = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | (settings or {}),
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            assert process.poll() is None, f"{words[0]} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{words[0]} did not start"
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def nats_server(*options: str) -> Iterator[str]:
    """A NATS server with JetStream."""
    port = free_port()
    server = str(Path(sys.executable).parent / "nats-server")
    with tempfile.TemporaryDirectory(prefix="noetl-nats-") as folder:
        words = [server, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder, *options]
        with program(words, lambda: listens(port)):
            yield f"nats://127.0.0.1:{port}"


@contextmanager
def s3_server() -> Iterator[str]:
    """A server that speaks the protocol of S3, with one bucket, `trial`. It lists fewer objects in
    one answer than others do."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        try:
            urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5).close()
        except OSError:
            return False
        return True

    pages = {"MOTO_S3_DEFAULT_MAX_KEYS": str(S3_PAGE)}
    with program([sys.executable, "-m", "moto.server", "-p", str(port)], ready, pages):
        urllib.request.urlopen(urllib.request.Request(f"{url}/trial", method="PUT")).close()
        yield url


async def never(request: web.Request) -> web.StreamResponse:
    """Reads the question and does not answer."""
    await request.read()
    await asyncio.sleep(3600)
    return web.Response()


def refusing(status: int, body: Any = None, **headers: str) -> Handler:
    """Answers always so."""

    async def handler(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.json_response(body or {}, status=status, headers=headers)

    return handler
