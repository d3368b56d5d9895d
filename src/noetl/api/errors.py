"""Errors become answers here, and only here: one table, one shape, no internals."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec

from noetl.api.manners import unknown_key
from noetl.errors import (
    BadRequest,
    BadText,
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

logger = logging.getLogger(__name__)

STATUS: dict[type[NoetlError], int] = {
    BadRequest: 400,
    Unauthenticated: 401,
    NotAllowed: 403,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    BadText: 422,
    UnknownKey: 422,
    KeyReused: 422,
    PlaybookRejected: 422,
    EvaluationFailed: 422,
    TooMany: 429,
    StoreError: 503,
    NoetlError: 500,
}
CODES = {400: "bad_request", 404: "not_found", 405: "bad_request", 413: "too_large"}
"""What the framework itself refuses."""


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is stable and safe to match on; `message` is for people."""

    code: str
    message: str
    details: Any = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    error: Error


RESPONSES = {
    status: ResponseSpec(ErrorAnswer, description=text, generate_examples=False)
    for status, text in {
        400: "what was asked for makes no sense",
        401: "we do not know who asks",
        403: "whoever asks may not do this",
        404: "there is nothing of that name",
        405: "nothing here answers this method",
        409: "it is in another state by now",
        413: "it is larger than we read",
        422: "it is not a playbook, or cannot be evaluated",
        429: "too many tries",
        503: "the database is out of reach for the moment",
    }.items()
}


def status_of(error: NoetlError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_of(error: Exception, request_id: str) -> tuple[int, ErrorAnswer]:
    """The answer to an error. What is our own fault is logged and not told."""
    if isinstance(error, HTTPException):
        return _refused(error, request_id)
    if isinstance(error, UnicodeDecodeError | RecursionError):
        is_deep = isinstance(error, RecursionError)
        message = "the body is nested too deeply." if is_deep else "the body is not UTF-8."
        return STATUS[BadRequest], ErrorAnswer(error=Error(code=BadRequest.code, message=message))
    if not isinstance(error, NoetlError) or status_of(error) >= 500:
        return _own_fault(error, request_id)
    details: Any = None
    if isinstance(error, PlaybookRejected):
        details = {"problems": list(error.problems)}
    return status_of(error), ErrorAnswer(
        error=Error(code=error.code, message=str(error), details=details)
    )


def _refused(error: HTTPException, request_id: str) -> tuple[int, ErrorAnswer]:
    extra = error.extra if isinstance(error.extra, list) else []
    reasons = [
        f"{_place(one['key'])}: {one['message']}"
        for one in extra
        if {"key", "message"} <= one.keys()
    ]
    message = "; ".join(reasons) or error.detail
    status = error.status_code
    if status >= 500:
        return _own_fault(error, request_id)
    return status, ErrorAnswer(
        error=Error(code=CODES.get(status, "bad_request"), message=message, details=extra or None)
    )


def said_of(error: Exception) -> str:
    """What kind of error it is, without where and what: for people who may not know that."""
    return " ".join((type(error).__doc__ or "").split())


def _place(key: str) -> str:
    """What people know it by: the body is called `data` by us alone."""
    name, dot, rest = key.partition(".")
    return f"the body{dot and ', ' + rest}" if name == "data" else key


def _own_fault(error: Exception, request_id: str) -> tuple[int, ErrorAnswer]:
    logger.error("a request failed", exc_info=error, extra={"request_id": request_id})
    status = status_of(error) if isinstance(error, NoetlError) else 500
    known = isinstance(error, NoetlError)
    said = said_of(error) if known else "Something went wrong on the server."
    return status, ErrorAnswer(
        error=Error(
            code=error.code if isinstance(error, NoetlError) else "internal",
            message=f"{said} The server's log has more under request {request_id}.",
        )
    )


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorAnswer]:
    """Litestar's handler for everything that a route raises."""
    error = unknown_key(request, error) or error
    status, problem = problem_of(error, str(request.scope.get("request_id", "")))
    # Which methods there are instead.
    headers = getattr(error, "headers", None) if status == 405 else None
    return Response(problem, status_code=status, media_type="application/json", headers=headers)
