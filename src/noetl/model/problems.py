"""What is wrong with a playbook, and where: the one shape all checks speak."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]


class Place(msgspec.Struct, frozen=True, order=True):
    """A position in the text people wrote. Both count from 1."""

    line: int
    column: int


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. The message says what, why and what to do; the code is stable."""

    code: str
    severity: Severity
    message: str
    line: int
    column: int
    path: str = ""
    """Where in the document, e.g. `workflow[2].tool[0].url`."""

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message} [{self.code}]"
