"""Large results that the server's own templates read: fetched before anything is decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from noetl.control.live import Live
from noetl.engine.scope import local_names
from noetl.errors import Corrupted, NotFound
from noetl.model import refs
from noetl.model.commands import Report
from noetl.model.events import Event
from noetl.model.ids import ExecutionId
from noetl.model.inputs import ChildEnded, Input, LoopEnded, Reported, Start
from noetl.model.net import Values
from noetl.model.rule_events import StepPatched
from noetl.model.state import ExecutionState
from noetl.store.bodies import Bodies
from noetl.store.log import Write
from noetl.templates import LostView

NO_STEPS: tuple[str, ...] = ()
OWN_RESULT = frozenset({"result", "response", "event", "this", "output", "outcome"})
"""Names under which a step's templates read the result that it ended with."""
WITH_PROGRESS = frozenset(kind for kind in get_args(Event) if "progress" in kind.__struct_fields__)
"""Facts that say where a pipeline stands."""


def may_bring_references(given: Input) -> bool:
    """Whether it is worth a look. Most reports bring nothing that could be a reference."""
    if type(given) is Reported:
        ending = given.report.ending
        if ending is None:
            return False
        result = ending.result
        if ending.tasks or (type(result) is dict and ("_ref" in result or "results" in result)):
            return True
        for event in given.report.events:
            if type(event) is StepPatched:
                return True
            if type(event) in WITH_PROGRESS:
                progress = event.progress  # type: ignore[union-attr]
                if progress is not None and progress.local:
                    return True
        return False
    return type(given) in (ChildEnded, LoopEnded, Start)


async def bring(bodies: Bodies, live: Live, given: Input, write: Write) -> None:
    """Have at hand what deciding about this may read.

    What the same `write` is about to keep is not in the store yet.
    """
    coming, names = _brought_by(given)
    state, ended = live.state, NO_STEPS
    if type(given) is Start and given.seed is not None:
        # What a fork begins with is not in its state yet.
        state, ended = given.seed.state, tuple(fact.step for fact, _ in given.seed.ended)
        live.has_references = any(
            refs.holds_reference(value, state.seal)
            for result in state.results.values()
            for value in (result.value, *result.tasks.values())
        )
    if not live.has_references:
        for value in (*coming, *names.values()):
            if refs.holds_reference(value, state.seal):
                live.has_references = True
    if live.has_references:
        await _fetch(bodies, live, state, ended, coming, names, write)


def _brought_by(given: Input) -> tuple[tuple[Any, ...], Values]:
    """Results that come with it, and names of the step run as it leaves them."""
    if type(given) is Reported:
        ending = given.report.ending
        if ending is None:
            return (), {}
        return (ending.result, *ending.tasks.values()), _names_left(given.report)
    if type(given) is ChildEnded:
        return (given.fact.result,), {}
    return ((given.result,), {}) if type(given) is LoopEnded else ((), {})


def _names_left(report: Report) -> Values:
    names: Values = {}
    for event in report.events:
        if type(event) is StepPatched:
            names |= event.local
        elif (progress := getattr(event, "progress", None)) is not None:
            names |= progress.local
    return names


async def _fetch(
    bodies: Bodies,
    live: Live,
    state: ExecutionState,
    ended: tuple[str, ...],
    coming: Iterable[Any],
    names: Values,
    write: Write,
) -> None:
    program = live.program
    arriving = [value for value in coming if refs.holds_reference(value, state.seal)]
    busy = {run.step for run in state.runs.values()} | {t.step for t in state.tokens.values()}
    busy.update(ended)
    reads = frozenset().union(*(program.reads_ahead[step] for step in busy), frozenset())
    is_read = reads & (OWN_RESULT | busy) or "steps" in reads or program.result is not None
    wanted = list(arriving) if is_read else []
    named = reads | {"end"} if program.result is not None else reads
    for name in state.results if "steps" in reads else named & state.results.keys():
        result = state.results[name]
        wanted += [result.value, *result.tasks.values()]
    for own in (names, *map(local_names, state.runs.values())):
        wanted += [own[name] for name in reads & own.keys()]
    missing = {
        refs.key_of(one, state.seal): one
        for value in wanted
        for one in refs.held_by(value, state.seal)
    }
    missing = {key: one for key, one in missing.items() if key not in program.bodies}
    if missing:
        await _fetch_all(bodies, live, state.seal, missing, dict(write.results))


async def _fetch_all(
    bodies: Bodies, live: Live, seal: str, missing: dict[str | None, Any], fresh: dict[str, bytes]
) -> None:
    async def get(owner: ExecutionId, key: str) -> bytes:
        body = fresh.get(key) or await bodies.get(owner, key)
        if body is None:
            raise NotFound(f"execution {owner} has no result {key}.")
        return body

    for key, reference in missing.items():
        assert key is not None
        asking = refs.real(reference, live.execution_id, seal)
        try:
            body = await refs.fetched(asking, get)
        except (NotFound, Corrupted) as error:
            # The template that reads it fails, and its step; the execution does not stand still.
            body = LostView(str(error))
        live.program.bodies[key] = body
        live.bodies.add(key)
