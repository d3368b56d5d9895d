"""A small server that speaks the OpenAI chat protocol and does as its questions say."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tests.tools.services import Handler, never


class Chat:
    """What it was asked, and what it answers next."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.says: Any = "hello"
        self.status = 200
        self.finish = "stop"
        self.calls: list[dict[str, Any]] = []
        self.raw: str | None = None

    async def completions(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status != 200:
            problem = {"error": {"message": "no luck today", "type": "trial"}}
            return web.json_response(problem, status=self.status, headers={"Retry-After": "7"})
        if self.raw is not None:
            return web.Response(text=self.raw, content_type="application/json")
        text = self.says if isinstance(self.says, str) else json.dumps(self.says)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.calls:
            message |= {"content": None, "tool_calls": self.calls}
        return web.json_response(
            {
                "id": "chat-1",
                "model": "trial-1",
                "choices": [{"index": 0, "message": message, "finish_reason": self.finish}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
            }
        )

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/v1/chat/completions", self.completions),
            ("POST", "/never/chat/completions", never),
        ]
