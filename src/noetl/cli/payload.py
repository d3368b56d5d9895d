"""`--set` and `--payload`: values for the workload, as people type them."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec


def workload(sets: tuple[str, ...], payload: str | None) -> dict[str, Any]:
    """The values to merge over the playbook's own workload; `--set` wins over `--payload`."""
    found = _payload(payload) if payload is not None else {}
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f'"{item}" is not KEY=VALUE, e.g. --set days=3.')
        _put(found, key.strip(), _value(item, text))
    return found


def _value(item: str, text: str) -> Any:
    from noetl import wiring

    try:
        return wiring.plain_value(text)
    except ValueError as error:
        raise click.BadParameter(f'the value of "{item}" is not YAML: {error}') from None


def _payload(text: str) -> dict[str, Any]:
    found = json_text(text, "--payload")
    if not isinstance(found, dict):
        raise click.BadParameter('--payload is a JSON object, e.g. {"days": 3}.')
    return found


def json_text(text: str, what: str) -> Any:
    """A JSON value as people type it, or @FILE with JSON in it."""
    if text.startswith("@"):
        try:
            text = sys.stdin.read() if text == "@-" else _read(text[1:])
        except (OSError, UnicodeError) as error:
            raise click.BadParameter(f"{what} {text}: {error}") from None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{what} is not JSON: {error}") from None


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        below = values.get(key)
        values[key] = dict(below) if isinstance(below, dict) else {}
        values = values[key]
    values[last] = value
