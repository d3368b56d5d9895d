"""/api/credentials (document 000 §5): stored secrets. Every look at one is remembered."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.params import HeaderParameter, QueryParameter

from noetl.api.manners import Body
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.control.documents import credential as about
from noetl.control.documents import credential_id
from noetl.control.lending import require_credential
from noetl.errors import BadRequest, NotFound
from noetl.store.base import StoredCredential

Asked = Request[Any, Any, Any]
Worker = Annotated[str, HeaderParameter(name="X-NoETL-Worker")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
TAGS = msgspec.Meta(max_length=100)


class Credential(Body, frozen=True, kw_only=True):
    """A secret to keep."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    data: dict[str, Any]
    type: str = "generic"
    description: str = ""
    tags: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=100)], ...], TAGS] = ()
    playbooks: Annotated[tuple[Pattern, ...], TAGS] | None = None
    """Paths of the playbooks that it is for, as patterns like `shop/*`; without it, as before."""


@route("POST", "/api/credentials", right="secrets.write")
async def put(services: Services, request: Asked, data: Credential) -> dict[str, Any]:
    """Create a credential, or replace it."""
    if not data.data:
        raise BadRequest("`data` holds the fields of the credential; it is empty.")
    await services.keys.put(
        data.name, data.type, data.data, data.description, data.tags, data.playbooks
    )
    await services.access.note(request.user.name, "credential.put", data.name)
    return about(await _named(services, data.name))


@route("GET", "/api/credentials", right="secrets.list")
async def listing(
    services: Services, kind: Annotated[str | None, QueryParameter(name="type")] = None
) -> dict[str, Any]:
    """What is stored, without any secret."""
    found = await services.store.credentials()
    return {"credentials": [about(row) for row in found if kind in (None, row.type)]}


@route("GET", "/api/credentials/{name:str}", right="secrets.one", secret=True)
async def show(
    services: Services,
    request: Asked,
    name: str,
    include_data: bool = False,
    execution_id: str | None = None,
    parent_execution_id: str | None = None,
    worker: Worker = "",
) -> dict[str, Any]:
    """One credential; with `include_data` its secrets, for those who may read them."""
    who = request.user
    if who.is_bound_to_leases:
        if execution_id is None:
            raise BadRequest("a worker says for which `execution_id` it reads a credential.")
        await services.leases.require_execution(who, worker, execution_id, family=False)
    elif include_data:
        who.require("secrets.read")
    row = await _named(services, name)
    shown = about(row)
    if who.is_bound_to_leases and execution_id is not None:
        parts = services.orchestrator, services.store
        await require_credential(*parts, row.name, execution_id)
    if include_data:
        shown["data"] = await services.keys.hand_out(
            row.name, execution_id=execution_id, parent_execution_id=parent_execution_id
        )
        await services.access.note(
            who.worker_name(worker), "credential.read", row.name, execution_id=execution_id
        )
    return shown


@route("DELETE", "/api/credentials/{name:str}", right="secrets.write")
async def delete(services: Services, request: Asked, name: str) -> dict[str, str]:
    """Remove a credential."""
    row = await _named(services, name)
    await services.keys.delete(row.name)
    await services.access.note(request.user.name, "credential.deleted", row.name)
    return {"deleted": row.name}


@route("POST", "/api/keys/rotate", right="manage")
async def rotate(services: Services, request: Asked) -> dict[str, int]:
    """Put every credential under a new key."""
    moved = await services.rotate_keys()
    await services.access.note(
        request.user.name, "keys.rotated", "all credentials", details=str(moved)
    )
    return {"rotated": moved}


async def _named(services: Services, name: str) -> StoredCredential:
    """The credential of that name, or of that id."""
    row = await services.store.credential(name)
    if row is not None:
        return row
    for row in await services.store.credentials():
        if credential_id(row.name) == name:
            return row
    raise NotFound(f'there is no credential "{name}". `noetl credential set {name} …` stores one.')


routes = [put, listing, show, delete, rotate]
