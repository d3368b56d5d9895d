"""Calls a Model Context Protocol server: the conversation, whatever it travels over."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Protocol

from noetl.model.outcome import ErrorKind, Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, failed_with
from noetl.tools.mcp import Mcp
from noetl.tools.plain_data import NotPlain, plain
from noetl.tools.resources import Refused
from noetl.tools.running.limits import shortest
from noetl.version import __version__

PROTOCOL = "2025-06-18"
PAGES_MAX = 1000

KINDS: dict[int, ErrorKind] = {
    -32700: "parse",
    -32600: "parse",
    -32601: "not_found",
    -32602: "client_error",
    -32603: "server_error",
    -32002: "not_found",
}
"""What the codes of JSON-RPC and of the protocol mean."""
_UNKNOWN = re.compile(
    r"(tool|prompt)\b.*\bnot found|(unknown|no such) (tool|prompt)", re.IGNORECASE
)


class Line(Protocol):
    """A way to a server: it carries questions there and answers back."""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The `result` of the answer; raises Failed."""

    async def tell(self, method: str) -> None:
        """Send a notification."""

    async def close(self) -> None:
        """Let go of the server; when this returns nothing of it runs."""


async def run(config: Mcp, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    try:
        async with asyncio.timeout(limit):
            line = await _line(config, context)
            try:
                return await _conversation(line, config, context)
            finally:
                await line.close()
    except Failed as problem:
        return problem.outcome
    except Refused as refusal:
        return failed("auth", f"mcp: {refusal}")
    except TimeoutError:
        said = f"The server did not answer within {limit:g} seconds."
        return failed("timeout", said, retryable=True)
    except NotPlain as error:
        return failed("parse", f"The answer of the server cannot be kept: {error}.")


async def _line(config: Mcp, context: ToolContext) -> Line:
    if config.url is not None:
        from noetl.tools.mcp.http import HttpLine

        return await HttpLine.open(config, context)
    from noetl.tools.mcp.stdio import StdioLine

    return await StdioLine.open(config, context)


async def _conversation(line: Line, config: Mcp, context: ToolContext) -> Outcome:
    await line.ask(
        "initialize",
        {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "noetl", "version": __version__},
        },
    )
    await line.tell("notifications/initialized")
    if config.tool_name is not None:
        params = {"name": config.tool_name, "arguments": context.inputs}
        return _of_tool(await line.ask("tools/call", params), config.tool_name)
    if config.resource is not None:
        found = await line.ask("resources/read", {"uri": config.resource})
        return ok({"contents": plain(found.get("contents", []))})
    if config.prompt is not None:
        given = {name: str(value) for name, value in context.inputs.items()}
        found = await line.ask("prompts/get", {"name": config.prompt, "arguments": given})
        return ok({"messages": plain(found.get("messages", []))})
    assert config.discover is not None
    return ok(plain(await _listed(line, config.discover)))


async def _listed(line: Line, what: str) -> list[Any]:
    """All pages of what the server offers."""
    offered: list[Any] = []
    params: dict[str, Any] = {}
    for _ in range(PAGES_MAX):
        page = await line.ask(f"{what}/list", params)
        offered += page.get(what) or []
        if not page.get("nextCursor"):
            return offered
        params = {"cursor": page["nextCursor"]}
    raise Failed("parse", f"The server lists its {what} without end.")


def _of_tool(found: dict[str, Any], name: str) -> Outcome:
    content = plain(found.get("content") or [])
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and "text" in part]
    text = "\n".join(str(one) for one in texts)
    if found.get("isError"):
        return failed("exception", f'The tool "{name}" failed: {text or "it did not say why"}')
    data = plain(found.get("structuredContent"))
    return ok({"content": content, "data": text if data is None else data})


def result_of(answer: Any) -> dict[str, Any]:
    """The `result` of a JSON-RPC answer; raises Failed for an error and for anything else."""
    if isinstance(answer, dict):
        if isinstance(answer.get("result"), dict):
            return dict(answer["result"])
        if isinstance(answer.get("error"), dict):
            raise failed_with(_refused(answer["error"]))
    raise Failed("parse", "The server's answer is not in the protocol.")


def _refused(error: dict[str, Any]) -> Outcome:
    code = error.get("code")
    code = code if isinstance(code, int) else None
    kind = KINDS.get(code, "exception") if code is not None else "exception"
    said = str(error.get("message") or "it did not say why")
    # The protocol has no code of its own for a tool or prompt that is not there.
    if kind == "client_error" and _UNKNOWN.search(said):
        kind = "not_found"
    return failed(kind, f"The server refused: {said}", code=code, retryable=kind == "server_error")
