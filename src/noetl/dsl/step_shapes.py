"""How steps may be written."""

from __future__ import annotations

import re

from noetl.dsl import nodes
from noetl.dsl.case_shapes import (
    CASE,
    NEXT_POLICY,
)
from noetl.dsl.flow_shapes import A_LOOP, NEXT, refuse_both
from noetl.dsl.grammar import (
    Anything,
    Defined,
    Duration,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    Name,
    Number,
    OneOf,
    Record,
    Schema,
    Shape,
    Text,
    When,
    define,
    has_key,
    has_template,
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
    PLACEMENT,
    QUOTAS,
    TASKS,
    TRACING,
    VALUES,
    RuleList,
    RuleShape,
    astray_policies,
)
from noetl.dsl.schemas import RESULT
from noetl.dsl.task_shapes import TASK_FIELDS
from noetl.model.fields import TYPES
from noetl.model.net import FailureMode, MatchMode, OnStepError, RuleOrder

# --- Steps -------------------------------------------------------------------------------------

_ALLOW = Record(
    "an admission rule's `then`",
    {
        "allow": Field(Flag(), "Whether the token may enter.", required=True),
        "set": Field(VALUES, "If it may: what is added to its args."),
    },
    astray={"do": CONTROL},
)
STEP_POLICY = Record(
    "a step's policy",
    {
        "admit": Field(
            Record(
                "an admission policy",
                {
                    "mode": Field(
                        one_of(MatchMode),
                        "The first rule that holds decides, or all that hold: one may deny.",
                    ),
                    "rules": Field(
                        RuleList(RuleShape("an admission rule", _ALLOW)),
                        "First match decides, or by `mode` all that match.",
                        required=True,
                    ),
                },
            ),
            "Whether a token may enter.",
        ),
        "lifecycle": Field(
            Record(
                "a lifecycle",
                {
                    "timeout_s": Field(Duration(), "Longest time of one run."),
                    "deadline_s": Field(Duration(), "Latest end since the execution started."),
                },
            )
        ),
        "failure": Field(
            Record(
                "a failure policy",
                {"mode": Field(one_of(FailureMode), "What happens to the others.")},
            )
        ),
        "emit": Field(
            Record("an emit policy", {"events": Field(ListOf(Text(), "event names"))}),
            "Extra event names recorded at the end.",
        ),
        "quotas": Field(QUOTAS, "What its calls may use in one run."),
        "placement": Field(PLACEMENT, "Which workers it needs."),
        "tracing": Field(TRACING, "Whether its runs are traced, and what their spans say."),
    },
    astray=astray_policies("a step"),
)
FIELD = {
    "type": Field(OneOf(*TYPES), "Default text."),
    "label": Field(Text(), "What people see."),
    "help": Field(Text(), "What they should know."),
    "desc": Field(Text(), same_as="help"),
    "required": Field(Flag(), "Default true."),
    "default": Field(Anything(), "Its value when none is given."),
    "options": Field(Anything(), "choice: the list to choose from."),
    "min": Field(Anything(), "The least number or date; of texts and lists, the least length."),
    "max": Field(Anything(), "The greatest number or date; the greatest length."),
    "pattern": Field(Text(), "A regular expression (RE2) that a whole text must match."),
}
"""What a question of a form and an input of a playbook may say."""
_FORM_FIELD = Record(
    "a form field",
    {
        "name": Field(Name(), "Key of the answer.", required=True),
        **FIELD,
    },
)


class Moment(Text):
    """A moment as RFC 3339 text, or a template that yields one."""

    PATTERN = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        text = nodes.text_of(node)
        if text is not None and not has_template(text) and not self.PATTERN.fullmatch(text):
            look.report.add(
                "bad-value",
                f'{what} is "{text[:40]}"; write a moment such as 2030-01-31T12:00:00Z.',
                node.place,
            )


class TimerShape(Record):
    """A timer fires once: after a while, or at a moment."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        if not isinstance(node, Mapping):
            return
        refuse_both(node, ("after",), ("at",), "when a timer fires", look)
        if not {"after", "at"} & set(node.entries):
            look.report.add("missing-key", "a timer needs `after` or `at`.", node.place)


_JOIN_COUNT = Record(
    "a join", {"n": Field(Number(whole=True, least=1, templates=False), required=True)}
)
STEP_SPEC = Record(
    "a step's `spec`",
    {
        "policy": Field(STEP_POLICY, "Admission, lifecycle, failure."),
        "join": Field(
            Either(
                "auto, each, all, any or {n: k}",
                (is_text, OneOf("auto", "each", "all", "any")),
                (is_mapping, _JOIN_COUNT),
            ),
            "When waiting tokens become a run.",
        ),
        "on_error": Field(one_of(OnStepError), "What a failed step means."),
        "compensate": Field(Text(), "Task or step that undoes this one."),
        "case_mode": Field(one_of(MatchMode), "First rule, or all that hold."),
        "eval_mode": Field(OneOf("on_entry", "on_event"), "on_event: wait for external events."),
        "branch_order": Field(one_of(RuleOrder), "Order of rules."),
        "next_policy": Field(NEXT_POLICY, "What a reached `next` does."),
        "timers": Field(
            ListOf(
                TimerShape(
                    "a timer",
                    {
                        "id": Field(Text(), "Name in `event.data.timer_id`.", required=True),
                        "after": Field(Duration(), "Time since the step started."),
                        "at": Field(Moment(), "A moment, RFC 3339."),
                    },
                ),
                "timers",
            )
        ),
        "form": Field(
            Either(
                "a list of fields or {fields: […], role}",
                (is_list, ListOf(_FORM_FIELD, "fields", filled=True)),
                (
                    is_mapping,
                    Record(
                        "a form",
                        {
                            "fields": Field(
                                ListOf(_FORM_FIELD, "fields", filled=True), required=True
                            ),
                            "role": Field(
                                Name(hyphens=True), "The role that may answer; admins always may."
                            ),
                        },
                    ),
                ),
            ),
            "What a person is asked.",
        ),
        "match": Field(When(), "Which external events concern this step."),
    }
    | PLACED_KNOBS,
)


class _StepOutput(Shape):
    """What a step yields; what is kept of it is an older form of `output` of its last task."""

    def check(self, node: Node, what: str, look: Inspection) -> None:
        RESULT.check(node, what, look)

    def schema(self) -> Schema:
        older = {"type": "object", "deprecated": True}
        return {"anyOf": [RESULT.schema(), older | {"description": "Write it on the last task."}]}


class StepShape(Record):
    """A step; tool config written beside `step` is sent to its place."""

    def unknown(self, key: str, node: Mapping, look: Inspection, hint: str = "") -> None:
        in_tools = key in TASK_FIELDS or any(
            key in tool.config.__struct_fields__ or key in tool.aliases
            for tool in look.tools.values()
        )
        if key in STEP_SPEC.fields and not hint:
            hint = f" It belongs in `spec`: `spec: {{{key}: …}}`."
        elif key == "kind" and not hint:
            hint = " It belongs under `tool`: indent it, and what follows, two spaces more."
        elif in_tools and not hint:
            hint = f" Tool config belongs under `tool`: `tool: {{kind: …, {key}: …}}`."
        super().unknown(key, node, look, hint)

    def check(self, node: Node, what: str, look: Inspection) -> None:
        super().check(node, what, look)
        spec = node.get("spec") if isinstance(node, Mapping) else None
        mode = spec.get("eval_mode") if isinstance(spec, Mapping) else None
        if nodes.text_of(mode) == "on_event" and has_key("case")(node) is False:
            look.report.add(
                "missing-key",
                "a step that waits (`eval_mode: on_event`) needs `case` rules to end its wait.",
                node.place,
            )
        keys = set(node.entries) if isinstance(node, Mapping) else {"tool"}
        name = nodes.text_of(node.get("step")) if isinstance(node, Mapping) else None
        if "step" in keys and not {"tool", "next", "case"} & keys and name != "end":
            look.report.add(
                "empty-step",
                "a step needs at least one of `tool`, `next`, `case`; this one does nothing."
                " A place to end is `tool: {kind: noop}`.",
                node.place,
            )

    def schema(self) -> Schema:
        return super().schema() | {
            "anyOf": [
                *({"required": [key]} for key in ("tool", "next", "case")),
                {"properties": {"step": {"const": "end"}}},
            ]
        }


STEP = StepShape(
    "a step",
    {
        "step": Field(Name(hyphens=True), "The step's name.", required=True),
        "desc": Field(Text(), "What it is for."),
        "description": Field(Text(), same_as="desc"),
        "spec": Field(STEP_SPEC, "Behaviour: policies, joins, timeouts."),
        "args": Field(VALUES, "Inputs; a token's args are merged over them."),
        "input": Field(VALUES, same_as="args"),
        "loop": Field(A_LOOP, "Run the tasks once per element."),
        "tool": Field(TASKS, "The task or tasks to run."),
        "retry": Field(Defined("retry"), "Default retry of its tasks."),
        "sink": Field(Defined("sink"), "Store the result."),
        "vars": Field(VALUES, "Values to keep of the result, readable as `vars.*`."),
        "set": Field(VALUES, "Write `ctx.x` after success."),
        "case": Field(CASE, "Rules for the step's events."),
        "next": Field(NEXT, "Where to go."),
        "output": Field(_StepOutput(), "What it yields; in a loop, each iteration."),
    }
    | older_keys(
        set_ctx="Write `set: {ctx.x: …}`.",
        result="Write `output` on the step's last task.",
    ),
    removed={
        "when": "use `spec.policy.admit.rules`, or a guard on the arc that leads here.",
        "type": "write `tool: {kind: …}`.",
        "pipe": "`tool` is the pipeline: list the tasks there.",
        "eval": "write `spec.policy.rules` on the task.",
        "expr": "write conditions as `when`.",
        "with": "write `args`; `with` belongs to a task.",
        "run": "list the tasks under `tool`.",
    },
)

A_STEP = define("step", STEP)
