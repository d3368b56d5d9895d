"""Requests to web services, for kinds whose protocol uses HTTP.

They go through the http tool, so that its session, egress policy, time limits and error kinds apply
to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, failed_with
from noetl.tools.plain_data import read_json
from noetl.tools.web.request import Request


class Answer(msgspec.Struct, frozen=True):
    """The answer of a service: its decoded body, and the headers in lower case."""

    data: Any
    headers: Mapping[str, str]


async def ask(context: ToolContext, method: str, url: str, **config: Any) -> Answer:
    """Send one request. Raises Failed unless it succeeds."""
    from noetl.tools.web.client import run

    # Any header may hold a credential, which must not follow a redirect elsewhere.
    fixed = {"method": method, "url": url, "decode": "json", "follow_redirects": False}
    written = {**fixed, **config}
    try:
        outcome = await run(msgspec.convert(written, Request), context)
    except Failed as problem:
        # With the service's own message, if it has a common form.
        error = problem.error
        body = error.details.get("body") if isinstance(error.details, dict) else None
        said = words_of(body) if isinstance(body, str) else None
        if said is not None:
            error = msgspec.structs.replace(error, message=f"{error.message} It says: {said}")
        raise failed_with(msgspec.structs.replace(problem.outcome, error=error)) from None
    return Answer(outcome.result["data"], outcome.result["headers"])


def words_of(body: str) -> str | None:
    """The message in a JSON body: `{error: {message}}`, `{error: "…"}`, `{message}` or `{errors:
    ["…"]}`.
    """
    try:
        found = read_json(body)
    except msgspec.DecodeError:
        return None
    if not isinstance(found, dict):
        return None
    for key in ("error", "message", "Message", "errors", "detail"):
        part = found.get(key)
        if isinstance(part, list) and part:
            part = part[0]
        if isinstance(part, dict):
            part = part.get("message")
        if isinstance(part, str) and part:
            return part[:500]
    return None
