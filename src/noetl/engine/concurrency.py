"""Limits on executions: which of them an execution is held to, and what it does if one is full."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from noetl.engine.program import Program
from noetl.engine.scope import common_roots, moment
from noetl.engine.turn import Turn
from noetl.model.outcome import TaskError
from noetl.model.state import ExecutionState
from noetl.templates import Scope

NAME_MAX = 200
"""Longer names are shortened to their beginning and a checksum: they stand in an index."""


def slots_of(turn: Turn) -> dict[str, int]:
    """The limits of an execution: by name, how many may run. Raises EvaluationFailed.

    Limits that a calling execution holds are left out: the caller would otherwise hold the slot for
    which the called execution waits.
    """
    program, state = turn.program, turn.state
    executor = program.net.executor
    found: dict[str, int] = {}
    if program.concurrency_key is not None and executor.concurrency is not None:
        roots = common_roots(program, turn.execution_id, state, {})
        scope = Scope(roots, now=moment(turn.at), seed=turn.execution_id)
        key = program.concurrency_key.render(scope, "key of `concurrency`")
        if key not in (None, ""):
            text = key if isinstance(key, str) else msgspec.json.encode(key).decode()
            found[_name("key", text)] = executor.concurrency.limit
    if executor.max_running is not None:
        found[_name("playbook", state.path)] = executor.max_running
    above = state.parent.slots if state.parent is not None else ()
    return {name: capacity for name, capacity in found.items() if name not in above}


def _name(kind: str, text: str) -> str:
    name = f"{kind} {text}".replace("\0", "\ufffd")
    if len(name) <= NAME_MAX:
        return name
    return f"{name[:NAME_MAX]} {sha256(text.encode(errors='replace')).hexdigest()}"


def held_below(state: ExecutionState) -> tuple[str, ...]:
    """What an execution that this one calls need not ask for: it is held already."""
    above = state.parent.slots if state.parent is not None else ()
    return (*above, *(name for name in state.slots if name not in above))


def on_limit(program: Program, full: tuple[str, ...]) -> str:
    """What an execution does if these limits have no room."""
    concurrency = program.net.executor.concurrency
    if concurrency is None or not any(name.startswith("key ") for name in full):
        return "queue"
    return concurrency.on_limit


def described(name: str) -> str:
    """A limit, in words."""
    kind, _, text = name.partition(" ")
    if kind == "key":
        return f'the concurrency key "{text}"'
    return f"`max_running` of {text}"


def no_room(full: tuple[str, ...]) -> TaskError:
    names = " and ".join(described(name) for name in full)
    return TaskError(
        kind="rate_limit",
        code="concurrency_limit",
        message=f"as many executions as are allowed run with {names}.",
        retryable=True,
    )
