"""What an evaluation may read: named values and the time; and how much it may do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from noetl.templates.taint import Tainted, uncovered
from noetl.templates.views import MISSING, View, lookup

FALLBACKS = ("args", "ctx", "iter", "workload")
"""Where a bare name is looked up, in this order, if it is not a root."""
WRITTEN_TO = frozenset({"ctx", "iter", "parent", "vars"})
"""What tasks write to while it is in a scope. An expression that reads all of it gets a copy.
`parent` is found in `iter`.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one evaluation may do before it is stopped."""

    ticks: int = 2_000_000
    """Steps: loop rounds, items a filter handles, parts of containers compared or written."""
    text: int = 8 * 1024 * 1024
    """Characters of text made on the way, all of them together."""


DEFAULT_LIMITS = Limits()


class Scope:
    """The names that an evaluation can see. One scope serves any number of evaluations.

    `roots` holds reserved names, step and task names; a value is plain data, a view, or either of
    them tainted. `tainted` names the roots under which tainted values may stand: an expression that
    reads none of them pays nothing for taint. A tainted value under any other root is never shown,
    but no expression can use it. Results share parts with these values, so they must
    not be changed, except for the roots in `WRITTEN_TO`.
    """

    __slots__ = ("limits", "now", "roots", "seed", "tainted")

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        now: datetime | None = None,
        seed: str = "",
        tainted: Iterable[str] = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.roots = dict(roots)
        self.now = now
        self.seed = seed
        self.tainted = frozenset(tainted)
        self.limits = limits

    def bare(self, name: str) -> object:
        """The value of a name that is not a root: the first in args, ctx, iter, workload.

        A value from a tainted container is tainted.
        """
        for root in FALLBACKS:
            container = self.roots.get(root)
            if type(container) is dict:
                if name in container:
                    return container[name]
            elif isinstance(container, Tainted):
                found = lookup(uncovered(container), name)
                if found is not MISSING:
                    return Tainted(found)
            elif isinstance(container, View):
                found = container.get(name)
                if found is not MISSING:
                    return found
        return MISSING

    def may_taint(self, names: Iterable[str]) -> bool:
        """Whether one of these names may lead to a tainted value."""
        if not self.tainted:
            return False
        for name in names:
            if name in self.tainted:
                return True
            if name not in self.roots and not self.tainted.isdisjoint(FALLBACKS):
                return True
        return False

    def names(self) -> list[str]:
        """Every name that exists, for the hint in an error."""
        known = list(self.roots)
        for root in FALLBACKS:
            container = self.roots.get(root)
            if isinstance(container, View):
                container = container.plain
            if isinstance(container, dict):
                known.extend(key for key in container if isinstance(key, str))
        return known
