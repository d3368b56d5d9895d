"""S6: whole systems with secrets planted in them, and a search of all that they keep and say.

A kind's trials, those that succeed and those that fail, become the steps of one playbook. It runs
embedded, and on a server with authentication and a worker process. Afterwards every file, event,
log line and answer is searched for the secrets of the trials, of the environments and of the
tokens, in every form.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
import pytest

from noetl.api.table import TABLE
from noetl.control import documents
from noetl.model.events import TaskDone
from noetl.tools.testing import CANARY, ToolContract, Trial, Trials
from tests.canaries import assert_clean
from tests.effort import IS_LONG
from tests.examples.system import Bench, on_bench, temporary_folder
from tests.server.processes import Server, serving, working

OF_THE_SERVER = f"canary-of-the-server-{token_hex(4)}"
OF_THE_WORKER = f"canary-of-the-worker-{token_hex(4)}"
"""Not the same every time: the environment of another run of these tests is none of ours."""
GOES_ON = {"policy": {"rules": [{"else": {"then": {"do": "continue"}}}]}}
QUESTIONS = sorted(path for route in TABLE if route.method == "GET" for path in route.paths)
ABOUT_THE_SERVER = frozenset(
    {"/", "/health", "/metrics", "/api/access/tokens", "/api/access/users", "/api/archive"}
    | {"/api/auth/me", "/api/auth/sessions", "/api/commands/cancelled", "/api/consumers"}
    | {"/api/credentials", "/api/executions/diff", "/api/health", "/api/hooks"}
    | {"/api/notifications", "/api/openapi.json", "/api/queues", "/api/retention"}
    | {"/api/schedules", "/api/stream", "/api/views", "/api/worker/pools"}
)
"""What these answer is not about one execution, and what they once told they still tell."""
SLOW = "/api/executions/{execution_id}/test"
"""A process of its own makes it from nothing but the export, which is searched."""
NOT_OF_EACH = frozenset() if IS_LONG else ABOUT_THE_SERVER | {SLOW}
"""What is not asked of each where many executions are searched."""


# --- A playbook of a kind's trials ---------------------------------------------------------------


class Played(msgspec.Struct, frozen=True):
    """The trials of a kind as one playbook, the credentials they use, and how those must end
    that fail."""

    text: str
    path: str
    credentials: dict[str, Mapping[str, Any]]
    ends: dict[str, str]


def played(kind: str, trials: Trials) -> Played:
    """Each trial is a step; one that fails lets the others go on."""
    steps: list[dict[str, Any]] = []
    credentials: dict[str, Mapping[str, Any]] = {}
    ends: dict[str, str] = {}
    for number, trial in enumerate((trials.good, *trials.failing)):
        own = {name: f"{kind}-{name}-{number}" for name in trial.credentials}
        credentials |= {own[name]: fields for name, fields in trial.credentials.items()}
        steps.append({"step": f"trial_{number}", "tool": _task(kind, trial, own)})
        if trial.fails is not None:
            ends[f"trial_{number}"] = trial.fails
    arcs = [{"step": step["step"]} for step in steps]
    start = {
        "step": "start",
        "tool": {"kind": "noop"},
        "next": {"spec": {"mode": "inclusive"}, "arcs": arcs},
    }
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": f"canaries_{kind}", "path": f"canaries/{kind}"},
        "workflow": [start, *steps],
    }
    text = msgspec.json.encode(document).decode()
    return Played(text, f"canaries/{kind}", credentials, ends)


def _task(kind: str, trial: Trial, credentials: Mapping[str, str]) -> dict[str, Any]:
    config = {key: value for key, value in trial.config.items() if value is not None}
    return {
        "kind": kind,
        **_renamed(config, credentials),
        "args": dict(trial.inputs),
        "spec": GOES_ON,
    }


def _renamed(value: Any, credentials: Mapping[str, str]) -> Any:
    """The config with its credentials under names that no other trial uses."""
    if not isinstance(value, dict):
        return value
    return {
        key: credentials.get(part, part)
        if key in ("auth", "secret") and isinstance(part, str)
        else _renamed(part, credentials)
        for key, part in value.items()
    }


# --- Embedded ------------------------------------------------------------------------------------


def search_embedded(playbook: Played, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def work(bench: Bench) -> None:
        for name, fields in playbook.credentials.items():
            await bench.system.keys.put(name, "generic", dict(fields))
        run = await bench.run(playbook.text)
        execution_id = run.document["execution_id"]
        rows = await bench.system.store.log.events(execution_id, limit=10_000)
        shown = [msgspec.to_builtins(documents.event(execution_id, row)) for row in rows]
        why = (await bench.system.executions.why(execution_id)).reasons
        # WAL and all: what the files hold while everything is open is what a thief would get.
        assert_clean((CANARY,), bench.folder, repr(run), repr(shown), repr(why), caplog.text)
        errors = {done.step: done.outcome.error for done in run.of(TaskDone)}
        assert {step: errors[step] and errors[step].kind for step in playbook.ends} == playbook.ends

    on_bench(work)


# --- On a server ---------------------------------------------------------------------------------


class Guarded:
    """A server that knows who asks, a worker of its own, and secrets wherever one may be."""

    def __init__(self, server: Server, folder: Path, tokens: tuple[str, ...]) -> None:
        self.server = server
        self.folder = folder
        self.secrets = (CANARY, OF_THE_SERVER, OF_THE_WORKER, *tokens)

    def search(self, playbook: Played, left_out: Collection[str] = ()) -> None:
        for name, data in playbook.credentials.items():
            fields = {"name": name, "type": "generic", "data": dict(data)}
            reply = self.server.ask("POST", "/api/credentials", fields)
            assert reply.status == 200, reply.raw
            assert_clean(self.secrets, reply.raw)
        execution_id = self.server.start(playbook.text)
        document = self.server.ended(execution_id)
        told = answers(self.server, document, list(playbook.credentials), left_out)
        assert_clean(self.secrets, self.folder, *told)
        assert document["status"] == "COMPLETED"


def answers(
    server: Server, document: dict[str, Any], names: list[str], left_out: Collection[str] = ()
) -> Iterator[bytes]:
    """What a server says of an execution and these credentials, on each of its other routes."""
    execution_id = document["execution_id"]
    events = server.events(execution_id)
    kept = re.findall(r'"key": ?"([^"]+)"', msgspec.json.encode(events).decode())
    known = {
        "execution_id": [execution_id],
        "path": [document["path"]],
        "digest": [document.get("digest", "none")],
        "name": names or ["none"],
        "key": sorted(set(kept)) or ["none"],
        "step_run_id": sorted({one["step_run_id"] or "none" for one in events})[:20],
        "action_id": sorted({one["action_id"] or "none" for one in events})[:20],
    }
    for question in QUESTIONS:
        if question in left_out:
            continue
        for path in _spelled(question, known):
            yield server.ask("GET", path).raw


def answers_about(server: Server) -> Iterator[bytes]:
    """What a server says that is not about one execution: to be asked when all have ended."""
    for question in sorted(ABOUT_THE_SERVER):
        yield server.ask("GET", question).raw


def _spelled(question: str, known: dict[str, list[str]]) -> list[str]:
    """The path with each of the known values for its parameters."""
    found = [question]
    for name in re.findall(r"\{(\w+)\}", question):
        found = [path.replace(f"{{{name}}}", value) for path in found for value in known[name]]
    return found


@contextmanager
def guarded() -> Iterator[Guarded]:
    with temporary_folder() as folder:
        places = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
        (folder / "tmp").mkdir()

        def environment(secret: str) -> dict[str, str]:
            return places | {
                "AWS_SECRET_ACCESS_KEY": secret,
                "DATABASE_URL": f"postgresql://u:{secret}@h/d",
                "NOETL_LOG": "debug",
            }

        with serving(folder, **environment(OF_THE_SERVER)) as server:
            body = {"name": "admin", "roles": ["admin"]}
            admin = server.post("/api/access/tokens", body, token="")["token"]
            body = {"name": "worker", "roles": ["worker"]}
            worker = server.post("/api/access/tokens", body, token=admin)["token"]
            server.token = admin
            own = environment(OF_THE_WORKER) | {"NOETL_TOKEN": worker}
            with working(folder, server.url, **own):
                system = Guarded(server, folder, (admin, worker))
                yield system
                assert_clean(system.secrets, *answers_about(server))


# --- What our kinds are held to besides ----------------------------------------------------------


class Searched(ToolContract):
    """The contract, and that no secret stays anywhere in a system that ran the kind."""

    def test_s06_nothing_that_an_embedded_system_keeps_or_says_holds_a_secret(
        self, trials: Trials, caplog: pytest.LogCaptureFixture
    ) -> None:
        search_embedded(played(self.tool.kind, trials), caplog)

    def test_s06_nothing_that_a_server_and_its_worker_keep_or_say_holds_a_secret(
        self, trials: Trials, canary_system: Guarded
    ) -> None:
        canary_system.search(played(self.tool.kind, trials), NOT_OF_EACH)
