"""A Model Context Protocol server for tests: over stdio when run, over HTTP when asked.

python mcp_server.py        speaks over stdin and stdout
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

if __name__ != "__main__":
    from aiohttp import web  # Over stdio nothing of it is needed, and it takes half a second.

TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}} for name in ("add", "words", "fail", "env")
]


def answered(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """`{result}` or `{error}` of one question."""
    match method:
        case "initialize":
            about = {"name": "trial", "version": "1"}
            capabilities = {"tools": {}, "resources": {}, "prompts": {}}
            return result(
                protocolVersion=params["protocolVersion"],
                capabilities=capabilities,
                serverInfo=about,
            )
        case "tools/list":
            start = int(params.get("cursor", 0))
            more = {"nextCursor": str(start + 2)} if start + 2 < len(TOOLS) else {}
            return result(tools=TOOLS[start : start + 2], **more)
        case "tools/call":
            return called(params["name"], params["arguments"])
        case "resources/read" if params["uri"] == "memo://1":
            return result(contents=[{"uri": "memo://1", "text": "remember"}])
        case "resources/read":
            return error(-32002, "Resource not found")
        case "prompts/get":
            said = f"Greet {params['arguments']['whom']}"
            return result(messages=[{"role": "user", "content": {"type": "text", "text": said}}])
        case "resources/list":
            return error(-32603, "broken inside")
    return error(-32601, f"no method {method}")


def called(name: str, given: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "add" if "a" in given:
            total = given["a"] + given["b"]
            return result(content=text(str(total)), structuredContent={"sum": total})
        case "add":
            return error(-32602, "a is missing")
        case "words":
            return result(content=[*text("one"), *text("two")])
        case "fail":
            return result(content=text("it broke"), isError=True)
        case "env":
            return result(content=text(json.dumps(dict(os.environ))))
        case "exit":
            os._exit(3)
        case "sleep":
            time.sleep(3600)
        case "odd":
            return {"neither": True}
    return error(-32602, f"Unknown tool: {name}")


def result(**found: Any) -> dict[str, Any]:
    return {"result": found}


def error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def text(said: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": said}]


class OverHttp:
    """The same over streamable HTTP: with a session, and tool calls answered in a stream."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.ended: list[str] = []
        self.seen: list[dict[str, str]] = []

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        self.seen.append({name.lower(): value for name, value in request.headers.items()})
        if message["method"] != "initialize" and request.headers.get("Mcp-Session-Id") != "s-1":
            return web.json_response({"error": "no session"}, status=404)
        if "id" not in message:
            return web.Response(status=202)
        said = {
            "jsonrpc": "2.0",
            "id": message["id"],
            **answered(message["method"], message.get("params", {})),
        }
        headers = {"Mcp-Session-Id": "s-1"} if message["method"] == "initialize" else {}
        if message["method"] != "tools/call":
            return web.json_response(said, headers=headers)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
        for one in (note, said):
            await stream.write(f"event: message\ndata: {json.dumps(one)}\n\n".encode())
        return stream

    async def delete(self, request: web.Request) -> web.StreamResponse:
        self.ended.append(request.headers["Mcp-Session-Id"])
        return web.Response(status=200)


def main() -> None:
    print("a greeting that is no message", flush=True)
    print("to the log", file=sys.stderr, flush=True)
    print(json.dumps({"jsonrpc": "2.0", "id": "p", "method": "ping"}), flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            said = answered(message["method"], message.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)


if __name__ == "__main__":
    main()
