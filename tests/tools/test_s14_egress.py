"""S14: no kind reaches a metadata service: by its number, by a name, or sent there by others."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from aiohttp import web

from noetl.tools.egress import EgressPolicy
from noetl.tools.registry import BUILT_IN
from noetl.tools.rules import Rules
from tests.tools.running import failure, ran
from tests.tools.services import answering

KNOWN = {"key": {"token": "t"}, "s3": {"access_key_id": "a", "secret_access_key": "b"}}
OUT = {"kind": "file", "path": "out.csv"}
CSV = {"kind": "file", "path": "in.csv"}
OAUTH = {"type": "oauth2", "token_url": "http://HOST/t", "client_id": "c", "client_secret": "s"}
SECRET = {"secret": "kv/shop", "auth": "key"}

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "http": ("http", {"url": "http://HOST/"}),
    "http download": ("http", {"url": "http://HOST/", "download": True}),
    "http proxy": ("http", {"url": "http://127.0.0.1:1/", "proxy": "http://HOST:3128"}),
    "http token": ("http", {"url": "http://127.0.0.1:1/", "auth": OAUTH}),
    "llm": ("llm", {"url": "http://HOST/v1", "model": "m", "prompt": "p"}),
    "mcp": ("mcp", {"url": "http://HOST/mcp", "tool_name": "t"}),
    "python script": ("python", {"script": "http://HOST/a.py"}),
    "vault": ("secrets", {**SECRET, "provider": "vault", "url": "http://HOST"}),
    "azure": ("secrets", {**SECRET, "provider": "azure", "url": "http://HOST"}),
    "transfer source": (
        "transfer",
        {"source": {"kind": "http", "url": "http://HOST/"}, "target": OUT},
    ),
    "transfer target": (
        "transfer",
        {"source": CSV, "target": {"kind": "http", "url": "http://HOST/"}},
    ),
    "transfer database": (
        "transfer",
        {"source": {"kind": "postgres", "auth": {"host": "NAME"}, "table": "t"}, "target": OUT},
    ),
    "store": ("store", {"op": "list", "url": "s3://b", "auth": "s3"}),
    "nats": ("nats", {"op": "publish", "subject": "s", "url": "nats://HOST:80"}),
    "kubernetes": (
        "container",
        {"image": "x", "runtime": "kubernetes", "auth": {"server": "http://HOST", "token": "t"}},
    ),
    "duckdb file": (
        "duckdb",
        {"files": {"t": "http://HOST/t.csv"}, "command": "SELECT * FROM t"},
    ),
    "duckdb attach": (
        "duckdb",
        {"attach": {"x": {"kind": "postgres", "auth": {"host": "NAME"}}}, "command": "SELECT 1"},
    ),
    "postgres": ("postgres", {"auth": {"host": "NAME", "port": 80}, "command": "SELECT 1"}),
    "sql": ("sql", {"url": "postgresql+psycopg://u@HOST:80/d", "command": "SELECT 1"}),
    "sql by a parameter": (
        "sql",
        {"url": "postgresql+psycopg://u@127.0.0.1:1/d?host=NAME", "command": "SELECT 1"},
    ),
    "sql by one of several": (
        "sql",
        {
            "url": "postgresql+psycopg://u@127.0.0.1:1/d?hostaddr=127.0.0.1,NAME",
            "command": "SELECT 1",
        },
    ),
    "sql by an option": (
        "sql",
        {
            "url": "postgresql+psycopg://u@127.0.0.1:1/d",
            "options": {"host": "NAME"},
            "command": "SELECT 1",
        },
    ),
    "sql by a part of a parameter": (
        "sql",
        {
            "url": "mssql+pyodbc:///?odbc_connect=Driver%3Dx%3BServer%3D%7Btcp:NAME,1433%7D",
            "command": "SELECT 1",
        },
    ),
    "mysql": ("mysql", {"auth": {"host": "NAME", "port": 80}, "command": "SELECT 1"}),
}
"""Each way in which a kind is told of another host: HOST, which is NAME with brackets if needed."""
ALONE = {
    *("noop", "shell", "playbook", "workbook", "sqlite", "artifact", "quantum"),
    *("snowflake", "clickhouse", "bigquery", "mssql", "oracle"),  # as mysql, by the same code
}
"""Kinds that reach no host themselves."""
METADATA = ("169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "metadata.example")


def bracketed(host: str) -> str:
    return f"[{host}]" if host.count(":") > 1 else host


def filled(value: Any, host: str) -> Any:
    if isinstance(value, dict):
        return {key: filled(part, host) for key, part in value.items()}
    if isinstance(value, str):
        return value.replace("HOST", bracketed(host)).replace("NAME", host)
    return value


@pytest.fixture
def metadata_name(monkeypatch):
    """A name that leads to a metadata service."""
    real = socket.getaddrinfo

    def resolved(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        meant = "169.254.169.254" if host == "metadata.example" else host
        return real(meant, port, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


def task(name: str, host: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    kind, config = TASKS[name]
    endpoint = filled("http://HOST", host)
    known = KNOWN | {"s3": {**KNOWN["s3"], "endpoint": endpoint, "region": "eu-west-1"}}
    return kind, filled(config, host), known


def test_s14_every_kind_is_tried_or_reaches_nobody():
    assert {kind for kind, _ in TASKS.values()} | ALONE == set(BUILT_IN)


@pytest.mark.usefixtures("metadata_name")
@pytest.mark.parametrize("host", METADATA)
@pytest.mark.parametrize("name", TASKS)
def test_s14_a_metadata_service_is_never_reached(name, host, tmp_path, monkeypatch):
    (tmp_path / "in.csv").write_text("n\n1\n")
    monkeypatch.chdir(tmp_path)
    kind, config, known = task(name, host)

    outcome = ran(kind, config, settings={"credentials": known}, timeout=30)

    assert "metadata service" in failure(outcome)[1], outcome


@pytest.mark.parametrize(
    "config",
    [
        {"url": "postgresql+psycopg:///d?conninfo=hostaddr%3D127.0.0.1"},
        {"url": "postgresql+psycopg://u@127.0.0.1/d", "options": {"conninfo": "service=x"}},
        {"url": "oracle+oracledb://u@127.0.0.1/d", "options": {"dsn": "127.0.0.1/d"}},
        {"url": "postgresql+psycopg://u@127.0.0.1/d", "options": {"host": "[::1"}},
        {"url": "postgresql+psycopg://u@/d?host=a]:b:c"},
    ],
)
def test_s14_a_host_that_cannot_be_judged_is_refused(config):
    assert failure(ran("sql", {**config, "command": "SELECT 1"}, timeout=30))[0] == "auth"


BY_HTTP = (
    *("http", "http download", "llm", "mcp", "python script", "vault", "azure"),
    *("transfer source", "transfer target", "kubernetes", "duckdb file"),
)


async def lead_astray(request: web.Request) -> web.StreamResponse:
    await request.read()
    raise web.HTTPTemporaryRedirect("http://169.254.169.254/latest/meta-data/")


@pytest.mark.parametrize("name", BY_HTTP)
def test_s14_a_redirect_leads_to_no_metadata_service(name, tmp_path, monkeypatch):
    (tmp_path / "in.csv").write_text("n\n1\n")
    monkeypatch.chdir(tmp_path)
    with answering(("*", "/{rest:.*}", lead_astray)) as url:
        kind, config, known = task(name, url.removeprefix("http://"))
        outcome = ran(kind, config, settings={"credentials": known}, timeout=30)

    # A kind that follows no redirect says so instead.
    message = failure(outcome)[1]
    assert "metadata service" in message or "307" in message, outcome


def test_s14_a_name_is_resolved_once_and_judged_by_that(web_server, monkeypatch):
    """DNS rebinding: the first answer is harmless, the next one is not."""
    real, port = socket.getaddrinfo, int(web_server.url.rpartition(":")[2])
    answers = ["169.254.169.254", "127.0.0.1"]

    def resolved(host: Any, asked: Any, *args: Any, **more: Any) -> Any:
        meant = answers.pop() if host == "fickle.example" else host
        return real(meant, asked, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    config = {"url": f"http://fickle.example:{port}/echo", "timeout": 30}

    harmless = ran("http", config)
    assert answers == ["169.254.169.254"]
    other = ran("http", config)

    assert harmless.is_ok
    assert "metadata service" in failure(other)[1]


PRIVATE = tuple(
    name
    for name, (kind, _) in TASKS.items()
    if kind not in ("postgres", "sql", "mysql")
    and name not in ("transfer database", "duckdb attach")
)
"""Databases may well be in a private network; the setting is about the rest."""


@pytest.mark.parametrize("name", PRIVATE)
def test_s14_private_networks_are_out_of_reach_where_the_operator_says_so(
    name, tmp_path, monkeypatch
):
    (tmp_path / "in.csv").write_text("n\n1\n")
    monkeypatch.chdir(tmp_path)
    kind, config, known = task(name, "10.1.2.3")
    rules = Rules(egress=EgressPolicy(private=False))

    outcome = ran(kind, config, settings={"credentials": known, "rules": rules}, timeout=30)

    assert "private network" in failure(outcome)[1], outcome
