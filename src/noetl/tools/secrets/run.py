"""Reads one secret and returns it as the tool's result, which the worker marks as tainted."""

from __future__ import annotations

from typing import Any

from noetl.model.outcome import Outcome, ok
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of
from noetl.tools.failures import Failed, within
from noetl.tools.limits import shortest
from noetl.tools.secrets import Secrets
from noetl.tools.secrets.managers import MANAGERS, Wanted


async def run(config: Secrets, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    async with within(limit, "The secret was not read within"):
        fields = await _looked_up(config, context)
    if config.field is not None:
        if config.field not in fields:
            raise Failed("not_found", f'"{config.secret}" has no field "{config.field}".')
        return ok(fields[config.field])
    return ok(fields["value"] if list(fields) == ["value"] else fields)


async def _looked_up(config: Secrets, context: ToolContext) -> dict[str, Any]:
    assert config.secret is not None
    manager = MANAGERS.get(config.provider)
    if manager is None:
        # An entry of the keychain, written inline, or the name of one.
        place = {"env": "variable", "file": "file"}.get(config.provider, "")
        entry = {"kind": config.provider, "name": config.secret, place: config.secret}
        return await context.credential(entry if place else config.secret)
    wanted = Wanted(
        name=config.secret,
        version=None if config.version is None else str(config.version),
        url=config.url,
        project=config.project,
        fields=await fields_of(config.auth, context),
    )
    return await manager(wanted, context)
