"""Playbook text → the same playbook in the one layout we write.

Two spaces, lists indented under their key, keys in the order people look for them, double quotes,
a blank line between steps and sections. Comments stay with what they describe, and what the
playbook means never changes: the result is read back and compared.
"""

from __future__ import annotations

from typing import Any

from noetl.dsl.nodes import plain
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.errors import PlaybookRejected
from noetl.rewrite.tree import Alias, Branch, Entry, Leaf, Lines, Tree, parse_tree, write_tree

_HEADER = ("apiVersion", "kind", "name", "path", "metadata")
_ROOT = (*_HEADER, "keychain", "executor", "workload", "workflow", "workbook", "spec")
_METADATA = ("name", "path", "version", "description")
_NAMED = ("name", "kind")
_EXECUTOR = ("kind", "profile", "spec")
_STEP = ("step", "desc", "spec", "args", "input", "loop", "tool")
_BLOCK = ("name", "desc", "description", "args", "loop", "tool")
_LOOP = ("in", "collection", "cursor", "iterator", "element", "mode")
_INPUTS = ("args", "input", "with", "spec")
_ARC = ("step", "when", "args", "set", "spec")
_RULE = ("when", "else")
_SUGAR = ("choose", "while", "until")


def format_text(text: str) -> str:
    """The text in canonical layout. Raises PlaybookRejected if it cannot be read."""
    data = read_data(text)
    formatted = write_canonical(parse_tree(text))
    assert read_data(formatted) == data, "formatting changed what the playbook says"
    return formatted


def read_data(text: str) -> Any:
    """What the text says, or PlaybookRejected."""
    report = Report()
    root = read(text, report)
    if root is None or report.has_errors:
        raise PlaybookRejected(report.problems(root))
    return plain(root)


def write_canonical(root: Branch) -> str:
    """Put keys and blank lines in order, and write."""
    head = _take_head(root)
    _order_root(root)
    for position, entry in enumerate(root.entries):
        _space(entry, wanted=position > 0 and entry.name not in _HEADER)
    workflow = root.get("workflow")
    if isinstance(workflow, Branch):
        for position, entry in enumerate(workflow.entries):
            _space(entry, wanted=position > 0)
    return write_tree(root, head)


def _take_head(root: Branch) -> Lines:
    """Comments at the very top that a blank line separates from the first key."""
    if not root.entries:
        return []
    first = root.entries[0]
    cut = max((n for n, line in enumerate(first.lead) if not line), default=-1) + 1
    head, first.lead = first.lead[:cut], first.lead[cut:]
    return head


def _space(entry: Entry, *, wanted: bool) -> None:
    while entry.lead[:1] == [""]:
        entry.lead.pop(0)
    if wanted:
        entry.lead.insert(0, "")


# --- The order of keys -------------------------------------------------------------------------


def _order_root(root: Branch) -> None:
    _sort(root, _ROOT)
    _sort(root.get("metadata"), _METADATA)
    for entry in _children(root.get("keychain")):
        _sort(entry.value, _NAMED)
    _sort(root.get("executor"), _EXECUTOR)
    for entry in _children(root.get("workflow")):
        _order_step(entry.value)
    workbook = root.get("workbook")
    tasks = workbook.get("tasks") if isinstance(workbook, Branch) else None
    for entry in _children(tasks or workbook):
        _order_block(entry.value)


def _order_step(step: Tree | None) -> None:
    if not isinstance(step, Branch):
        return
    _sort(step, _STEP, ("case", "next"))
    _order_loop(step.get("loop"))
    _order_pipeline(step.get("tool"))
    _order_sink(step.get("sink"))
    for entry in _children(step.get("case")):
        _order_event_rule(entry.value)
    _order_next(step.get("next"))


def _order_block(block: Tree | None) -> None:
    if isinstance(block, Branch) and block.get("kind") is not None:
        _order_task(block)
    elif isinstance(block, Branch):
        _sort(block, _BLOCK)
        _order_loop(block.get("loop"))
        _order_pipeline(block.get("tool"))


def _order_loop(loop: Tree | None) -> None:
    _sort(loop, _LOOP, ("spec",))


def _order_pipeline(tool: Tree | None) -> None:
    if isinstance(tool, Branch) and tool.is_map:
        _order_task(tool)
    for entry in _children(tool, lists_only=True):
        item = entry.value
        if not isinstance(item, Branch) or item.get("kind") is not None or len(item.entries) != 1:
            _order_task(item)
        elif item.entries[0].name in _SUGAR:
            _order_sugar(item.entries[0].value)
        else:
            _order_task(item.entries[0].value)


def _order_sugar(sugar: Tree) -> None:
    for branch in [sugar, *(entry.value for entry in _children(sugar, lists_only=True))]:
        if isinstance(branch, Branch):
            _sort(branch, (*_RULE, "max"))
            _order_pipeline(branch.get("do"))
            _order_pipeline(branch.get("else"))


def _order_task(task: Tree | None) -> None:
    if not isinstance(task, Branch):
        return
    _sort(task, _NAMED, _INPUTS)
    spec = task.get("spec")
    policy = spec.get("policy") if isinstance(spec, Branch) else None
    if not isinstance(policy, Branch):
        return
    for hook in ("before", "after", "finally"):
        _order_pipeline(policy.get(hook))
    for entry in _children(policy.get("rules")):
        _sort(entry.value, _RULE)
        # What a rule of a task does has no order; what a rule of `case` does has.
        then = _then(entry.value)
        if isinstance(then, Branch) and then.get("do") is not None:
            _sort(then, ("do",))


def _then(rule: Tree) -> Tree | None:
    if not isinstance(rule, Branch):
        return None
    other = rule.get("else")
    if isinstance(other, Branch):
        return other.get("then") or other
    return rule.get("then")


def _order_event_rule(rule: Tree) -> None:
    _sort(rule, _RULE, ("then",))
    then = _then(rule)
    for entry in _children(then):
        action = entry.value
        if isinstance(then, Branch) and then.is_map and entry.name == "sink":
            _order_sink(action)
        for named in _children(action):
            _order_sink(named.value)


def _order_sink(action: Tree | None) -> None:
    if isinstance(action, Branch):
        _order_pipeline(action.get("tool"))


def _order_next(router: Tree | None) -> None:
    _sort(router, ("spec",), ("arcs",))
    arcs = router.get("arcs") if isinstance(router, Branch) and router.is_map else router
    for entry in _children(arcs):
        _sort(entry.value, _ARC)


def _children(tree: Tree | None, *, lists_only: bool = False) -> list[Entry]:
    if isinstance(tree, Branch) and not (lists_only and tree.is_map):
        return tree.entries
    return []


def _sort(tree: Tree | None, first: tuple[str, ...], last: tuple[str, ...] = ()) -> None:
    """Bring these keys to the front and those to the end; the rest stays as written."""
    if not isinstance(tree, Branch) or not tree.is_map:
        return
    rank = {name: place - len(first) for place, name in enumerate(first)}
    rank |= {name: place + 1 for place, name in enumerate(last)}
    ordered = sorted(tree.entries, key=lambda entry: rank.get(entry.name, 0))
    # An alias must stay behind its anchor.
    if ordered == tree.entries or _references(ordered) != _references(tree.entries):
        return
    # Blank lines divide the mapping; they stay where they are when keys change places.
    blanks = [entry.lead[:1] == [""] for entry in tree.entries]
    for entry, blank in zip(ordered, blanks, strict=True):
        _space(entry, wanted=blank)
    tree.entries = ordered


def _references(entries: list[Entry]) -> list[str]:
    """The anchors and aliases in these entries, as they follow each other."""
    found: list[str] = []
    for entry in entries:
        for node in (entry.key, entry.value):
            match node:
                case Alias(name):
                    found.append(f"*{name}")
                case Leaf(props=props):
                    found += [props] if "&" in props else []
                case Branch(props=props, entries=children):
                    found += [props] if "&" in props else []
                    found += _references(children)
    return found
