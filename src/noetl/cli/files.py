"""The files named on the command line: how they are read, reported on and rewritten."""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, NoReturn

import click

from noetl import configured
from noetl.cli import FAILED, OK, WRONG
from noetl.cli.options import current_settings
from noetl.cli.output import counted, print_text, printable, say
from noetl.errors import PlaybookRejected
from noetl.model.spelling import nearest

if TYPE_CHECKING:
    from noetl.model.problems import Problem

BYTES_MAX = 16 * 1024 * 1024
"""Far more than a playbook may have; keeps a device or a dump from filling the memory."""
STDIN = "-"

# At the left margin, or first in a document written as one flow mapping.
_PLAYBOOK = re.compile(
    rb"""(?:^|\A(?:\s|\#.*\n|---)*\{\s*)["']?apiVersion["']?\s*:\s*["']?noetl\.io/""", re.MULTILINE
)


OLDER_DIALECT = frozenset({"older-form", "removed-key", "unsupported-version", "root-hoisted"})
"""Problems that are typical for a playbook in an older dialect."""


class Source(NamedTuple):
    """A text and its origin."""

    name: str
    """The name as people know it, safe to print."""
    path: Path | None
    """None: standard input."""
    text: str


class Unreadable(NamedTuple):
    """A name that yielded no text, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}."


TEST_ENDINGS = (".test.yaml", ".test.yml")


def is_document(content: bytes) -> bool:
    """Whether it is a playbook, or another document of NoETL, by the `apiVersion` it says."""
    return _PLAYBOOK.search(content) is not None


def is_test(found: Source) -> bool:
    """Whether it is a file of tests (`noetl test`), by its name."""
    return found.path is not None and found.path.name.endswith(TEST_ENDINGS)


def sources(names: Sequence[str]) -> Iterator[Source | Unreadable]:
    """Every text that the names stand for, each once, in order; directories are searched."""
    seen: set[Path] = set()
    for name in dict.fromkeys(names):
        if name == STDIN:
            yield _decoded("<stdin>", None, sys.stdin.buffer.read(BYTES_MAX + 1))
        elif os.path.isdir(name):
            yield from _in_directory(Path(name), seen)
        else:
            yield from _unless_seen(Path(name), seen)


def source(name: str) -> Source | Unreadable:
    """The one text that the name stands for."""
    if os.path.isdir(name):
        return Unreadable(click.format_filename(name), "this is a directory; name one file")
    return next(iter(sources([name])))


def _unless_seen(path: Path, seen: set[Path]) -> Iterator[Source | Unreadable]:
    real = Path(os.path.realpath(path))
    if real not in seen:
        seen.add(real)
        yield _read(path)


def _in_directory(directory: Path, seen: set[Path]) -> Iterator[Source | Unreadable]:
    found = False
    for path in yaml_files(directory):
        content = path if isinstance(path, Unreadable) else _bytes_of(path)
        if isinstance(content, Unreadable):
            found = True
            yield content
        elif isinstance(path, Path) and is_document(content):
            found = True
            yield from _unless_seen(path, seen)
    if not found:
        yield Unreadable(
            click.format_filename(directory),
            "no playbook in this directory: no .yaml or .yml file says `apiVersion: noetl.io/…`",
        )


def yaml_files(directory: Path) -> Iterator[Path | Unreadable]:
    """In order, without what is hidden; then the folders that cannot be read. A pipe is left out:
    to open it would wait for its writer.
    """
    unreadable: list[OSError] = []
    for folder, folders, files in os.walk(directory, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder, name)
            if name.endswith((".yaml", ".yml")) and not name.startswith(".") and is_plain(path):
                yield path
    for error in unreadable:
        yield Unreadable(click.format_filename(error.filename), _reason(error))


def is_plain(path: Path) -> bool:
    """Whether it is a file, also one that cannot be reached, and no pipe, socket or device."""
    # Unlike those of Path, these raise nothing.
    return os.path.isfile(path) or not os.path.exists(path)


def stamps(names: Sequence[str]) -> dict[Path, tuple[int, int]]:
    """When each file that the names may stand for was written, and its size: changes when one of
    them does.
    """
    found = {}
    for name in names:
        for path in yaml_files(Path(name)) if os.path.isdir(name) else [Path(name)]:
            with suppress(OSError):  # It went meanwhile.
                if isinstance(path, Path):
                    about = path.stat()
                    found[path] = (about.st_mtime_ns, about.st_size)
    return found


def _read(path: Path) -> Source | Unreadable:
    content = _bytes_of(path)
    if isinstance(content, Unreadable):
        return content
    return _decoded(click.format_filename(path), path, content)


def _bytes_of(path: Path) -> bytes | Unreadable:
    try:
        with path.open("rb") as file:
            return file.read(BYTES_MAX + 1)
    except OSError as error:
        return Unreadable(click.format_filename(path), _reason(error))


def _decoded(name: str, path: Path | None, content: bytes) -> Source | Unreadable:
    if len(content) > BYTES_MAX:
        return Unreadable(name, f"more than {BYTES_MAX:,} bytes; that is not a playbook")
    try:
        # A byte order mark is legal in front of YAML and no part of it.
        return Source(name, path, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return Unreadable(
            name,
            f"not UTF-8: byte {content[error.start]:#04x} on line {line}."
            " Save it as UTF-8, e.g. with `iconv -t UTF-8`",
        )


def _meant(missing: object) -> str:
    """A similarly named playbook in the same directory."""
    path = Path(os.fsdecode(missing)) if isinstance(missing, str | bytes | os.PathLike) else None
    if path is None or not path.parent.is_dir():
        return ""
    # Without extensions: those alone make any two names look alike.
    beside = {one.stem: one for one in path.parent.iterdir() if one.suffix in (".yaml", ".yml")}
    near = beside.get(path.stem) or beside.get(nearest(path.stem, beside))
    return f" (did you mean {click.format_filename(near)}?)" if near else ""


def _reason(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return f"there is no such file{_meant(error.filename)}"
        case PermissionError():
            return "permission denied"
        case _:
            return f"it cannot be read: {error.strerror or error}"


# --- Problems ----------------------------------------------------------------------------------


class ProblemLine(NamedTuple):
    """A problem in the format of the GNU coding standards, which editors understand."""

    where: str
    severity: str
    message: str
    code: str

    def __str__(self) -> str:
        return "".join(self)


def problem_line(name: str, problem: Problem) -> ProblemLine:
    """`file:line:column: message [code]`; a warning says so before the message."""
    return ProblemLine(
        where=f"{printable(name)}:{problem.line}:{problem.column}: ",
        severity="" if problem.severity == "error" else f"{problem.severity}: ",
        message=printable(problem.message),
        code=f" [{problem.code}]",
    )


def print_problems(name: str, problems: Iterable[Problem]) -> None:
    """Print the problems of a file on stderr."""
    for problem in problems:
        click.echo(str(problem_line(name, problem)), err=True)


def suggest_migrate(name: str, text: str, problems: tuple[Problem, ...]) -> None:
    """Say that a playbook is in an older dialect, as far as `noetl migrate` would rewrite it."""
    older = _older_parts(problems)
    if not older:
        return
    try:
        migrated = configured.migrator()(text)
    except PlaybookRejected:
        return
    if not migrated.changes:
        return
    compiled = configured.compiler(current_settings())(migrated.text)
    if compiled.is_valid:
        say(f"{name} is written in an older dialect: `noetl migrate {name}` rewrites it.")
    elif is_document(text.encode()) and _older_parts(compiled.problems) < older:
        say(f"a part of {name} is in an older dialect: `noetl migrate {name}` rewrites that part.")


def _older_parts(problems: tuple[Problem, ...]) -> int:
    return sum(problem.code in OLDER_DIALECT for problem in problems)


# --- Rewriting ---------------------------------------------------------------------------------


def rewrite_each(
    found: Iterable[Source | Unreadable], rewrite: Callable[[Source], int], *, check: bool
) -> NoReturn:
    """Rewrite every file, and exit with the worst of the codes that `rewrite` returned."""
    codes = [OK]
    for one in found:
        if isinstance(one, Unreadable):
            say(str(one))
            code = WRONG
        else:
            try:
                code = rewrite(one)
            except PlaybookRejected as error:
                print_problems(one.name, error.problems)
                say(f"{one.name} was not changed, because it cannot be parsed.")
                code = WRONG
        codes.append(code)
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


def replace(path: Path, text: str) -> None:
    """Replace the content of the file atomically; see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of the one at that path when it is whole.

    Raises OSError, with the file untouched, if that is not possible. Mode and owner are kept; a
    symbolic link stays one.
    """
    real = Path(os.path.realpath(path))
    before = real.stat() if real.exists() else None
    # Replacing needs only a writable directory, so respect a file marked read-only.
    if before is not None and (not before.st_mode & 0o222 or not os.access(real, os.W_OK)):
        raise PermissionError(13, "it is read-only", str(path))
    temporary = real.with_name(f".{real.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            if before is not None:
                _make_like(temporary, before)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _make_like(path: Path, before: os.stat_result) -> None:
    made = path.stat()
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        os.chown(path, before.st_uid, before.st_gid)
    path.chmod(stat.S_IMODE(before.st_mode))
