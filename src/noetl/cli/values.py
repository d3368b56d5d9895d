"""Values from people: `--set`, `--payload`, and answers to questions on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl.cli.output import one_line, say

if TYPE_CHECKING:
    from noetl.errors import BadInputs
    from noetl.model.net import FormField

TYPED = frozenset({"text", "choice", "date", "datetime", "secret", "file"})
"""Types whose values are the text that people type."""


def workload(sets: tuple[str, ...], payload: str | None) -> dict[str, Any]:
    """The values to merge over the playbook's own workload; `--set` wins over `--payload`."""
    found = _payload(payload) if payload is not None else {}
    for key, value in pairs(sets):
        _put(found, key, value)
    return found


def pairs(sets: tuple[str, ...]) -> list[tuple[str, Any]]:
    """The dotted path and value of each `--set`."""
    found = []
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f'"{item}" is not KEY=VALUE, e.g. --set days=3.')
        found.append((key.strip(), _value(item, text)))
    return found


def typed(
    given: dict[str, Any], sets: tuple[str, ...], inputs: tuple[FormField, ...]
) -> dict[str, Any]:
    """The same, with `--set` values of typed inputs taken as they were typed: a text input keeps
    `1.10` and `true` as text.
    """
    as_typed = {one.name for one in inputs if one.type in TYPED}
    texts = {key.strip(): text for key, _, text in (item.partition("=") for item in sets)}
    return {**given, **{key: text for key, text in texts.items() if key in as_typed}}


def asked_for(given: dict[str, Any], inputs: tuple[FormField, ...], own: Any) -> dict[str, Any]:
    """The same, after asking for missing inputs, if there is a terminal."""
    from noetl.model.fields import missing

    wanted = missing(inputs, {**own, **given})
    if not wanted or not sys.stdin.isatty():
        return given
    say("this playbook needs:")
    return {**given, **{one.name: ask(one) for one in wanted}}


def ask(question: FormField) -> Any:
    """Ask a question until the answer fits."""
    from noetl.model.fields import Unfit, fitted, wanted

    if question.help:
        click.echo(f"  {one_line(question.help)}", err=True)
    label = one_line(question.label or question.name)
    while True:
        text = click.prompt(
            f"  {label} ({one_line(wanted(question))})",
            default="" if question.default is None else _text(question.default),
            show_default=question.default is not None,
            err=True,
        )
        try:
            given: Any = text
            if question.type == "json" and text:
                given = msgspec.json.decode(text)
            return fitted(question, given)
        except (Unfit, msgspec.DecodeError) as error:
            click.echo(f"  it {one_line(str(error))}", err=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def field_values(form: tuple[FormField, ...], written: tuple[str, ...]) -> dict[str, Any]:
    """`FIELD=VALUE`, converted by the type of the field; JSON for json."""
    types = {field.name: field.type for field in form}
    values: dict[str, Any] = {}
    for item in written:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f'"{item}" is not FIELD=VALUE, e.g. approved=yes.')
        name = name.strip()
        is_json = types.get(name) == "json"
        values[name] = json_text(text, f"the value of {name}") if is_json else text
    return values


def say_all(error: BadInputs) -> None:
    """Print every missing or unsuitable input, one per line."""
    say("nothing was started:")
    for problem in error.problems or (str(error),):
        click.echo(f"  {one_line(problem)}", err=True)


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
