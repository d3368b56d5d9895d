"""What `fmt` and `migrate` share: the loop over files, writing back, the hint to use `migrate`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from io import StringIO
from typing import NoReturn

import click

from noetl.cli.exits import FAILED, OK, WRONG
from noetl.cli.files import Source, Unreadable, replace
from noetl.cli.output import counted, print_text, printable, problem_line, say
from noetl.errors import PlaybookRejected
from noetl.model.problems import Problem

OLDER_DIALECT = frozenset({"older-form", "removed-key", "unsupported-version", "root-hoisted"})
"""Problems that are typical for a playbook in an older dialect."""


def each(
    found: Iterable[Source | Unreadable], rewrite: Callable[[Source], int], *, check: bool
) -> NoReturn:
    """Rewrite every file, and exit with the worst of the codes that `rewrite` returned."""
    codes = [OK]
    for one in found:
        if isinstance(one, Unreadable):
            say(f"{one.name}: {one.reason}.")
            codes.append(WRONG)
        else:
            codes.append(rewrite(one))
    if check:
        say(f"{counted(codes.count(FAILED), 'file')} would be rewritten, of {len(codes) - 1}")
    sys.exit(max(codes))


def put_back(source: Source, text: str) -> int:
    """Write a text to its file, or to stdout if it came from stdin. Returns the exit code."""
    if source.path is None:
        print_text(text)
        return OK
    if text == source.text:
        return OK
    try:
        replace(source.path, text)
    except OSError as error:
        say(f"{source.name} was not changed: {error.strerror or error}.")
        return FAILED
    say(f"rewrote {source.name}")
    return OK


def print_diff(source: Source, text: str) -> None:
    """Print the change as a unified diff that `patch` understands."""
    # Not splitlines(): it also breaks at characters that patch does not take for a line end.
    old, new = list(StringIO(source.text, newline="\n")), list(StringIO(text, newline="\n"))
    name = printable(source.name)
    for line in difflib.unified_diff(old, new, name, name):
        # The mark that diff and patch use for a missing newline at the end of a file.
        end = "" if line.endswith("\n") else "\n\\ No newline at end of file\n"
        print_text(line + end)


def report_rejected(source: Source, error: PlaybookRejected) -> None:
    """Print why a text cannot be rewritten."""
    for problem in error.problems:
        click.echo(str(problem_line(source.name, problem)), err=True)
    say(f"{source.name} was not changed, because it cannot be parsed.")


def older_dialect(name: str, text: str, problems: tuple[Problem, ...]) -> str | None:
    """The hint to print before the problems of a playbook that `noetl migrate` would rewrite."""
    if not any(problem.code in OLDER_DIALECT for problem in problems):
        return None
    from noetl.wiring import migrator

    try:
        changes = migrator()(text).changes
    except PlaybookRejected:
        return None
    if not changes:
        return None
    return f"{name} is written in an older dialect: `noetl migrate {name}` rewrites it."
