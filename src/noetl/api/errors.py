"""The one place where errors become answers: one table, one shape, no internals."""

from __future__ import annotations

import logging
from typing import Any

from noetl.api.route import Malformed
from noetl.errors import (
    BadInputs,
    BadQuery,
    BadRequest,
    BadText,
    Compressed,
    Conflict,
    EvaluationFailed,
    KeyReused,
    NoetlError,
    NotAllowed,
    NotFound,
    PlaybookRejected,
    StoreError,
    TooLarge,
    TooMany,
    Unauthenticated,
    UnknownKey,
)
from noetl.model.answers import Error, ErrorAnswer

logger = logging.getLogger(__name__)


class WrongMethod(BadRequest):
    """The route does not answer this method; `Allow` names those it does."""

    def __init__(self, message: str, allow: bytes) -> None:
        super().__init__(message)
        self.allow = allow


STATUS: dict[type, int] = {
    WrongMethod: 405,
    BadRequest: 400,
    Unauthenticated: 401,
    NotAllowed: 403,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    Compressed: 415,
    BadInputs: 422,
    BadText: 422,
    UnknownKey: 422,
    KeyReused: 422,
    PlaybookRejected: 422,
    EvaluationFailed: 422,
    TooMany: 429,
    StoreError: 503,
    NoetlError: 500,
}

STATUS_WORDS = {
    400: "The request is invalid; the message names the field.",
    401: "Not signed in.",
    403: "The caller's roles do not allow this.",
    404: "Not found.",
    405: "The route does not answer this method.",
    409: "The resource has changed meanwhile.",
    413: "The body is larger than this route reads.",
    415: "The body is compressed; bodies are read as they are.",
    422: "A key is unknown, the text is not a playbook, or inputs do not match.",
    429: "Too many attempts.",
    503: "The database is not reachable at the moment.",
}
"""What each status of an error means, for the description of the API."""


def problem_of(error: Exception, request_id: str) -> tuple[int, ErrorAnswer]:
    """The answer to an error. Details of internal errors are logged, not sent."""
    if isinstance(error, UnicodeDecodeError | RecursionError):
        is_deep = isinstance(error, RecursionError)
        message = "the body is nested too deeply." if is_deep else "the body is not UTF-8."
        return STATUS[BadRequest], ErrorAnswer(error=Error(code=BadRequest.code, message=message))
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    if not isinstance(error, NoetlError) or status >= 500:
        logger.error("a request failed", exc_info=error, extra={"request_id": request_id})
        code, said = "internal", "Internal error."
        if isinstance(error, NoetlError):
            code, said = error.code, said_of(error)
        message = f"{said} The server's log has more under request {request_id}."
        return status, ErrorAnswer(error=Error(code=code, message=message))
    details: Any = error.details if isinstance(error, Malformed) else None
    if isinstance(error, BadQuery):
        place = {"at": error.at, "length": error.length}
        details = [{"key": "q", "message": str(error), "source": "query", **place}]
    if isinstance(error, PlaybookRejected | BadInputs):
        details = {"problems": list(error.problems)}
    return status, ErrorAnswer(error=Error(code=error.code, message=str(error), details=details))


def said_of(error: Exception) -> str:
    """The kind of the error without its details, for callers who may not see those."""
    return " ".join((type(error).__doc__ or "").split())
