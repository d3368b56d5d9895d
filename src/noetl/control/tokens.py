"""Access tokens that workers fetched, kept for all of them until they expire.

This is a cache: whatever cannot be read is not there, and a worker fetches it again.
"""

from __future__ import annotations

import logging

from noetl.control.clock import Clock
from noetl.control.keys import Keys
from noetl.errors import NoetlError
from noetl.model.secrets import AccessToken
from noetl.store.access import Access
from noetl.store.credentials import CachedSecret, Credentials

logger = logging.getLogger(__name__)


class Tokens:
    """The tokens in the auth cache."""

    def __init__(self, credentials: Credentials, access: Access, keys: Keys, clock: Clock) -> None:
        self._credentials = credentials
        self._access = access
        self._keys = keys
        self._clock = clock

    async def find(self, key: str) -> AccessToken | None:
        """A token that has not expired. Each use is counted."""
        now = self._clock.now()
        row = await self._credentials.cached(_name(key), now=now)
        if row is None:
            return None
        try:
            fields = (await self._keys.vault()).open(row.cache_key, row.data_encrypted)
        except NoetlError as error:
            logger.warning("a cached token cannot be read: %s", error)
            return None
        await self._put(row.cache_key, row.data_encrypted, row.expires_at, now)
        return AccessToken(text=str(fields["token"]), expires_at=row.expires_at)

    async def keep(self, key: str, token: AccessToken) -> None:
        """Keep a token for all workers that ask with the same key."""
        name, now = _name(key), self._clock.now()
        await self._access.delete_expired(now)
        try:
            sealed = (await self._keys.vault()).seal(name, {"token": token.text})
        except NoetlError as error:
            logger.warning("a token cannot be kept for other workers: %s", error)
            return
        await self._put(name, sealed, token.expires_at, now)

    async def _put(self, name: str, sealed: bytes, expires_at: float, now: float) -> None:
        await self._credentials.put_cached(
            CachedSecret(
                cache_key=name,
                credential_name=name,
                credential_type="oauth2",
                cache_type="token",
                scope_type="global",
                data_encrypted=sealed,
                expires_at=expires_at,
                created_at=now,
                accessed_at=now,
            )
        )


def _name(key: str) -> str:
    return f"token:{key}"
