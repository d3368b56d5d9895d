"""A Model Context Protocol server behind an address: each message is a request of its own."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed
from noetl.tools.mcp import Mcp
from noetl.tools.mcp.run import result_of
from noetl.tools.plain_data import read_json
from noetl.tools.web.service import Answer, ask, bearer, fields_of

SESSION = "mcp-session-id"


class HttpLine:
    """The "streamable HTTP" of the protocol: an answer comes as JSON or among streamed events."""

    def __init__(self, config: Mcp, context: ToolContext, headers: dict[str, str]) -> None:
        assert config.url is not None
        self._url = config.url
        self._context = context
        self._headers = headers
        self._session: str | None = None
        self._number = 0

    @classmethod
    async def open(cls, config: Mcp, context: ToolContext) -> HttpLine:
        fields = await fields_of(config.auth, context)
        return cls(config, context, {**bearer(fields), **config.headers})

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        answer = await self._send(message)
        found = _message(answer, self._number)
        if method == "initialize":
            self._session = answer.headers.get(SESSION)
            result = result_of(found)
            self._headers["MCP-Protocol-Version"] = str(result.get("protocolVersion", ""))
            return result
        return result_of(found)

    async def tell(self, method: str) -> None:
        await self._send({"jsonrpc": "2.0", "method": method})

    async def close(self) -> None:
        if self._session is None:
            return
        try:
            await ask(self._context, "DELETE", self._url, headers=self._sent(), decode="text")
        except Failed:
            # A server need not let sessions be ended; it forgets them in its own time.
            return

    async def _send(self, message: dict[str, Any]) -> Answer:
        return await ask(
            self._context, "POST", self._url, json=message, headers=self._sent(), decode="text"
        )

    def _sent(self) -> dict[str, str]:
        own = {"Accept": "application/json, text/event-stream"}
        if self._session is not None:
            own["Mcp-Session-Id"] = self._session
        return own | self._headers


def _message(answer: Answer, number: int) -> Any:
    """The message that answers this question, from JSON or from among the events of a stream."""
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
    """A question that the server could not even read is answered without its number."""
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
