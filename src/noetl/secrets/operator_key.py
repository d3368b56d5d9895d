"""The operator's key: from a setting, or from a file beside a database that one process has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from noetl.errors import BadSetting
from noetl.secrets.vault import Vault, add_key, drop_old_keys, key_from_text, keys_from_file

MISSING = (
    "NOETL_SECRET_KEY is not set. What is encrypted in a PostgreSQL database must be readable by"
    " every server that shares it, so the key cannot be a file of one of them. Make a key once with"
    " `openssl rand -base64 32`, and set the same for all. If credentials were stored with a key"
    " file (.noetl/secret.key), set what that file holds."
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

    def vault(self, *, may_create: bool = False) -> Vault:
        """What opens credentials. `may_create` a key file: nothing is sealed yet."""
        if self.text is not None:
            return Vault([key_from_text(part) for part in self.text.split(",")])
        return Vault(keys_from_file(self._own_file(), may_create=may_create))

    def renewed(self) -> Vault:
        """The vault to put everything into: under a key that was set, or a new one in the file."""
        return self.vault() if self.text is not None else Vault(add_key(self._own_file()))

    def forget_old(self) -> None:
        """Nothing is under an old key any more. One that was set, the operator takes away."""
        if self.text is None:
            drop_old_keys(self._own_file())

    def _own_file(self) -> Path:
        self.require()
        assert self.file is not None
        return self.file
