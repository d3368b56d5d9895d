"""Small services for examples that talk to one, each answering the same questions the same way."""

from __future__ import annotations

import sys
from pathlib import Path

from aiohttp import web

from tests.tools.chat_server import Chat
from tests.tools.mcp_server import OverHttp
from tests.tools.services import Handler

Route = tuple[str, str, Handler]


class Sorter(Chat):
    """Knows the topics, but what it first says of a parcel is not in the form it was asked for."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        letter = (await request.json())["messages"][-1]["content"]
        words = {"parcel": "delivery", "charged": "billing"}
        topic = next((topic for word, topic in words.items() if word in letter), "other")
        is_new = letter not in [one["messages"][-1]["content"] for one in self.asked]
        hesitates = is_new and topic == "delivery"
        self.says = "I think it is about delivery." if hesitates else {"topic": topic}
        return await super().completions(request)


def mcp_routes() -> list[Route]:
    server = OverHttp()
    return [("POST", "/mcp", server.post), ("DELETE", "/mcp", server.delete)]


class Vault:
    """A vault with a key in it, and a shop that opens to that key and says which it was shown."""

    token = "canary-vault"
    key = "canary-api-key"

    def __init__(self) -> None:
        self.shown: list[str | None] = []

    async def read(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["X-Vault-Token"] == self.token
        return web.json_response({"data": {"data": {"api_key": self.key}, "metadata": {}}})

    async def orders(self, request: web.Request) -> web.StreamResponse:
        self.shown.append(request.headers.get("X-Api-Key"))
        return web.json_response({"orders": 3, "echo": request.headers["X-Api-Key"]})

    def routes(self) -> list[Route]:
        return [("GET", "/v1/kv/data/shop", self.read), ("GET", "/orders", self.orders)]


ENGINE = f"""#!{sys.executable}
import pathlib, subprocess, sys
words = sys.argv[1:]
lines = pathlib.Path(words[words.index("--env-file") + 1]).read_text().splitlines()
environment = dict(line.split("=", 1) for line in lines)
command = words[words.index("python:3.12-alpine") + 1 :]
done = subprocess.run([sys.executable, *command[1:]], env=environment)
sys.exit(done.returncode)
"""


def put_docker(folder: Path) -> None:
    """A docker that runs the command without a container, for a PATH that begins with `folder`."""
    folder.mkdir(exist_ok=True)
    program = folder / "docker"
    program.write_text(ENGINE)
    program.chmod(0o755)
