"""Bodies that routes read by themselves, described for programs.

The framework describes what it decodes. Reports and events are decoded by the routes, so their
descriptions are made here, as deep as a reader needs: what stands inside an event is an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema


def described(*kinds: type[msgspec.Struct], several: bool = False) -> type[Operation]:
    """An operation whose body is one of these; with `several`, or a list of them."""
    one = _any_of([_flat(kind) for kind in kinds])
    body = _any_of([one, {"type": "array", "items": one}]) if several else one
    content = {"application/json": OpenAPIMediaType(schema=cast(Schema, body))}

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=content, required=True)

    return Described


def _flat(kind: type[msgspec.Struct]) -> Any:
    _, found = msgspec.json.schema_components([kind])
    return _without_references(found[kind.__name__])


def _without_references(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_references(one) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return {"type": "object"}
    kept = {name: _without_references(value) for name, value in part.items()}
    if "anyOf" in kept:
        return _any_of(kept["anyOf"])
    return {name: value for name, value in kept.items() if name != "discriminator"}


def _any_of(kinds: list[Any]) -> Any:
    different = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    return different[0] if len(different) == 1 else {"anyOf": different}
