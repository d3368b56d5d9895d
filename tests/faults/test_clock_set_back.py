"""T20: the clock of PostgreSQL is an hour ahead for a moment, and set back: what begins afterwards
does not wait for that hour.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.cluster import Cluster, playbook, until
from tests.servers import empty_database, url_of

HOUR = 3600
DELAYED = playbook(
    "faults/delayed",
    """
- {step: start, tool: {kind: noop}, next: {arcs: [{step: end, spec: {delay: 1}}]}}
- {step: end, tool: {kind: noop, result: done}}
""",
)
OWN_CLOCK = """
CREATE TABLE public.ahead AS SELECT 0 AS seconds;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM public.ahead
$$;
ALTER DATABASE clock SET search_path = public, pg_catalog
"""


@pytest.fixture
def settable(postgres_server: Any, tmp_path: Path) -> Iterator[Cluster]:
    """On a database whose clock can be set."""
    empty_database(postgres_server, "clock")
    url = url_of(postgres_server, "clock")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(OWN_CLOCK)
    cluster = Cluster(tmp_path, url)
    yield cluster
    cluster.end()


def test_a_clock_that_is_set_back_stops_nothing(settable: Cluster):
    server = settable.server()
    settable.worker(server)
    database = settable.looking()

    def ahead() -> float:
        """Of the server, which looks at the clock of its database now and then."""
        made = server.start(DELAYED)
        query = "SELECT requested_at FROM noetl.execution WHERE execution_id = %s"
        [(at,)] = database.execute(query, [made]).fetchall()
        return float(at) - time.time()

    database.execute("UPDATE public.ahead SET seconds = %s", [HOUR])
    until(lambda: ahead() > HOUR / 2, "it does not go by the clock of its database")
    database.execute("UPDATE public.ahead SET seconds = 0")
    until(lambda: ahead() < HOUR / 2, "it stands still until the hour is over")

    assert server.ended(server.start(DELAYED))["result"] == "done"
