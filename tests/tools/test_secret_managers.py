"""kind: secrets with a secret manager: their protocols, spoken by local stand-ins."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from noetl.tools.secrets.managers import signed_headers
from tests.tools.running import failure, on_bench, ran
from tests.tools.secret_services import AWS, AZURE, GOOGLE, SECRET, VAULT, Managers
from tests.tools.secret_services import managers as managers
from tests.tools.services import answering, free_port, never, refusing


def read(managers: Managers, provider: str, fields: dict[str, Any], **config: Any) -> Any:
    written = {"provider": provider, "url": managers.url, "auth": "manager", **config}
    return ran("secrets", written, settings={"credentials": {"manager": fields}})


def test_a_vault_of_either_version_is_read(managers):
    whole = read(managers, "vault", VAULT, secret="kv/shop", project="team")
    field = read(managers, "vault", VAULT, secret="kv/data/shop", field="api_key", version=1)
    old = read(managers, "vault", VAULT, secret="old/shop")

    assert whole.result == {"api_key": f"{SECRET}-2", "user": "me"}
    assert field.result == f"{SECRET}-1"
    assert old.result == SECRET
    assert managers.seen[0].headers["X-Vault-Namespace"] == "team"


def test_a_role_gets_a_token_of_the_vault(managers):
    role = {"role_id": "r", "secret_id": "canary-secret-id"}
    good = read(managers, "vault", role, secret="kv/shop", field="user")
    bad = read(managers, "vault", {**role, "secret_id": "canary-no"}, secret="kv/shop")

    assert good.result == "me"
    assert failure(bad)[0] == "client_error"
    assert "canary" not in str(bad)


def test_google_is_asked_with_a_token_or_a_service_account(managers):
    pem = managers.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    account = {
        "client_email": "robot@example.com",
        "private_key": pem,
        "token_uri": f"{managers.url}/google/token",
    }
    latest = read(managers, "google", GOOGLE, secret="shop", project="p")
    third = read(managers, "google", account, secret="shop", project="p", version=3)
    text = {"value": json.dumps(account)}
    as_text = read(managers, "google", text, secret="shop", project="p")
    broken = read(managers, "google", {**account, "private_key": "x"}, secret="shop", project="p")

    assert latest.result == as_text.result == f"{SECRET}-latest"
    assert third.result == f"{SECRET}-3"
    assert failure(broken)[0] == "auth"


def test_azure_is_asked_with_a_token_or_a_client(managers):
    client = {
        "token_url": f"{managers.url}/azure/token",
        "client_id": "c",
        "client_secret": "canary-client-secret",
    }
    good = read(managers, "azure", client, secret="shop", field="password")
    bad = read(managers, "azure", {**client, "client_secret": "canary-no"}, secret="shop")

    assert good.result == SECRET
    assert read(managers, "azure", AZURE, secret="shop", version="v1").result == {
        "password": SECRET
    }
    assert failure(bad)[0] == "auth"
    assert "canary" not in str(bad)


def test_the_token_of_an_azure_client_is_kept_while_it_is_valid(managers):
    client = {
        "token_url": f"{managers.url}/azure/token",
        "client_id": "c",
        "client_secret": "canary-client-secret",
    }
    config = {"provider": "azure", "url": managers.url, "auth": client, "secret": "shop"}

    async def twice(bench):
        return [(await bench.run("secrets", config)).result for _ in range(2)]

    managers.seen.clear()
    assert on_bench(twice) == [{"password": SECRET}] * 2
    assert [one.path for one in managers.seen] == ["/azure/token"]


def test_aws_is_asked_with_a_signature_that_its_own_library_would_make(managers):
    good = read(managers, "aws", AWS, secret="shop")
    session = read(managers, "aws", {**AWS, "session_token": "canary-s"}, secret="shop")
    binary = read(managers, "aws", AWS, secret="shop", version="binary")
    forged = read(managers, "aws", {**AWS, "secret_access_key": "canary-no"}, secret="shop")

    assert good.result == session.result == {"password": SECRET}
    assert base64.b64decode(binary.result) == b"\0\1"
    assert failure(forged)[0] == "auth"
    assert "canary" not in str(forged)


def test_a_signature_does_not_change_from_call_to_call():
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = signed_headers("https://x.example.com/", "{}", {"A": "b"}, "eu-west-1", AWS, now)

    assert first == signed_headers(
        "https://x.example.com/", "{}", {"A": "b"}, "eu-west-1", AWS, now
    )
    assert "SignedHeaders=a;host;x-amz-date," in first["Authorization"]


@pytest.mark.parametrize(
    ("provider", "fields", "config", "kind"),
    [
        ("vault", VAULT, {"secret": "kv/nobody"}, "not_found"),
        ("vault", VAULT, {"secret": "kv/shop", "field": "gone"}, "not_found"),
        ("vault", {"token": "canary-no"}, {"secret": "kv/shop"}, "auth"),
        ("vault", {}, {"secret": "kv/shop"}, "auth"),
        ("vault", VAULT, {"secret": "odd/shop"}, "parse"),
        ("google", GOOGLE, {"secret": "shop"}, "client_error"),
        ("google", GOOGLE, {"secret": "nobody", "project": "p"}, "not_found"),
        ("google", {}, {"secret": "shop", "project": "p"}, "auth"),
        ("azure", AZURE, {"secret": "nobody"}, "not_found"),
        ("azure", {"tenant_id": "t"}, {"secret": "shop"}, "auth"),
        ("aws", AWS, {"secret": "nobody"}, "not_found"),
        ("aws", {}, {"secret": "shop"}, "auth"),
    ],
)
def test_s06_failures_are_named_and_show_no_secret(managers, provider, fields, config, kind):
    outcome = read(managers, provider, fields, **config)

    assert failure(outcome)[0] == kind
    assert "canary" not in msgspec.json.encode(outcome).decode()


@pytest.mark.parametrize("provider", ["vault", "google", "azure", "aws"])
def test_a_manager_that_is_not_there_silent_or_broken_is_named(managers, provider):
    config = {"secret": "kv/shop", "project": "p"}
    fields = {**VAULT, **AWS}

    def asked(url: str, **more: Any) -> Any:
        written = {"provider": provider, "url": url, "auth": fields, **config, **more}
        return failure(ran("secrets", written))[0]

    assert asked(f"http://127.0.0.1:{free_port()}") == "connection"
    with answering(("*", "/{rest:.*}", never)) as url:
        assert asked(url, timeout="200ms") == "timeout"
    with answering(("*", "/{rest:.*}", refusing(429))) as url:
        assert asked(url) == "rate_limit"
    with answering(("*", "/{rest:.*}", refusing(503))) as url:
        assert asked(url) == "server_error"
    with answering(("*", "/{rest:.*}", refusing(200, {"odd": 1}))) as url:
        assert asked(url) == "parse"


def test_a_vault_without_an_address_is_asked_for():
    assert (
        "Where is the vault?"
        in failure(ran("secrets", {"provider": "vault", "secret": "kv/x", "auth": VAULT}))[1]
    )


def test_a_token_does_not_follow_a_redirect():
    seen: list[str | None] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("X-Vault-Token"))
        return web.json_response({"data": {"value": "x"}})

    with answering(("*", "/{rest:.*}", elsewhere)) as other:

        async def away(request: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": f"{other}/v1/kv/data/x"})

        with answering(("*", "/{rest:.*}", away)) as url:
            config = {"provider": "vault", "secret": "kv/x", "url": url, "auth": VAULT}
            outcome = ran("secrets", config)

    assert failure(outcome)[0] == "client_error"
    assert seen == []
