"""Reads one secret and hands it out as the tool's result; the worker keeps it tainted."""

from __future__ import annotations

import asyncio
from typing import Any

from noetl.errors import NoetlError, NotFound
from noetl.model.outcome import Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.running.limits import shortest
from noetl.tools.secrets import Secrets

LOCAL = ("credential", "env", "file")


async def run(config: Secrets, context: ToolContext) -> Outcome:
    assert config.secret is not None
    if config.provider not in LOCAL:
        return failed(
            "client_error",
            f"`provider: {config.provider}` is not available in this version. Store the secret "
            "with `noetl credential set` and read it with `provider: credential`.",
        )
    limit = shortest(config.timeout, context.timeout)
    try:
        async with asyncio.timeout(limit):
            fields = await context.credential(_entry(config))
    except TimeoutError:
        said = f"The secret was not found out within {limit:g} seconds."
        return failed("timeout", said, retryable=True)
    except NotFound as error:
        return failed("not_found", str(error))
    except NoetlError as error:
        return failed("auth", str(error))
    if config.field is not None:
        if config.field not in fields:
            return failed("not_found", f'"{config.secret}" has no field "{config.field}".')
        return ok(fields[config.field])
    return ok(fields["value"] if list(fields) == ["value"] else fields)


def _entry(config: Secrets) -> str | dict[str, Any]:
    """What to ask the keychain for: a name, or an entry written out."""
    assert config.secret is not None
    if config.provider == "env":
        return {"kind": "env", "name": config.secret, "variable": config.secret}
    if config.provider == "file":
        return {"kind": "file", "name": config.secret, "file": config.secret}
    return config.secret
