"""`noetl run`: runs a playbook to its end, with the whole system in this process, or on a
server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from noetl import configured
from noetl.api.rights import myself
from noetl.api.routes import catalog, executions
from noetl.cli import WRONG
from noetl.cli.calls import acting, adds, holding
from noetl.cli.files import Unreadable, print_problems, source, suggest_migrate
from noetl.cli.follow import to_end
from noetl.cli.options import (
    answered,
    json_option,
    label_option,
    labels_of,
    payload_option,
    say_bad_inputs,
    set_option,
    with_inputs,
    workload,
)
from noetl.cli.output import counted, say
from noetl.cli.views.source_lines import SourceLines
from noetl.errors import BadInputs, BadRequest, NotFound, PlaybookRejected
from noetl.model.execution_query import quoted
from noetl.model.facts import Source
from noetl.model.net import FormField
from noetl.model.spelling import did_you_mean

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.dsl import Compiled
    from noetl.model.net import FormField, Net
    from noetl.settings import Settings


class CompiledFile(NamedTuple):
    """A playbook from a file."""

    name: str
    text: str
    compiled: Compiled


class Chosen(NamedTuple):
    """The playbook to run."""

    digest: str
    path: str
    version: int | None
    """None for a file that this process runs, which is not in the catalog."""
    inputs: tuple[FormField, ...]
    workload: dict[str, Any]


@click.command()
@click.argument("target", metavar="FILE_OR_PATH")
@set_option
@payload_option
@label_option
@json_option
@adds
@click.option(
    "--resume/--new",
    "resume",
    default=None,
    help="Continue an interrupted execution of this playbook, or start a new one without asking.",
)
async def command(
    settings: Settings,
    target: str,
    sets: tuple[str, ...],
    payload: str | None,
    labels: tuple[str, ...],
    as_json: bool,
    resume: bool | None,
) -> int:
    """Run a playbook to its end, in this process or on a server.

    Everything is recorded in a database under the working directory, so the execution survives a
    crash of this process: run the command again to continue it. The result goes to stdout,
    everything else to stderr. Exits with 1 if the execution fails, with 130 if Ctrl-C cancelled it.

    \b
    Examples:
      noetl run examples/orders.yaml
      noetl run orders.yaml --set days=3 --json
      noetl run shop/orders                      # by its path in the catalog
    """
    given, named = workload(sets, payload), labels_of(labels)
    found = file = None
    if is_file(target):
        found = compiled_file(settings, target)
        if found is None:
            return WRONG
        file = SourceLines(target, found.compiled.code_lines)
        net = found.compiled.unwrap()
        point_out_misspelt(given, net.workload, net.executor.inputs)
    is_here = settings.server_url is None
    if is_here and found is None:
        _require_catalog(settings, target)
    if is_here:
        # before an execution is stored that this process could not run
        configured.check_task_network(settings)
    async with (holding if is_here else acting)(settings) as api:
        try:
            chosen = await _chosen(api, target, found)
            execution_id = await _interrupted(api, chosen, resume) if is_here else None
            if execution_id is None:
                if found is None:
                    point_out_misspelt(given, chosen.workload, chosen.inputs)
                given = with_inputs(given, sets, chosen.inputs, chosen.workload)
                execution_id = await _started(api, chosen, found, given, named)
            elif given:
                say("continuing with the workload it was started with; --new starts with another")
        except BadInputs as error:
            say_bad_inputs(error)
            return WRONG
        except (NotFound, _Edited) as error:
            say(str(error))
            return WRONG
        return await to_end(api, execution_id, as_json=as_json, file=file)


async def _started(
    api: Api,
    chosen: Chosen,
    found: CompiledFile | None,
    given: dict[str, Any],
    labels: dict[str, str],
) -> str:
    if found is not None and api.system is not None:
        # A file runs as it is, without becoming a version in the catalog.
        return await api.system.executions.start(
            *chosen[:3],
            given,
            actor=myself().actor,
            source=Source(name=found.name, code_lines=dict(found.compiled.code_lines)),
            labels=labels,
        )
    body = executions.StartExecution(
        path=chosen.path, version=chosen.version, workload=given, labels=labels
    )
    return (await api.call(executions.START, body=body)).execution_id


# --- Which playbook ----------------------------------------------------------------------------


def is_file(target: str) -> bool:
    """Names that end like a playbook file are files, whether they exist or not."""
    return target == "-" or target.endswith((".yaml", ".yml")) or Path(target).exists()


def _require_catalog(settings: Settings, path: str) -> None:
    """Raises NotFound if there is no database in which the path could be registered: one must not
    be made for a misspelt name.
    """
    if configured.is_missing(settings):
        raise NotFound(
            f'there is no file "{path}", and no database here in which a playbook of that path'
            " could be registered."
        )


def compiled_file(settings: Settings, target: str) -> CompiledFile | None:
    """The playbook in a file. Prints why and returns None if it cannot be run."""
    from noetl.dsl import compile_beside

    text = source(target)
    if isinstance(text, Unreadable):
        say(str(text))
        return None
    neighbours = Neighbours(text.path.parent) if text.path is not None else {}
    compiled = compile_beside(text.text, configured.compiler(settings), neighbours)
    is_seen = sys.stderr.isatty()
    shown = [one for one in compiled.problems if is_seen or one.severity == "error"]
    if shown:
        suggest_migrate(text.name, text.text, compiled.problems)
        print_problems(text.name, shown)
    if compiled.net is None:
        say(f"{text.name} has errors, so nothing was run.")
        return None
    if not is_seen and compiled.problems:
        warnings = counted(len(compiled.problems), "warning")
        say(f"{text.name} has {warnings}; see `noetl validate {text.name}`")
    return CompiledFile(target, text.text, compiled)


def point_out_misspelt(
    given: dict[str, Any], known: dict[str, Any], inputs: tuple[FormField, ...]
) -> None:
    """Warn about keys that resemble those of the workload: such a value would be silently
    unused.
    """
    for name in given.keys() - known.keys() - {one.name for one in inputs}:
        hint = did_you_mean(name, known)
        if hint:
            say(f'the workload of this playbook has no "{name}".{hint}')


async def _chosen(api: Api, target: str, found: CompiledFile | None) -> Chosen:
    if found is not None:
        net, digest = found.compiled.unwrap(), found.compiled.digest
        await _register_neighbours(api, net, Path(target))
        version = None
        if api.system is not None:
            await api.system.orchestrator.programs.keep(net, digest)
        else:
            version = await _registered(api, found.text, found.compiled)
        return Chosen(digest, net.path, version, net.executor.inputs, net.workload)
    try:
        return await registered(api, target)
    except NotFound:
        known = [
            one.path for one in (await api.call(catalog.LIST, body=catalog.ListCatalog())).entries
        ]
        raise NotFound(
            f'there is no file "{target}", and no registered playbook with that path.'
            f"{did_you_mean(target, known)} `noetl catalog list` lists all."
        ) from None


async def registered(api: Api, path: str, version: int | None = None) -> Chosen:
    """A registered playbook. Raises NotFound."""
    one = await api.call(catalog.RESOURCE, body=catalog.Wanted(path=path, version=version))
    inputs = msgspec.convert(msgspec.to_builtins(one.inputs), tuple[FormField, ...])
    return Chosen(one.digest, one.path, one.version, inputs, one.workload)


# --- Interrupted executions --------------------------------------------------------------------


async def _interrupted(api: Api, chosen: Chosen, resume: bool | None) -> str | None:
    """An interrupted execution of this very playbook, if the user wants to continue it."""
    if resume is False:
        return None
    edited: str | None = None
    query = executions.Which(q=f"status:active parent:none path:{quoted(chosen.path)}", limit=1000)
    for row in (await api.call(executions.LIST, query=query)).executions:
        execution_id = row.execution_id
        if (await api.call(executions.GET, execution_id=execution_id)).digest != chosen.digest:
            edited = edited or execution_id
            if not resume:
                say(
                    f"execution {execution_id} of another version of this playbook was interrupted"
                    f" and stays so. `noetl executions resume {execution_id}` continues it."
                )
            continue
        question = f"Execution {execution_id} of this playbook was interrupted. Continue it?"
        if resume or (sys.stdin.isatty() and answered(click.confirm, question, default=True)):
            say(f"continuing execution {execution_id}")
            if row.status == "PAUSED":
                await api.call(
                    executions.RESUME, execution_id=execution_id, body=executions.Resume()
                )
            return execution_id
        say(f"execution {execution_id} was interrupted and stays so; --resume continues it")
    if resume:
        _refuse_to_start_anew(chosen, edited)
    return None


class _Edited(Exception):
    """--resume was given, but the interrupted execution ran another version of the playbook."""


def _refuse_to_start_anew(chosen: Chosen, edited: str | None) -> None:
    """--resume found nothing to continue: start a new execution only if a person confirms."""
    if edited is None:
        say(f"no execution of {chosen.path} was interrupted; starting a new one")
        return
    changed = (
        f"the playbook was edited since execution {edited} was interrupted, and an execution"
        f" continues with the version it began with: `noetl executions resume {edited}`."
    )
    if not sys.stdin.isatty():
        raise _Edited(f"{changed} --new starts a new execution of the edited one.")
    say(changed)
    if not answered(click.confirm, "Start a new execution of the edited playbook?"):
        raise _Edited("nothing was started")


# --- Playbooks beside it -----------------------------------------------------------------------


async def _register_neighbours(api: Api, net: Net, file: Path) -> None:
    """Register the playbooks beside it that this one calls."""
    from noetl.dsl import compile_beside
    from noetl.dsl.walk import called_playbooks

    wanted, done = called_playbooks(net), set[str]()
    if not wanted:
        return
    neighbours, compile_text = Neighbours(file.parent), configured.compiler(api.settings)
    while wanted := wanted - done:
        path = wanted.pop()
        done.add(path)
        found = neighbours.files(path)
        if not found:
            await _point_out_unknown(api, path, neighbours)
            continue
        name, text = _only_one(path, found, file)
        compiled = compile_beside(text, compile_text, neighbours)
        try:
            wanted |= called_playbooks(compiled.unwrap())
            before = (await registered(api, path)).version
        except PlaybookRejected as error:
            said = "\n".join(f"{name}:{line}" for line in str(error).splitlines())
            say(f"{path}, which this playbook calls, has errors:\n{said}")
            continue
        except NotFound:
            before = None
        version = await _registered(api, text, compiled)
        if before is not None and before != version:
            say(f"{path} has changed and is registered as version {version}")


async def _point_out_unknown(api: Api, path: str, neighbours: Neighbours) -> None:
    """Warn of a playbook that is called and is nowhere. The step may never be reached."""
    meant = ""
    for declared, one in neighbours.looked_at():
        file = Path(one.name)
        if Path(path).name != file.name and Path(path) != file.with_suffix(""):
            continue
        if declared in neighbours:
            meant = f' Write "{declared}", the path of that file.'
        else:
            meant = (
                f' {one.name} declares the path "{declared}": write'
                f" `path: {file.with_suffix('')}` under its `metadata`, and call it by that."
            )

    try:
        await registered(api, path)
    except NotFound as error:
        hint = meant or did_you_mean(path, neighbours)
        here = (
            f'"{path}", which this playbook calls, is neither in this folder nor registered.{hint}'
        )
        say(here if hint else f"a playbook that this one calls is not in this folder, and {error}")


def _only_one(path: str, found: list[Neighbour], file: Path) -> Neighbour:
    """The file with that path: the one that runs, if it calls itself. Raises BadRequest if files
    that differ have it.
    """
    for one in found:
        if one.name == file.name:
            return one
    if len({one.text for one in found}) > 1:
        names = " and ".join(one.name for one in found)
        raise BadRequest(
            f"{names} declare the same path, {path}, which this playbook calls. Keep one of them in"
            " this folder, or give the others another `metadata.path`."
        )
    return found[0]


async def _registered(api: Api, text: str, compiled: Compiled) -> int:
    """Register a playbook, without compiling it again. Returns its version."""
    if api.system is not None:
        return (await api.system.catalog.keep(text, compiled)).version
    return (await api.call(catalog.REGISTER, body=catalog.Register(content=text))).version


class Neighbour(NamedTuple):
    """A file near a playbook."""

    name: str
    """Seen from the folder of the playbook."""
    text: str


class Neighbours(Mapping[str, str]):
    """The documents in the folder of a playbook, by the path that each declares, with their texts;
    `lib/child` may also be in the folder `lib` below it. What is in the folder itself goes first,
    and a path that several files declare is none of theirs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, dict[str, list[Neighbour]]] = {}
        """By the folder below this one, as far as it was looked into."""

    def files(self, path: str) -> list[Neighbour]:
        """The files that declare this path."""
        return self._in("").get(path) or self._in(_folder_of(path)).get(path, [])

    def looked_at(self) -> Iterator[tuple[str, Neighbour]]:
        """Each file in the folders that were looked into, after its path."""
        self._in("")
        for found in list(self._found.values()):
            for path, files in found.items():
                for one in files:
                    yield path, one

    def __getitem__(self, path: str) -> str:
        texts = {one.text for one in self.files(path)}
        if len(texts) != 1:
            raise KeyError(path)
        return texts.pop()

    def __iter__(self) -> Iterator[str]:
        return (path for path in {path: None for path, _ in self.looked_at()} if path in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _in(self, below: str) -> dict[str, list[Neighbour]]:
        if below not in self._found:
            self._found[below] = _declared(self._folder, below)
        return self._found[below]


def _folder_of(path: str) -> str:
    """`shop/lib` for `shop/lib/child`; empty for what leads elsewhere, or to what is hidden."""
    *folders, _ = path.split("/")
    return "" if any(one[:1] in ("", ".") for one in folders) else "/".join(folders)


def _declared(folder: Path, below: str) -> dict[str, list[Neighbour]]:
    """The files in a folder, by the path that each declares."""
    from noetl.dsl.read import declared_path

    found: dict[str, list[Neighbour]] = {}
    if not os.path.isdir(folder / below):
        return found
    for file in sorted((folder / below).glob("*.y*ml")):
        if ".test." in file.name:
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            continue  # not worth a message: the user did not name this file
        if path := declared_path(text):
            name = str(file.relative_to(folder))
            found.setdefault(path, []).append(Neighbour(name, text))
    return found
