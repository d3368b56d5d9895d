"""Real servers for the tests of tools, one of each for a whole test session."""

import pytest

from tests.conftest import postgres as postgres
from tests.conftest import postgres_server as postgres_server
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
