"""Real servers for the tests of tools, one of each for a whole test session."""

import pytest

from tests.conftest import postgres as postgres
from tests.conftest import postgres_server as postgres_server
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
