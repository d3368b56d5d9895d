"""The problems of a document: one list, in document order, without duplicates."""

from __future__ import annotations

from collections.abc import Iterable

from noetl.dsl.codes import CODES
from noetl.dsl.nodes import Node, paths
from noetl.model.problems import Place, Problem, Severity
from noetl.model.spelling import did_you_mean

PROBLEMS_MAX = 500
"""More than anybody reads; a hostile document must not fill the memory with problems."""


SUGGESTIONS_MAX = 50
"""Each compares a word with all known ones, which is expensive in a large document."""


class Report:
    """Collects problems while a document is compiled."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self._refused = refused
        """Warnings that count as errors here."""
        self._found: dict[tuple[Place, str, str], None] = {}
        self._suggestions = 0
        self._paths: dict[Place, str] = {}
        self.has_errors = False
        self.is_full = False

    def add(self, code: str, message: str, place: Place) -> None:
        if self._severity(code) == "error":
            self.has_errors = True
        if not self.is_full:
            self._found.setdefault((place, code, message))
            self.is_full = len(self._found) >= PROBLEMS_MAX

    def _severity(self, code: str) -> Severity:
        return "error" if code in self._refused else CODES[code]

    def remember_paths(self, root: Node) -> None:
        """Call before pieces of the document move: problems name the paths as written."""
        if not self._paths:
            self._paths = paths(root)

    def suggest(self, word: str, known: Iterable[str]) -> str:
        """ " Did you mean …?", for the first problems of a document."""
        if self._suggestions >= SUGGESTIONS_MAX:
            return ""
        self._suggestions += 1
        return did_you_mean(word, known)

    def problems(self, root: Node | None) -> tuple[Problem, ...]:
        """All problems in the order of the text."""
        if not self._found:
            return ()
        where = self._paths or (paths(root) if root is not None else {})
        return tuple(
            Problem(
                code=code,
                severity=self._severity(code),
                message=message,
                line=place.line,
                column=place.column,
                path=where.get(place, ""),
            )
            for place, code, message in sorted(self._found)
        )
