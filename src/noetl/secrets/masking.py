"""The second line behind taint: known secret values, found again in whatever a tool says.

A driver may repeat a password in an error, a server may echo a token. Each secret is looked for
as it is and in the forms it travels in: base64 (also inside of something longer), hexadecimal,
URL-encoded, escaped as in JSON.

What people read (logs, errors, previews) and what programs read (results) are searched by
different rules. A `***` too many in a log does no harm. In a result it destroys data: with the
password `demo`, `demographics` must stay what it is. So in results a text is masked only if it is
a secret as a whole, or holds one that is too long to stand there by chance. Names of fields are
never changed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec

from noetl.errors import SecretInFile
from noetl.model.outcome import Outcome, TaskError
from noetl.templates.taint import MASK

_QUOTED = re.compile(r"[^\s\"'<>]*%[0-9A-Fa-f]{2}[^\s\"'<>]*")
"""An address with quoted characters; libraries quote the same text in many ways."""
SHORTEST = 4
"""A shorter text is found everywhere by chance; only taint can protect it."""
SHORTEST_IN_DATA = 16
"""Secrets from this length on are searched for inside the texts of a result."""
SHORTEST_NUMBER = 6
"""A number of fewer digits may be anything."""
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
"""Fields of a credential with an address or a name, which are no secrets."""
HIDDEN = "********"
TEXT_FORMS = frozenset(["ndjson", "json", "csv", "text", "xml"])
VALUE_FORMS = frozenset(["ndjson", "json", "csv"])
"""Files in which a value has a beginning and an end."""
PIECE = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024


def without_secrets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a credential for people: hosts and names are shown, secrets are not."""
    return {key: value if _is_open(key, value) else HIDDEN for key, value in fields.items()}


def _is_open(key: str, value: Any) -> bool:
    """An address with an `@` may hold a password."""
    return key in OPEN_FIELDS and isinstance(value, str | int) and "@" not in str(value)


class _Search:
    """Looks for some secrets in all their forms."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.secrets = frozenset(secrets)
        self.forms = {form for secret in self.secrets for form in _forms(secret)}
        longest_first = sorted(self.forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(re.escape(form) for form in longest_first))

    def masked(self, text: str) -> str:
        if not self.secrets or not text:
            return text
        masked = self._pattern.sub(MASK, text)
        return _QUOTED.sub(self._requoted, masked) if "%" in masked else masked

    def _requoted(self, found: re.Match[str]) -> str:
        """A word that turns into a secret when its percent signs are read, however it is quoted."""
        word = found[0]
        readings = (unquote(word), unquote_plus(word))
        shown = any(secret in reading for secret in self.secrets for reading in readings)
        return MASK if shown else word


class Mask:
    """The secrets of one task. False while there are none."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._all: _Search | None = None
        self._long: _Search | None = None

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def add(self, credential: Any) -> None:
        """A secret, a list of them, or the fields of a credential, of which some are open."""
        self._add(_texts(credential, OPEN_FIELDS))

    def add_given(self, value: Any) -> None:
        """A secret that a task was given: everything in it is secret, under any name."""
        self._add(_texts(value, frozenset()))

    def _add(self, texts: Iterable[str]) -> None:
        found = set(texts) - self._secrets
        if found:
            self._secrets |= found
            self._all = self._long = None

    # --- For people ---

    def text(self, text: str) -> str:
        """The text of a log, an error or a preview with `***` for every secret in it."""
        if not self._secrets or not text:
            return text
        if self._all is None:
            self._all = _Search(self._secrets)
        return self._all.masked(text)

    def shown(self, value: Any) -> Any:
        """A value that people look at: every text in it as in `text`, keys too."""
        if not self._secrets:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(key) if isinstance(key, str) else key: self.shown(part)
                for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.shown(part) for part in value]
        return value

    def lines(self, text: str) -> tuple[str, str]:
        """Split output that continues: the part that may be shown now, masked, and the rest.

        Whole lines may be shown, unless a secret of several lines may have begun in them.
        """
        end = text.rfind("\n") + 1
        for secret in self._secrets:
            if "\n" in secret:
                end -= _overlap(text[:end], secret)
        return self.text(text[:end]), text[end:]

    # --- For programs ---

    @property
    def _in_data(self) -> _Search:
        if self._long is None:
            self._long = _Search(one for one in self._secrets if len(one) >= SHORTEST_IN_DATA)
        return self._long

    def value(self, value: Any) -> Any:
        """Data with `***` for the secrets in it; what is none stays as it is.

        Keys are never changed. A mapping with a long secret in a key is masked as a whole.
        """
        if not self._secrets:
            return value
        if isinstance(value, str):
            return MASK if value in self._secrets else self._in_data.masked(value)
        if isinstance(value, dict):
            if self._in_data.secrets and any(map(self._is_secret_key, value)):
                return MASK
            return {key: self.value(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(part) for part in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = _digits(value)
            return MASK if text is not None and text in self._secrets else value
        return value

    def _is_secret_key(self, key: Any) -> bool:
        return (
            isinstance(key, str)
            and len(key) >= SHORTEST_IN_DATA
            and self._in_data.masked(key) != key
        )

    def file(self, path: Path, form: str) -> None:
        """Mask the secrets in a file as in any other data.

        Raises SecretInFile for a file that has one and is not text: it cannot be changed, nor kept.
        """
        if not self._secrets or not self._stands_in(path, form):
            return
        if form not in TEXT_FORMS:
            raise SecretInFile(
                f"The {form} file holds a secret that the task was given. It is not kept: leave "
                "the secret out of it, or write it to a place of your own."
            )
        masked = path.with_suffix(".masked")
        with path.open("rb") as source, masked.open("wb") as target:
            while line := source.readline(LINE_BYTES_MAX):
                if len(line) == LINE_BYTES_MAX:
                    raise SecretInFile(
                        f"The file holds a secret that the task was given, in a line of more than"
                        f" {LINE_BYTES_MAX:,} bytes, which cannot be masked. It is not kept."
                    )
                target.write(self._line(line, form))
        masked.replace(path)

    def _stands_in(self, path: Path, form: str) -> bool:
        """Whether a secret may be in there, searched piece by piece."""
        texts = set(self._in_data.forms)
        if form in VALUE_FORMS:
            # A whole value may be a secret, too; `_line` finds out.
            texts |= {msgspec.json.encode(one).decode()[1:-1] for one in self._secrets}
            texts |= self._secrets
        wanted = {one.encode("utf-8", "surrogatepass") for one in texts}
        if not wanted:
            return False
        longest = max(map(len, wanted))
        kept = b""
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                seen = kept + piece
                if any(one in seen for one in wanted):
                    return True
                kept = seen[-longest:]
        return False

    def _line(self, line: bytes, form: str) -> bytes:
        if form in ("ndjson", "json"):
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError:
                pass  # A part of a larger document: as text.
            else:
                found = self.value(value)
                return line if found == value else msgspec.json.encode(found) + b"\n"
        text = line.decode("utf-8", "surrogateescape")
        masked = self._in_data.masked(text)
        if form == "csv":
            masked = ",".join(self._cell(cell) for cell in masked.removesuffix("\n").split(",")) + (
                "\n" if masked.endswith("\n") else ""
            )
        return masked.encode("utf-8", "surrogateescape")

    def _cell(self, cell: str) -> str:
        return MASK if cell.strip('" \r') in self._secrets else cell

    # --- Outcomes ---

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
            code=self.shown(error.code),
            details=self.shown(error.details),
        )


def _overlap(text: str, secret: str) -> int:
    """How many characters at the end of a text are the beginning of a secret."""
    longest = min(len(secret) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(secret[:size])), 0)


def _digits(number: float) -> str | None:
    """A number as text, if it is long enough to be known again."""
    text = str(number)
    return text if sum(map(str.isdigit, text)) >= SHORTEST_NUMBER else None


def _texts(secret: Any, open_fields: frozenset[str]) -> Iterator[str]:
    if isinstance(secret, str):
        if len(secret) >= SHORTEST:
            yield secret
        if "\n" in secret:
            yield from (line for line in secret.splitlines() if len(line) >= LINE)
        if "://" in secret and "@" in secret:
            # An address with a password in it; the password alone is secret as well.
            password = secret.partition("://")[2].rpartition("@")[0].partition(":")[2]
            yield from _texts(password, open_fields)
    elif isinstance(secret, int | float) and not isinstance(secret, bool):
        text = _digits(secret)
        if text is not None:
            yield text
    elif isinstance(secret, Mapping):
        for name, part in secret.items():
            is_open = name in open_fields and not isinstance(part, Mapping | list)
            if not is_open or (isinstance(part, str) and _is_secret(part)):
                yield from _texts(part, open_fields)
    elif isinstance(secret, list | tuple | set | frozenset):
        for part in secret:
            yield from _texts(part, open_fields)


def _is_secret(text: str) -> bool:
    """Whether it gives itself away: an address with a password, a private key."""
    return ("://" in text and "@" in text) or "-----BEGIN" in text


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
    yield quote_plus(secret)
    # As a string stands inside JSON, inside JSON with only ASCII, and inside Python's.
    yield msgspec.json.encode(secret).decode()[1:-1]
    yield json.dumps(secret)[1:-1]
    yield secret.encode("unicode_escape").decode()
    data = secret.encode("utf-8", "surrogatepass")
    yield data.hex()
    yield data.hex().upper()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from (core for core in _cores(data, encode) if len(core) >= SHORTEST_CORE)


def _cores(data: bytes, encode: Any) -> Iterator[str]:
    """The part of their base64 that does not depend on what is before and behind these bytes."""
    yield encode(data).decode("ascii").rstrip("=") if len(data) % 3 == 0 else encode(data).decode()
    for before in range(3):
        text = encode(b"\0" * before + data).decode("ascii").rstrip("=")
        first = (before * 8 + 5) // 6
        last = (before + len(data)) * 8 // 6
        yield text[first:last]
