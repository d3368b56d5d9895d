"""Migrates tasks: their names and inputs, and keys that are policy rules in canonical form."""

from __future__ import annotations

from noetl.dsl.building import Where
from noetl.dsl.policies import ON_ANY_ERROR, on_errors
from noetl.dsl.sugar import SUGAR
from noetl.model.net import WORKBOOK
from noetl.rewrite.edit import Work
from noetl.rewrite.templates import fits, output_is_outcome, reads_of, rewrite
from noetl.rewrite.tree import (
    Branch,
    Entry,
    Leaf,
    Tree,
    children,
    gather,
    is_null,
    items,
    leaves,
    listing,
    mapping,
    mapping_at,
    merges,
    own_mapping,
    pair,
    scalar,
    text_at,
    text_in,
    then_of,
    without_blanks,
)

_RETRY_KEYS = {
    "max_attempts": "attempts",
    "attempts": "attempts",
    "initial_delay": "delay",
    "delay": "delay",
    "delay_seconds": "delay",
    "max_delay": "max_delay",
    "max_delay_seconds": "max_delay",
    "backoff_multiplier": "multiplier",
    "multiplier": "multiplier",
    "jitter": "jitter",
    "type": "backoff",
}
_HOOKS = ("before", "after", "finally")


def migrate_pipeline(work: Work, holder: Entry, *, inherits: bool = False) -> None:
    """`tool` of a step, a workbook entry, a hook or a branch of sugar.

    `inherits`: the step hands a retry down. Then a task's own `retry` shields it from that one
    and cannot simply move into its rules.
    """
    tool = holder.value
    if isinstance(tool, Branch) and tool.is_map:
        _name_task(work, holder)
        _migrate_entry(work, holder, inherits)
    for number, entry in enumerate(items(tool)):
        _name_task(work, entry)
        if number > 0:
            _migrate_output(work, entry)
        _migrate_entry(work, entry, inherits)


def _migrate_output(work: Work, holder: Entry) -> None:
    """`output` in a later task is `outcome`, that of the task before."""
    task = holder.value
    if not isinstance(task, Branch) or not task.is_map or task.get("kind") is None:
        return
    for entry in task.entries:
        if entry.name in ("spec", "set", "retry", "poll", "output", "output_select"):
            continue
        if rewrite(entry.value, output_is_outcome):
            work.changed(entry, "`output` of the task before is `outcome`.")


def _migrate_entry(work: Work, holder: Entry, inherits: bool) -> None:
    tool = holder.value
    if not isinstance(tool, Branch):
        return
    sugar = next((entry for entry in tool.entries if entry.name in SUGAR), None)
    if sugar is None or tool.get("kind") is not None:
        migrate_task(work, holder, inherits=inherits)
        return
    for branch in [sugar, *items(sugar.value)]:
        for entry in children(branch.value):
            if entry.name in ("do", "else"):
                migrate_pipeline(work, entry, inherits=inherits)


def tasks_of(tool: Tree | None) -> list[Entry] | None:
    """The entries that hold the tasks of a pipeline; None if some of it is out of sight."""
    if isinstance(tool, Branch) and tool.is_map:
        holder = Entry(tool)
        return [holder] if tool.get("kind") is not None and not merges(tool) else None
    found = items(tool)
    is_seen = all(
        isinstance(entry.value, Branch)
        and not merges(entry.value)
        and entry.value.get("kind") is not None
        for entry in found
    )
    return found if found and is_seen else None


# --- Names -------------------------------------------------------------------------------------


def _name_task(work: Work, holder: Entry) -> None:
    """`label: {kind: …}` → `name: label`."""
    outer = holder.value
    if not isinstance(outer, Branch) or not outer.is_map or len(outer.entries) != 1:
        return
    label = outer.entries[0]
    body = label.value
    if label.name in SUGAR or not isinstance(body, Branch) or body.get("kind") is None:
        return
    inner = body.find("name")
    if inner is not None and text_at(body, "kind") == WORKBOOK and body.find("task") is None:
        inner.rename("task")
        inner = None
    if outer.props or body.props or merges(body) or inner is not None or not label.name:
        work.kept(
            label,
            f"the task `{label.name}` is named by its key, and also has an anchor, a merge key or"
            " a name of its own. Write `name:` by hand.",
        )
        return
    name = pair("name", label.name)
    name.side, name.line = label.side, label.line
    holder.lead += without_blanks(label.lead)
    body.entries[0].lead = without_blanks(body.entries[0].lead)
    body.entries.insert(0, name)
    body.tail += outer.tail
    holder.value = body
    work.changed(label, f"the task `{label.name}` has its name under `name`.")


# --- One task ----------------------------------------------------------------------------------


def migrate_task(work: Work, holder: Entry, *, inherits: bool = False) -> None:
    """A mapping with `kind`, wherever it stands."""
    task = holder.value
    if not isinstance(task, Branch) or not task.is_map:
        return
    if merges(task):
        if any(task.find(key) for key in ("input", "with", "eval", "set", "retry", "type")):
            work.kept(holder, "this task takes keys from elsewhere with `<<`. Change it by hand.")
        return
    if text_at(task, "type") in work.tools:
        work.rename(task, "type", "kind", "a task")
    _migrate_inputs(work, task)
    _migrate_eval(work, task)
    _migrate_policy(work, task)
    _migrate_set(work, task)
    if not inherits:
        migrate_own_retry(work, holder)
    poll = task.find("poll")
    if poll is not None:
        work.kept(
            poll,
            "`poll` stays: policy rules can repeat a call, but then each round counts as a retry"
            " of a failure and is recorded as one.",
        )


def migrate_own_retry(work: Work, holder: Entry) -> None:
    """`retry` of a task that inherits none."""
    task = holder.value
    retry = task.find("retry") if isinstance(task, Branch) else None
    if isinstance(task, Branch) and retry is not None and move_retry(work, retry, [holder]):
        task.remove(retry)


def _migrate_inputs(work: Work, task: Branch) -> None:
    tool = work.tools.get(text_at(task, "kind") or "")
    for name in ("input", "with"):
        entry = task.find(name)
        if entry is None or tool is None or tool.takes(name):
            continue
        if tool.takes("args"):
            work.kept(entry, f"`{name}` is `args`, which is here, too. Join them by hand.")
        else:
            work.rename(task, name, "args", "a task")


def _migrate_eval(work: Work, task: Branch) -> None:
    """`eval: [{when, do, …}]` → `spec.policy.rules: [{when, then: {do, …}}]`."""
    entry = task.find("eval")
    if entry is None:
        return
    rules = entry.value
    is_plain = bool(items(rules)) and all(_is_eval_rule(item.value) for item in items(rules))
    if not is_plain or _has_rules(task) or not task.has_room("spec", "policy"):
        work.kept(
            entry,
            "`eval` has a form that is not a list of {when, do}, or there are policy rules"
            " already. Write `spec.policy.rules` by hand.",
        )
        return
    policy = task.make_room("spec", "policy")
    for item in items(rules):
        _then_of_eval(item.value)
    task.remove(entry)
    policy.entries.append(pair("rules", rules, entry))
    work.changed(entry, "`eval` is `spec.policy.rules`; what to do stands under `then`.")


def _is_eval_rule(rule: Tree) -> bool:
    if not isinstance(rule, Branch) or not rule.is_map or merges(rule):
        return False
    return any(rule.find(key) is not None for key in ("when", "expr", "else"))


def _then_of_eval(rule: Tree) -> None:
    assert isinstance(rule, Branch)
    if rule.find("then") is not None or rule.find("else") is not None:
        return
    moved = [entry for entry in rule.entries if entry.name not in ("when", "expr")]
    rule.entries = [entry for entry in rule.entries if entry.name in ("when", "expr")]
    rule.entries.append(pair("then", mapping(*moved, flow=rule.flow)))


# --- Policy rules ------------------------------------------------------------------------------


def _rules_of(task: Branch) -> Branch | None:
    policy = mapping_at(task, "spec", "policy")
    rules = policy.get("rules") if policy is not None else None
    return rules if isinstance(rules, Branch) and not rules.is_map else None


def _has_rules(task: Branch) -> bool:
    policy = mapping_at(task, "spec", "policy")
    return policy is not None and policy.find("rules") is not None


def _migrate_policy(work: Work, task: Branch) -> None:
    policy = mapping_at(task, "spec", "policy")
    for name in _HOOKS:
        hook = policy.find(name) if policy is not None else None
        if hook is not None:
            migrate_pipeline(work, hook)
    for item in items(_rules_of(task)):
        migrate_condition(work, item.value)
        if rewrite(item.value, output_is_outcome):
            work.changed(item, "`output` is `outcome`, `output.data` is `outcome.result`.")
        then = mapping_at(then_of(item.value))
        entry = then.find("set") if then is not None else None
        if then is not None and entry is not None:
            _split_set(work, then, entry)


def migrate_condition(work: Work, rule: Tree) -> None:
    """`expr` → `when`."""
    if isinstance(rule, Branch):
        work.rename(rule, "expr", "when")


def _split_set(work: Work, then: Branch, entry: Entry) -> None:
    """`set: {ctx.a, iter.b}` → `set_ctx`, `set_iter`."""
    if then.find("set_ctx") is not None or then.find("set_iter") is not None:
        work.kept(entry, "`set` stands beside `set_ctx` or `set_iter`. Join them by hand.")
        return
    if not _is_splittable(entry.value):
        work.kept(
            entry,
            "`set` writes names that are neither `ctx.…` nor `iter.…`; there is no other way to"
            " write those.",
        )
        return
    parts = _set_parts(entry)
    then.remove(entry)
    then.entries += parts
    work.changed(entry, "`set` is `set_ctx` and `set_iter`.")


def _is_splittable(written: Tree) -> bool:
    """Whether every key is `ctx.x`, `iter.y`, or a mapping under `ctx` or `iter`, none twice."""
    names: list[str] = []
    for item in children(own_mapping(written)):
        root, _, rest = item.name.partition(".")
        below = mapping_at(item.value)
        if root not in ("ctx", "iter") or (not rest and (below is None or merges(below))):
            return False
        names += [item.name] if rest else [f"{root}.{inner.name}" for inner in children(below)]
    return 0 < len(names) == len(set(names))


def _set_parts(entry: Entry) -> list[Entry]:
    """The entries `set_ctx` and `set_iter` that say what this `set` says."""
    written = entry.value
    assert isinstance(written, Branch)
    found: dict[str, list[Entry]] = {"ctx": [], "iter": []}
    for item in written.entries:
        root, _, rest = item.name.partition(".")
        if rest:
            item.rename(rest)
            found[root].append(item)
        else:
            found[root] += children(item.value)
    made = [
        pair(f"set_{root}", mapping(*part, flow=written.flow))
        for root, part in found.items()
        if part
    ]
    lead, entry.lead = entry.lead, []
    made[0].lead = lead + gather(entry, [item for part in found.values() for item in part])
    return made


def _migrate_set(work: Work, task: Branch) -> None:
    """`set` on a task → a rule that writes the same after success."""
    entry = task.find("set")
    if entry is None:
        return
    reason = _why_set_stays(work, task, entry)
    if reason is not None:
        work.kept(entry, f"`set` stays: {reason}.")
        return
    parts = _set_parts(entry)
    for part in parts:
        rewrite(part.value, _result_for_whole_outcome)
    task.remove(entry)
    success = mapping(pair("do", "continue"), *parts)
    task.make_room("spec", "policy").entries.append(
        pair(
            "rules",
            listing(_fail_on_error(), mapping(pair("else", mapping(pair("then", success))))),
        )
    )
    work.changed(entry, "`set` of a task is `set_ctx`/`set_iter` in the rule for its success.")


def _result_for_whole_outcome(path: list[str]) -> list[str]:
    path = output_is_outcome(path)
    return ["outcome", "result"] if path == ["outcome"] else path


def _why_set_stays(work: Work, task: Branch, entry: Entry) -> str | None:
    if task.find("poll") is not None or task.props:
        return "the task polls, or is shared by an anchor"
    if _has_rules(task) or not task.has_room("spec", "policy"):
        return "the task has policy rules of its own; add `set_ctx` to the one for success"
    if not _is_splittable(entry.value):
        return "it writes names that are neither `ctx.…` nor `iter.…`"
    own_name = frozenset({text_at(task, "name") or ""})
    if not fits(work, entry.value, Where.POLICY, own_name | {"_prev"}):
        return "it reads names that policy rules do not have; they have `outcome.result`"
    if not all(_reads_result_as_whole(work, leaf) for leaf in leaves(entry.value)):
        return "it uses `output` inside a larger template; say `output.data` or `output.status`"
    return None


def _reads_result_as_whole(work: Work, leaf: Leaf) -> bool:
    """`{{ output }}` alone is the result; inside something larger it is the envelope."""
    if not (reads_of(work, leaf) or set()) & {("outcome",), ("output",)}:
        return True
    return leaf.value.strip().removeprefix("{{").removesuffix("}}").strip() in ("output", "outcome")


def _fail_on_error() -> Branch:
    return mapping(pair("when", ON_ANY_ERROR), then(pair("do", "fail")))


def then(*entries: Entry) -> Entry:
    return pair("then", mapping(*entries, flow=True))


# --- Retry -------------------------------------------------------------------------------------


def move_retry(work: Work, retry: Entry, holders: list[Entry]) -> bool:
    """`retry` of a task, or of a step for all its tasks, → a rule before their own."""
    reason = _why_retry_stays(work, retry)
    tasks = [holder.value for holder in holders if isinstance(holder.value, Branch)]
    if reason is None and not all(_takes_rules(task) for task in tasks):
        reason = "the task polls, is shared by an anchor, or has a policy that takes no rule"
    if reason is not None:
        work.kept(retry, f"`retry` stays: {reason}.")
        return False
    for number, task in enumerate(tasks):
        rule = _retry_rule(retry, with_comments=number == 0)
        rules = _rules_of(task)
        if rules is not None:
            rules.entries.insert(0, rule)
            continue
        otherwise = mapping(pair("else", mapping(then(pair("do", "continue")))))
        task.make_room("spec", "policy").entries.append(
            pair("rules", listing(rule, _fail_on_error(), otherwise))
        )
    work.changed(retry, "`retry` is a policy rule with `do: retry`.")
    return True


def _takes_rules(task: Branch) -> bool:
    has_odd_rules = _has_rules(task) and _rules_of(task) is None
    is_shared = bool(task.props)
    polls = task.find("poll") is not None
    return task.has_room("spec", "policy") and not (has_odd_rules or is_shared or polls)


def _why_retry_stays(work: Work, retry: Entry) -> str | None:
    written = retry.value
    if not isinstance(written, Branch) or merges(written) or written.props:
        return "it stands elsewhere, behind an anchor or alias"
    if not written.is_map:
        return (
            "a list of policies reads `response` and `error` and may change the next call. Use"
            " rules with `do: retry` for errors and `do: jump` for pages"
        )
    if text_at(written, "scope") == "chain":
        return "its scope is a chain of actions, which rules do not know"
    if not fits(work, written, Where.POLICY):
        return "it reads names that policy rules do not have; they have `outcome`"
    backoff = mapping_at(written, "backoff")
    known = {*_RETRY_KEYS, "backoff", "scope", "on", "when"} - {"type", "multiplier"}
    names = {entry.name for entry in written.entries}
    inner = {entry.name for entry in children(backoff)}
    if names - known or inner - set(_RETRY_KEYS):
        return "it has keys that are not known"
    spelled = [_RETRY_KEYS[name] for name in names if name in _RETRY_KEYS]
    spelled += [_RETRY_KEYS[name] for name in inner]
    if len(set(spelled)) < len(spelled):
        return "it says the same thing twice"
    return None


def _retry_rule(retry: Entry, *, with_comments: bool) -> Entry:
    written = retry.value
    assert isinstance(written, Branch)
    backoff = mapping_at(written, "backoff")
    moved: list[Entry] = []
    for entry in [*written.entries, *children(backoff)]:
        if is_null(entry.value):
            continue
        if entry.name in _RETRY_KEYS:
            moved.append(pair(_RETRY_KEYS[entry.name], entry.value))
        elif entry.name == "backoff" and backoff is None:
            moved.append(pair("backoff", entry.value))
    if backoff is not None and backoff.find("type") is None:
        grows = any(entry.name == "multiplier" for entry in moved)
        moved.append(pair("backoff", "exponential" if grows else "fixed"))
    when = written.get("when")
    on = written.get("on")
    kinds = [text_in(item.value) for item in items(on)] or [text_in(on)]
    condition = when if when is not None else scalar(on_errors(kinds))
    item = Entry(mapping(pair("when", condition), then(pair("do", "retry"), *moved)))
    if with_comments:
        item.lead = gather(retry)
    return item
