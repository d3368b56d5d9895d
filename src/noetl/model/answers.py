"""The answers of the API as types: one struct per document, shared by server, client and command.

Times are RFC 3339 texts in UTC. A field that is `UNSET` is omitted from the document; one that is
None is `null`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from noetl.model.commands import Command
from noetl.model.facts import Source
from noetl.model.ids import CommandId
from noetl.model.problems import Problem
from noetl.model.secrets import without_values


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or a part of one."""


# --- Errors ------------------------------------------------------------------------------------


class Error(Document, frozen=True, kw_only=True):
    """Why a request failed. `code` is stable and safe to match on; `message` is for people."""

    code: str
    message: str
    details: Any = None


class ErrorAnswer(Document, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    error: Error


# --- Executions --------------------------------------------------------------------------------


class ActorDocument(Document, frozen=True, kw_only=True):
    """Who did something."""

    kind: str
    name: str
    text: str
    """Both, as people read it."""


class ActDocument(Document, frozen=True, kw_only=True):
    """Something that a person or a program did to an execution."""

    at: str | None
    action: str
    actor: ActorDocument | None
    reason: str


class FailureDocument(Document, frozen=True, kw_only=True):
    """Why a task, a step or an execution failed."""

    kind: str
    message: str
    code: str | int | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    retry_after: float | UnsetType = UNSET
    status: int | UnsetType = UNSET
    details: Any | UnsetType = UNSET


class WarningDocument(Document, frozen=True, kw_only=True):
    """Something that is probably a mistake although nothing failed."""

    code: str
    step: str
    message: str
    undefined: Any
    """What was undefined, and in which scope."""
    count: int
    execution_id: str | UnsetType = UNSET
    """Of a sub-playbook: its execution, or the first of them. `step` is the step that called it."""


class ProgressDocument(Document, frozen=True, kw_only=True):
    """The progress of an execution, in steps."""

    steps: int
    ended: int
    running: int


class LoopErrorDocument(Document, frozen=True, kw_only=True):
    """An error with which iterations of a loop failed."""

    message: str
    count: int


class LoopDocument(Document, frozen=True, kw_only=True):
    """The progress of a loop, in iterations."""

    total: int
    done: int
    failed: int
    errors: list[LoopErrorDocument] | UnsetType = UNSET


class QuestionDocument(Document, frozen=True, kw_only=True):
    """A field of a form that a person is asked to fill in."""

    name: str
    type: str
    label: str
    required: bool
    help: str | UnsetType = UNSET
    default: Any | UnsetType = UNSET
    options: Any | UnsetType = UNSET


class InputDocument(QuestionDocument, frozen=True, kw_only=True):
    """A typed input of a playbook."""

    min: Any | UnsetType = UNSET
    max: Any | UnsetType = UNSET
    pattern: str | UnsetType = UNSET


class ListeningDocument(Document, frozen=True, kw_only=True):
    """Which external events a step waits for."""

    since: str | None
    until: str | None
    events: list[str]
    form: list[QuestionDocument]
    role: str | UnsetType = UNSET
    """The role that may answer the form; by default everyone who may send events. Admins always
    may.
    """


class StepDocument(Document, frozen=True, kw_only=True):
    """A step of an execution. `runs` counts its runs, `attempts` all attempts of its tasks."""

    step: str
    status: str
    runs: int
    attempts: int
    started_at: str | None
    ended_at: str | None
    result: Any
    """Its value, or a reference to it when it is large."""
    error: FailureDocument | None
    loop: LoopDocument | UnsetType = UNSET
    undone: int | UnsetType = UNSET
    """How many of its runs were compensated."""
    undoes: int | UnsetType = UNSET
    """How many of its runs undid others."""
    unmatched: int | UnsetType = UNSET
    """After how many of its runs none of its arcs held."""
    waiting: ListeningDocument | UnsetType = UNSET


class ExecutionDocument(Document, frozen=True, kw_only=True):
    """The whole execution."""

    execution_id: str
    path: str
    version: int | None
    digest: str
    """The digest of the compiled playbook: `GET /api/playbooks/{digest}/layout` draws it."""
    status: str
    start_time: str | None
    end_time: str | None
    duration_seconds: float | None
    progress: ProgressDocument
    workload: dict[str, Any]
    ctx: dict[str, Any]
    vars: dict[str, Any]
    result: Any
    """Its value, or a reference to it when it is large."""
    error: FailureDocument | None
    failed_step: str | None
    parent_execution_id: str | None
    labels: dict[str, str]
    actor: ActorDocument | None
    source: Source | None
    """The file that it was started from, if it is not in the catalog."""
    acts: list[ActDocument]
    warnings: list[WarningDocument]
    steps: list[StepDocument]


class ExecutionStatus(Document, frozen=True, kw_only=True):
    """The status of an execution in short form. `completed` is true for COMPLETED only."""

    execution_id: str
    status: str
    current_steps: list[str]
    current_step: str | None
    completed_steps: list[str]
    failed: bool
    completed: bool
    error: FailureDocument | None
    start_time: str | None
    end_time: str | None
    duration_seconds: float | None


class ExecutionSummary(Document, frozen=True, kw_only=True):
    """An entry of the list of executions."""

    execution_id: str
    path: str
    version: int | None
    status: str
    start_time: str | None
    end_time: str | None
    duration_seconds: float | None
    parent_execution_id: str | None
    current_steps: list[str]
    error: str | None
    labels: dict[str, str]

    step: str | None
    """The step to look at first: where it failed or waits, or its current one."""
    waits: Literal["form", "event", "timer"] | None
    """What a step waits for: a person who fills in a form, another event from outside, or the time
    of its next try."""
    workload: dict[str, Any] | UnsetType = UNSET
    """The requested fields of the workload, by name."""


class ExecutionCount(Document, frozen=True, kw_only=True):
    """How many executions match a query."""

    count: int


class HistogramBucket(Document, frozen=True, kw_only=True):
    """Executions that were requested within one time interval."""

    start: str | None
    counts: dict[str, int]
    """By status; zero counts are omitted."""


class Histogram(Document, frozen=True, kw_only=True):
    """Executions that match a query, by time and status. Empty buckets are omitted."""

    start: str | None
    end: str | None
    bucket_seconds: float
    total: int
    buckets: list[HistogramBucket]


class LabelCount(Document, frozen=True, kw_only=True):
    """A value of a label."""

    value: str
    executions: int
    """How many executions have it."""


class LabelCounts(Document, frozen=True, kw_only=True):
    """The values of a label, most frequent first."""

    label: str
    values: list[LabelCount]


class ExecutionPage(Document, frozen=True, kw_only=True):
    """Executions, newest first."""

    executions: list[ExecutionSummary]
    next_cursor: str | None
    """The `cursor` of the next page; null on the last."""


class Started(Document, frozen=True, kw_only=True):
    """An execution in short form."""

    execution_id: str
    status: str
    path: str
    version: int | None


class Paused(Started, frozen=True, kw_only=True):
    """An execution that was paused."""

    unconfirmed: list[str]
    """Workers that have not confirmed the pause."""


class Cancelled(Started, frozen=True, kw_only=True):
    """An execution that was cancelled."""

    cancelled: int
    """How many executions were cancelled: this one, and those below it that had not ended."""


class EventDocument(Document, frozen=True, kw_only=True):
    """The envelope of an event."""

    event_id: str
    seq: int
    event_type: str
    name: str
    timestamp: str | None
    """By the clock of the process that reported it."""
    recorded_at: str | None
    """By the clock of the server; null in old events of workers."""
    source: str
    execution_id: str
    step: str | None
    step_run_id: str | None
    entity_type: str
    entity_id: str
    parent_id: str
    trace_id: str = ""
    """The trace id of the execution, as in its spans."""
    attempt: int | None
    iteration: int | None
    action_id: str | None
    status: str
    actor: ActorDocument | None
    payload: dict[str, Any]


class EventPage(Document, frozen=True, kw_only=True):
    """Events in order."""

    events: list[EventDocument]
    next_after: int
    """The `after` of the next page."""
    more: bool


class LogEntry(Document, frozen=True, kw_only=True):
    """Lines that one call of a task printed."""

    seq: int
    """The event that contains them."""
    timestamp: str | None
    step: str
    step_run_id: str
    task: str
    attempt: int
    iteration: int | None
    text: str


class Logs(Document, frozen=True, kw_only=True):
    """A page of the output of tasks, in order."""

    execution_id: str
    status: str
    """The status of the execution before the page was read: once it has ended, no more is
    printed.
    """
    entries: list[LogEntry]
    next_after: int
    """Where the next page begins."""
    more: bool
    """Whether there may be more by now."""


class WaitDocument(Document, frozen=True, kw_only=True):
    """One thing that an execution waits for: who holds it, and until when."""

    waits_for: str
    text: str
    """The same for people."""
    step: str | UnsetType = UNSET
    command_id: str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    task: str | UnsetType = UNSET
    what: str | UnsetType = UNSET
    since: str | UnsetType | None = UNSET
    until: str | UnsetType | None = UNSET
    events: list[str] | UnsetType = UNSET
    form: list[QuestionDocument] | UnsetType = UNSET
    role: str | UnsetType = UNSET
    """The role that may answer the form."""
    holders: list[str] | UnsetType = UNSET
    """Executions that hold the slots of a limit."""


class EventsTaken(Document, frozen=True, kw_only=True):
    """How many events were accepted, and how many of them were already known."""

    status: str
    event_ids: list[str]
    duplicates: int


class SignalMatched(Document, frozen=True, kw_only=True):
    """The executions that received an event."""

    execution_ids: list[str]
    duplicates: int
    """How many of them had received it before."""


class Variables(Document, frozen=True, kw_only=True):
    """The variables of an execution."""

    execution_id: str
    vars: dict[str, Any]


class Variable(Document, frozen=True, kw_only=True):
    """One of them."""

    name: str
    value: Any


class Rendered(Document, frozen=True, kw_only=True):
    """The value of a template."""

    rendered: Any


# --- The catalog -------------------------------------------------------------------------------


class CatalogItem(Document, frozen=True, kw_only=True):
    """A version of a playbook, without its text."""

    path: str
    version: int
    kind: str
    catalog_id: str
    created_at: str | None
    description: str


class CatalogList(Document, frozen=True, kw_only=True):
    """The newest version of every path."""

    entries: list[CatalogItem]


class LayoutNode(Document, frozen=True, kw_only=True):
    """A step, as it is drawn."""

    id: str
    kinds: list[str]
    """The tool kinds of its tasks."""
    loop: bool
    description: str
    x: int
    """Its layer, from left to right; the entry is in the first."""
    y: float
    """Its row within the layer. Two steps of a layer are at least one apart."""
    waits: bool
    """It waits for external events, such as the answer to a form."""
    line: int | None = None
    """The line at which it begins in the text, if that is known."""


class LayoutEdge(Document, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """An arc, as it is drawn."""

    source: str
    target: str
    """A step, or a template that yields its name."""
    kind: Literal["next", "case", "compensate"]
    when: Any
    """Its guard as written."""
    otherwise: bool
    """It has no guard, but earlier arcs are evaluated first."""
    on_failure: bool
    back: bool
    """It leads back to an earlier step."""
    points: list[tuple[int, float]]
    """Its points in the layers between its ends: (x, y)."""


class Layout(Document, frozen=True, kw_only=True):
    """A playbook as a graph: steps and arcs in the order of its text, with coordinates."""

    entry: str
    nodes: list[LayoutNode]
    edges: list[LayoutEdge]
    width: int
    """The number of layers."""
    height: float
    """How many rows."""


class CatalogResource(CatalogItem, frozen=True, kw_only=True):
    """A version of a playbook with its text and its graph."""

    digest: str
    """The digest of the compiled playbook; its executions have the same."""
    content: str
    layout: Layout | None
    workload: dict[str, Any]
    """Its own workload, over which a start merges another."""
    inputs: list[InputDocument]
    inputs_schema: dict[str, Any]
    """The inputs as JSON Schema."""


class Registered(Document, frozen=True, kw_only=True):
    """A registered document, and warnings about it."""

    status: str
    path: str
    version: int
    catalog_id: str
    kind: str
    problems: tuple[Problem, ...]
    lacks: str = ""
    """Why a trigger starts nothing as it is: its playbook is not registered, or it is never due."""


class AllRegistered(Document, frozen=True, kw_only=True):
    """Registered documents, in the order in which they were sent."""

    entries: list[Registered]


class Validated(Document, frozen=True, kw_only=True):
    """Whether a text is a valid playbook, and all its problems."""

    valid: bool
    problems: tuple[Problem, ...]


# --- Credentials, users, sessions --------------------------------------------------------------


class CredentialDocument(Document, frozen=True, kw_only=True):
    """A credential. `data` is present only if the caller requested it and may read it."""

    id: str
    name: str
    type: str
    description: str
    tags: list[str]
    playbooks: list[str]
    created_at: str | None
    updated_at: str | None
    data: dict[str, Any] | UnsetType = UNSET

    __repr__ = without_values


class CredentialList(Document, frozen=True, kw_only=True):
    """Stored credentials, without any secret."""

    credentials: list[CredentialDocument]


class KeysRotated(Document, frozen=True, kw_only=True):
    """How many credentials were encrypted with the new key."""

    rotated: int


class Deleted(Document, frozen=True, kw_only=True):
    """The name of what was deleted."""

    deleted: str


class UserDocument(Document, frozen=True, kw_only=True):
    """A user."""

    name: str
    roles: tuple[str, ...]
    email: str
    created_at: str | None


class UserList(Document, frozen=True, kw_only=True):
    """All users."""

    users: list[UserDocument]


class UserKept(Document, frozen=True, kw_only=True):
    """A user that was created or changed."""

    name: str
    roles: tuple[str, ...]


class TokenDocument(Document, frozen=True, kw_only=True):
    """An API token, without its secret."""

    name: str
    roles: tuple[str, ...]
    pools: tuple[str, ...]
    created_at: str | None
    expires_at: str | None


class TokenList(Document, frozen=True, kw_only=True):
    """Every API token."""

    tokens: list[TokenDocument]


class ApiTokenCreated(Document, frozen=True, kw_only=True):
    """A new API token. This is the only answer that shows its secret."""

    name: str
    roles: tuple[str, ...]
    token: str

    __repr__ = without_values


class AuditDocument(Document, frozen=True, kw_only=True):
    """An entry of the audit log: who read or changed what."""

    at: str | None
    who: str
    action: str
    target: str
    execution_id: str | None
    details: str


class AuditLog(Document, frozen=True, kw_only=True):
    """The audit log, newest first."""

    entries: list[AuditDocument]
    next_cursor: str | None


class Account(Document, frozen=True, kw_only=True):
    """The caller."""

    name: str
    kind: str
    roles: list[str]
    email: str
    display_name: str


class Myself(Account, frozen=True, kw_only=True):
    """The caller, and their rights."""

    rights: list[str]


class SignedIn(Document, frozen=True, kw_only=True):
    """A new session."""

    token: str
    expires_at: str | None
    user: Account

    __repr__ = without_values


class SignedOut(Document, frozen=True, kw_only=True):
    """The session has ended."""

    status: str


class SessionDocument(Document, frozen=True, kw_only=True):
    """A session of the caller."""

    session_id: str
    user: str
    created_at: str | None
    expires_at: str | None
    last_activity_at: str | None
    client_ip: str
    current: bool
    """Whether it is the session of this request."""


class SessionList(Document, frozen=True, kw_only=True):
    """The sessions of the caller, newest first."""

    sessions: list[SessionDocument]


class SessionEnded(Document, frozen=True, kw_only=True):
    """The session that was ended."""

    ended: str


class SessionsEnded(Document, frozen=True, kw_only=True):
    """The sessions that were ended."""

    ended: list[str]


# --- Workers -----------------------------------------------------------------------------------


class LeaseTerms(Document, frozen=True, kw_only=True):
    """The token with which a worker reports on a command, and until when the lease holds."""

    token: str
    expires_at: datetime


class LeasedCommand(Command, frozen=True, kw_only=True):
    """A command with its lease beside its other fields."""

    lease: LeaseTerms


class LeasedCommands(Document, frozen=True, kw_only=True):
    """Commands for a worker."""

    commands: list[LeasedCommand]


class ReportTaken(Document, frozen=True, kw_only=True):
    """The outcome of one report, and the next commands if some were wanted."""

    accepted: bool
    cancelled: bool
    commands: list[LeasedCommand]


class ReportsTaken(Document, frozen=True, kw_only=True):
    """The outcome of each of several reports, in their order."""

    answers: list[Any]
    """For each, the answer it would have got alone: a `ReportTaken` or an `ErrorAnswer`."""


class LeasesRenewed(Document, frozen=True, kw_only=True):
    """Commands whose leases still hold, and those whose leases are lost."""

    held: list[CommandId]
    lost: list[CommandId]


class WorkerOrders(Document, frozen=True, kw_only=True):
    """Commands that a worker should stop, and those under which it should begin nothing new."""

    commands: list[CommandId]
    paused: list[CommandId]


class WorkerKnown(Document, frozen=True, kw_only=True):
    """The worker's name in leases."""

    worker_id: str
    drain: bool = False
    """It was asked to take no new commands, finish those it has, and end."""


class WorkerDrained(Document, frozen=True, kw_only=True):
    """A worker that takes no new commands."""

    worker_id: str


class WorkerGone(Document, frozen=True, kw_only=True):
    """Whether the worker was known, and how many of its commands go to others."""

    was_known: bool
    given_back: int


class WorkerDocument(Document, frozen=True, kw_only=True):
    """A worker or server process that sends heartbeats."""

    name: str
    kind: str
    pool: str
    labels: list[str]
    """Its labels, each as `name=value`."""
    slots: int
    host: str
    version: str
    draining: bool
    sandbox: str
    started_at: str | None
    seen_at: str | None


class Pool(Document, frozen=True, kw_only=True):
    """The workers of a pool, and its queue."""

    pool: str
    workers: list[WorkerDocument]
    slots: int
    waiting: int
    leased: int
    missing: list[str]
    """Labels that waiting commands require and that no single worker has, each as `name=value`."""


class PoolList(Document, frozen=True, kw_only=True):
    """Every pool."""

    pools: list[Pool]


class CachedToken(Document, frozen=True, kw_only=True):
    """An access token that workers share. Its lifetime is in seconds, because clocks differ."""

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=30 * 24 * 3600.0)]

    __repr__ = without_values


class Moment(Document, frozen=True, kw_only=True):
    """A slot of a rate limit, for one call."""

    delay: float
    """Seconds from now."""


class TokenKept(Document, frozen=True, kw_only=True):
    """The access token is stored."""

    status: str


class ResultKept(Document, frozen=True, kw_only=True):
    """The checksum of a stored result."""

    checksum: str


# --- The server --------------------------------------------------------------------------------


class Health(Document, frozen=True, kw_only=True):
    """Whether the server is up, can store its decisions, and accepts work."""

    status: Literal["ok", "draining", "failing"]
    version: str
    reason: str | UnsetType = UNSET
    nats: str | UnsetType = UNSET


# --- Retention ---------------------------------------------------------------------------------


class HoldDocument(Document, frozen=True, kw_only=True):
    """An execution that is kept until the hold is released."""

    execution_id: str
    note: str
    who: str
    at: str | None


class KeepDocument(Document, frozen=True, kw_only=True):
    """How long some executions are kept after their end."""

    executions: str
    """A prefix of paths, `failed`, or both separated by a colon; empty: all others."""
    seconds: float | None
    """None: for ever."""


class ForgottenDocument(Document, frozen=True, kw_only=True):
    """How many executions of a day, path and status were removed."""

    day: str
    path: str
    status: str
    executions: int


class RetentionDocument(Document, frozen=True, kw_only=True):
    """Retention rules, holds, and counts of removed executions."""

    keep: list[KeepDocument]
    archive: bool
    """Whether executions are archived before they are removed."""
    holds: list[HoldDocument]
    forgotten: list[ForgottenDocument]


class PrunedDocument(Document, frozen=True, kw_only=True):
    """What was removed, or with `dry_run` what would be."""

    dry_run: bool
    executions: int
    trees: int
    """An execution that no other called counts once, together with everything it called."""
    events: int
    by_path: dict[str, int]
    kept: dict[str, int]
    """Trees whose time is over but which are kept: `running`, `held`, `reused`."""


class ExecutionDeleted(Document, frozen=True, kw_only=True):
    """How many executions were removed: the named one, and everything it called."""

    execution_id: str
    executions: int


class ExecutionArchived(Document, frozen=True, kw_only=True):
    """Where an execution and everything it called are recorded."""

    execution_id: str
    names: list[str]


class ArchivedDocument(Document, frozen=True, kw_only=True):
    """A recording in the archive."""

    name: str
    size: int
    archived_at: str | None


class ArchivePage(Document, frozen=True, kw_only=True):
    """Recordings by name."""

    recordings: list[ArchivedDocument]
    next_after: str | None
    """The `after` of the next page; null: there is none."""


class Released(Document, frozen=True, kw_only=True):
    """An execution that is no longer held."""

    execution_id: str
