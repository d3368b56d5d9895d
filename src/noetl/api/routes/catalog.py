"""/api/catalog: playbooks by path and version."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from noetl.api.route import Body, Caller, Query, Reply, Route, Services
from noetl.control import documents
from noetl.errors import BadRequest, PlaybookRejected
from noetl.model.answers import (
    AllRegistered,
    CatalogItem,
    CatalogList,
    CatalogResource,
    Registered,
    Validated,
)
from noetl.model.spelling import did_you_mean
from noetl.model.triggers import KINDS, Schema, kind_of
from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.dsl import Compiled

RESOURCES_MAX = 500
Number = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Version = Number | Literal["latest"] | None
"""By default, or with `latest`, the newest."""


def number_of(version: Version) -> int | None:
    return version if isinstance(version, int) else None


class Register(Body, frozen=True, kw_only=True):
    """A document as YAML text, or base64 of it."""

    content: str
    resource_type: str | None = None
    resource_kind: str | None = None
    """Another name for it, which is ignored."""


class Registrations(Body, frozen=True, kw_only=True):
    """Several documents: either all are registered, or none."""

    resources: Annotated[list[Register], msgspec.Meta(min_length=1, max_length=RESOURCES_MAX)]


class Content(Body, frozen=True, kw_only=True):
    """A document as YAML text, or base64 of it."""

    content: str


class ListCatalog(Body, frozen=True, kw_only=True):
    """Which entries."""

    resource_type: str | None = None
    """The kind as in documents: `playbook` becomes `Playbook`, `schedule` becomes `Schedule`."""
    resource_kind: str | None = None
    path_prefix: str = ""


class Wanted(Body, frozen=True, kw_only=True):
    """A playbook by its path."""

    path: str
    version: Version = None


class OfVersion(Query, frozen=True, kw_only=True):
    """Which version."""

    version: Version = None


def _text(content: str) -> str:
    """YAML is taken as it is; text that is entirely base64 is decoded."""
    if "\n" in content or ":" in content:
        return content
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return content


async def _compiled(services: Services, caller: Caller, text: str) -> Compiled:
    """Compile a text, with the catalog entries that it refers to."""
    compiled = await services.evaluator.compiled(text, caller.name)
    known = await services.catalog.known(compiled)
    if known is None:
        return compiled
    return await services.evaluator.compiled(text, caller.name, known)


async def register(services: Services, caller: Caller, *, body: Register) -> Registered:
    """Register a playbook or another document. The same content again yields the same version.

    With `Content-Type: application/yaml` the body is the document itself.
    """
    _refuse_others(body)
    text = _text(body.content)
    compiled = await _compiled(services, caller, text)
    _refuse_mistaken(body, compiled)
    return await _registered(services, caller, text, compiled)


async def register_all(services: Services, caller: Caller, *, body: Registrations) -> AllRegistered:
    """Register several documents. If one of them has errors, none is registered."""
    for one in body.resources:
        _refuse_others(one)
    texts = [_text(one.content) for one in body.resources]
    compiled = [await _compiled(services, caller, text) for text in texts]
    for one, found in zip(body.resources, compiled, strict=True):
        if found.is_valid:
            _refuse_mistaken(one, found)
    problems = [
        msgspec.structs.replace(found, path=f"resources[{number}].{found.path}".rstrip("."))
        for number, one in enumerate(compiled)
        if not one.is_valid
        for found in one.problems
    ]
    if problems:
        raise PlaybookRejected(tuple(problems))
    kept = zip(texts, compiled, strict=True)
    return AllRegistered(entries=[await _registered(services, caller, *one) for one in kept])


def _refuse_others(wanted: Register) -> None:
    if wanted.resource_type is not None and kind_of(wanted.resource_type) not in KINDS:
        raise BadRequest(
            f'resource_type "{wanted.resource_type}" cannot be registered here, only'
            f" {', '.join(KINDS)}; credentials go to /api/credentials."
        )


def _refuse_mistaken(wanted: Register, compiled: Compiled) -> None:
    """The document must be of the kind that the request names."""
    kind = "Playbook" if compiled.trigger is None else compiled.trigger.kind
    if wanted.resource_type is not None and kind_of(wanted.resource_type) != kind:
        raise BadRequest(
            f"the document is a {kind}, and resource_type says {wanted.resource_type}."
        )


async def _registered(
    services: Services, caller: Caller, text: str, compiled: Compiled
) -> Registered:
    lacks = ""
    if compiled.trigger is None or isinstance(compiled.trigger, Schema):
        entry = await services.catalog.keep(text, compiled)
    else:
        triggers = services.trigger_documents[compiled.trigger.kind]
        entry = await triggers.register(text, compiled)
        lacks = await triggers.lacks(compiled.trigger)
    target = f"{entry.path} version {entry.version}"
    await services.access.note(caller.actor, f"{entry.kind.lower()}.register", target)
    return documents.of(
        Registered, entry, status="registered", problems=compiled.problems, lacks=lacks
    )


async def validate(services: Services, caller: Caller, *, body: Content) -> Validated:
    """Report every problem of a text, without registering it."""
    compiled = await _compiled(services, caller, _text(body.content))
    return Validated(valid=compiled.is_valid, problems=compiled.problems)


async def listing(services: Services, caller: Caller, *, body: ListCatalog) -> CatalogList:
    """The newest version of every path."""
    kind = None if body.resource_type is None else kind_of(body.resource_type)
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f" There are {', '.join(KINDS)}."
        raise BadRequest(f'there is no resource_type "{kind[:80]}".{hint}')
    found = await services.store.catalog.entries(kind=kind, prefix=body.path_prefix)
    return CatalogList(entries=[documents.of(CatalogItem, entry) for entry in found])


async def resource(services: Services, caller: Caller, *, body: Wanted) -> CatalogResource:
    """One version, by default the newest, with its text and its graph."""
    return await services.catalog.document(body.path, number_of(body.version))


async def show(
    services: Services, caller: Caller, *, path: str, query: OfVersion
) -> Reply[CatalogResource]:
    """One version, by default the newest, with its text and its graph."""
    found = await services.catalog.document(path, number_of(query.version))
    # A version never changes, but a later release may draw it differently.
    return Reply(found, tag=f"{found.catalog_id}-{__version__}")


REGISTER = Route(
    "catalog.register",
    "POST",
    "/api/catalog/register",
    "author",
    register,
    body=Register,
    yaml=True,
)
REGISTER_ALL = Route(
    "catalog.register_all",
    "POST",
    "/api/catalog/register/batch",
    "author",
    register_all,
    body=Registrations,
)
VALIDATE = Route(
    "catalog.validate", "POST", "/api/catalog/validate", "read", validate, body=Content, yaml=True
)
LIST = Route("catalog.list", "POST", "/api/catalog/list", "read", listing, body=ListCatalog)
RESOURCE = Route("catalog.resource", "POST", "/api/catalog/resource", "read", resource, body=Wanted)
GET = Route("catalog.get", "GET", "/api/catalog/{path}", "read", show, query=OfVersion, deep=True)
