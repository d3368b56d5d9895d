"""When tokens that wait at a step become a run of it.

`auto`   as soon as no other live token could still arrive
`each`   every token by itself
`all`    one token from every incoming arc; arcs that can bring none any more do not count
`any`    the first; the others of the same activation are absorbed
`{n: k}` k tokens, or all there will ever be; the others of the same activation are absorbed

A token belongs to an earlier activation of an absorbing join if it does not descend from the
join's last run: then it, or what it comes from, was under way when that run began.
"""

from __future__ import annotations

from collections.abc import Iterator

from noetl.engine.entry import start_run
from noetl.engine.turn import Turn
from noetl.model.events import TokenAbsorbed
from noetl.model.state import StepSummary, Token


def fire_ready(turn: Turn) -> bool:
    """Start the runs that waiting tokens allow. Says whether anything happened.

    Stops as soon as something alive may have moved without having been routed yet: what it left
    must be placed before anybody can say that no token will come.
    """
    state = turn.state
    if len(state.tokens) == 1 and not state.runs:
        [token] = state.tokens.values()
        if token.ready_at is None and token.step not in turn.program.absorbing:
            # Nothing else is alive that could send another token: no join waits for one.
            start_run(turn, token.step, [token])
            return True
    waiting: dict[str, list[Token]] = {}
    for token in _in_turn(turn) if turn.program.has_partitions else state.tokens.values():
        waiting.setdefault(token.step, []).append(token)
    live = live_mask(turn)
    before, ended = len(turn.events), len(turn.ended)
    for step, tokens in waiting.items():
        ready = _on_time(turn, step, [token for token in tokens if token.ready_at is None])
        more = len(ready) < len(tokens) or bool(turn.program.reaching(live, step))
        for group in _groups(turn, step, ready, more_may_come=more):
            start_run(turn, step, group)
            if len(turn.ended) > ended:
                return True
    return len(turn.events) > before or _release_oldest(turn, waiting, live)


def _in_turn(turn: Turn) -> Iterator[Token]:
    """The tokens but for those that wait for another of their partition, run or token."""
    busy = {(run.step, run.partition) for run in turn.state.runs.values() if run.partition}
    for token in turn.state.tokens.values():
        place = (token.step, token.partition)
        if token.partition and token.ready_at is None:
            if place in busy:
                continue
            busy.add(place)
        yield token


def _on_time(turn: Turn, step: str, ready: list[Token]) -> list[Token]:
    """The tokens that count; those that came too late for an absorbing join are absorbed."""
    if step not in turn.program.absorbing:
        return ready
    last = turn.state.steps.get(step, StepSummary()).runs
    kept = []
    for token in ready:
        if token.past.get(step, 0) < last:
            turn.record(
                TokenAbsorbed(at=turn.at, token_id=token.token_id, reason="the join has run")
            )
        else:
            kept.append(token)
    return kept


def _groups(turn: Turn, step: str, ready: list[Token], *, more_may_come: bool) -> list[list[Token]]:
    """The groups of tokens that make a run now."""
    if not ready:
        return []
    join = turn.program.steps[step].step.join
    match join.kind:
        case "each":
            return [[token] for token in ready]
        case "any":
            return [ready[:1]]
        case "count":
            size = join.count or 1
            return [ready[:size]] if len(ready) >= size or not more_may_come else []
        case "all":
            return _sets(turn.program.incoming[step], ready, more_may_come=more_may_come)
        case _:
            return [] if more_may_come else [ready]


def _sets(arcs: tuple[str, ...], ready: list[Token], *, more_may_come: bool) -> list[list[Token]]:
    """One token per arc in each; an incomplete set only when nothing more may come."""
    sets: list[list[Token]] = []
    while ready:
        chosen: dict[str, Token] = {}
        for token in ready:
            chosen.setdefault(token.arc, token)
        if more_may_come and not all(arc in chosen for arc in arcs):
            break
        sets.append(list(chosen.values()))
        taken = {token.token_id for token in chosen.values()}
        ready = [token for token in ready if token.token_id not in taken]
    return sets


def live_mask(turn: Turn) -> int:
    """The steps at which something is alive: a token, or a run that may yet make one."""
    steps = turn.program.steps
    mask = moving_mask(turn)
    for token in turn.state.tokens.values():
        mask |= steps[token.step].bit
    return mask


def moving_mask(turn: Turn) -> int:
    """The steps at which something goes on by itself: a run, or a token whose time will come."""
    steps = turn.program.steps
    mask = 0
    for run in turn.state.runs.values():
        mask |= steps[run.step].bit
    for token in turn.state.tokens.values():
        if token.ready_at is not None:
            mask |= steps[token.step].bit
    return mask


def _release_oldest(turn: Turn, waiting: dict[str, list[Token]], live: int) -> bool:
    """Joins that wait for each other and for nothing else: the oldest goes first.

    A join behind such a group is not released: it waits for the group, and that will move.
    """
    if not waiting:
        return False
    moving = moving_mask(turn)
    stuck: list[Token] = []
    for step, tokens in waiting.items():
        awaited = turn.program.reaching(live, step)
        ready = all(token.ready_at is None for token in tokens)
        if ready and not awaited & (moving | ~turn.program.mutual[step]):
            stuck += tokens
    oldest = min(stuck, key=lambda token: token.order, default=None)
    if oldest is None:
        return False
    [group, *_] = _groups(turn, oldest.step, waiting[oldest.step], more_may_come=False)
    start_run(turn, oldest.step, group, released=True)
    return True
