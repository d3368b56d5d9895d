"""Where logs end, as far as a store remembers: what a commit continues without asking first.

A commit is kept only if this is still true, so remembering wrongly costs asking after all, and
nothing else.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from noetl.model.ids import ExecutionId

HEADS_MAX = 20_000

T = TypeVar("T", bound=tuple[Any, ...])


class Heads(Generic[T]):
    """What was written last of each execution; the one that was written longest ago goes first.

    A head is a tuple that begins with the seq: of two, the one with the greater is the later.
    """

    def __init__(self) -> None:
        self._heads: dict[ExecutionId, T] = {}

    def get(self, execution_id: ExecutionId) -> T | None:
        return self._heads.get(execution_id)

    def remember(self, execution_id: ExecutionId, head: T) -> None:
        known = self._heads.pop(execution_id, head)
        self._heads[execution_id] = known if known[0] > head[0] else head
        if len(self._heads) > HEADS_MAX:
            self._heads.pop(next(iter(self._heads)))
