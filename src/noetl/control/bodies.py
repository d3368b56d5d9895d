"""Large results that the server's own templates read: fetched before anything is decided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from noetl.control.live import Live
from noetl.model import refs
from noetl.model.ids import ExecutionId
from noetl.store.base import Store

OWN_RESULT = frozenset({"result", "response", "event", "this", "output", "outcome"})
"""Names under which a step's templates read the result that it ended with."""


async def fetch(store: Store, live: Live, coming: Iterable[Any]) -> None:
    """Have at hand what deciding next may read; `coming` are results that are being reported."""
    arriving = [value for value in coming if refs.holds_reference(value)]
    live.has_references = live.has_references or bool(arriving)
    if not live.has_references:
        return
    state, program = live.state, live.program
    busy = {run.step for run in state.runs.values()} | {t.step for t in state.tokens.values()}
    reads = frozenset().union(*(program.reads_ahead[step] for step in busy), frozenset())
    wanted = list(arriving) if reads & (OWN_RESULT | busy) or "steps" in reads else []
    for name in state.results if "steps" in reads else reads & state.results.keys():
        result = state.results[name]
        wanted += [result.value, *result.tasks.values()]
    for owner, key in _references(wanted, live.execution_id):
        if key not in program.bodies:
            body = await store.get_result(owner, key)
            if body is not None:
                program.bodies[key] = refs.decode(body)
                live.bodies.add(key)


def _references(values: list[Any], owner: ExecutionId) -> Iterator[tuple[ExecutionId, str]]:
    for value in values:
        each = value.get("results") if isinstance(value, dict) else None
        for one in (value, *(each if isinstance(each, list) else ())):
            key = refs.key_of(one)
            if key is not None:
                yield refs.owner_of(one, owner), key


def let_go(live: Live) -> None:
    """The execution has ended, and nobody decides about it any more."""
    for key in live.bodies:
        live.program.bodies.pop(key, None)
    live.bodies.clear()
