"""E1: every example, embedded and on a server with two worker processes: the same end, and the same
events up to ids, times and who ran what."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from examples.demo_server import DEMO_TOKEN, PORT, Demo
from examples.demo_server import serving as serving_demo
from noetl.control import documents
from tests.examples.system import EXAMPLES, ROOT, Bench, on_bench
from tests.server.processes import Server, serving, working

DEMO_URL = f"http://127.0.0.1:{PORT}"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
WORKLOADS: dict[str, dict[str, Any]] = {
    "amadeus_ai_api": {"database": "{folder}/flights.db"},
    "csv_to_sqlite": {"database": "{folder}/people.db"},
    "delayed_reminder": {"wait": "250ms"},
    "files_duckdb": {"target": "{folder}/monthly.parquet"},
    "incremental": {"database": "{folder}/events.db"},
    "job_polling": {"pause": "10ms"},
    "locked_work": {"folder": "{folder}"},
    "orders": {"warehouse": "{folder}/o.duckdb", "published": "{folder}/o.db"},
    "pagination": {"database": "{folder}/s.db"},
    "report": {"target": "{folder}/report.md"},
    "table_files": {"database": "{folder}/readings.db"},
    "transfer": {"warehouse": "{folder}/stock.duckdb", "target": "{folder}/places.csv"},
}
"""What examples write goes to a folder of each run's own."""
ANSWERS = {"approval": ("approval.received", {"approved": "yes", "account": "travel"})}
"""What examples wait for to hear from outside."""
RACES = {"first_answer", "quantum_sweep", "timeouts", "work_queue"}
"""Here the clock decides which calls are made, in either way of running; the end is the same."""
NOBODY_THERE = {"container_job", "llm_sorting", "mcp_tools", "nats_messages", "secret_manager"}
"""Their services do not run here: all that is compared is that they fail in the same way. What they
do is tested in `tests/examples`."""
DELIVERY = re.compile(r"command\.")
"""Who was given what, and in which pieces, is what differs between one process and three."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server and two workers that see the same files as a command in the project would."""
    folder = tmp_path_factory.mktemp("e1")
    (folder / "examples").symlink_to(ROOT / "examples")
    with serving(folder) as server:
        few = ("--slots", "8")
        with working(folder, server.url, *few), working(folder, server.url, *few):
            yield server


def filled(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: filled(one, folder) for key, one in value.items()}
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


class Setting:
    """What an example finds around it: a shop, a database, a folder; the same for both runs."""

    def __init__(self, name: str, folder: Path, shop_url: str, postgres: dict[str, Any]) -> None:
        self.text = (EXAMPLES / f"{name}.yaml").read_text().replace(DEMO_URL, shop_url)
        self.answer = ANSWERS.get(name)
        self.workload = filled(WORKLOADS.get(name, {}), folder)
        client = {
            "type": "oauth2",
            "token_url": f"{shop_url}/v1/security/oauth2/token",
            "client_id": "demo",
            "client_secret": DEMO_TOKEN,
        }
        self.credentials = {
            "shop": ("bearer", {"token": DEMO_TOKEN}),
            "openai": ("bearer", {"token": DEMO_TOKEN}),
            "amadeus": ("oauth2", client),
            "warehouse": ("postgres", postgres),
        }
        self.called = [
            path.read_text().replace(DEMO_URL, shop_url)
            for path in EXAMPLES.glob("*.yaml")
            if re.search(rf"path: {re.escape('examples/' + path.stem)}\b", self.text)
            and path.stem != name
        ]

    def embedded(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async def work(bench: Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            for name, (kind, data) in self.credentials.items():
                await bench.system.keys.put(name, kind, data)
            for text in self.called:
                await bench.system.catalog.register(text)
            execution_id = await bench.start(self.text, self.workload)
            if self.answer is not None:
                await bench.system.executions.signal(execution_id, *self.answer)
            ended = await bench.ended(execution_id)
            rows = await bench.system.store.events(execution_id, limit=1_000_000)
            events = [documents.event(execution_id, row) for row in rows]
            return msgspec.to_builtins(ended.document), msgspec.to_builtins(events)

        return on_bench(work)

    def served(self, server: Server) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        for name, (kind, data) in self.credentials.items():
            server.post("/api/credentials", {"name": name, "type": kind, "data": data})
        for text in self.called:
            server.post("/api/catalog/register", {"content": text})
        execution_id = server.start(self.text, self.workload)
        if self.answer is not None:
            name, data = self.answer
            sent = {"name": name, "data": data}
            server.post(f"/api/executions/{execution_id}/events", sent)
        return server.ended(execution_id), server.events(execution_id)


# --- What is the same --------------------------------------------------------------------------

_VARIES = re.compile(
    r"\b\d{17,19}\b"  # ids of executions and events
    r"|\b[0-9a-f]{18}\b"  # derived ids
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(?:Z|\+00:00)?"
    r"|127\.0\.0\.1:\d+"
    # drawn by the demo server:
    r"|(?<=flights-)[0-9a-f]{8}|(?<=rooms-)[0-9a-f]{8}|(?<=cars-)[0-9a-f]{8}"
)
_UNTOLD = frozenset(
    {"at", "duration", "elapsed", "elapsed_ms", "duration_ms", "fires_at", "worker", "until"}
    | {"start_time", "end_time", "duration_seconds", "started_at", "ended_at", "headers", "version"}
    | {
        "digest",
        "ready_at",
        "report",
        "command_id",
        "commands",
        "chunks",
        "settled",
        "log",
        "checksum",
    }
)


def told(value: Any) -> Any:
    """The value without what is different every time."""
    match value:
        case dict():
            return {key: told(one) for key, one in value.items() if key not in _UNTOLD}
        case list():
            return [told(one) for one in value]
        case str():
            return _VARIES.sub("…", value)
    return value


def the_end(name: str, document: dict[str, Any]) -> Any:
    """How it ended, for whoever asks; without calls that were made or not by chance."""
    left_out = {"progress"}
    steps = document["steps"]
    if name in RACES:
        steps = [{key: step[key] for key in ("step", "status", "runs")} for step in steps]
    return told({**{k: v for k, v in document.items() if k not in left_out}, "steps": steps})


def story(events: list[dict[str, Any]]) -> Counter[str]:
    """What happened, however often; parallel branches may take turns in any order."""
    found: Counter[str] = Counter()
    for event in events:
        if not DELIVERY.match(event["name"]):
            where = (event["step"], event["iteration"], event["attempt"])
            line = (event["name"], where, told(event["payload"]))
            found[msgspec.json.encode(line, order="sorted").decode()] += 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_e1_an_example_runs_the_same_embedded_and_on_a_server(
    name: str, server: Server, tmp_path: Path, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    stories = []
    ends = []
    for place in ("embedded", "server"):
        folder = tmp_path / "place"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with psycopg.connect(**postgres) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        with serving_demo(Demo()) as url:
            setting = Setting(name, folder, url, postgres)
            ran = setting.embedded() if place == "embedded" else setting.served(server)
        ends.append(the_end(name, ran[0]))
        stories.append(story(ran[1]))

    assert ends[0] == ends[1]
    if name not in NOBODY_THERE:
        assert ends[0]["status"] == "COMPLETED", ends[0]["error"]
    if name not in RACES:
        assert stories[0] - stories[1] == Counter()
        assert stories[1] - stories[0] == Counter()
