"""Formats the text of a playbook.

The canonical layout has two spaces, lists indented under their key, keys in the order people look
for them, double quotes, and a blank line between steps and sections. Comments stay with what they
describe. The meaning never changes: the result is read back and compared.
"""

from __future__ import annotations

from typing import Any

from noetl.dsl.nodes import plain
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.errors import PlaybookRejected
from noetl.rewrite.layout import parse_tree, write_tree
from noetl.rewrite.tree import (
    Alias,
    Branch,
    Entry,
    Leaf,
    Lines,
    Tree,
    children,
    items,
    mapping_at,
    then_of,
)

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
    for entry in children(root.get("keychain")):
        _sort(entry.value, _NAMED)
    _sort(root.get("executor"), _EXECUTOR)
    for entry in children(root.get("workflow")):
        _order_step(entry.value)
    workbook = root.get("workbook")
    tasks = workbook.get("tasks") if isinstance(workbook, Branch) else None
    for entry in children(tasks or workbook):
        block = entry.value
        if isinstance(block, Branch) and block.get("kind") is not None:
            _order_task(block)
        elif isinstance(block, Branch):
            _sort(block, _BLOCK)
            _sort(block.get("loop"), _LOOP, ("spec",))
            _order_pipeline(block.get("tool"))


def _order_step(step: Tree | None) -> None:
    if not isinstance(step, Branch):
        return
    _sort(step, _STEP, ("case", "next"))
    _sort(step.get("loop"), _LOOP, ("spec",))
    _order_pipeline(step.get("tool"))
    _order_sink(step.get("sink"))
    for entry in children(step.get("case")):
        _order_event_rule(entry.value)
    router = step.get("next")
    _sort(router, ("spec",), ("arcs",))
    arcs = router.get("arcs") if isinstance(router, Branch) and router.is_map else router
    for entry in children(arcs):
        _sort(entry.value, _ARC)


def _order_pipeline(tool: Tree | None) -> None:
    if isinstance(tool, Branch) and tool.is_map:
        _order_task(tool)
    for entry in items(tool):
        item = entry.value
        if not isinstance(item, Branch) or item.get("kind") is not None or len(item.entries) != 1:
            _order_task(item)
        elif item.entries[0].name in _SUGAR:
            _order_sugar(item.entries[0].value)
        else:
            _order_task(item.entries[0].value)


def _order_sugar(sugar: Tree) -> None:
    for branch in [sugar, *(entry.value for entry in items(sugar))]:
        if isinstance(branch, Branch):
            _sort(branch, (*_RULE, "max"))
            _order_pipeline(branch.get("do"))
            _order_pipeline(branch.get("else"))


def _order_task(task: Tree | None) -> None:
    if not isinstance(task, Branch):
        return
    _sort(task, _NAMED, _INPUTS)
    policy = mapping_at(task, "spec", "policy")
    if policy is None:
        return
    for hook in ("before", "after", "finally"):
        _order_pipeline(policy.get(hook))
    for entry in children(policy.get("rules")):
        _sort(entry.value, _RULE)
        # The keys under `then` have no order in a rule of a task, but do in a rule of `case`.
        then = then_of(entry.value)
        if isinstance(then, Branch) and then.get("do") is not None:
            _sort(then, ("do",))


def _order_event_rule(rule: Tree) -> None:
    _sort(rule, _RULE, ("then",))
    then = then_of(rule)
    for entry in children(then):
        action = entry.value
        if isinstance(then, Branch) and then.is_map and entry.name == "sink":
            _order_sink(action)
        for named in children(action):
            _order_sink(named.value)


def _order_sink(action: Tree | None) -> None:
    if isinstance(action, Branch):
        _order_pipeline(action.get("tool"))


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
