"""The outcome of a call, in the one form that rules, events and people read."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from noetl.errors import EvaluationFailed

ErrorKind = Literal[
    "timeout",
    "connection",
    "rate_limit",
    "auth",
    "not_found",
    "client_error",
    "server_error",
    "schema",
    "parse",
    "db_connection",
    "db_constraint",
    "db_deadlock",
    "db_timeout",
    "exception",
    "cancelled",
    "lease_lost",
    "quota",
    "unknown",
]
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)


class TaskError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure that the tool expected and classified."""

    kind: ErrorKind
    code: str | int | None = None
    message: str
    retryable: bool = False
    retry_after: float | None = None
    """Seconds to wait, as requested by the other side."""
    status: int | None = None
    """HTTP status, where there is one: `error.status` in event rules."""
    details: Any = None


def error_from(error: EvaluationFailed) -> TaskError:
    """A template that could not be evaluated, as the error of its step."""
    return TaskError(kind="schema", code=error.code, message=str(error))


def error_value(error: TaskError | None) -> dict[str, Any] | None:
    """An error as templates see it."""
    return None if error is None else msgspec.structs.asdict(error)


LOOP_ERRORS_MAX = 100
"""How many errors of failed iterations a loop's result holds: the first in order. `stats.failed`
counts all."""
LOOP_ERROR_TEXT = 500


def loop_error(index: int, error: TaskError) -> dict[str, Any]:
    """Why an iteration failed, for the result of its loop: without details, which may be long, and
    with the beginning of its message.
    """
    short = msgspec.structs.replace(error, message=error.message[:LOOP_ERROR_TEXT], details=None)
    return {"index": index, "error": error_value(short)}


class Meta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Circumstances of the call."""

    attempt: int = 1
    duration: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    action_id: str = ""
    trace_id: str = ""
    usage: Any = None


DETAILS = ("http", "pg", "py", "sh")
"""Fields beside the result, by the name under which templates read them."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one per call."""

    status: Literal["ok", "error"]
    result: Any = None
    error: TaskError | None = None
    meta: Meta = Meta()
    http: dict[str, Any] | None = None
    pg: dict[str, Any] | None = None
    py: dict[str, Any] | None = None
    sh: dict[str, Any] | None = None

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


def ok(result: Any = None, **fields: Any) -> Outcome:
    """A success with the call's result; `fields` are those of the outcome."""
    return Outcome(status="ok", result=result, **fields)


def failed(kind: ErrorKind, message: str, **fields: Any) -> Outcome:
    """An error outcome; `fields` are those of the error."""
    return Outcome(status="error", error=TaskError(kind=kind, message=message, **fields))
