"""What a failure is called, wherever it comes from."""

from __future__ import annotations

from noetl.errors import EvaluationFailed
from noetl.model.outcome import TaskError


def error_from(error: EvaluationFailed) -> TaskError:
    """A template that could not be evaluated, as the error of the step it belongs to."""
    return TaskError(kind="schema", code=error.code, message=str(error))
