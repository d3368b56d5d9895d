"""A web service on this machine, of the kinds that playbooks in the field talk to.

Its answers depend on what was asked since `reset`, so that every run finds the same.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.tools.services import Handler, answering

TOKEN = "canary-bearer-token-7d21"
PASSWORD = "canary-basic-password-7d21"
CLIENT_SECRET = "canary-client-secret-7d21"
ACCESS_TOKEN = "canary-access-token-7d21"
VAULT_TOKEN = "canary-vault-token-7d21"
TENANT = "canary-tenant-7d21"
SECRETS = (TOKEN, PASSWORD, CLIENT_SECRET, ACCESS_TOKEN, VAULT_TOKEN, TENANT)
ASSESSMENTS, USERS, EVENTS = 35, 10, 12
ASKS_UNTIL_DONE = 3
NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Tony", "Alan")


class Service:
    """What the service remembers, and its routes."""

    def __init__(self) -> None:
        self.url = ""
        self.reset()

    def reset(self) -> None:
        self._asked: Counter[str] = Counter()

    @contextmanager
    def serving(self) -> Iterator[Service]:
        with answering(*self._routes()) as self.url:
            yield self

    def _routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/api/v1/assessments", self.assessments),
            ("GET", "/api/v1/flaky", self.flaky),
            ("GET", "/api/v1/users", self.users),
            ("GET", "/api/v1/events", self.events),
            ("GET", "/api/v1/patients/{id}", self.patient),
            ("GET", "/status/{code}", self.status),
            ("POST", "/echo", self.echo),
            ("GET", "/heavy", self.heavy),
            ("POST", "/jobs", self.submit),
            ("GET", "/jobs/{id}", self.job),
            ("GET", "/private", self.private),
            ("GET", "/basic", self.basic),
            ("POST", "/oauth/token", self.token),
            ("GET", "/oauth/data", self.oauth_data),
            ("GET", "/v1/{path:.*}", self.vault),
        ]

    # --- Lists in pages ---

    async def assessments(self, request: web.Request) -> web.Response:
        page, size = _number(request, "page", 1), _number(request, "pageSize", 10)
        first, last = (page - 1) * size, min(page * size, ASSESSMENTS)
        return web.json_response(
            {
                "data": [{"id": n + 1, "score": n % 7} for n in range(first, last)],
                "paging": {"page": page, "pageSize": size, "hasMore": last < ASSESSMENTS},
            }
        )

    async def flaky(self, request: web.Request) -> web.Response:
        """The first question for every page is refused."""
        key = f"flaky {request.query_string}"
        self._asked[key] += 1
        if self._asked[key] == 1:
            return web.json_response({"error": "busy"}, status=503)
        return await self.assessments(request)

    async def users(self, request: web.Request) -> web.Response:
        offset, limit = _number(request, "offset", 0), _number(request, "limit", 5)
        last = min(offset + limit, USERS)
        listed = [{"id": n + 1, "name": f"user {n + 1:02}"} for n in range(offset, last)]
        paging = {"offset": offset, "limit": limit, "total": USERS, "has_more": last < USERS}
        return web.json_response({"users": listed, **paging})

    async def events(self, request: web.Request) -> web.Response:
        start, limit = int(request.query.get("cursor") or 0), _number(request, "limit", 5)
        last = min(start + limit, EVENTS)
        kinds = ("login", "click", "logout")
        listed = [{"id": n, "kind": kinds[n % 3]} for n in range(start, last)]
        return web.json_response(
            {"events": listed, "next_cursor": str(last) if last < EVENTS else None}
        )

    # --- Single answers ---

    async def patient(self, request: web.Request) -> web.Response:
        number = int(request.match_info["id"])
        return web.json_response({"id": number, "name": NAMES[(number - 1) % len(NAMES)]})

    async def status(self, request: web.Request) -> web.Response:
        code = int(request.match_info["code"])
        return web.json_response({"error": f"answers {code}"}, status=code)

    async def echo(self, request: web.Request) -> web.Response:
        return web.json_response({"json": await request.json(), "method": request.method})

    async def heavy(self, request: web.Request) -> web.Response:
        count, width = _number(request, "items", 10), _number(request, "width", 10)
        items = [{"id": n + 1, "text": "x" * width} for n in range(count)]
        return web.json_response({"count": count, "items": items})

    async def submit(self, request: web.Request) -> web.Response:
        return web.json_response({"id": "job-1", "input": await request.json()})

    async def job(self, request: web.Request) -> web.Response:
        self._asked[request.path] += 1
        asked = self._asked[request.path]
        state = "done" if asked >= ASKS_UNTIL_DONE else "running"
        return web.json_response({"state": state, "asked": asked})

    # --- Behind a lock ---

    async def private(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "show a token"}, status=401)
        return web.json_response({"who": "bearer", "tenant": request.headers.get("X-Tenant")})

    async def basic(self, request: web.Request) -> web.Response:
        shown = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {shown}":
            return web.json_response({"error": "show a password"}, status=401)
        return web.json_response({"who": "basic"})

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        basic = base64.b64encode(f"field-client:{CLIENT_SECRET}".encode()).decode()
        if form.get("client_secret") != CLIENT_SECRET and basic not in request.headers.get(
            "Authorization", ""
        ):
            return web.json_response({"error": "invalid_client"}, status=401)
        answer = {"access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 600}
        return web.json_response(answer | {"scope": form.get("scope", "")})

    async def oauth_data(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {ACCESS_TOKEN}":
            return web.json_response({"error": "show an access token"}, status=401)
        return web.json_response({"scope": "read"})

    async def vault(self, request: web.Request) -> web.Response:
        """HashiCorp Vault, version 2 of its key-value engine, with two secrets."""
        if request.headers.get("X-Vault-Token") != VAULT_TOKEN:
            return web.json_response({"errors": ["permission denied"]}, status=403)
        secrets = {"apps/data/field/token": TOKEN, "apps/data/field/tenant": TENANT}
        found = secrets.get(request.match_info["path"])
        if found is None:
            return web.json_response({"errors": []}, status=404)
        return web.json_response({"data": {"data": {"value": found}, "metadata": {"version": 1}}})


def _number(request: web.Request, name: str, default: int) -> int:
    return int(request.query.get(name, default))


def credentials(url: str, postgres: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The stored credentials that the playbooks name."""
    spelled = {"db_host": postgres["host"], "db_user": postgres["user"]}
    return {
        "pg_field": ("postgres", postgres),
        "pg_field_db_names": ("postgres", spelled | {"db_name": postgres["dbname"]}),
        "field_bearer": ("bearer", {"token": TOKEN}),
        "field_basic": ("basic", {"username": "ada", "password": PASSWORD}),
        "field_client": (
            "generic",
            {"client_id": "field-client", "client_secret": CLIENT_SECRET},
        ),
        "field_vault": ("generic", {"url": url, "token": VAULT_TOKEN}),
    }
