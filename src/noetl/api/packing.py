"""Answers are compressed for clients that can read them so, where it saves anything.

Streams are not: what is small comes at once, and what is held back is late. Nor are answers that
hold a secret: who can put text of their own beside a secret can guess it from the size.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetl.api.edge import Scope, Send

SIZE_MIN = 1024
APART_FROM = 128 * 1024
"""What takes longer to compress does not keep the others in this process waiting."""
LEVEL = 5
_TEXT = re.compile(rb"(application/(json|.*\+json|yaml)|text/(?!event-stream))")
_GZIP = re.compile(rb"(?:^|,)\s*(?:gzip|\*)\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[^,]*)?(?=,|$)")
VARIES = (b"vary", b"Accept-Encoding")


def packed(scope: Scope, headers: dict[bytes, bytes], send: Send) -> Send:
    """What sends an answer compressed, if the caller can read that."""
    accepted = headers.get(b"accept-encoding")
    if accepted is None or not _GZIP.search(accepted.lower()):
        return send
    return _Packed(scope, send)


class _Packed:
    """Sends one answer, and compresses it if it comes as a whole."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._start: Any = None

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            if not self._is_worth_it():
                await self._begin()
            return
        if self._start is not None:
            body = message.get("body", b"")
            if not message.get("more_body", False) and len(body) >= SIZE_MIN:
                packed = await _compressed(body)
                message = {**message, "body": packed}
                kept = [one for one in self._start["headers"] if one[0] != b"content-length"]
                size = (b"content-length", b"%d" % len(packed))
                self._start["headers"] = [*kept, size, (b"content-encoding", b"gzip"), VARIES]
            await self._begin()
        await self._send(message)

    def _is_worth_it(self) -> bool:
        headers = dict(self._start.get("headers", ()))
        route = self._scope.get("route")
        return (
            int(headers.get(b"content-length", b"0")) >= SIZE_MIN
            and b"content-encoding" not in headers
            and _TEXT.match(headers.get(b"content-type", b"")) is not None
            and (route is None or not route.secret)
        )

    async def _begin(self) -> None:
        start, self._start = self._start, None
        await self._send(start)


async def _compressed(body: bytes) -> bytes:
    if len(body) < APART_FROM:
        return _gzip(body)
    return await asyncio.to_thread(_gzip, body)


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()
