"""The registry of tool kinds: built-in ones, and those of installed plug-ins.

A playbook uses few kinds, so the module of a built-in one is imported when somebody first asks for
that kind.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, NamedTuple, get_args

from noetl.errors import PluginRejected
from noetl.model.toolshape import ViewName
from noetl.tools.base import Tool

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PLUGIN_GROUP = "noetl.tools"
OURS = "NoETL itself"
PLACES_REMEMBERED = 100
"""Of `sys.path`, in which packages with plug-ins were looked for."""

BUILT_IN: Mapping[str, str] = {
    "noop": "noop",
    "python": "python",
    "http": "http",
    "postgres": "postgres",
    "duckdb": "duckdb",
    "sqlite": "sqlite",
    "sql": "sqlalchemy",
    "mysql": "sqlalchemy",
    "snowflake": "sqlalchemy",
    "clickhouse": "sqlalchemy",
    "bigquery": "sqlalchemy",
    "mssql": "sqlalchemy",
    "oracle": "sqlalchemy",
    "shell": "shell",
    "playbook": "playbook",
    "workbook": "workbook",
    "secrets": "secrets",
    "nats": "nats",
    "transfer": "transfer",
    "store": "store",
    "artifact": "artifact",
    "container": "container",
    "mcp": "mcp",
    "llm": "llm",
    "quantum": "quantum",
}
"""Kind → the module of this package that declares it as `TOOL`, or among its `TOOLS`."""


class Tools(Mapping[str, Tool]):
    """Every tool kind by name; a built-in one is imported when it is asked for."""

    def __init__(self, others: Mapping[str, Tool]) -> None:
        self._tools: dict[str, Tool | None] = {**dict.fromkeys(BUILT_IN), **others}

    def __getitem__(self, kind: str) -> Tool:
        tool = self._tools[kind]
        if tool is None:
            module = import_module(f"noetl.tools.{BUILT_IN[kind]}")
            declared: tuple[Tool, ...] = getattr(module, "TOOLS", ()) or (module.TOOL,)
            tool = self._tools[kind] = next(tool for tool in declared if tool.kind == kind)
        return tool

    def __contains__(self, kind: object) -> bool:
        return kind in self._tools  # Mapping's own would import the kind.

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


_OURS = Tools({})


def tools(added: Iterable[Tool] = ()) -> Mapping[str, Tool]:
    """Every tool kind by name, runnable if this version can run it; with those `added` by the
    embedding program. A kind may be provided only once, so nobody can replace ours.
    """
    others = {kind: known.tool for kind, known in _plug_ins().items()}
    for tool in added:
        if tool.kind in BUILT_IN or tool.kind in others:
            raise PluginRejected(
                f'this program adds the tool kind "{tool.kind}", which exists already.'
                " Give it another name."
            )
        _check(tool, f'the tool kind "{tool.kind}" of this program')
        others[tool.kind] = tool
    return Tools(others)


def tool_of(kind: str, added: Iterable[Tool] = ()) -> Tool | None:
    """One kind, if there is such a one. For a built-in kind no plug-in is looked for: one that is
    being installed just now cannot stand in its way.
    """
    return (_OURS if kind in BUILT_IN else tools(added)).get(kind)


class Known(NamedTuple):
    """A tool kind and its provider."""

    tool: Tool
    origin: str


def kinds() -> dict[str, Known]:
    """Every tool kind by name, with its provider."""
    return {kind: Known(tool, OURS) for kind, tool in _OURS.items()} | _plug_ins()


# --- Plug-ins ----------------------------------------------------------------------------------


def _plug_ins() -> dict[str, Known]:
    """The kinds of plug-ins. A system asks for them several times, and finding them reads a file of
    every installed package; so the search is repeated only if a package was installed or removed.
    """
    return _plug_ins_in(tuple((place, _changed(place)) for place in sys.path))


def _changed(place: str) -> int:
    """When a package was last installed or removed there; 0 if the place does not exist."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _plug_ins_in(places: tuple[tuple[str, int], ...]) -> dict[str, Known]:
    found: dict[str, Known] = {}
    if not (_other_finders() or any(itertools.starmap(_may_declare, places))):
        return found
    # Imported only if there may be a plug-in: it costs more than all the tools together.
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=PLUGIN_GROUP):
        tool = _loaded(entry_point)
        if tool.kind in BUILT_IN or tool.kind in found:
            provider = OURS if tool.kind in BUILT_IN else found[tool.kind].origin
            raise PluginRejected(
                f'{_origin(entry_point)} provides the tool kind "{tool.kind}", which '
                f"{provider} provides already. Uninstall one of the two, or rename "
                "the kind."
            )
        found[tool.kind] = Known(tool, _origin(entry_point))
    return found


def _other_finders() -> bool:
    """Whether packages may be found elsewhere than along `sys.path`."""
    return any(
        hasattr(finder, "find_distributions")
        for finder in sys.meta_path
        if finder is not PathFinder
    )


@lru_cache(maxsize=PLACES_REMEMBERED)
def _may_declare(place: str, changed: int) -> bool:
    """Whether the entry points of a package in this place of `sys.path` mention our group; asked
    again for a place that has `changed`.
    """
    try:
        names = os.listdir(place or ".")
    except NotADirectoryError:
        return True  # An archive.
    except OSError:
        return False
    for name in names:
        if name.lower().endswith(("dist-info", "egg-info")):
            try:
                with open(os.path.join(place, name, "entry_points.txt"), "rb") as file:
                    if PLUGIN_GROUP.encode() in file.read():
                        return True
            except OSError:
                continue  # It has no entry points.
    return False


def _loaded(entry_point: EntryPoint) -> Tool:
    """Load the entry point. That runs the plug-in's code, so anything may go wrong."""
    try:
        tool = entry_point.load()
    except Exception as error:
        raise PluginRejected(
            f"{_origin(entry_point)} could not be loaded: {type(error).__name__}: {error}. "
            "Repair or uninstall that package."
        ) from error
    if not isinstance(tool, Tool):
        raise PluginRejected(
            f"{_origin(entry_point)} is a {type(tool).__name__}, not a Tool. Point the entry point"
            " at the Tool of the kind."
        )
    _check(tool, _origin(entry_point))
    return tool


def _check(tool: Tool, origin: str) -> None:
    views = get_args(ViewName)
    if tool.view not in views:
        raise PluginRejected(
            f'{origin} declares the view "{tool.view}". Its results can be read as one of these:'
            f" {', '.join(views)}."
        )


def _origin(entry_point: EntryPoint) -> str:
    package = entry_point.dist.name if entry_point.dist else "an unknown package"
    return f'plug-in "{entry_point.name}" of {package} ({entry_point.value})'
