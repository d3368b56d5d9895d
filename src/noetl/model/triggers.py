"""Compiled documents other than playbooks: the triggers (schedules, hooks, consumers and
notifications) and schemas, and what is stored of triggers.

Each is registered in the catalog like a playbook. The catalog stores its canonical bytes under
their digest, as it does with the net of a playbook.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, Literal

import msgspec

from noetl.model.ids import ExecutionId
from noetl.model.net import Values

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]
CATCHUP_SECONDS = 3600.0
TOLERANCE_SECONDS = 300.0
EVERY_SECONDS = 5.0
WINDOW_SECONDS = 3600.0
RUNNING_MAX = 100
WAIT_SECONDS_MAX = 60.0
"""How long a delivery may wait for the end of its execution."""
STORES = ("file", "s3", "gs", "az")
"""Where files and objects are, by how their addresses begin."""


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


class Verify(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a delivery proves that its sender knows the secret."""

    scheme: Literal["hmac", "stripe", "standard-webhooks", "token", "none"]
    """`github` and `slack` are spellings of `hmac`."""
    header: str = ""
    """Where the signature or the token stands, in lower case."""
    algorithm: Literal["sha256", "sha1", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    """What stands before the signature in its header."""
    signed: str = "{body}"
    """What is signed: text with {body}, {timestamp} and {id} in it."""
    timestamp: str = ""
    """The header that says when it was signed; empty: none does."""
    id: str = ""
    """The header that names the delivery; empty: none does."""
    tolerance: float = TOLERANCE_SECONDS
    secrets: tuple[str, ...] = ()
    """Credentials; any of them will do, so that one can be replaced while it is in use."""


class StartTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """A delivery starts a playbook."""

    playbook: PlaybookRef
    workload: Values = {}


class SignalTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="signal"):
    """A delivery is an event for executions that wait for it."""

    signal: str
    match: str = ""
    """Which of them: a condition on their workload, ctx and labels; empty: all."""
    labels: Values = {}
    """Which of them: labels that they must have."""
    playbook: str = ""
    """Only executions of this one."""
    data: Any = None
    """The data of the event; templates read `hook`."""


class Debounce(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Deliveries of one key that follow each other closely are one start, with the last of them."""

    key: str = ""
    wait: float
    max_wait: float | None = None


class Hook(_Trigger, frozen=True, kw_only=True, omit_defaults=True):
    """Starts a playbook, or wakes executions, for each call of `POST /hooks/{path}`."""

    verify: Verify
    target: StartTarget | SignalTarget
    when: str | bool | None = None
    id: str = ""
    """A template for the id of a delivery, where the sender has a place of its own for it."""
    wait: float = 0.0
    """How long the answer waits for the end of the execution."""
    debounce: Debounce | None = None


class NatsSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="nats"):
    """Messages of a NATS subject, or of a stream that keeps them."""

    auth: str = ""
    """A credential, by its name."""
    url: str = ""
    subject: str = ""
    stream: str = ""
    """Of JetStream; empty: plain subjects, whose messages are not kept."""
    consumer: str = ""
    """A durable consumer that exists; empty: one of our own is made."""


class PostgresSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="postgres"):
    """Rows of a table that are marked once they are taken, or what is sent to a channel."""

    auth: str
    table: str = ""
    key: str = "id"
    """The column that identifies a row."""
    mark: str = ""
    """The column that is NULL in a row that is new, and is set to the time when it is taken."""
    channel: str = ""
    """LISTEN: with a table it only says that there is something; alone it brings the messages."""
    every: float = EVERY_SECONDS


class FilesSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="files"):
    """Files below a directory, or objects of a store, that are new or have changed."""

    url: str
    auth: str = ""
    prefix: str = ""
    pattern: str = "*"
    every: float = EVERY_SECONDS


Source = NatsSource | PostgresSource | FilesSource


class Consumer(_Trigger, frozen=True, kw_only=True, omit_defaults=True):
    """Starts a playbook, or wakes executions, for each message of a source."""

    source: Source
    target: StartTarget | SignalTarget
    format: Literal["json", "text"] = "json"
    when: str | bool | None = None
    max_running: int = RUNNING_MAX
    """How many of its executions may run at the same time."""


NoticeKind = Literal["failed", "recovered", "late", "waiting", "missed"]


class Notification(_Trigger, frozen=True, kw_only=True, omit_defaults=True):
    """Starts a playbook that tells people how other executions ended."""

    on: tuple[NoticeKind, ...]
    paths: tuple[str, ...] = ()
    """Patterns like `shop/*`; none: all."""
    labels: dict[str, str] = {}
    late: float = 0.0
    window: float = WINDOW_SECONDS
    """Seconds in which at most one message is sent per path and error kind."""
    target: StartTarget


class Schema(_Trigger, frozen=True, kw_only=True, omit_defaults=True):
    """What results must look like. It starts nothing: playbooks name it."""

    schema: Any
    compatibility: Literal["readers", "none"] = "readers"
    """Whether a version may break those who read by the version before it."""


Trigger = Schedule | Hook | Consumer | Notification | Schema
TRIGGERS = ("Schedule", "Hook", "Consumer", "Notification")
"""The kinds of documents that start executions."""
KINDS = ("Playbook", *TRIGGERS, "Schema")


@cache
def _decoder() -> msgspec.json.Decoder[Trigger]:
    return msgspec.json.Decoder(Trigger)


def encode(trigger: Trigger) -> bytes:
    """Canonical bytes: the same document in another spelling has the same ones.

    `omit_defaults` compares objects, not values: a default that a document spells out would be
    left out or not, depending on which process has read it. Read back, it is the same for all.
    """
    return _written(decode(_written(trigger)))


def _written(trigger: Trigger) -> bytes:
    return msgspec.json.encode(trigger, order="deterministic")


def decode(data: bytes) -> Trigger:
    return _decoder().decode(data)


def digest(trigger: Trigger) -> str:
    return hashlib.sha256(encode(trigger)).hexdigest()


def started_by(trigger: Trigger) -> PlaybookRef | None:
    """The playbook that a document starts, if it starts one."""
    match trigger:
        case Schedule():
            return trigger.playbook
        case Hook() | Consumer() | Notification():
            return trigger.target.playbook if isinstance(trigger.target, StartTarget) else None
    return None


def kind_of(written: str) -> str:
    """The kind as documents write it: `schedule` is `Schedule`."""
    return next((kind for kind in KINDS if kind.casefold() == written.casefold()), written)


# --- What is stored of them ---------------------------------------------------------------------

TimeOutcome = Literal["started", "skipped", "missed", "buffered"]
Origin = Literal["schedule", "run", "backfill"]
MessageOutcome = Literal["started", "refused", "ignored"]


class TriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a trigger, and when a server has to look at it next."""

    path: str
    key: str = ""
    kind: str
    revision: int = 0
    """0: it is not stored yet."""
    next_at: float | None = None
    """When a server has to look at it next; None: never by itself."""
    state: bytes = b"{}"
    """JSON; the store does not read it."""


class TriggerTime(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a scheduled time."""

    path: str
    time: float
    outcome: TimeOutcome
    origin: Origin = "schedule"
    reason: str = ""
    execution_id: ExecutionId | None = None
    decided_at: float = 0.0


class TriggerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a message of a consumer."""

    path: str
    id: str
    """Its id in the source, unique among the messages of a consumer."""
    at: float
    outcome: MessageOutcome
    reason: str = ""
    execution_id: ExecutionId | None = None


class TriggerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the row of a trigger, and what is stored in the same transaction."""

    row: TriggerRow | None = None
    """The row to write, with the revision that the stored one must still have; None: no row."""
    times: tuple[TriggerTime, ...] = ()
    messages: tuple[TriggerMessage, ...] = ()
    """If one of them is stored already, nothing is written."""
    rows: tuple[TriggerRow, ...] = ()
    """Rows to add; one that exists stays as it is."""
    gone: bool = False
    """The row is removed."""

    @property
    def only_adds(self) -> bool:
        """It adds rows and does nothing else, so nothing can be refused because of it."""
        return self.row is None and not self.times and not self.messages
