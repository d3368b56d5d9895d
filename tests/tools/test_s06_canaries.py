"""S6 beyond the trials of each kind: services that repeat what they are told, and commands."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from aiohttp import web

from noetl.tools.testing import CANARY, Trial, Trials
from tests import forked
from tests.canaries import assert_clean
from tests.cli.conftest import COMMAND, clean_environment
from tests.stopwatch import PATIENCE
from tests.tools.canary_system import Guarded, played, search_embedded
from tests.tools.services import answering

OPEN = "open-canary-91d4"
"""No secret of any credential, so nothing hides it."""


# --- The search itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [OPEN, base64.b64encode(f"x{OPEN}".encode()).decode(), OPEN.encode().hex(), f"{OPEN}%20x"],
    ids=["plain", "base64", "hex", "in an address"],
)
def test_the_search_finds_what_gets_out(canary_system: Guarded, shown: str):
    searching = Guarded(canary_system.server, canary_system.folder, (OPEN,))
    leaking = Trials(good=Trial({"result": shown}), failing=())

    with pytest.raises(AssertionError):
        searching.search(played("noop", leaking))


# --- Services that repeat what they are told -----------------------------------------------------


async def echo(request: web.Request) -> web.StreamResponse:
    """Everything it was asked, in all the places of an answer."""
    told = {"headers": dict(request.headers), "path": str(request.rel_url)}
    said = {**told, "body": await request.text(), "error": {"message": str(told)}}
    status = int(request.match_info["status"])
    shown = {"X-Echo": request.headers.get("Authorization", "none")}
    return web.json_response({"data": said, **said}, status=status, headers=shown)


def asked(url: str) -> dict[str, dict[str, Any]]:
    """By kind: what to ask a service that echoes."""
    return {
        "http": {"url": url, "auth": "key"},
        "llm": {"url": url, "auth": "key", "model": "m", "prompt": "hi"},
        "mcp": {"url": url, "auth": "key", "tool_name": "t"},
        "python": {"script": f"{url}/a.py", "auth": "key"},
        "secrets": {"provider": "vault", "secret": "kv/shop", "auth": "key", "url": url},
        "store": {"op": "get", "url": "s3://b", "auth": "s3", "key": "k"},
        "container": {"runtime": "kubernetes", "auth": "cluster", "image": "x"},
        "transfer": {
            "source": {"kind": "http", "url": url, "auth": "key", "records": "nowhere"},
            "target": {"kind": "file", "path": "never.csv"},
        },
    }


@pytest.fixture(scope="module")
def repeating():
    with answering(("*", "/{status:\\d+}{rest:.*}", echo)) as url:
        yield url


def telling(url: str, kind: str) -> Trials:
    trials = []
    places = [f"{url}/{status}" for status in (200, 400, 401, 500)]
    # A cluster whose answers mean nothing is asked again and again, until the task's time is up.
    for place in places[1:] if kind == "container" else places:
        known = {
            "key": {"token": CANARY},
            "s3": {"access_key_id": "AK", "secret_access_key": CANARY, "endpoint": place},
            "cluster": {"server": place, "token": CANARY},
        }
        trials.append(Trial(asked(place)[kind], credentials=known))
    return Trials(good=trials[0], failing=tuple(trials[1:]))


@pytest.mark.parametrize("kind", asked(""))
def test_s06_a_service_that_repeats_what_it_is_told_gives_nothing_away(
    kind: str, repeating: str, canary_system: Guarded, caplog: pytest.LogCaptureFixture
):
    playbook = played(kind, telling(repeating, kind))

    search_embedded(playbook, caplog)
    canary_system.search(playbook)


# --- Commands ------------------------------------------------------------------------------------

COMMANDS = (
    *(("executions", what, "ID") for what in ("show", "events", "why", "follow")),
    ("executions", "show", "ID", "--json"),
    ("executions", "list"),
    ("catalog", "show", "canaries/http"),
    ("credential", "list"),
    ("credential", "show", "http-key-0"),
    ("access", "audit"),
    ("access", "token", "list"),
    ("settings",),
)


def test_s06_no_command_says_a_secret(canary_system: Guarded, repeating: str, tmp_path):
    server = canary_system.server
    playbook = played("http", telling(repeating, "http"))
    canary_system.search(playbook)
    execution_id = server.get("/api/executions")["executions"][0]["execution_id"]
    environment = clean_environment(
        NOETL_SERVER_URL=server.url, NOETL_TOKEN=str(server.token), XDG_CONFIG_HOME=str(tmp_path)
    )

    for words in COMMANDS:
        command = [execution_id if word == "ID" else word for word in words]
        ran = forked.run(
            [*COMMAND, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=PATIENCE,
        )
        assert_clean(canary_system.secrets, ran.stdout, ran.stderr)
        assert ran.returncode in (0, 1), (words, ran.stderr)
        assert ran.stdout or ran.stderr, words
