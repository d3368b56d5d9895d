"""/api/catalog: playbooks by path and version."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response

from noetl.api.manners import Body, tagged
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.control.documents import catalog_entry
from noetl.dsl import Compiled
from noetl.errors import BadRequest, PlaybookRejected
from noetl.model.problems import Problem
from noetl.version import __version__

Asked = Request[Any, Any, Any]
RESOURCES_MAX = 500
Version = int | Literal["latest"] | None
"""Without one, or with `latest`, it is the newest."""


def number_of(version: Version) -> int | None:
    return version if isinstance(version, int) else None


class Register(Body, frozen=True, kw_only=True):
    """A document as YAML text, or as base64 of it."""

    content: str
    resource_type: str | None = None
    resource_kind: str | None = None
    """Another name for it, which nobody reads."""


class Registrations(Body, frozen=True, kw_only=True):
    """Several documents; all of them are kept, or none is."""

    resources: Annotated[list[Register], msgspec.Meta(min_length=1, max_length=RESOURCES_MAX)]


class Content(Body, frozen=True, kw_only=True):
    content: str


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    path: str
    version: int
    catalog_id: str
    kind: str
    problems: tuple[Problem, ...]


class AllRegistered(msgspec.Struct, frozen=True, kw_only=True):
    """In the order in which they were sent."""

    entries: list[Registered]


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    valid: bool
    problems: tuple[Problem, ...]


class Listing(Body, frozen=True, kw_only=True):
    resource_type: str | None = None
    """As people write it: `playbook` is `Playbook`."""
    resource_kind: str | None = None
    path_prefix: str = ""


class Wanted(Body, frozen=True, kw_only=True):
    path: str
    version: Version = None


def _text(content: str) -> str:
    """YAML is taken as it is; a text that is base64 and nothing else is decoded."""
    if "\n" in content or ":" in content:
        return content
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return content


@route("POST", "/api/catalog/register", right="author", yaml=True)
async def register(services: Services, request: Asked, data: Register) -> Registered:
    """Keep a playbook. The same content again is the same version.

    With `Content-Type: application/yaml` the body is the playbook itself.
    """
    _refuse_others(data)
    text = _text(data.content)
    compiled = await services.evaluator.compiled(text, request.user.name)
    return await _registered(services, request.user.name, text, compiled)


@route("POST", "/api/catalog/register/batch", right="author")
async def register_all(services: Services, request: Asked, data: Registrations) -> AllRegistered:
    """Keep several playbooks. If one of them has errors, none is kept."""
    for one in data.resources:
        _refuse_others(one)
    texts = [_text(one.content) for one in data.resources]
    compiled = [await services.evaluator.compiled(text, request.user.name) for text in texts]
    problems = [
        msgspec.structs.replace(found, path=f"resources[{number}].{found.path}".rstrip("."))
        for number, one in enumerate(compiled)
        if one.net is None
        for found in one.problems
    ]
    if problems:
        raise PlaybookRejected(tuple(problems))
    kept = zip(texts, compiled, strict=True)
    return AllRegistered(
        entries=[await _registered(services, request.user.name, *one) for one in kept]
    )


def _refuse_others(wanted: Register) -> None:
    if wanted.resource_type is not None and wanted.resource_type.casefold() != "playbook":
        raise BadRequest(
            f'resource_type "{wanted.resource_type}" cannot be registered here, only Playbook;'
            " credentials go to /api/credentials."
        )


async def _registered(services: Services, who: str, text: str, compiled: Compiled) -> Registered:
    entry = await services.catalog.keep(text, compiled)
    target = f"{entry.path} version {entry.version}"
    await services.access.note(who, "playbook.register", target)
    return Registered(
        status="registered",
        path=entry.path,
        version=entry.version,
        catalog_id=entry.catalog_id,
        kind=entry.kind,
        problems=compiled.problems,
    )


@route("POST", "/api/catalog/validate", right="read", yaml=True)
async def validate(services: Services, request: Asked, data: Content) -> Validated:
    """Every problem of a text; nothing is kept."""
    compiled = await services.evaluator.compiled(_text(data.content), request.user.name)
    return Validated(valid=compiled.net is not None, problems=compiled.problems)


@route("POST", "/api/catalog/list", right="read")
async def listing(services: Services, data: Listing) -> dict[str, Any]:
    """The newest version of every path."""
    kind = data.resource_type
    if kind is not None and kind.casefold() == "playbook":
        kind = "Playbook"
    found = await services.store.catalog(kind=kind, prefix=data.path_prefix)
    return {"entries": [catalog_entry(entry) for entry in found]}


@route("POST", "/api/catalog/resource", right="read")
async def resource(services: Services, data: Wanted) -> dict[str, Any]:
    """One version, by default the newest, with its text and its graph."""
    return await services.catalog.document(data.path, number_of(data.version))


@route("GET", "/api/catalog/{path:path}", right="read")
async def show(
    services: Services, request: Asked, path: str, version: Version = None
) -> Response[dict[str, Any]]:
    """The same."""
    found = await services.catalog.document(path.removeprefix("/"), number_of(version))
    # A version never changes; how it is drawn may, with a release.
    return tagged(request, f"{found['catalog_id']}-{__version__}", found)


routes = [register, register_all, validate, listing, resource, show]
