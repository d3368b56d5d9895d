"""/api/catalog: playbooks by path and version."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from litestar import Request

from noetl.control.documents import catalog_entry
from noetl.errors import BadRequest
from noetl.model.problems import Problem
from noetl.server.routing import route
from noetl.server.services import Services

Asked = Request[Any, Any, Any]


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """A document as YAML text, or as base64 of it."""

    content: str
    resource_type: str | None = None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    content: str


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    path: str
    version: int
    catalog_id: str
    kind: str
    problems: tuple[Problem, ...]


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    valid: bool
    problems: tuple[Problem, ...]


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: str | None = None
    path_prefix: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: int | None = None


def _text(content: str) -> str:
    """YAML is taken as it is; a text that is base64 and nothing else is decoded."""
    if "\n" in content or ":" in content:
        return content
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return content


@route("POST", "/api/catalog/register", right="author")
async def register(services: Services, request: Asked, data: Register) -> Registered:
    """Keep a playbook. The same content again is the same version."""
    if data.resource_type not in (None, "Playbook", "playbook"):
        raise BadRequest(
            f'resource_type "{data.resource_type}" cannot be registered here, only Playbook;'
            " credentials go to /api/credentials."
        )
    text = _text(data.content)
    compiled = await services.evaluator.compiled(text, request.user.name)
    entry = await services.catalog.keep(text, compiled)
    return Registered(
        status="registered",
        path=entry.path,
        version=entry.version,
        catalog_id=entry.catalog_id,
        kind=entry.kind,
        problems=compiled.problems,
    )


@route("POST", "/api/catalog/validate", right="read")
async def validate(services: Services, request: Asked, data: Content) -> Validated:
    """Every problem of a text; nothing is kept."""
    compiled = await services.evaluator.compiled(_text(data.content), request.user.name)
    return Validated(valid=compiled.net is not None, problems=compiled.problems)


@route("POST", "/api/catalog/list", right="read")
async def listing(services: Services, data: Listing) -> dict[str, Any]:
    """The newest version of every path."""
    found = await services.store.catalog(kind=data.resource_type, prefix=data.path_prefix)
    return {"entries": [catalog_entry(entry) for entry in found]}


@route("POST", "/api/catalog/resource", right="read")
async def resource(services: Services, data: Wanted) -> dict[str, Any]:
    """One version, by default the newest, with its text and its graph."""
    return await services.catalog.document(data.path, data.version)


@route("GET", "/api/catalog/{path:path}", right="read")
async def show(services: Services, path: str, version: int | None = None) -> dict[str, Any]:
    """The same."""
    return await services.catalog.document(path.removeprefix("/"), version)


routes = [register, validate, listing, resource, show]
