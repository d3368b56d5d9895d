"""`noetl run`: a playbook to its end, the whole system in this process."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from noetl.cli.exits import WRONG
from noetl.cli.options import (
    db_option,
    json_option,
    label_option,
    labels_of,
    payload_option,
    server_option,
    set_option,
    settings_for,
)
from noetl.cli.printing import problem_line, say
from noetl.cli.whoami import local_actor

if TYPE_CHECKING:
    from noetl.dsl import Compiled
    from noetl.model.net import Net
    from noetl.settings import Settings
    from noetl.wiring import System


class CompiledFile(NamedTuple):
    """A playbook from a file."""

    text: str
    compiled: Compiled


class Chosen(NamedTuple):
    """The playbook to run."""

    digest: str
    path: str
    version: int | None


@click.command(short_help="Run a playbook to its end, in this process or on a server.")
@click.argument("target", metavar="FILE_OR_PATH")
@set_option
@payload_option
@label_option
@json_option
@db_option
@server_option
@click.option(
    "--resume/--new",
    "resume",
    default=None,
    help="Go on with an interrupted execution of this playbook, or do not ask and start anew.",
)
def command(
    target: str,
    sets: tuple[str, ...],
    payload: str | None,
    labels: tuple[str, ...],
    as_json: bool,
    db: str | None,
    server: str | None,
    resume: bool | None,
) -> None:
    """Run a playbook to its end, in this process or on a server.

    Everything is recorded in a database below the working directory, so that an execution
    survives whatever happens to this process: start the command again to go on with it.
    The result goes to stdout, everything else to stderr. Exits with 1 if the execution fails,
    with 130 if Ctrl-C cancelled it.

    \b
    Examples:
      noetl run examples/orders.yaml
      noetl run orders.yaml --set days=3 --json
      noetl run shop/orders                      # by its path in the catalog
    """
    from noetl.cli.payload import workload

    given = workload(sets, payload)
    named = labels_of(labels)
    settings = settings_for(db, server)
    if settings.server_url is not None:
        from noetl.cli.run_there import run_there

        sys.exit(asyncio.run(run_there(settings, target, given, named, sets, as_json=as_json)))
    sys.exit(
        asyncio.run(_run(settings, target, given, named, sets, as_json=as_json, resume=resume))
    )


async def _run(
    settings: Settings,
    target: str,
    given: dict[str, Any],
    labels: dict[str, str],
    sets: tuple[str, ...],
    *,
    as_json: bool,
    resume: bool | None,
) -> int:
    from noetl import wiring
    from noetl.cli.payload import asked_for, say_all, typed
    from noetl.cli.running import run_to_end, working_here
    from noetl.errors import BadInputs, NotFound
    from noetl.model.facts import Source

    compiled, source = None, None
    if is_file(target):
        found = compiled_file(settings, target)
        if found is None:
            return WRONG
        compiled = found.compiled
        source = Source(name=target, code_lines=dict(compiled.code_lines))
        point_out_misspelt(given, compiled.unwrap())
    wiring.check_task_network(settings)  # before an execution is kept that nothing could run
    async with wiring.embedded(settings, work=False) as system:
        try:
            chosen = await _chosen(system, target, compiled)
        except NotFound as error:
            say(str(error))
            return WRONG
        try:
            execution_id = await _interrupted(system, chosen, resume)
        except _Edited as edited:
            say(str(edited))
            return WRONG
        if execution_id is None:
            program = await system.orchestrator.programs.by_digest(chosen.digest)
            inputs = program.net.executor.inputs
            given = asked_for(typed(given, sets, inputs), inputs, program.net.workload)
            try:
                execution_id = await system.executions.start(
                    *chosen, given, actor=local_actor(), source=source, labels=labels
                )
            except BadInputs as error:
                say_all(error)
                return WRONG
        elif given:
            say("going on with the workload it was started with; --new starts with another")
        async with working_here(system, settings, {execution_id}):
            return await run_to_end(system, execution_id, as_json=as_json)


# --- Which playbook ----------------------------------------------------------------------------


def is_file(target: str) -> bool:
    """Names that end like a playbook file are files, whether they exist or not."""
    return target == "-" or target.endswith((".yaml", ".yml")) or Path(target).exists()


def compiled_file(settings: Settings, target: str) -> CompiledFile | None:
    """The playbook in a file; None, and said why, if there is none to run."""
    from noetl import wiring
    from noetl.cli.files import Unreadable, source
    from noetl.cli.rewriting import older_dialect

    text = source(target)
    if isinstance(text, Unreadable):
        say(f"{text.name}: {text.reason}.")
        return None
    compiled = wiring.compiler(settings)(text.text)
    shown = compiled.net is None or sys.stderr.isatty()
    if shown and (hint := older_dialect(text.name, text.text, compiled.problems)):
        say(hint)
    for problem in compiled.problems:
        if problem.severity == "error" or sys.stderr.isatty():
            click.echo(str(problem_line(text.name, problem)), err=True)
    if compiled.net is None:
        say(f"{text.name} has errors, so nothing was run.")
        return None
    return CompiledFile(text.text, compiled)


def point_out_misspelt(given: dict[str, Any], net: Net) -> None:
    """Names that are nearly those of the workload: such a value would be passed over in silence."""
    from noetl.model.spelling import did_you_mean

    inputs = {one.name for one in net.executor.inputs}
    for name in given.keys() - net.workload.keys() - inputs:
        hint = did_you_mean(name, net.workload)
        if hint:
            say(f'the workload of this playbook has no "{name}".{hint}')


async def _chosen(system: System, target: str, compiled: Compiled | None) -> Chosen:
    from noetl.errors import NotFound
    from noetl.model.spelling import did_you_mean

    if compiled is not None and compiled.net is not None:
        await system.orchestrator.programs.keep(compiled.net, compiled.digest)
        await register_neighbours(system, compiled.net, Path(target).parent)
        return Chosen(compiled.digest, compiled.net.path, None)
    try:
        entry = await system.catalog.playbook(target)
    except NotFound:
        known = [entry.path for entry in await system.store.catalog()]
        raise NotFound(
            f'there is no file "{target}", and no playbook of that path is registered.'
            f"{did_you_mean(target, known)} `noetl catalog list` shows those there are."
        ) from None
    return Chosen(entry.digest, entry.path, entry.version)


# --- What was cut short ------------------------------------------------------------------------


async def _interrupted(system: System, chosen: Chosen, resume: bool | None) -> str | None:
    """An execution of this very playbook that was cut short, if people want to go on with it."""
    if resume is False:
        return None
    edited: str | None = None
    for execution_id in reversed(await system.store.unfinished()):
        row = await system.store.summary(execution_id)
        if row is None or row.path != chosen.path or row.parent_execution_id is not None:
            continue
        if row.digest != chosen.digest:
            edited = edited or execution_id
            if not resume:
                say(
                    f"execution {execution_id} of another version of this playbook was interrupted"
                    f" and stays so. `noetl executions resume {execution_id}` goes on with it."
                )
            continue
        question = f"Execution {execution_id} of this playbook was interrupted. Go on with it?"
        if resume or (sys.stdin.isatty() and click.confirm(question, default=True, err=True)):
            say(f"going on with execution {execution_id}")
            if row.status == "PAUSED":
                await system.executions.resume(execution_id, actor=local_actor())
            return execution_id
        say(f"execution {execution_id} was interrupted and stays so; --resume goes on with it")
    if resume:
        _refuse_to_start_anew(chosen, edited)
    return None


class _Edited(Exception):
    """--resume was given, and what was interrupted ran another version of the playbook."""


def _refuse_to_start_anew(chosen: Chosen, edited: str | None) -> None:
    """--resume found nothing to go on with: start anew only if a person says so."""
    if edited is None:
        say(f"no execution of {chosen.path} was interrupted; starting a new one")
        return
    changed = (
        f"the playbook was edited since execution {edited} was interrupted, and an execution goes"
        f" on with the version it began with: `noetl executions resume {edited}`."
    )
    if not sys.stdin.isatty():
        raise _Edited(f"{changed} --new starts a new execution of the edited one.")
    say(changed)
    if not click.confirm("Start a new execution of the edited playbook?", default=False, err=True):
        raise _Edited("nothing was started")


# --- Playbooks beside it -----------------------------------------------------------------------


async def register_neighbours(system: System, net: Net, folder: Path) -> None:
    """Playbooks that this one calls and that lie beside it: the catalog gets them as they are."""
    wanted = called(net)
    if not wanted:
        return
    found = beside(folder)
    done: set[str] = set()
    while wanted := wanted - done:
        path = wanted.pop()
        done.add(path)
        if path in found:
            wanted |= await _register(system, path, found[path])
        # Otherwise the catalog may have it; if not, the step that calls it will say so.


async def _register(system: System, path: str, text: str) -> set[str]:
    """Keep a neighbour; the paths of the playbooks it calls in turn."""
    from noetl.errors import PlaybookRejected

    try:
        before = await system.store.catalog_entry(path)
        entry, compiled = await system.catalog.register(text)
    except PlaybookRejected as error:
        say(f"{path}, which this playbook calls, has errors:\n{error}")
        return set()
    if before is not None and before.version != entry.version:
        say(f"{path} has changed and is registered as version {entry.version}")
    return called(compiled.unwrap())


def beside(folder: Path) -> dict[str, str]:
    """The playbook files in a folder: the path that each gives itself, with its text."""
    files = [file for file in sorted(folder.glob("*.y*ml")) if ".test." not in file.name]
    return {path: text for file in files for path, text in _named(file)}


def called(net: Net) -> set[str]:
    """Paths of playbooks that this one calls."""
    pipelines = [*(step.tasks for step in net.steps), *(block.tasks for block in net.workbook)]
    tasks = [task for pipeline in pipelines for task in pipeline]
    return {str(task.config.get("path")) for task in tasks if task.kind == "playbook"}


def _named(file: Path) -> Iterator[tuple[str, str]]:
    """The path that a playbook file gives itself, with its text."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return  # not ours to complain about: nobody named this file
    match = re.search(r"^\s*path:\s*[\"']?([^\s\"'}]+)", text, re.MULTILINE)
    inline = re.search(r"metadata:.*\bpath:\s*[\"']?([^\s\"'},]+)", text)
    for found in (inline, match):
        if found is not None:
            yield found.group(1), text
            return
