"""
Every error a caller of this package can meet:

* NoetlError
  + PlaybookRejected       the YAML is not a playbook; carries the list of problems   (author)
  + EvaluationFailed       a template could not be evaluated                          (author)
    - UndefinedValue       it needs a value that is not there
    - BudgetExceeded       it would take too long or too much memory
  + BadSetting             an environment variable has a value we cannot use          (operator)
  + PluginRejected         an installed tool plug-in cannot be used                   (operator)

`code` is stable and safe to match on; the text is for people and says what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetl.model.problems import Problem


class NoetlError(Exception):
    """Root of everything we raise on purpose."""

    code = "error"


class PlaybookRejected(NoetlError):
    """The text is not a playbook we would run; `problems` says all that is wrong with it."""

    code = "playbook_rejected"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        errors = [problem for problem in problems if problem.severity == "error"]
        super().__init__("\n".join(str(problem) for problem in errors))
        self.problems = problems


class EvaluationFailed(NoetlError):
    """A template could not be evaluated with the values at hand."""

    code = "evaluation_failed"


class UndefinedValue(EvaluationFailed):
    """A value was needed that does not exist."""

    code = "undefined_value"


class BudgetExceeded(EvaluationFailed):
    """An evaluation was stopped because it would cost too much time or memory."""

    code = "budget_exceeded"


class BadSetting(NoetlError):
    """An environment variable holds a value that its setting cannot take."""

    code = "bad_setting"


class PluginRejected(NoetlError):
    """An installed tool plug-in does not load, is no tool, or takes a kind that is taken."""

    code = "plugin_rejected"
