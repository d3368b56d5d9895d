"""How loops and ways out of a step may be written."""

from __future__ import annotations

from collections import abc

from noetl.dsl import nodes
from noetl.dsl.case_shapes import (
    CONDITIONS_IN_NEXT,
    SOME_TARGETS,
)
from noetl.dsl.grammar import (
    Anything,
    Defined,
    Duration,
    Either,
    Field,
    Inspection,
    ListOf,
    MapOf,
    Name,
    Number,
    OneOf,
    Record,
    Schema,
    Shape,
    StepName,
    Text,
    When,
    define,
    has_key,
    is_list,
    is_mapping,
    is_text,
    older_keys,
    one_of,
)
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.policy_shapes import (
    CONTROL,
    PLACED_KNOBS,
    VALUES,
    astray_policies,
)
from noetl.model.net import FrameProcess, Locality, MatchMode, OnIterationError, Reducer
from noetl.model.toolshape import ToolShape

CURSOR_KIND = "cursor_kind"
FRAME_HINTS = ("max_seconds", "max_bytes", "heartbeat_seconds", "verify_ipc", "retry_mode")
"""Keys of a cursor's frame that people write and that have no effect."""

# --- Loops -------------------------------------------------------------------------------------

_LOOP_MODE = OneOf("sequential", "parallel", "cursor")
_MAX_IN_FLIGHT = Field(Number(whole=True, least=1), "How many iterations may run at the same time.")
LOOP_POLICY = Record(
    "a loop's policy",
    {
        "exec": Field(one_of(Locality), "One worker, or any."),
        "reduce": Field(MapOf(one_of(Reducer)), "How parallel writes of a ctx key combine."),
        "mode": Field(_LOOP_MODE, "Same as `spec.mode`."),
        "max_in_flight": _MAX_IN_FLIGHT,
        "partition": Field(
            Record(
                "`partition`",
                {
                    "key": Field(
                        Anything(),
                        "Iterations with equal values follow one another.",
                        required=True,
                    )
                },
            ),
            "Iterations with the same key run one after another, others in parallel.",
        ),
        "backpressure": Field(
            Record(
                "`backpressure`",
                {
                    "max_pending": Field(
                        Number(whole=True, least=1, templates=False),
                        "A cursor claims no more while this many rows have not ended.",
                        required=True,
                    )
                },
            ),
            "How far a cursor may run ahead.",
        ),
    }
    | older_keys(results="Results are always in the order of the collection; leave it out."),
    astray=astray_policies("a loop", "results"),
)
LOOP_SPEC = Record(
    "a loop's `spec`",
    {
        "mode": Field(_LOOP_MODE, "One after another, or in parallel. Default sequential."),
        "max_in_flight": _MAX_IN_FLIGHT,
        "batch_size": Field(Number(whole=True, least=1), "Iterations a worker takes at a time."),
        "on_error": Field(one_of(OnIterationError), "What a failed iteration means."),
        "frame": Field(
            Record(
                "a cursor's `frame`",
                {
                    "max_rows": Field(Number(whole=True, least=1), "Rows per claim."),
                    "process": Field(one_of(FrameProcess), "Per row, or all rows at once."),
                    "row_concurrency": Field(Number(whole=True, least=1), "Rows at once."),
                    "lease_seconds": Field(Duration(), "How long a claim holds."),
                    "max_attempts": Field(Number(whole=True, least=1), "Tries per claim."),
                }
                | older_keys(**dict.fromkeys(FRAME_HINTS, "It has no effect; leave it out.")),
            ),
            "How a cursor claims rows.",
        ),
        "policy": Field(LOOP_POLICY, "Where iterations run and how they combine."),
    }
    | PLACED_KNOBS,
)
_COLLECTION = Either(
    "a template, a list, a mapping or {from, to}",
    (is_text, Text()),
    (is_list, ListOf(Anything(), "elements")),
    (
        has_key("from", "to"),
        Record(
            "a range",
            {
                "from": Field(Number(), "First number. Default 0."),
                "to": Field(Number(), "Where to stop; not included.", required=True),
                "step": Field(Number(nonzero=True), "Distance. Default 1."),
            },
        ),
    ),
    (is_mapping, VALUES),
)


class CursorKind(Shape):
    """A tool kind that says of itself that it can claim rows (`ToolShape.claims`)."""

    @staticmethod
    def of(tools: abc.Mapping[str, ToolShape]) -> OneOf:
        """The kinds among these tools."""
        return OneOf(*sorted(kind for kind, tool in tools.items() if tool.claims))

    def check(self, node: Node, what: str, look: Inspection) -> None:
        self.of(look.tools).check(node, what, look)

    def schema(self) -> Schema:
        return Defined(CURSOR_KIND).schema()


class LoopShape(Record):
    """A loop needs something to go over and a name for the element."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        if not isinstance(node, Mapping):
            return
        if not {"in", "collection", "cursor"} & set(node.entries):
            look.report.add(
                "loop-incomplete", "a loop needs a collection: `in`, or a `cursor`.", node.place
            )
        refuse_both(node, ("in", "collection"), ("cursor",), "what a loop goes over", look)
        spec = node.get("spec")
        if "mode" in node.entries and isinstance(spec, Mapping) and "mode" in spec.entries:
            look.report.add(
                "conflicting-keys",
                "`mode` of the loop and of its `spec` are the same thing. Keep one of them.",
                max(node.keys["mode"], spec.keys["mode"]),
            )
        policy = spec.get("policy") if isinstance(spec, Mapping) else None
        bounded = isinstance(policy, Mapping) and "backpressure" in policy.entries
        if bounded and "cursor" not in node.entries:
            assert isinstance(policy, Mapping)
            look.report.add(
                "policy-out-of-place",
                "`backpressure` bounds what a `cursor` claims. A loop over a collection is bounded"
                " by `max_in_flight`.",
                policy.keys["backpressure"],
            )
        if isinstance(policy, Mapping) and "partition" in policy.entries:
            holders = [one for one in (node, spec, policy) if isinstance(one, Mapping)]
            modes = [nodes.text_of(one.get("mode")) for one in holders]
            if "parallel" not in modes or "cursor" in node.entries:
                look.report.add(
                    "policy-out-of-place",
                    "`partition` orders iterations of a loop with `mode: parallel` over a"
                    " collection; one that is sequential has its order, and a cursor has none.",
                    policy.keys["partition"],
                )
        if not {"iterator", "element"} & set(node.entries):
            look.report.add(
                "loop-incomplete",
                "a loop needs `iterator`: the name of the current element.",
                node.place,
            )

    def schema(self) -> Schema:
        return super().schema() | {
            "allOf": [
                {"anyOf": [{"required": [key]} for key in ("in", "collection", "cursor")]},
                {"anyOf": [{"required": [key]} for key in ("iterator", "element")]},
                {"if": _has("spec", "policy", "backpressure"), "then": {"required": ["cursor"]}},
                {
                    "if": _has("spec", "policy", "partition"),
                    "then": {
                        "not": {"required": ["cursor"]},
                        "anyOf": [_parallel(*path) for path in _MODES],
                    },
                },
            ]
        }


_MODES: tuple[tuple[str, ...], ...] = ((), ("spec",), ("spec", "policy"))
"""Where the mode of a loop may stand."""


def _parallel(*path: str) -> Schema:
    """What holds of loops that say there that they are parallel."""
    mode = {"required": ["mode"], "properties": {"mode": {"const": "parallel"}}}
    for key in reversed(path):
        mode = {"required": [key], "properties": {key: mode}}
    return mode


def _has(key: str, *below: str) -> Schema:
    """What holds of mappings with this path of keys."""
    found: Schema = {"type": "object", "required": [key]}
    return found | ({"properties": {key: _has(*below)}} if below else {})


def refuse_both(
    node: Mapping, one: tuple[str, ...], other: tuple[str, ...], what: str, look: Inspection
) -> None:
    written = [[key for key in keys if key in node.entries] for keys in (one, other)]
    if all(written):
        first, second = sorted((written[0][0], written[1][0]), key=lambda key: node.keys[key])
        look.report.add(
            "conflicting-keys",
            f"`{first}` and `{second}` both say {what}. Keep one of them.",
            node.keys[second],
        )


LOOP = LoopShape(
    "a loop",
    {
        "in": Field(_COLLECTION, "The collection to loop over."),
        "collection": Field(_COLLECTION, same_as="in"),
        "cursor": Field(
            Record(
                "a cursor",
                {
                    "kind": Field(CursorKind(), "The database tool.", required=True),
                    "auth": Field(Anything(), "Credential."),
                    "database": Field(Text(), "Database file, for sqlite and duckdb."),
                    "claim": Field(Text(), "Statement that claims rows.", required=True),
                    "params": Field(Anything(), "Bound values."),
                },
            ),
            "Claim rows from a database until none is left.",
        ),
        "iterator": Field(Name(), "Name of the current element."),
        "element": Field(Name(), same_as="iterator"),
        "mode": Field(_LOOP_MODE, "Same as `spec.mode`."),
        "spec": Field(LOOP_SPEC, "How iterations are scheduled."),
    }
    | older_keys(policy="Results are always in the order of the collection; leave it out."),
)

# --- Routing -----------------------------------------------------------------------------------


_KEY = Field(Anything(), "A template; tokens with equal values have the same key.", required=True)
_QUALITY = {
    "priority": Field(
        Number(whole=True, templates=False),
        "Of the commands that wait in a pool, higher ones go first.",
    ),
    "dedupe": Field(
        Record("`dedupe`", {"key": _KEY}), "Absorb a token whose key this arc has carried before."
    ),
    "partition": Field(
        Record("`partition`", {"key": _KEY}),
        "Tokens with the same key run one after another, others in parallel.",
    ),
}
"""How the tokens of an arc are served."""


class _Quiet(OneOf):
    """`complete` is an older word for what happens anyway."""

    def schema(self) -> Schema:
        return {"enum": [*self.words, "complete"]}


ROUTER = Record(
    "a router",
    {
        "spec": Field(
            Record(
                "a router's `spec`",
                {
                    "mode": Field(one_of(MatchMode), "First arc, or all that hold."),
                    "on_no_match": Field(
                        _Quiet("quiet"), "No warning if no arc holds: the token may end here."
                    ),
                    "policy": Field(
                        Record("a router's policy", _QUALITY, astray=astray_policies("a router")),
                        "For all arcs that do not say otherwise.",
                    ),
                },
                astray={"do": CONTROL},
            )
        ),
        "arcs": Field(
            ListOf(
                Record(
                    "an arc",
                    {
                        "step": Field(StepName(), "The step to go to.", required=True),
                        "when": Field(When(), "The guard."),
                        "args": Field(VALUES, "What the token carries."),
                        "set": Field(VALUES, "`ctx.x` patches ctx, other keys are args."),
                        "spec": Field(
                            Record(
                                "an arc's `spec`",
                                {
                                    "delay": Field(Duration(), "Wait before the token leaves."),
                                    **_QUALITY,
                                },
                            )
                        ),
                    },
                    removed={
                        "then": "an arc names its `step` directly.",
                        "else": "leave out `when` on the last arc.",
                        "with": CONDITIONS_IN_NEXT["with"],
                        "expr": "write the guard as `when`.",
                    },
                ),
                "arcs",
            ),
            "The arcs, in order.",
            required=True,
        ),
    },
)
NEXT = Either(
    "a step name, a list of steps or a router",
    (has_key("arcs", "spec"), ROUTER),
    (lambda _: True, SOME_TARGETS),
)

A_LOOP = define("loop", LOOP)
