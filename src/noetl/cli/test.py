"""`noetl test`: tests of playbooks, with stand-ins for tools."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from noetl import configured
from noetl.cli import FAILED, OK, WRONG
from noetl.cli.files import TEST_ENDINGS, Unreadable, print_problems, source, yaml_files
from noetl.cli.options import current_settings, db_option, json_option, server_option, settings_for
from noetl.cli.output import as_text, counted, print_json, print_line, printable, say
from noetl.cli.views.lines import length, plain_line
from noetl.cli.views.source_lines import of_execution
from noetl.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from noetl.cli.files import Source
    from noetl.cli.views.source_lines import SourceLines
    from noetl.settings import Settings
    from noetl.trials.files import PlaybookTrials
    from noetl.trials.playbooks import Playbooks
    from noetl.trials.verdict import Verdict
    from noetl.trials.world import Story


class Judged(NamedTuple):
    """A test and its outcome."""

    file: str
    verdict: Verdict
    source: SourceLines
    """Where the code of tasks is in the playbook file."""


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("-k", "only", metavar="TEXT", default="", help="Only tests whose name contains this.")
@click.option(
    "--against",
    metavar="EXECUTIONS",
    help="Compare a playbook with recorded executions: ids, a path or a query.",
)
@click.option(
    "--last",
    type=click.IntRange(1, 100),
    default=20,
    show_default=True,
    help="With --against: compare at most this many, the newest.",
)
@click.option("--from", "source", metavar="ID", help="Write a test from an execution or recording.")
@click.option("-o", "output", metavar="FILE", help="With --from: the file to write.")
@click.option("--playbook", metavar="FILE", help="With --from: the playbook, if it is elsewhere.")
@json_option
@db_option
@server_option
def command(
    files: tuple[str, ...],
    only: str,
    against: str | None,
    last: int,
    source: str | None,
    output: str | None,
    playbook: str | None,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """Run tests of playbooks, with stand-ins for tools and virtual time.

    A FILE names a playbook and its tests: a workload, what the tools answer, and what must hold at
    the end. A directory is searched for files whose names end in .test.yaml. Tests run on the real
    engine, but waiting takes no time. Exits with 1 if a test fails, with 2 if a file is wrong.

    With --against the FILE is a playbook. The command reports which recorded executions would have
    gone another way under it, and where; recorded outcomes replace the tools. Exits with 1 if there
    are any.

    With --from the command writes a test file that replays what the tools of an execution answered,
    and that passes.

    \b
    Examples:
      noetl test orders.test.yaml
      noetl test playbooks/ -k "is retried"
      noetl test orders.yaml --against shop/orders --last 50
      noetl test orders.yaml --against 'status:failed since:2d'
      noetl test --from 4711 -o orders.test.yaml
    """
    from noetl.trials.clock import VirtualLoop

    if source is not None:
        if files or against is not None:
            raise click.UsageError("--from writes a test; it takes no FILE and no --against.")
        made = asyncio.run(_from_run(settings_for(db, server), source, output, playbook))
        files = (made,)
    elif output is not None or playbook is not None:
        raise click.UsageError("-o and --playbook need --from.")
    if not files:
        raise click.UsageError("name the FILEs with the tests, or a directory of them.")
    if against is not None:
        if len(files) != 1:
            raise click.UsageError("--against compares one playbook.")
        settings = settings_for(db, server)
        sys.exit(asyncio.run(_against(settings, files[0], against, last, as_json=as_json)))
    settings = current_settings()
    loaded = _loaded(settings, files)
    if loaded is None:
        sys.exit(WRONG)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        judged = runner.run(_judge(settings, loaded, only, as_json=as_json))
    sys.exit(_conclude(judged, only, as_json=as_json))


# --- Against what was recorded -------------------------------------------------------------------


async def _against(settings: Settings, name: str, against: str, last: int, *, as_json: bool) -> int:
    from noetl.api.routes.whatif import WHATIF, WhatIf
    from noetl.cli.calls import looking

    text = source(name)
    if isinstance(text, Unreadable):
        say(str(text))
        return WRONG
    words = against.replace(",", " ").split()
    ids: list[str] | None = None
    query: str | None = against
    if ":" not in against and len(words) == 1:
        query = f"path:{against}"
    async with looking(settings) as api:
        if all(word.isdecimal() or word == "last" for word in words):
            ids, query = [await api.find(word) for word in words], None
        wish = WhatIf(content=text.text, executions=ids, query=query, last=last)
        found = await api.call(WHATIF, body=wish)
    if as_json:
        print_json(found)
    else:
        for one in found.executions:
            mark = {"same": _mark(True), "different": _mark(False)}.get(one.verdict, "?")
            print_line(f"{mark} {one.execution_id}  {printable(one.text)}")
    if not found.executions:
        say(
            f"no recorded execution matches {printable(against)}."
            " `noetl executions list` lists all."
        )
        return WRONG
    if not as_json:
        compared = counted(len(found.executions), "execution")
        say(
            f"{compared}: {found.same} the same, {found.different} different,"
            f" {found.unknown} unknown"
        )
    return FAILED if found.different else OK


# --- From what was recorded ----------------------------------------------------------------------


async def _from_run(
    settings: Settings, written: str, output: str | None, playbook: str | None
) -> str:
    """Write the test file. Returns its name."""
    from noetl.api.routes.executions import EXPORT
    from noetl.cli.calls import looking
    from noetl.control.recordings import read, read_bytes
    from noetl.model.events import ExecutionRequested
    from noetl.trials.from_run import trial_of
    from noetl.trials.from_run import written as as_text

    if Path(written).is_file():
        with open(written, "rb") as file:
            recording = read(file)
    else:
        async with looking(settings) as api:
            pieces = api.client.pieces(EXPORT, execution_id=await api.find(written))
            recording = read_bytes(b"".join([piece async for piece in pieces]))
    first = recording.facts[0]
    assert isinstance(first, ExecutionRequested)
    name = first.path.rpartition("/")[2]
    target = Path(output or f"{name}.test.yaml")
    if output is None and target.exists():
        raise BadRequest(f"{target} already exists and was not changed. -o FILE names another.")
    beside = target.parent / f"{target.name.removesuffix('.yaml').removesuffix('.test')}.yaml"
    if playbook is None and first.source is not None and Path(first.source.name).is_file():
        playbook = first.source.name
    if playbook is None and recording.playbook is not None:
        playbook = str(beside)
    if playbook is None:
        raise NotFound("the playbook of this execution is not in the catalog. --playbook names it.")
    test = await trial_of(recording, os.path.relpath(playbook, target.parent))
    if playbook == str(beside) and not beside.exists() and recording.playbook is not None:
        _write(beside, recording.playbook)
        say(f"the playbook is in {beside}")
    _write(target, as_text(test))
    say(f"the test is in {target}")
    return str(target)


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{target} cannot be written: {error.strerror}.") from None


# --- Which tests -------------------------------------------------------------------------------


def _loaded(settings: Settings, names: tuple[str, ...]) -> dict[str, PlaybookTrials] | None:
    """The tests by file. Prints why and returns None if something is wrong with any of them."""
    from noetl.cli.run import Neighbours
    from noetl.trials.files import PlaybookTrials, load

    compile_text = configured.compiler(settings)
    found: dict[str, PlaybookTrials] = {}
    is_right = True
    for text in _texts(names):
        if isinstance(text, Unreadable):
            say(str(text))
            is_right = False
            continue
        name = text.name if text.path is None else str(text.path)
        one = load(name, text.text, compile_text, Neighbours)
        if isinstance(one, PlaybookTrials):
            found[name] = one
            continue
        is_right = False
        if _is_playbook(text.text):
            say(
                f"{printable(name)} is a playbook, not a test file. `noetl test --from ID`"
                " writes tests of it from an execution; --against compares it with executions."
            )
            continue
        for file, problem in one:
            print_problems(file, [problem])
    return found if is_right else None


def _is_playbook(text: str) -> bool:
    keys = {line.partition(":")[0] for line in text.splitlines()}
    return "workflow" in keys and "tests" not in keys


def _texts(names: tuple[str, ...]) -> Iterator[Source | Unreadable]:
    for name in names:
        if not Path(name).is_dir():
            yield source(name)
            continue
        inside = [
            one if isinstance(one, Unreadable) else source(str(one))
            for one in yaml_files(Path(name))
            if isinstance(one, Unreadable) or one.name.endswith(TEST_ENDINGS)
        ]
        if not inside:
            say(f"{printable(name)}: no file in this directory ends in .test.yaml.")
        yield from inside


# --- Running them ------------------------------------------------------------------------------


async def _judge(
    settings: Settings, loaded: dict[str, PlaybookTrials], only: str, *, as_json: bool
) -> list[Judged]:
    from noetl.trials.verdict import judge
    from noetl.trials.world import surroundings

    judged = []
    async with surroundings(settings) as around:
        for name, one in loaded.items():
            for trial in one.file.tests:
                if only.lower() not in trial.name.lower():
                    continue
                verdict = await judge(one, trial, around)
                source = await _source(settings, verdict.story, one.playbooks)
                judged.append(Judged(name, verdict, source))
                if not as_json:
                    _show(judged[-1])
    return judged


async def _source(settings: Settings, story: Story, playbooks: Playbooks) -> SourceLines:
    """Where the failed code is, in the playbook file and in those it calls."""

    class Records:
        async def document(self, execution_id: str) -> dict[str, Any]:
            return dict(story.below[execution_id])

        async def text(self, path: str, version: int) -> str | None:
            return next(
                (text for text, net in playbooks.children.items() if net.path == path), None
            )

    return await of_execution(Records(), configured.compiler(settings), story.execution)


# --- Printing the outcome ----------------------------------------------------------------------


def _show(judged: Judged) -> None:
    """Print one line, and below it every failed expectation."""
    verdict = judged.verdict
    mark = _mark(verdict.passed)
    print_line(f"{mark} {printable(verdict.name)}  ({length(verdict.story.elapsed)})")
    if verdict.passed:
        return
    for complaint in verdict.story.complaints:
        for line in complaint.splitlines():
            print_line(f"    {printable(line)}")
    placed = _placed(judged)
    for one in verdict.differences:
        print_line(f"    {printable(one.what)}")
        print_line(f"      expected  {_written(one.expected)}")
        print_line(f"      found     {_written(one.found, placed)}")
    print_line("    what happened")
    for line in _story(verdict.story):
        print_line(f"      {_with_places(line, placed)}")


def _placed(judged: Judged) -> dict[str, str]:
    """Error messages as recorded → with file and line."""
    document = judged.verdict.story.execution
    told = judged.source.told(dict(document))
    errors = [(document["error"], told["error"])] + [
        (one["error"], other["error"])
        for one, other in zip(document["steps"], told["steps"], strict=True)
    ]
    return {one["message"]: other["message"] for one, other in errors if one is not None}


def _with_places(text: str, placed: dict[str, str]) -> str:
    for message, with_place in placed.items():
        text = text.replace(printable(message), printable(with_place))
    return text


def _mark(passed: bool) -> str:
    if (sys.stdout.encoding or "").lower().startswith("utf"):
        return "✓" if passed else "✗"
    return "ok  " if passed else "FAIL"


def _written(value: Any, placed: dict[str, str] | None = None) -> str:
    return _with_places(printable(as_text(value)), placed or {})


def _story(story: Story) -> Iterator[str]:
    """The events of the test, with their virtual time."""
    begun = story.events[0].at if story.events else 0.0
    for row in story.events:
        line = plain_line(row, story.execution["execution_id"])
        if line is not None:
            yield f"{length(row.at - begun):>12}  {line}"
    yield f"{length(story.elapsed):>12}  {_last_word(story)}"


def _last_word(story: Story) -> str:
    status = story.execution["status"]
    if story.complaints:
        return "the test was interrupted"
    if status in ("COMPLETED", "FAILED", "CANCELLED"):
        return str(status)
    return f"{status}: nothing more can happen without an event; `signals` can send one"


def _conclude(judged: list[Judged], only: str, *, as_json: bool) -> int:
    failed = sum(not one.verdict.passed for one in judged)
    if as_json:
        tests = [{"file": one.file, **one.verdict.as_data()} for one in judged]
        print_json({"passed": len(judged) - failed, "failed": failed, "tests": tests})
    if not judged:
        say(f'no test has "{only}" in its name.' if only else "there are no tests.")
        return WRONG
    if not as_json:
        say(f"{counted(len(judged), 'test')}, {failed or 'none'} failed")
    return FAILED if failed else OK
