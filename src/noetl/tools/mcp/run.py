"""Calls a Model Context Protocol server: the exchange, independent of the transport."""

from __future__ import annotations

from typing import Any

from noetl.model.outcome import Outcome, ok
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, within
from noetl.tools.limits import shortest
from noetl.tools.mcp import Mcp
from noetl.tools.mcp.connections import Connection, connected
from noetl.tools.plain_data import NotPlain, as_text, plain
from noetl.version import __version__

PROTOCOL = "2025-06-18"
PAGES_MAX = 1000


async def run(config: Mcp, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    try:
        async with within(limit, "The server did not answer within", who="mcp"):
            server = await connected(config, context)
            try:
                return await _conversation(server, config, context)
            finally:
                await server.close()
    except NotPlain as error:
        raise Failed("parse", f"The answer of the server cannot be kept: {error}.") from None


async def _conversation(server: Connection, config: Mcp, context: ToolContext) -> Outcome:
    await server.ask(
        "initialize",
        {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "noetl", "version": __version__},
        },
    )
    await server.tell("notifications/initialized")
    if config.tool_name is not None:
        params = {"name": config.tool_name, "arguments": context.inputs}
        return _of_tool(await server.ask("tools/call", params), config.tool_name)
    if config.resource is not None:
        found = await server.ask("resources/read", {"uri": config.resource})
        return ok({"contents": plain(found.get("contents", []))})
    if config.prompt is not None:
        given = {name: as_text(value) for name, value in context.inputs.items()}
        found = await server.ask("prompts/get", {"name": config.prompt, "arguments": given})
        return ok({"messages": plain(found.get("messages", []))})
    assert config.discover is not None
    return ok(plain(await _listed(server, config.discover)))


async def _listed(server: Connection, what: str) -> list[Any]:
    """All pages of a list of the server."""
    offered: list[Any] = []
    params: dict[str, Any] = {}
    for _ in range(PAGES_MAX):
        page = await server.ask(f"{what}/list", params)
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
        raise Failed("exception", f'The tool "{name}" failed: {text or "it did not say why"}')
    data = plain(found.get("structuredContent"))
    return ok({"content": content, "data": text if data is None else data})
