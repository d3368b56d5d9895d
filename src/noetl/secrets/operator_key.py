"""The operator's key: from a setting, or from a file beside a database that one process has."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from noetl.errors import BadSetting
from noetl.secrets.vault import (
    Key,
    Vault,
    add_key,
    drop_old_keys,
    is_weak,
    key_from_text,
    keys_from_file,
    older_key_from_text,
)

logger = logging.getLogger(__name__)

MISSING = (
    "NOETL_SECRET_KEY is not set. What is encrypted in a PostgreSQL database must be readable by"
    " every server that shares it, so the key cannot be a file of one of them. Make a key once with"
    " `openssl rand -base64 32`, and set the same for all. If credentials were stored with a key"
    " file (.noetl/secret.key), set what that file holds."
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
        """Raise BadSetting where each process would make a key of its own for what all share."""
        if self.text is None and self.file is None:
            raise BadSetting(MISSING)

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
        """The vault to put everything into: under a key that was set, or a new one in the file."""
        return self.vault(salt) if self.text is not None else Vault(add_key(self._own_file()))

    def forget_old(self) -> None:
        """Nothing is under an old key any more. One that was set, the operator takes away."""
        if self.text is None:
            drop_old_keys(self._own_file())

    def _own_file(self) -> Path:
        self.require()
        assert self.file is not None
        return self.file
