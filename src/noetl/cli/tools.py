"""`noetl tools`: the tool kinds, their fields, and how to create your own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl.cli import FAILED
from noetl.cli.options import json_option
from noetl.cli.output import print_json, print_line, say
from noetl.model.net import OWN_KINDS
from noetl.model.spelling import did_you_mean
from noetl.tools.registry import OURS, kinds

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from noetl.tools.registry import Known


@click.group()
def command() -> None:
    """List the tool kinds, show one, or create one of your own.

    Kinds come with NoETL or from installed packages with an entry point of the group
    noetl.tools.

    \b
    Examples:
      noetl tools list
      noetl tools show http
      noetl tools new weather
    """


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List every installed tool kind: built-in ones and plug-ins.

    \b
    Example:
      noetl tools list
    """
    known = kinds()
    if as_json:
        print_json({"tools": [as_data(one) for one in known.values()]})
        return
    width = max(len(kind) for kind in known)
    for kind, (tool, origin) in known.items():
        note = "" if origin == OURS else f"  [{origin}]"
        print_line(f"{kind:<{width}}  {tool.summary}{note}")


def kinds_beginning_with(
    context: click.Context, parameter: click.Parameter, beginning: str
) -> list[CompletionItem]:
    """Tool kinds, each with its summary."""
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(kind, help=tool.summary)
        for kind, (tool, _) in sorted(kinds().items())
        if kind.startswith(beginning)
    ]


@command.command("show")
@click.argument("kind", shell_complete=kinds_beginning_with)
@json_option
def show_command(kind: str, as_json: bool) -> None:
    """Show the fields of a tool KIND, and an example.

    If its libraries are an extra, the command that installs them is shown. With --json the fields
    come as JSON Schema.

    \b
    Examples:
      noetl tools show http
      noetl tools show postgres --json
    """
    known = kinds()
    if kind not in known:
        say(f'there is no tool kind "{kind}".{did_you_mean(kind, known)} See `noetl tools list`.')
        sys.exit(FAILED)
    if as_json:
        print_json(as_data(known[kind]) | {"schema": _schema(known[kind])})
        return
    for line in page_of(known[kind]):
        print_line(line)


def as_data(known: Known) -> dict[str, Any]:
    """A tool kind as a document, without its fields."""
    tool, origin = known
    return {
        "kind": tool.kind,
        "summary": tool.summary,
        "origin": origin,
        "runs": tool.run is not None or tool.kind in OWN_KINDS,
        "extra": tool.extra or None,
        "example": tool.example or None,
        "aliases": dict(tool.aliases),
        "needs": [list(group) for group in tool.needs],
        "errors": list(tool.errors),
    }


def _schema(known: Known) -> dict[str, Any]:
    return msgspec.json.schema(known.tool.config)


def page_of(known: Known) -> list[str]:
    """The lines about a tool kind: its fields, and an example."""
    tool, origin = known
    lines = [f"kind: {tool.kind}", f"  {tool.summary}", f"  From {origin}."]
    if tool.extra:
        lines.append(f'  Its libraries are an extra: pip install "noetl[{tool.extra}]"')
    if tool.needs:
        groups = (" or ".join(f"`{name}`" for name in group) for group in tool.needs)
        lines.append(f"  A task must write {', and '.join(groups)}.")
    if tool.errors:
        lines.append(f"  It may fail with: {', '.join(tool.errors)}.")
    lines = [part for line in lines for part in _wrapped(line)]
    schema = _schema(known)
    defined = schema["$defs"]
    fields = defined[schema["$ref"].rpartition("/")[2]]["properties"]
    for name, field in fields.items():
        others = [alias for alias, meant in tool.aliases.items() if meant == name]
        names = ", ".join([name, *others])
        default = field.get("default")
        said = f" (default {_written(default)})" if default or default in (0, False) else ""
        lines += ["", f"  {names}: {form_of(field)}{said}"]
        lines += [f"      {field['description']}"] if "description" in field else []
        lines += _within(field, defined)
    if tool.example:
        lines += ["", "For example:", ""]
        lines += [f"  {line}".rstrip() for line in tool.example.splitlines()]
    return lines


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(line, WIDTH, subsequent_indent=f"{indent}    ")


def _written(default: Any) -> str:
    """A default as a playbook would write it."""
    return str(default) if isinstance(default, str) else json.dumps(default)


def _within(field: dict[str, Any], defined: dict[str, Any]) -> Iterator[str]:
    """The keys of the mappings that a field takes, a line for each form of mapping."""
    for name in dict.fromkeys(_references(field)):
        keys = defined[name]["properties"]
        # A tag has one value, which says which of several forms this is.
        shown = (
            f"{key}: {one['enum'][0]}" if len(one.get("enum", ())) == 1 else key
            for key, one in keys.items()
        )
        yield from _wrapped(f"      {{{', '.join(shown)}}}")


def _references(schema: Any) -> Iterator[str]:
    """The definitions that a piece of JSON Schema refers to, at any depth."""
    if isinstance(schema, list):
        for one in schema:
            yield from _references(one)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for key, one in schema.items():
            if key != "discriminator":
                yield from _references(one)


WIDTH = 80
WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "mapping",
}


def form_of(field: dict[str, Any]) -> str:
    """The type of a field in words, from its JSON Schema."""
    if "enum" in field:
        return " | ".join(str(value) for value in field["enum"])
    if "anyOf" in field:
        forms = [form_of(one) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(forms))
    if "$ref" in field:
        return "mapping"
    return WORDS.get(str(field.get("type")), "anything")


@command.command("new")
@click.argument("name")
@click.option(
    "--into", default=".", metavar="DIR", help="Where to write it. Default: the current directory."
)
def new_command(name: str, into: str) -> None:
    """Write a package with a working tool kind NAME.

    Its test holds it to the contract of all kinds. Change what it does, run its test, and install
    it where your workers run and where playbooks are registered: beside servers, too.

    \b
    Example:
      noetl tools new weather --into plugins/
    """
    from noetl.cli.newtool import files_of, is_name

    if not is_name(name):
        raise click.BadParameter(
            f'"{name}" cannot name a kind: use lower-case letters, digits and _.'
        )
    if name in kinds():
        raise click.BadParameter(f'there is already a tool kind "{name}".')
    package = Path(into) / f"noetl-{name.replace('_', '-')}"
    if package.exists():
        raise click.BadParameter(f"{package} already exists; nothing was overwritten.")
    for place, text in files_of(name).items():
        (package / place).parent.mkdir(parents=True, exist_ok=True)
        (package / place).write_text(text, encoding="utf-8")
        print_line(str(package / place))
    say(
        f"a working tool kind. Next:\n  cd {package}\n  pip install --editable '.[test]'\n"
        f"  python -m pytest\n  noetl run example.yaml"
    )
