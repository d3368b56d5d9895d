"""Event rules: `case` with its conditions and chains of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import (
    PRIORITY,
    Also,
    Anything,
    AsWritten,
    Defined,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    Made,
    OrOlder,
    Placed,
    Record,
    Schema,
    Shape,
    Text,
    define,
    field,
    has_key,
    has_template,
    is_list,
    is_mapping,
    is_scalar,
    is_text,
    refuse_both,
    warn_unused,
)
from noetl.dsl.layers import VALUES, knobs, merge
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.policies import (
    RULE_SET,
    RuleList,
    RuleShape,
    WrittenCollect,
    WrittenPoll,
    WrittenRetries,
    WrittenRule,
    WrittenTaskSpec,
    check_scope,
    collect,
    retry,
    retry_rules,
)
from noetl.dsl.routing import NEXT_ACTION, WrittenNextAction, WrittenTarget, WrittenTargets, route
from noetl.dsl.tasks import Frame, WrittenTask, nothing, sink_task, task
from noetl.model.net import (
    CALL_ENDS,
    STEP_ENDS,
    AnyAction,
    Call,
    CaseSettings,
    EventRule,
    Fail,
    Patch,
    Result,
    Run,
    Skip,
    Task,
)
from noetl.model.problems import Place
from noetl.model.signals import APPROVAL

if TYPE_CHECKING:
    from noetl.dsl.steps import WrittenStepSpec

# --- How they are written ------------------------------------------------------------------------


class WrittenNamedTask(Placed, title="a named task"):
    """`name: {tool: {kind: …}, …}`: both levels together are one task."""

    tool: WrittenTask = field(Defined("task"), "What to run.", required=True)
    args: Node | None = field(VALUES, "The task's inputs.")
    input = Also(args)
    retry: WrittenRetries = field(Defined("retry"), "Repeat the call.")
    poll: WrittenPoll = field(WrittenPoll, "Call until a condition holds.")
    spec: WrittenTaskSpec = field(Defined("task_spec"), "Runtime knobs and policy.")
    set: Node | None = field(VALUES, "Write values after success.")


class _Result(Placed, title="a `result`"):
    from_: str | None = field(Text(), "Name or path of the value.")
    value: Node | None = field(Anything(), "The value itself.")

    def check(self, look: Inspection) -> None:
        refuse_both(self.node, ("from",), ("value",), "what the step yields", look)


class _Skip(Placed, title="a `skip`"):
    reason: Node | None = field(AsWritten(Text()), "Why the step is skipped.")


ACTIONS: dict[str, Field] = {
    "call": Field(VALUES, "Invoke the tool again with some config changed."),
    "retry": Field(Defined("retry_mapping"), "The same call again, after a wait."),
    "collect": Field(WrittenCollect.shape, "Keep a part of the answer."),
    "sink": Field(Defined("sink"), "Store something."),
    "set": Field(RULE_SET, "Write values."),
    "result": Field(_Result.shape, "What the step yields."),
    "next": Field(NEXT_ACTION, "Where to go."),
    "fail": Field(
        Either("a text, true or a mapping", (is_scalar, Anything()), (is_mapping, VALUES)),
        "End the step as failed.",
    ),
    "skip": Field(
        Either(
            "true or a reason",
            (is_text, AsWritten(Text())),
            (is_scalar, Flag()),
            (is_mapping, _Skip.shape),
        ),
        "End the step as skipped.",
    ),
}


class WrittenAction(msgspec.Struct, frozen=True):
    """One action of a chain, or a task that it names."""

    name: str
    name_place: Place
    place: Place
    content: Any
    """Read by the shape of that action."""


class WrittenChain(msgspec.Struct, frozen=True):
    """The actions of a rule, in the order written."""

    actions: tuple[WrittenAction, ...]
    is_list: bool = False


class ActionsShape(Shape):
    """A mapping of actions and named tasks. Order is the order written."""

    _record = Record("a rule's `then`", ACTIONS)

    def read(self, node: Node, what: str, look: Inspection) -> WrittenChain | None:
        if not isinstance(node, Mapping):
            look.wrong_type(node, what, "a mapping of actions")
            return None
        found = []
        for name, value in node.entries.items():
            if (
                name in ("fail", "skip")
                and isinstance(value, nodes.Scalar)
                and value.value is False
            ):
                look.report.add(
                    "bad-value",
                    f"`{name}: false` says nothing: an action that is listed is done. Delete it.",
                    value.place,
                )
                continue
            if name in ACTIONS:
                content = ACTIONS[name].shape.read(value, f"`{name}`", look)
            elif has_key("tool", "retry", "poll")(value):
                content = WrittenNamedTask.shape.read(value, f"`{name}`", look)
            else:
                hint = look.report.suggest(name, ACTIONS)
                if not hint and not is_scalar(value):
                    hint = _ACTION_OR_TASK.format(key=name[:60])
                self._record.unknown(name, node, look, hint)
                continue
            if content is not None:
                found.append(WrittenAction(name, node.keys[name], value.place, content))
        return WrittenChain(tuple(found))

    def schema(self) -> Schema:
        return self._record.schema() | {
            "additionalProperties": Defined("named_task").schema(),
            "minProperties": 1,
        }


_ACTION_OR_TASK = (
    " Actions are " + ", ".join(ACTIONS) + "; a named task is `{key}: {{tool: {{kind: …}}}}`."
)
_ACTIONS = define("actions", ActionsShape())
define("named_task", WrittenNamedTask.shape)


def _one_chain(parts: tuple[WrittenChain, ...]) -> WrittenChain:
    return WrittenChain(tuple(one for part in parts for one in part.actions), is_list=True)


_THEN = define(
    "then",
    OrOlder(
        Either(
            "a mapping or a list of actions",
            (is_list, Made(ListOf(_ACTIONS, "actions", filled=True), _one_chain)),
            (lambda _: True, _ACTIONS),
        ),
        {"type": "array", "items": WrittenTarget.shape.schema()},
        "Write `{next: …}`.",
    ),
)


def next_actions(rules: tuple[WrittenRule, ...]) -> list[WrittenNextAction | WrittenTargets]:
    """Every `next` of these rules."""
    return [
        action.content
        for rule in rules
        if isinstance(rule.then, WrittenChain)
        for action in rule.then.actions
        if action.name == "next"
    ]


class _RuleSpec(Placed, title="a case rule's `spec`"):
    cache: bool | None = field(Flag(), "Reuse results.")

    def check(self, look: Inspection) -> None:
        why = "on a rule: write it into the `spec` of the task whose result is to be reused."
        warn_unused(self.node, ("cache",), why, look)


CASE = RuleList(
    RuleShape(
        "a case rule",
        _THEN,
        {
            "priority": Field(PRIORITY, "Order under priority."),
            "retry": Field(Defined("retry_mapping"), "Restart the chain when a task of it fails."),
            "spec": Field(_RuleSpec.shape),
        },
    )
)

# --- What they become ----------------------------------------------------------------------------


def case_settings(spec: WrittenStepSpec, rules: tuple[WrittenRule, ...]) -> CaseSettings:
    return CaseSettings(
        mode=spec.case_mode or "exclusive",
        order=spec.branch_order or "source",
        next_policy=spec.next_policy or "end_step",
        wait=spec.waits,
        independent=bool(rules) and all(rule.then and not rule.then.is_list for rule in rules),
    )


def event_rules(
    building: Building, case: tuple[WrittenRule, ...], frame: Frame
) -> tuple[EventRule, ...]:
    return tuple(
        _rule(building, written, f"case_{index}", frame) for index, written in enumerate(case)
    )


ANSWER_DATA = "{{ event.data }}"


def answer_rule(building: Building, place: Place) -> EventRule:
    """The rule of a form without `case`: the step yields the answer."""
    when = f"{{{{ event.name == '{APPROVAL}' }}}}"
    building.note(when, place, Where.CASE)
    building.note(ANSWER_DATA, place, Where.CASE)
    rule = EventRule(
        label="case_0", when=when, actions=(Result(value=ANSWER_DATA),), events=(APPROVAL,)
    )
    building.mark(rule, place)
    building.mark(rule.actions[0], place)
    return rule


def _rule(building: Building, written: WrittenRule, label: str, frame: Frame) -> EventRule:
    said = nodes.text_of(written.when) if written.when is not None else None
    events = building.expressions.event_names(said) if said is not None else None
    in_calls = belongs_to_calls(events, looped=bool(building.home.iterators))
    where = Where.CASE if in_calls else Where.CASE_SERVER
    frame = msgspec.structs.replace(frame, where=where)
    when = building.condition(written.when, where)
    chain = written.retry
    restarts = chain is not None and chain.scope == "chain"
    check_scope(building, chain, ("tool", "chain"))
    if chain is not None and not restarts:
        # Not scoped to the chain: a default for the tasks in it.
        inherited = retry_rules(building, chain)
        frame = msgspec.structs.replace(frame, retries=inherited)
    rule = EventRule(
        label=label,
        when=when,
        actions=_actions(building, written.then, label, frame),
        events=events,
        priority=written.priority,
        retry=retry(building, chain, Where.RETRY) if chain and restarts else None,
    )
    building.mark(rule, written.place)
    return rule


def belongs_to_calls(events: tuple[str, ...] | None, *, looped: bool) -> bool:
    """Whether a rule for these events is followed where the tasks run: one for calls, and in a loop
    one for the end of an iteration. Others are followed on the server, which knows no iteration.
    """
    of_tasks = CALL_ENDS | STEP_ENDS if looped else CALL_ENDS
    return not events or not of_tasks.isdisjoint(events)


def _actions(
    building: Building, chain: WrittenChain | None, label: str, frame: Frame
) -> tuple[AnyAction, ...]:
    found: list[AnyAction] = []
    for written in chain.actions if chain is not None else ():
        action = _action(building, written, label, frame)
        building.mark(action, written.place)
        found.append(action)
    return tuple(found)


def _action(building: Building, written: WrittenAction, label: str, frame: Frame) -> AnyAction:
    content = written.content
    match written.name:
        case "call":
            overrides = building.values(content, Where.CASE_TASK)
            return Call(max_calls=overrides.pop("max_calls", None), overrides=overrides)
        case "retry":
            check_scope(building, content, ("tool",))
            return retry(building, content, frame.where)
        case "collect":
            return collect(building, content)
        case "sink":
            return Run(task=sink_task(building, content, f"{label}_sink", frame.spec), sink=True)
        case "set":
            return _written(building, content, frame)
        case "result":
            return Result(value=_result(building, content, frame))
        case "next":
            return route(building, content)
        case "skip":
            return Skip(reason=_reason(building, content, frame))
        case "fail":
            return Fail(error=_error(building, content, frame))
    return Run(task=_named_task(building, written, frame))


def _written(building: Building, node: Node, frame: Frame) -> Patch:
    patch = building.patch(node, frame.where) or Patch()
    if patch.iter and frame.where is Where.CASE_SERVER:
        [name, *_] = patch.iter
        building.report.add(
            "bad-value",
            f"no task runs at this event, so there is no `iter` to write to. Write `{name}` without"
            " `iter.`: a name that this step's tasks and rules see.",
            building.at(patch),
        )
    return patch


def _result(building: Building, written: _Result, frame: Frame) -> object:
    """`from: pages` names a value; it is read as a template."""
    source = written.from_
    if source is None:
        return building.value(written.value, frame.where)
    template = source if has_template(source) else f"{{{{ {source} }}}}"
    building.note(template, written.place, frame.where)
    return template


def _reason(building: Building, written: Node | _Skip | bool, frame: Frame) -> str | None:
    if isinstance(written, bool):
        return None
    node = written.reason if isinstance(written, _Skip) else written
    return building.value(node, frame.where) or None


def _error(building: Building, node: Node | None, frame: Frame) -> object:
    """The message, if that is all that is said; else a mapping with `message`."""
    if isinstance(node, nodes.Scalar) and isinstance(node.value, bool):
        return None
    said = building.value(node, frame.where)
    key = next((key for key in ("error", "message") if nodes.field(node, key)), None)
    if key is None:
        return said
    message = said.pop(key)
    if not said:
        return message
    return said | (message if isinstance(message, dict) else {"message": message})


def _named_task(building: Building, written: WrittenAction, frame: Frame) -> Task:
    outer: WrittenNamedTask = written.content
    if not outer.tool:
        return nothing(building, written.name, written.place)
    both = merge(knobs(outer.tool.spec), knobs(outer.spec))
    return task(
        building,
        outer.tool.under(outer, building.look),
        written.name,
        msgspec.structs.replace(frame, spec=merge(frame.spec, both), where=Where.CASE_TASK),
        written.name_place,
    )
