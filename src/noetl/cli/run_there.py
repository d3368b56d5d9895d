"""`noetl run --server` and `noetl execute`: a playbook that a server runs, followed from here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.cli.exits import OK, WRONG
from noetl.cli.payload import asked_for, say_all, typed
from noetl.cli.printing import print_json, print_line, say
from noetl.cli.remote import connected
from noetl.cli.remote_running import to_end
from noetl.cli.run import CompiledFile, beside, called, compiled_file, is_file, point_out_misspelt
from noetl.cli.source_lines import SourceLines
from noetl.errors import BadInputs
from noetl.model.net import FormField

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.dsl import Compiled
    from noetl.settings import Settings


async def run_there(
    settings: Settings,
    target: str,
    given: dict[str, Any],
    labels: dict[str, str],
    sets: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Register the file with what it calls, or take the path, and run that to its end."""
    from noetl import wiring
    from noetl.errors import BadInputs, NotFound

    found = None
    if is_file(target):
        found = compiled_file(settings, target)
        if found is None:
            return WRONG
        point_out_misspelt(given, found.compiled.unwrap())
    async with connected(settings) as client:
        request: dict[str, Any] = {"path": target}
        file = None
        if found is not None:
            folder = Path(target).parent
            request = await _registered(client, found, folder, wiring.compiler(settings))
            file = SourceLines(target, found.compiled.code_lines)
        try:
            given = await _typed(client, request, given, sets)
            started = await client.post(
                "/api/execute", {**request, "workload": given, "labels": labels}
            )
        except BadInputs as error:
            say_all(error)
            return WRONG
        except NotFound as error:
            say(str(error))
            return WRONG
        return await to_end(settings, client, started["execution_id"], as_json=as_json, file=file)


async def _typed(
    client: Client, request: dict[str, Any], given: dict[str, Any], sets: tuple[str, ...]
) -> dict[str, Any]:
    """The workload with each value as its input wants it; what is missing is asked for."""
    if not sets and not sys.stdin.isatty():
        return given
    wanted = {"path": request["path"], "version": request.get("version")}
    resource = await client.post("/api/catalog/resource", wanted)
    inputs = msgspec.convert(resource["inputs"], tuple[FormField, ...])
    return asked_for(typed(given, sets, inputs), inputs, resource["workload"])


async def _registered(
    client: Client, found: CompiledFile, folder: Path, compile_text: Callable[[str], Compiled]
) -> dict[str, Any]:
    """Keep the playbook and those it calls that lie beside it; which version to run."""
    neighbours = beside(folder)
    wanted, done = called(found.compiled.unwrap()), set[str]()
    while wanted := wanted - done:
        path = wanted.pop()
        done.add(path)
        if path in neighbours:
            await client.post("/api/catalog/register", {"content": neighbours[path]})
            wanted |= called(compile_text(neighbours[path]).unwrap())
    entry = await client.post("/api/catalog/register", {"content": found.text})
    return {"path": entry["path"], "version": entry["version"]}


async def execute_there(
    settings: Settings,
    request: dict[str, Any],
    sets: tuple[str, ...],
    *,
    wait: bool,
    as_json: bool,
    key: str | None,
) -> int:
    """Start a registered playbook; follow it if that is wanted."""
    async with connected(settings) as client:
        given = await _typed(client, request, request["workload"], sets)
        try:
            started = await client.post("/api/execute", {**request, "workload": given}, key=key)
        except BadInputs as error:
            say_all(error)
            return WRONG
        if wait:
            return await to_end(settings, client, started["execution_id"], as_json=as_json)
        if as_json:
            print_json(started)
        else:
            print_line(started["execution_id"])
            follow = f"noetl executions follow {started['execution_id']}"
            say(f"{started['path']} runs on {client.url}; `{follow}` shows it")
        return OK
