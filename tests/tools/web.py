"""A real web server in a thread, with an answer for everything the http tool must understand."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.stopwatch import PATIENCE


class Server:
    """Its address, and the requests it has seen."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[dict[str, Any]] = []
        self.tokens_given = 0
        self.good_tokens: set[str] = set()
        self.records: list[Any] = []
        """What /records and /pages hand out."""
        self.received: list[Any] = []
        """What was posted to /records."""

    async def echo(self, request: web.Request) -> web.Response:
        body = await request.read()
        told = {
            "method": request.method,
            "query": [[key, value] for key, value in request.query.items()],
            "headers": {key.lower(): value for key, value in request.headers.items()},
            "body": body.decode("utf-8", "replace"),
        }
        self.seen.append(told)
        return web.json_response(told)

    async def status(self, request: web.Request) -> web.Response:
        await request.read()
        headers = {"Retry-After": request.query["after"]} if "after" in request.query else {}
        return web.Response(
            status=int(request.match_info["code"]), text="no such luck", headers=headers
        )

    async def body(self, request: web.Request) -> web.Response:
        data = await request.json()
        return web.Response(body=bytes.fromhex(data["hex"]), headers={"Content-Type": data["type"]})

    async def redirect(self, request: web.Request) -> web.Response:
        await request.read()
        code = int(request.query.get("code", "302"))
        return web.Response(status=code, headers={"Location": request.query["to"]})

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        if form.get("client_secret") != "canary-secret":
            return web.json_response({"error": "invalid_client"}, status=401)
        self.tokens_given += 1
        token = f"token-{self.tokens_given}"
        self.good_tokens.add(token)
        return web.json_response({"access_token": token, "expires_in": 3600})

    async def private(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return web.json_response({"token": token}, status=200 if token in self.good_tokens else 401)

    async def slow(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"begin")
        await asyncio.sleep(30)
        return answer

    async def large(self, request: web.Request) -> web.Response:
        size = int(request.query["size"])
        return web.Response(body=b"x" * size, content_type="text/plain")

    async def broken(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def hand_out(self, request: web.Request) -> web.Response:
        return web.json_response(self.records)

    async def take_in(self, request: web.Request) -> web.Response:
        self.received += await request.json()
        return web.json_response({"taken": len(self.received)})

    async def pages(self, request: web.Request) -> web.Response:
        """By number of the page, or behind a record: `next` names it, `url` is the address."""
        self.seen.append({"query": [[key, value] for key, value in request.query.items()]})
        size = int(request.query["size"])
        start = int(request.query.get("after", 0))
        if "page" in request.query:
            start = (int(request.query["page"]) - 1) * size
        stop = start + size
        more = stop < len(self.records)
        return web.json_response(
            {
                "data": {"items": self.records[start:stop]},
                "more": more,
                "next": stop if more else None,
                "url": f"/pages?size={size}&after={stop}" if more else None,
            }
        )

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/echo", self.echo)
        app.router.add_route("*", "/status/{code}", self.status)
        app.router.add_post("/body", self.body)
        app.router.add_route("*", "/redirect", self.redirect)
        app.router.add_post("/token", self.token)
        app.router.add_get("/private", self.private)
        app.router.add_get("/slow", self.slow)
        app.router.add_get("/large", self.large)
        app.router.add_get("/records", self.hand_out)
        app.router.add_post("/records", self.take_in)
        app.router.add_get("/pages", self.pages)
        app.router.add_get("/broken", self.broken)
        return app


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server()
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert started.wait(PATIENCE)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
