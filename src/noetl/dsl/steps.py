"""Steps: how they are written, and what they become."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import Building, Use, Where
from noetl.dsl.grammar import (
    COUNT,
    HYPHENATED_NAME,
    NAME,
    Also,
    Anything,
    AsWritten,
    Defined,
    Duration,
    Either,
    Field,
    Flag,
    Inspection,
    ListOf,
    Made,
    OneOf,
    OrOlder,
    Placed,
    Record,
    Schema,
    Text,
    When,
    define,
    field,
    has_template,
    is_list,
    is_mapping,
    is_text,
    one_of,
    refuse_both,
    warn_unused,
)
from noetl.dsl.layers import (
    VALUES,
    PlacedKnobs,
    WrittenPlacement,
    WrittenQuotas,
    WrittenTimeout,
    WrittenTracing,
    bounds,
    merge,
    noted_knobs,
    within,
)
from noetl.dsl.loops import A_LOOP, WrittenLoop, loop
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.policies import (
    CONTROL,
    TASKS,
    RuleList,
    RuleShape,
    WrittenRetries,
    WrittenRule,
    WrittenSink,
    astray_policies,
    default_retry,
    retry_rules,
)
from noetl.dsl.routing import NEXT, WrittenNextAction, WrittenRouter, WrittenTargets, router
from noetl.dsl.rules import CASE, answer_rule, case_settings, event_rules, next_actions
from noetl.dsl.schemas import WrittenResult, result_schema
from noetl.dsl.tasks import Frame, WrittenTask, WrittenTasks, pipeline, sink_task
from noetl.dsl.walk import all_tasks
from noetl.model.fields import ALIASES, TYPES
from noetl.model.net import (
    WORKBOOK,
    Admit,
    Amount,
    Block,
    EventRule,
    FailureMode,
    FormField,
    Join,
    MatchMode,
    Needs,
    NextPolicy,
    OnStepError,
    Quotas,
    RuleOrder,
    Step,
    Task,
    Timer,
    Tracing,
    Values,
)

BODY = frozenset(Where) - {Where.WORKLOAD, Where.ADMIT, Where.ARC}
"""Scopes that a worker may evaluate."""

# --- How they are written ------------------------------------------------------------------------


class _Allow(Placed, title="an admission rule's `then`", astray={"do": CONTROL}):
    allow: bool | None = field(Flag(), "Whether the token may enter.", required=True)
    set: Node | None = field(VALUES, "If it may: what is added to its args.")

    def check(self, look: Inspection) -> None:
        if self.allow is False:
            warn_unused(self.node, ("set",), "beside `allow: false`: nothing enters.", look)


class _Admission(Placed, title="an admission policy"):
    mode: MatchMode | None = field(
        one_of(MatchMode), "The first rule that holds decides, or all that hold: one may deny."
    )
    rules: tuple[WrittenRule, ...] = field(
        RuleList(RuleShape("an admission rule", _Allow.shape)),
        "First match decides, or by `mode` all that match.",
        required=True,
    )


class _Lifecycle(Placed, title="a lifecycle"):
    timeout_s: Node | None = field(Duration(), "Longest time of one run.")
    deadline_s: Node | None = field(Duration(), "Latest end since the execution started.")


class _Failure(Placed, title="a failure policy"):
    mode: FailureMode | None = field(one_of(FailureMode), "What happens to the others.")


class _Emit(Placed, title="an emit policy"):
    events: tuple[str, ...] = field(ListOf(Text(), "event names"))


class _StepPolicy(Placed, title="a step's policy", astray=astray_policies("a step")):
    admit: _Admission = field(_Admission, "Whether a token may enter.")
    lifecycle: _Lifecycle = field(_Lifecycle)
    failure: _Failure = field(_Failure)
    emit: _Emit = field(_Emit, "Extra event names recorded at the end.")
    quotas: WrittenQuotas = field(WrittenQuotas, "What its calls may use in one run.")
    placement: WrittenPlacement = field(WrittenPlacement, "Which workers it needs.")
    tracing: WrittenTracing = field(
        WrittenTracing, "Whether its runs are traced, and what their spans say."
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
"""A question of a form, or an input of a playbook."""
_FORM_FIELD = Record(
    "a form field", {"name": Field(NAME, "Key of the answer.", required=True), **FIELD}
)
_QUESTIONS = ListOf(_FORM_FIELD, "fields", filled=True)


class _Form(Placed, title="a form"):
    fields: tuple[Node, ...] = field(_QUESTIONS, required=True)
    role: str | None = field(HYPHENATED_NAME, "The role that may answer; admins always may.")


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _wrong_moment(text: str) -> str:
    if has_template(text) or _MOMENT.fullmatch(text):
        return ""
    return f'is "{text[:40]}"; write a moment such as 2030-01-31T12:00:00Z.'


class _Timer(Placed, title="a timer"):
    """It fires once: after a while, or at a moment."""

    id: str | None = field(Text(), "Name in `event.data.timer_id`.", required=True)
    after: Node | None = field(Duration(), "Time since the step started.")
    at: Node | None = field(AsWritten(Text(wrong=_wrong_moment)), "A moment, RFC 3339.")

    def check(self, look: Inspection) -> None:
        refuse_both(self.node, ("after",), ("at",), "when a timer fires", look)
        if not {"after", "at"} & nodes.written(self.node):
            look.report.add("missing-key", "a timer needs `after` or `at`.", self.place)


class _JoinCount(Placed, title="a join"):
    n: int | None = field(COUNT, required=True)


_AT_ONCE = (
    "steps run at once after `next: [A, B]`, iterations with `loop: {…, spec: {mode: parallel,"
    " max_in_flight: N}}`."
)
_PARALLEL = dict.fromkeys(("parallel", "concurrency", "max_parallel"), _AT_ONCE)


class WrittenStepSpec(PlacedKnobs, title="a step's `spec`", removed=_PARALLEL):
    """How a step behaves, and knobs of its tasks."""

    policy: _StepPolicy = field(_StepPolicy, "Admission, lifecycle, failure.")
    join: str | _JoinCount | None = field(
        Either(
            "auto, each, all, any or {n: k}",
            (is_text, OneOf("auto", "each", "all", "any")),
            (is_mapping, _JoinCount.shape),
        ),
        "When waiting tokens become a run.",
    )
    on_error: OnStepError | None = field(one_of(OnStepError), "What a failed step means.")
    compensate: str | None = field(Text(), "Task or step that undoes this one.")
    case_mode: MatchMode | None = field(one_of(MatchMode), "First rule, or all that hold.")
    eval_mode: str | None = field(
        OneOf("on_entry", "on_event"), "on_event: wait for external events, as a form does."
    )
    branch_order: RuleOrder | None = field(one_of(RuleOrder), "Order of rules.")
    next_policy: NextPolicy | None = field(one_of(NextPolicy), "What a reached `next` does.")
    timers: tuple[_Timer, ...] = field(ListOf(_Timer.shape, "timers"))
    form: _Form | None = field(
        Either(
            "a list of fields or {fields: […], role}",
            (is_list, Made(_QUESTIONS, lambda fields: _Form(given={"fields": fields}))),
            (is_mapping, _Form.shape),
        ),
        "What a person is asked.",
    )
    match: Node | None = field(When(), "Which external events concern this step.")

    @property
    def waits(self) -> bool:
        """Whether the step waits for the world: where it says so, or asks a person."""
        return self.eval_mode == "on_event" or (self.eval_mode is None and self.form is not None)


_WAITS_WITHOUT_FORM: Schema = {
    "properties": {"eval_mode": {"const": "on_event"}},
    "required": ["eval_mode"],
    "not": {"required": ["form"]},
}
_STEP: Schema = {
    "anyOf": [
        *({"required": [key]} for key in ("tool", "next", "case")),
        {"properties": {"spec": {"required": ["form"]}}, "required": ["spec"]},
        {"properties": {"step": {"const": "end"}}},
    ],
    "if": {"properties": {"spec": _WAITS_WITHOUT_FORM}, "required": ["spec"]},
    "then": {"required": ["case"]},
}
"""A step does something, and one that waits ends its wait."""


class _StepShape(Record):
    """A step; tool config beside `step` is reported with its right place."""

    def unknown(self, key: str, node: Mapping, look: Inspection, hint: str = "") -> None:
        in_tools = key in WrittenTask.declared or any(
            key in tool.config.__struct_fields__ or key in tool.aliases
            for tool in look.tools.values()
        )
        if key == "kind":
            hint = " It belongs under `tool`: indent it, and what follows, two spaces more."
        elif in_tools and not self.belongs(key):
            hint = f" Tool config belongs under `tool`: `tool: {{kind: …, {key}: …}}`."
        super().unknown(key, node, look, hint)


_GUARD = "use `spec.policy.admit.rules`, or a guard on the arc that leads here."
_BEFORE = "the steps before it name this one: `next: NAME`."
_EACH = "write `loop: {in: …, iterator: NAME}`."
_TOOL = "write `tool: {kind: …}`."
_RETRY = "write `retry: {max_attempts: N}`."
_WAIT = (
    "a pause is `spec: {delay: …}` of an arc; a step with `spec: {form: […]}` waits for a person,"
    " one with `spec: {eval_mode: on_event}` and `case` for an event."
)
_TIMEOUT = "write `spec: {timeout: 30s}`."
_FAILED = "write an arc: `when: \"{{ event.name == 'step.failed' }}\"`."


class WrittenStep(
    Placed,
    title="a step",
    record=_StepShape,
    schema=_STEP,
    first=("step", "desc", "spec", "args", "input", "loop", "tool"),
    last=("case", "next"),
    older={
        "set_ctx": "Write `set: {ctx.x: …}`.",
        "result": "Write `output` on the step's last task.",
    },
    astray={
        "arcs": ("unknown-key", "they stand under `next`: `next: {arcs: […]}`."),
        "tags": ("unknown-key", "the playbook has them: `metadata: {tags: […]}`."),
    },
    removed={
        "when": _GUARD,
        **dict.fromkeys(("type", "activity", "action", "operator", "uses"), _TOOL),
        **dict.fromkeys(("sleep", "wait", "wait_for", "delay", "signal"), _WAIT),
        **_PARALLEL,
        **dict.fromkeys(("retries", "retry_policy", "retryPolicy", "retryStrategy"), _RETRY),
        **dict.fromkeys(("start_to_close_timeout", "execution_timeout"), _TIMEOUT),
        **dict.fromkeys(("catch", "on_failure", "onFailure"), _FAILED),
        **dict.fromkeys(("compensation", "undo", "rollback"), "write `spec: {compensate: STEP}`."),
        "outputs": "what it yields is the result of its tool, read as `{{ NAME }}`.",
        "pipe": "`tool` is the pipeline: list the tasks there.",
        "eval": "write `spec.policy.rules` on the task.",
        "expr": "write conditions as `when`.",
        "with": "write `args`; `with` belongs to a task.",
        "run": "list the tasks under `tool`.",
        "name": "a step's name is `step`.",
        **dict.fromkeys(("if", "condition"), _GUARD),
        **dict.fromkeys(("depends_on", "dependsOn", "dependencies", "needs", "upstream"), _BEFORE),
        **dict.fromkeys(("foreach", "for_each", "with_items", "withItems", "items", "map"), _EACH),
        "trigger_rule": "when a step with several arcs to it runs is `spec: {join: …}`.",
    },
):
    """One step with everything below it."""

    step: str | None = field(HYPHENATED_NAME, "The step's name.", required=True)
    desc: str | None = field(Text(), "What it is for.")
    description = Also(desc)
    spec: WrittenStepSpec = field(WrittenStepSpec, "Behaviour: policies, joins, timeouts.")
    args: Node | None = field(VALUES, "Inputs; a token's args are merged over them.")
    input = Also(args)
    loop: WrittenLoop = field(A_LOOP, "Run the tasks once per element.")
    tool: WrittenTasks = field(TASKS, "The task or tasks to run.")
    retry: WrittenRetries = field(Defined("retry"), "Default retry of its tasks.")
    sink: WrittenSink = field(Defined("sink"), "Store the result.")
    vars: Node | None = field(VALUES, "Values to keep of the result, readable as `vars.*`.")
    set: Node | None = field(VALUES, "Write `ctx.x` after success.")
    case: tuple[WrittenRule, ...] = field(CASE, "Rules for the step's events.")
    next: WrittenRouter | WrittenTargets | None = field(NEXT, "Where to go.")
    output: WrittenResult = field(
        OrOlder(WrittenResult.shape, {"type": "object"}, "Write it on the last task."),
        "What it yields; in a loop, each iteration.",
    )

    def check(self, look: Inspection) -> None:
        keys = self.node.entries.keys()
        if self.spec.waits and self.spec.form is None and "case" not in keys:
            look.report.add(
                "missing-key",
                "a step that waits (`eval_mode: on_event`) needs a `form`, whose answer ends its"
                " wait, or `case` rules.",
                self.place,
            )
        if "case" not in keys:
            of_case = [one for one in _OF_CASE if getattr(self.spec, one) is not None]
            if self.spec.form is not None:
                of_case += ["timers"]
            warn_unused(self.spec.node, of_case, "without `case` rules.", look)
        elif self.spec.branch_order != "priority":
            for rule in [one for one in self.case if one.priority]:
                why = "without `spec: {branch_order: priority}`: rules are tried as written."
                warn_unused(rule.node, ("priority",), why, look)
        self._check_next_priorities(look)
        # A word of another language is the mistake; what it was to do is not a second one.
        is_told = {"tool", "next", "case", *self.shape.removed} & keys
        if "step" in keys and not (is_told or self.spec.waits or self.step == "end"):
            look.report.add(
                "empty-step",
                "a step needs at least one of `tool`, `next`, `case`; this one does nothing."
                " A place to end is `tool: {kind: noop}`.",
                self.place,
            )

    def _check_next_priorities(self, look: Inspection) -> None:
        """A `next` has a priority among others only where one of them is deferred."""
        written = [
            one for one in next_actions(self.case or ()) if isinstance(one, WrittenNextAction)
        ]
        policies = {self.spec.next_policy, *(one.policy for one in written)}
        if "defer" not in policies:
            why = "without `policy: defer`: the first `next` that is reached wins."
            for one in written:
                warn_unused(one.node, ("priority",), why, look)


_OF_CASE = ("case_mode", "branch_order", "next_policy")
A_STEP = define("step", WrittenStep.shape)

# --- What they become ----------------------------------------------------------------------------


def step(
    building: Building, written: WrittenStep, outer: Values, default_timeout: Amount | None
) -> Step:
    """One step with everything below it."""
    name = written.step or ""
    spec, policy = written.spec, written.spec.policy
    iterator = written.loop.iterator
    first_use = len(building.uses)
    with building.inside(name=name, iterators=(iterator,) if iterator else ()):
        frame = _frame(building, written, outer)
        # A step's `retry` is a default for the tasks of its rules, too; a list is for its tool.
        is_list = isinstance(written.retry, tuple)
        of_rules = msgspec.structs.replace(frame, retries=()) if is_list else frame
        form = _Form() if spec.form is None else spec.form
        tasks = pipeline(building, written.tool, frame)
        tasks = _with_defaults(building, tasks, policy.placement.kind_defaults())
        made = Step(
            name=name,
            description=written.desc or "",
            args=building.values(written.args, Where.LOOP_ARGS if iterator else Where.STEP),
            admit=_admission(building, policy.admit.rules),
            admit_mode=policy.admit.mode or "exclusive",
            join=_join(spec.join),
            loop=loop(building, written.loop, frame.spec),
            tasks=_yielding(building, tasks, written.output.schema),
            sink=sink_task(building, written.sink, f"{name}_sink", frame.spec)
            if written.sink
            else None,
            rules=event_rules(building, written.case, of_rules) or _answered(building, spec),
            case=case_settings(spec, written.case),
            timers=tuple(
                Timer(
                    id=one.id or "",
                    after=building.amount(one.after, Where.STEP),
                    at=building.value(one.at, Where.STEP),
                )
                for one in spec.timers
            ),
            form=form_fields(
                building, [(building.value(one, Where.STEP), one) for one in form.fields]
            ),
            form_role=form.role or "",
            match=building.condition(spec.match, Where.CASE_SERVER),
            router=router(building, written.next),
            vars=building.values(written.vars, Where.KEPT),
            patch=building.patch(written.set, Where.KEPT),
            timeout=_timeout(building, spec, default_timeout),
            deadline=building.amount(policy.lifecycle.deadline_s, Where.STEP),
            failure_mode=policy.failure.mode or "fail_fast",
            on_error=spec.on_error or "fail",
            compensate=spec.compensate,
            emit=tuple(filter(None, policy.emit.events)),
            pool=written.loop.spec.pool or policy.placement.pool_with(building, spec.pool),
            labels=policy.placement.labels,
            quotas=bounds(Quotas, policy.quotas),
            tracing=tracing(building, policy.tracing),
        )
    uses, whole = _reached(building, made, building.uses[first_use:])
    made = msgspec.structs.replace(made, needs=needs_of(building, uses, whole=whole))
    building.mark(
        made,
        written.place,
        name=written.place_of("step"),
        join=spec.place_of("join"),
        compensate=spec.place_of("compensate"),
        next=written.place_of("next"),
        loop=written.place_of("loop"),
        tool=written.place_of("tool"),
    )
    return made


def _with_defaults(
    building: Building, tasks: tuple[Task, ...], own: dict[str, Values]
) -> tuple[Task, ...]:
    def made(task: Task) -> Task:
        placed = {**building.kind_defaults.get(task.kind, {}), **own.get(task.kind, {})}
        config = dict(sorted({**placed, **task.config}.items()))
        return building.changed(task, config=config) if placed else task

    return tuple(map(made, tasks))


def _yielding(
    building: Building, tasks: tuple[Task, ...], written: Node | None
) -> tuple[Task, ...]:
    """The schema of a step's result is that of its last task."""
    schema = result_schema(building, written)
    if schema is None or not tasks:
        return tasks
    return (*tasks[:-1], building.changed(tasks[-1], schema=schema))


def _frame(building: Building, written: WrittenStep, outer: Values) -> Frame:
    """What the step's tasks inherit: layered knobs, and the step's retry."""
    inner = noted_knobs(building, written.loop.spec)
    layered = merge(merge(outer, noted_knobs(building, written.spec)), inner)
    retries = retry_rules(building, written.retry, layered, ("tool", "step"))
    if not retries and written.spec.on_error == "retry":
        retries = (default_retry(building),)
    return Frame(spec=layered, retries=retries)


def _admission(building: Building, rules: tuple[WrittenRule, ...]) -> tuple[Admit, ...]:
    return tuple(
        Admit(
            allow=rule.then.allow is True,
            when=building.condition(rule.when, Where.ADMIT),
            args=building.values(rule.then.set, Where.ADMIT),
        )
        for rule in rules
    )


def tracing(building: Building, own: WrittenTracing | None = None) -> Tracing:
    """The tracing settings of the executor, with those of the step over them."""
    sample: float | None = None
    attributes: Values = {}
    for layer in (building.tracing, own):
        if layer is not None and layer.sample is not None:
            sample = float(layer.sample)
        if layer is not None:
            attributes |= building.values(layer.attributes, Where.STEP)
    return Tracing(sample=sample, attributes=attributes)


def _join(written: str | _JoinCount | None) -> Join:
    match written:
        case _JoinCount(n=int() as count):
            return Join(kind="count", count=count)
        case "each" | "all" | "any":
            return Join(kind=written)
    return Join()


def _timeout(building: Building, spec: WrittenStepSpec, default: Amount | None) -> Amount | None:
    node = spec.policy.lifecycle.timeout_s or spec.timeout
    if isinstance(node, WrittenTimeout):
        node = node.total
    asked, place = building.amount(node, Where.STEP), (node or spec).place
    limit, what = building.limits.timeout, "the step's timeout"
    found: Amount | None = within(building, asked, limit, what, place, default)
    return found


def _answered(building: Building, spec: WrittenStepSpec) -> tuple[EventRule, ...]:
    """A form without `case` rules: the wait ends with its answer."""
    if spec.form is None or not spec.waits:
        return ()
    return (answer_rule(building, spec.node.keys["form"]),)


def form_fields(building: Building, written: list[tuple[Any, Node]]) -> tuple[FormField, ...]:
    """Questions or inputs in today's form, from what is written with their names, and where."""
    plain = []
    for one, _ in written:
        if not isinstance(one, dict):
            return ()
        kind = one.get("type") or "text"
        # An empty key is not written.
        given = {key: value for key, value in one.items() if value is not None}
        named = {**given, "type": ALIASES.get(str(kind), kind)}
        if "desc" in named:
            named["help"] = named.pop("desc")
        plain.append(named)
    try:
        found = msgspec.convert(plain, tuple[FormField, ...])
    except msgspec.ValidationError:
        return ()  # the shape has reported what is wrong with it
    for made, (_, node) in zip(found, written, strict=True):
        parts = {key: value.place for key, value in nodes.entries(node).items()}
        building.mark(made, node.place, **parts)
    return found


def _reached(building: Building, step: Step, own: list[Use]) -> tuple[list[Use], bool]:
    """The templates that running a step may evaluate, and whether it may read anything at all."""
    uses, whole = [*building.secret_uses, *own], False
    seen: set[str] = set()
    bodies: list[Step | Block] = [step]
    while bodies:
        for task in all_tasks(bodies.pop()):
            # Code that reads `context` may read anything, and no template shows what.
            tool = building.tools.get(task.kind)
            reads_context = tool.reads_context if tool is not None else None
            whole = whole or (reads_context is not None and reads_context(task.config))
            name = str(task.config.get("task"))
            if task.kind != WORKBOOK or name in seen:
                continue
            seen.add(name)
            if name in building.blocks:
                block, block_uses = building.blocks[name]
                bodies.append(block)
                uses += block_uses
            else:
                whole = True
    return uses, whole


def needs_of(building: Building, uses: list[Use], *, whole: bool) -> Needs:
    """What the templates of a step's body read, root by root."""
    found: dict[str, set[str]] = {
        name: set() for name in ("ctx", "workload", "vars", "steps", "keychain", "bare")
    }
    for use in uses:
        if use.where not in BODY:
            continue
        for path in building.expressions.reads(use.source):
            root = path[0]
            if root in found and root != "bare":
                found[root].add(str(path[1]) if len(path) > 1 else "*")
            else:
                found["bare"].add(root)
    if whole:
        found |= {name: {"*"} for name in ("ctx", "workload", "vars", "steps")}
    return Needs(**{name: tuple(sorted(names)) for name, names in found.items()})
