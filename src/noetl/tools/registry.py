"""Which tool kinds there are: ours, and those of installed plug-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    sql,
    sqlite,
    store,
    transfer,
    workbook,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PLUGIN_GROUP = "noetl.tools"

BUILT_IN: tuple[ToolShape, ...] = (
    noop.TOOL,
    python.TOOL,
    http.TOOL,
    postgres.TOOL,
    duckdb.TOOL,
    sqlite.TOOL,
    *sql.TOOLS,
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


def shapes() -> dict[str, ToolShape]:
    """Every tool kind by its name. No kind may be provided twice, not even to improve on ours."""
    # Imported here because it costs more than all the tools together.
    from importlib.metadata import entry_points

    found = {shape.kind: shape for shape in BUILT_IN}
    origins = dict.fromkeys(found, "NoETL itself")
    for entry_point in entry_points(group=PLUGIN_GROUP):
        shape = _loaded(entry_point)
        if shape.kind in found:
            raise PluginRejected(
                f'{_origin(entry_point)} provides the tool kind "{shape.kind}", which '
                f"{origins[shape.kind]} provides already. Uninstall one of the two, or rename "
                "the kind."
            )
        found[shape.kind] = shape
        origins[shape.kind] = _origin(entry_point)
    return found


def _loaded(entry_point: EntryPoint) -> ToolShape:
    """What the entry point names. Loading it runs the plug-in's code, so anything may go wrong."""
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
    return shape


def _origin(entry_point: EntryPoint) -> str:
    package = entry_point.dist.name if entry_point.dist else "an unknown package"
    return f'plug-in "{entry_point.name}" of {package} ({entry_point.value})'
