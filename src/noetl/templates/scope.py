"""What an evaluation may read: named values, the time, and the limits it must keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from noetl.templates.taint import Tainted, uncovered
from noetl.templates.views import MISSING, View, lookup

FALLBACKS = ("args", "ctx", "iter", "workload")
"""Where a bare name is looked up, in this order, when nothing in the scope has that name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one evaluation may do before it is stopped."""

    ticks: int = 2_000_000
    """Steps: loop rounds, items a filter handles, parts of containers compared or written."""
    text: int = 8 * 1024 * 1024
    """Characters of text made on the way, all of them together."""


DEFAULT_LIMITS = Limits()


class Scope:
    """The names an evaluation can see. Build one per moment, evaluate as often as you like.

    `roots` holds reserved names, step and task names; a value may be plain data, a view, or either
    one tainted. `tainted` names the roots under which a tainted value may stand: an expression
    that reads none of them pays nothing for taint. A tainted value under an undeclared root never
    shows, but is not understood either. The evaluation hands out parts of these values, not
    copies, so they must not be changed.
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
        """The value of a name that is not a root: the first that args, ctx, iter, workload have.

        With taint about, a tainted container makes the value tainted as well.
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
        """Whether reading these names could meet a tainted value."""
        if not self.tainted:
            return False
        for name in names:
            if name in self.tainted:
                return True
            if name not in self.roots and not self.tainted.isdisjoint(FALLBACKS):
                return True
        return False

    def names(self) -> list[str]:
        """Every name that could have been meant, for the hint in an error."""
        known = list(self.roots)
        for root in FALLBACKS:
            container = self.roots.get(root)
            if isinstance(container, View):
                container = container.plain
            if isinstance(container, dict):
                known.extend(key for key in container if isinstance(key, str))
        return known
