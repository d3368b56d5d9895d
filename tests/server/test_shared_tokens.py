"""An OAuth 2 token that one worker fetched is used by all, kept sealed, and shown to nobody."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving, working
from tests.tools.web import Server as Web
from tests.tools.web import serving as web_serving

PRIVATE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: private, path: tried/private}
keychain: [{name: shop, kind: oauth2}]
workflow:
  - step: start
    spec: {pool: POOL}
    tool: {kind: http, url: "URL/private", auth: shop}
"""
KEY = "0123456789abcdef" * 4


class Shop(NamedTuple):
    """A server with a worker in each of two pools, and a service that wants a token."""

    server: Server
    web: Web
    folder: Path

    def asked_from(self, pool: str) -> object:
        """What the service answers to a worker of this pool."""
        text = PRIVATE.replace("POOL", pool).replace("URL", self.web.url)
        document = self.server.ended(self.server.start(text))
        assert document["status"] == "COMPLETED", document["error"]
        return document["result"]["data"]

    def cached(self) -> list[tuple[str, str, int, bytes]]:
        query = (
            "SELECT cache_type, scope_type, access_count, data_encrypted FROM noetl_auth_cache"
            " WHERE cache_type = 'token'"
        )
        with closing(sqlite3.connect(self.folder / ".noetl" / "noetl.db")) as db:
            return db.execute(query).fetchall()


@pytest.fixture
def shop() -> Iterator[Shop]:
    with (
        web_serving() as web,
        temporary_folder() as folder,
        serving(folder) as server,
        working(folder, server.url, "--pool", "a"),
        working(folder, server.url, "--pool", "b"),
    ):
        data = {
            "token_url": f"{web.url}/token",
            "client_id": "c",
            "client_secret": "canary-secret",
        }
        server.post("/api/credentials", {"name": "shop", "type": "oauth2", "data": data})
        yield Shop(server, web, folder)


def test_a_token_is_fetched_once_for_all_workers_and_again_when_it_is_refused(shop: Shop):
    assert [shop.asked_from(pool) for pool in "abab"] == [{"token": "***"}] * 4
    assert shop.web.tokens_given == 1
    [(cache_type, scope, count, sealed)] = shop.cached()
    assert (cache_type, scope, count) == ("token", "global", 2)
    assert b"token-1" not in sealed

    shop.web.good_tokens.clear()

    assert [shop.asked_from(pool) for pool in "abba"] == [{"token": "***"}] * 4
    assert shop.web.tokens_given == 2
    audit = shop.server.get("/api/access/audit")["entries"]
    assert [row["action"] for row in audit].count("token.read") == 3


def test_a_token_is_kept_for_its_life_and_no_longer(shop: Shop):
    path = f"/api/auth-cache/{KEY}"

    assert shop.server.ask("GET", path).status == 404
    for expires_in, status in ((1e-9, 404), (60, 200)):
        body = {"token": "canary-token", "expires_in": expires_in}
        assert shop.server.ask("PUT", path, body).status == 200
        assert shop.server.ask("GET", path).status == status
    assert shop.server.get(path)["token"] == "canary-token"
    short = shop.server.ask("PUT", "/api/auth-cache/short", {"token": "x", "expires_in": 1})
    assert (short.status, short.code) == (400, "bad_request")
