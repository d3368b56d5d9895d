"""Layers of `spec`: the knobs that every level understands, and the limits on them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import (
    COUNT,
    RATE,
    TEMPLATE_SCHEMA,
    TEMPLATED_COUNT,
    Duration,
    Either,
    Flag,
    Inspection,
    MapOf,
    Number,
    Placed,
    Record,
    Schema,
    Text,
    define,
    field,
    has_template,
    is_mapping,
    is_scalar,
    plain_text,
)
from noetl.dsl.grammar import Values as AnyValues
from noetl.dsl.nodes import Mapping, Node
from noetl.model.duration import seconds
from noetl.model.labels import of_worker_problem
from noetl.model.net import Amount, Limits, Quotas, Values
from noetl.model.problems import Place

Bounds = TypeVar("Bounds", Limits, Quotas)

VALUES = define("values", AnyValues())


class WrittenTimeout(Placed, title="a timeout"):
    connect: Node | None = field(Duration(), "Time to wait for the connection.")
    read: Node | None = field(Duration(), "Time to wait for data.")
    total: Node | None = field(Duration(), "Time for the whole call.")


class _Sandbox(Record):
    """Other keys are hints without effect. A warning says so: one may be a misspelt `network`."""

    def unknown(self, key: str, node: nodes.Mapping, look: Inspection, hint: str = "") -> None:
        suggestion = hint or look.report.suggest(key, list(self.fields))
        look.report.add(
            "hint-ignored",
            f"`{key[:60]}` of {self.title} is accepted without effect.{suggestion}",
            node.keys[key],
        )


class _SandboxKeys(
    Placed, title="`sandbox`", record=_Sandbox, schema={"additionalProperties": True}
):
    network: bool | None = field(
        Flag(), "Whether code and programs reach a network where workers keep them off."
    )


class _ToolRetry(Placed, title="a tool's own retry"):
    attempts: int | None = field(
        Number(whole=True, least=0, templates=False), "Repeats. Default 1."
    )
    delay: float | None = field(
        Number(least=0, templates=False), "Seconds before each. Default 0.1."
    )


def _wrong_key(text: str) -> str:
    if not has_template(text):
        return ""
    return f'must be a name, without a template, not the text "{text[:40]}".'


class _SharedRate(Placed, title="`rate`"):
    key: str | None = field(
        Text(wrong=_wrong_key, code="wrong-type"),
        "A name; calls with the same name share the limit.",
        required=True,
    )
    limit: Node | None = field(RATE, "The maximum rate of calls, e.g. 10/s.", required=True)


class Knobs(Placed):
    """Runtime knobs, understood at every level; the innermost wins."""

    timeout: Node | WrittenTimeout | None = field(
        Either(
            "seconds, or connect/read/total",
            (is_scalar, Duration()),
            (is_mapping, WrittenTimeout.shape),
        ),
        "How long one try may take.",
    )
    max_jumps: Node | None = field(TEMPLATED_COUNT, "Bound of backward jumps. Default 100 000.")
    rate: Node | _SharedRate | None = field(
        Either(
            "a rate, or a rate with a `key`",
            (lambda node: not is_mapping(node), RATE),
            (is_mapping, _SharedRate.shape),
        ),
        "The maximum rate of calls, e.g. 10/s, of one worker; with `key` of all workers.",
    )
    retry: int | _ToolRetry | None = field(
        Either(
            "a number of repeats or a mapping",
            (is_scalar, Number(whole=True, least=0, templates=False)),
            (is_mapping, _ToolRetry.shape),
        ),
        "The tool repeats an error worth another try so often by itself, unseen. Off by default.",
    )
    async_: bool | None = field(Flag(), "Hint: the call does not block.")
    cache: bool | None = field(Flag(), "Reuse the result of an equal call.")
    resources: Node | None = field(VALUES, "What the task needs: cpu, memory, gpu.")
    sandbox: _SandboxKeys = field(_SandboxKeys, "What the process that runs it may do.")


_TEMPLATED_POOL = (
    "is a template, but a worker is chosen before templates are rendered. Write the name of a pool;"
    " for a choice at run time, let arcs lead to steps with different pools."
)
_POOL_NAME = Text(
    wrong=lambda text: _TEMPLATED_POOL if has_template(text) else "",
    schema={"not": TEMPLATE_SCHEMA},
)


class _Pool(Placed):
    pool: str | None = field(_POOL_NAME, "The worker pool to run on.")


class PlacedKnobs(Knobs, _Pool):
    """Knobs of everything that runs as a command. The tasks of a step run on one worker."""


class WorkerLabels(MapOf):
    """Labels of workers, without templates: a worker is chosen before templates are rendered."""

    def __init__(self) -> None:
        super().__init__(Text(numbers=True))

    def read(self, node: Node, what: str, look: Inspection) -> dict[str, Any]:
        found = super().read(node, what, look)
        for name, value in node.entries.items() if isinstance(node, Mapping) else ():
            if problem := of_worker_problem(name, plain_text(value)):
                look.report.add("bad-value", problem, value.place)
        return dict(sorted(found.items()))

    def schema(self) -> Schema:
        text = {"pattern": "^[A-Za-z0-9_.:/-]{1,63}$"}
        values = {"anyOf": [{"type": "string", **text}, {"type": "number"}]}
        return {"type": "object", "propertyNames": text, "additionalProperties": values}


class _Quantum(Placed, title="`quantum` of a placement"):
    provider: str | None = field(Text(), "Provider of quantum tasks that name none.")
    backend: str | None = field(Text(), "Backend of quantum tasks that name none.")
    shots_max: int | None = field(COUNT, "Most shots of one job.")


class WrittenPlacement(Placed, title="`placement`"):
    """Which workers are needed."""

    pool: str | None = field(_POOL_NAME, "The worker pool to run on; the same as `spec.pool`.")
    labels: dict[str, str] = field(WorkerLabels(), "What its workers must say of themselves.")
    quantum: _Quantum = field(_Quantum, "Where quantum tasks run.")

    def kind_defaults(self) -> dict[str, Values]:
        """Default config for tasks of a kind."""
        return {"quantum": nodes.plain(self.quantum.node)} if self.quantum else {}

    def pool_with(self, building: Building, own: str | None) -> str | None:
        """The worker pool: that of the placement, or `own`, which is `spec.pool`; not both."""
        if own is not None and self.pool is not None:
            building.report.add(
                "conflicting-keys",
                "`pool` and `policy.placement.pool` both name the worker pool. Keep one of them.",
                self.place_of("pool") or self.place,
            )
        return self.pool if own is None else own


class WrittenQuotas(Placed, title="`quotas`"):
    max_calls: int | None = field(COUNT, "Calls of tools.")
    max_bytes: int | None = field(COUNT, "Bytes of results.")
    max_seconds: float | None = field(
        Number(least=0, templates=False), "Seconds of calls, added up."
    )


class WrittenLimits(Placed, title="limits"):
    max_payload_bytes: int | None = field(COUNT)
    max_attempts: int | None = field(COUNT)
    max_in_flight: int | None = field(COUNT)
    max_jumps: int | None = field(COUNT)
    timeout: float | None = field(Number(least=0, templates=False))


class WrittenTracing(Placed, title="`tracing`"):
    sample: float | None = field(
        Number(least=0, most=1, templates=False),
        "Which part of the executions is traced: 0 none, 1 all.",
    )
    attributes: Node | None = field(VALUES, "What its spans say beside what all spans say.")


def merge(outer: Values, inner: Values) -> Values:
    """Merge mappings deeply; of scalars and lists the inner one wins."""
    merged = dict(outer)
    for key, value in inner.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return {key: merged[key] for key in sorted(merged)}


def knobs(spec: Knobs) -> Values:
    """The runtime knobs of one `spec`, which inner layers inherit."""
    return {
        name: in_seconds(nodes.plain(value)) if name == "timeout" else nodes.plain(value)
        for name, value in spec.node.entries.items()
        if name in Knobs.declared and not nodes.is_null(value)
    }


def noted_knobs(building: Building, spec: Knobs) -> Values:
    """The same; records the templates in them as those of a task."""
    for name, value in spec.node.entries.items():
        if name in Knobs.declared:
            building.value(value, Where.TASK)
    return knobs(spec)


def in_seconds(written: Any) -> Any:
    if isinstance(written, dict):
        return {key: in_seconds(value) for key, value in sorted(written.items())}
    if isinstance(written, str):
        length = seconds(written)
        return written if length is None else length
    return written


def bounds(made: type[Bounds], *written: Placed) -> Bounds:
    """Limits or quotas, where well-formed."""
    numbers = {
        name: value
        for one in written
        for name, value in vars(one).items()
        if name in made.__struct_fields__
    }
    try:
        return msgspec.convert(numbers, made)
    except msgspec.ValidationError:
        return made()


def within(
    building: Building,
    asked: Any,
    limit: float | None,
    what: str,
    place: Place,
    default: Amount | None = None,
) -> Any:
    """The value written, else the default, cut to the limit. A template is cut when it is
    evaluated; only a value that was written is reported.
    """
    value = default if asked is None else asked
    if limit is None or not isinstance(value, int | float) or value <= limit:
        return value
    if asked is not None:
        building.report.add(
            "limit-applied",
            f"{what} is {asked:g}, but the limit here is {limit:g}: {limit:g} applies.",
            place,
        )
    return limit
