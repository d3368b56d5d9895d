"""Where checks put what they find: one list, in document order, nothing twice."""

from __future__ import annotations

from collections.abc import Iterable

from noetl.dsl.codes import CODES
from noetl.dsl.nodes import Node, paths
from noetl.model.problems import Place, Problem
from noetl.model.spelling import did_you_mean

PROBLEMS_MAX = 500
"""More than anybody reads; a hostile document must not fill the memory with complaints."""


SUGGESTIONS_MAX = 50
"""Each compares a word with all it could have meant, which a large document makes dear."""


class Report:
    """Collects problems while a document is compiled."""

    def __init__(self) -> None:
        self._found: dict[tuple[Place, str, str], None] = {}
        self._suggestions = 0
        self.has_errors = False

    def add(self, code: str, message: str, place: Place) -> None:
        if CODES[code].severity == "error":
            self.has_errors = True
        if len(self._found) < PROBLEMS_MAX:
            self._found.setdefault((place, code, message))

    def suggest(self, word: str, known: Iterable[str]) -> str:
        """ " Did you mean …?", as long as anybody would still read it."""
        if self._suggestions >= SUGGESTIONS_MAX:
            return ""
        self._suggestions += 1
        return did_you_mean(word, known)

    def problems(self, root: Node | None) -> tuple[Problem, ...]:
        """All problems in the order of the text."""
        if not self._found:
            return ()
        where = paths(root) if root is not None else {}
        return tuple(
            Problem(
                code=code,
                severity=CODES[code].severity,
                message=message,
                line=place.line,
                column=place.column,
                path=where.get(place, ""),
            )
            for place, code, message in sorted(self._found)
        )
