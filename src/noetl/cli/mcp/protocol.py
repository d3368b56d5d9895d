"""The Model Context Protocol over stdio: one JSON-RPC message per line, both ways.

    client                                server
    initialize {protocolVersion} ───────▶ the same version, or the newest that has this handshake
    notifications/initialized ──────────▶
    tools/call {name, arguments} ───────▶ answers come in the order in which they are ready
    notifications/cancelled {requestId} ▶ that request gets no answer any more
    end of input ───────────────────────▶ requests under way have LAST_SECONDS to be answered

Since 2026-07-28 there is no handshake. Every request names its version in `_meta`, and
`server/discover` tells what `initialize` told. A client may use either.

A failure of a tool is a result with `isError`, which the assistant reads and can act on. Errors of
JSON-RPC are for clients: an unknown method or tool, a message that is none.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.cli.mcp.offers import Offers

STATELESS = "2026-07-28"
"""The version of the protocol without a handshake."""
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions with one, the newest first. What we use is the same in all of them."""
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"
SERVER_INFO = {"name": "noetl", "title": "NoETL", "version": __version__}
CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {}}
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, NO_RESOURCE, WRONG_VERSION = -32603, -32002, -32022
LINE_MAX = 16 * 1024 * 1024
PIECE = 64 * 1024
LINES_AHEAD = 8
"""How many lines are read before those ahead of them are understood."""
LAST_SECONDS = 10.0
"""How long requests under way may still take after the end of input."""

Message = dict[str, Any]
Answers = dict[str, Callable[[Message], Awaitable[Message]]]


class Refused(Exception):
    """The answer to a request is an error of JSON-RPC."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Session:
    """The requests of one client, and their answers."""

    def __init__(self, served: Offers, out: int) -> None:
        self._served = served
        self._out = out
        self._is_initialized = False
        self._running: dict[str | int, asyncio.Task[Message]] = {}
        self._of_handshake: Answers = {
            **served.answers,
            "initialize": self._initialize,
            "ping": self._ping,
        }
        self._of_stateless: Answers = {**served.answers, "server/discover": self._discover}

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Serve until the end of input."""
        sending: set[asyncio.Task[None]] = set()
        try:
            async for line in lines:
                # Tasks begin in their order, so messages take effect in the order of their lines.
                task = asyncio.create_task(self._send(self._heard(line)))
                sending.add(task)
                task.add_done_callback(sending.discard)
            if sending:
                await asyncio.wait(sending, timeout=LAST_SECONDS)
        finally:
            for running in self._running.values():
                running.cancel()
            await asyncio.gather(*sending)

    async def _send(self, answering: Awaitable[Message | list[Message] | None]) -> None:
        answer = await answering
        if answer is None:
            return
        rest = memoryview(msgspec.json.encode(answer) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._out, rest) :]
        except BrokenPipeError:
            return  # Nobody reads answers any more; the end of input follows.

    async def _heard(self, line: bytes) -> Message | list[Message] | None:
        """The answer to a line, if it asks for one."""
        if len(line) > LINE_MAX:
            return _error(None, INVALID_REQUEST, f"a message has at most {LINE_MAX} bytes")
        if not line.strip():
            return None
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _error(None, PARSE_ERROR, f"the line is not a JSON message: {error}")
        if not isinstance(message, list):
            return await self._answer(message)
        if not message:
            return _error(None, INVALID_REQUEST, "the batch is empty")
        # Version 2025-03-26 has batches.
        answers = await asyncio.gather(*(self._answer(one) for one in message))
        return [one for one in answers if one is not None] or None

    async def _answer(self, message: Any) -> Message | None:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _error(None, INVALID_REQUEST, 'a message is an object with "jsonrpc": "2.0"')
        method, params = message.get("method"), message.get("params", {})
        if "id" not in message:
            if method == "notifications/cancelled" and isinstance(params, dict):
                self._cancel(params.get("requestId"))
            return None
        if method is None and ("result" in message or "error" in message):
            return None  # An answer; we ask nothing.
        number = message["id"]
        if not _is_id(number):
            return _error(None, INVALID_REQUEST, "the id of a request is a text or a whole number")
        if not isinstance(method, str):
            return _error(number, INVALID_REQUEST, "a request names a method")
        if not isinstance(params, dict):
            return _error(number, INVALID_PARAMS, "params is an object")
        if number in self._running:
            return _error(number, INVALID_REQUEST, "another request with this id is under way")
        task = asyncio.create_task(self._result(number, method, params))
        self._running[number] = task
        try:
            [done], _ = await asyncio.wait([task])
            if done.cancelled():
                return None
            if (error := done.exception()) is None:
                answer: Message = done.result()
                return answer
            traceback.print_exception(error, file=sys.stderr)
            said = "internal error; the standard error of `noetl mcp` has more"
            return _error(number, INTERNAL_ERROR, said)
        finally:
            del self._running[number]

    def _cancel(self, number: Any) -> None:
        if _is_id(number) and (task := self._running.get(number)) is not None:
            task.cancel()

    async def _result(self, number: str | int, method: str, params: Message) -> Message:
        meta = params.get("_meta")
        is_stateless = isinstance(meta, dict) and VERSION_KEY in meta and method != "initialize"
        try:
            if is_stateless:
                assert isinstance(meta, dict)
                result = await self._stateless(method, params, meta)
            else:
                answer = _known(method, self._of_handshake)
                if not self._is_initialized and method not in ("initialize", "ping"):
                    raise Refused(INVALID_REQUEST, "the first request is initialize")
                result = await answer(params)
        except Refused as refused:
            code = refused.code
            if is_stateless and code == NO_RESOURCE:
                code = INVALID_PARAMS  # This version has no code of its own for it.
            return _error(number, code, str(refused), refused.data)
        return {"jsonrpc": "2.0", "id": number, "result": result}

    async def _stateless(self, method: str, params: Message, meta: Message) -> Message:
        version = meta[VERSION_KEY]
        if not isinstance(version, str) or not isinstance(meta.get(CAPABILITIES_KEY), dict):
            raise Refused(
                INVALID_PARAMS,
                f"_meta has {VERSION_KEY}, a text, and {CAPABILITIES_KEY}, an object",
            )
        if version != STATELESS:
            supported = {"supported": [STATELESS, *HANDSHAKE], "requested": version}
            raise Refused(WRONG_VERSION, f"requests without a handshake are {STATELESS}", supported)
        found = await _known(method, self._of_stateless)(params)
        # What is read changes at any time, and depends on the rights of the caller.
        freshness = {} if method == "tools/call" else {"ttlMs": 0, "cacheScope": "private"}
        return {**found, **freshness, "resultType": "complete", "_meta": {SERVER_KEY: SERVER_INFO}}

    # --- Methods ---

    async def _initialize(self, params: Message) -> Message:
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise Refused(INVALID_PARAMS, "initialize needs a protocolVersion")
        self._is_initialized = True
        return {
            "protocolVersion": asked if asked in HANDSHAKE else HANDSHAKE[0],
            "capabilities": CAPABILITIES,
            "serverInfo": SERVER_INFO,
            "instructions": self._served.instructions,
        }

    async def _discover(self, params: Message) -> Message:
        return {
            "supportedVersions": [STATELESS, *HANDSHAKE],
            "capabilities": CAPABILITIES,
            "instructions": self._served.instructions,
        }

    async def _ping(self, params: Message) -> Message:
        return {}


def _known(method: str, answers: Answers) -> Callable[[Message], Awaitable[Message]]:
    if method not in answers:
        raise Refused(NO_METHOD, f"there is no method {method}")
    return answers[method]


def _is_id(number: Any) -> bool:
    return isinstance(number, str | int) and not isinstance(number, bool)


def _error(number: str | int | None, code: int, message: str, data: Any = None) -> Message:
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": number, "error": error}


# --- Lines --------------------------------------------------------------------------------------


async def lines_of(descriptor: int) -> AsyncIterator[bytes]:
    """The lines of a file, pipe or terminal, to its end. One that is too long is cut."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue(LINES_AHEAD)

    def put(line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(waiting.put(line), loop).result()

    def read() -> None:
        try:
            for line in _lines(descriptor):
                put(line)
        finally:
            put(None)

    # A thread, because event loops cannot wait for files. It does not keep the process: nothing
    # would end its last read.
    threading.Thread(target=read, daemon=True).start()
    while (line := await waiting.get()) is not None:
        yield line


def _lines(descriptor: int) -> Iterator[bytes]:
    begun = bytearray()
    while piece := os.read(descriptor, PIECE):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield bytes(begun + end)
            begun.clear()
        begun += rest
        del begun[LINE_MAX + 1 :]
    if begun:
        yield bytes(begun)
