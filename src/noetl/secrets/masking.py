"""The second line behind taint: known secret values, found again in whatever a tool says.

A driver may repeat a password in an error, a server may echo a token. Each secret is looked for
as it is and in the forms it travels in: base64 (also inside of something longer), hexadecimal,
URL-encoded, escaped as in JSON.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec

from noetl.model.outcome import Outcome, TaskError
from noetl.templates.taint import MASK

_QUOTED = re.compile(r"[^\s\"'<>]*%[0-9A-Fa-f]{2}[^\s\"'<>]*")
"""An address with quoted characters; libraries quote the same text in many ways."""
SHORTEST = 4
"""A shorter text is found everywhere by chance; only taint can protect it."""
SHORTEST_CORE = 6
LINE = 20
"""Of a secret of several lines, each line that is at least this long is one too."""
OPEN_FIELDS = frozenset(
    [
        *("type", "kind", "host", "db_host", "hostname", "server", "hostaddr", "port", "db_port"),
        *("user", "db_user", "username", "dbname", "db_name", "database", "schema", "path"),
        *("sslmode", "db_sslmode", "options", "application_name", "connect_timeout"),
        *("token_url", "scope", "scopes", "audience", "client_id", "region", "project"),
        *("key", "header", "place", "endpoint", "endpoint_url", "account_name", "bucket"),
        *("access_key_id", "aws_access_key_id", "tenant_id", "client_email"),
    ]
)
"""Fields of a credential that say where and who, not how one gets in."""


class Mask:
    """The secrets of one task. False while there are none."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def add(self, secret: Any) -> None:
        """A secret, a list of them, or the fields of a credential (of which some are open)."""
        found = set(_texts(secret)) - self._secrets
        if found:
            self._secrets |= found
            self._pattern = None

    def text(self, text: str) -> str:
        """The text with `***` for every secret in it."""
        if not self._secrets or not text:
            return text
        if self._pattern is None:
            forms = {form for secret in self._secrets for form in _forms(secret)}
            longest_first = sorted(forms, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(re.escape(form) for form in longest_first))
        masked = self._pattern.sub(MASK, text)
        return _QUOTED.sub(self._requoted, masked) if "%" in masked else masked

    def _requoted(self, found: re.Match[str]) -> str:
        """A word that turns into a secret when its percent signs are read, however it is quoted."""
        word = found[0]
        readings = (unquote(word), unquote_plus(word))
        shown = any(secret in reading for secret in self._secrets for reading in readings)
        return MASK if shown else word

    def lines(self, text: str) -> tuple[str, str]:
        """Of a text that goes on: what may be shown by now, masked, and the rest.

        Whole lines may, unless a secret of several lines may have begun in them.
        """
        end = text.rfind("\n") + 1
        for secret in self._secrets:
            if "\n" in secret:
                end -= _overlap(text[:end], secret)
        return self.text(text[:end]), text[end:]

    def value(self, value: Any) -> Any:
        """A plain value with every text in it masked, keys too."""
        if not self._secrets:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(key) if isinstance(key, str) else key: self.value(part)
                for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(part) for part in value]
        return value

    def outcome(self, outcome: Outcome) -> Outcome:
        """The outcome as everyone may see it."""
        if not self._secrets:
            return outcome
        return msgspec.structs.replace(
            outcome,
            result=self.value(outcome.result),
            error=self._error(outcome.error),
            http=self.value(outcome.http),
            pg=self.value(outcome.pg),
            py=self.value(outcome.py),
            sh=self.value(outcome.sh),
        )

    def _error(self, error: TaskError | None) -> TaskError | None:
        if error is None:
            return None
        return msgspec.structs.replace(
            error,
            message=self.text(error.message),
            code=self.value(error.code),
            details=self.value(error.details),
        )


def _overlap(text: str, secret: str) -> int:
    """How much of the beginning of a secret stands at the end of a text."""
    longest = min(len(secret) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(secret[:size])), 0)


def _texts(secret: Any) -> Iterator[str]:
    if isinstance(secret, str):
        if len(secret) >= SHORTEST:
            yield secret
        if "\n" in secret:
            yield from (line for line in secret.splitlines() if len(line) >= LINE)
        if "://" in secret and "@" in secret:
            # An address with a password in it; the password alone is secret as well.
            password = secret.partition("://")[2].rpartition("@")[0].partition(":")[2]
            yield from _texts(password)
    elif isinstance(secret, Mapping):
        for name, part in secret.items():
            if name not in OPEN_FIELDS or not isinstance(part, str) or _is_secret(part):
                yield from _texts(part)
    elif isinstance(secret, list | tuple | set | frozenset):
        for part in secret:
            yield from _texts(part)


def _is_secret(text: str) -> bool:
    """Whether it gives itself away: an address with a password, a private key."""
    return ("://" in text and "@" in text) or "-----BEGIN" in text


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
    yield quote_plus(secret)
    # As a string stands inside JSON, and inside JSON with only ASCII.
    yield msgspec.json.encode(secret).decode()[1:-1]
    yield secret.encode("unicode_escape").decode()
    data = secret.encode("utf-8", "surrogatepass")
    yield data.hex()
    yield data.hex().upper()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from (core for core in _cores(data, encode) if len(core) >= SHORTEST_CORE)


def _cores(data: bytes, encode: Any) -> Iterator[str]:
    """What is sure to stand in the base64 of any text that holds these bytes."""
    yield encode(data).decode("ascii").rstrip("=") if len(data) % 3 == 0 else encode(data).decode()
    for before in range(3):
        text = encode(b"\0" * before + data).decode("ascii").rstrip("=")
        first = (before * 8 + 5) // 6
        last = (before + len(data)) * 8 // 6
        yield text[first:last]
