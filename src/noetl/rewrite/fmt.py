"""Formats the text of a playbook.

The canonical layout has two spaces, lists indented under their key, keys in the order people look
for them, double quotes, and a blank line between steps and sections. Comments stay with what they
describe. The meaning never changes: the result is read back and compared.
"""

from __future__ import annotations

from typing import Any

from noetl.dsl.grammar import Inspection, Placed
from noetl.dsl.nodes import Mapping, Node, Scalar, Sequence, plain
from noetl.dsl.playbook import HEADER, WrittenPlaybook
from noetl.dsl.policies import WrittenRule
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.rules import WrittenAction, WrittenChain
from noetl.dsl.tasks import WrittenLabel
from noetl.errors import PlaybookRejected
from noetl.model.problems import Place
from noetl.rewrite.layout import parse_tree, write_tree
from noetl.rewrite.tree import Alias, Branch, Entry, Leaf, Lines, Tree


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
    _order_keys(root)
    for position, entry in enumerate(root.entries):
        _space(entry, wanted=position > 0 and entry.name not in HEADER)
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


def _order_keys(root: Branch) -> None:
    """Put the keys of each mapping into the order that its shape declares."""
    branches: dict[Place, Branch] = {}
    written = _node_of(root, branches)
    shaped: list[Any] = [WrittenPlaybook.shape.read(written, "", Inspection(Report(), {}))]
    while shaped:
        match shaped.pop():
            case Placed() | WrittenRule() as one:
                if one.place in branches:
                    _sort(branches[one.place], *one.order)
                shaped += vars(one).values() if isinstance(one, Placed) else [one.then]
            case tuple() as several:
                shaped += several
            case WrittenLabel(task=inner) | WrittenAction(content=inner):
                shaped.append(inner)
            case WrittenChain(actions=inner):
                shaped += inner


def _node_of(tree: Tree, branches: dict[Place, Branch]) -> Node:
    """The tree as shapes read it, each part at a place of its own; an alias says nothing."""
    place = Place(len(branches) + 1, 1)
    if not isinstance(tree, Branch):
        return Scalar(place, tree.data if isinstance(tree, Leaf) else None, "", False)
    branches[place] = tree
    if not tree.is_map:
        return Sequence(place, [_node_of(entry.value, branches) for entry in tree.entries])
    found = Mapping(place)
    for entry in tree.entries:
        found.put(entry.name, place, _node_of(entry.value, branches))
    return found


def _sort(tree: Branch, first: tuple[str, ...], last: tuple[str, ...]) -> None:
    """Bring these keys to the front and those to the end; the rest stays as written."""
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
