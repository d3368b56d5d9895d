"""The composition root: the one place that knows which parts make up the system.

Each function imports what it joins when it is called, so that a command pays only for the parts
it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetl.dsl import Compiled
    from noetl.dsl.migrate import Migration as Migration
    from noetl.settings import Settings


def compiler(settings: Settings) -> Callable[[str], Compiled]:
    """Text → compiled playbook, with the installed tool kinds and the operator's limits."""
    from noetl.dsl import compile_text
    from noetl.tools.registry import shapes

    tools = shapes()
    limits = settings.limits
    return lambda text: compile_text(text, tools=tools, limits=limits)


def schema() -> dict[str, Any]:
    """The JSON Schema of the playbook language, with the installed tool kinds."""
    from noetl.dsl.schema import playbook_schema
    from noetl.tools.registry import shapes

    return playbook_schema(shapes())


def formatter() -> Callable[[str], str]:
    """Text → the same playbook in canonical formatting."""
    from noetl.dsl.fmt import format_text

    return format_text


def migrator() -> Callable[[str], Migration]:
    """Text → the same playbook in the canonical dialect, with a report."""
    from noetl.dsl.migrate import migrate_text
    from noetl.tools.registry import shapes

    tools = shapes()
    return lambda text: migrate_text(text, tools)
