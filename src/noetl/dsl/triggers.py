"""Documents other than playbooks: schedules, hooks, consumers, notifications and schemas.

A kind has a shape for its `spec`, the names that its templates may read, and the rules that concern
more than one key. As everywhere, the shape serves the check, the JSON Schema and the reading alike;
it yields typed values under the names of the fields of the document's struct. `compile_document`
compiles any kind, and passes playbooks to `compile_text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, tzinfo
from typing import Any

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Known
from noetl.dsl.compile import Compiled, compile_text
from noetl.dsl.expressions import Expressions, guarded
from noetl.dsl.grammar import (
    COUNT,
    DEFINITIONS,
    SPAN,
    Anything,
    Duration,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    Made,
    OneOf,
    Record,
    Schema,
    Shape,
    Text,
    When,
    has_key,
    is_list,
    is_mapping,
    is_text,
    templates_in,
)
from noetl.dsl.layers import VALUES
from noetl.dsl.nodes import Node, entries, field, items, text_of
from noetl.dsl.playbook import API_VERSION, WrittenMetadata, names_of
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.schema import DIALECT
from noetl.dsl.schemas import InlineSchema
from noetl.model import calendar, triggers
from noetl.model.calendar import OnlyUtc, Zones
from noetl.model.duration import timestamp
from noetl.model.net import Limits
from noetl.model.spelling import did_you_mean
from noetl.model.toolshape import ToolShape
from noetl.model.triggers import (
    STORES,
    WAIT_SECONDS_MAX,
    Consumer,
    Debounce,
    FilesSource,
    Hook,
    NatsSource,
    NoticeKind,
    Notification,
    PlaybookRef,
    PostgresSource,
    Schedule,
    SignalTarget,
    Source,
    StartTarget,
    Trigger,
    Verify,
)

OVERLAPS = ("skip", "buffer_one", "buffer_all", "cancel_other", "allow_all")


def _wrong_cron(text: str) -> str:
    wrong = calendar.cron_problem(text)
    if wrong is None:
        return ""
    return (
        f'is "{text[:60]}", which is not a cron expression: {wrong}. The fields'
        " are minute, hour, day of month, month, day of week."
    )


_CRON = Made(
    Text(
        'a cron expression such as "30 2 * * *"',
        wrong=_wrong_cron,
        code="bad-cron",
        schema={"pattern": r"^\s*(@[a-z]+|(\S+\s+){4,5}\S+)\s*$"},
    ),
    lambda text: " ".join(text.split()),
)
"""A cron expression: five fields, six with seconds, or a name such as @daily."""


def _wrong_moment(text: str) -> str:
    if timestamp(text) is not None:
        return ""
    return (
        f'is "{text[:40]}"; write a day or a moment, such as 2026-01-31,'
        " 2026-01-31T12:00 or 2026-01-31T12:00:00+01:00."
    )


_MOMENT = Text("a moment such as 2026-01-31T12:00:00", wrong=_wrong_moment)
"""A moment in RFC 3339, a local time in the schedule's zone, or a day."""


def one_or_several(expected: str, one: Shape, several: str) -> Shape:
    """One value or a list of values, read as a tuple."""
    return Either(
        expected,
        (is_list, ListOf(one, several, filled=True)),
        (lambda _: True, Made(one, lambda value: (value,))),
    )


PLAYBOOK_REF = Either(
    "the path of a playbook, or a mapping with `path` and `version`",
    (is_text, Made(Text(), lambda path: PlaybookRef(path=path))),
    (
        is_mapping,
        Record(
            "a playbook to start",
            {
                "path": Field(Text(), "Its path in the catalog.", required=True),
                "version": Field(COUNT, "By default the newest."),
            },
            makes=PlaybookRef,
        ),
    ),
)
_VALUES = Made(
    VALUES, lambda mapping: {key: nodes.plain(value) for key, value in mapping.entries.items()}
)
"""Values by name, in the order written."""
SCHEDULE_SPEC = Record(
    "a schedule's `spec`",
    {
        "playbook": Field(PLAYBOOK_REF, "The playbook to start.", required=True),
        "workload": Field(_VALUES, "The workload of each start; templates read `schedule`."),
        "cron": Field(
            one_or_several("a cron expression, or a list of them", _CRON, "cron expressions"),
            "The times: minute, hour, day of month, month, day of week.",
        ),
        "every": Field(
            Duration(templates=False, least=calendar.EVERY_MIN),
            "Instead of `cron`: the time between starts.",
        ),
        "offset": Field(SPAN, "With `every`: how much later each start is."),
        "timezone": Field(Text(), "The time zone of the times. Default UTC."),
        "start": Field(_MOMENT, "No start before this moment."),
        "end": Field(_MOMENT, "No start after this moment."),
        "jitter": Field(SPAN, "A start is later by up to this long, to spread the load."),
        "overlap": Field(OneOf(*OVERLAPS), "What if the last execution still runs. Default skip."),
        "catchup_window": Field(SPAN, "A time missed by more than this is skipped. Default 1h."),
        "pause_on_failure": Field(Flag(), "Pause the schedule when one of its executions fails."),
    },
    removed={
        "schedule": "write `cron` or `every`.",
        "interval": "write `every`.",
        "path": "the playbook stands under `playbook`, the path of the schedule in `metadata`.",
        "tz": "write `timezone`.",
    },
    makes=dict,
)
_SCHEDULE_NAMES = {"schedule": ("path", "version", "time", "utc", "timezone", "previous", "origin")}


_TEXTS = one_or_several("a text, or a list of texts", Text(), "texts")
_NONEMPTY = Made(Text(), lambda written: written or None)
"""A text; if it is empty, the default applies."""
_HEADER = Made(_NONEMPTY, str.lower)
_SECRET = Field(
    _TEXTS,
    "The credential that holds the secret; with several, any of them may match.",
    required=True,
)


class _Options(Record):
    """What stands under the key that says which way it is; one that is empty says nothing."""

    reads_null = True


class _OneKey(Record):
    """A mapping with exactly one of its keys."""

    def check_keys(self, node: nodes.Mapping, look: Inspection) -> None:
        if len(node.entries) != 1:
            known = ", ".join(self.fields)
            look.report.add("bad-value", f"{self.title} needs exactly one of {known}.", node.place)

    def schema(self) -> Schema:
        return super().schema() | {"minProperties": 1, "maxProperties": 1}


_PRESET_OPTIONS = _Options(
    "a way to verify",
    {"secret": _SECRET, "tolerance": Field(SPAN, "How old a signature may be. Default 5m.")},
    makes=dict,
)
PRESETS: dict[str, Verify] = {
    "github": Verify(
        scheme="hmac", header="x-hub-signature-256", prefix="sha256=", id="x-github-delivery"
    ),
    "slack": Verify(
        scheme="hmac",
        header="x-slack-signature",
        prefix="v0=",
        signed="v0:{timestamp}:{body}",
        timestamp="x-slack-request-timestamp",
    ),
    "stripe": Verify(scheme="stripe", header="stripe-signature"),
    "standard-webhooks": Verify(
        scheme="standard-webhooks",
        header="webhook-signature",
        timestamp="webhook-timestamp",
        id="webhook-id",
        encoding="base64",
        signed="{id}.{timestamp}.{body}",
    ),
}
_HMAC = _Options(
    "`hmac`",
    {
        "secret": _SECRET,
        "header": Field(_HEADER, "The header with the signature.", required=True),
        "algorithm": Field(OneOf("sha256", "sha1", "sha512"), "Default sha256."),
        "encoding": Field(OneOf("hex", "base64"), "Default hex."),
        "prefix": Field(Text(), "The text before the signature in the header, such as `sha256=`."),
        "signed": Field(_NONEMPTY, "What is signed: {body}, {timestamp}, {id}. Default {body}."),
        "timestamp": Field(_HEADER, "The header with the time of signing."),
        "id": Field(_HEADER, "The header with the id of the delivery."),
        "tolerance": Field(SPAN, "How old a signature may be. Default 5m."),
    },
    makes=dict,
)
_TOKEN = _Options(
    "`token`",
    {
        "secret": _SECRET,
        "header": Field(_HEADER, "The header with the token. Default Authorization: Bearer."),
    },
    makes=dict,
)
_WAYS = {
    **{name: Field(_PRESET_OPTIONS, f"Signatures of {name}.") for name in PRESETS},
    "hmac": Field(_HMAC, "HMAC signatures of any other sender."),
    "token": Field(_TOKEN, "A secret that the sender sends with each delivery."),
}


def _wrong_way(text: str) -> str:
    if text == "none":
        return ""
    if text in _WAYS:
        return f"needs a secret. Write `verify: {{{text}: {{secret: NAME_OF_A_CREDENTIAL}}}}`."
    return (
        f'is "{text[:60]}"; write one of {", ".join(_WAYS)} with its secret, or `none` if anybody'
        f" may call the hook.{did_you_mean(text, _WAYS)}"
    )


def _verify(given: dict[str, Any]) -> Verify:
    scheme: Any = next(iter(given), "none")
    options = given.get(scheme, {})
    options["secrets"] = tuple(filter(None, options.pop("secret", ())))
    header = "authorization" if scheme == "token" else ""
    preset = PRESETS.get(scheme) or Verify(scheme=scheme, header=header)
    return msgspec.structs.replace(preset, **options)


_VERIFY = Either(
    "`none`, or a mapping with one way to verify",
    (is_text, Made(Text(wrong=_wrong_way, schema={"const": "none"}), lambda _: _verify({}))),
    (lambda _: True, Made(_OneKey("`verify`", _WAYS, makes=dict), _verify)),
)
_START_TARGET = Record(
    "a target that is started",
    {
        "playbook": Field(PLAYBOOK_REF, "The playbook to start.", required=True),
        "workload": Field(
            _VALUES, "The workload of the start; templates read the delivery or message."
        ),
    },
    makes=StartTarget,
)


def _condition(written: Any) -> str | bool:
    """The text of a template, or the truth of a plain value."""
    return written.value if isinstance(written.value, str) else bool(written.value)


def _match(written: Any) -> str:
    """A condition as text; the empty text always holds."""
    condition = _condition(written)
    return condition if isinstance(condition, str) else "" if condition else "{{ false }}"


_SIGNAL_TARGET = Record(
    "a target that is signalled",
    {
        "signal": Field(Text(), "The name of the event to send.", required=True),
        "match": Field(
            Made(When(), _match),
            "Which waiting executions get it: reads their workload, ctx, labels.",
        ),
        "labels": Field(_VALUES, "Which waiting executions get it: those with these labels."),
        "playbook": Field(Text(), "Only executions of this playbook."),
        "data": Field(Anything(), "The data of the event. Default: the body."),
    },
    makes=SignalTarget,
)
_TARGET = Either(
    "a mapping with `playbook` or `signal`",
    (has_key("signal"), _SIGNAL_TARGET),
    (is_mapping, _START_TARGET),
)
_BELONGS_TO_TARGET = {
    key: ("unknown-key", f"write `target: {{{key}: …}}`.")
    for key in ("playbook", "workload", "signal", "match", "data")
}
HOOK_SPEC = Record(
    "a hook's `spec`",
    {
        "verify": Field(
            _VERIFY, "How the hook verifies that a delivery is genuine.", required=True
        ),
        "target": Field(_TARGET, "What a delivery starts or signals.", required=True),
        "when": Field(
            Made(When(), _condition),
            "Which deliveries to accept; the others are answered and dropped.",
        ),
        "id": Field(Text(), "A template for the id of a delivery. A known id is a repeat."),
        "wait": Field(SPAN, "How long the answer waits for the result. Default 0."),
        "debounce": Field(
            Record(
                "`debounce`",
                {
                    "key": Field(Text(), "A template: deliveries of one key become one start."),
                    "wait": Field(
                        SPAN, "Start when none has arrived for this long.", required=True
                    ),
                    "max_wait": Field(SPAN, "Start at the latest this long after the first."),
                },
                makes=Debounce,
            ),
            "Deliveries that follow each other closely become one start.",
        ),
    },
    astray=_BELONGS_TO_TARGET,
    makes=dict,
)
_HOOK_NAMES: dict[str, tuple[str, ...]] = {
    "hook": ("path", "id", "time", "body", "text", "form", "headers", "query")
}
_EXECUTION_NAMES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("workload", "ctx", "labels", "execution_id", "path"), ()
)


_AUTH = Field(Text(), "The name of the credential.")
_EVERY = Field(
    Duration(templates=False, least=0.1), "The time between two looks at the source. Default 5s."
)
_SOURCES = {
    "nats": _Options(
        "a `nats` source",
        {
            "auth": _AUTH,
            "url": Field(Text(), "The server, if the credential does not name it."),
            "subject": Field(Text(), "Which messages, such as `orders.>`."),
            "stream": Field(Text(), "The JetStream stream that stores them."),
            "consumer": Field(Text(), "A durable consumer of the stream. Default: one of its own."),
        },
        makes=NatsSource,
    ),
    "postgres": _Options(
        "a `postgres` source",
        {
            "auth": Field(Text(), "The name of the database credential.", required=True),
            "table": Field(Text(), "The table, optionally with its schema."),
            "key": Field(_NONEMPTY, "The column that identifies a row. Default id."),
            "mark": Field(Text(), "A column: NULL in a new row, then the time when it was taken."),
            "channel": Field(Text(), "A channel to LISTEN to."),
            "every": _EVERY,
        },
        makes=PostgresSource,
    ),
    "files": _Options(
        "a `files` source",
        {
            "url": Field(Text(), "file:///…, s3://…, gs://… or az://….", required=True),
            "auth": _AUTH,
            "prefix": Field(Text(), "Only keys with this prefix, such as `in/`."),
            "pattern": Field(_NONEMPTY, "Only names that match, such as `*.csv`. Default: all."),
            "every": _EVERY,
        },
        makes=FilesSource,
    ),
}


_SOURCE = Made(
    _OneKey(
        "`source`", {name: Field(one, f"{name}.") for name, one in _SOURCES.items()}, makes=dict
    ),
    lambda given: next(iter(given.values()), None),
)
CONSUMER_SPEC = Record(
    "a consumer's `spec`",
    {
        "source": Field(_SOURCE, "Where messages come from.", required=True),
        "target": Field(_TARGET, "What a message starts or signals.", required=True),
        "format": Field(OneOf("json", "text"), "The format of messages. Default json."),
        "when": Field(
            Made(When(), _condition),
            "Which messages to accept; the others are recorded and dropped.",
        ),
        "max_running": Field(COUNT, "How many of its executions may run at once. Default 100."),
    },
    astray=_BELONGS_TO_TARGET,
    makes=dict,
)
_CONSUMER_NAMES: dict[str, tuple[str, ...]] = {
    "message": ("path", "id", "time", "body", "text", "headers", "subject")
}
_EVENTS: tuple[NoticeKind, ...] = ("failed", "recovered", "late", "waiting", "missed")
NOTIFICATION_SPEC = Record(
    "a notification's `spec`",
    {
        "on": Field(
            one_or_several(
                f"one of {', '.join(_EVENTS)}, or a list of them", OneOf(*_EVENTS), "events"
            ),
            "The events to notify of.",
            required=True,
        ),
        "path": Field(_TEXTS, "Only these playbooks: patterns such as `shop/*`. Default: all."),
        "labels": Field(_VALUES, "Only executions with these labels."),
        "late": Field(
            Duration(templates=False, least=1.0), "With `on: late`: how long an execution may take."
        ),
        "window": Field(SPAN, "One message per path and kind of error in this time. Default 1h."),
        "target": Field(_START_TARGET, "The playbook that sends the message.", required=True),
    },
    astray={key: _BELONGS_TO_TARGET[key] for key in ("playbook", "workload")},
    makes=dict,
)
_NOTIFICATION_NAMES: dict[str, tuple[str, ...]] = {
    "notification": (
        *("on", "title", "text", "path", "version", "execution_id", "status", "step", "error"),
        *("labels", "started_at", "time", "schedule", "rule"),
    )
}


class Look(msgspec.Struct, frozen=True):
    """What the rules of a document may use."""

    report: Report
    zones: Zones


class Kind(msgspec.Struct, frozen=True):
    """One kind of document."""

    title: str
    spec: Record
    names: Mapping[str, tuple[str, ...]]
    """The names that its templates may read, each with its keys if all are known; none if it has
    no templates."""
    makes: type[Trigger]
    rules: Callable[[Look, nodes.Mapping, dict[str, Any]], None] = lambda look, spec, given: None
    """Checks what concerns several keys, and completes the values of the `spec`."""

    @property
    def shape(self) -> Record:
        return Record(
            self.title,
            {
                "apiVersion": Field(Text(), f"Always {API_VERSION}.", required=True),
                "kind": Field(Text(), "The kind of document.", required=True),
                "metadata": Field(WrittenMetadata.shape, "Its name and path.", required=True),
                "spec": Field(self.spec, "What the document says.", required=True),
            },
            makes=dict,
        )


def compile_document(
    written: str,
    *,
    tools: Mapping[str, ToolShape],
    limits: Limits | None = None,
    strict: bool = False,
    zones: Zones | None = None,
    known: Known | None = None,
) -> Compiled:
    """Compile a document of any kind. Never raises for bad input: problems say what is wrong."""
    report = Report()
    root = read(written, report)
    kind = KINDS.get(text_of(field(root, "kind")) or "")
    if root is None or kind is None:
        return compile_text(written, tools=tools, limits=limits, strict=strict, known=known)
    document = kind.shape.read(root, kind.title, Inspection(report, tools))
    metadata = document.get("metadata") or WrittenMetadata()
    name, path = _check_head(report, root, metadata, kind.title)
    spec, trigger = field(root, "spec"), None
    if isinstance(spec, nodes.Mapping):
        given = document["spec"]
        if kind.names:
            _check_all_templates(report, spec, kind.names)
        kind.rules(Look(report, zones or OnlyUtc()), spec, given)
        _check_started(report, spec, given, path)
        if not report.has_errors:
            about = metadata.description or ""
            trigger = kind.makes(name=name, path=path, description=about, **given)
    problems = report.problems(root)
    if trigger is None:
        return Compiled(net=None, problems=problems)
    return Compiled(net=None, trigger=trigger, digest=triggers.digest(trigger), problems=problems)


def trigger_schema(kind: str) -> Schema:
    """The JSON Schema of one kind of document."""
    root = KINDS[kind].shape.schema()
    root["properties"]["apiVersion"] = {"const": API_VERSION}
    root["properties"]["kind"] = {"const": kind}
    shared = {"values": DEFINITIONS["values"].schema()}
    return {"$schema": DIALECT, "title": f"NoETL {kind.lower()}", **root, "$defs": shared}


def _check_head(
    report: Report, root: nodes.Mapping, metadata: WrittenMetadata, title: str
) -> tuple[str, str]:
    """Check `apiVersion` and `metadata`. Returns the name and the path."""
    version = field(root, "apiVersion")
    if version is not None and text_of(version) not in (API_VERSION, None):
        report.add(
            "unsupported-version",
            f'apiVersion is "{text_of(version)}"; write {API_VERSION}.',
            version.place,
        )
    if metadata and not metadata.name and not metadata.path:
        report.add(
            "missing-key", f"{title} needs `metadata.name` or `metadata.path`.", metadata.place
        )
    return names_of(metadata.name, metadata.path)


def _check_started(
    report: Report, spec: nodes.Mapping, given: dict[str, Any], own_path: str
) -> None:
    """A document starts another one, which it names by its path in the catalog."""
    target = given.get("target")
    started = target.playbook if isinstance(target, StartTarget) else given.get("playbook")
    if not isinstance(started, PlaybookRef):
        return
    written = field(spec, "playbook") or field(field(spec, "target"), "playbook")
    place = (field(written, "path") or written or spec).place
    if started.path == own_path:
        report.add(
            "bad-value",
            f'"{own_path[:60]}" is the path of this document itself, so no playbook can have it:'
            " the catalog keeps one document under a path. Name the playbook to start.",
            place,
        )
    elif started.path.endswith((".yaml", ".yml")):
        report.add(
            "playbook-is-a-file",
            f'"{started.path[:60]}" is the name of a file; playbooks are started by their path in'
            " the catalog. Write what the file has under `metadata.path`.",
            place,
        )


def _check_all_templates(
    report: Report, spec: nodes.Mapping, names: Mapping[str, tuple[str, ...]]
) -> None:
    """The templates of a `spec`; `match` of a target reads each waiting execution, too."""
    target = field(spec, "target")
    _check_templates(report, field(target, "match"), {**names, **_EXECUTION_NAMES})
    for part in (spec, target):
        for key in entries(part):
            if key not in ("match", "target"):
                _check_templates(report, field(part, key), names)


def _check_templates(
    report: Report, node: Node | None, names: Mapping[str, tuple[str, ...]]
) -> None:
    """Report templates that cannot be compiled, and names and keys that do not exist."""
    expressions = Expressions()
    readable = f" Templates of this document read {', '.join(f'`{name}`' for name in names)}."
    for source, place in templates_in(node):
        for code, message in expressions.refusal(source):
            report.add(code, message, place)
        template = expressions.compiled(source)
        if template is None:
            continue
        may_miss = guarded(template)
        for path in sorted(template.reads):
            if path[0] not in names:
                if path[0] not in may_miss:
                    report.add(
                        "not-in-scope",
                        f"`{path[0]}` does not exist here."
                        + (report.suggest(path[0], names) or readable),
                        place,
                    )
            elif names[path[0]] and len(path) > 1 and path[1] not in names[path[0]]:
                known = names[path[0]]
                report.add(
                    "undefined-key",
                    f'`{path[0]}` has no "{path[1]}".'
                    + (report.suggest(path[1], known) or f" It has {', '.join(known)}."),
                    place,
                )


def _schedule(look: Look, spec: nodes.Mapping, given: dict[str, Any]) -> None:
    report = look.report
    zone_name = given["timezone"] = given.get("timezone") or "UTC"
    zone = look.zones.find(zone_name)
    if zone is None:
        hint = report.suggest(zone_name, look.zones.names())
        report.add(
            "unknown-timezone",
            f'there is no time zone "{zone_name[:60]}".'
            + (hint or " Write a name of the IANA database, such as Europe/Berlin or UTC."),
            (field(spec, "timezone") or spec).place,
        )
    _check_cron_or_every(report, spec)
    cron = field(spec, "cron")
    for node in items(cron) or ([cron] if cron is not None else []):
        _check_gap(look, node, zone, zone_name)
    for key in given.keys() & {"start", "end"}:
        given[key] = timestamp(given[key], zone or UTC)
    start, end = given.get("start"), given.get("end")
    if start is not None and end is not None and end <= start:
        report.add("bad-value", "`end` is not after `start`.", spec.keys["end"])
    every = given.get("every")
    if every:
        _check_within(report, spec, given, every)
    given["offset"] = given.get("offset", 0.0) % every if every else 0.0
    # Zeros are written out: the digests of registered documents contain them.
    given.setdefault("jitter", 0.0)


def _check_within(report: Report, spec: nodes.Mapping, given: dict[str, Any], every: float) -> None:
    """`offset` and `jitter` move a start by less than the time between two starts."""
    if given.get("offset", 0.0) >= every:
        report.add(
            "limit-applied",
            "`offset` is less than `every`; of a longer one only what exceeds whole intervals"
            f" counts, here {given['offset'] % every:g}s.",
            spec.keys["offset"],
        )
    if given.get("jitter", 0.0) > every:
        report.add(
            "limit-applied",
            "`jitter` is at most `every`: no start is as late as the next one.",
            spec.keys["jitter"],
        )


def _report_idle(report: Report, spec: nodes.Mapping, key: str, when: str) -> None:
    message = f"`{key}` has an effect only {when}. Delete it."
    report.add("hint-ignored", message, spec.keys[key])


def _check_cron_or_every(report: Report, spec: nodes.Mapping) -> None:
    """A schedule has either `cron` or `every`."""
    if "cron" in spec.entries and "every" in spec.entries:
        report.add(
            "conflicting-keys",
            "`cron` and `every` exclude each other. Keep one of them.",
            spec.keys["every"],
        )
    elif "cron" not in spec.entries and "every" not in spec.entries:
        report.add("missing-key", "a schedule needs `cron` or `every`.", spec.place)
    if "offset" in spec.entries and "every" not in spec.entries:
        _report_idle(report, spec, "offset", "with `every`")


def _check_gap(look: Look, node: Node, zone: tzinfo | None, zone_name: str) -> None:
    written = text_of(node)
    if written is None or zone is None or calendar.cron_problem(written):
        return
    gap = calendar.first_in_gap(" ".join(written.split()), zone, look.zones.now)
    if gap is not None:
        look.report.add(
            "time-in-gap",
            f"{gap.skipped:%H:%M} on {gap.skipped:%Y-%m-%d} does not exist in {zone_name}, because"
            f" clocks are set forward. On that day it runs once, at {gap.instead:%H:%M}. Choose"
            " another time if that matters.",
            node.place,
        )


def _hook(look: Look, spec: nodes.Mapping, given: dict[str, Any]) -> None:
    report = look.report
    if isinstance(given.get("target"), SignalTarget):
        for key in spec.entries.keys() & {"debounce", "wait"}:
            _report_idle(report, spec, key, "if the target is a playbook")
        given.pop("debounce", None)
    given.setdefault("wait", 0.0)
    if given["wait"] > WAIT_SECONDS_MAX:
        message = f"`wait` is at most {WAIT_SECONDS_MAX:g}s; after that the answer is 202."
        report.add("limit-applied", message, spec.keys["wait"])
    signed = field(field(spec, "verify"), "hmac")
    if signed is not None:
        _check_signed(report, signed, given["verify"])


def _check_signed(report: Report, options: Node, verify: Verify) -> None:
    place = (field(options, "signed") or options).place
    if "{body}" not in verify.signed:
        report.add(
            "bad-value",
            "`signed` must contain {body}; otherwise anybody could change the body.",
            place,
        )
    for name in re.findall(r"\{(\w+)\}", verify.signed):
        if name not in ("body", "timestamp", "id"):
            known = "{body}, {timestamp}, {id}"
            report.add("bad-value", f"`signed` may contain {known}, not {{{name}}}.", place)
        elif name != "body" and not getattr(verify, name):
            report.add(
                "missing-key",
                f"`signed` contains {{{name}}}: name its header under `{name}`.",
                place,
            )
    if verify.timestamp and "{timestamp}" not in verify.signed:
        report.add(
            "bad-value",
            "`timestamp` names a header that is not signed, so anybody could change it. Add"
            " {timestamp} to `signed`, or delete `timestamp`.",
            place,
        )


def _consumer(look: Look, spec: nodes.Mapping, given: dict[str, Any]) -> None:
    source = field(spec, "source")
    if len(entries(source)) == 1:
        [(kind, node)] = entries(source).items()
        for code, message in _source_problems(given.get("source")):
            look.report.add(code, message, (field(source, kind) or node).place)


def _source_problems(source: Source | None) -> Iterator[tuple[str, str]]:
    """The code and message of what is wrong with a source."""
    match source:
        case FilesSource(url=url):
            if url.partition("://")[0] not in STORES or "://" not in url:
                yield (
                    "bad-value",
                    f'`url` is "{url[:60]}"; write file:///…, s3://…, gs://… or az://….',
                )
        case PostgresSource(table=table, mark=mark, channel=channel):
            if not table and not channel:
                yield "missing-key", "a `postgres` source needs `table` or `channel`."
            if table and not mark:
                yield (
                    "missing-key",
                    "a table needs `mark`: a column that is NULL in a new row and that the consumer"
                    " sets to the time when it takes the row. Without it, rows that commit out of"
                    " order could be lost.",
                )
        case NatsSource(subject=subject, stream=stream, consumer=consumer, url=url, auth=auth):
            if not subject and not stream:
                yield "missing-key", "a `nats` source needs `subject` or `stream`."
            if consumer and not stream:
                yield "missing-key", "`consumer` is a consumer of a stream: write `stream`, too."
            if not url and not auth:
                yield (
                    "missing-key",
                    "a `nats` source needs `url`, or `auth` that names the server.",
                )


def _notification(look: Look, spec: nodes.Mapping, given: dict[str, Any]) -> None:
    report = look.report
    events = given.get("on", ())
    if "late" in events and "late" not in given:
        report.add("missing-key", "`on: late` needs `late`, such as 30m.", spec.keys["on"])
    if "late" in given and "late" not in events:
        _report_idle(report, spec, "late", "with `on: late`")
    given["on"] = tuple(one for one in _EVENTS if one in events)
    given.setdefault("late", 0.0)
    given["paths"] = given.pop("path", ())
    given["labels"] = {name: str(value) for name, value in given.get("labels", {}).items()}


SCHEMA_SPEC = Record(
    "a schema's `spec`",
    {
        "schema": Field(InlineSchema(), "JSON Schema, draft 2020-12.", required=True),
        "compatibility": Field(
            OneOf("readers", "none"),
            "readers (default): refuse a version that would break readers of the last one.",
        ),
    },
    makes=dict,
)


KINDS: dict[str, Kind] = {
    "Schema": Kind("a schema", SCHEMA_SPEC, {}, triggers.Schema),
    "Consumer": Kind("a consumer", CONSUMER_SPEC, _CONSUMER_NAMES, Consumer, _consumer),
    "Hook": Kind("a hook", HOOK_SPEC, _HOOK_NAMES, Hook, _hook),
    "Notification": Kind(
        "a notification", NOTIFICATION_SPEC, _NOTIFICATION_NAMES, Notification, _notification
    ),
    "Schedule": Kind("a schedule", SCHEDULE_SPEC, _SCHEDULE_NAMES, Schedule, _schedule),
}
