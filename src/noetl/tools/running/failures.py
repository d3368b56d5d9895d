"""How tools that work with data fail: one exception to raise, one place that makes outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from noetl.errors import Corrupted, NotFound, TooLarge
from noetl.model.outcome import ErrorKind, Outcome, TaskError, failed
from noetl.tools.running.pg_credentials import BadCredential
from noetl.tools.running.plain import NotPlain
from noetl.tools.running.resources import Refused
from noetl.tools.running.sql_tables import Misfit
from noetl.tools.running.sql_text import BadSql

RETRYABLE = frozenset(["db_connection", "db_deadlock", "db_timeout", "connection", "timeout"])


class Failed(Exception):
    """What the other side said, or what it was asked, made the task fail."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        code: str | int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.error = TaskError(
            kind=kind,
            message=message,
            code=code,
            retryable=kind in RETRYABLE if retryable is None else retryable,
        )


def failed_with(error: TaskError) -> Failed:
    """The exception for an error that is known already."""
    found = Failed(error.kind, error.message)
    found.error = error
    return found


async def guarded(work: Callable[[], Awaitable[Outcome]], total: float | None) -> Outcome:
    """The outcome of the work, also of its failures that are the same for every kind."""
    try:
        return await work()
    except TimeoutError:
        said = "in time" if total is None else f"within {total:g} seconds"
        return failed("timeout", f"The task was not done {said}.", retryable=True)
    except Exception as error:
        outcome = known_failure(error)
        if outcome is None:
            raise
        return outcome


def known_failure(error: BaseException) -> Outcome | None:
    """The outcome of a failure that is the same for every kind; None for others."""
    match error:
        case Failed():
            return Outcome(status="error", error=error.error)
        case BadSql() | TooLarge():
            return failed("client_error", str(error))
        case BadCredential() | Refused():
            return failed("auth", str(error))
        case NotFound():
            return failed("auth", f"auth: {error}")
        case Corrupted():
            return failed("parse", str(error), code=error.code)
        case Misfit():
            return failed("schema", str(error))
        case NotPlain():
            return failed("schema", f"{error}.")
        case OverflowError() | UnicodeEncodeError():
            return failed("schema", f"A value cannot be stored: {error}.")
    return None
