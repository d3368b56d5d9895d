"""Steps and workbook entries."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import (
    Building,
    Home,
    Use,
    Where,
    deep,
    entries,
    field,
    items,
    text,
    word,
)
from noetl.dsl.grammar import has_template, plain_text
from noetl.dsl.layers import merge, noted_knobs, within, written_quotas
from noetl.dsl.loops import iterator_of, loop
from noetl.dsl.nodes import Mapping, Node, Scalar
from noetl.dsl.policies import default_retry, else_body, retry_rules
from noetl.dsl.routing import router
from noetl.dsl.rules import case_settings, event_rules
from noetl.dsl.schemas import result_schema
from noetl.dsl.shapes import is_task_table
from noetl.dsl.tasks import Frame, pipeline, promises, sink_task
from noetl.dsl.walk import all_tasks
from noetl.model.fields import ALIASES
from noetl.model.net import (
    WORKBOOK,
    Admit,
    Amount,
    Block,
    FailureMode,
    FormField,
    Join,
    MatchMode,
    Needs,
    OnStepError,
    Step,
    Task,
    Timer,
    Tracing,
    Values,
)
from noetl.model.problems import Place

BODY = frozenset(Where) - {Where.WORKLOAD, Where.ADMIT, Where.ARC}
"""Scopes that a worker evaluates, or may."""


def step(building: Building, node: Mapping, outer: Values, default_timeout: Amount | None) -> Step:
    """One step with everything below it."""
    name = text(node, "step") or ""
    spec = field(node, "spec")
    policy = field(spec, "policy")
    lifecycle = field(policy, "lifecycle")
    iterator = iterator_of(field(node, "loop"))
    home = Home(name=name, iterators=(iterator,) if iterator else ())
    first_use = len(building.uses)
    frame = _frame(building, node, home, outer)
    sink = field(node, "sink")
    made = Step(
        name=name,
        description=text(node, "desc", "description") or "",
        args=building.values(
            field(node, "args", "input"), Where.LOOP_ARGS if iterator else Where.STEP, home
        ),
        admit=_admission(building, field(policy, "admit"), home),
        admit_mode=word(field(policy, "admit"), MatchMode, "mode") or "exclusive",
        join=_join(field(spec, "join")),
        loop=loop(building, field(node, "loop"), home),
        tasks=_yielding(
            building,
            _with_defaults(
                building, pipeline(building, field(node, "tool"), frame), kind_defaults(policy)
            ),
            field(node, "output"),
        ),
        sink=sink_task(building, sink, f"{name}_sink", home, frame.spec)
        if sink is not None
        else None,
        rules=event_rules(building, field(node, "case"), _of_rules(node, frame)),
        case=case_settings(node),
        timers=_timers(building, field(spec, "timers"), home),
        form=_form(building, field(spec, "form"), home),
        form_role=text(field(spec, "form"), "role") or "",
        match=building.condition(field(spec, "match"), Where.CASE, home),
        router=router(building, field(node, "next"), home),
        vars=building.values(field(node, "vars"), Where.AFTER, home),
        patch=building.patch(field(node, "set"), Where.AFTER, home),
        timeout=_timeout(building, spec, lifecycle, home, default_timeout),
        deadline=building.amount(field(lifecycle, "deadline_s"), Where.STEP, home),
        failure_mode=word(field(policy, "failure"), FailureMode, "mode") or "fail_fast",
        on_error=word(spec, OnStepError, "on_error") or "fail",
        compensate=text(spec, "compensate"),
        emit=tuple(filter(None, map(nodes.text_of, items(deep(policy, "emit", "events"))))),
        pool=text(deep(node, "loop", "spec"), "pool") or pool_of(building, spec),
        labels=worker_labels(policy),
        quotas=written_quotas(policy),
        tracing=tracing(building, field(policy, "tracing"), home),
    )
    uses, whole = _reached(building, made, building.uses[first_use:])
    made = msgspec.structs.replace(made, needs=needs_of(building, uses, whole=whole))
    _mark_step(building, made, node, spec)
    return made


def pool_of(building: Building, spec: Node | None) -> str | None:
    """`spec.pool`, which `spec.policy.placement.pool` is another place for."""
    own, placed = field(spec, "pool"), deep(spec, "policy", "placement", "pool")
    if own is not None and placed is not None:
        building.report.add(
            "conflicting-keys",
            "`pool` and `policy.placement.pool` both name the worker pool. Keep one of them.",
            placed.place,
        )
    return nodes.text_of(own or placed) if own is not None or placed is not None else None


def worker_labels(policy: Node | None) -> dict[str, str]:
    """`placement.labels`, where well-formed."""
    found = entries(deep(policy, "placement", "labels"))
    texts = {key: plain_text(value) for key, value in sorted(found.items())}
    return {key: value for key, value in texts.items() if value is not None}


def kind_defaults(policy: Node | None) -> dict[str, Values]:
    """What a `placement` says of tool kinds, such as `quantum`: config of tasks of that kind that
    do not say otherwise.
    """
    return {
        kind: {key: nodes.plain(one) for key, one in entries(value).items()}
        for kind, value in entries(deep(policy, "placement")).items()
        if kind not in ("pool", "labels")
    }


def _with_defaults(
    building: Building, tasks: tuple[Task, ...], own: dict[str, Values]
) -> tuple[Task, ...]:
    if not own and not building.kind_defaults:
        return tasks
    found = []
    for task in tasks:
        made = task
        placed = {**building.kind_defaults.get(task.kind, {}), **own.get(task.kind, {})}
        if placed:
            config = {**placed, **task.config}
            made = msgspec.structs.replace(
                task, config={key: config[key] for key in sorted(config)}
            )
            building.mark_as(made, task)
        found.append(made)
    return tuple(found)


def _yielding(building: Building, tasks: tuple[Task, ...], output: Node | None) -> tuple[Task, ...]:
    """What a step yields, its last task yields."""
    schema = result_schema(building, output)
    if schema is None or not tasks:
        return tasks
    last = msgspec.structs.replace(tasks[-1], schema=schema)
    building.mark_as(last, tasks[-1])
    return (*tasks[:-1], last)


def _mark_step(building: Building, made: Step, node: Mapping, spec: Node | None) -> None:
    parts = {
        "name": field(node, "step"),
        "join": field(spec, "join"),
        "compensate": field(spec, "compensate"),
        "next": field(node, "next"),
        "loop": field(node, "loop"),
    }
    building.mark(
        made, node.place, **{key: part.place for key, part in parts.items() if part is not None}
    )


def _frame(building: Building, node: Mapping, home: Home, outer: Values) -> Frame:
    """What the step's tasks inherit: layered knobs, and the step's retry."""
    spec = field(node, "spec")
    inner = noted_knobs(building, deep(node, "loop", "spec"), home)
    layered = merge(merge(outer, noted_knobs(building, spec, home)), inner)
    retries = retry_rules(building, field(node, "retry"), home, layered, ("tool", "step"))
    if not retries and text(spec, "on_error") == "retry":
        retries = (default_retry(building),)
    return Frame(home=home, spec=layered, retries=retries)


def _of_rules(node: Mapping, frame: Frame) -> Frame:
    """A step's `retry` is a default for the tasks of its rules, too; a list is for its tool."""
    own = isinstance(field(node, "retry"), nodes.Sequence)
    return msgspec.structs.replace(frame, retries=()) if own else frame


def _admission(building: Building, node: Node | None, home: Home) -> tuple[Admit, ...]:
    rules = []
    for rule in items(field(node, "rules")):
        is_else = "else" in entries(rule)
        then = else_body(rule) if is_else else field(rule, "then")
        allow = field(then, "allow")
        rules.append(
            Admit(
                allow=isinstance(allow, Scalar) and allow.value is True,
                when=None
                if is_else
                else building.condition(field(rule, "when"), Where.ADMIT, home),
                args=building.values(field(then, "set"), Where.ADMIT, home),
            )
        )
    return tuple(rules)


def tracing(building: Building, node: Node | None, home: Home) -> Tracing:
    """What the executor says of tracing, and over it what the step says."""
    sample: float | None = None
    attributes: Values = {}
    for layer in (building.tracing, node):
        said = nodes.plain(field(layer, "sample"))
        if isinstance(said, int | float) and not isinstance(said, bool):
            sample = float(said)
        attributes |= building.values(field(layer, "attributes"), Where.STEP, home)
    return Tracing(sample=sample, attributes=attributes)


def _join(node: Node | None) -> Join:
    if isinstance(node, Mapping):
        count = nodes.plain(field(node, "n"))
        return Join(kind="count", count=count) if isinstance(count, int) else Join()
    written = nodes.text_of(node)
    if written in ("each", "all", "any"):
        return Join(kind=written)  # type: ignore[arg-type]
    return Join()


def _timeout(
    building: Building,
    spec: Node | None,
    lifecycle: Node | None,
    home: Home,
    default: Amount | None,
) -> Amount | None:
    node = field(lifecycle, "timeout_s") or field(spec, "timeout")
    if isinstance(node, Mapping):
        node = field(node, "total")
    asked = building.amount(node, Where.STEP, home)
    limit = building.limits.timeout
    if node is None or asked is None:
        if default is None or isinstance(default, str) or limit is None:
            return default
        return min(default, limit)
    return within(building, asked, limit, "the step's timeout", node.place)


def _timers(building: Building, node: Node | None, home: Home) -> tuple[Timer, ...]:
    return tuple(
        Timer(
            id=text(item, "id") or "",
            after=building.amount(field(item, "after"), Where.STEP, home),
            at=building.value(field(item, "at"), Where.STEP, home),
        )
        for item in items(node)
    )


def _form(building: Building, node: Node | None, home: Home) -> tuple[FormField, ...]:
    fields = items(node) or items(field(node, "fields"))
    plain = [building.value(item, Where.STEP, home) for item in fields]
    return form_fields(plain)


def form_fields(written: list[Any]) -> tuple[FormField, ...]:
    """Questions or inputs as they were written, with names, in today's words."""
    plain = []
    for one in written:
        if not isinstance(one, dict):
            return ()
        kind = one.get("type") or "text"
        named = {**one, "type": ALIASES.get(str(kind), kind)}
        if "desc" in named:
            named["help"] = named.pop("desc")
        plain.append(named)
    try:
        return msgspec.convert(plain, tuple[FormField, ...])
    except msgspec.ValidationError:
        return ()  # the shape check has said what is wrong with it


def _reached(building: Building, step: Step, own: list[Use]) -> tuple[list[Use], bool]:
    """The templates that running a step may evaluate, and whether it may read anything at all."""
    uses, whole = [*building.secret_uses, *own], False
    seen: set[str] = set()
    bodies: list[Step | Block] = [step]
    while bodies:
        for task in all_tasks(bodies.pop()):
            # What reads `context` reads what no template tells us.
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


def workbook(building: Building, node: Node | None, outer: Values) -> tuple[Block, ...]:
    """The workbook's entries, written as a mapping or as a list with names."""
    if node is not None and is_task_table(node):
        node = field(node, "tasks")
    if isinstance(node, Mapping):
        written = [(key, node.keys[key], value) for key, value in node.entries.items()]
    else:
        written = [
            (text(item, "name") or f"entry_{index}", (field(item, "name") or item).place, item)
            for index, item in enumerate(items(node))
        ]
    # By name: the order of entries means nothing, so it must not change the digest.
    written.sort(key=lambda entry: entry[0])
    return tuple(_block(building, name, place, body, outer) for name, place, body in written)


def _promising(building: Building, tasks: tuple[Task, ...], promised: Values) -> tuple[Task, ...]:
    """What an entry expects its first task expects; what it returns its last task returns."""
    if not promised or not tasks:
        return tasks
    found = list(tasks)
    for index, key in ((0, "expects"), (-1, "returns")):
        names = promised["assert"].get(key)
        if names:
            own = found[index].spec.get("assert", {})
            spec = {**found[index].spec, "assert": {**own, key: names}}
            changed = msgspec.structs.replace(found[index], spec=spec)
            building.mark_as(changed, found[index])
            found[index] = changed
    return tuple(found)


def _holds_template(value: object) -> bool:
    match value:
        case str():
            return has_template(value)
        case list():
            return any(map(_holds_template, value))
        case dict():
            return any(map(_holds_template, value.values()))
    return False


def _block(building: Building, name: str, place: Place, node: Node, outer: Values) -> Block:
    loop_node = field(node, "loop")
    iterator = iterator_of(loop_node)
    home = Home(block=name, iterators=(iterator,) if iterator else ())
    first_use = len(building.uses)
    layered = merge(outer, noted_knobs(building, field(loop_node, "spec"), home))
    frame = Frame(home=home, spec=layered)
    is_task = "kind" in entries(node)
    tasks = pipeline(building, node if is_task or items(node) else field(node, "tool"), frame)
    if is_task and tasks:
        # What a task that is an entry writes out are defaults of the entry.
        inputs = {k: v for k, v in tasks[0].inputs.items() if not _holds_template(v)}
        computed = {k: v for k, v in tasks[0].inputs.items() if k not in inputs}
        only = msgspec.structs.replace(tasks[0], inputs=computed)
        building.mark_as(only, tasks[0])
        tasks = (only,)
    else:
        inputs = building.values(field(node, "args", "input", "with"), Where.TASK, home)
    tasks = _promising(building, tasks, promises(field(node, "assert")) if not is_task else {})
    made = Block(
        name=name,
        description=text(node, "desc", "description") or "",
        inputs=inputs,
        loop=loop(building, loop_node, home),
        tasks=tasks,
    )
    building.mark(made, place)
    building.blocks[name] = (made, building.uses[first_use:])
    return made
