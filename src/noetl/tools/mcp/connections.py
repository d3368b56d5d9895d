"""Connections to Model Context Protocol servers: over HTTP, or over the pipes of a child
process.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import msgspec

from noetl.model.outcome import ErrorKind
from noetl.model.secrets import without_values
from noetl.tools.base import ToolContext
from noetl.tools.credentials import bearer, fields_of
from noetl.tools.failures import Failed
from noetl.tools.mcp import Mcp
from noetl.tools.plain_data import read_json
from noetl.tools.processes.commands import Output, environment, heard, started
from noetl.tools.processes.programs import Program
from noetl.tools.processes.tree import ending
from noetl.tools.web.service import Answer, ask

KINDS: dict[int, ErrorKind] = {
    -32700: "parse",
    -32600: "parse",
    -32601: "not_found",
    -32602: "client_error",
    -32603: "server_error",
    -32002: "not_found",
}
"""The meaning of the error codes of JSON-RPC and of the protocol."""
_UNKNOWN = re.compile(
    r"(tool|prompt)\b.*\bnot found|(unknown|no such) (tool|prompt)", re.IGNORECASE
)


class Connection(Protocol):
    """Sends requests to a server and returns its answers."""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The `result` of the answer; raises Failed."""

    async def tell(self, method: str) -> None:
        """Send a notification."""

    async def close(self) -> None:
        """Close the connection; when this returns, nothing of the server runs."""


def result_of(answer: Any) -> dict[str, Any]:
    """The `result` of a JSON-RPC answer. Raises Failed for an error and for anything else."""
    if isinstance(answer, dict):
        if isinstance(answer.get("result"), dict):
            return dict(answer["result"])
        if isinstance(answer.get("error"), dict):
            raise _refused(answer["error"])
    raise Failed("parse", "The server's answer is not in the protocol.")


def _refused(error: dict[str, Any]) -> Failed:
    code = error.get("code")
    code = code if isinstance(code, int) else None
    kind = KINDS.get(code or 0, "exception")
    said = str(error.get("message") or "it did not say why")
    # The protocol has no code of its own for an unknown tool or prompt.
    if kind == "client_error" and _UNKNOWN.search(said):
        kind = "not_found"
    return Failed(kind, f"The server refused: {said}", code=code)


# --- Over HTTP: each message is a request of its own -------------------------------------------

SESSION = "mcp-session-id"
GOODBYE_SECONDS = 0.5


class HttpConnection(msgspec.Struct):
    """The protocol's "streamable HTTP": an answer comes as JSON or among server-sent events."""

    url: str
    context: ToolContext
    headers: dict[str, str]
    session: str | None = None
    number: int = 0

    __repr__ = without_values

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        answer = await self._send(message)
        result = result_of(_message(answer, self.number))
        if method == "initialize":
            self.session = answer.headers.get(SESSION)
            self.headers["MCP-Protocol-Version"] = str(result.get("protocolVersion", ""))
        return result

    async def tell(self, method: str) -> None:
        await self._send({"jsonrpc": "2.0", "method": method})

    async def close(self) -> None:
        if self.session is None:
            return
        # A server need not support ending sessions, which expire. The task does not wait for one
        # that does not answer.
        with suppress(Failed, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await ask(self.context, "DELETE", self.url, headers=self._sent(), decode="text")

    async def _send(self, message: dict[str, Any]) -> Answer:
        return await ask(
            self.context, "POST", self.url, json=message, headers=self._sent(), decode="text"
        )

    def _sent(self) -> dict[str, str]:
        own = {"Accept": "application/json, text/event-stream"}
        if self.session is not None:
            own["Mcp-Session-Id"] = self.session
        return own | self.headers


def _message(answer: Answer, number: int) -> Any:
    """The message that answers this request, from JSON or from a stream of events."""
    text = answer.data or ""
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    bodies = _events(text) if is_stream else [text]
    for body in bodies:
        try:
            found = read_json(body)
        except msgspec.DecodeError:
            continue
        for message in found if isinstance(found, list) else [found]:
            if isinstance(message, dict) and _answers(message, number):
                return message
    raise Failed("parse", "The server's answer is not in the protocol.")


def _answers(message: dict[str, Any], number: int) -> bool:
    """An error about a request that the server could not parse comes without its number."""
    found = message.get("id")
    return found == number or (found is None and "error" in message)


def _events(text: str) -> list[str]:
    """The data of each server-sent event."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line[:5] == "data:"]
        if lines:
            found.append("\n".join(lines))
    return found


# --- Over stdio: one JSON message per line -----------------------------------------------------

NO_SUCH_METHOD = -32601


class StdioConnection:
    """A process in a session of its own, killed with all it started when the call is over."""

    def __init__(self, program: Program, stack: ExitStack, context: ToolContext) -> None:
        self._program = program
        self._stack = stack
        self._number = 0
        self._listening = asyncio.create_task(heard(program.stderr, Output(context.log, 0)))

    @classmethod
    async def open(cls, config: Mcp, context: ToolContext) -> StdioConnection:
        assert config.command is not None
        fields = await fields_of(config.auth, context)
        secrets = {name: value for name, value in fields.items() if isinstance(value, str)}
        variables, rules = environment({**secrets, **config.env}), context.resources.rules
        with ExitStack() as stack:
            place = context.resources.workplace(context.spec, config.cwd)
            directory, room = stack.enter_context(place)
            with started(config.command[0], directory, config.cwd):
                program = await Program.start(
                    list(config.command),
                    variables,
                    directory,
                    rules.bounds,
                    writes=True,
                    room=room,
                    line_max=rules.max_output_bytes,
                )
            return cls(program, stack.pop_all(), context)

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._send({"id": self._number, "method": method, "params": params})
        while True:
            message = await self._message()
            if "method" in message:
                await self._heard(message)
            elif message.get("id") == self._number:
                return result_of(message)

    async def tell(self, method: str) -> None:
        await self._send({"method": method})

    async def close(self) -> None:
        try:
            await self._program.close()
        finally:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._stack.close()

    # --- Messages ---

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._program.stdin is not None
        try:
            self._program.stdin.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
            await self._program.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise await self._ended() from None

    async def _message(self) -> dict[str, Any]:
        """The next message. Lines that are none are skipped: some programs print a greeting."""
        while True:
            try:
                line = await self._program.stdout.readline()
            except ValueError:
                told = "The server's answer is longer than this worker reads."
                raise Failed("parse", told) from None
            if not line:
                raise await self._ended()
            try:
                found = read_json(line)
            except msgspec.DecodeError:
                continue
            if isinstance(found, dict):
                return found

    async def _heard(self, message: dict[str, Any]) -> None:
        """Answer a request of the server: we respond to pings, and support nothing else."""
        if "id" not in message:
            return
        if message["method"] == "ping":
            await self._send({"id": message["id"], "result": {}})
            return
        refusal = {"code": NO_SUCH_METHOD, "message": "not supported"}
        await self._send({"id": message["id"], "error": refusal})

    async def _ended(self) -> Failed:
        code = await self._program.ended()
        return Failed("connection", f"The server {ending(code)} before it answered.")


async def connected(config: Mcp, context: ToolContext) -> Connection:
    """A connection to the server that the task names; raises Failed or Refused."""
    if config.url is not None:
        fields = await fields_of(config.auth, context)
        return HttpConnection(config.url, context, {**bearer(fields), **config.headers})
    return await StdioConnection.open(config, context)
