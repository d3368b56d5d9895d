"""Migrates a playbook from older dialects to the canonical one, where that says exactly the same.

A form without an exact equivalent stays as it is, and a remark says why; the compiler still accepts
it. A canonical playbook comes back byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping

from noetl.dsl.compile import compile_text
from noetl.dsl.older import rewrite as rewrite_older_forms
from noetl.dsl.playbook import API_VERSION
from noetl.dsl.steps import WrittenStep
from noetl.model.problems import Place
from noetl.model.rewrites import Rewritten
from noetl.model.toolshape import ToolShape
from noetl.rewrite.edit import TreeWritten, Work
from noetl.rewrite.fmt import read_data, write_canonical
from noetl.rewrite.layout import parse_tree
from noetl.rewrite.routing import migrate_case, migrate_next
from noetl.rewrite.tasks import (
    migrate_condition,
    migrate_own_retry,
    migrate_pipeline,
    migrate_task,
    move_retry,
    tasks_of,
    then,
)
from noetl.rewrite.templates import rewrite, take_out
from noetl.rewrite.tree import (
    Branch,
    Entry,
    Leaf,
    children,
    gather,
    is_null,
    items,
    listing,
    located,
    mapping,
    mapping_at,
    merges,
    pair,
    scalar,
    text_at,
    text_in,
    without_blanks,
)


def migrate_text(text: str, tools: Mapping[str, ToolShape]) -> Rewritten:
    """Rewrite what has an exact canonical equivalent. Raises PlaybookRejected for broken YAML."""
    read_data(text)
    root = parse_tree(text)
    work = Work(tools)
    rewrite_older_forms(TreeWritten(work, root, "a playbook"), tools)
    _migrate_root(work, root)
    for entry in items(root.get("workflow")):
        _migrate_step(work, entry)
    _migrate_workbook(work, root)
    migrated = write_canonical(root) if work.changes else text
    if _take_out_absent_names(work, root, migrated):
        migrated = write_canonical(root)
    return Rewritten(migrated, tuple(sorted(work.changes)), tuple(sorted(work.remarks)))


def _take_out_absent_names(work: Work, root: Branch, migrated: str) -> bool:
    """Take reserved names out of templates in whose scope they do not exist. What their guards
    (`default`, `is defined`) answer stays.
    """
    compiled = compile_text(migrated, tools=work.tools)
    if not compiled.absent:
        return False
    done = len(work.changes)
    entries = dict(located(root))
    for problem in compiled.problems:
        names = compiled.absent.get(Place(problem.line, problem.column), frozenset())
        entry = entries.get(problem.path)
        if problem.code != "guarded-name" or entry is None or not isinstance(entry.value, Leaf):
            continue
        listed = " and ".join(f"`{name}`" for name in sorted(names))
        if take_out(work, entry.value, names):
            work.changed(entry, f"{listed}: undefined here, so only its guard counts.")
        else:
            work.kept(entry, f"{listed}: undefined here. Write what the template means.")
    return len(work.changes) > done


# --- The document ------------------------------------------------------------------------------


def _migrate_root(work: Work, root: Branch) -> None:
    if merges(root):
        return
    version = root.find("apiVersion")
    written = text_in(version.value) if version is not None else None
    if version is not None and written != API_VERSION and (written or "").startswith("noetl"):
        version.value = scalar(API_VERSION)
        work.changed(version, f"`apiVersion` is {API_VERSION} today.")
    for name in ("name", "path"):
        work.move(root, name, "metadata", "a playbook")
    work.rename(root, "steps", "workflow")
    _migrate_root_vars(work, root)


def _migrate_root_vars(work: Work, root: Branch) -> None:
    """Root `vars` are inputs; templates that read them read `workload` from now on."""
    entry = root.find("vars")
    moved = mapping_at(root, "vars")
    if entry is None or moved is None:
        return
    names = {part.name for part in moved.entries}
    taken = {part.name for part in children(root.get("workload"))}
    for step in items(root.get("workflow")):
        taken |= {part.name for part in children(mapping_at(step.value, "vars"))}
    if names & taken or merges(moved) or moved.props or not root.has_room("workload"):
        work.kept(
            entry,
            "root `vars` belong in `workload`, but some of these names are used there or by a"
            " step's `vars` already. Rename them by hand.",
        )
        return
    root.remove(entry)
    workload = root.make_room("workload")
    if moved.entries:
        moved.entries[0].lead[:0] = gather(entry, moved.entries)
    workload.entries += moved.entries

    def in_workload(path: list[str]) -> list[str]:
        is_moved = path[0] == "vars" and path[1:2] and path[1] in names
        return ["workload", *path[1:]] if is_moved else path

    for section in ("workflow", "workbook"):
        rewrite(root.get(section), in_workload)
    work.changed(entry, "root `vars` belong in `workload`; templates read them there.")


def _migrate_workbook(work: Work, root: Branch) -> None:
    workbook = root.get("workbook")
    tasks = mapping_at(workbook, "tasks")
    for entry in children(tasks if tasks is not None else workbook):
        block = entry.value
        if not isinstance(block, Branch) or merges(block):
            continue
        if not block.is_map:
            migrate_pipeline(work, entry)
            continue
        _migrate_loop(work, block)
        if block.find("kind") is not None:
            migrate_task(work, entry)
            continue
        for name in ("input", "with"):
            work.rename(block, name, "args", "a workbook entry")
        tool = block.find("tool")
        if tool is not None:
            migrate_pipeline(work, tool)


# --- Steps -------------------------------------------------------------------------------------


def _migrate_step(work: Work, holder: Entry) -> None:
    step = holder.value
    if not isinstance(step, Branch) or not step.is_map:
        return
    if merges(step):
        work.kept(holder, "this step takes keys from elsewhere with `<<`. Change it by hand.")
        return
    _migrate_type(work, step)
    work.rename(step, "pipe", "tool")
    for name in ("input", "with"):
        work.rename(step, name, "args", "a step")
    _migrate_when(work, step)
    for rule in items((mapping_at(step, "spec", "policy", "admit") or mapping()).get("rules")):
        migrate_condition(work, rule.value)
    _migrate_loop(work, step)
    tool = step.find("tool")
    if tool is not None:
        migrate_pipeline(work, tool, inherits=_hands_down_retry(step))
    _migrate_step_retry(work, step)
    _migrate_event_tasks(work, step)
    migrate_case(work, step)
    migrate_next(work, step)
    for name, message in _STAYS.items():
        if (entry := step.find(name)) is not None and not is_null(entry.value):
            work.kept(entry, message)


def _migrate_type(work: Work, step: Branch) -> None:
    """`type: http` (or `tool: http`) with the tool's keys beside it → `tool: {kind: http, …}`."""
    entry = step.find("type") or step.find("tool")
    kind = text_in(entry.value) if entry is not None else None
    if entry is None or kind is None:
        return
    tool = work.tools.get(kind)
    if tool is None or (entry.name == "type" and step.find("tool") is not None):
        work.kept(
            entry,
            f"`{entry.name}: {kind}` names no tool kind, or there is a `tool` beside it. Write"
            " `tool: {kind: …}` by hand.",
        )
        return
    moved = [
        part
        for part in step.entries
        if part.name == "with" or (tool.takes(part.name) and part.name not in WrittenStep.declared)
    ]
    for part in moved:
        step.remove(part)
        part.lead = without_blanks(part.lead)
    named = pair("kind", entry.value)
    named.side = entry.side
    made = pair("tool", mapping(named, *moved))
    made.lead, made.line = entry.lead, entry.line
    step.entries = [made if part is entry else part for part in step.entries]
    work.changed(entry, f"`{entry.name}: {kind}` is `tool: {{kind: {kind}, …}}`.")


def _migrate_when(work: Work, step: Branch) -> None:
    """`when` on a step → its admission policy."""
    entry = step.find("when")
    if entry is None:
        return
    if not step.has_room("spec", "policy") or mapping_at(step, "spec", "policy", "admit"):
        work.kept(entry, "`when` belongs in `spec.policy.admit`, which is there already.")
        return
    step.remove(entry)
    allow = mapping(pair("when", entry.value, entry), then(pair("allow", True)))
    refuse = mapping(pair("else", mapping(then(pair("allow", False)))))
    admit = pair("admit", mapping(pair("rules", listing(allow, refuse))))
    step.make_room("spec", "policy").entries.append(admit)
    work.changed(entry, "`when` of a step is a rule of `spec.policy.admit`.")


def _migrate_loop(work: Work, step: Branch) -> None:
    loop = mapping_at(step, "loop")
    if loop is None or merges(loop):
        return
    work.rename(loop, "collection", "in", "a loop")
    work.rename(loop, "element", "iterator", "a loop")
    work.move(loop, "mode", "spec", "a loop")


def _hands_down_retry(step: Branch) -> bool:
    on_error = text_at(step.get("spec"), "on_error")
    return step.find("retry") is not None or on_error == "retry"


def _migrate_step_retry(work: Work, step: Branch) -> None:
    """A step's retry moves to every task that has none; then those that have one can follow."""
    tasks = tasks_of(step.get("tool")) or []
    own = [t for t in tasks if isinstance(t.value, Branch) and t.value.find("retry") is not None]
    entry = step.find("retry")
    if entry is not None:
        reason = _why_step_retry_stays(step, tasks)
        others = [t for t in tasks if t not in own]
        if reason is not None:
            work.kept(entry, f"`retry` of a step stays: {reason}. Write policy rules on its tasks.")
        elif not others:
            work.kept(entry, "`retry` of a step stays: every task has its own. Remove it.")
        elif move_retry(work, entry, others):
            step.remove(entry)
    if entry is None and not _hands_down_retry(step):
        return
    for task in own:
        if _hands_down_retry(step):
            assert isinstance(task.value, Branch)
            retry = task.value.find("retry")
            assert retry is not None
            work.kept(retry, "`retry` stays: without it the task would inherit the step's.")
        else:
            migrate_own_retry(work, task)


def _why_step_retry_stays(step: Branch, tasks: list[Entry]) -> str | None:
    if not tasks:
        return "the step's tasks are generated, written elsewhere, or not there"
    if step.find("case") is not None:
        return "tasks of its event rules inherit it too"
    if text_at(step.get("spec"), "on_error") == "retry":
        return "`on_error: retry` asks for the default retry where there is no other"
    return None


def _migrate_event_tasks(work: Work, step: Branch) -> None:
    """Tasks inside `sink` and `case` stay there, with canonical keys."""
    sink = mapping_at(step, "sink")
    actions = [sink] if sink is not None else []
    for rule in items(step.get("case")):
        for entry in children(rule.value):
            below = children(entry.value)
            inner = [one for child in below for one in children(child.value)]
            for action in [entry, *below, *inner]:
                actions += [branch] if (branch := mapping_at(action.value)) is not None else []
    for branch in actions:
        tool = branch.find("tool")
        if tool is not None and mapping_at(tool.value) is not None:
            migrate_task(work, tool, inherits=True)


_STAYS = {
    "sink": "`sink` stays: as a last task of the pipeline it would change what the step yields. If"
    " nothing reads this step's result, list its tool as the last task instead.",
    "vars": "`vars` stays: its values are readable as `vars.*` and through the API. Values only"
    " needed in this playbook can be written with `set_ctx`.",
    "set": "`set` of a step stays: it is written once the step is done. Inside the pipeline"
    " `set_ctx` of a policy rule does it task by task.",
    "run": "`run` is no longer understood and its meaning is not certain. List the tasks under"
    " `tool`.",
    "eval": "`eval` belongs to a task, as `spec.policy.rules`. Say there what should happen.",
    "expr": "`expr` does not say what it is a condition of. Use `spec.policy.admit` or a guard.",
}
