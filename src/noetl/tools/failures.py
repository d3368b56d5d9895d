"""How tools fail: the exceptions they raise, and the outcomes these become."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, ClassVar

from noetl.errors import BadRequest, Corrupted, NotFound
from noetl.model.outcome import ErrorKind, Outcome, TaskError, failed
from noetl.tools.plain_data import NotPlain

RETRYABLE = frozenset(["db_connection", "db_deadlock", "db_timeout", "connection", "timeout"])


class Failed(Exception):
    """The task failed because of its request or the answer; `outcome` holds the failure."""

    def __init__(
        self, kind: ErrorKind, message: str, *, retryable: bool | None = None, **fields: Any
    ) -> None:
        super().__init__(message)
        retryable = kind in RETRYABLE if retryable is None else retryable
        self.outcome = failed(kind, message, retryable=retryable, **fields)


def failed_with(known: Outcome | TaskError) -> Failed:
    """The exception for a known failure."""
    outcome = known if isinstance(known, Outcome) else Outcome(status="error", error=known)
    assert outcome.error is not None
    found = Failed(outcome.error.kind, outcome.error.message)
    found.outcome = outcome
    return found


class Foreseen(Exception):
    """An expected failure caused by the task or its data; each subclass has one error kind."""

    kind: ClassVar[ErrorKind]


class Refused(Foreseen):
    """The operator's rules do not allow this; the text says what and why."""

    kind = "auth"


def lacking(extra: str, *modules: str) -> Outcome | None:
    """The outcome of a task whose libraries are not installed on this worker; None if they are."""
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return None
    return failed(
        "client_error",
        f"This worker lacks {' and '.join(missing)}. Install it there with "
        f'`pip install "noetl[{extra}]"`.',
        code="missing_extra",
    )


async def guarded(work: Callable[[], Awaitable[Outcome]], total: float | None) -> Outcome:
    """Run the work, and turn failures that are common to all kinds into outcomes."""
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
    """The outcome of a failure that is common to all kinds; None for others."""
    match error:
        case Failed():
            return error.outcome
        case Foreseen():
            return failed(error.kind, str(error))
        case BadRequest():
            return failed("client_error", str(error), code=error.code)
        case NotFound():
            return failed("auth", f"auth: {error}")
        case Corrupted():
            return failed("parse", str(error), code=error.code)
        case NotPlain():
            return failed("schema", f"{error}.")
        case OverflowError() | UnicodeEncodeError():
            return failed("schema", f"A value cannot be stored: {error}.")
    return None
