"""Credentials at rest: each under a key of its own, and those keys under the operator's.

So a new operator's key means wrapping small keys anew, not encrypting everything again. What is
sealed is bound to the credential's name: a row that was moved or changed does not open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl.errors import Corrupted, WrongKey

MAGIC = b"NV1"
KEY_SIZE = 32
ID_SIZE = 8
NONCE_SIZE = 12
TAG_SIZE = 16
_HEAD = len(MAGIC) + ID_SIZE + NONCE_SIZE + KEY_SIZE + TAG_SIZE


class Key(NamedTuple):
    """An operator's key, and its id, which is stored with what it sealed."""

    secret: bytes
    id: bytes

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


def key_of(secret: bytes) -> Key:
    return Key(secret, hashlib.sha256(b"noetl-key-id" + secret).digest()[:ID_SIZE])


class Vault:
    """Seals with the first key, opens with any."""

    def __init__(
        self, keys: Sequence[Key], older: Callable[[], Sequence[Key]] | None = None
    ) -> None:
        """`older` keys take a while to derive, and are made only if none of `keys` fits."""
        assert keys
        self._keys = {key.id: key for key in keys}
        self._current = keys[0]
        self._older = older

    @property
    def secrets(self) -> list[bytes]:
        """The keys, newest first, for what is derived from them."""
        others = (key.secret for key in self._keys.values() if key is not self._current)
        return [self._current.secret, *others]

    def seal(self, name: str, fields: dict[str, Any]) -> bytes:
        own = AESGCM.generate_key(KEY_SIZE * 8)
        nonce = os.urandom(NONCE_SIZE)
        body = AESGCM(own).encrypt(nonce, msgspec.json.encode(fields), name.encode())
        return self._wrapped(name, own) + nonce + body

    def open(self, name: str, sealed: bytes) -> dict[str, Any]:
        """Raises WrongKey if none of our keys sealed it, Corrupted if it was changed since."""
        own = self._own_key(name, sealed)
        nonce, body = sealed[_HEAD : _HEAD + NONCE_SIZE], sealed[_HEAD + NONCE_SIZE :]
        try:
            found = msgspec.json.decode(AESGCM(own).decrypt(nonce, body, name.encode()))
        except (InvalidTag, ValueError):
            raise _damaged(name) from None
        assert isinstance(found, dict)
        return found

    def is_current(self, sealed: bytes) -> bool:
        """Whether the newest key sealed it; if not, `rotated` makes it so."""
        return sealed[len(MAGIC) : len(MAGIC) + ID_SIZE] == self._current.id

    def rotated(self, name: str, sealed: bytes) -> bytes:
        """The same under the newest key."""
        return self._wrapped(name, self._own_key(name, sealed)) + sealed[_HEAD:]

    def _wrapped(self, name: str, own: bytes) -> bytes:
        nonce = os.urandom(NONCE_SIZE)
        key = AESGCM(self._current.secret).encrypt(nonce, own, b"key:" + name.encode())
        return MAGIC + self._current.id + nonce + key

    def _own_key(self, name: str, sealed: bytes) -> bytes:
        if not sealed.startswith(MAGIC) or len(sealed) < _HEAD + NONCE_SIZE + TAG_SIZE:
            raise _damaged(name)
        at = len(MAGIC)
        key_id, at = sealed[at : at + ID_SIZE], at + ID_SIZE
        key = self._keys.get(key_id)
        if key is None and self._older is not None:
            self._keys |= {older.id: older for older in self._older()}
            self._older = None
            key = self._keys.get(key_id)
        if key is None:
            known = ", ".join(one.hex() for one in self._keys)
            raise WrongKey(
                f'The credential "{name}" was encrypted with the key {key_id.hex()}, but the key '
                f"at hand is {known}. Bring back the key file or NOETL_SECRET_KEY that was in use "
                "when it was stored, or store the credential again. Nothing was changed."
            )
        nonce = sealed[at : at + NONCE_SIZE]
        try:
            wrapped = sealed[at + NONCE_SIZE : _HEAD]
            return AESGCM(key.secret).decrypt(nonce, wrapped, b"key:" + name.encode())
        except InvalidTag:
            raise _damaged(name) from None


def _damaged(name: str) -> Corrupted:
    return Corrupted(
        f'The stored credential "{name}" is damaged: it is not what was encrypted under that '
        "name. Store it again."
    )
