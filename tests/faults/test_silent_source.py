"""The source of a consumer vanishes without a word, and keeps its connections: the consumer reaches
it again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import psycopg
import pytest

from tests.faults.cluster import Cluster, playbook, until
from tests.faults.silence import proxy_to

PLAYBOOK = playbook("faults/taken", "- {step: start, tool: {kind: noop}}")
CONSUMER = """\
apiVersion: noetl.io/v2
kind: Consumer
metadata: {{name: in, path: faults/{name}}}
spec:
  source: {source}
  target: {{playbook: faults/taken}}
"""
SOURCES = {
    "rows": "{postgres: {auth: shop, table: outbox, mark: taken_at, every: 200ms}}",
    "told": "{postgres: {auth: shop, table: inbox, mark: taken_at, every: 1h, channel: inbox}}",
    "channel": "{postgres: {auth: shop, channel: orders}}",
    "stream": "{nats: {auth: bus, stream: SILENT, subject: SILENT.a}}",
    "subject": "{nats: {auth: bus, subject: heard}}",
}


async def published(url: str) -> None:
    """A message for the stream, and one that is not kept."""
    client = await nats.connect(url)
    stream = client.jetstream()
    await stream.add_stream(name="SILENT", subjects=["SILENT.>"])
    await stream.publish("SILENT.a", b"1")
    await client.publish("heard", b"1")
    await client.close()


@pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)
def test_a_consumer_whose_source_fell_silent_reaches_it_again(
    cluster: Cluster, postgres_server: Any, postgres: dict[str, str], nats_url: str
):
    shop = Path(postgres_server.pgdata) / ".s.PGSQL.5432"
    bus = urlsplit(nats_url).port
    assert bus is not None
    with (
        proxy_to(shop) as to_shop,
        proxy_to(bus) as to_bus,
        psycopg.connect(**postgres, autocommit=True) as db,  # type: ignore[arg-type]
    ):
        for table in ("outbox", "inbox"):
            db.execute(
                f"CREATE TABLE {table} (id serial PRIMARY KEY, taken_at timestamptz)".encode()
            )

        def send() -> None:
            """One for each source."""
            db.execute("INSERT INTO outbox DEFAULT VALUES; INSERT INTO inbox DEFAULT VALUES")
            db.execute("NOTIFY inbox; SELECT pg_notify('orders', '1')")
            asyncio.run(published(nats_url))

        send()
        server = cluster.server()
        place = {"host": "127.0.0.1", "port": str(to_shop.port)}
        server.post("/api/credentials", {"name": "shop", "data": postgres | place})
        url = f"nats://127.0.0.1:{to_bus.port}"
        server.post("/api/credentials", {"name": "bus", "data": {"url": url}})
        server.post("/api/catalog/register", {"content": PLAYBOOK})
        for name, source in SOURCES.items():
            text = CONSUMER.format(name=name, source=source)
            server.post("/api/catalog/register", {"content": text})

        def newest(name: str) -> str:
            """The last message that it took."""
            found = server.get(f"/api/consumers/faults/{name}", messages=1)["messages"]
            return found[0]["id"] if found else ""

        def all_took_another(before: dict[str, str]) -> bool:
            send()  # Two of the sources keep nothing for those who do not listen.
            return all(newest(name) != before[name] for name in SOURCES)

        def rows_left() -> int:
            query = (
                "SELECT count(*) FROM (TABLE outbox UNION ALL TABLE inbox) WHERE taken_at IS NULL"
            )
            [(left,)] = db.execute(query).fetchall()
            return int(left)

        until(lambda: all_took_another(dict.fromkeys(SOURCES, "")), "messages are not taken")
        # What waits notices sooner than what is in the middle of a statement.
        until(lambda: not rows_left(), "rows are not marked")
        for proxy in (to_shop, to_bus):
            proxy.go_silent()
        # What was sent before that may still be on its way.
        before = {name: newest(name) for name in SOURCES}
        for proxy in (to_shop, to_bus):
            proxy.let_through()

        until(lambda: all_took_another(before), "a consumer waits for one that has vanished")
