"""Credentials at rest: each under a key of its own, and those keys under the operator's.

So a new operator's key means wrapping small keys anew, not encrypting everything again. What is
sealed is bound to the credential's name: a row that was moved or changed does not open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
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
PASSPHRASE_MIN, PASSPHRASE_DIFFERENT_MIN = 16, 8
"""Characters, and different ones among them."""
SCRYPT: dict[str, Any] = {"n": 2**17, "r": 8, "p": 1, "maxmem": 2**28}
"""As OWASP advises it: 128 MiB, a few tenths of a second."""
_HEAD = len(MAGIC) + ID_SIZE + NONCE_SIZE + KEY_SIZE + TAG_SIZE
_SALT = b"noetl-vault-2:"
_OLD_SALT = b"noetl-vault-1"
_OLD_SCRYPT: dict[str, Any] = {"n": 2**14, "r": 8, "p": 1}
"""What passphrases were stretched with before: what was sealed then still opens."""


class Key(NamedTuple):
    """An operator's key and the name it goes by in what it sealed."""

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
        """`older` keys take a while to make, and are asked for only where none of `keys` fits."""
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
        """Raises WrongKey if our keys are others, Corrupted if it is not what was sealed."""
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


# --- Where keys come from ----------------------------------------------------------------------


def key_from_text(text: str, salt: str) -> Key:
    """From a setting: 32 bytes as base64 or hex, or a passphrase of at least 16 characters.

    `salt` is the installation's own, so that nobody guesses the passphrases of all at once.
    """
    key = _written_out(text)
    if key is not None:
        return key
    if len(text) < PASSPHRASE_MIN:
        raise WrongKey(
            f"NOETL_SECRET_KEY is too short: it must be 32 bytes as base64 or hex"
            " (`openssl rand -base64 32`), or a passphrase of at least"
            f" {PASSPHRASE_MIN} characters."
        )
    salted = _SALT + salt.encode()
    return key_of(hashlib.scrypt(text.encode(), salt=salted, dklen=KEY_SIZE, **SCRYPT))


def older_key_from_text(text: str) -> Key | None:
    """The key that this passphrase was made into before; None for a key that is written out."""
    if _written_out(text) is not None:
        return None
    made = hashlib.scrypt(text.encode(), salt=_OLD_SALT, dklen=KEY_SIZE, **_OLD_SCRYPT)
    return key_of(made)


def is_weak(text: str) -> bool:
    """Whether a passphrase is among the first that somebody would try."""
    if _written_out(text) is not None:
        return False
    steps = {ord(b) - ord(a) for a, b in itertools.pairwise(text)}
    repeats = text in (text + text)[1:-1]
    return repeats or len(set(text)) < PASSPHRASE_DIFFERENT_MIN or len(steps) <= 2


def _written_out(text: str) -> Key | None:
    """The key that a text is, if it is no passphrase."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return key_of(bytes.fromhex(text))
    try:
        secret = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
        if len(secret) == KEY_SIZE:
            return key_of(secret)
    except binascii.Error:
        return None
    return None


def keys_from_file(path: Path, *, may_create: bool) -> list[Key]:
    """The keys in a file, newest first. It is created once, and never again behind our back.

    `may_create` says that no credential is stored yet, so that a new key loses nothing.
    """
    try:
        _check_private(path)
        lines = path.read_text("ascii").split()
        secrets = [base64.b64decode(line, validate=True) for line in lines]
    except FileNotFoundError:
        if not may_create:
            raise WrongKey(
                f"The key file {path} is gone, but there are credentials that were encrypted with "
                "it. Bring it back from your backup, or set NOETL_SECRET_KEY. Nothing was changed."
            ) from None
        _write(path, [AESGCM.generate_key(KEY_SIZE * 8)], replace=False)
        return keys_from_file(path, may_create=False)
    except (UnicodeDecodeError, binascii.Error):
        secrets = []
    if not secrets or any(len(secret) != KEY_SIZE for secret in secrets):
        raise WrongKey(
            f"The key file {path} is not a key file any more. Bring it back from your backup. "
            "Nothing was changed."
        )
    return [key_of(secret) for secret in secrets]


def add_key(path: Path) -> list[Key]:
    """A new key before the ones in the file: first half of a rotation."""
    keys = keys_from_file(path, may_create=False)
    _write(path, [AESGCM.generate_key(KEY_SIZE * 8), *(key.secret for key in keys)], replace=True)
    return keys_from_file(path, may_create=False)


def drop_old_keys(path: Path) -> list[Key]:
    """Only the newest key stays: second half of a rotation, when nothing needs the others."""
    keys = keys_from_file(path, may_create=False)
    _write(path, [keys[0].secret], replace=True)
    return keys[:1]


def _check_private(path: Path) -> None:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise WrongKey(
            f"The key file {path} can be read by others (mode {mode:04o}). Run `chmod 600 {path}`."
        )


def _write(path: Path, secrets: Sequence[bytes], *, replace: bool) -> None:
    """Whole or not at all, readable by nobody else at any moment; the first of two wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{base64.b64encode(secret).decode()}\n" for secret in secrets)
    # mkstemp makes files of mode 0600.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
            return
        try:
            os.link(temporary, path)
        except FileExistsError:
            # Another process made it just now; theirs is the one.
            return
    finally:
        Path(temporary).unlink(missing_ok=True)
