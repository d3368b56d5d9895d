"""
What can go wrong with a template, and when:

* TemplateRefused       at compile time: the text is not a valid template; carries the problems
* EvaluationFailed      at run time: it does not fit the values at hand
  - UndefinedValue      it needs a value that is not there
  - BudgetExceeded      it would take too long or too much memory

The run-time errors are those of `noetl.errors`. Their text names the place, the expression and the
cause. It never holds a value out of the scope: any of them may be a secret.
"""

from __future__ import annotations

from typing import NamedTuple

from noetl.errors import EvaluationFailed, NoetlError

SHOWN_MAX = 160


class TemplateProblem(NamedTuple):
    """One thing that is wrong with the text of a template."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class TemplateRefused(NoetlError):
    """The text is not a valid template; `problems` says what is wrong with it."""

    code = "template_refused"

    def __init__(self, problems: tuple[TemplateProblem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def shortened(text: str, limit: int = SHOWN_MAX) -> str:
    """The text on one line, cut in the middle if it is long."""
    line = " ".join(text[: 4 * limit].split())
    if len(line) <= limit and len(text) <= 4 * limit:
        return line
    return f"{line[: limit // 2]} … {' '.join(text[-limit // 2 :].split())}"


def explained(error: EvaluationFailed, source: str, place: str) -> EvaluationFailed:
    """The same error with the place and the expression before its cause."""
    where = f"{place}: " if place else ""
    return type(error)(f"{where}{shortened(source)}: {error}")
