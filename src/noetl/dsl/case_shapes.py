"""How event rules may be written: `case` with all its actions."""

from __future__ import annotations

from noetl.dsl import nodes
from noetl.dsl.grammar import (
    Anything,
    Defined,
    Duration,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    Number,
    Record,
    Schema,
    Shape,
    StepName,
    Text,
    define,
    has_key,
    is_list,
    is_mapping,
    is_scalar,
    is_text,
    one_of,
)
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.policy_shapes import (
    COLLECT,
    POLL,
    RULE_SET,
    VALUES,
    RuleList,
    RuleShape,
)
from noetl.model.net import NextPolicy

_CONDITIONAL_NEXT = (
    "`next` is unconditional here. Write `next: {arcs: [{step, when}]}`, or a `case` rule."
)
CONDITIONS_IN_NEXT = dict.fromkeys(("when", "then", "else"), _CONDITIONAL_NEXT) | {
    "with": "values for the next step are its `args`."
}

TARGET = Record(
    "a target",
    {
        "step": Field(StepName(), "The step to go to.", required=True),
        "args": Field(VALUES, "What the token carries."),
    },
    removed=CONDITIONS_IN_NEXT,
)
TARGETS = Either(
    "a step name or a list of steps",
    (is_text, StepName()),
    (
        is_list,
        ListOf(Either("a step", (is_text, StepName()), (is_mapping, TARGET)), "steps", filled=True),
    ),
    (has_key("step", "when", "then", "else", "with"), TARGET),
)
NEXT_POLICY = one_of(NextPolicy)
NEXT_ACTION = Either(
    "a step name, a list of steps or {to: …}",
    (
        has_key("to", "policy", "priority", "spec"),
        Record(
            "a `next` action",
            {
                "to": Field(Defined("targets"), "Where to go.", required=True),
                "policy": Field(NEXT_POLICY, "What happens to the other branches."),
                "priority": Field(Number(whole=True, templates=False), "Highest wins under defer."),
                "spec": Field(
                    Record("a `next` action's `spec`", {"delay": Field(Duration(), "Wait first.")})
                ),
            },
        ),
    ),
    (lambda _: True, Defined("targets")),
)

_RETRY = Defined("retry_mapping")
_NAMED_TASK = Defined("named_task")
NAMED_TASK: Record = Record(
    "a named task",
    {
        "tool": Field(Defined("task"), "What to run.", required=True),
        "args": Field(VALUES, "The task's inputs."),
        "input": Field(VALUES, same_as="args"),
        "retry": Field(Defined("retry"), "Repeat the call."),
        "poll": Field(POLL, "Call until a condition holds."),
        "spec": Field(Defined("task_spec"), "Runtime knobs and policy."),
        "set": Field(VALUES, "Write values after success."),
    },
)
ACTIONS: dict[str, Field] = {
    "call": Field(VALUES, "Invoke the tool again with some config changed."),
    "retry": Field(_RETRY, "The same call again, after a wait."),
    "collect": Field(COLLECT, "Keep a part of the answer."),
    "sink": Field(Defined("sink"), "Store something."),
    "set": Field(RULE_SET, "Write values."),
    "result": Field(
        Record(
            "a `result`",
            {
                "from": Field(Text(), "Name or path of the value."),
                "value": Field(Anything(), "The value itself."),
            },
        ),
        "What the step yields.",
    ),
    "next": Field(NEXT_ACTION, "Where to go."),
    "fail": Field(
        Either("a text, true or a mapping", (is_scalar, Anything()), (is_mapping, VALUES)),
        "End the step as failed.",
    ),
    "skip": Field(
        Either(
            "true or a reason",
            (is_text, Text()),
            (is_scalar, Flag()),
            (is_mapping, Record("a `skip`", {"reason": Field(Text())})),
        ),
        "End the step as skipped.",
    ),
}


class ActionsShape(Shape):
    """A mapping of actions and named tasks. Order is the order written."""

    _record = Record("a rule's `then`", ACTIONS)

    def check(self, node: Node, what: str, look: Inspection) -> None:
        if not isinstance(node, Mapping):
            look.wrong_type(node, what, "a mapping of actions")
            return
        for key, value in node.entries.items():
            if key in ACTIONS:
                ACTIONS[key].shape.check(value, f"`{key}`", look)
            elif is_mapping(value) and not nodes.is_null(value) and _looks_like_task(value):
                NAMED_TASK.check(value, f"`{key}`", look)
            else:
                hint = look.report.suggest(key, ACTIONS)
                if not hint and not is_scalar(value):
                    hint = _ACTION_OR_TASK.format(key=key[:60])
                self._record.unknown(key, node, look, hint)

    def schema(self) -> Schema:
        found = self._record.schema()
        return found | {
            "additionalProperties": _NAMED_TASK.schema(),
            "minProperties": 1,
        }


_ACTION_OR_TASK = (
    " Actions are " + ", ".join(ACTIONS) + "; a named task is `{key}: {{tool: {{kind: …}}}}`."
)


def _looks_like_task(node: Node) -> bool:
    return has_key("tool", "retry", "poll")(node)


_ACTIONS = Defined("actions")


class _Then(Either):
    """A list of steps is an older form of `next`."""

    def schema(self) -> Schema:
        found = super().schema()
        older = {"type": "array", "items": TARGET.schema(), "deprecated": True}
        return {"anyOf": [*found["anyOf"], older | {"description": "Write `{next: …}`."}]}


THEN = _Then(
    "a mapping or a list of actions",
    (is_list, ListOf(_ACTIONS, "actions", filled=True)),
    (lambda _: True, _ACTIONS),
)
CASE = RuleList(
    RuleShape(
        "a case rule",
        Defined("then"),
        {
            "priority": Field(Number(whole=True, templates=False), "Order under priority."),
            "retry": Field(
                _RETRY,
                "Restart the chain when a task of it fails.",
            ),
            "spec": Field(
                Record("a case rule's `spec`", {"cache": Field(Flag(), "Reuse results.")})
            ),
        },
    )
)
define("actions", ActionsShape())
define("named_task", NAMED_TASK)
SOME_TARGETS = define("targets", TARGETS)
define("then", THEN)
