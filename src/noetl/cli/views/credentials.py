"""Which credentials a playbook needs, so that they can be stored before it runs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from noetl.cli.views.description import tool_shapes
from noetl.dsl.walk import all_tasks, bodies
from noetl.model.net import Block, Net, Step, Value
from noetl.templates import compile_value

# Fields with the author's own data, in which a key `auth` has no meaning for us.
_DATA = frozenset({"args", "body", "data", "env", "form", "headers", "json", "params", "rows"})


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A credential and its users."""

    name: str
    """Its name, or the template that yields it."""
    kind: str | None
    """The declared kind; None if `keychain` does not declare it."""
    declared: bool
    used_by: tuple[str, ...]
    """Steps and workbook entries; empty if none seems to use it."""


def credentials_of(net: Net) -> tuple[Need, ...]:
    """Every credential that the playbook declares under `keychain` or names in an `auth`."""
    users: dict[str, dict[str, None]] = {entry.name: {} for entry in net.keychain}
    for body in bodies(net):
        for name in _named_by(body):
            users.setdefault(name, {})[body.name] = None
    kinds = {entry.name: entry.kind for entry in net.keychain}
    return tuple(
        Need(name=name, kind=kinds.get(name), declared=name in kinds, used_by=tuple(steps))
        for name, steps in users.items()
    )


def _named_by(body: Step | Block) -> Iterator[str]:
    if isinstance(body, Step):
        yield from (name for name in body.needs.keychain if name != "*")
        if body.loop is not None and body.loop.cursor is not None:
            yield from _names(body.loop.cursor.auth)
    for task in all_tasks(body):
        yield from _in_config(task.config)
        tool = tool_shapes().get(task.kind)
        if tool is not None and tool.credential is not None:
            yield from _names(tool.credential(task.config))
        yield from _read_from_keychain([task.config, task.inputs])


def _in_config(value: Value) -> Iterator[str]:
    """The values under `auth` anywhere in a tool's config."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "auth":
                yield from _names(inner)
            elif key not in _DATA:
                yield from _in_config(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _in_config(inner)


def _names(auth: Value) -> Iterator[str]:
    if isinstance(auth, str):
        if not _read_from_keychain(auth):
            yield auth
    elif isinstance(auth, dict):
        yield from _names(auth.get("credential"))
    elif isinstance(auth, list):
        for inner in auth:
            yield from _names(inner)


def _read_from_keychain(value: Value) -> list[str]:
    """The entries of the keychain that templates in a value read by name."""
    paths = compile_value(value).reads
    return sorted({path[1] for path in paths if path[0] == "keychain" and len(path) > 1})
