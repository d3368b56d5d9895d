"""Fields of a task's credential, and access tokens, which are reused until they expire.

A token is fetched once and shared by all workers of a server. Its key is derived from the whole
request for it, including the secret: only a caller who could fetch the token can name it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from noetl.errors import NotAllowed, NotFound, WrongKey
from noetl.model.secrets import AccessToken
from noetl.tools.failures import Failed

if TYPE_CHECKING:
    from noetl.tools.base import Credential, ToolContext


# --- Fields ------------------------------------------------------------------------------------


async def fields_of(auth: Credential | None, context: ToolContext) -> dict[str, Any]:
    """The fields of a task's credential; empty without one. Raises Failed."""
    if auth is None:
        return {}
    try:
        return await context.credential(auth)
    except (NotFound, NotAllowed, WrongKey) as error:
        raise Failed("auth", f"auth: {error}", code=error.code) from error


def secret_key(*parts: Any) -> str:
    """The key under which something is kept that only those may have who know these parts."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def text_field(fields: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that is present."""
    found = (fields[name] for name in names if fields.get(name) is not None)
    return next((str(value) for value in found), None)


def needed(fields: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is present. Raises Failed, naming the first."""
    found = text_field(fields, *names)
    if found is None:
        raise Failed("auth", f"auth: the credential has no field `{names[0]}`.")
    return found


def bearer(fields: Mapping[str, Any]) -> dict[str, str]:
    """The header with the token, by default `Authorization`; empty without a token."""
    token = text_field(fields, "token", "access_token", "api_key", "apikey", "value")
    if token is None:
        return {}
    if header := text_field(fields, "header"):
        return {header: token}
    return {"Authorization": f"Bearer {token}"}


# --- Access tokens -----------------------------------------------------------------------------

EARLY_SECONDS = 30.0
"""A token is renewed this long before it expires."""


class SharedTokens(Protocol):
    """Tokens that this worker shares with others."""

    async def find(self, key: str) -> AccessToken | None: ...

    async def keep(self, key: str, token: AccessToken) -> None: ...

    def hide(self, text: str) -> None:
        """Mask this text in the output and outcome of the call."""


async def known_token(key: str, context: ToolContext) -> str | None:
    """A token that stays valid for a while; None if one has to be fetched."""
    own, shared = context.resources.access_tokens, context.shared_tokens
    token = own.get(key)
    if not _is_good(token) and shared is not None:
        found = await shared.find(key)
        # A token that was just refused may still be the shared one.
        if found is not None and (token is None or found.text != token.text):
            token = own[key] = found
    if token is None or not _is_good(token):
        return None
    if shared is not None:
        shared.hide(token.text)
    return token.text


async def keep_token(key: str, text: str, life: float, context: ToolContext) -> None:
    """Keep a token that was just fetched and is valid for `life` seconds."""
    token = AccessToken(text=text, expires_at=time.time() + life)
    context.resources.access_tokens[key] = token
    if context.shared_tokens is not None:
        context.shared_tokens.hide(text)
        await context.shared_tokens.keep(key, token)


def reject_token(key: str, context: ToolContext) -> bool:
    """The server refused the token. Returns whether it was a kept one, so that another try is
    worthwhile.
    """
    token = context.resources.access_tokens.get(key)
    if token is None:
        return False
    context.resources.access_tokens[key] = msgspec.structs.replace(token, expires_at=0.0)
    return True


def _is_good(token: AccessToken | None) -> bool:
    return token is not None and token.expires_at - EARLY_SECONDS > time.time()
