"""`noetl validate`: all problems of all files, at once."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from noetl.cli.exits import OK, WRONG
from noetl.cli.files import Source, Unreadable, sources
from noetl.cli.options import current_settings
from noetl.cli.output import counted, print_json, print_line, problem_line, say
from noetl.cli.rewrites import older_dialect
from noetl.cli.views.paint import Brush, coloured, is_rich, terminal
from noetl.model.problems import Problem

if TYPE_CHECKING:
    from rich.console import Console

# Line ends as the YAML reader counts them; Python knows more.
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class Checked(NamedTuple):
    """A file, its text if it could be read, and its problems."""

    name: str
    text: str | None
    problems: tuple[Problem, ...]

    def count(self, severity: str) -> int:
        return sum(problem.severity == severity for problem in self.problems)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
def command(files: tuple[str, ...], as_json: bool, strict: bool) -> None:
    """Report every problem of playbooks, with line and column.

    A FILE may be a directory, which is searched for playbooks, or - for standard input. Schedules
    and other documents are checked according to their `kind`. Each problem is one line,
    `file:line:column: message [code]`, so that editors can jump to it; a terminal shows the place
    below it. Exits with 2 if any problem is an error.

    \b
    Examples:
      noetl validate orders.yaml
      noetl validate --strict playbooks/
      curl -s https://example.com/orders.yaml | noetl validate -
    """
    checked = _check(files)
    if as_json:
        every = list(checked)
        print_json({"files": [_as_data(file, strict) for file in every]})
    else:
        every = list(_printed(checked))
    errors = sum(file.count("error") for file in every)
    warnings = sum(file.count("warning") for file in every)
    say(
        f"{counted(len(every), 'file')}, {counted(errors, 'error')}, {counted(warnings, 'warning')}"
    )
    sys.exit(OK if all(_is_valid(file, strict) for file in every) else WRONG)


def _check(names: tuple[str, ...]) -> Iterator[Checked]:
    from noetl.cli.run import beside
    from noetl.dsl.triggers import compile_beside
    from noetl.wiring import document_compiler

    compile_text = document_compiler(current_settings())
    for source in sources(names):
        match source:
            case Source():
                neighbours = beside(source.path.parent) if source.path is not None else {}
                compiled = compile_beside(source.text, compile_text, neighbours)
                yield Checked(source.name, source.text, compiled.problems)
            case Unreadable():
                say(f"{source.name}: {source.reason}.")
                yield Checked(source.name, None, (_unreadable(source),))


def _unreadable(source: Unreadable) -> Problem:
    return Problem(
        code="unreadable-file", severity="error", message=source.reason, line=1, column=1
    )


def _is_valid(file: Checked, strict: bool) -> bool:
    return not file.count("error") and not (strict and file.count("warning"))


def _as_data(file: Checked, strict: bool) -> dict[str, Any]:
    return {
        "file": file.name,
        "valid": _is_valid(file, strict),
        "problems": msgspec.to_builtins(file.problems),
    }


def _printed(checked: Iterator[Checked]) -> Iterator[Checked]:
    console = terminal() if is_rich(sys.stdout) else None
    for file in checked:
        if file.text is not None and (hint := older_dialect(file.name, file.text, file.problems)):
            say(hint)
        if file.text is None:
            pass  # reported on stderr; there is no line to point at
        elif console is not None:
            _show(file.name, file.text, file.problems, console)
        else:
            for problem in file.problems:
                print_line(str(problem_line(file.name, problem)))
        yield file


def _show(name: str, text: str, problems: tuple[Problem, ...], console: Console) -> None:
    """Print problems with the lines they refer to."""
    from noetl.cli.views.excerpt import excerpt

    paint = Brush(console)
    lines = _LINE_END.split(text)
    for problem in problems:
        where, severity, message, code = problem_line(name, problem)
        print_line(paint(where, "step") + paint(severity, "guard") + message + paint(code, "quiet"))
        for row in coloured(excerpt(lines, problem.line, problem.column, console.width), console):
            print_line(row)
        print_line("")
