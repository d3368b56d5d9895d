"""The document: from the root mapping to the net."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.dsl import nodes
from noetl.dsl.building import (
    Building,
    Home,
    Where,
    deep,
    entries,
    field,
    flag,
    items,
    text,
    whole,
    word,
)
from noetl.dsl.layers import executor_knobs, written_limits
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.schemas import result_schema
from noetl.dsl.steps import (
    form_fields,
    kind_defaults,
    pool_of,
    step,
    tracing,
    workbook,
    worker_labels,
)
from noetl.model.net import (
    PLAYBOOK,
    Concurrency,
    Executor,
    FormField,
    KeychainEntry,
    Locality,
    Net,
    OnLimit,
    Step,
    Task,
    Values,
)

ROOT = Home()
REFERENCE_FIRST_BYTES = 1024
"""The inline limit of results under `reference_first`."""


def build(building: Building, root: Mapping) -> Net:
    """Everything the playbook says. Parts with the wrong shape are left out: they are reported."""
    # First, because a step that uses an entry needs what the entry reads.
    keychain = _keychain(building, field(root, "keychain"))
    building.secret_uses = list(building.uses)
    executor = field(root, "executor")
    building.limits = written_limits(executor).within(building.limits)
    building.kind_defaults = kind_defaults(deep(executor, "spec", "policy"))
    building.tracing = deep(executor, "spec", "policy", "tracing")
    if _is_reference_first(executor):
        building.inline_max = REFERENCE_FIRST_BYTES
    outer = executor_knobs(executor)
    default_timeout = building.amount(
        deep(executor, "spec", "policy", "defaults", "timeouts", "step"), Where.STEP, ROOT
    )
    blocks = workbook(building, field(root, "workbook"), outer)
    steps = tuple(
        step(building, node, outer, default_timeout)
        for node in items(field(root, "workflow"))
        if isinstance(node, Mapping)
    )
    built = _executor(building, executor)
    if building.tracing is not None:
        built = msgspec.structs.replace(built, tracing=tracing(building, None, ROOT))
    name, path = _names(root)
    handler = _on_failure(building, field(field(executor, "spec"), "on_failure"), steps, path)
    if handler is not None:
        built = msgspec.structs.replace(built, on_failure=handler.name)
        if handler not in steps:
            steps = (*steps, handler)
    metadata = field(root, "metadata")
    net = Net(
        name=name,
        path=path,
        version=_version(field(metadata, "version")),
        description=text(metadata, "description", "desc") or "",
        labels=_labels(metadata),
        entry=_entry(executor, [found.name for found in steps]),
        workload=_workload(building, root, built.inputs),
        keychain=keychain,
        executor=built,
        steps=steps,
        workbook=blocks,
    )
    entry_node = deep(executor, "spec", "entry_step")
    building.mark(
        net,
        root.place,
        entry=entry_node.place if entry_node is not None else None,
        workflow=root.keys.get("workflow"),
    )
    return net


def _on_failure(
    building: Building, node: Node | None, steps: tuple[Step, ...], path: str
) -> Step | None:
    """The step that runs when an execution fails; for a playbook, one is made that calls it."""
    wanted = nodes.text_of(node) if node is not None else None
    if not wanted or node is None:
        return None
    names = [one.name for one in steps]
    for one in steps:
        if one.name == wanted:
            return one
    if hint := building.report.suggest(wanted, names):
        building.report.add(
            "unknown-step",
            f'`on_failure` names "{wanted}", which is neither a step nor the path of a'
            f" playbook.{hint}",
            node.place,
        )
        return None
    name = next(
        one
        for one in ("on_failure", *(f"on_failure_{n}" for n in range(2, 1000)))
        if one not in names
    )
    call = Task(
        name=f"{name}_task",
        kind=PLAYBOOK,
        config={"path": wanted},
        inputs={
            "error": "{{ args.error }}",
            "failed_step": "{{ args.failed_step }}",
            "execution_id": "{{ execution_id }}",
            "path": path,
        },
    )
    made = Step(
        name=name,
        description=f"Runs {wanted} when the execution fails.",
        tasks=(call,),
        tracing=tracing(building, None, Home(name=name)),
    )
    building.mark(call, node.place)
    building.mark(made, node.place)
    return made


def _workload(building: Building, root: Mapping, inputs: tuple[FormField, ...]) -> Values:
    """The workload's defaults; those of inputs stand among them."""
    found = building.values(field(root, "workload"), Where.WORKLOAD, ROOT)
    defaults = {
        one.name: one.default
        for one in inputs
        if (one.default is not None or not one.required) and one.name not in found
    }
    return {**found, **defaults}


def _names(root: Mapping) -> tuple[str, str]:
    metadata = field(root, "metadata")
    name = text(metadata, "name") or text(root, "name")
    path = text(metadata, "path") or text(root, "path")
    return name or (path or "").rpartition("/")[2], path or name or ""


def _version(node: Node | None) -> str | None:
    return node.text if isinstance(node, nodes.Scalar) else None


def _labels(metadata: Node | None) -> Values:
    found: Values = {
        key: nodes.plain(value) for key, value in entries(field(metadata, "labels")).items()
    }
    for key in ("tags", "owner"):
        if (value := nodes.plain(field(metadata, key))) is not None:
            found[key] = value
    return {key: found[key] for key in sorted(found)}


def _entry(executor: Node | None, names: list[str]) -> str:
    written = text(field(executor, "spec"), "entry_step")
    if written is not None:
        return written
    return "start" if "start" in names or not names else names[0]


def _keychain(building: Building, node: Node | None) -> tuple[KeychainEntry, ...]:
    found = []
    for item in items(node):
        entry = KeychainEntry(
            name=text(item, "name") or "",
            kind=text(item, "kind") or "",
            config={
                key: building.value(value, Where.KEYCHAIN, ROOT)
                for key, value in sorted(entries(item).items())
                if key not in ("name", "kind", "desc")
            },
        )
        name = field(item, "name")
        building.mark(entry, item.place, name=name.place if name is not None else None)
        found.append(entry)
    return tuple(found)


def _is_reference_first(executor: Node | None) -> bool:
    return bool(flag(deep(executor, "spec", "policy", "results"), "reference_first"))


def _executor(building: Building, node: Node | None) -> Executor:
    spec = field(node, "spec")
    return Executor(
        kind=word(node, Locality, "kind") or "local",
        profile=text(node, "profile"),
        pool=pool_of(building, spec),
        labels=worker_labels(field(spec, "policy")),
        no_next_is_error=bool(flag(spec, "no_next_is_error")),
        reference_first=_is_reference_first(node),
        limits=building.limits,
        concurrency=_concurrency(building, field(spec, "concurrency")),
        max_running=whole(field(spec, "limits"), "max_running"),
        priority=whole(spec, "priority") or 0,
        inputs=_inputs(building, field(spec, "inputs")),
        result=result_schema(building, field(spec, "result")),
        compensate_on=_compensate_on(deep(spec, "policy", "compensate_on")),
    )


def _compensate_on(node: Node | None) -> tuple[Any, ...]:
    """In one order and each once, so that equal playbooks are equal nets."""
    if node is None:
        return Executor().compensate_on
    written = {nodes.text_of(one) for one in items(node)}
    return tuple(one for one in ("failure", "cancel") if one in written)


def _concurrency(building: Building, node: Node | None) -> Concurrency | None:
    key = building.value(field(node, "key"), Where.WORKLOAD, ROOT)
    if key is None:
        return None
    return Concurrency(
        key=key,
        limit=whole(node, "limit") or 1,
        on_limit=word(node, OnLimit, "on_limit") or "queue",
    )


def _inputs(building: Building, node: Node | None) -> tuple[FormField, ...]:
    written = [
        {**plain, "name": name}
        for name, item in entries(node).items()
        if isinstance(plain := nodes.plain(item) or {}, dict)
    ]
    found = form_fields(written)
    for one in found:
        item = entries(node)[one.name]
        parts = {key: value.place for key, value in entries(item).items()}
        building.mark(one, item.place, **parts)
    return found
