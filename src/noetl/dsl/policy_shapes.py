"""How the things around a call may be written: knobs, policy rules, retries, polls, sinks."""

from __future__ import annotations

from noetl.dsl import nodes
from noetl.dsl.grammar import (
    TEMPLATE_SCHEMA,
    Anything,
    Defined,
    Duration,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Record,
    Schema,
    Shape,
    SharedRate,
    Text,
    When,
    define,
    has_template,
    is_list,
    is_mapping,
    is_scalar,
    is_text,
    older_keys,
    one_of,
    plain_text,
)
from noetl.dsl.nodes import Mapping, Node
from noetl.model.labels import of_worker_problem
from noetl.model.net import Backoff, CollectMode, DirectiveKind

VALUES = define("values", MapOf(Anything()))


class _Set(Shape):
    """What a rule writes; a list of `{name, value}` is an older form."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        VALUES.check(node, what, look)

    def schema(self) -> Schema:
        named = {"type": "object", "required": ["name", "value"]}
        older = {"type": "array", "items": named, "deprecated": True}
        return {"anyOf": [VALUES.schema(), older | {"description": "Write `{vars.x: …}`."}]}


RULE_SET = define("rule_set", _Set())

TIMEOUT = Either(
    "seconds, or connect/read/total",
    (is_scalar, Duration()),
    (
        is_mapping,
        Record(
            "a timeout",
            {
                "connect": Field(Duration(), "Time to wait for the connection."),
                "read": Field(Duration(), "Time to wait for data."),
                "total": Field(Duration(), "Time for the whole call."),
            },
        ),
    ),
)


class _Sandbox(Record):
    """Further keys are hints and change nothing. That is said: one may be a misspelt `network`."""

    def unknown(self, key: str, node: nodes.Mapping, look: Inspection, hint: str = "") -> None:
        suggestion = hint or look.report.suggest(key, list(self.fields))
        look.report.add(
            "hint-ignored",
            f"`{key[:60]}` of {self.title} is accepted without effect.{suggestion}",
            node.keys[key],
        )

    def schema(self) -> Schema:
        return super().schema() | {"additionalProperties": True}


KNOBS = {
    "timeout": Field(TIMEOUT, "How long one try may take."),
    "max_jumps": Field(Number(whole=True, least=1), "Bound of backward jumps. Default 100 000."),
    "rate": Field(
        SharedRate(),
        "The maximum rate of calls, e.g. 10/s, of one worker; with `key` of all workers.",
    ),
    "retry": Field(
        Either(
            "a number of repeats or a mapping",
            (is_scalar, Number(whole=True, least=0, templates=False)),
            (
                is_mapping,
                Record(
                    "a tool's own retry",
                    {
                        "attempts": Field(
                            Number(whole=True, least=0, templates=False), "Repeats. Default 1."
                        ),
                        "delay": Field(
                            Number(least=0, templates=False), "Seconds before each. Default 0.1."
                        ),
                    },
                ),
            ),
        ),
        "The tool repeats an error worth another try so often by itself, unseen. Off by default.",
    ),
    "async": Field(Flag(), "Hint: the call does not block."),
    "cache": Field(Flag(), "Reuse the result of an equal call."),
    "resources": Field(VALUES, "What the task needs: cpu, memory, gpu."),
    "sandbox": Field(
        _Sandbox(
            "`sandbox`",
            {
                "network": Field(
                    Flag(), "Whether code and programs reach a network where workers keep them off."
                )
            },
        ),
        "What the process that runs it may do.",
    ),
}
"""Runtime knobs, understood at every level; the innermost wins."""


class PoolName(Text):
    """The name of a worker pool, written out: a worker is chosen before templates are rendered."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        if has_template(nodes.text_of(node) or ""):
            look.report.add(
                "bad-value",
                f"{what} is a template, but a worker is chosen before templates are rendered."
                " Write the name of a pool; for a choice at run time, let arcs lead to steps with"
                " different pools.",
                node.place,
            )

    def schema(self) -> Schema:
        return {"type": "string", "not": TEMPLATE_SCHEMA}


PLACED_KNOBS = KNOBS | {"pool": Field(PoolName(), "The worker pool to run on.")}
"""Those of everything that is a command of its own. The tasks of a step run on one worker."""


class WorkerLabels(MapOf):
    """What workers must say of themselves, written out: a worker is chosen before templates are
    rendered.
    """

    def __init__(self) -> None:
        super().__init__(Text(numbers=True))

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        for key, value in node.entries.items() if isinstance(node, Mapping) else ():
            written = plain_text(value)
            if written is not None and (said := of_worker_problem(key, written)):
                look.report.add("bad-value", said, value.place)

    def schema(self) -> Schema:
        name = {"pattern": "^[A-Za-z0-9_.:/-]{1,63}$"}
        values = {"anyOf": [{"type": "string", **name}, {"type": "number"}]}
        return {"type": "object", "propertyNames": name, "additionalProperties": values}


PLACEMENT = Record(
    "`placement`",
    {
        "pool": Field(PoolName(), "The worker pool to run on; the same as `spec.pool`."),
        "labels": Field(WorkerLabels(), "What its workers must say of themselves."),
        "quantum": Field(
            Record(
                "`quantum` of a placement",
                {
                    "provider": Field(Text(), "Provider of quantum tasks that name none."),
                    "backend": Field(Text(), "Backend of quantum tasks that name none."),
                    "shots_max": Field(
                        Number(whole=True, least=1, templates=False), "Most shots of one job."
                    ),
                },
            ),
            "Where quantum tasks run.",
        ),
    },
)

QUOTAS = Record(
    "`quotas`",
    {
        "max_calls": Field(Number(whole=True, least=1, templates=False), "Calls of tools."),
        "max_bytes": Field(Number(whole=True, least=1, templates=False), "Bytes of results."),
        "max_seconds": Field(Number(least=0, templates=False), "Seconds of calls, added up."),
    },
)

TRACING = Record(
    "`tracing`",
    {
        "sample": Field(
            Number(least=0, most=1, templates=False),
            "Which part of the executions is traced: 0 none, 1 all.",
        ),
        "attributes": Field(VALUES, "What its spans say beside what all spans say."),
    },
)

CONTROL = ("control-out-of-place", "control actions belong in `spec.policy.rules` of a task.")
POLICY_KEYS = {
    "admit": "a step",
    "lifecycle": "a step",
    "failure": "a step",
    "emit": "a step",
    "exec": "a loop",
    "reduce": "a loop",
    "defaults": "the executor",
    "results": "the executor",
    "limits": "the executor",
}


def astray_policies(scope: str, *older: str) -> dict[str, tuple[str, str]]:
    """Policy keys that are at home elsewhere, for the records of `scope`, but for older forms."""
    found = {
        key: ("policy-out-of-place", f"it is a policy of {home}.")
        for key, home in POLICY_KEYS.items()
        if home != scope and key not in older
    }
    if scope != "a task":
        found |= dict.fromkeys(("do", "rules", "before", "after", "finally"), CONTROL)
    return found


BACKOFF = one_of(Backoff)

DIRECTIVE = Record(
    "a rule's `then`",
    {
        "do": Field(one_of(DirectiveKind), "What happens next."),
        "attempts": Field(Number(whole=True, least=1), "retry: tries in total."),
        "backoff": Field(BACKOFF, "retry: how the wait grows."),
        "delay": Field(Duration(), "retry: the first wait."),
        "max_delay": Field(Duration(), "retry: the longest wait."),
        "multiplier": Field(Number(least=1), "retry: growth of an exponential wait. Default 2."),
        "jitter": Field(Flag(), "retry: spread the waits."),
        "to": Field(Text(), "jump: the task to go to."),
        "error": Field(Anything(), "fail: what to report."),
        "set_iter": Field(VALUES, "Write into the iteration's scratchpad."),
        "set_ctx": Field(VALUES, "Write into the execution's state."),
        "set": Field(RULE_SET, "Write `ctx.x`, `iter.y`, `vars.z` by their full names."),
    },
)


class RuleShape(Shape):
    """`{when, then}`, or the closing `{else}`; the same form in every rule list."""

    def __init__(self, title: str, then: Shape, extra: dict[str, Field] | None = None) -> None:
        self._then = then
        fields = {
            "when": Field(When(), "The condition."),
            "then": Field(then, "What to do when it holds."),
            **(extra or {}),
        }
        self._record = Record(
            title,
            {**fields, "else": Field(Anything(), "Closes the list: when no rule held.")},
            removed={"expr": "write the condition as `when`.", "eval": "write `when` and `then`."},
        )
        self._else = Record(f"the `else` of {title}", {"then": Field(then), **(extra or {})})

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, Mapping):
            look.wrong_type(node, what, "a rule: {when, then} or {else}")
            return
        self._record.check(node, what, look)
        if "else" in node.entries:
            if "when" in node.entries or "then" in node.entries:
                look.report.add(
                    "bad-rule",
                    "a rule has either `when` and `then`, or `else`; this one has both."
                    " Make it two rules.",
                    node.keys["else"],
                )
            self._check_else(node.entries["else"], look)
            return
        if "then" not in node.entries:
            look.report.add("bad-rule", "this rule has no `then`: say what to do.", node.place)
        if "when" not in node.entries and "expr" not in node.entries:
            look.report.add(
                "bad-rule",
                "this rule has neither `when` nor `else`: say when it holds.",
                node.place,
            )

    def _check_else(self, node: Node, look: Inspection) -> None:
        if isinstance(node, Mapping) and "then" in node.entries:
            self._else.check(node, "an `else`", look)
        else:
            self._then.check(node, "an `else`", look)

    def schema(self) -> Schema:
        record = self._record.schema()
        then = self._then.schema()
        record["properties"]["else"] = {"anyOf": [self._else.schema(), then]}
        # `{else: null, then: …}` is an older form.
        record["properties"]["else"]["anyOf"].append({"type": "null", "deprecated": True})
        older = {"required": ["else", "then"], "properties": {"else": {"type": "null"}}}
        today = {"required": ["else"], "properties": {"else": {"not": {"type": "null"}}}}
        return record | {"oneOf": [{"required": ["when", "then"]}, today, older]}


class RuleList(Shape):
    """Rules in order, at most one `else`, at the end."""

    def __init__(self, rule: Shape) -> None:
        self._rule = rule

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, nodes.Sequence):
            look.wrong_type(node, what, "a list of rules")
            return
        if not node.items:
            look.report.add("empty-rules", f"{what} has no rules.", node.place)
        last = len(node.items) - 1
        for index, item in enumerate(node.items):
            self._rule.check(item, "a rule", look)
            if isinstance(item, Mapping) and "else" in item.entries and index != last:
                look.report.add(
                    "misplaced-else",
                    "an `else` closes the list of rules; those after it would never be tried."
                    " Move it to the end and keep only one.",
                    item.keys["else"],
                )

    def schema(self) -> Schema:
        return {"type": "array", "items": self._rule.schema(), "minItems": 1}


TASKS = Defined("tasks")
"""One or more tasks; defined by task_shapes."""
HOOK = Field(
    Either(
        "a task or a list of tasks",
        (lambda node: isinstance(node, nodes.Sequence) and not node.items, Anything()),
        (lambda _: True, TASKS),
    ),
    "Tasks that run around this one.",
)


class TaskPolicy(Record):
    """A task's policy must have rules; saying so is kinder than "missing key"."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if isinstance(node, nodes.Sequence):
            look.wrong_type(node, what, "a mapping", " Put the list under `rules:`.")
            return
        super().check(node, what, look)
        if isinstance(node, Mapping) and not {"rules", "before", "after", "finally"} & set(
            node.entries
        ):
            look.report.add("empty-rules", "a task policy needs `rules`.", node.place)


TASK_POLICY = TaskPolicy(
    "a task's policy",
    {
        "rules": Field(RuleList(RuleShape("a policy rule", DIRECTIVE)), "First match decides."),
        "mode": Field(OneOf("exclusive"), "Rules exclude each other."),
        "on_unmatched": Field(OneOf("continue", "fail"), "When no rule holds."),
        "before": HOOK,
        "after": HOOK,
        "finally": HOOK,
    },
    astray=astray_policies("a task"),
)
TASK_SPEC = Record(
    "a task's `spec`",
    {"policy": Field(TASK_POLICY, "What an outcome leads to.")} | KNOBS,
    astray={
        "pool": (
            "policy-out-of-place",
            "the tasks of a step run on one worker. Write it into the step's `spec`.",
        )
    },
)


class _Seconds(Anything):
    """`backoff: 5` is an older form of `delay: 5`."""

    def schema(self) -> Schema:
        return {"type": "number", "deprecated": True, "description": "Older form: write `delay`."}


def _is_number(node: Node) -> bool:
    return is_scalar(node) and not is_text(node)


RETRY_MAPPING_FIELDS = {
    "max_attempts": Field(Number(whole=True, least=1), "Tries in total."),
    "attempts": Field(Number(whole=True, least=1), same_as="max_attempts"),
    "initial_delay": Field(Duration(), "The first wait."),
    "delay": Field(Duration(), same_as="initial_delay"),
    "delay_seconds": Field(Duration(), same_as="initial_delay"),
    "max_delay": Field(Duration(), "The longest wait."),
    "max_delay_seconds": Field(Duration(), same_as="max_delay"),
    "backoff_multiplier": Field(Number(least=1), "How the wait grows."),
    "jitter": Field(Flag(), "Spread the waits."),
    "backoff": Field(
        Either(
            "a word or a mapping",
            (is_text, BACKOFF),
            (_is_number, _Seconds()),
            (
                is_mapping,
                Record(
                    "a backoff",
                    {
                        "type": Field(BACKOFF, "How the wait grows."),
                        "delay_seconds": Field(Duration(), "The first wait."),
                        "delay": Field(Duration(), same_as="delay_seconds"),
                        "max_delay_seconds": Field(Duration(), "The longest wait."),
                        "max_delay": Field(Duration(), same_as="max_delay_seconds"),
                        "multiplier": Field(Number(least=1), "Growth of an exponential wait."),
                        "jitter": Field(Flag(), "Spread the waits."),
                    },
                ),
            ),
        ),
        "How the wait grows.",
    ),
} | older_keys(backoff_seconds="Write `delay`.")

COLLECT = Record(
    "a `collect`",
    {
        "from": Field(Text(), "Path of what to add, e.g. response.data."),
        "path": Field(Text(), same_as="from"),
        "into": Field(Text(), "Name of the accumulator.", required=True),
        "mode": Field(one_of(CollectMode), "How to add. Default append."),
        "strategy": Field(one_of(CollectMode), same_as="mode"),
    },
)


class _SinkTool(Defined):
    """The task of a sink; `event_log` is an older name of a noop there."""

    def schema(self) -> Schema:
        log = {"type": "object", "properties": {"kind": {"const": "event_log"}}, "deprecated": True}
        return {"anyOf": [super().schema(), log | {"required": ["kind"]}]}


SINK = Record(
    "a sink",
    {
        "tool": Field(_SinkTool("task"), "The tool that stores.", required=True),
        "args": Field(VALUES, "What to store."),
        "retry": Field(Defined("retry")),
    },
)

RETRY_MAPPING = Record(
    "a retry",
    {
        "scope": Field(OneOf("tool", "chain", "step"), "What is done again."),
        "on": Field(
            Either("a word or a list", (is_text, Text()), (is_list, ListOf(Text(), "words"))),
            "Error kinds to retry; `error` means all.",
        ),
        "when": Field(When(), "Which outcomes to retry. Default: every error."),
    }
    | older_keys(
        retry_on="Write `on`.",
        retry_on_status="Write `when` with a condition on `error.status`.",
        **dict.fromkeys(
            ("args", "input", "with", "params"), "It asks for another page: write `call`."
        ),
    )
    | RETRY_MAPPING_FIELDS,
)
RETRY_POLICY = Record(
    "a retry policy",
    {
        "when": Field(When(), "Which outcome repeats the call.", required=True),
        "then": Field(
            Record(
                "a retry policy's `then`",
                {
                    "next_call": Field(VALUES, "Config to change for the next call."),
                    "collect": Field(COLLECT, "What to keep of each answer."),
                    "sink": Field(Defined("sink"), "Where to store each answer."),
                }
                | RETRY_MAPPING_FIELDS,
            ),
            "How to repeat it.",
            required=True,
        ),
    },
)
RETRY: Shape = Either(
    "a mapping, or a list of {when, then}",
    (is_mapping, Defined("retry_mapping")),
    (is_list, ListOf(RETRY_POLICY, "retry policies", filled=True)),
)
POLL = Record(
    "a poll",
    {
        "until": Field(When(), "The condition to wait for.", required=True),
        "interval": Field(Duration(), "Time between calls. Default 5 seconds."),
        "max_attempts": Field(Number(whole=True, least=1), "Give up after this many calls."),
        "deadline": Field(Duration(), "Give up after this time."),
    },
)

define("retry", RETRY)
define("retry_mapping", RETRY_MAPPING)
define("sink", SINK)
define("task_spec", TASK_SPEC)
