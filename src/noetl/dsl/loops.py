"""Loops: every way to write one, as one `Loop`."""

from __future__ import annotations

from collections import abc
from typing import Any

from noetl.dsl import nodes
from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import (
    COUNT,
    NAME,
    TEMPLATED_COUNT,
    Also,
    Anything,
    AsWritten,
    Defined,
    Duration,
    Either,
    Inspection,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Placed,
    Schema,
    Shape,
    Text,
    define,
    field,
    has_key,
    is_list,
    is_mapping,
    is_text,
    one_of,
    refuse_both,
    warn_unused,
)
from noetl.dsl.layers import VALUES, PlacedKnobs, within
from noetl.dsl.nodes import Node
from noetl.dsl.policies import astray_policies
from noetl.model.net import (
    FRAME_ROWS,
    Amount,
    Cursor,
    FrameProcess,
    Locality,
    Loop,
    OnIterationError,
    Range,
    Reducer,
    Values,
)
from noetl.model.toolshape import ToolShape

CURSOR_KIND = "cursor_kind"
FRAME_HINTS = ("max_seconds", "max_bytes", "heartbeat_seconds", "verify_ipc", "retry_mode")
"""Keys of a cursor's frame that people write and that have no effect."""

# --- How they are written ------------------------------------------------------------------------

_LOOP_MODE = OneOf("sequential", "parallel", "cursor")
_MAX_IN_FLIGHT = "How many iterations may run at the same time."
_IN_ORDER = "Results are always in the order of the collection; leave it out."


class _Partition(Placed, title="`partition`"):
    key: Node | None = field(
        Anything(), "Iterations with equal values follow one another.", required=True
    )


class _Backpressure(Placed, title="`backpressure`"):
    max_pending: int | None = field(
        COUNT, "A cursor claims no more while this many rows have not ended.", required=True
    )


class _LoopPolicy(
    Placed,
    title="a loop's policy",
    older={"results": _IN_ORDER},
    astray=astray_policies("a loop", "results"),
):
    exec: Locality | None = field(one_of(Locality), "One worker, or any.")
    reduce: dict[str, Reducer | None] = field(
        MapOf(one_of(Reducer)), "How parallel writes of a ctx key combine."
    )
    mode: str | None = field(_LOOP_MODE, "Same as `spec.mode`.")
    max_in_flight: Node | None = field(TEMPLATED_COUNT, _MAX_IN_FLIGHT)
    partition: _Partition = field(
        _Partition, "Iterations with the same key run one after another, others in parallel."
    )
    backpressure: _Backpressure = field(_Backpressure, "How far a cursor may run ahead.")


class _Frame(
    Placed,
    title="a cursor's `frame`",
    older=dict.fromkeys(FRAME_HINTS, "It has no effect; leave it out."),
):
    max_rows: Node | None = field(TEMPLATED_COUNT, "Rows per claim.")
    process: FrameProcess | None = field(one_of(FrameProcess), "Per row, or all rows at once.")
    row_concurrency: Node | None = field(TEMPLATED_COUNT, "Rows at once.")
    lease_seconds: Node | None = field(Duration(), "How long a claim holds.")
    max_attempts: Node | None = field(TEMPLATED_COUNT, "Tries per claim.")


class WrittenLoopSpec(PlacedKnobs, title="a loop's `spec`"):
    """How iterations are scheduled, and knobs of their tasks."""

    mode: str | None = field(_LOOP_MODE, "One after another, or in parallel. Default sequential.")
    max_in_flight: Node | None = field(TEMPLATED_COUNT, _MAX_IN_FLIGHT)
    batch_size: Node | None = field(TEMPLATED_COUNT, "Iterations a worker takes at a time.")
    on_error: OnIterationError | None = field(
        one_of(OnIterationError), "What a failed iteration means."
    )
    frame: _Frame = field(_Frame, "How a cursor claims rows.")
    policy: _LoopPolicy = field(_LoopPolicy, "Where iterations run and how they combine.")


class _Range(Placed, title="a range"):
    from_: Node | None = field(Number(), "First number. Default 0.")
    to: Node | None = field(Number(), "Where to stop; not included.", required=True)
    step: Node | None = field(Number(nonzero=True), "Distance. Default 1.")


_COLLECTION = Either(
    "a template, a list, a mapping or {from, to}",
    (is_text, AsWritten(Text())),
    (is_list, AsWritten(ListOf(Anything(), "elements"))),
    (has_key("from", "to"), _Range.shape),
    (is_mapping, VALUES),
)


class CursorKind(Shape):
    """A tool kind that can claim rows (`ToolShape.claims`)."""

    @staticmethod
    def of(tools: abc.Mapping[str, ToolShape]) -> OneOf:
        """The kinds among these tools."""
        return OneOf(*sorted(kind for kind, tool in tools.items() if tool.claims))

    def read(self, node: Node, what: str, look: Inspection) -> str | None:
        return self.of(look.tools).read(node, what, look)

    def schema(self) -> Schema:
        return Defined(CURSOR_KIND).schema()


_MODES: tuple[tuple[str, ...], ...] = ((), ("spec",), ("spec", "policy"))
"""Where the mode of a loop may stand."""


def _has(key: str, *below: str, word: str = "") -> Schema:
    """A schema for mappings with this path of keys; with `word`, that is what the last one says."""
    inner: Schema = _has(*below, word=word) if below else {"const": word} if word else {}
    return {"type": "object", "required": [key], "properties": {key: inner}}


_LOOP: Schema = {
    "allOf": [
        {"anyOf": [{"required": [key]} for key in ("in", "collection", "cursor")]},
        {"anyOf": [{"required": [key]} for key in ("iterator", "element")]},
        {"if": _has("spec", "policy", "backpressure"), "then": {"required": ["cursor"]}},
        {
            "if": {"anyOf": [_has(*path, "mode", word="cursor") for path in _MODES]},
            "then": {"required": ["cursor"]},
        },
        {
            "if": _has("spec", "policy", "partition"),
            "then": {
                "not": {"required": ["cursor"]},
                "anyOf": [_has(*path, "mode", word="parallel") for path in _MODES],
            },
        },
    ]
}
"""What the keys of a loop need beside them."""


class _Cursor(Placed, title="a cursor"):
    kind: str | None = field(CursorKind(), "The database tool.", required=True)
    auth: Node | None = field(Anything(), "Credential.")
    database: Node | None = field(AsWritten(Text()), "Database file, for sqlite and duckdb.")
    claim: Node | None = field(AsWritten(Text()), "Statement that claims rows.", required=True)
    params: Node | None = field(Anything(), "Bound values.")


_ELEMENTS = ("as", "var", "variable", "loop_var")
_COLLECTIONS = ("items", "values", "over", "each")
_LIMITS = ("parallel", "concurrency", "max_parallel", "workers")
"""What other languages call `iterator`, `in` and `max_in_flight`."""


class WrittenLoop(
    Placed,
    title="a loop",
    older={"policy": _IN_ORDER},
    removed={
        **dict.fromkeys(_ELEMENTS, "the name of its element is `iterator`."),
        **dict.fromkeys(_COLLECTIONS, "what it goes over is `in`."),
        **dict.fromkeys(_LIMITS, "write `spec: {mode: parallel, max_in_flight: N}`."),
    },
    schema=_LOOP,
    first=("in", "collection", "cursor", "iterator", "element", "mode"),
    last=("spec",),
):
    """What a loop goes over, and how."""

    in_: Node | _Range | None = field(_COLLECTION, "The collection to loop over.")
    collection = Also(in_)
    cursor: _Cursor = field(_Cursor, "Claim rows from a database until none is left.")
    iterator: str | None = field(NAME, "Name of the current element.")
    element = Also(iterator)
    mode: str | None = field(_LOOP_MODE, "Same as `spec.mode`.")
    spec: WrittenLoopSpec = field(WrittenLoopSpec, "How iterations are scheduled.")

    def check(self, look: Inspection) -> None:
        """A loop needs something to go over and a name for the element."""
        node, spec, policy = self.node, self.spec.node, self.spec.policy.node
        given = nodes.written(node)
        if not {"in", "collection", "cursor", *_COLLECTIONS} & given:
            look.report.add(
                "loop-incomplete", "a loop needs a collection: `in`, or a `cursor`.", node.place
            )
        refuse_both(node, ("in", "collection"), ("cursor",), "what a loop goes over", look)
        if "mode" in node.entries and "mode" in spec.entries:
            look.report.add(
                "conflicting-keys",
                "`mode` of the loop and of its `spec` are the same thing. Keep one of them.",
                max(node.keys["mode"], spec.keys["mode"]),
            )
        for key in ("mode", "max_in_flight"):
            if nodes.field(spec, key) or nodes.field(node, key):
                why = f"beside `{key}` of the loop or its `spec`, which wins. Keep one of them."
                warn_unused(policy, (key,), why, look)
        self._check_mode(look)
        if "backpressure" in policy.entries and "cursor" not in given:
            look.report.add(
                "policy-out-of-place",
                "`backpressure` bounds what a `cursor` claims. A loop over a collection is bounded"
                " by `max_in_flight`.",
                policy.keys["backpressure"],
            )
        if "partition" in policy.entries:
            modes = (self.mode, self.spec.mode, self.spec.policy.mode)
            if "parallel" not in modes or "cursor" in given:
                look.report.add(
                    "policy-out-of-place",
                    "`partition` orders iterations of a loop with `mode: parallel` over a"
                    " collection; one that is sequential has its order, and a cursor has none.",
                    policy.keys["partition"],
                )
        if misnamed := [key for key in _ELEMENTS if key in given and self.iterator is None]:
            # Templates mean this name; that they do is no second mistake.
            self.iterator = nodes.text_of(node.entries[misnamed[0]])
        elif not {"iterator", "element"} & given:
            look.report.add(
                "loop-incomplete",
                "a loop needs `iterator`: the name of the current element.",
                node.place,
            )

    def _check_mode(self, look: Inspection) -> None:
        """What belongs to cursors or to parallel loops stands in such a loop."""
        node, spec, policy = self.node, self.spec.node, self.spec.policy.node
        written = [
            (one, mode)
            for one in (node, spec, policy)
            if (mode := nodes.text_of(nodes.field(one, "mode")))
        ]
        modes = [mode for _, mode in written]
        if not nodes.is_null(node.entries.get("cursor")):
            for one, mode in written:
                if mode == "sequential":
                    why = "with a `cursor`: write `max_in_flight: 1` for one claim at a time."
                    warn_unused(one, ("mode",), why, look)
            return
        warn_unused(spec, ("frame",), "without a `cursor`: it says how one claims rows.", look)
        if "cursor" in modes:
            look.report.add(
                "loop-incomplete",
                "`mode: cursor` needs a `cursor` that claims the rows; a loop over a collection is"
                " `sequential` or `parallel`.",
                next(one.keys["mode"] for one, mode in written if mode == "cursor"),
            )
        elif not modes or modes[0] == "sequential":
            for one in (spec, policy):
                # One at a time is what a sequential loop does.
                keys = [key for key in _OF_PARALLEL if nodes.plain(one.entries.get(key)) != 1]
                why = "in a sequential loop: write `mode: parallel`, or leave it out."
                warn_unused(one, keys, why, look)


_OF_PARALLEL = ("max_in_flight", "batch_size")


A_LOOP = define("loop", WrittenLoop.shape)

# --- What they become ----------------------------------------------------------------------------


def loop(building: Building, written: WrittenLoop | None, knobs: Values) -> Loop | None:
    """The loop of a step or workbook entry; None if there is none, or it cannot be used.

    `knobs` are those that tasks in it inherit.
    """
    if not written or written.iterator is None:
        return None
    spec, policy = written.spec, written.spec.policy
    over, limit = written.in_, building.limits.max_in_flight
    asked = spec.max_in_flight or policy.max_in_flight
    in_flight = building.amount(asked, Where.LOOP)
    made = Loop(
        iterator=written.iterator,
        items=None if isinstance(over, _Range) else building.value(over, Where.LOOP),
        range=_range(building, over) if isinstance(over, _Range) else None,
        cursor=_cursor(building, written, knobs),
        mode=_mode(written),
        max_in_flight=within(
            building, in_flight, limit, "max_in_flight", (asked or written).place, default=limit
        ),
        batch_size=building.amount(spec.batch_size, Where.LOOP),
        on_error=spec.on_error or "fail",
        placement=policy.exec or "distributed",
        reduce={name: how for name, how in sorted(policy.reduce.items()) if how is not None},
        partition=building.value(policy.partition.key, Where.LOOP_ARGS),
        max_pending=policy.backpressure.max_pending,
    )
    building.mark(
        made,
        written.place,
        iterator=written.place_of("iterator"),
        partition=policy.place_of("partition"),
    )
    return made


def _mode(written: WrittenLoop) -> Any:
    if not nodes.is_null(written.node.entries.get("cursor")):
        # A cursor claims rows by up to `max_in_flight` frames at once.
        return "parallel"
    mode = written.mode or written.spec.mode or written.spec.policy.mode
    return mode if mode == "parallel" else "sequential"


def _range(building: Building, written: _Range) -> Range:
    def number(node: Node | None, default: int) -> Amount:
        """A number of a range; unlike a duration it may be negative."""
        found = building.amount(node, Where.LOOP)
        if isinstance(node, nodes.Scalar) and isinstance(node.value, int | float):
            return node.value
        return default if found is None else found

    return Range(
        start=number(written.from_, 0), stop=number(written.to, 0), step=number(written.step, 1)
    )


def _cursor(building: Building, written: WrittenLoop, knobs: Values) -> Cursor | None:
    cursor, frame = written.cursor, written.spec.frame
    if not cursor:
        return None
    amounts = {
        name: found
        for name in ("max_rows", "row_concurrency", "lease_seconds", "max_attempts")
        if (found := building.amount(getattr(frame, name), Where.LOOP)) is not None
    }
    with building.inside(iterators=(*building.home.iterators, FRAME_ROWS)):
        claim = building.value(cursor.claim, Where.TASK)
    return Cursor(
        kind=cursor.kind or "",
        auth=building.value(cursor.auth, Where.TASK),
        database=building.value(cursor.database, Where.TASK),
        claim=claim or "",
        params=building.value(cursor.params, Where.TASK),
        process=frame.process or "row",
        timeout=knobs.get("timeout"),
        **amounts,
    )
