"""Documents that start executions: how they are written, in one frame for all kinds.

A kind is a shape for its `spec` (check and JSON Schema are one description, as for playbooks), the
names that its templates may read, and a function that builds it. `compile_document` takes any kind;
a playbook goes to `compile_text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import deep, entries, field, flag, items, text, whole, word
from noetl.dsl.compile import Compiled, compile_text
from noetl.dsl.expressions import Expressions, guarded
from noetl.dsl.grammar import (
    DEFINITIONS,
    Anything,
    Duration,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    Number,
    OneOf,
    Record,
    Schema,
    Shape,
    Text,
    When,
    has_key,
    has_template,
    is_list,
    is_mapping,
    is_text,
)
from noetl.dsl.nodes import Node, Scalar
from noetl.dsl.policy_shapes import VALUES
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.schema import DIALECT
from noetl.dsl.shapes import API_VERSION, METADATA
from noetl.model import calendar, triggers
from noetl.model.calendar import OnlyUtc, Zones
from noetl.model.duration import seconds
from noetl.model.net import Limits, Values
from noetl.model.toolshape import ToolShape
from noetl.model.triggers import (
    CATCHUP_SECONDS,
    TOLERANCE_SECONDS,
    Debounce,
    Hook,
    PlaybookRef,
    Schedule,
    SignalTarget,
    StartTarget,
    Trigger,
    Verify,
)

OVERLAPS = ("skip", "buffer_one", "buffer_all", "cancel_other", "allow_all")


class Span(Duration):
    """A duration as it stands: documents are read once, so there is nothing to compute it from."""

    def __init__(self, *, least: float = 0.0) -> None:
        self._least = least

    def check(self, node: Node, what: str, look: Inspection) -> None:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and has_template(value):
            look.wrong_type(node, what, "a duration such as 30s or 5m, without a template")
            return
        super().check(node, what, look)
        length = seconds(value) if isinstance(value, int | float | str) else None
        if length is not None and not isinstance(value, bool) and length < self._least:
            look.report.add(
                "bad-value", f"{what} is shorter than {self._least:g} s, the least.", node.place
            )

    def schema(self) -> Schema:
        return {"anyOf": super().schema()["anyOf"][:2]}


class Cron(Shape):
    """A cron expression: five fields, six with seconds, or a name such as @daily."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        written = nodes.text_of(node)
        if written is None:
            look.wrong_type(node, what, 'a cron expression such as "30 2 * * *"')
        elif wrong := calendar.cron_problem(written):
            look.report.add(
                "bad-cron",
                f'{what} is "{written[:60]}", and that is no cron expression: {wrong}. The fields'
                " are minute, hour, day of month, month, day of week.",
                node.place,
            )

    def schema(self) -> Schema:
        return {"type": "string", "pattern": r"^\s*(@[a-z]+|(\S+\s+){4,5}\S+)\s*$"}


class Moment(Shape):
    """A moment: RFC 3339, or a local time of the schedule's zone, or a day."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        written = nodes.text_of(node)
        if written is None:
            look.wrong_type(node, what, "a moment such as 2026-01-31T12:00:00")
        elif moment_of(written, UTC) is None:
            look.report.add(
                "bad-value",
                f'{what} is "{written[:40]}"; write a day or a moment, such as 2026-01-31,'
                " 2026-01-31T12:00 or 2026-01-31T12:00:00+01:00.",
                node.place,
            )

    def schema(self) -> Schema:
        return {"type": "string"}


def moment_of(written: str, zone: tzinfo) -> float | None:
    """Seconds since 1970; a moment without an offset is local to the zone."""
    try:
        found = datetime.fromisoformat(written)
        return (found if found.tzinfo is not None else found.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        return None


PLAYBOOK_REF = Either(
    "the path of a playbook, or a mapping with `path` and `version`",
    (is_text, Text()),
    (
        is_mapping,
        Record(
            "a playbook to start",
            {
                "path": Field(Text(), "Where it stands in the catalog.", required=True),
                "version": Field(
                    Number(whole=True, least=1, templates=False), "By default the newest."
                ),
            },
        ),
    ),
)
SCHEDULE_SPEC = Record(
    "a schedule's `spec`",
    {
        "playbook": Field(PLAYBOOK_REF, "What it starts.", required=True),
        "workload": Field(VALUES, "With what; templates read `schedule`."),
        "cron": Field(
            Either(
                "a cron expression, or a list of them",
                (is_list, ListOf(Cron(), "cron expressions", filled=True)),
                (lambda _: True, Cron()),
            ),
            "When: minute, hour, day of month, month, day of week.",
        ),
        "every": Field(Span(least=calendar.EVERY_MIN), "Instead of `cron`: from time to time."),
        "offset": Field(Span(), "With `every`: later by so much."),
        "timezone": Field(Text(), "In whose local time. Default UTC."),
        "start": Field(Moment(), "Not before."),
        "end": Field(Moment(), "Not after."),
        "jitter": Field(Span(), "Later by up to so much, to spread the load."),
        "overlap": Field(OneOf(*OVERLAPS), "What if the last one still runs. Default skip."),
        "catchup_window": Field(Span(), "A time missed by more is not started. Default 1h."),
        "pause_on_failure": Field(Flag(), "Pause when an execution that it started failed."),
    },
    removed={
        "schedule": "write `cron` or `every`.",
        "interval": "write `every`.",
        "path": "what it starts stands under `playbook`; its own path in `metadata`.",
        "tz": "write `timezone`.",
    },
)
_SCHEDULE_NAMES = {"schedule": ("path", "version", "time", "utc", "timezone", "previous", "origin")}


_SECRET = Field(
    Either(
        "the name of a credential, or a list of names",
        (is_list, ListOf(Text(), "names of credentials", filled=True)),
        (lambda _: True, Text()),
    ),
    "The credential that holds the secret; of several any will do.",
    required=True,
)
_OF_PRESET = Record(
    "a way to verify",
    {"secret": _SECRET, "tolerance": Field(Span(), "How old a signature may be. Default 5m.")},
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
_HMAC = Record(
    "`hmac`",
    {
        "secret": _SECRET,
        "header": Field(Text(), "The header with the signature.", required=True),
        "algorithm": Field(OneOf("sha256", "sha1", "sha512"), "Default sha256."),
        "encoding": Field(OneOf("hex", "base64"), "Default hex."),
        "prefix": Field(Text(), "What stands before the signature, such as `sha256=`."),
        "signed": Field(Text(), "What is signed: {body}, {timestamp}, {id}. Default {body}."),
        "timestamp": Field(Text(), "The header that says when it was signed."),
        "id": Field(Text(), "The header that names the delivery."),
        "tolerance": Field(Span(), "How old a signature may be. Default 5m."),
    },
)
_TOKEN = Record(
    "`token`",
    {
        "secret": _SECRET,
        "header": Field(Text(), "Where it is shown. Default Authorization: Bearer."),
    },
)
_WAYS = ("github", "stripe", "slack", "standard-webhooks", "hmac", "token")


class _Verify(Shape):
    """`none`, or a mapping with one way."""

    ways = Record(
        "`verify`",
        {
            **{name: Field(_OF_PRESET, f"As {name} signs.") for name in PRESETS},
            "hmac": Field(_HMAC, "A signature of another sender."),
            "token": Field(_TOKEN, "A secret that is shown as it is."),
        },
    )

    def check(self, node: Node, what: str, look: Inspection) -> None:
        written = nodes.text_of(node)
        if written == "none":
            return
        if written in _WAYS:
            look.report.add(
                "bad-value",
                f"`verify: {written}` needs a secret. Write"
                f" `verify: {{{written}: {{secret: NAME_OF_A_CREDENTIAL}}}}`.",
                node.place,
            )
        elif written is not None:
            look.report.add(
                "bad-value",
                f'`verify` is "{written[:60]}"; write one of {", ".join(_WAYS)} with its secret,'
                " or `none` if anybody may call." + look.report.suggest(written, _WAYS),
                node.place,
            )
        else:
            self.ways.check(node, what, look)
            if isinstance(node, nodes.Mapping) and len(node.entries) != 1:
                ways = ", ".join(_WAYS)
                look.report.add("bad-value", f"`verify` has one of {ways}.", node.place)

    def schema(self) -> Schema:
        ways = self.ways.schema() | {"minProperties": 1, "maxProperties": 1}
        return {"anyOf": [{"const": "none"}, ways]}


_START_TARGET = Record(
    "a target that is started",
    {
        "playbook": Field(PLAYBOOK_REF, "What it starts.", required=True),
        "workload": Field(VALUES, "With what; templates read `hook`."),
    },
)
_SIGNAL_TARGET = Record(
    "a target that is signalled",
    {
        "signal": Field(Text(), "The name of the event.", required=True),
        "match": Field(When(), "Which waiting executions: reads their workload, ctx, labels."),
        "labels": Field(VALUES, "Which waiting executions: labels that they have."),
        "playbook": Field(Text(), "Only executions of this playbook."),
        "data": Field(Anything(), "What they hear. Default the body."),
    },
)
HOOK_SPEC = Record(
    "a hook's `spec`",
    {
        "verify": Field(_Verify(), "Who may call it.", required=True),
        "target": Field(
            Either(
                "a mapping with `playbook` or `signal`",
                (has_key("signal"), _SIGNAL_TARGET),
                (is_mapping, _START_TARGET),
            ),
            "What a delivery does.",
            required=True,
        ),
        "when": Field(When(), "Which deliveries count; the others are answered and dropped."),
        "id": Field(Text(), "A template for the id of a delivery. The same id again is a repeat."),
        "wait": Field(Span(), "So long the answer waits for the result. Default 0."),
        "debounce": Field(
            Record(
                "`debounce`",
                {
                    "key": Field(Text(), "A template: deliveries of one key become one start."),
                    "wait": Field(Span(), "Start when none came for so long.", required=True),
                    "max_wait": Field(Span(), "But not later than so long after the first."),
                },
            ),
            "Deliveries that follow each other closely are one start.",
        ),
    },
)
_HOOK_NAMES: dict[str, tuple[str, ...]] = {
    "hook": ("path", "id", "time", "body", "text", "form", "headers", "query")
}
_OF_EXECUTIONS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("workload", "ctx", "labels", "execution_id", "path"), ()
)


class Look(msgspec.Struct, frozen=True):
    """What the building of a document may look at."""

    report: Report
    zones: Zones


class Kind(msgspec.Struct, frozen=True):
    """One kind of document."""

    title: str
    spec: Record
    names: Mapping[str, tuple[str, ...]]
    """What its templates may read, and the keys that each has, if they are all known."""
    build: Callable[[Look, nodes.Mapping, dict[str, str]], Trigger]

    @property
    def shape(self) -> Record:
        return Record(
            self.title,
            {
                "apiVersion": Field(Text(), f"Always {API_VERSION}.", required=True),
                "kind": Field(Text(), "What the document is.", required=True),
                "metadata": Field(METADATA, "What it is called.", required=True),
                "spec": Field(self.spec, "What it does.", required=True),
            },
        )


def compile_document(
    written: str,
    *,
    tools: Mapping[str, ToolShape],
    limits: Limits | None = None,
    strict: bool = False,
    zones: Zones | None = None,
) -> Compiled:
    """Compile a document of any kind. Never raises for bad input: the problems say why."""
    report = Report()
    root = read(written, report)
    kind = KINDS.get(text(root, "kind") or "") if root is not None else None
    if root is None or kind is None:
        return compile_text(written, tools=tools, limits=limits, strict=strict)
    kind.shape.check(root, kind.title, Inspection(report, tools))
    name = _check_head(report, root, kind.title)
    look = Look(report, zones or OnlyUtc())
    spec = field(root, "spec")
    made = None
    if isinstance(spec, nodes.Mapping):
        about = {"name": name[0], "path": name[1]}
        about["description"] = text(field(root, "metadata"), "description", "desc") or ""
        made = kind.build(look, spec, about)
    problems = report.problems(root)
    if report.has_errors or made is None:
        return Compiled(net=None, problems=problems)
    return Compiled(net=None, trigger=made, digest=triggers.digest(made), problems=problems)


def trigger_schema(kind: str) -> Schema:
    """The JSON Schema of one kind of document."""
    root = KINDS[kind].shape.schema()
    root["properties"]["apiVersion"] = {"const": API_VERSION}
    root["properties"]["kind"] = {"const": kind}
    shared = {"values": DEFINITIONS["values"].schema()}
    return {"$schema": DIALECT, "title": f"NoETL {kind.lower()}", **root, "$defs": shared}


def _check_head(report: Report, root: nodes.Mapping, title: str) -> tuple[str, str]:
    """What every document says of itself; its name and its path."""
    version = field(root, "apiVersion")
    if version is not None and nodes.text_of(version) not in (API_VERSION, None):
        report.add(
            "unsupported-version",
            f'apiVersion is "{nodes.text_of(version)}"; today it is {API_VERSION}.',
            version.place,
        )
    metadata = field(root, "metadata")
    name, path = text(metadata, "name"), text(metadata, "path")
    if isinstance(metadata, nodes.Mapping) and not name and not path:
        report.add(
            "missing-key", f"{title} needs `metadata.name` or `metadata.path`.", metadata.place
        )
    return name or (path or "").rpartition("/")[2], path or name or ""


def _check_templates(
    report: Report, node: Node | None, names: Mapping[str, tuple[str, ...]]
) -> None:
    """Every template is one we would run, and reads what exists."""
    expressions = Expressions()
    for source, found in _templates(node):
        for code, message in expressions.refusal(source):
            report.add(code, message, found.place)
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
                        + (report.suggest(path[0], names) or _readable(names)),
                        found.place,
                    )
            elif names[path[0]] and len(path) > 1 and path[1] not in names[path[0]]:
                known = names[path[0]]
                report.add(
                    "undefined-key",
                    f'`{path[0]}` has no "{path[1]}".'
                    + (report.suggest(path[1], known) or f" It has {', '.join(known)}."),
                    found.place,
                )


def _readable(names: Mapping[str, tuple[str, ...]]) -> str:
    return f" Templates of this document read {', '.join(f'`{name}`' for name in names)}."


def _templates(node: Node | None) -> list[tuple[str, Node]]:
    match node:
        case Scalar(value=str() as written) if has_template(written):
            return [(written, node)]
        case nodes.Sequence():
            return [one for item in node.items for one in _templates(item)]
        case nodes.Mapping():
            return [one for item in node.entries.values() for one in _templates(item)]
    return []


def span(node: Node | None, *keys: str) -> float | None:
    """A duration in seconds, if one is written there."""
    found = field(node, *keys)
    value = found.value if isinstance(found, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    length = seconds(value)
    return None if length is None else float(length)


def playbook_ref(node: Node | None) -> PlaybookRef:
    written = nodes.text_of(node)
    if written is not None:
        return PlaybookRef(path=written)
    return PlaybookRef(path=text(node, "path") or "", version=whole(node, "version"))


def _schedule(look: Look, spec: nodes.Mapping, about: dict[str, str]) -> Schedule:
    report = look.report
    zone_node = field(spec, "timezone")
    zone_name = nodes.text_of(zone_node) or "UTC"
    zone = look.zones.find(zone_name)
    if zone is None and zone_node is not None:
        hint = report.suggest(zone_name, look.zones.names())
        report.add(
            "unknown-timezone",
            f'there is no time zone "{zone_name[:60]}".'
            + (hint or " Write a name of the IANA database, such as Europe/Berlin or UTC."),
            zone_node.place,
        )
    _check_way(report, spec)
    cron = field(spec, "cron")
    crons = items(cron) or ([cron] if cron is not None else [])
    for node in crons:
        _check_gap(look, node, zone, zone_name)
    start, end = (
        moment_of(text(spec, key) or "", zone or UTC) if text(spec, key) else None
        for key in ("start", "end")
    )
    if start is not None and end is not None and end <= start:
        report.add("bad-value", "`end` is not after `start`.", spec.keys["end"])
    _check_templates(report, spec, _SCHEDULE_NAMES)
    workload: Values = (
        nodes.plain(field(spec, "workload")) if entries(deep(spec, "workload")) else {}
    )
    every, catchup = span(spec, "every"), span(spec, "catchup_window")
    return Schedule(
        **about,
        playbook=playbook_ref(field(spec, "playbook")),
        workload=workload,
        cron=tuple(" ".join(written.split()) for node in crons if (written := nodes.text_of(node))),
        every=every,
        offset=(span(spec, "offset") or 0.0) % every if every else 0.0,
        timezone=zone_name,
        start=start,
        end=end,
        jitter=span(spec, "jitter") or 0.0,
        overlap=word(spec, OVERLAPS, "overlap") or "skip",
        catchup_window=CATCHUP_SECONDS if catchup is None else catchup,
        pause_on_failure=bool(flag(spec, "pause_on_failure")),
    )


def _check_way(report: Report, spec: nodes.Mapping) -> None:
    """It is due by `cron` or by `every`, and by one of them alone."""
    if "cron" in spec.entries and "every" in spec.entries:
        report.add(
            "conflicting-keys",
            "`cron` and `every` exclude each other. Keep one of them.",
            spec.keys["every"],
        )
    elif "cron" not in spec.entries and "every" not in spec.entries:
        report.add("missing-key", "a schedule needs `cron` or `every`.", spec.place)
    if "offset" in spec.entries and "every" not in spec.entries:
        report.add(
            "hint-ignored", "`offset` counts with `every` only. Delete it.", spec.keys["offset"]
        )


def _check_gap(look: Look, node: Node, zone: tzinfo | None, zone_name: str) -> None:
    written = nodes.text_of(node)
    if written is None or zone is None or calendar.cron_problem(written):
        return
    gap = calendar.first_in_gap(" ".join(written.split()), zone, look.zones.now)
    if gap is not None:
        look.report.add(
            "time-in-gap",
            f"{gap.skipped:%H:%M} of {gap.skipped:%Y-%m-%d} does not exist in {zone_name}: the"
            f" clock is set forward then. That day it runs at {gap.instead:%H:%M}, once. Choose"
            " another time if that matters.",
            node.place,
        )


def _hook(look: Look, spec: nodes.Mapping, about: dict[str, str]) -> Hook:
    report = look.report
    target = field(spec, "target")
    is_signal = text(target, "signal") is not None
    _check_templates(report, field(target, "match"), _HOOK_NAMES | _OF_EXECUTIONS)
    for part in (spec, target):
        for key in entries(part):
            if key not in ("match", "target"):
                _check_templates(report, field(part, key), _HOOK_NAMES)
    for key in ("debounce", "wait"):
        if is_signal and key in spec.entries:
            report.add(
                "hint-ignored",
                f"`{key}` counts where a playbook is started. Delete it.",
                spec.keys[key],
            )
    made: StartTarget | SignalTarget
    if is_signal:
        made = SignalTarget(
            signal=text(target, "signal") or "",
            match=text(target, "match") or "",
            labels=nodes.plain(field(target, "labels")) or {},
            playbook=text(target, "playbook") or "",
            data=nodes.plain(field(target, "data")),
        )
    else:
        made = StartTarget(
            playbook=playbook_ref(field(target, "playbook")),
            workload=nodes.plain(field(target, "workload")) or {},
        )
    when = field(spec, "when")
    debounce = field(spec, "debounce")
    return Hook(
        **about,
        verify=_verify(report, field(spec, "verify")),
        target=made,
        when=when.value if isinstance(when, Scalar) else None,
        id=text(spec, "id") or "",
        wait=span(spec, "wait") or 0.0,
        debounce=None
        if debounce is None or is_signal
        else Debounce(
            key=text(debounce, "key") or "",
            wait=span(debounce, "wait") or 0.0,
            max_wait=span(debounce, "max_wait"),
        ),
    )


def _verify(report: Report, node: Node | None) -> Verify:
    if not isinstance(node, nodes.Mapping) or not node.entries:
        return Verify(scheme="none")
    [(way, options), *_] = node.entries.items()
    named = field(options, "secret")
    names = [nodes.text_of(one) for one in items(named)] or [nodes.text_of(named)]
    tolerance = span(options, "tolerance")
    found = Verify(
        scheme="hmac",
        header=(text(options, "header") or "").lower(),
        algorithm=word(options, ("sha256", "sha1", "sha512"), "algorithm") or "sha256",
        encoding=word(options, ("hex", "base64"), "encoding") or "hex",
        prefix=text(options, "prefix") or "",
        signed=text(options, "signed") or "{body}",
        timestamp=(text(options, "timestamp") or "").lower(),
        id=(text(options, "id") or "").lower(),
        tolerance=TOLERANCE_SECONDS if tolerance is None else tolerance,
        secrets=tuple(name for name in names if name),
    )
    if way in PRESETS:
        return msgspec.structs.replace(
            PRESETS[way], secrets=found.secrets, tolerance=found.tolerance
        )
    if way == "token":
        header = found.header or "authorization"
        return Verify(scheme="token", header=header, secrets=found.secrets)
    _check_signed(report, options, found)
    return found


def _check_signed(report: Report, options: Node, made: Verify) -> None:
    place = (field(options, "signed") or options).place
    if "{body}" not in made.signed:
        report.add("bad-value", "`signed` must hold {body}, or anybody could change it.", place)
    for name in re.findall(r"\{(\w+)\}", made.signed):
        if name not in ("body", "timestamp", "id"):
            known = "{body}, {timestamp}, {id}"
            report.add("bad-value", f"`signed` knows {known}, not {{{name}}}.", place)
        elif name != "body" and not getattr(made, name):
            report.add(
                "missing-key", f"`signed` holds {{{name}}}: say its header under `{name}`.", place
            )
    if made.timestamp and "{timestamp}" not in made.signed:
        report.add(
            "bad-value",
            "`timestamp` names a header that is not signed, so anybody could change it. Put"
            " {timestamp} into `signed`, or leave it out.",
            place,
        )


KINDS: dict[str, Kind] = {
    "Hook": Kind("a hook", HOOK_SPEC, _HOOK_NAMES | _OF_EXECUTIONS, _hook),
    "Schedule": Kind("a schedule", SCHEDULE_SPEC, _SCHEDULE_NAMES, _schedule),
}
