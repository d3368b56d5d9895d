"""`noetl plan`: what a playbook would run, without running it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal

import click

from noetl.cli import WRONG
from noetl.cli.files import Unreadable, print_problems, source
from noetl.cli.options import current_settings
from noetl.cli.output import counted, print_json, print_text, say
from noetl.cli.views.diagrams import document, dot, mermaid
from noetl.cli.views.drawing import ASCII, LINES, draw
from noetl.cli.views.paint import is_rich, show
from noetl.configured import compiler
from noetl.model.net import Net

Form = Literal["dot", "mermaid", "json"]


def _form(form: Form, help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(f"--{form}", f"as_{form}", is_flag=True, help=help_text)


@click.command()
@click.argument("file", metavar="FILE")
@_form("dot", "Print the graph for Graphviz.")
@_form("mermaid", "Print the graph as a Mermaid flowchart.")
@_form("json", "Print one JSON document.")
def command(file: str, as_dot: bool, as_mermaid: bool, as_json: bool) -> None:
    """Draw what a playbook would run, without running it.

    Shows the steps in the order they are reached, what each runs, the arcs between them with their
    guards, the credentials needed, and unreachable steps. FILE may be - for standard input.

    \b
    Examples:
      noetl plan orders.yaml
      noetl plan orders.yaml --dot | dot -Tsvg > orders.svg
      noetl plan orders.yaml --json | jq '.credentials[].name'
    """
    if as_dot + as_mermaid + as_json > 1:
        raise click.UsageError("choose one of --dot, --mermaid and --json.")
    net, digest = _compiled(file)
    if as_dot:
        print_text(dot(net))
    elif as_mermaid:
        print_text(mermaid(net))
    elif as_json:
        print_json(document(net, digest))
    else:
        show(draw(net, digest, LINES if is_rich(sys.stdout) else ASCII))


def _compiled(name: str) -> tuple[Net, str]:
    text = source(name)
    if isinstance(text, Unreadable):
        say(str(text))
        sys.exit(WRONG)
    compiled = compiler(current_settings())(text.text)
    errors = [problem for problem in compiled.problems if problem.severity == "error"]
    if compiled.net is None or errors:
        print_problems(text.name, errors)
        say(f"{text.name} has {counted(len(errors), 'error')}, so it cannot be planned.")
        sys.exit(WRONG)
    if compiled.problems:
        remarks = counted(len(compiled.problems), "warning")
        say(f"{text.name} has {remarks}; `noetl validate` lists them.")
    return compiled.net, compiled.digest
