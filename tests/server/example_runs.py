"""An example with all that it needs around it, run in this process or by a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from examples.demo_server import DEMO_TOKEN, FLIGHTS_TOKEN, PORT, serving
from noetl.control import documents
from noetl.control.history import Moments
from noetl.engine.evolve import evolve
from noetl.model import refs
from noetl.model.events import decode
from noetl.model.state import ExecutionState
from noetl.store.base import Store
from noetl.store.log import EventRow
from tests.canaries import assert_clean
from tests.examples.services import Sorter, Vault, mcp_routes
from tests.examples.system import EXAMPLES, Bench, on_bench
from tests.server.processes import Server
from tests.tools.services import answering, nats_server

DEMO_URL = f"http://127.0.0.1:{PORT}"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml") if ".test." not in path.name)
WORKLOADS: dict[str, dict[str, Any]] = {
    "amadeus_ai_api": {"database": "{folder}/flights.db"},
    "attached_databases": {"registry": "{folder}/shops.db"},
    "csv_to_sqlite": {"database": "{folder}/people.db"},
    "databases": {"places": "sqlite:///{folder}/"},
    "delayed_reminder": {"wait": "250ms"},
    "files_duckdb": {"target": "{folder}/monthly.parquet"},
    "first_answer": {"mirrors": {"near": 0, "far": 2}},
    "incremental": {"database": "{folder}/events.db"},
    "job_polling": {"pause": "10ms"},
    "llm_sorting": {"model_url": "{chat}/v1"},
    "locked_work": {"folder": "{folder}"},
    "mcp_tools": {"mcp_url": "{mcp}/mcp"},
    "nats_messages": {"nats_url": "{nats}"},
    "object_store": {"store": "file://{folder}/objects"},
    "orders": {"warehouse": "{folder}/o.duckdb", "published": "{folder}/o.db"},
    "pagination": {"database": "{folder}/s.db"},
    "quantum_sweep": {"database": "{folder}/q.db", "angles": [1.5707963267948966]},
    "report": {"target": "{folder}/report.md"},
    "secret_manager": {"service_url": "{vault}/orders"},
    "table_files": {"database": "{folder}/readings.db", "readings": 4000},
    "transfer": {"warehouse": "{folder}/stock.duckdb", "target": "{folder}/places.csv"},
}
"""What examples write goes to a folder of each run's own; whom they ask is there. One angle is one
worker that imports Qiskit."""
SECRETS = (DEMO_TOKEN, FLIGHTS_TOKEN, Vault.token, Vault.key)
"""What the examples' services want to be shown, and nobody else may see."""
ANSWERS = {"approval": ("approval.received", {"approved": "yes", "account": "travel"})}
"""What examples wait for to hear from outside."""


MOMENTS_LOOKED_AT = 60


class Ran(NamedTuple):
    """How an example ended, and what happened on the way."""

    document: dict[str, Any]
    events: list[dict[str, Any]]


class Prepared(NamedTuple):
    """An example whose services run."""

    text: str
    workload: dict[str, Any]
    credentials: dict[str, tuple[str, dict[str, Any]]]
    called: list[str]
    """The playbooks that it calls."""
    answer: tuple[str, Any] | None

    def may_use_secrets(self) -> bool:
        """Whether it, or a playbook that it calls, names a credential that has one of SECRETS."""
        said = "\n".join([self.text, *self.called])
        return any(
            re.search(rf"\b{name}\b", said)
            for name, (_, data) in self.credentials.items()
            if any(secret in str(data) for secret in SECRETS)
        )

    def embedded(self) -> Ran:
        async def work(bench: Bench) -> Ran:
            for name, (kind, data) in self.credentials.items():
                await bench.system.keys.put(name, kind, data)
            for text in self.called:
                await bench.system.catalog.register(text)
            execution_id = await bench.start(self.text, self.workload)
            if self.answer is not None:
                await bench.system.executions.signal(execution_id, *self.answer)
            ended = await bench.ended(execution_id)
            rows = await bench.system.store.log.events(execution_id, limit=1_000_000)
            await moments_are_folds(bench.system.store, execution_id, rows)
            events = [documents.plain(documents.event(execution_id, row)) for row in rows]
            assert_clean(SECRETS, bench.folder, repr(ended), repr(events))
            return Ran(msgspec.to_builtins(ended.document), msgspec.to_builtins(events))

        return on_bench(work, labels="gpu=a100")

    def served(self, server: Server) -> Ran:
        for name, (kind, data) in self.credentials.items():
            server.post("/api/credentials", {"name": name, "type": kind, "data": data})
        for text in self.called:
            server.post("/api/catalog/register", {"content": text})
        execution_id = server.start(self.text, self.workload)
        if self.answer is not None:
            name, data = self.answer
            server.post(f"/api/executions/{execution_id}/events", {"name": name, "data": data})
        return Ran(server.ended(execution_id), server.events(execution_id))


async def moments_are_folds(store: Store, execution_id: str, rows: list[EventRow]) -> None:
    """The state at a moment is the fold of the log up to it, whichever was looked at before."""
    moments, state = Moments(store.log), ExecutionState()
    stride = max(len(rows) // MOMENTS_LOOKED_AT, 1)
    folds = {}
    for row in rows:
        evolve(state, decode(row.body))
        if row.seq % stride == 0:
            folds[row.seq] = refs.encode(state)
    looks = [*folds]
    for seq in looks[::-2] + looks[::2]:
        assert refs.encode((await moments.at(execution_id, seq)).state) == folds[seq], seq


@contextmanager
def prepared(name: str, folder: Path, postgres: dict[str, Any]) -> Iterator[Prepared]:
    """All that an example talks to, new and for as long as the body lasts."""
    with serving() as shop, services(name) as found:
        places = {"folder": str(folder), **found}
        text = (EXAMPLES / f"{name}.yaml").read_text().replace(DEMO_URL, shop)
        # It stands in the comment that says how to store it.
        text = text.replace(DEMO_TOKEN, "…")
        yield Prepared(
            text,
            filled(WORKLOADS.get(name, {}), places),
            credentials(shop, postgres, found),
            [one.replace(DEMO_URL, shop) for one in called_by(name, text)],
            ANSWERS.get(name),
        )


@contextmanager
def services(name: str) -> Iterator[dict[str, str]]:
    """The addresses of those services that only this example needs."""
    wanted = WORKLOADS.get(name, {})
    routes = {"llm_sorting": Sorter().routes(), "mcp_tools": mcp_routes()}
    routes["secret_manager"] = Vault().routes()
    if "nats_url" in wanted:
        with nats_server() as url:
            yield {"nats": url}
    elif name in routes:
        with answering(*routes[name]) as url:
            yield dict.fromkeys(("chat", "mcp", "vault"), url)
    else:
        yield {}


def credentials(
    shop: str, postgres: dict[str, Any], found: dict[str, str]
) -> dict[str, tuple[str, dict[str, Any]]]:
    client = {
        "type": "oauth2",
        "token_url": f"{shop}/v1/security/oauth2/token",
        "client_id": "demo",
        "client_secret": DEMO_TOKEN,
    }
    return {
        "shop": ("bearer", {"token": DEMO_TOKEN}),
        "openai": ("bearer", {"token": DEMO_TOKEN}),
        "amadeus": ("oauth2", client),
        "warehouse": ("postgres", postgres),
        "vault": ("generic", {"url": found.get("vault", ""), "token": Vault.token}),
    }


def called_by(name: str, text: str) -> list[str]:
    return [
        path.read_text()
        for path in EXAMPLES.glob("*.yaml")
        if re.search(rf"path: {re.escape('examples/' + path.stem)}\b", text) and path.stem != name
    ]


def filled(value: Any, places: dict[str, str]) -> Any:
    """The value with every `{place}` in its texts replaced."""
    match value:
        case dict():
            return {key: filled(one, places) for key, one in value.items()}
        case str():
            return re.sub(r"\{(\w+)\}", lambda found: places[found[1]], value)
    return value


# --- What is the same in two runs ----------------------------------------------------------------

_VARIES = re.compile(
    r"\b\d{13,19}\b"  # ids of executions and events; a derived one may be small
    r"|\b[0-9a-f]{18}\b"  # derived ids
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(?:Z|\+00:00)?"
    r"|127\.0\.0\.1:\d+"
    # drawn by the demo server:
    r"|(?<=flights-)[0-9a-f]{8}|(?<=rooms-)[0-9a-f]{8}|(?<=cars-)[0-9a-f]{8}"
)
_UNTOLD = frozenset(
    {"at", "duration", "elapsed", "elapsed_ms", "duration_ms", "fires_at", "worker", "until"}
    | {"roles"}  # of who answered
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
        "told",
        "checksum",
        "seal",
        "recorded_at",
        # On a server somebody else asks than here.
        "actor",
        "acts",
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
