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


def reference(execution_id: str, key: str, body: bytes, value: Any) -> dict[str, Any]:
    """What events and answers show instead of the value."""
    return {
        "_ref": {
            "store": "result",
            "execution_id": execution_id,
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


def owner_of(value: Any, default: str) -> str:
    """The execution that keeps what a reference stands for: a child's result is the child's."""
    return str(value["_ref"].get("execution_id", default))


def holds_reference(value: Any) -> bool:
    """Whether this is a reference, or the result of a loop whose iterations left some."""
    if key_of(value) is not None:
        return True
    each = value.get("results") if isinstance(value, dict) else None
    return isinstance(each, list) and any(key_of(one) is not None for one in each)
