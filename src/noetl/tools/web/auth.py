"""Authentication of requests: the header or parameter, for every form of credential."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from noetl.model.secrets import without_values
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of, keep_token, known_token, secret_key
from noetl.tools.failures import Failed
from noetl.tools.plain_data import read_json
from noetl.tools.web.request import AnyAuth

DEFAULT_LIFE_SECONDS = 300.0


class Proof(NamedTuple):
    """What to add to a request. It is sent to the intended address and to no other."""

    headers: dict[str, str] = {}
    params: dict[str, str] = {}
    token_key: str = ""
    """The cache key of the token, if it came from there."""

    def __repr__(self) -> str:
        return without_values(self)


KINDS = ("bearer", "basic", "api_key", "oauth2")
"""How a caller proves who it is; a credential's type names one, alone or in a longer word."""
Fetch = Callable[[str, Mapping[str, str]], Awaitable[tuple[int, bytes]]]
"""Posts a form to a URL. Returns status and body."""


async def proof_of(auth: str | AnyAuth, context: ToolContext, fetch: Fetch) -> Proof:
    """Raises Failed if fields are missing or no token is issued."""
    if isinstance(auth, str):
        fields = await fields_of(auth, context)
        return await _proof(_kind_of(fields), fields, fetch, context)
    # Without defaults: a field that the task leaves out is the credential's.
    written: dict[str, Any] = msgspec.to_builtins(auth)
    kind, name = written.pop("type"), written.pop("credential", None)
    stored = await fields_of(name, context)
    return await _proof(kind, {**stored, **written}, fetch, context)


def kind_named(type_name: str) -> str:
    """The one of `KINDS` that a credential's type names; empty if it names none."""
    said = type_name.lower().replace("-", "_")
    return next((one for one in KINDS if one in said or one.replace("_", "") in said), "")


def _kind_of(fields: Mapping[str, Any]) -> str:
    """How a credential is used: by its type, otherwise by its fields."""
    if kind := kind_named(str(fields.get("type", ""))):
        return kind
    if "token_url" in fields:
        return "oauth2"
    if any(name in fields for name in ("token", "access_token", "bearer")):
        return "bearer"
    if "username" in fields or "user" in fields:
        return "basic"
    return "api_key" if any(name in fields for name in ("api_key", "apikey")) else "bearer"


async def _proof(kind: str, fields: Mapping[str, Any], fetch: Fetch, context: ToolContext) -> Proof:
    match kind:
        case "bearer":
            token = _field(fields, kind, "token", "access_token", "bearer", "api_key", "value")
            return Proof({"Authorization": f"Bearer {token}"})
        case "basic":
            user = _field(fields, kind, "username", "user")
            password = _field(fields, kind, "password")
            pair = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
            return Proof({"Authorization": f"Basic {pair}"})
        case "api_key":
            value = _field(fields, kind, "value", "api_key", "apikey", "token")
            name = str(fields.get("key") or fields.get("header") or "X-API-Key")
            if fields.get("place") == "query":
                return Proof(params={name: value})
            return Proof({name: value})
        case _:
            return await _oauth2(fields, fetch, context)


def _field(fields: Mapping[str, Any], kind: str, *names: str) -> str:
    for name in names:
        if fields.get(name) is not None:
            return str(fields[name])
    raise Failed(
        "auth",
        f"auth: {kind} needs `{names[0]}`, and neither the task nor its credential has it.",
    )


# --- OAuth 2, client credentials ---------------------------------------------------------------


async def _oauth2(fields: Mapping[str, Any], fetch: Fetch, context: ToolContext) -> Proof:
    url = _field(fields, "oauth2", "token_url")
    scope = fields.get("scope") or fields.get("scopes")
    fields_of_form = {
        "grant_type": "client_credentials",
        "client_id": _field(fields, "oauth2", "client_id"),
        "client_secret": _field(fields, "oauth2", "client_secret"),
        "scope": " ".join(scope) if isinstance(scope, list | tuple) else scope,
        "audience": fields.get("audience"),
    }
    form = {name: str(value) for name, value in fields_of_form.items() if value}
    key = secret_key(url, sorted(form.items()))
    token = await known_token(key, context)
    if token is not None:
        return Proof({"Authorization": f"Bearer {token}"}, token_key=key)
    token, life = _token(url, *await fetch(url, form))
    await keep_token(key, token, life, context)
    return Proof({"Authorization": f"Bearer {token}"})


def _token(url: str, status: int, body: bytes) -> tuple[str, float]:
    """An access token, and its lifetime in seconds."""
    if status != 200:
        raise Failed(
            "auth" if status < 500 else "server_error",
            f"auth: {url} gave no token; it answered {status}. Check the client's id, secret "
            "and scope.",
            status=status,
            retryable=status >= 500 or status == 429,
        )
    try:
        answer = read_json(body)
        life = float(answer.get("expires_in") or DEFAULT_LIFE_SECONDS)
        return str(answer["access_token"]), life
    except (msgspec.DecodeError, KeyError, AttributeError, TypeError, ValueError):
        raise Failed("auth", f"auth: the answer of {url} holds no `access_token`.") from None
