"""The registry of tool kinds: built-in ones, and those of installed plug-ins."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from noetl.errors import PluginRejected
from noetl.model.toolshape import ToolShape
from noetl.tools import (
    artifact,
    container,
    duckdb,
    http,
    llm,
    mcp,
    nats,
    noop,
    playbook,
    postgres,
    python,
    quantum,
    secrets,
    shell,
    sqlalchemy,
    sqlite,
    store,
    transfer,
    workbook,
)
from noetl.tools.base import Tool

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PLUGIN_GROUP = "noetl.tools"
OURS = "NoETL itself"

BUILT_IN: tuple[Tool, ...] = (
    noop.TOOL,
    python.TOOL,
    http.TOOL,
    postgres.TOOL,
    duckdb.TOOL,
    sqlite.TOOL,
    *sqlalchemy.TOOLS,
    shell.TOOL,
    playbook.TOOL,
    workbook.TOOL,
    secrets.TOOL,
    nats.TOOL,
    transfer.TOOL,
    store.TOOL,
    artifact.TOOL,
    container.TOOL,
    mcp.TOOL,
    llm.TOOL,
    quantum.TOOL,
)


def shapes(added: Iterable[Tool] = ()) -> dict[str, ToolShape]:
    """Every tool kind by name. A kind may be provided only once, so plug-ins cannot replace
    ours.
    """
    return dict(tools(added))


def tools(added: Iterable[Tool] = ()) -> dict[str, Tool]:
    """Every tool kind by name, runnable if this version can run it; with those `added` by the
    embedding program.
    """
    found = {kind: known.tool for kind, known in kinds().items()}
    for tool in added:
        if tool.kind in found:
            raise PluginRejected(
                f'this program adds the tool kind "{tool.kind}", which exists already.'
                " Give it another name."
            )
        found[tool.kind] = tool
    return found


class Known(NamedTuple):
    """A tool kind and its provider."""

    tool: Tool
    origin: str


def kinds() -> dict[str, Known]:
    """Every tool kind by name, with its provider."""
    return dict(_kinds(tuple((place, _changed(place)) for place in sys.path)))


def _changed(place: str) -> int:
    """When a package was last installed or removed there; 0 if the place does not exist."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _kinds(places: tuple[tuple[str, int], ...]) -> dict[str, Known]:
    """Finding plug-ins reads a file of every installed package. A system asks for its kinds several
    times, so the search is repeated only if one of the `places` has changed.
    """
    # Imported here because it costs more than all the tools together.
    from importlib.metadata import entry_points

    found = {tool.kind: Known(tool, OURS) for tool in BUILT_IN}
    for entry_point in entry_points(group=PLUGIN_GROUP):
        tool = _loaded(entry_point)
        if tool.kind in found:
            raise PluginRejected(
                f'{_origin(entry_point)} provides the tool kind "{tool.kind}", which '
                f"{found[tool.kind].origin} provides already. Uninstall one of the two, or rename "
                "the kind."
            )
        found[tool.kind] = Known(tool, _origin(entry_point))
    return found


def _loaded(entry_point: EntryPoint) -> Tool:
    """Load the entry point. That runs the plug-in's code, so anything may go wrong."""
    try:
        shape = entry_point.load()
    except Exception as error:
        raise PluginRejected(
            f"{_origin(entry_point)} could not be loaded: {type(error).__name__}: {error}. "
            "Repair or uninstall that package."
        ) from error
    if not isinstance(shape, ToolShape):
        raise PluginRejected(
            f"{_origin(entry_point)} is a {type(shape).__name__}, not a ToolShape. Point the "
            "entry point at the tool's shape."
        )
    return shape if isinstance(shape, Tool) else Tool(**msgspec.structs.asdict(shape))


def _origin(entry_point: EntryPoint) -> str:
    package = entry_point.dist.name if entry_point.dist else "an unknown package"
    return f'plug-in "{entry_point.name}" of {package} ({entry_point.value})'
