"""`noetl settings`: every environment variable that NoETL reads, and its value."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from noetl.cli import OK, WRONG
from noetl.cli.options import json_option
from noetl.cli.output import one_line, print_json, say
from noetl.cli.views.paint import Drawn, Span, show
from noetl.errors import BadSetting
from noetl.settings import TABLE, Setting, unknown_variables, written


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Print every setting with its value, default and meaning.

    Settings are environment variables. Secrets are never shown, only whether they are set. Exits
    with 2 if a value is invalid.

    \b
    Example:
      NOETL_MAX_ATTEMPTS=5 noetl settings
    """
    rows = [_as_data(setting) for setting in TABLE]
    if as_json:
        print_json({"settings": rows})
    else:
        show(_drawn(rows))
    for remark in unknown_variables(os.environ):
        say(f"warning: {remark}")
    wrong = [row["problem"] for row in rows if row["problem"] is not None]
    for problem in wrong:
        say(problem)
    sys.exit(WRONG if wrong else OK)


def _as_data(setting: Setting) -> dict[str, Any]:
    value, problem = None, None
    try:
        value = setting.read(os.environ)
    except BadSetting as error:
        problem = str(error)
    return {
        "name": setting.name,
        "value": setting.shown(value),
        "is_set": bool(os.environ.get(setting.name, "").strip()),
        "default": setting.default,
        "unit": setting.unit,
        "secret": setting.secrecy != "none",
        "help": setting.help,
        "problem": problem,
    }


def _drawn(rows: list[dict[str, Any]]) -> Iterator[Drawn]:
    for row in rows:
        if row["problem"] is not None:
            value, role = "invalid, see below", "warning"
        else:
            value, role = _written(row["value"], row["unit"]), "guard" if row["is_set"] else ""
        origin = f"  (default {_written(row['default'], row['unit'])})" if row["is_set"] else ""
        yield Drawn(
            "",
            "    ",
            (
                Span(f"{row['name']:<24}", "step"),
                Span(f" {value}", role),
                Span(origin or "  (default)", "quiet"),
            ),
        )
        yield Drawn("    ", "    ", (Span(row["help"], "quiet"),))


def _written(value: Any, unit: str) -> str:
    text = written(value)
    return text if text == "none" else one_line(f"{text} {unit}")
