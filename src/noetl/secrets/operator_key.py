"""The operator's key: from a setting, or from a file beside a database that one process has.

A key in a setting is 32 bytes as base64 or hex, or a passphrase. A key file holds one key per line,
the newest first; it is created once, while nothing is sealed yet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl.errors import BadSetting, WrongKey
from noetl.secrets.vault import KEY_SIZE, Key, Vault, key_of

logger = logging.getLogger(__name__)

PASSPHRASE_MIN, PASSPHRASE_DIFFERENT_MIN = 16, 8
"""Characters, and different ones among them."""
SCRYPT: dict[str, Any] = {"n": 2**17, "r": 8, "p": 1, "maxmem": 2**28}
"""As OWASP advises it: 128 MiB, a few tenths of a second."""
_SALT = b"noetl-vault-2:"
_OLD_SALT = b"noetl-vault-1"
_OLD_SCRYPT: dict[str, Any] = {"n": 2**14, "r": 8, "p": 1}
"""How keys were derived from passphrases before; what they sealed still opens."""

MISSING = (
    "NOETL_SECRET_KEY is not set. What is encrypted in a PostgreSQL database must be readable by"
    " every server that shares it, so the key cannot be a file of one of them. Make a key once with"
    " `openssl rand -base64 32`, and set the same for all. If credentials were stored with a key"
    " file (.noetl/secret.key), set what that file holds."
)

SHORT = (
    "NOETL_SECRET_KEY is too short: it must be 32 bytes as base64 or hex"
    f" (`openssl rand -base64 32`), or a passphrase of at least {PASSPHRASE_MIN} characters."
)

WEAK = (
    "NOETL_SECRET_KEY is a passphrase that is easily guessed: it repeats itself, or has few"
    " different characters. Make a key with `openssl rand -base64 32`"
)


class OperatorKey(NamedTuple):
    """Where the key is."""

    text: str | None
    """The setting: one key, or several with commas, the newest first."""
    file: Path | None
    """None for a database that several processes share."""

    def require(self) -> None:
        """Raise BadSetting if the setting holds no key, or if each process would create a key of
        its own for a shared database.
        """
        if self.text is None:
            if self.file is None:
                raise BadSetting(MISSING)
        elif any(_is_short(text) for text in self.text.split(",")):
            raise BadSetting(SHORT)

    def vault(self, salt: str, *, may_create: bool = False) -> Vault:
        """What opens credentials. `may_create` a key file: nothing is sealed yet.

        `salt` is the installation's. With a passphrase this takes a few tenths of a second.
        """
        if self.text is not None:
            texts = self.text.split(",")
            self._refuse_weak(texts, is_new=may_create or len(texts) > 1)

            def older() -> list[Key]:
                return [key for text in texts if (key := older_key_from_text(text)) is not None]

            return Vault([key_from_text(text, salt) for text in texts], older)
        return Vault(keys_from_file(self._own_file(), may_create=may_create))

    def _refuse_weak(self, texts: list[str], *, is_new: bool) -> None:
        """The first key is the one that seals. One that sealed already is only warned about."""
        if not is_weak(texts[0]):
            return
        if is_new:
            raise BadSetting(f"{WEAK}.")
        logger.warning(
            "%s, put it before the old one with a comma, and run `noetl keys rotate`.", WEAK
        )

    def renewed(self, salt: str) -> Vault:
        """The vault that seals everything anew: with the key of the setting, or a new one in the
        file.
        """
        return self.vault(salt) if self.text is not None else Vault(add_key(self._own_file()))

    def forget_old(self) -> None:
        """Drop the old keys of the file: nothing is sealed with them any more. The operator removes
        those of the setting.
        """
        if self.text is None:
            drop_old_keys(self._own_file())

    def _own_file(self) -> Path:
        self.require()
        assert self.file is not None
        return self.file


# --- Keys in a setting ----------------------------------------------------------------------------


def key_from_text(text: str, salt: str) -> Key:
    """From a setting: 32 bytes as base64 or hex, or a passphrase of at least 16 characters.

    `salt` is the installation's own, so that nobody guesses the passphrases of all at once.
    """
    key = _written_out(text)
    if key is not None:
        return key
    if _is_short(text):
        raise WrongKey(SHORT)
    salted = _SALT + salt.encode()
    return key_of(hashlib.scrypt(text.encode(), salt=salted, dklen=KEY_SIZE, **SCRYPT))


def older_key_from_text(text: str) -> Key | None:
    """The key that was derived from this passphrase before; None if the text is a key itself."""
    if _written_out(text) is not None:
        return None
    made = hashlib.scrypt(text.encode(), salt=_OLD_SALT, dklen=KEY_SIZE, **_OLD_SCRYPT)
    return key_of(made)


def is_weak(text: str) -> bool:
    """Whether a passphrase is among the first that an attacker would try."""
    if _written_out(text) is not None:
        return False
    steps = {ord(b) - ord(a) for a, b in itertools.pairwise(text)}
    repeats = text in (text + text)[1:-1]
    return repeats or len(set(text)) < PASSPHRASE_DIFFERENT_MIN or len(steps) <= 2


def _is_short(text: str) -> bool:
    return len(text) < PASSPHRASE_MIN


def _written_out(text: str) -> Key | None:
    """The key that the text itself is; None for a passphrase."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return key_of(bytes.fromhex(text))
    try:
        secret = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
        if len(secret) == KEY_SIZE:
            return key_of(secret)
    except binascii.Error:
        return None
    return None


# --- Keys in a file -------------------------------------------------------------------------------


def keys_from_file(path: Path, *, may_create: bool) -> list[Key]:
    """The keys in a file, newest first. The file is created once, and never again unasked.

    `may_create`: no credential is stored yet, so a new key loses nothing.
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
    """Put a new key before those in the file: the first half of a rotation."""
    keys = keys_from_file(path, may_create=False)
    _write(path, [AESGCM.generate_key(KEY_SIZE * 8), *(key.secret for key in keys)], replace=True)
    return keys_from_file(path, may_create=False)


def drop_old_keys(path: Path) -> list[Key]:
    """Keep only the newest key: the second half of a rotation, when nothing needs the others."""
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
    """Atomic, and never readable by others; of two writers the first wins."""
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
            # Another process has created it meanwhile; its key is used.
            return
    finally:
        Path(temporary).unlink(missing_ok=True)
