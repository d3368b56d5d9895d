"""Policy rules, retries, polls and sinks of a call, as rules of the net."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import (
    TEMPLATED_COUNT,
    Also,
    Anything,
    Defined,
    Duration,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    Made,
    Number,
    OneOf,
    Order,
    OrOlder,
    Placed,
    Record,
    Schema,
    Shape,
    Text,
    When,
    define,
    field,
    has_template,
    is_list,
    is_mapping,
    is_text,
    one_of,
    warn_unused,
)
from noetl.dsl.layers import VALUES, Knobs, within
from noetl.dsl.nodes import Mapping, Node
from noetl.model.net import (
    AnyAction,
    Backoff,
    Break,
    Collect,
    CollectMode,
    Continue,
    DirectiveKind,
    Fail,
    Jump,
    Patch,
    Retry,
    Rule,
    Run,
    Values,
)
from noetl.model.outcome import ERROR_KINDS
from noetl.model.problems import Place

if TYPE_CHECKING:
    from noetl.dsl.tasks import WrittenTask, WrittenTasks

ON_ANY_ERROR = "{{ outcome.status == 'error' }}"
TRIES = 3
"""How often a `retry` calls in all, unless it says how often."""

# --- How they are written ------------------------------------------------------------------------


_NAMED_VALUES = {"type": "array", "items": {"type": "object", "required": ["name", "value"]}}
RULE_SET = define("rule_set", OrOlder(VALUES, _NAMED_VALUES, "Write `{vars.x: …}`."))

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
    """Policy keys that belong elsewhere than in `scope`, without older forms."""
    found = {
        key: ("policy-out-of-place", f"it is a policy of {home}.")
        for key, home in POLICY_KEYS.items()
        if home != scope and key not in older
    }
    if scope != "a task":
        found |= dict.fromkeys(("do", "rules", "before", "after", "finally"), CONTROL)
    return found


_BACKOFF = one_of(Backoff)
_GROWTH = ("multiplier", "backoff_multiplier")
_FIRST_WAIT = ("delay", "initial_delay", "delay_seconds")
_OTHER_WAITS = ("max_delay", "max_delay_seconds", "jitter")


def _check_waits(node: Mapping, shape: Backoff | None, has_wait: bool, look: Inspection) -> None:
    """Warn of settings of waits that `backoff` leaves without effect."""
    if not has_wait:
        why = "without a wait: write `delay`, or how it grows with `backoff`."
        warn_unused(node, (*_GROWTH, *_OTHER_WAITS), why, look)
    elif shape == "none":
        why = "beside `backoff: none`, which does not wait. Keep one of them."
        warn_unused(node, (*_FIRST_WAIT, *_GROWTH, *_OTHER_WAITS), why, look)
    elif shape in ("fixed", "linear"):
        why = f"beside `backoff: {shape}`: only an exponential wait grows by it."
        warn_unused(node, _GROWTH, why, look)


_OF_ACTION = {
    "retry": ("attempts", "backoff", *_FIRST_WAIT[:1], "max_delay", "multiplier", "jitter"),
    "jump": ("to",),
    "fail": ("error",),
}
"""Keys of a directive that belong to one action."""


class WrittenDirective(
    Placed,
    title="a rule's `then`",
    first=("do",),
    schema={"dependencies": {key: ["do"] for keys in _OF_ACTION.values() for key in keys}},
):
    """What a policy rule writes, and where it goes."""

    do: DirectiveKind | None = field(one_of(DirectiveKind), "What happens next.")
    attempts: Node | None = field(TEMPLATED_COUNT, "retry: tries in total.")
    backoff: Backoff | None = field(_BACKOFF, "retry: how the wait grows.")
    delay: Node | None = field(Duration(), "retry: the first wait.")
    max_delay: Node | None = field(Duration(), "retry: the longest wait.")
    multiplier: Node | None = field(
        Number(least=1), "retry: growth of an exponential wait. Default 2."
    )
    jitter: bool | None = field(Flag(), "retry: spread the waits.")
    to: str | None = field(Text(), "jump: the task to go to.")
    error: Node | None = field(Anything(), "fail: what to report.")
    set_iter: Node | None = field(VALUES, "Write into the iteration's scratchpad.")
    set_ctx: Node | None = field(VALUES, "Write into the execution's state.")
    set: Node | None = field(RULE_SET, "Write `ctx.x`, `iter.y`, `vars.z` by their full names.")

    def check(self, look: Inspection) -> None:
        """What belongs to one action stands beside that action."""
        entries = self.node.entries
        for action, keys in _OF_ACTION.items():
            written = [key for key in keys if not nodes.is_null(entries.get(key))]
            if not written or self.do == action:
                continue
            if nodes.is_null(entries.get("do")):
                look.report.add(
                    "missing-key",
                    f"`{written[0]}` belongs to `do: {action}`, and this rule has no `do`: it would"
                    f" only go on. Write `do: {action}` beside it.",
                    self.node.keys[written[0]],
                )
            elif self.do is not None:
                why = f"beside `do: {self.do}`: it belongs to `do: {action}`."
                warn_unused(self.node, written, why, look)
        if self.do == "retry":
            has_wait = bool({"delay", "backoff"} & nodes.written(self.node))
            _check_waits(self.node, self.backoff, has_wait, look)


class WrittenRule(msgspec.Struct, frozen=True):
    """A rule of any list: `{when, then}`, or the closing `{else}`."""

    order: ClassVar[Order] = (("when", "else"), ("then",))
    node: Mapping
    when: Node | None
    then: Any
    """Read by the shape that the list has for `then`."""
    priority: int = 0
    retry: WrittenRetry | None = None

    @property
    def place(self) -> Place:
        return self.node.place


class _ValuesByKey(Record):
    """A record that is read as its values by key."""

    def made(self, node: Mapping, given: dict[str, Any]) -> dict[str, Any]:
        return given


_CONDITIONS = ("expr", "if", "condition")


class RuleShape(Shape):
    """`{when, then}`, or the closing `{else}`; the same form in every rule list."""

    def __init__(self, title: str, then: Shape, extra: dict[str, Field] | None = None) -> None:
        self._then = then
        fields = {
            "when": Field(When(), "The condition."),
            "then": Field(then, "What to do when it holds."),
            **(extra or {}),
        }
        self._record = _ValuesByKey(
            title,
            {**fields, "else": Field(Anything(), "Closes the list: when no rule held.")},
            removed={
                **dict.fromkeys(_CONDITIONS, "write the condition as `when`."),
                "eval": "write `when` and `then`.",
                "do": "what is to be done stands under `then`: `then: {do: …}`.",
            },
        )
        self._else = _ValuesByKey(f"the `else` of {title}", {"then": Field(then), **(extra or {})})

    def read(self, node: Node, what: str, look: Inspection) -> WrittenRule | None:
        if not isinstance(node, Mapping):
            look.wrong_type(node, what, "a rule: {when, then} or {else}")
            return None
        given = self._record.read(node, what, look)
        if "else" in node.entries:
            if "when" in node.entries or "then" in node.entries:
                look.report.add(
                    "bad-rule",
                    "a rule has either `when` and `then`, or `else`; this one has both."
                    " Make it two rules.",
                    node.keys["else"],
                )
            given = self._of_else(node.entries["else"], look)
        elif not {"then", "do"} & node.entries.keys():
            look.report.add("bad-rule", "this rule has no `then`: say what to do.", node.place)
        if not {"when", "else", *_CONDITIONS} & node.entries.keys():
            look.report.add(
                "bad-rule",
                "this rule has neither `when` nor `else`: say when it holds.",
                node.place,
            )
        return WrittenRule(
            node=node,
            when=given.get("when"),
            then=given.get("then") or self._then.nothing(),
            priority=given.get("priority") or 0,
            retry=given.get("retry"),
        )

    def _of_else(self, node: Node, look: Inspection) -> Any:
        if isinstance(node, Mapping) and "then" in node.entries:
            return self._else.read(node, "an `else`", look)
        return {"then": self._then.read(node, "an `else`", look)}

    def schema(self) -> Schema:
        record = self._record.schema()
        then = self._then.schema()
        record["properties"]["else"] = {"anyOf": [self._else.schema(), then]}
        # `{else: null, then: …}` is an older form.
        record["properties"]["else"]["anyOf"].append({"type": "null", "deprecated": True})
        older = {"required": ["else", "then"], "properties": {"else": {"type": "null"}}}
        today = {"required": ["else"], "properties": {"else": {"not": {"type": "null"}}}}
        return record | {"oneOf": [{"required": ["when", "then"]}, today, older]}


class RuleList(ListOf):
    """Rules in order, at most one `else`, at the end."""

    def __init__(self, rule: Shape) -> None:
        super().__init__(rule, "rules", filled=True, empty="empty-rules")

    def read(self, node: Node, what: str, look: Inspection) -> tuple[Any, ...]:
        for item in nodes.items(node)[:-1]:
            if isinstance(item, Mapping) and "else" in item.entries:
                look.report.add(
                    "misplaced-else",
                    "an `else` closes the list of rules; those after it would never be tried."
                    " Move it to the end and keep only one.",
                    item.keys["else"],
                )
        return super().read(node, what, look)


TASKS = Defined("tasks")
"""One or more tasks; defined by tasks.py."""
_HOOK = Either(
    "a task or a list of tasks",
    (
        lambda node: isinstance(node, nodes.Sequence) and not node.items,
        Made(Anything(), lambda _: ()),
    ),
    (lambda _: True, TASKS),
)
_AROUND = "Tasks that run around this one."


class WrittenTaskPolicy(Placed, title="a task's policy", astray=astray_policies("a task")):
    """What an outcome leads to."""

    rules: tuple[WrittenRule, ...] = field(
        RuleList(RuleShape("a policy rule", WrittenDirective.shape)), "First match decides."
    )
    mode: str | None = field(OneOf("exclusive"), "Rules exclude each other.")
    on_unmatched: str | None = field(OneOf("continue", "fail"), "When no rule holds.")
    before: WrittenTasks = field(_HOOK, _AROUND)
    after: WrittenTasks = field(_HOOK, _AROUND)
    finally_: WrittenTasks = field(_HOOK, _AROUND)

    def check(self, look: Inspection) -> None:
        if not {"rules", "before", "after", "finally"} & self.node.entries.keys():
            look.report.add("empty-rules", "a task policy needs `rules`.", self.place)


class WrittenTaskSpec(
    Knobs,
    title="a task's `spec`",
    astray={
        "pool": (
            "policy-out-of-place",
            "the tasks of a step run on one worker. Write it into the step's `spec`.",
        )
    },
):
    """Runtime knobs and policy of a task."""

    policy: WrittenTaskPolicy = field(WrittenTaskPolicy, "What an outcome leads to.")


class WrittenBackoff(Placed, title="a backoff"):
    """How the waits between tries grow, in detail."""

    type: Backoff | None = field(_BACKOFF, "How the wait grows.")
    delay_seconds: Node | None = field(Duration(), "The first wait.")
    delay = Also(delay_seconds)
    max_delay_seconds: Node | None = field(Duration(), "The longest wait.")
    max_delay = Also(max_delay_seconds)
    multiplier: Node | None = field(Number(least=1), "Growth of an exponential wait.")
    jitter: bool | None = field(Flag(), "Spread the waits.")


def _backoff(written: Backoff | WrittenBackoff | None) -> tuple[WrittenBackoff, Backoff | None]:
    """What is said in detail, and how the waits grow if that is said at all."""
    if isinstance(written, WrittenBackoff):
        return written, written.type
    return WrittenBackoff(), written


class _Again(Placed, older={"backoff_seconds": "Write `delay`."}):
    """How often and after which waits a call is repeated."""

    max_attempts: Node | None = field(TEMPLATED_COUNT, "Tries in total.")
    attempts = Also(max_attempts)
    initial_delay: Node | None = field(Duration(), "The first wait.")
    delay = Also(initial_delay)
    delay_seconds = Also(initial_delay)
    max_delay: Node | None = field(Duration(), "The longest wait.")
    max_delay_seconds = Also(max_delay)
    backoff_multiplier: Node | None = field(Number(least=1), "How the wait grows.")
    jitter: bool | None = field(Flag(), "Spread the waits.")
    backoff: Backoff | WrittenBackoff | None = field(
        OrOlder(
            Either("a word or a mapping", (is_text, _BACKOFF), (is_mapping, WrittenBackoff.shape)),
            {"type": "number"},
            "Write `delay`.",
        ),
        "How the wait grows.",
    )

    def check(self, look: Inspection) -> None:
        detail, shape = _backoff(self.backoff)
        has_wait = bool({*_FIRST_WAIT, "backoff"} & nodes.written(self.node))
        _check_waits(self.node, shape, has_wait, look)
        if detail:
            _check_waits(detail.node, shape, True, look)
            for keys in (_FIRST_WAIT, _GROWTH, _OTHER_WAITS[:2]):
                if beside := [key for key in keys if key in self.node.entries]:
                    why = f"where `{beside[0]}` stands beside `backoff`."
                    warn_unused(detail.node, keys, why, look)


_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*")


class WrittenCollect(Placed, title="a `collect`"):
    """The part of a response to collect. `from` is a path from the root, `path` one in the
    response.
    """

    from_: str | None = field(Text(), "Path of what to add, e.g. response.data.")
    path = Also(from_, Made(Text(), lambda path: f"response.{path}" if path else ""))
    into: str | None = field(Text(), "Name of the accumulator.", required=True)
    mode: CollectMode | None = field(one_of(CollectMode), "How to add. Default append.")
    strategy = Also(mode)


_EVENT_LOG = {
    "type": "object",
    "properties": {"kind": {"const": "event_log"}},
    "required": ["kind"],
}
"""An older name of a noop in a sink."""


class WrittenSink(Placed, title="a sink"):
    """A task that stores something, and what."""

    tool: WrittenTask = field(
        OrOlder(Defined("task"), _EVENT_LOG), "The tool that stores.", required=True
    )
    args: Node | None = field(VALUES, "What to store.")
    retry: WrittenRetries = field(Defined("retry"))


ANY_KIND = ("error", "any")
"""What `on` says for errors of all kinds."""


class WrittenRetry(
    _Again,
    title="a retry",
    older={
        "retry_on": "Write `on`.",
        "retry_on_status": "Write `when` with a condition on `error.status`.",
        **dict.fromkeys(
            ("args", "input", "with", "params"), "It asks for another page: write `call`."
        ),
    },
):
    """The same call again, after a wait."""

    scope: str | None = field(OneOf("tool", "chain", "step"), "What is done again.")
    on: str | tuple[str, ...] | None = field(
        Either("a word or a list", (is_text, Text()), (is_list, ListOf(Text(), "words"))),
        "Error kinds to retry; `error` means all.",
    )
    when: Node | None = field(When(), "Which outcomes to retry. Default: every error.")

    @property
    def kinds(self) -> tuple[str | None, ...]:
        """What `on` names."""
        return self.on if isinstance(self.on, tuple) else (self.on,)

    def check(self, look: Inspection) -> None:
        super().check(look)
        if "when" in self.node.entries:
            why = "beside `when`: write the kinds into the condition, `error.kind in ['timeout']`."
            warn_unused(self.node, ("on",), why, look)
        for kind in self.kinds:
            if kind is not None and kind not in (*ANY_KIND, *ERROR_KINDS):
                look.report.add(
                    "never-equal",
                    f'no error is of the kind "{kind[:60]}", so `on` never names it.'
                    + (
                        look.report.suggest(kind, ERROR_KINDS)
                        or f" It is one of {', '.join(ERROR_KINDS)}."
                    ),
                    self.place_of("on") or self.place,
                )


class _WrittenRepeat(_Again, title="a retry policy's `then`"):
    next_call: Node | None = field(VALUES, "Config to change for the next call.")
    collect: WrittenCollect = field(WrittenCollect, "What to keep of each answer.")
    sink: WrittenSink = field(Defined("sink"), "Where to store each answer.")


class WrittenRetryPolicy(Placed, title="a retry policy"):
    """Another call under a condition, perhaps with another config: how pages are read."""

    when: Node | None = field(When(), "Which outcome repeats the call.", required=True)
    then: _WrittenRepeat = field(_WrittenRepeat, "How to repeat it.", required=True)


WrittenRetries = WrittenRetry | tuple[WrittenRetryPolicy, ...] | None


class WrittenPoll(Placed, title="a poll"):
    """A call that is repeated until something holds."""

    until: Node | None = field(When(), "The condition to wait for.", required=True)
    interval: Node | None = field(Duration(), "Time between calls. Default 5 seconds.")
    max_attempts: Node | None = field(TEMPLATED_COUNT, "Give up after this many calls.")
    deadline: Node | None = field(Duration(), "Give up after this time.")


_RETRY_FORMS = "a mapping, or a list of {when, then}"


class _RetryShape(Either):
    def read(self, node: Node, what: str, look: Inspection) -> Any:
        if isinstance(node, nodes.Scalar) and type(node.value) is int:
            instead = f" Write `{{max_attempts: {node.value}}}`, which counts all tries."
            look.wrong_type(node, what, _RETRY_FORMS, instead)
            return None
        return super().read(node, what, look)


define(
    "retry",
    _RetryShape(
        _RETRY_FORMS,
        (is_mapping, Defined("retry_mapping")),
        (is_list, ListOf(WrittenRetryPolicy.shape, "retry policies", filled=True)),
    ),
)
define("retry_mapping", WrittenRetry.shape)
define("sink", WrittenSink.shape)
define("task_spec", WrittenTaskSpec.shape)

# --- What they become ----------------------------------------------------------------------------


def default_retry(building: Building) -> Rule:
    """The retry of `on_error: retry`, for a task without one of its own."""
    tries = min(TRIES, building.limits.max_attempts or TRIES)
    again = Retry(attempts=tries, backoff="exponential", delay=1)
    return Rule(label="retry", when=ON_ANY_ERROR, actions=(again,))


def task_rules(building: Building, policy: WrittenTaskPolicy) -> tuple[Rule, ...]:
    """`spec.policy.rules` of a task."""
    rules = []
    for index, written in enumerate(policy.rules):
        rule = Rule(
            label=f"rule_{index}",
            when=building.condition(written.when, Where.POLICY),
            actions=_directive(building, written.then),
        )
        building.mark(rule, written.place)
        rules.append(rule)
    if policy.on_unmatched == "fail" and not any(rule.when is None for rule in rules):
        rules.append(Rule(label="unmatched", actions=(Fail(),)))
    return tuple(rules)


def _directive(building: Building, then: WrittenDirective) -> tuple[AnyAction, ...]:
    """What a rule writes, then where it goes."""
    patches = [building.patch(then.set, Where.POLICY), _named_patch(building, then)]
    written = [patch for patch in patches if patch is not None]
    match then.do:
        case "retry":
            last: AnyAction = retry(building, then, Where.POLICY)
        case "jump":
            last = _jump(building, then)
        case "break":
            last = Break()
        case "fail":
            last = Fail(error=building.value(then.error, Where.POLICY))
        case "continue" | None:
            last = Continue()
        case _:
            assert_never(then.do)
    return (*written, last)


def _named_patch(building: Building, then: WrittenDirective) -> Patch | None:
    """`set_ctx` and `set_iter`."""
    first = then.set_ctx or then.set_iter
    if first is None:
        return None
    patch = Patch(
        ctx=building.values(then.set_ctx, Where.POLICY),
        iter=building.values(then.set_iter, Where.POLICY),
    )
    building.mark(patch, first.place)
    return patch


def _jump(building: Building, then: WrittenDirective) -> Jump:
    if then.node_of("to") is None:
        building.report.add("missing-key", "`do: jump` needs `to`: the task to go to.", then.place)
    jump = Jump(to=then.to or "")
    building.mark(jump, then.place, to=then.place_of("to"))
    return jump


def retry(building: Building, written: WrittenDirective | _Again, where: Where) -> Retry:
    """Every written form of a retry."""
    backoff = written.backoff
    detail, shape = _backoff(backoff)
    if isinstance(written, WrittenDirective):
        attempts, first, growth = written.attempts, written.delay, written.multiplier
    else:
        attempts, first = written.max_attempts, written.initial_delay
        growth = written.backoff_multiplier
    delay = building.amount(first or detail.delay_seconds, where)
    multiplier = building.amount(growth or detail.multiplier, where)
    if shape is None:
        # A multiplier, or only a number of attempts, implies how the waits grow.
        shape = "exponential" if multiplier is not None else "fixed"
    if delay is None:
        delay = 1 if backoff is not None and shape != "none" else 0
    limit, place = building.limits.max_attempts, (attempts or written).place
    tries = building.amount(attempts, where)
    return Retry(
        attempts=within(building, tries, limit, "the number of tries", place, default=TRIES),
        backoff=shape,
        delay=delay,
        max_delay=building.amount(written.max_delay or detail.max_delay_seconds, where),
        multiplier=2 if multiplier is None else multiplier,
        jitter=bool(written.jitter or detail.jitter),
    )


def retry_rules(
    building: Building,
    written: WrittenRetries,
    spec: Values | None = None,
    scopes: tuple[str, ...] = ("tool",),
) -> tuple[Rule, ...]:
    """`retry` of a task or step: a mapping, or a list of policies with their own conditions."""
    if isinstance(written, WrittenRetry):
        check_scope(building, written, scopes)
        when = building.condition(written.when, Where.RETRY)
        rule = Rule(
            label="retry",
            when=on_errors(written.kinds) if when is None else when,
            actions=(retry(building, written, Where.RETRY),),
        )
        building.mark(rule, written.place)
        return (rule,)
    return tuple(
        _retry_policy(building, policy, f"retry_{index}", spec or {})
        for index, policy in enumerate(written or ())
    )


def check_scope(building: Building, written: WrittenRetry | None, scopes: tuple[str, ...]) -> None:
    """Report a `scope` that has no effect where it stands."""
    if written and written.scope and written.scope not in scopes:
        building.report.add(
            "policy-out-of-place",
            f"`scope: {written.scope}` has no meaning here, only {' and '.join(scopes)}."
            " `chain` belongs to the `retry` of a case rule, `step` to that of a step.",
            written.place_of("scope") or written.place,
        )


def on_errors(kinds: Iterable[str | None]) -> str:
    """The condition for errors of these kinds; for any error, if none is named."""
    named = [kind for kind in kinds if kind not in (None, *ANY_KIND)]
    if not named:
        return ON_ANY_ERROR
    return f"{{{{ outcome.status == 'error' and outcome.error.kind in {named!r} }}}}"


def _retry_policy(
    building: Building, written: WrittenRetryPolicy, label: str, spec: Values
) -> Rule:
    from noetl.dsl.tasks import sink_task  # a sink holds a task, and a task may hold a retry

    then = written.then
    actions: list[AnyAction] = []
    if then.collect:
        actions.append(collect(building, then.collect))
    if then.sink:
        made = sink_task(building, then.sink, f"{label}_sink", spec)
        actions.append(Run(task=made, sink=True))
    again = retry(building, then, Where.RETRY)
    overrides = building.values(then.next_call, Where.RETRY)
    actions.append(msgspec.structs.replace(again, overrides=overrides))
    rule = Rule(
        label=label, when=building.condition(written.when, Where.RETRY), actions=tuple(actions)
    )
    building.mark(rule, written.place)
    return rule


def collect(building: Building, written: WrittenCollect) -> Collect:
    """`from` may be written as a template, `{{ response.data }}`, as that of a `result` may."""
    source, into = written.from_ or "response", written.into or ""
    template = building.expressions.compiled(source) if has_template(source) else None
    if template is not None and template.expression is not None:
        inner = source.strip().removeprefix("{{").removesuffix("}}")
        source = inner.removeprefix("-").removesuffix("-").strip()
    if has_template(source) or building.expressions.refusal(f"{{{{ {source} }}}}"):
        building.report.add(
            "bad-value",
            f'`from` of a `collect` is a path such as response.data, not "{source[:60]}".',
            written.place,
        )
    if into and _PATH.fullmatch(into) is None:
        building.report.add(
            "bad-value",
            "`into` of a `collect` is a name such as pages, or ctx.pages, which later steps see;"
            f' not "{into[:60]}".',
            written.place,
        )
    elif into.startswith("ctx."):
        # Another worker may go on, and adds to what is there.
        building.note(f"{{{{ {into} | default(none) }}}}", written.place, Where.RETRY)
    made = Collect(source=source, into=into, mode=written.mode or "append")
    building.mark(made, written.place)
    return made
