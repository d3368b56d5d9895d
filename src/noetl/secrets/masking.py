"""The last line before anything is recorded: secret values do not get past it.

Templates already mark what they compute from secrets. This catches what comes back from the other
side: an answer that echoes a token, an error that quotes a password, output that prints a key.
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from noetl.model.outcome import Outcome, TaskError

SHOWN = "***"
LENGTH_MIN = 4
"""Shorter values stand in too many innocent places to be hidden by search."""


class Mask:
    """Knows some secrets and hides them, also base64- or URL-encoded."""

    def __init__(self) -> None:
        self._hidden: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._hidden)

    def add(self, values: Any) -> None:
        """Hide these values and whatever texts stand inside them."""
        match values:
            case str():
                self._hidden.update(_forms(values))
            case bytes():
                self._hidden.update(_forms(values.decode("utf-8", errors="ignore")))
            case dict():
                for part in values.values():
                    self.add(part)
            case list() | tuple():
                for part in values:
                    self.add(part)
            case bool() | None:
                pass
            case int() | float():
                self._hidden.update(_forms(str(values)))

    def text(self, text: str) -> str:
        for secret in sorted(self._hidden, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, SHOWN)
        return text

    def value(self, value: Any) -> Any:
        """The same value with every secret in it hidden."""
        if not self._hidden:
            return value
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(str(key)): self.value(part) for key, part in value.items()}
            case list() | tuple():
                return [self.value(part) for part in value]
            case int() | float() if not isinstance(value, bool) and str(value) in self._hidden:
                return SHOWN
        return value

    def outcome(self, outcome: Outcome) -> Outcome:
        """The outcome as it may be recorded."""
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
            error, message=self.text(error.message), details=self.value(error.details)
        )


def _forms(secret: str) -> set[str]:
    """The value as it may turn up: plain, base64 in each alignment, URL-encoded."""
    if len(secret) < LENGTH_MIN:
        return set()
    forms = {secret, quote(secret, safe=""), quote_plus(secret)}
    raw = secret.encode("utf-8", errors="ignore")
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        # Characters at the edges depend on the neighbours; those between are the secret's own.
        start = (shift * 8 + 5) // 6
        end = len(encoded) - 4 if encoded.endswith("=") else len(encoded)
        inner = encoded[start:end]
        if len(inner) >= LENGTH_MIN * 2:
            forms.add(inner)
            forms.add(inner.replace("+", "-").replace("/", "_"))
    return forms
