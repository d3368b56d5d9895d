"""kind: mcp, against a server that is started and one that is reached over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from noetl.tools.rules import Rules
from tests.stopwatch import PATIENCE
from tests.tools.mcp_server import OverHttp
from tests.tools.running import Bench, failure, on_bench, ran
from tests.tools.services import answering, free_port, never, refusing

SERVER = str(Path(__file__).with_name("mcp_server.py"))
STDIO = {"command": [sys.executable, SERVER]}


@pytest.fixture
def http():
    server = OverHttp()
    routes = [("POST", "/mcp", server.post), ("DELETE", "/mcp", server.delete)]
    with answering(*routes) as url:
        server.url = f"{url}/mcp"
        yield server


@pytest.fixture(params=["stdio", "http"])
def server(request, http):
    return STDIO if request.param == "stdio" else {"url": http.url}


def test_a_tool_is_called_with_the_tasks_inputs(server):
    summed = ran("mcp", {**server, "tool_name": "add"}, inputs={"a": 2, "b": 3})
    words = ran("mcp", {**server, "tool_name": "words"})

    assert summed.result == {"content": [{"type": "text", "text": "5"}], "data": {"sum": 5}}
    assert words.result["data"] == "one\ntwo"


def test_resources_and_prompts_are_read(server):
    memo = ran("mcp", {**server, "resource": "memo://1"})
    greeting = ran("mcp", {**server, "prompt": "greet"}, inputs={"whom": "you"})

    assert memo.result == {"contents": [{"uri": "memo://1", "text": "remember"}]}
    assert greeting.result["messages"][0]["content"]["text"] == "Greet you"


def test_all_pages_of_what_is_offered_are_listed(server):
    outcome = ran("mcp", {**server, "discover": "tools"})

    assert [tool["name"] for tool in outcome.result] == ["add", "words", "fail", "env"]


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ({"tool_name": "fail"}, "exception", "it broke"),
        ({"tool_name": "add"}, "client_error", "a is missing"),
        ({"tool_name": "nowhere"}, "not_found", "Unknown tool"),
        ({"resource": "memo://2"}, "not_found", "Resource not found"),
        ({"discover": "prompts"}, "not_found", "no method"),
        ({"discover": "resources"}, "server_error", "broken inside"),
        ({"tool_name": "odd"}, "parse", "not in the protocol"),
    ],
)
def test_what_the_server_refuses_gets_a_name(server, config, kind, words):
    outcome = ran("mcp", {**server, **config})

    assert failure(outcome)[0] == kind
    assert words in failure(outcome)[1]


# --- Over HTTP ---------------------------------------------------------------------------------


def test_a_session_is_kept_shown_and_ended(http):
    fields = {"mcp": {"token": "canary-token"}}
    settings = {"credentials": fields}
    outcome = ran("mcp", {"url": http.url, "auth": "mcp", "tool_name": "words"}, settings=settings)

    assert outcome.is_ok
    assert http.ended == ["s-1"]
    assert {seen.get("authorization") for seen in http.seen} == {"Bearer canary-token"}
    assert http.seen[-1]["mcp-protocol-version"] == "2025-06-18"
    assert "canary" not in str(outcome)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "auth"), (404, "not_found"), (429, "rate_limit"), (400, "client_error")],
)
def test_what_the_web_answers_gets_a_name(status, kind):
    with answering(("POST", "/mcp", refusing(status))) as url:
        assert failure(ran("mcp", {"url": f"{url}/mcp", "tool_name": "a"}))[0] == kind


def test_a_server_that_is_not_there_or_silent_is_named():
    gone = {"url": f"http://127.0.0.1:{free_port()}/mcp", "tool_name": "a"}
    with answering(("POST", "/mcp", never)) as url:
        silent = ran("mcp", {"url": f"{url}/mcp", "tool_name": "a", "timeout": "200ms"})

    assert failure(ran("mcp", gone))[0] == "connection"
    assert failure(silent)[0] == "timeout"


def test_a_server_that_falls_silent_is_not_waited_for_at_the_end():
    """Neither for its answer nor for the end of its session."""
    server = OverHttp()

    async def post(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        is_call = message["method"] == "tools/call"
        return await (never(request) if is_call else server.post(request))

    with answering(("POST", "/mcp", post), ("DELETE", "/mcp", never)) as url:
        config = {"url": f"{url}/mcp", "tool_name": "a", "timeout": "200ms"}

        async def work(bench: Bench) -> Any:
            return await asyncio.wait_for(bench.run("mcp", config), PATIENCE / 2)

        assert failure(on_bench(work))[0] == "timeout"


# --- Over stdio --------------------------------------------------------------------------------


def test_what_a_server_says_beside_goes_to_the_log():
    async def work(bench: Bench) -> str:
        await bench.run("mcp", {**STDIO, "tool_name": "words"})
        return bench.log.text()

    assert on_bench(work) == "to the log\n"


def test_s12_a_server_sees_only_what_the_task_gives_it(monkeypatch):
    monkeypatch.setenv("NOETL_TOKEN", "canary-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-2")
    config = {**STDIO, "tool_name": "env", "env": {"OWN": "1"}, "auth": {"API_KEY": "k-1"}}
    seen = json.loads(ran("mcp", config).result["data"])

    assert (seen["OWN"], seen["API_KEY"]) == ("1", "k-1")
    assert set(seen) - {"PATH", "HOME", "LANG", "LC_CTYPE"} == {"OWN", "API_KEY"}


def test_a_server_that_ends_or_never_starts_is_named(tmp_path):
    assert failure(ran("mcp", {**STDIO, "tool_name": "exit"}))[0] == "connection"
    assert failure(ran("mcp", {"command": ["no-such-program"], "tool_name": "a"}))[0] == "not_found"
    nowhere = {**STDIO, "cwd": str(tmp_path / "gone"), "tool_name": "a"}
    assert failure(ran("mcp", nowhere))[0] == "not_found"
    assert failure(ran("mcp", {"command": [str(tmp_path)], "tool_name": "a"}))[0] == "auth"
    assert failure(ran("mcp", {"command": ["a\0b"], "tool_name": "a"}))[0] == "client_error"


def test_a_server_that_hangs_is_killed(tmp_path):
    outcome = ran("mcp", {**STDIO, "tool_name": "sleep", "timeout": "500ms"})

    assert failure(outcome)[0] == "timeout"


def test_an_answer_that_is_too_long_is_refused():
    rules: dict[str, Any] = {"rules": Rules(max_output_bytes=64)}
    outcome = ran("mcp", {**STDIO, "discover": "tools"}, settings=rules)

    assert failure(outcome)[0] == "parse"
    assert "longer than this worker reads" in failure(outcome)[1]
