"""What the playbook of an execution lets its workers have: credentials, children, shared rates.

A worker holds a command of an execution, and so acts for one playbook. It is given the credentials
that the playbook names and that are for it, starts the children that the playbook names, and takes
moments of the rates that the playbook shares. A
name that is a template is known only when it is evaluated, on the worker: a playbook that writes
names of that sort as templates leaves them open, and only what is for it bounds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from noetl.engine.program import Program
from noetl.errors import NotAllowed, NotFound
from noetl.model import net as nets
from noetl.model.duration import interval
from noetl.model.ids import ExecutionId
from noetl.model.spelling import did_you_mean
from noetl.store.credentials import Credentials, StoredCredential
from noetl.templates import is_template

if TYPE_CHECKING:
    from noetl.control.orchestrator import Orchestrator

PROGRAMS_REMEMBERED = 256
_CREDENTIALS = ("auth", "credential", "client_cert", "secret", "keychain")
"""Words in the names of keys below which playbooks name credentials."""
_MAPPINGS = ("source", "target", "attach", "connection", "config")
"""Keys whose whole value a template may stand for, and which may then name credentials."""
_CHILDREN = ("path",)


class Named(NamedTuple):
    """What a playbook names."""

    texts: frozenset[str]
    """Every text in it that is not a template."""
    any_credential: bool
    """It names credentials by templates."""
    any_child: bool
    """It names children by templates."""
    rates: frozenset[tuple[str, float]]
    """The rates that it shares with others: the key of each, and the seconds between two calls."""


async def require_credential(
    orchestrator: Orchestrator, credentials: Credentials, name: str, execution_id: ExecutionId
) -> None:
    """Raises NotAllowed unless the playbook of this execution names the credential, and the
    credential is for that playbook.
    """
    path, named = await _named_by(orchestrator, execution_id)
    if name not in named.texts and not named.any_credential:
        raise NotAllowed(
            f'the playbook "{path}" does not name the credential "{name}", so nobody is'
            " given it for one of its executions."
        )
    row = await credentials.get(name)
    if row is not None:
        require_playbook(row, path)


def require_playbook(credential: StoredCredential, path: str) -> None:
    """Raises NotAllowed unless the credential is for playbooks of this path."""
    if not _is_for(credential, path):
        raise NotAllowed(
            f'the credential "{credential.name}" is for {", ".join(credential.playbooks)}, and'
            f' not for the playbook "{path}". `noetl credential set {credential.name} … --for'
            f" {path}` says otherwise."
        )


def _is_for(credential: StoredCredential, path: str) -> bool:
    allowed = credential.playbooks
    return not allowed or any(fnmatchcase(path, pattern) for pattern in allowed)


async def no_credential(credentials: Credentials, name: str, path: str | None = None) -> NotFound:
    """There is no such credential; the hint names only what playbooks of this path may use."""
    known = [row for row in await credentials.all() if path is None or _is_for(row, path)]
    hint = did_you_mean(name, [row.name for row in known])
    return NotFound(
        f'there is no credential "{name}".{hint} `noetl credential set {name} …` stores one.'
    )


async def require_child(orchestrator: Orchestrator, path: str, execution_id: ExecutionId) -> None:
    """Raises NotAllowed unless the playbook of this execution names the child."""
    caller, named = await _named_by(orchestrator, execution_id)
    if path not in named.texts and not named.any_child:
        raise NotAllowed(f'the playbook "{caller}" does not call "{path}".')


async def require_rate(
    orchestrator: Orchestrator, key: str, apart: float, execution_id: ExecutionId
) -> None:
    """Raises NotAllowed unless the playbook of this execution shares that rate."""
    path, named = await _named_by(orchestrator, execution_id)
    if (key, apart) not in named.rates:
        raise NotAllowed(
            f'the playbook "{path}" has no rate "{key}" with {apart:g} s between two calls.'
        )


async def _named_by(orchestrator: Orchestrator, execution_id: ExecutionId) -> tuple[str, Named]:
    """The path of its playbook, and what that names: neither changes, so any state tells."""
    live = await orchestrator.memory.get(execution_id)
    return live.state.path, _named(live.program)


@lru_cache(PROGRAMS_REMEMBERED)
def _named(program: Program) -> Named:
    net = msgspec.json.decode(nets.encode(program.net))
    found = list(_texts(net, ()))
    return Named(
        texts=frozenset(text for _, text in found if not is_template(text)),
        any_credential=any(_may_name_credential(keys) for keys, text in found if is_template(text)),
        any_child=any(keys[-1] in _CHILDREN for keys, text in found if keys and is_template(text)),
        rates=frozenset(_rates(net)),
    )


def _may_name_credential(keys: tuple[str, ...]) -> bool:
    if keys and keys[-1] in _MAPPINGS:
        return True
    return any(word in key for key in keys for word in _CREDENTIALS)


def _texts(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in a net, with the keys that lead there."""
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _texts(part, (*keys, key))
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, keys)


def _rates(value: Any) -> Iterator[tuple[str, float]]:
    """Every shared rate in a net. Its key and its limit are no templates."""
    if isinstance(value, dict):
        match value.get("rate"):
            case {"key": str(key), "limit": str(limit)} if apart := interval(limit):
                yield key, apart
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _rates(part)
