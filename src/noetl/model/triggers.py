"""What starts executions beside people: schedules and their kin, checked and built.

Each is registered in the catalog like a playbook. Its canonical bytes stand there under their
digest, as the net of a playbook does.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from noetl.model.ids import ExecutionId
from noetl.model.net import Values

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]
CATCHUP_SECONDS = 3600.0


class PlaybookRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A playbook in the catalog; without a version the newest at the moment of the start."""

    path: str
    version: int | None = None


class _Trigger(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True
):
    name: str
    path: str
    description: str = ""

    @property
    def kind(self) -> str:
        return type(self).__name__


class Schedule(_Trigger, frozen=True, kw_only=True, omit_defaults=True):
    """Starts a playbook at times."""

    playbook: PlaybookRef
    workload: Values = {}
    cron: tuple[str, ...] = ()
    every: float | None = None
    """Seconds from one time to the next, counted from 1970 on; instead of `cron`."""
    offset: float = 0.0
    timezone: str = "UTC"
    start: float | None = None
    """The first moment at which it may be due."""
    end: float | None = None
    """The last one."""
    jitter: float = 0.0
    overlap: Overlap = "skip"
    catchup_window: float = CATCHUP_SECONDS
    """A time that is decided later than this is not started any more."""
    pause_on_failure: bool = False


Trigger = Schedule
KINDS = ("Playbook", "Schedule")

_decoder = msgspec.json.Decoder(Trigger)


def encode(trigger: Trigger) -> bytes:
    """Canonical bytes: the same document in another spelling has the same ones."""
    return msgspec.json.encode(trigger, order="deterministic")


def decode(data: bytes) -> Trigger:
    return _decoder.decode(data)


def digest(trigger: Trigger) -> str:
    return hashlib.sha256(encode(trigger)).hexdigest()


def kind_of(written: str) -> str:
    """The kind as documents write it: `schedule` is `Schedule`."""
    return next((kind for kind in KINDS if kind.casefold() == written.casefold()), written)


# --- What is stored of them ---------------------------------------------------------------------

TimeOutcome = Literal["started", "skipped", "missed", "buffered"]
Origin = Literal["schedule", "run", "backfill"]


class TriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for a document, and when."""

    path: str
    key: str = ""
    kind: str
    revision: int = 0
    """0: it is not stored yet."""
    next_at: float | None = None
    """When somebody has to look at it next; None: never by itself."""
    state: bytes = b"{}"
    """JSON; the store does not read it."""


class TriggerTime(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a time."""

    path: str
    time: float
    outcome: TimeOutcome
    origin: Origin = "schedule"
    reason: str = ""
    execution_id: ExecutionId | None = None
    decided_at: float = 0.0


class TriggerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a row."""

    row: TriggerRow
    """As it shall be; its revision is the one it must still have."""
    times: tuple[TriggerTime, ...] = ()
    gone: bool = False
    """The row is removed."""
