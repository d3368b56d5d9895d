"""How tools fail: the exceptions they raise, and the outcomes these become.

A kind raises `Failed` wherever it notices a failure, and lets the errors of others pass; the worker
makes an outcome of each (`known_failure`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

from noetl.errors import (
    BadRequest,
    Corrupted,
    EvaluationFailed,
    NoetlError,
    NotAllowed,
    NotFound,
    WrongKey,
)
from noetl.model.outcome import ErrorKind, Outcome, TaskError, failed
from noetl.tools.limits import time_limit
from noetl.tools.plain_data import NotPlain

RETRYABLE = frozenset(
    [
        *("db_connection", "db_deadlock", "db_timeout", "connection", "timeout"),
        *("rate_limit", "server_error"),
    ]
)

KINDS: dict[type[NoetlError], ErrorKind] = {
    BadRequest: "client_error",
    NotFound: "not_found",
    NotAllowed: "auth",
    WrongKey: "auth",
    Corrupted: "parse",
    EvaluationFailed: "schema",
}
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Failed(Exception):
    """The task failed because of its request or the answer; `outcome` holds the failure."""

    def __init__(
        self, kind: ErrorKind, message: str, *, retryable: bool | None = None, **fields: Any
    ) -> None:
        super().__init__(message)
        retryable = kind in RETRYABLE if retryable is None else retryable
        self.outcome = failed(kind, message, retryable=retryable, **fields)

    @property
    def error(self) -> TaskError:
        assert self.outcome.error is not None
        return self.outcome.error


def failed_with(known: Outcome | TaskError) -> Failed:
    """The exception for a known failure."""
    outcome = known if isinstance(known, Outcome) else Outcome(status="error", error=known)
    assert outcome.error is not None
    found = Failed(outcome.error.kind, outcome.error.message)
    found.outcome = outcome
    return found


class Foreseen(Failed):
    """A failure caused by the task or its data; each subclass has one error kind."""

    kind: ClassVar[ErrorKind]

    def __init__(self, message: str) -> None:
        super().__init__(self.kind, message)


class Refused(Foreseen):
    """The operator's rules do not allow this; the text says what and why."""

    kind = "auth"


def need(extra: str, *modules: str) -> None:
    """Raise Failed if one of these libraries is not installed on this worker."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise Failed(
            "client_error",
            f"This worker lacks {' and '.join(missing)}. Install it there with "
            f'`pip install "noetl[{extra}]"`.',
            code="missing_extra",
        )


def require(config: object, field: str, needed: Mapping[str, tuple[tuple[str, ...], ...]]) -> None:
    """Raise Failed for what the value of a field needs and templates left out; `noetl validate`
    has told the rest (`needs_when` of the kind).
    """
    value = getattr(config, field)
    for group in needed.get(value, ()):
        if all(getattr(config, name) is None for name in group):
            names = " or ".join(f"`{name}`" for name in group)
            raise Failed("client_error", f"`{field}: {value}` needs {names}.")


def check_header(name: str, value: str) -> None:
    """Raise Failed for a header that would break the line, and could so bring others along."""
    if _CONTROL.search(name) or _CONTROL.search(value):
        raise Failed("client_error", f"headers: {name!r} holds a control character.")


@asynccontextmanager
async def within(
    limit: float | None, late: str, end: str = ".", *, who: str = ""
) -> AsyncIterator[None]:
    """Limit the time for what is inside. Raises Failed when it is over (the text is `late`, the
    seconds and `end`), and for what the rules refuse, in the name of `who`.
    """
    try:
        async with time_limit(limit):
            yield
    except Refused as refusal:
        raise Failed("auth", f"{who}: {refusal}" if who else str(refusal)) from None
    except TimeoutError:
        if limit is None:
            raise
        raise Failed("timeout", f"{late} {limit:g} s{end}") from None


def known_failure(error: BaseException) -> Outcome | None:
    """The outcome of a call that this error ended; None for one that nobody foresaw."""
    match error:
        case Failed():
            return error.outcome
        case NotPlain():
            return failed("schema", f"{error}.")
        case TimeoutError():
            return failed("timeout", "The task was not done in time.", retryable=True)
        case NoetlError():
            of_type = (kind for type_, kind in KINDS.items() if isinstance(error, type_))
            return failed(next(of_type, "unknown"), str(error), code=error.code)
    return None
