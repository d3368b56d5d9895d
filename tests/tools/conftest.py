"""Real servers for the tests of tools, one of each for a whole test session."""

from contextlib import closing

import duckdb
import psycopg
import pytest

from noetl.tools.duckdb import extensions
from tests.conftest import postgres_server as postgres_server
from tests.servers import empty_database, url_of
from tests.tools.canary_system import guarded
from tests.tools.services import answering, never, refusing
from tests.tools.web import serving


@pytest.fixture(scope="session")
def web_server():
    with serving() as server:
        yield server


@pytest.fixture
def web(web_server):
    web_server.seen.clear()
    web_server.good_tokens.clear()
    web_server.records.clear()
    web_server.received.clear()
    return web_server


@pytest.fixture(scope="session")
def silent():
    """A web server that never answers, but refuses under /403 and hands out JSON under /ok."""
    routes = [
        *(("*", f"/{code}{{rest:.*}}", refusing(code)) for code in (400, 403, 404, 429, 503)),
        ("*", "/ok{rest:.*}", refusing(200, {"data": {"value": "x"}})),
        ("*", "/nul{rest:.*}", refusing(200, {"data": "a\0b"})),
        ("*", "/text{rest:.*}", refusing(200, "no mapping")),
        ("*", "/{rest:.*}", never),
    ]
    with answering(*routes) as url:
        yield url


@pytest.fixture(scope="session")
def canary_system():
    with guarded() as system:
        yield system


# --- A database for each test ------------------------------------------------------------------

OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
BESIDES = """
SELECT (SELECT count(*) FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%')
  + (SELECT count(*) FROM pg_extension) + (SELECT count(*) FROM pg_event_trigger)
  + (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM pg_largeobject_metadata)
  + (SELECT count(*) FROM pg_foreign_data_wrapper) + (SELECT count(*) FROM pg_prepared_xacts)
  + (SELECT count(*) FROM pg_cast) + (SELECT count(*) FROM pg_db_role_setting)
  + (SELECT count(*) FROM pg_default_acl)
"""
"""How much there is that does not go with the schema `public`."""
ANEW = """
DROP SCHEMA public CASCADE;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC
"""


class EmptyDatabase:
    """A database that is emptied again and again: that takes a fifth of making another, which is
    done only if a test left more than tables. No connection stays that a test might count."""

    def __init__(self, server):
        self.server = server
        self.besides = None

    def empty(self):
        if self.besides is None or not self._was_emptied():
            empty_database(self.server, "trial")
            with self._connection() as connection:
                self.besides = connection.execute(BESIDES).fetchone()

    def _was_emptied(self):
        try:
            with self._connection() as connection:
                connection.execute(OTHERS)
                connection.execute(ANEW)
                return connection.execute(BESIDES).fetchone() == self.besides
        except psycopg.OperationalError:  # Somebody dropped it.
            return False

    def _connection(self):
        return psycopg.connect(url_of(self.server, "trial"), autocommit=True)


@pytest.fixture(scope="session")
def trial_database(postgres_server):
    return EmptyDatabase(postgres_server)


@pytest.fixture
def postgres(postgres_server, trial_database):
    """The fields of a credential for an empty database."""
    trial_database.empty()
    return {"host": str(postgres_server.pgdata), "user": "postgres", "dbname": "trial"}


# --- DuckDB's extensions -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A file in which the extensions are loaded already, for tasks that name it as their database:
    DuckDB checks a signature over 40 MB each time, which takes longer than the rest of a task."""
    place = str(tmp_path_factory.mktemp("loaded") / "loaded.duckdb")
    with closing(duckdb.connect(place)) as connection:
        for extension in ("sqlite", "postgres"):
            extensions.load(connection, extension)
        yield {"database": place}
