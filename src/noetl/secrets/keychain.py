"""From a keychain entry to its fields, at the moment they are used.

This module knows what an entry means. Its caller hands in stored credentials, variables and files,
and a function that asks external secret managers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from noetl.errors import NotAllowed, NotFound
from noetl.model.net import KeychainEntry

Stored = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Fields of the stored credential of that name; raises NotFound."""
Ask = Callable[[str, KeychainEntry], Awaitable[dict[str, Any]]]
"""Asks a secret manager, one of `PROVIDERS`, for the fields of an entry."""
PROVIDERS = {
    "vault": "vault",
    "hashicorp": "vault",
    "google": "google",
    "gcp": "google",
    "aws": "aws",
    "azure": "azure",
}
"""The secret managers that can be asked, by each of their names."""
OWN = (None, "noetl", "credential")
"""Providers of secrets that are stored here."""


IN_MANAGERS = frozenset({"secret_manager", "secrets"})
"""Kinds of entries whose secret a manager may keep."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator of a worker opens to playbooks. By default nothing."""

    environment: Mapping[str, str] = {}
    env_allowed: tuple[str, ...] = ()
    """Names of variables, or patterns like `SHOP_*`; those of NoETL itself are never open."""
    file_root: str | None = None
    """Files below this directory may be read as secrets."""


def opened(environment: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """Those variables whose names, or patterns like `SHOP_*`, the operator has written."""
    return {
        name: value
        for name, value in environment.items()
        if not name.upper().startswith("NOETL_")
        and any(fnmatchcase(name, pattern) for pattern in allowed)
    }


def manager_of(entry: KeychainEntry) -> str | None:
    """The external manager that holds the secret, or None. Raises NotFound if it is unknown."""
    written = entry.config.get("provider")
    if entry.kind not in IN_MANAGERS or written in OWN:
        return None
    provider = PROVIDERS.get(str(written).lower())
    if provider is None:
        known = ", ".join(sorted(set(PROVIDERS.values())))
        raise NotFound(
            f'keychain entry "{entry.name}": there is no secret manager "{written}". Those that '
            f"can be asked are {known}; a secret that `noetl credential set` stores needs none."
        )
    return provider


async def resolve(
    entry: KeychainEntry,
    stored: Stored,
    sources: Sources | None = None,
    ask: Ask | None = None,
) -> dict[str, Any]:
    """The fields of an entry. One value alone is the field `value`.

    Raises NotFound, naming what is missing, or NotAllowed. Neither repeats a value.
    """
    paths = entry.config.get("map")
    if isinstance(paths, dict) and entry.kind in IN_MANAGERS:
        return {
            str(field): await _single(entry, str(path), stored, sources, ask)
            for field, path in paths.items()
        }
    provider = manager_of(entry)
    if provider is None:
        fields = await _fields(entry, stored, sources or Sources())
    elif ask is None:
        raise NotAllowed(f'keychain entry "{entry.name}": only workers ask secret managers.')
    else:
        fields = await ask(provider, entry)
    wanted = entry.config.get("key")
    if wanted is None:
        return fields
    if str(wanted) not in fields:
        raise NotFound(f'keychain entry "{entry.name}": the secret has no field "{wanted}".')
    return {**fields, "value": fields[str(wanted)]}


async def _single(
    entry: KeychainEntry,
    path: str,
    stored: Stored,
    sources: Sources | None,
    ask: Ask | None,
) -> Any:
    """The one value of the secret at a path; `map` gives each field a path of its own."""
    config = {key: value for key, value in entry.config.items() if key != "map"}
    alone = KeychainEntry(name=entry.name, kind=entry.kind, config={**config, "path": path})
    fields = await resolve(alone, stored, sources, ask)
    if "value" in fields:
        return fields["value"]
    values = [value for name, value in fields.items() if name != "type"]
    if len(values) != 1:
        raise NotFound(
            f'keychain entry "{entry.name}": the secret "{path}" has {len(values)} fields'
            f" ({', '.join(sorted(fields))}). Name one with `key`, or read it without `map`."
        )
    return values[0]


async def _fields(entry: KeychainEntry, stored: Stored, sources: Sources) -> dict[str, Any]:
    config = entry.config
    match entry.kind:
        case "credential" | "postgres_credential":
            return await _stored(entry, stored)
        case "secret_manager" | "secrets" if "path" in config and "credential" not in config:
            return dict(await stored(str(config["path"])))
        case "secret_manager" | "secrets":
            return await _stored(entry, stored)
        case "static":
            return _static(entry)
        case "env":
            return {"value": _variable(entry, sources)}
        case "file":
            return _file(entry, sources)
        case "bearer" | "basic" | "oauth2":
            own = {name: value for name, value in config.items() if name in WRITTEN[entry.kind]}
            is_whole = any(name in own for name in ("token", "password", "client_secret"))
            base = {} if is_whole else await _stored(entry, stored)
            if "scopes" in own:
                own["scope"] = own.pop("scopes")
            return {**base, **own, "type": entry.kind}
    raise NotFound(f'keychain entry "{entry.name}": there is no kind "{entry.kind}".')


WRITTEN = {
    "bearer": ("token",),
    "basic": ("username", "password"),
    "oauth2": ("token_url", "client_id", "client_secret", "scopes", "audience"),
}


async def _stored(entry: KeychainEntry, stored: Stored) -> dict[str, Any]:
    return dict(await stored(str(entry.config.get("credential") or entry.name)))


def _static(entry: KeychainEntry) -> dict[str, Any]:
    fields = entry.config.get("data", entry.config.get("value"))
    if isinstance(fields, dict):
        return dict(fields)
    if "value" not in entry.config:
        raise NotFound(f'keychain entry "{entry.name}": kind static needs `value` or `data`.')
    return {"value": entry.config["value"]}


def _variable(entry: KeychainEntry, sources: Sources) -> str:
    name = str(entry.config.get("variable") or entry.name)
    if not opened({name: ""}, sources.env_allowed):
        raise NotAllowed(
            f'keychain entry "{entry.name}": the variable {name} is not one that playbooks may '
            "read on this worker. Ask its operator to allow it."
        )
    if name not in sources.environment:
        raise NotFound(
            f'keychain entry "{entry.name}": the variable {name} is not set on this worker.'
        )
    return sources.environment[name]


def _file(entry: KeychainEntry, sources: Sources) -> dict[str, Any]:
    written = str(entry.config.get("file") or entry.config.get("path") or entry.name)
    if sources.file_root is None:
        raise NotAllowed(
            f'keychain entry "{entry.name}": this worker has no directory of secret files. Ask '
            "its operator to name one."
        )
    root = Path(sources.file_root).resolve()
    path = (root / written).resolve()
    if not path.is_relative_to(root):
        raise NotAllowed(
            f'keychain entry "{entry.name}": "{written}" lies outside the directory of secret '
            "files."
        )
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise NotFound(
            f'keychain entry "{entry.name}": there is no secret file "{written}".'
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(
            f'keychain entry "{entry.name}": the secret file "{written}" cannot be read: '
            f"{type(error).__name__}."
        ) from None
    return _fields_in(text)


def _fields_in(text: str) -> dict[str, Any]:
    """A JSON object is fields; anything else is one value, without the newline at its end."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    return found if isinstance(found, dict) else {"value": text.rstrip("\r\n")}
