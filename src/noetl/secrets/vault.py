"""Encryption of stored credentials.

Every credential has a data key of its own (AES-256-GCM); the data key is wrapped by the master
key, so that rotating the master key re-wraps a few bytes per credential and touches no data. The
master key comes from the operator, or from a file that is created once and never again by itself:
a key that is gone is an error, not an occasion to make a new one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl.errors import BadSetting, NoetlError

KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = 1


class WrongKey(NoetlError):
    """What is stored was encrypted with another key. Nothing was changed."""

    code = "wrong_key"


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """Encrypted data and the wrapped key it was encrypted with."""

    version: int
    key_id: str
    wrapped_key: bytes
    body: bytes


class Vault:
    """Seals and opens with one master key."""

    def __init__(self, master_key: bytes) -> None:
        if len(master_key) != KEY_BYTES:
            raise BadSetting(f"a master key has {KEY_BYTES} bytes; this one has {len(master_key)}.")
        self._master = AESGCM(master_key)
        self.key_id = hashlib.sha256(b"noetl key id" + master_key).hexdigest()[:16]

    def seal(self, name: str, fields: dict[str, Any]) -> bytes:
        """Encrypt; `name` is bound to the data, so that rows cannot be swapped unnoticed."""
        data_key = AESGCM.generate_key(bit_length=256)
        body = _encrypt(AESGCM(data_key), msgspec.json.encode(fields), name)
        wrapped = _encrypt(self._master, data_key, name)
        return msgspec.msgpack.encode(Sealed(VERSION, self.key_id, wrapped, body))

    def open(self, name: str, sealed: bytes) -> dict[str, Any]:
        """Decrypt. Raises WrongKey if it was sealed with another key, or tampered with."""
        box = self._box(name, sealed)
        try:
            data_key = _decrypt(self._master, box.wrapped_key, name)
            found = msgspec.json.decode(_decrypt(AESGCM(data_key), box.body, name))
        except InvalidTag:
            raise WrongKey(
                f'credential "{name}" was changed outside of NoETL and cannot be trusted.'
                " Set it again."
            ) from None
        assert isinstance(found, dict)
        return found

    def rewrap(self, name: str, sealed: bytes, new: Vault) -> bytes:
        """The same data under another master key."""
        box = self._box(name, sealed)
        data_key = _decrypt(self._master, box.wrapped_key, name)
        wrapped = _encrypt(new._master, data_key, name)
        return msgspec.msgpack.encode(Sealed(VERSION, new.key_id, wrapped, box.body))

    def _box(self, name: str, sealed: bytes) -> Sealed:
        box = msgspec.msgpack.decode(sealed, type=Sealed)
        if box.key_id != self.key_id:
            raise WrongKey(
                f'credential "{name}" was encrypted with key {box.key_id}, but the key in force is'
                f" {self.key_id}. Bring back the old key (NOETL_SECRET_KEY or the key file), or"
                " set the credential again."
            )
        return box


def _encrypt(cipher: AESGCM, data: bytes, name: str) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, data, name.encode())


def _decrypt(cipher: AESGCM, data: bytes, name: str) -> bytes:
    return cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name.encode())


def derived_key(text: str) -> bytes:
    """The master key from the operator's own words."""
    return hashlib.scrypt(text.encode(), salt=b"noetl master key", n=2**14, r=8, p=1, dklen=32)


def key_from_file(path: Path, *, may_create: bool) -> bytes:
    """The master key from its file. Created once, readable by its owner alone.

    `may_create` is false once anything is encrypted: then a missing file is a lost key.
    """
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        if not may_create:
            raise BadSetting(
                f"the key file {path} is gone, but credentials are encrypted with it. Bring it"
                " back from a backup, or set NOETL_SECRET_KEY; nothing was overwritten."
            ) from None
        return _create(path)
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadSetting(f"the key file {path} does not hold a key of {KEY_BYTES} bytes in hex.")
    return key


def _create(path: Path) -> bytes:
    key = os.urandom(KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    # O_EXCL: of two processes that start at once, one creates the key and the other reads it.
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return key_from_file(path, may_create=False)
    with os.fdopen(handle, "w") as file:
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return key
