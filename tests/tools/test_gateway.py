"""The way out for libraries that connect by themselves: every connection is judged."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, web

from noetl.tools.egress import EgressPolicy, Gateway
from tests.stopwatch import PATIENCE
from tests.tools.running import failure, ran
from tests.tools.services import answering

METADATA = "http://169.254.169.254/latest/meta-data"


def through(work: Any, policy: EgressPolicy | None = None) -> Any:
    """Do the work with the address of a gateway."""

    async def all_of_it() -> Any:
        gateway = Gateway(policy or EgressPolicy())
        try:
            async with asyncio.timeout(PATIENCE):
                return await work(await gateway.url())
        finally:
            await gateway.close()

    return asyncio.run(all_of_it())


async def echo(request: web.Request) -> web.StreamResponse:
    return web.Response(body=await request.read(), headers={"X-Path": request.path_qs})


def test_questions_and_answers_of_any_size_go_through():
    body = bytes(range(256)) * 8192

    async def work(proxy: str) -> list[Any]:
        async with ClientSession() as session:
            answers = []
            for path in ("/a?b=c", "/d"):
                async with session.post(url + path, data=BytesIO(body), proxy=proxy) as answer:
                    answers.append((answer.headers["X-Path"], await answer.read()))
            return answers

    with answering(("POST", "/{rest:.*}", echo)) as url:
        assert through(work) == [("/a?b=c", body), ("/d", body)]


@pytest.mark.parametrize(
    "address", [METADATA, "http://[::ffff:169.254.169.254]/", "http://127.0.0.1:1/"]
)
def test_s09_an_address_that_is_not_allowed_gets_no_connection(address):
    async def work(proxy: str) -> int:
        async with ClientSession() as session, session.get(address, proxy=proxy) as answer:
            return answer.status

    assert through(work, EgressPolicy(private=False)) == 403


def test_s09_a_tunnel_is_judged_as_well():
    async def work(proxy: str) -> bytes:
        host, port = proxy.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"CONNECT 169.254.169.254:443 HTTP/1.1\r\n\r\n")
        answer = await reader.readline()
        writer.close()
        return answer

    assert through(work).startswith(b"HTTP/1.1 403 ")


def test_a_tunnel_carries_bytes_both_ways():
    async def work(proxy: str) -> bytes:
        host, port = proxy.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"CONNECT {url.removeprefix('http://')} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n")
        writer.write(b"Connection: close\r\n\r\nhi")
        answer = await reader.read()
        writer.close()
        return answer

    with answering(("POST", "/{rest:.*}", echo)) as url:
        assert through(work).endswith(b"\r\n\r\nhi")


@pytest.mark.parametrize("question", [b"nonsense", b"GET", b"GET /no-host HTTP/1.1", b""])
def test_what_is_no_question_is_refused(question):
    async def work(proxy: str) -> bytes:
        host, port = proxy.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(question + b"\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    assert through(work).startswith(b"HTTP/1.1 400 ")


def test_what_cannot_be_reached_is_a_broken_connection():
    async def work(proxy: str) -> None:
        async with ClientSession() as session:
            with pytest.raises(ClientError):
                await session.get("http://127.0.0.1:1/", proxy=proxy)

    through(work)


def test_s09_a_store_cannot_send_its_reader_to_a_metadata_service():
    async def away(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": METADATA})

    fields = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    with answering(("*", "/{rest:.*}", away)) as url:
        config = {"op": "get", "url": "s3://trial", "key": "x", "auth": {**fields, "endpoint": url}}
        kind, _ = failure(ran("store", config))

    assert kind == "auth"
