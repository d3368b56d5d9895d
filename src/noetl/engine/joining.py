"""When tokens that wait at a step become a run of it.

`auto`   as soon as no other live token could still arrive
`each`   every token by itself
`all`    one token from every incoming arc; arcs that can bring none any more do not count
`any`    the first; the others of the same activation are absorbed
`{n: k}` k tokens, or all there will ever be
"""

from __future__ import annotations

from collections.abc import Iterator

from noetl.engine.running import start_run
from noetl.engine.turn import Turn
from noetl.model.events import TokenAbsorbed
from noetl.model.state import Token


def fire_ready(turn: Turn) -> bool:
    """Start every run that waiting tokens allow. Says whether there was one."""
    waiting: dict[str, list[Token]] = {}
    for token in turn.state.tokens.values():
        waiting.setdefault(token.step, []).append(token)
    fired = False
    for step, tokens in waiting.items():
        for group in _ready_groups(turn, step, tokens):
            start_run(turn, step, group)
            fired = True
    return fired or _release_oldest(turn, waiting)


def _ready_groups(turn: Turn, step: str, tokens: list[Token]) -> Iterator[list[Token]]:
    """The groups of tokens that make a run now. Earlier groups change what later ones see."""
    ready = [token for token in tokens if token.ready_at is None]
    if not ready:
        return
    program = turn.program
    join = program.steps[step].step.join
    more_may_come = len(ready) < len(tokens) or program.may_reach(live_mask(turn), step)
    match join.kind:
        case "each":
            yield from ([token] for token in ready)
        case "any":
            yield from _first(turn, step, ready)
        case "all":
            yield from _complete_sets(turn, step, ready, more_may_come)
        case "count":
            size = join.count or 1
            while len(ready) >= size:
                yield ready[:size]
                ready = ready[size:]
            if ready and not more_may_come:
                yield ready
        case _:
            if not more_may_come:
                yield ready


def _first(turn: Turn, step: str, ready: list[Token]) -> Iterator[list[Token]]:
    for token in ready:
        seen = turn.state.seen.get(step, [])
        if seen and token.arc not in seen:
            turn.record(
                TokenAbsorbed(at=turn.at, token_id=token.token_id, reason="join: any has run")
            )
        else:
            yield [token]


def _complete_sets(
    turn: Turn, step: str, ready: list[Token], more_may_come: bool
) -> Iterator[list[Token]]:
    arcs = turn.program.incoming[step]
    while ready:
        group: dict[str, Token] = {}
        for token in ready:
            group.setdefault(token.arc, token)
        complete = all(arc in group for arc in arcs)
        if not complete and more_may_come:
            return
        yield list(group.values())
        ready = [token for token in ready if token not in group.values()]


def live_mask(turn: Turn) -> int:
    """The steps at which something is alive: a token, or a run that may yet make one."""
    steps = turn.program.steps
    mask = 0
    for token in turn.state.tokens.values():
        mask |= steps[token.step].bit
    for run in turn.state.runs.values():
        if run.compensates is None:
            mask |= steps[run.step].bit
    return mask


def _release_oldest(turn: Turn, waiting: dict[str, list[Token]]) -> bool:
    """Joins that wait for each other and for nothing else: the oldest goes first."""
    state = turn.state
    if not waiting or state.runs or state.timers:
        return False
    ready = [token for tokens in waiting.values() for token in tokens if token.ready_at is None]
    oldest = min(ready, key=lambda token: token.order, default=None)
    if oldest is None or oldest.token_id not in state.tokens:
        return False
    group = [token for token in waiting[oldest.step] if token.ready_at is None]
    start_run(turn, oldest.step, group, released=True)
    return True
