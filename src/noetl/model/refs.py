"""References: what stands in an event in place of a value that is too large for it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

INLINE_MAX = 64 * 1024
"""Bytes of JSON up to which a value travels in events."""
PREVIEW_MAX = 200

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


def reference(key: str, body: bytes, value: Any) -> dict[str, Any]:
    """What events and answers show instead of the value."""
    return {
        "_ref": {
            "store": "result",
            "key": key,
            "size": len(body),
            "checksum": hashlib.sha256(body).hexdigest(),
            "schema_hint": type(value).__name__,
        },
        "_store": "result",
        "_preview": body[:PREVIEW_MAX].decode("utf-8", errors="replace"),
    }


def key_of(value: Any) -> str | None:
    """The key, if this is a reference."""
    if isinstance(value, dict) and isinstance(value.get("_ref"), dict):
        key = value["_ref"].get("key")
        return key if isinstance(key, str) else None
    return None
