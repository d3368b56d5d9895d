"""`noetl validate`: all problems of all files, at once."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from noetl.cli import OK, WRONG
from noetl.cli.files import Source, Unreadable, is_test, problem_line, sources, suggest_migrate
from noetl.cli.options import current_settings, json_option
from noetl.cli.output import counted, print_json, print_line, printable, say
from noetl.cli.views.paint import Drawn, Span, is_rich, painted, show_coloured, terminal
from noetl.configured import document_compiler
from noetl.model.problems import Problem

if TYPE_CHECKING:
    from rich.console import Console

    from noetl.dsl import Compiled
    from noetl.settings import Settings

# Line ends as the YAML reader counts them; Python knows more.
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_WORD = re.compile(r"[\w.-]+|.", re.DOTALL)
TAB = 4


class Checked(NamedTuple):
    """A file, its text if it could be read, and its problems."""

    name: str
    text: str | None
    problems: tuple[Problem, ...]

    def count(self, severity: str) -> int:
        return sum(problem.severity == severity for problem in self.problems)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@json_option
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
def command(files: tuple[str, ...], as_json: bool, strict: bool) -> None:
    """Report every problem of playbooks, with line and column.

    A FILE may be a directory, which is searched for playbooks, or - for standard input. Schedules
    and other documents are checked according to their `kind`, and *.test.yaml as tests. Each
    problem is one line, `file:line:column: message [code]`, so that editors can jump to it; a
    terminal shows the place below it. Exits with 2 if any problem is an error.

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
    problems_of = checker(current_settings())
    for source in sources(names):
        match source:
            case Source():
                yield Checked(source.name, source.text, problems_of(source))
            case Unreadable():
                say(str(source))
                yield Checked(source.name, None, (_unreadable(source),))


def checker(settings: Settings) -> Callable[[Source], tuple[Problem, ...]]:
    """Text → all its problems: of a playbook together with the documents in its folder that it
    names, of another document according to its kind, of tests together with their playbook.
    """
    from noetl.cli.run import Neighbours
    from noetl.dsl import compile_beside

    compile_text = document_compiler(settings)

    def problems_of(source: Source) -> tuple[Problem, ...]:
        if is_test(source):
            return _problems_of_tests(source, compile_text)
        neighbours = Neighbours(source.path.parent) if source.path is not None else {}
        return compile_beside(source.text, compile_text, neighbours).problems

    return problems_of


def _problems_of_tests(
    source: Source, compile_text: Callable[..., Compiled]
) -> tuple[Problem, ...]:
    """What is wrong with a file of tests. What is wrong with its playbook is told as one of it."""
    from noetl.cli.run import Neighbours
    from noetl.trials.files import PlaybookTrials, load

    found = load(str(source.path), source.text, compile_text, Neighbours)
    if isinstance(found, PlaybookTrials):
        return ()
    return tuple(
        problem
        if file == str(source.path)
        else msgspec.structs.replace(
            problem,
            message=f"its playbook, {file}:{problem.line}: {problem.message}",
            line=1,
            column=1,
        )
        for file, problem in found
    )


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
        if file.text is not None:  # else there is no line to point at; stderr says why
            suggest_migrate(file.name, file.text, file.problems)
            if console is not None:
                _show(file.name, file.text, file.problems, console)
            else:
                for problem in file.problems:
                    print_line(str(problem_line(file.name, problem)))
        yield file


def _show(name: str, text: str, problems: Iterable[Problem], console: Console) -> None:
    """Print each problem with the line it refers to."""
    lines = _LINE_END.split(text)
    for problem in problems:
        where, severity, message, code = problem_line(name, problem)
        head = (Span(where, "step"), Span(severity, "guard"), Span(message), Span(code, "quiet"))
        console.print(painted(head), soft_wrap=True)
        show_coloured(excerpt(lines, problem.line, problem.column, console.width), console)
        print_line("")


def excerpt(lines: Sequence[str], line: int, column: int, width: int) -> Iterator[Drawn]:
    """The line of a problem and a caret under its column; empty if there is no such line."""
    from rich.cells import cell_len

    if not 1 <= line <= len(lines):
        return
    number = str(line)
    gutter = f"{'':{len(number)}} │ "
    written = lines[line - 1]
    at = min(column - 1, len(written))
    word = _WORD.match(written, at)
    before, marked = _shown(written[:at]), _shown(word[0]) if word else ""
    after = _shown(written[at + len(word[0]) :]) if word else ""
    room = max(width - len(gutter), 20)
    before, marked, after = _window(before, marked, after, room)
    yield Drawn(f"{number} │ ", gutter, (Span(before), Span(marked, "error"), Span(after)))
    carets = "^" * max(cell_len(marked), 1)
    yield Drawn(gutter, gutter, (Span(" " * cell_len(before)), Span(carets, "error")))


def _shown(text: str) -> str:
    return printable(text.replace("\t", " " * TAB))


def _window(before: str, marked: str, after: str, room: int) -> tuple[str, str, str]:
    """Cut a long line so that the marked place stays visible."""
    from rich.cells import cell_len

    while cell_len(marked) > room:
        marked = marked[:-1]
    space = room - max(cell_len(marked), 1)
    if cell_len(before) > max(space * 2 // 3, space - cell_len(after)):
        keep = max(space * 2 // 3 - 1, 0)
        while cell_len(before) > keep:
            before = before[1:]
        before = f"…{before}" if space else ""
    space -= cell_len(before)
    if cell_len(after) > space:
        while after and cell_len(after) > space - 1:
            after = after[:-1]
        after = f"{after}…" if space > 0 else ""
    return before, marked, after
