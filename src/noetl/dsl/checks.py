"""The rules of the language that no single shape can check, one function each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from msgspec import structs

from noetl.dsl import nodes
from noetl.dsl.building import Building
from noetl.dsl.grammar import has_template, holds_template
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.playbook import API_VERSION, WrittenPlaybook
from noetl.dsl.report import Report
from noetl.dsl.rules import belongs_to_calls
from noetl.dsl.walk import bodies, parts_of
from noetl.model import fields, labels
from noetl.model.graph import Graph, sources
from noetl.model.net import (
    PLAYBOOK,
    WORKBOOK,
    Block,
    Collect,
    FormField,
    Jump,
    KeychainEntry,
    Net,
    Patch,
    Step,
    Task,
    Value,
    Values,
)
from noetl.model.problems import Place
from noetl.model.spelling import did_you_mean, is_slip, no_such_step
from noetl.model.triggers import KINDS

NOT_FOR_STEPS = frozenset(
    {"workload", "ctx", "vars", "args", "iter", "keychain", "event", "outcome", "steps"}
    | {"execution_id", "job"}
)
NOT_FOR_ITERATORS = NOT_FOR_STEPS | frozenset(
    {"output", "response", "error", "result", "this", "loop", "loop_index", "index", "parent"}
    | {"now", "uuid", "range", "true", "false", "none", "True", "False", "None"}
)
_TASK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

_MIGRATE = " `noetl migrate` rewrites a playbook of an older dialect."
_BEGIN = " docs/tutorial.md shows how a playbook begins."
_FOREIGN = f" This is a document of another program;{_BEGIN}"
_OURS = frozenset({"workflow", "workbook", "workload", "executor", "keychain"})
"""Root keys that no file of another program has."""
_GROUP_NAMES = ("noetl", "noetl.io")
"""What our own `apiVersion` begins with."""
_GROUPS = {
    "argoproj.io": "Argo",
    "tekton.dev": "Tekton",
    "k8s.io": "Kubernetes",
    "apps": "Kubernetes",
}
"""What `apiVersion`s of other programs begin with."""
_FILES: tuple[tuple[str, frozenset[str]], ...] = (
    ("a workflow of GitHub Actions", frozenset({"on", "jobs"})),
    ("a flow of Kestra", frozenset({"id", "namespace", "tasks"})),
    ("a Compose file", frozenset({"services"})),
    ("a state machine of AWS Step Functions", frozenset({"StartAt", "States"})),
    ("a document of Serverless Workflow", frozenset({"document", "do"})),
    ("a pipeline of GitLab", frozenset({"stages"})),
)
"""Files of other programs, by root keys that tell them."""

Check = Callable[[Building, Net], None]
Named = Step | KeychainEntry | Block | Task | FormField


def is_of_another_kind(report: Report, root: Mapping) -> bool:
    """Whether this is a schedule or the like: as a playbook everything in it would be wrong."""
    node = root.entries.get("kind")
    kind = nodes.text_of(node)
    if node is None or kind not in KINDS or kind == "Playbook":
        return False
    report.add(
        "wrong-kind",
        f'kind is "{kind}", and this is not a playbook. `noetl register` puts it to work.',
        node.place,
    )
    return True


def is_of_another_program(report: Report, root: Mapping) -> bool:
    """Whether this is a file of another program: as a playbook everything in it would be wrong."""
    program = None if _OURS & root.entries.keys() else _program(root)
    if program is None:
        return False
    what, node = program
    report.add("not-a-playbook", f"{what}, not a playbook.{_BEGIN}", node.place)
    return True


def _program(root: Mapping) -> tuple[str, Node] | None:
    """What the file is, and the node that shows it; None if it may be meant as a playbook."""
    keys = root.entries.keys()
    version = nodes.text_of(root.entries.get("apiVersion")) or ""
    group, slash, _ = version.partition("/")
    kind = nodes.text_of(root.entries.get("kind"))
    is_told = slash or (version and kind is not None and not is_slip(kind, KINDS))
    if is_told and not group.startswith("noetl") and not is_slip(group, _GROUP_NAMES):
        of_group = next((name for key, name in _GROUPS.items() if group.endswith(key)), "")
        of = of_group or f"another program (apiVersion {version[:60]})"
        return f"this is a {kind or 'document'} of {of}", root.entries["apiVersion"]
    if version:
        return None
    for what, shown in _FILES:
        if shown <= keys:
            return f"this is {what}", root
    for node in root.entries.values():
        if (
            isinstance(node, Mapping)
            and {"default_args", "schedule_interval"} & node.entries.keys()
        ):
            return "this is a DAG of Airflow", root
    return None


def check_document(building: Building, written: WrittenPlaybook) -> None:
    """Check `apiVersion`, `kind` and `metadata`."""
    add = building.report.add
    root, metadata = written.node, written.metadata
    if (version := written.apiVersion) not in (API_VERSION, None):
        group, slash, _ = version.partition("/")
        is_foreign = slash and not is_slip(group, _GROUP_NAMES)
        add(
            "unsupported-version",
            f'apiVersion is "{version}"; today it is {API_VERSION}.'
            + (_MIGRATE if group.startswith("noetl") else _FOREIGN if is_foreign else ""),
            root.entries["apiVersion"].place,
        )
    kind = written.kind
    if kind not in ("Playbook", None):
        others = [one for one in KINDS if one != "Playbook"]
        add(
            "wrong-kind",
            f'kind is "{kind}"; a playbook has `kind: Playbook`. Other documents are'
            f" of kind {' or '.join(others)}.{building.report.suggest(kind or '', others)}",
            root.entries["kind"].place,
        )
    for key, inner in (("name", metadata.name), ("path", metadata.path)):
        if key in root.entries and inner is None:
            add(
                "root-hoisted",
                f"`{key}` belongs in `metadata`; it is read as if it were there.",
                root.keys[key],
            )
        elif key in root.entries:
            add(
                "conflicting-keys",
                f"`{key}` is at the root and in `metadata`. Keep the one in `metadata`.",
                root.keys[key],
            )
    node = written.node_of("metadata")
    named = {"name", "path"} & (nodes.entries(node).keys() | root.entries.keys())
    if not named and (node is None or isinstance(node, Mapping)):
        add(
            "missing-key",
            "a playbook needs `metadata.name` or `metadata.path`.",
            root.place if node is None else node.place,
        )
    for name, label in nodes.entries(metadata.labels).items():
        value = labels.text_of(nodes.plain(label))
        if value is None:
            wrong = f'label "{name}" is not a single value, so executions do not have it.'
        else:
            wrong = labels.problem(name, value) or ""
        if wrong:
            add("label-not-kept", wrong, label.place)


def names_are_unique(building: Building, net: Net) -> None:
    named: list[tuple[str, str, Iterable[Named]]] = [
        ("duplicate-step", "steps", net.steps),
        ("duplicate-keychain", "keychain entries", net.keychain),
        ("duplicate-task", "workbook entries", net.workbook),
        *(("duplicate-field", "form fields", step.form) for step in net.steps),
    ]
    for body in bodies(net):
        named += [("duplicate-task", "tasks", tasks) for tasks in building.parts(body).pipelines]
    for code, what, things in named:
        first: dict[str, Place] = {}
        for thing in things:
            name, place = thing.name, building.at(thing, "name")
            if name in first:
                building.report.add(
                    code,
                    f'there are two {what} called "{name}"; the first is on line'
                    f" {first[name].line}. Rename one of them.",
                    place,
                )
            elif name:
                first[name] = place


def names_are_usable(building: Building, net: Net) -> None:
    """Names must not collide with other names in templates."""
    for step in net.steps:
        _refuse_reserved(building, "a step", step.name, building.at(step, "name"), NOT_FOR_STEPS)
    for body in bodies(net):
        for task in building.parts(body).tasks:
            place = building.written(task, "name")
            if place is None:
                continue  # a generated name
            _refuse_reserved(building, "a task", task.name, place, NOT_FOR_STEPS)
            if not _TASK_NAME.fullmatch(task.name):
                building.report.add(
                    "bad-name",
                    f'a task is called "{task.name[:60]}"; a name has letters, digits, _ and -,'
                    " and does not start with a digit.",
                    place,
                )
        if body.loop is not None:
            _refuse_reserved(
                building,
                "an iterator",
                body.loop.iterator,
                building.at(body.loop, "iterator"),
                NOT_FOR_ITERATORS,
            )


def _refuse_reserved(
    building: Building, what: str, name: str, place: Place, reserved: frozenset[str]
) -> None:
    if name in reserved:
        building.report.add(
            "reserved-name",
            f'{what} is called "{name}", which already means something in templates.'
            f' Try "{name}_1" or a more telling name.',
            place,
        )


def entry_exists(building: Building, net: Net) -> None:
    names = [step.name for step in net.steps]
    if not names:
        return  # the shape has reported that there are no steps
    if net.entry not in names:
        building.report.add(
            "no-entry-step",
            f'entry_step names "{net.entry}", which is not a step.'
            + building.report.suggest(net.entry, names),
            building.at(net, "entry"),
        )


ENDS = frozenset({"end", "done", "stop", "finish", "exit"})
"""What people call a step that they did not write, to say that a playbook ends."""


def tokens_go_somewhere(building: Building, net: Net) -> None:
    names = {step.name for step in net.steps}
    for step in net.steps:
        for way in building.parts(step).ways_out:
            if way.step and way.step not in names and not has_template(way.step):
                hint = building.report.suggest(way.step, names)
                if not hint and way.step in ENDS:
                    hint = " A step where the playbook ends has no `next`."
                building.report.add(
                    "unknown-step",
                    f'step "{step.name}" sends its token to "{way.step}", which is not a step.'
                    + hint,
                    building.at(way, "step"),
                )


def jumps_land(building: Building, net: Net) -> None:
    for body in bodies(net):
        for tasks in building.parts(body).pipelines:
            names = [task.name for task in tasks]
            for task in tasks:
                for action in (action for rule in task.rules for action in rule.actions):
                    if isinstance(action, Jump) and action.to and action.to not in names:
                        building.report.add(
                            "unknown-task",
                            f'task "{task.name}" jumps to "{action.to}", which is not a task of'
                            f' "{body.name}".' + building.report.suggest(action.to, names),
                            building.at(action, "to"),
                        )


def references_exist(building: Building, net: Net) -> None:
    """Workbook calls and compensations must name something that exists."""
    blocks = {block.name: block for block in net.workbook}
    for task in building.tasks(net):
        name = task.config.get("task")
        if task.kind != WORKBOOK or not isinstance(name, str) or has_template(name):
            continue
        for key in task.inputs.keys() & (blocks[name].inputs if name in blocks else ()):
            if holds_template(blocks[name].inputs[key]):
                building.report.add(
                    "unused-key",
                    f'`{key}` has no effect: workbook entry "{name}" computes its own. Give it'
                    " another name, or write a plain default there.",
                    building.at(task, "args"),
                )
        if name not in blocks:
            hint = building.report.suggest(name, blocks)
            building.report.add(
                "unknown-workbook-task",
                f'the workbook has no entry "{name}".'
                + (hint or " Add it under the root key `workbook`."),
                building.at(task, "task"),
            )
    steps = [step.name for step in net.steps]
    for step in net.steps:
        if step.compensate is not None and step.compensate not in (*steps, *blocks):
            building.report.add(
                "unknown-task",
                f'step "{step.name}" is compensated by "{step.compensate}", which is neither a'
                " step nor a workbook entry."
                + building.report.suggest(step.compensate, [*steps, *blocks]),
                building.at(step, "compensate"),
            )


def joins_are_possible(building: Building, net: Net) -> None:
    graph = step_graph(building, net)
    if graph is None:
        return
    arriving = sources(graph)
    for step in net.steps:
        wants = {"all": 1, "count": (step.join.count or 0) - (step.name == net.entry)}
        needed = wants.get(step.join.kind, 0)
        if needed > 0 and not arriving[step.name]:
            building.report.add(
                "join-impossible",
                f'step "{step.name}" waits for tokens from arcs, but no arc leads to it.'
                " Lead arcs to it, or drop the join.",
                building.at(step, "join"),
            )


def partitions_run_token_by_token(building: Building, net: Net) -> None:
    joins = {step.name: step.join.kind for step in net.steps}
    for step in net.steps:
        for arc in step.router.arcs:
            join = joins.get(arc.step, "each")
            if arc.partition is None or join == "each":
                continue
            building.report.add(
                "partition-without-each",
                f'the arc from "{step.name}" partitions its tokens, but step "{arc.step}" joins'
                f" them (`join: {join}`). Give it `spec: {{join: each}}`, so that each token has a"
                " run of its own.",
                building.at(arc, "step"),
            )


def step_graph(building: Building, net: Net) -> Graph | None:
    """The arcs between steps; None if a template decides a target at run time."""
    graph: Graph = {step.name: [] for step in net.steps}
    for step in net.steps:
        targets = [way.step for way in building.parts(step).ways_out]
        if any(has_template(target) for target in targets):
            return None
        graph[step.name] += targets
    return graph


def parallel_writes_combine(building: Building, net: Net) -> None:
    for body in bodies(net):
        if body.loop is None or body.loop.mode != "parallel":
            continue
        iterated: Step | Block = body
        if isinstance(body, Step):
            # What the step and rules for the loop as a whole write is written once.
            rules = tuple(one for one in body.rules if belongs_to_calls(one.events, looped=True))
            iterated = structs.replace(body, rules=rules, patch=None)
        parts = parts_of(iterated)
        written: list[tuple[str, str, Patch | Collect]] = [
            (key, "append", patch) for patch in parts.patches for key in patch.ctx
        ]
        for action in parts.actions:
            if isinstance(action, Collect) and action.into.startswith("ctx."):
                # What it writes is all that it has collected.
                by = {"merge": "merge", "replace": "last"}.get(action.mode, "extend")
                written.append((action.into.removeprefix("ctx."), by, action))
        for key, by, action in written:
            if key.partition(".")[0] in body.loop.reduce:
                continue
            only = ""
            if isinstance(action, Patch) and key in keys_added_to(building, action):
                by, only = "sum", ", and write only what one adds: it does not see what others do"
            building.report.add(
                "parallel-ctx-write",
                f'iterations of the parallel loop of "{body.name}" all write `ctx.{key}`;'
                " the second write will fail. Say how they combine:"
                f" `loop.spec.policy.reduce: {{{key}: {by}}}`{only}.",
                building.at(action),
            )


def keys_added_to(building: Building, patch: Patch) -> set[str]:
    """The keys of ctx whose new value is computed from the old one."""
    found = set()
    for key, value in patch.ctx.items():
        whole = ("ctx", *key.split("."))
        for path in building.expressions.reads(value) if isinstance(value, str) else ():
            if len(path) > 1 and path[: len(whole)] == whole[: len(path)]:
                found.add(key)
    return found


def sinks_have_something_to_store(building: Building, net: Net) -> None:
    for step in net.steps:
        if step.sink is not None and building.written(step, "tool") is None:
            building.report.add(
                "sink-without-tool",
                f'step "{step.name}" has a `sink`, but no tool whose result it could store. Give'
                " the step a tool, or write the sink as the step's tool.",
                building.at(step.sink),
            )


def auth_is_spelled_as_declared(building: Building, net: Net) -> None:
    """Stored credentials are unknown here, but a name similar to a keychain entry is suspicious."""
    declared = [entry.name for entry in net.keychain]
    if not declared:
        return
    for task in building.tasks(net):
        for key in ("auth", "credential"):
            name = task.config.get(key)
            if not isinstance(name, str) or name in declared or not is_slip(name, declared):
                continue
            building.report.add(
                "undeclared-keychain",
                f'`{key}` of task "{task.name}" names "{name}", which the keychain does not'
                f" have.{building.report.suggest(name, declared)} A stored credential of that"
                " name would be used.",
                building.at(task),
            )


def cursors_and_partitions_belong_to_steps(building: Building, net: Net) -> None:
    """A cursor is recorded frame by frame, an end of an iteration before the next of its key; and a
    call of a workbook entry is one call.
    """
    for block in net.workbook:
        if block.loop is not None and block.loop.cursor is not None:
            building.report.add(
                "cursor-in-workbook",
                f'workbook entry "{block.name}" loops over a `cursor`; an entry is one call, and'
                " its frames could not be recorded one by one. Put the loop on a step, and call"
                " the entry for each row.",
                building.at(block.loop),
            )
        if block.loop is not None and block.loop.partition is not None:
            building.report.add(
                "policy-out-of-place",
                f'`partition` in the loop of workbook entry "{block.name}" orders nothing: an entry'
                " is one call, and the ends of its passes are not recorded. Put the loop on a step,"
                " and call the entry in each iteration, or write `mode: sequential`.",
                building.at(block.loop, "partition"),
            )


def inputs_make_sense(building: Building, net: Net) -> None:
    """Inputs need names that templates can use, bounds of the right type and defaults that fit."""
    for one in net.executor.inputs:
        place = building.at(one)
        if not _TASK_NAME.fullmatch(one.name) or "-" in one.name:
            building.report.add(
                "bad-name",
                f'"{one.name[:60]}" cannot be the name of an input: it has letters, digits and'
                " underscores and does not start with a digit.",
                place,
            )
        if _is_malformed(building, one, "input"):
            continue
        written = net.workload.get(one.name, one.default)
        if one.default is not None and written != one.default:
            building.report.add(
                "conflicting-keys",
                f'input "{one.name}" has the default {one.default!r} here and {written!r} under'
                " `workload`. Keep one of them.",
                building.at(one, "default"),
            )
        elif written is not None and not (isinstance(written, str) and has_template(written)):
            _refuse_unfit(building, one, "input", written)


def forms_make_sense(building: Building, net: Net) -> None:
    """The same for questions, where no template has a say."""
    for step in net.steps:
        for one in step.form:
            if holds_template([one.options, one.min, one.max, one.pattern]):
                continue
            if _is_malformed(building, one, "form field") or one.default is None:
                continue
            if not holds_template(one.default):
                _refuse_unfit(building, one, "form field", one.default)


def _is_malformed(building: Building, one: FormField, what: str) -> bool:
    """Whether no value fits it, which is reported."""
    if one.type == "choice" and not fields.options(one):
        problem = "is a choice and has nothing to choose from. Write `options: [a, b]`."
        building.report.add(
            "bad-value", f'{what} "{one.name}" {problem}', building.at(one, "options")
        )
        return True
    if problem := fields.wrong_bounds(one) or "":
        building.report.add("bad-value", f'{what} "{one.name}": {problem}', building.at(one))
        return True
    return False


def _refuse_unfit(building: Building, one: FormField, what: str, default: Value) -> None:
    try:
        fields.fitted(one, default)
    except fields.Unfit as error:
        building.report.add(
            "bad-value",
            f'the default of {what} "{one.name}" does not fit: it {error}.',
            building.at(one, "default"),
        )


def calls_fit(building: Building, net: Net) -> None:
    """Calls of known playbooks must pass inputs that those take, and name a step that they have."""
    known = {net.path: net, **building.known.playbooks}
    for task in building.tasks(net):
        path = task.config.get("path")
        if task.kind != PLAYBOOK or not isinstance(path, str):
            continue
        called = known.get(path)
        if called is None:
            _warn_of_file(building, task, path)
        elif "version" not in task.config:
            _check_call(building, task, called)


def _warn_of_file(building: Building, task: Task, path: str) -> None:
    if path.endswith((".yaml", ".yml")) and not has_template(path):
        building.report.add(
            "playbook-is-a-file",
            f'"{path[:60]}" is the name of a file; playbooks are called by their path in the'
            " catalog. Write what the file has under `metadata.path`.",
            building.at(task, "path"),
        )


def _check_call(building: Building, task: Task, called: Net) -> None:
    steps = [step.name for step in called.steps]
    wanted = task.config.get("return_step")
    if isinstance(wanted, str) and wanted not in steps and not has_template(wanted):
        message = f"`return_step`: {no_such_step(wanted, steps, called.path)}"
        building.report.add("bad-call", message, building.at(task, "return_step"))
    payload = task.config.get("payload", {})
    if not isinstance(payload, dict):
        return
    given = {**payload, **task.inputs}
    place = building.written(task, "args") or building.at(task)
    if called.executor.inputs:
        for misfit in _misfits(called, given):
            building.report.add("bad-call", f'"{called.path}" {misfit}', place)
        return
    # It takes any others as well, so only probable misspellings are reported.
    for name in given:
        if name not in called.workload and is_slip(name, called.workload):
            building.report.add(
                "undefined-key",
                f'the workload of "{called.path}" has no "{name}".'
                + building.report.suggest(name, called.workload),
                place,
            )


def _misfits(called: Net, given: Values) -> Iterator[str]:
    inputs = {one.name: one for one in called.executor.inputs}
    known = [*inputs, *called.workload]
    for name, value in given.items():
        if name not in known:
            yield f'has no input "{name}".{did_you_mean(name, known)}'
        elif name in inputs and not holds_template(value):
            try:
                fields.fitted(inputs[name], value)
            except fields.Unfit as error:
                yield f'does not take this call: input "{name}" {error}.'
    for one in fields.missing(called.executor.inputs, called.workload):
        if one.name not in given:
            yield f'needs the input "{one.name}": it takes {fields.wanted(one)}.'


CHECKS: tuple[Check, ...] = (
    calls_fit,
    auth_is_spelled_as_declared,
    inputs_make_sense,
    forms_make_sense,
    names_are_unique,
    names_are_usable,
    entry_exists,
    tokens_go_somewhere,
    jumps_land,
    references_exist,
    joins_are_possible,
    partitions_run_token_by_token,
    parallel_writes_combine,
    sinks_have_something_to_store,
    cursors_and_partitions_belong_to_steps,
)
