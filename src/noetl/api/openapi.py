"""The OpenAPI document, generated from the route table.

Client generators read it, so every struct is a named schema, every operation has a short id and a
tag, and the docstrings of fields become their descriptions.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from noetl.api.errors import STATUS_WORDS
from noetl.api.route import (
    FILE,
    IDEMPOTENCY_KEY,
    JSON,
    AnyRoute,
    Caller,
    Query,
    Route,
    Services,
    structs_in,
)
from noetl.api.sessions import COOKIE
from noetl.model.answers import ErrorAnswer
from noetl.version import __version__

REFERENCE = "#/components/schemas/{name}"
WITHOUT_BODY = (204, 304)


async def describe(services: Services, caller: Caller) -> bytes:
    """This description (OpenAPI 3.1)."""
    from noetl.api.table import TABLE

    return await asyncio.to_thread(_written, TABLE)


@lru_cache(1)
def _written(routes: tuple[AnyRoute, ...]) -> bytes:
    return msgspec.json.encode(document(routes))


def document(routes: Sequence[AnyRoute]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    kinds = _kinds(routes)
    written, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    schemas = dict(zip(kinds, written, strict=True))
    _complete(components)
    _add_field_docs(kinds, components)
    _leave_defaults_to_the_server(routes, components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for path in route.paths:
            operation = _operation(route, path, schemas, components)
            paths.setdefault(path, {})[route.method.lower()] = operation
    for route in routes:
        if route.query is not None:
            components.pop(route.query.__name__, None)  # Its fields are parameters, one each.
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "NoETL",
            "version": __version__,
            "description": "Durable workflows from YAML playbooks.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}],
        "tags": [{"name": area} for area in sorted({route.area for route in routes})],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of one struct by itself, with the docstrings of its fields."""
    _, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    _complete(components)
    _add_field_docs([kind], components)
    schema: dict[str, Any] = components.pop(kind.__name__)
    return {**schema, "$defs": components} if components else schema


def _complete(part: Any) -> None:
    """Write lists and mappings as generators read them: those of anything have an explicit
    `items: {}` or `additionalProperties: {}`, lists of a fixed length no `items: false`, which
    their `maxItems` says already.
    """
    if isinstance(part, list):
        for one in part:
            _complete(one)
    elif isinstance(part, dict):
        if part.get("type") == "array" and not {"items", "prefixItems"} & part.keys():
            part["items"] = {}
        if part.get("items") is False:
            del part["items"]
        if (
            part.get("type") == "object"
            and not {"properties", "additionalProperties"} & part.keys()
        ):
            part["additionalProperties"] = {}
        for one in part.values():
            _complete(one)


def operation_id(route: AnyRoute, path: str) -> str:
    """`executions_start`; an alias path of a route puts its own first word in front."""
    area, _, verb = route.name.partition(".")
    if path == route.path:
        return f"{area}_{verb}"
    words = [word for word in path.split("/") if word]
    return f"{words[1]}_{verb}" if words[0] == "api" else "_".join(words)


def _leave_defaults_to_the_server(
    routes: Sequence[AnyRoute], components: dict[str, dict[str, Any]]
) -> None:
    """Structs that clients only send have no `default`: typed clients would demand every key that
    has one, or send its value along. The description of the key says it.
    """
    answered = {
        struct.cls.__name__
        for struct in structs_in([ErrorAnswer, *(p for one in routes for p in _parts(one.answer))])
    }
    sent = structs_in([part for one in routes for part in _parts(one.body)])
    for name in {struct.cls.__name__ for struct in sent} - answered:
        for described in components.get(name, {}).get("properties", {}).values():
            default = described.pop("default", None)
            if default not in (None, "", [], {}, False):
                said = f"Default: {msgspec.json.encode(default).decode()}."
                described["description"] = f"{described.get('description', '')} {said}".strip()


def _kinds(routes: Sequence[AnyRoute]) -> list[Any]:
    """Every type that a route takes or answers with."""
    found = [ErrorAnswer]
    for route in routes:
        for kind in (route.query, route.holds if route.raw else route.body, route.answer):
            found += _parts(kind)
    return list(dict.fromkeys(found))


def _parts(kind: Any) -> list[Any]:
    """The members of a union; any other type by itself. Unions of structs without a tag are several
    types.
    """
    if kind in (None, Any, object, str, bytes):
        return []
    if isinstance(kind, UnionType) or get_origin(kind) is list:
        return [part for one in get_args(kind) for part in _parts(one)]
    return [kind]


def _schema(kind: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    if isinstance(kind, UnionType):
        return {"anyOf": [_schema(one, schemas) for one in get_args(kind)]}
    if get_origin(kind) is list:
        return {"type": "array", "items": _schema(get_args(kind)[0], schemas)}
    found: dict[str, Any] = schemas.get(kind, {})
    return found


def _operation(
    route: AnyRoute, path: str, schemas: dict[Any, Any], components: dict[str, Any]
) -> dict[str, Any]:
    says = route.says
    found: dict[str, Any] = {
        "operationId": operation_id(route, path),
        "tags": [route.area],
        "summary": " ".join(says.partition("\n\n")[0].split()),
        "description": says,
        "parameters": [*_parameters(route, components)],
        "responses": _responses(route, schemas),
    }
    if route.right == "anyone":
        found["security"] = [{}]
    else:
        found["description"] += f"\n\nNeeds the right `{route.right}`."
    if route.body is not None:
        kind = route.holds if route.raw else route.body
        # That some bodies may also be YAML is only described: generators do not know such a body,
        # and warn.
        content = {JSON: {"schema": _schema(kind, schemas)}}
        found["requestBody"] = {"content": content, "required": _is_required(kind)}
    return found


def _is_required(kind: Any) -> bool:
    """An empty body counts as an empty object, if the struct has no required keys."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return True
    return any(one.required for one in msgspec.structs.fields(kind))


def _parameters(route: AnyRoute, components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in route.parameters
    ]
    if route.query is not None and issubclass(route.query, Query):
        described = components[route.query.__name__]
        for name, schema in described["properties"].items():
            shown = {key: value for key, value in schema.items() if key != "description"}
            parameter = {"name": name, "in": "query", "schema": shown}
            if shown.get("type") == "object":
                # Written `label.team=x`, which OpenAPI cannot express.
                parameter |= {"name": f"{name}.*", "schema": {"type": "string"}}
            if "description" in schema:
                parameter["description"] = schema["description"]
            parameter["required"] = name in described.get("required", ())
            found.append(parameter)
    for header in (*route.headers, *((IDEMPOTENCY_KEY,) if route.keyed else ())):
        found.append(
            {
                "name": header.name,
                "in": "header",
                "required": False,
                "description": header.says,
                "schema": {"type": "string"},
            }
        )
    return found


def _responses(route: AnyRoute, schemas: dict[Any, Any]) -> dict[str, Any]:
    media = route.media.partition(";")[0]
    schema: dict[str, Any] = {"type": "string"}
    if media == JSON:
        schema = _schema(route.answer, schemas)
    elif media == FILE:
        schema["format"] = "binary"
    answer = {media: {"schema": schema}}
    found: dict[str, Any] = {"200": {"description": "It worked.", "content": answer}}
    for status, said in STATUS_WORDS.items():
        content = {JSON: {"schema": schemas[ErrorAnswer]}}
        found[str(status)] = {"description": said, "content": content}
    for status in route.statuses:
        found[str(status)] = (
            {"description": "No body."}
            if status in WITHOUT_BODY
            else {"description": "As with 200.", "content": answer}
        )
    return dict(sorted(found.items()))


# --- Docstrings of fields ----------------------------------------------------------------------


def _add_field_docs(kinds: list[Any], components: dict[str, Any]) -> None:
    for struct in structs_in(kinds):
        schema = components.get(struct.cls.__name__)
        if schema is None or "properties" not in schema:
            continue
        names = {one.name: one.encode_name for one in struct.fields}
        for base in reversed(struct.cls.__mro__):
            for name, said in _field_docs(base).items():
                described = schema["properties"].get(names.get(name, ""))
                if described is not None and "$ref" not in described:
                    described["description"] = said


def _field_docs(cls: type) -> dict[str, str]:
    """The docstrings under the fields of a class."""
    body = _classes(cls.__module__).get(cls.__name__, [])
    found = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found


@lru_cache(64)
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """The field docstrings of all classes of a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}  # A class without source, for example one made in the interpreter.
    return {one.name: one.body for one in tree.body if isinstance(one, ast.ClassDef)}


OPENAPI = Route("server.openapi", "GET", "/api/openapi.json", "read", describe)
