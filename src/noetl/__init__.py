"""NoETL: durable workflows from YAML playbooks.

These names are the public promise; everything else may change from one version to the next. They
are imported when they are first used, because `noetl --help` needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.api.client import Client
    from noetl.embedding import embedded
    from noetl.errors import NoetlError, NotFound, PlaybookRejected, StoreBusy
    from noetl.model.outcome import Outcome, failed, ok
    from noetl.tools.base import Tool, ToolContext

__all__ = [
    "Client",
    "NoetlError",
    "NotFound",
    "Outcome",
    "PlaybookRejected",
    "StoreBusy",
    "Tool",
    "ToolContext",
    "__version__",
    "embedded",
    "failed",
    "ok",
]

_HOMES = {
    "noetl.api.client": ("Client",),
    "noetl.embedding": ("embedded",),
    "noetl.errors": ("NoetlError", "NotFound", "PlaybookRejected", "StoreBusy"),
    "noetl.model.outcome": ("Outcome", "failed", "ok"),
    "noetl.tools.base": ("Tool", "ToolContext"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'noetl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
