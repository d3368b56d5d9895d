"""Access tokens are fetched once and used until they expire, by all workers of a server.

A token is found under a key that is computed from the whole request for it, secret included:
whoever can name it could fetch it as well.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from noetl.model.access_tokens import AccessToken

if TYPE_CHECKING:
    from noetl.tools.base import ToolContext

EARLY_SECONDS = 30.0
"""A token is renewed so long before it expires."""


class SharedTokens(Protocol):
    """What other workers have fetched, and what we have for them."""

    async def find(self, key: str) -> AccessToken | None: ...

    async def keep(self, key: str, token: AccessToken) -> None: ...

    def hide(self, text: str) -> None:
        """Mask this in whatever the call says."""


async def known_token(key: str, context: ToolContext) -> str | None:
    """A token that is good for a while yet; None if one has to be fetched."""
    own, shared = context.resources.access_tokens, context.shared_tokens
    token = own.get(key)
    if not _is_good(token) and shared is not None:
        found = await shared.find(key)
        # What was refused lately may still be what the others have.
        if found is not None and (token is None or found.text != token.text):
            token = own[key] = found
    if token is None or not _is_good(token):
        return None
    if shared is not None:
        shared.hide(token.text)
    return token.text


async def keep_token(key: str, text: str, life: float, context: ToolContext) -> None:
    """It was fetched just now, and lives for so many seconds."""
    token = AccessToken(text=text, expires_at=time.time() + life)
    context.resources.access_tokens[key] = token
    if context.shared_tokens is not None:
        context.shared_tokens.hide(text)
        await context.shared_tokens.keep(key, token)


def reject_token(key: str, context: ToolContext) -> bool:
    """It was refused. Whether it was one that we had kept, so that another is worth a try."""
    token = context.resources.access_tokens.get(key)
    if token is None:
        return False
    context.resources.access_tokens[key] = msgspec.structs.replace(token, expires_at=0.0)
    return True


def _is_good(token: AccessToken | None) -> bool:
    return token is not None and token.expires_at - EARLY_SECONDS > time.time()
