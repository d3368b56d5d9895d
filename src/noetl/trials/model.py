"""What a test file says, typed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from noetl.model.outcome import ErrorKind
from noetl.model.state import Status

Seconds = float | str


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in a test file."""


class StandInError(Part, frozen=True, kw_only=True):
    """A failure as a tool would report it."""

    kind: ErrorKind = "unknown"
    message: str = "the stand-in fails"
    code: str | int | None = None
    retryable: bool = False
    retry_after: float | None = None
    status: int | None = None
    details: Any = None


class Answer(Part, frozen=True, kw_only=True):
    """What a stand-in says to a call; texts may be templates over the call."""

    when: str | bool | float | None = None
    times: int | Literal["always"] | None = None
    """How often it can be given. None: once in a list, always by itself."""
    takes: Seconds = 0.0
    result: Any = None
    error: StandInError | None = None
    http: dict[str, Any] | None = None
    pg: dict[str, Any] | None = None
    py: dict[str, Any] | None = None
    sh: dict[str, Any] | None = None


StandIn = Answer | tuple[Answer, ...]


class Signal(Part, frozen=True, kw_only=True):
    """Something the world says to the execution."""

    name: str
    data: Any = None
    step: str | None = None
    after: Seconds = 0.0
    """Since the execution was started."""


class Expect(Part, frozen=True, kw_only=True):
    """What must hold in the end. What is left out may be anything, but for the status."""

    status: Status | None = None
    """None: FAILED where an error is expected, else COMPLETED."""
    steps: list[str | list[str]] | None = None
    """Every run of a step, in order; a list within stands for steps in any order."""
    arcs: list[str] | None = None
    never: list[str] | None = None
    ctx: dict[str, Any] | None = None
    result: Any = msgspec.UNSET
    results: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    calls: dict[str, int] | None = None
    elapsed: Seconds | None = None


class Trial(Part, frozen=True, kw_only=True):
    """One test."""

    name: str
    workload: dict[str, Any] | None = None
    stand_ins: dict[str, StandIn] | None = None
    keychain: dict[str, Any] | None = None
    signals: list[Signal] | None = None
    expect: Expect | None = None


class TrialFile(Part, frozen=True, kw_only=True):
    """A file of tests of one playbook. What stands beside `tests` holds for all of them."""

    playbook: str
    workload: dict[str, Any] | None = None
    stand_ins: dict[str, StandIn] | None = None
    keychain: dict[str, Any] | None = None
    tests: list[Trial]

    def whole(self, trial: Trial) -> Trial:
        """The test with what all tests share; its own word wins, key by key."""
        return msgspec.structs.replace(
            trial,
            workload={**(self.workload or {}), **(trial.workload or {})},
            stand_ins={**(self.stand_ins or {}), **(trial.stand_ins or {})},
            keychain={**(self.keychain or {}), **(trial.keychain or {})},
        )
