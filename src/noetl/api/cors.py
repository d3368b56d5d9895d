"""Pages of other sites that may ask (CORS): none, but for those that the operator names.

They show a token. The cookie of a session stays with our own pages, so nobody acts through the
browser of somebody who is signed in.
"""

from __future__ import annotations

_METHODS = b"GET, HEAD, POST, PUT, DELETE"
_HEADERS = (
    b"Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-Request-ID"
)
_SHOWN = b"ETag, X-Request-ID"
_SECONDS = b"600"
PREFLIGHT = (
    (b"access-control-allow-methods", _METHODS),
    (b"access-control-allow-headers", _HEADERS),
    (b"access-control-max-age", _SECONDS),
)
"""It may ask."""


def is_preflight(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a browser asks whether its page may ask."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


def welcome(origin: bytes) -> list[tuple[bytes, bytes]]:
    """What lets a page read the answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _SHOWN),
        (b"vary", b"Origin"),
    ]
