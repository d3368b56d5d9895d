"""Keychain entries: where the secrets that a playbook names come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from noetl.errors import NoetlError, NotFound
from noetl.model.net import KeychainEntry

Stored = Callable[[str], Awaitable[dict[str, Any]]]
"""Fields of a stored credential by name; raises NotFound."""

FROM_STORE = frozenset({"credential", "postgres_credential", "secrets"})
WRITTEN_OUT = frozenset({"static", "bearer", "basic", "oauth2"})


class CannotResolve(NoetlError):
    """This version knows the kind, but not how to get at such secrets."""

    code = "cannot_resolve"


async def resolve(
    entry: KeychainEntry, stored: Stored, variables: Mapping[str, str]
) -> dict[str, Any]:
    """The secret fields of an entry. `variables` are those that playbooks may see."""
    config = entry.config
    if entry.kind in FROM_STORE:
        return await stored(str(config.get("credential") or entry.name))
    if entry.kind == "static" and "data" in config:
        return dict(config["data"])
    if entry.kind in WRITTEN_OUT:
        return {key: value for key, value in config.items() if key not in ("ttl", "scope")}
    if entry.kind == "env":
        return {"value": _variable(entry, variables)}
    if entry.kind == "file":
        return {"value": _file(entry)}
    raise CannotResolve(
        f'keychain entry "{entry.name}" is of kind {entry.kind}, which this version cannot'
        " resolve. Use credential, static, env or file."
    )


def _variable(entry: KeychainEntry, variables: Mapping[str, str]) -> str:
    name = str(entry.config.get("variable") or entry.name)
    if name not in variables:
        raise NotFound(
            f'keychain entry "{entry.name}" reads the variable {name}, which is not set or not'
            f" allowed. Set it where the worker runs, and allow it: NOETL_ENV_SECRETS={name}."
        )
    return variables[name]


def _file(entry: KeychainEntry) -> str:
    path = Path(str(entry.config.get("file") or entry.config.get("path") or ""))
    try:
        return path.read_text().rstrip("\n")
    except OSError as error:
        raise NotFound(
            f'keychain entry "{entry.name}": {path} cannot be read: {error.strerror}.'
        ) from None
