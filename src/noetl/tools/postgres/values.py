"""Converts values of a task for PostgreSQL, so that what was read can be written again."""

from __future__ import annotations

from typing import Any

import msgspec
from psycopg import postgres
from psycopg.types.json import Jsonb

from noetl.tools.sql.rows import JsonText, decoded_bytes

BYTEA = postgres.types["bytea"].oid
DOCUMENTS = frozenset([postgres.types["json"].oid, postgres.types["jsonb"].oid])


def document(value: Any) -> Jsonb:
    """A value as jsonb."""
    return Jsonb(value, msgspec.json.encode)


def parameters(values: Any) -> Any:
    """Values that statements bind; their types follow from the values alone."""
    if isinstance(values, dict):
        return {name: _by_itself(value) for name, value in values.items()}
    return None if values is None else [_by_itself(value) for value in values]


def fitted(value: Any, column: str, type_: int) -> Any:
    """The value for a column of that type. Raises Misfit."""
    if value is None:
        return None
    if type_ in DOCUMENTS:
        # A text made by `tojson` is the document itself; the server parses it.
        return str(value) if isinstance(value, JsonText) else document(value)
    if type_ == BYTEA and isinstance(value, str):
        return decoded_bytes(value, column)
    element = _element_of(type_)
    if element is not None and isinstance(value, list | tuple):
        return [_part(part, column, element) for part in value]
    return _by_itself(value)


def _by_itself(value: Any) -> Any:
    """Mappings, and lists that contain containers, are documents; other lists are arrays."""
    is_document = isinstance(value, dict) or (
        isinstance(value, list | tuple) and any(isinstance(part, dict | list) for part in value)
    )
    return document(value) if is_document else value


def _element_of(type_: int) -> int | None:
    """The element type of an array type."""
    found = postgres.types.get(type_)
    return found.oid if found is not None and found.array_oid == type_ else None


def _part(value: Any, column: str, element: int) -> Any:
    """An element as text: the driver takes no mixed lists, and the server knows the type."""
    if value is None:
        return None
    if element in DOCUMENTS:
        return msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return [_part(part, column, element) for part in value]
    if element == BYTEA:
        raw = decoded_bytes(value, column) if isinstance(value, str) else value
        return f"\\x{bytes(raw).hex()}"
    return str(value)
