"""/api/credentials: stored secrets. Every read of one is audited."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from noetl.api.route import Body, Caller, Query, Route, Services
from noetl.api.routes.tokens import WORKER
from noetl.control.documents import credential as about
from noetl.control.documents import credential_id
from noetl.control.grants import no_credential, require_credential
from noetl.errors import BadRequest
from noetl.model.answers import CredentialDocument, CredentialList, Deleted, KeysRotated
from noetl.model.secrets import without_values
from noetl.secrets.masking import without_secrets
from noetl.store.credentials import StoredCredential

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
TAGS = msgspec.Meta(max_length=100)


class NewCredential(Body, frozen=True, kw_only=True):
    """A credential to store."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    data: dict[str, Any]
    type: str = "generic"
    description: str = ""
    tags: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=100)], ...], TAGS] = ()
    playbooks: Annotated[tuple[Pattern, ...], TAGS] | None = None
    """Paths of the playbooks that may use it, as patterns such as `shop/*`; by default
    unchanged.
    """

    __repr__ = without_values


class OfType(Query, frozen=True, kw_only=True):
    """Which credentials."""

    type: str | None = None


class HowMuch(Query, frozen=True, kw_only=True):
    """Whether to include the fields or the secrets, and for which execution."""

    include_fields: bool = False
    """Its fields, with `********` for each secret: no read of the credential."""
    include_data: bool = False
    execution_id: str | None = None
    parent_execution_id: str | None = None


async def put(services: Services, caller: Caller, *, body: NewCredential) -> CredentialDocument:
    """Create a credential, or replace it."""
    if not body.data:
        raise BadRequest("`data` is empty; it holds the fields of the credential.")
    await services.keys.put(
        body.name, body.type, body.data, body.description, body.tags, body.playbooks
    )
    await services.access.note(caller.actor, "credential.put", body.name)
    return about(await _named(services, body.name))


async def listing(services: Services, caller: Caller, *, query: OfType) -> CredentialList:
    """List stored credentials, without secrets."""
    found = await services.store.credentials.all()
    return CredentialList(
        credentials=[about(row) for row in found if query.type in (None, row.type)]
    )


async def show(
    services: Services, caller: Caller, *, name: str, query: HowMuch
) -> CredentialDocument:
    """One credential; with `include_fields` its fields without secrets, with `include_data` its
    secrets, if the caller may read them.
    """
    who, worker, execution_id = caller.principal, caller.header(WORKER) or "", query.execution_id
    path = None
    if who.is_bound_to_leases:
        if execution_id is None:
            raise BadRequest(
                "`execution_id` is missing: a worker reads credentials only for an execution."
            )
        await services.holders.require_execution(who, worker, execution_id, family=False)
        path = (await services.orchestrator.memory.get(execution_id)).state.path
    elif query.include_data or query.include_fields:
        who.require("secrets.read")
    row = await _named(services, name, path)
    if who.is_bound_to_leases and execution_id is not None:
        parts = services.orchestrator, services.store.credentials
        await require_credential(*parts, row.name, execution_id)
    if not query.include_data:
        fields = await services.keys.credential(row.name) if query.include_fields else None
        return about(row, None if fields is None else without_secrets(fields))
    data = await services.keys.hand_out(
        row.name, execution_id=execution_id, parent_execution_id=query.parent_execution_id
    )
    await services.access.note(
        who.reader(worker), "credential.read", row.name, execution_id=execution_id
    )
    return about(row, data)


async def delete(services: Services, caller: Caller, *, name: str) -> Deleted:
    """Remove a credential."""
    row = await _named(services, name)
    await services.keys.delete(row.name)
    await services.access.note(caller.actor, "credential.deleted", row.name)
    return Deleted(deleted=row.name)


async def rotate(services: Services, caller: Caller) -> KeysRotated:
    """Encrypt every credential with a new key."""
    moved = await services.rotate_keys()
    await services.access.note(caller.actor, "keys.rotated", "all credentials", details=str(moved))
    return KeysRotated(rotated=moved)


async def _named(services: Services, name: str, path: str | None = None) -> StoredCredential:
    """The credential of that name or id; `path` is the path of the playbook that uses it."""
    row = await services.store.credentials.get(name)
    if row is not None:
        return row
    for row in await services.store.credentials.all():
        if credential_id(row.name) == name:
            return row
    raise await no_credential(services.store.credentials, name, path)


ALL, ONE = "/api/credentials", "/api/credentials/{name}"
PUT = Route("credentials.put", "POST", ALL, "secrets.write", put, body=NewCredential)
LIST = Route("credentials.list", "GET", ALL, "secrets.list", listing, query=OfType)
GET = Route(
    "credentials.get",
    "GET",
    ONE,
    "secrets.one",
    show,
    query=HowMuch,
    headers=(WORKER,),
    secret=True,
)
DELETE = Route("credentials.delete", "DELETE", ONE, "secrets.write", delete)
ROTATE = Route("keys.rotate", "POST", "/api/keys/rotate", "manage", rotate)
