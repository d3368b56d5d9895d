"""`noetl run`: a playbook to its end, the whole system in this process."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.context import current_settings
from noetl.cli.exits import WRONG
from noetl.cli.payload import PAYLOAD_HELP, SET_HELP, workload
from noetl.cli.printing import problem_line, say
from noetl.cli.running import (
    cancelled_by_ctrl_c,
    conclude,
    follow,
    print_output,
    with_database,
)
from noetl.errors import PlaybookRejected

if TYPE_CHECKING:
    from noetl.model.net import Net
    from noetl.settings import Settings
    from noetl.wiring import System


@click.command(short_help="Run a playbook to its end, in this process.")
@click.argument("target", metavar="FILE_OR_PATH")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help=SET_HELP)
@click.option("--payload", metavar="JSON", help=PAYLOAD_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the execution as one JSON document.")
@click.option("--db", metavar="URL", help="Where to keep executions. Default .noetl/noetl.db.")
@click.option("--resume/--new", "resume", default=None, help="Go on with interrupted executions.")
def command(
    target: str,
    sets: tuple[str, ...],
    payload: str | None,
    as_json: bool,
    db: str | None,
    resume: bool | None,
) -> None:
    """Run a playbook to its end, in this process.

    Everything is recorded in a database below the working directory, so that an execution
    survives whatever happens to this process: start the command again to go on with it.
    The result goes to stdout, everything else to stderr. Exits with 1 if the execution fails.

    \b
    Examples:
      noetl run examples/orders.yaml
      noetl run orders.yaml --set days=3 --json
      noetl run shop/orders                      # by its path in the catalog
    """
    given = workload(sets, payload)
    settings = with_database(current_settings(), db)
    sys.exit(asyncio.run(_run(settings, target, given, as_json=as_json, resume=resume)))


async def _run(
    settings: Settings, target: str, given: dict[str, Any], *, as_json: bool, resume: bool | None
) -> int:
    from noetl import wiring

    source = Path(target)
    compiled = None
    if source.is_file():
        compiled = wiring.compiler(settings)(source.read_text(encoding="utf-8"))
        for problem in compiled.problems:
            if problem.severity == "error" or sys.stderr.isatty():
                say(str(problem_line(target, problem)))
        if compiled.net is None:
            return WRONG
    async with wiring.embedded(settings) as system:
        if compiled is not None and compiled.net is not None:
            digest, path, version = compiled.digest, compiled.net.path, None
            await system.orchestrator.programs.keep(compiled.net, digest)
            await register_neighbours(system, compiled.net, source.parent)
        else:
            entry = await system.catalog.entry(target)
            digest, path, version = entry.digest, entry.path, entry.version
        execution_id = await _interrupted(system, path, digest, resume)
        if execution_id is None:
            execution_id = await system.executions.start(digest, path, version, given)
        live = sys.stderr.isatty() and not as_json
        async with cancelled_by_ctrl_c(system, execution_id):
            document = await follow(system, execution_id, as_json=as_json, live=live)
        if document["status"] == "FAILED" and not as_json:
            await print_output(system, execution_id)
        return conclude(document, as_json=as_json)


async def _interrupted(system: System, path: str, digest: str, resume: bool | None) -> str | None:
    """An execution of this very playbook that was cut short, if people want to go on with it."""
    if resume is False:
        return None
    for execution_id in await system.store.unfinished():
        row = await system.store.summary(execution_id)
        if row is None or row.path != path or row.parent_execution_id is not None:
            continue
        if row.digest != digest:
            say(f"execution {execution_id} of an earlier version goes on in the background")
            continue
        question = f"Execution {execution_id} of this playbook was interrupted. Go on with it?"
        if resume or (sys.stdin.isatty() and click.confirm(question, default=True, err=True)):
            say(f"going on with execution {execution_id}")
            return execution_id
        say(f"execution {execution_id} was interrupted earlier; `--resume` goes on with it")
    return None


async def register_neighbours(system: System, net: Net, folder: Path) -> None:
    """Playbooks that this one calls and the catalog does not have: perhaps they lie beside it."""
    wanted = await _missing(system, net)
    if not wanted:
        return
    found = {path: text for file in sorted(folder.glob("*.y*ml")) for path, text in _named(file)}
    while wanted:
        path = wanted.pop()
        if path not in found:
            continue  # starting it will say that it is missing, at the step that calls it
        try:
            _, compiled = await system.catalog.register(found.pop(path))
        except PlaybookRejected as error:
            say(f"{path}, which this playbook calls, has errors:\n{error}")
            continue
        wanted |= await _missing(system, compiled.unwrap())


async def _missing(system: System, net: Net) -> set[str]:
    """Paths of playbooks that are called and not registered."""
    pipelines = [*(step.tasks for step in net.steps), *(block.tasks for block in net.workbook)]
    tasks = [task for pipeline in pipelines for task in pipeline]
    paths = {str(task.config.get("path")) for task in tasks if task.kind == "playbook"}
    return {path for path in paths if await system.store.catalog_entry(path) is None}


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
