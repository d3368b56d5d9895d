"""The workbook: named tasks and pipelines to call from steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from noetl.dsl import nodes
from noetl.dsl.building import Building, Where
from noetl.dsl.grammar import (
    Also,
    Either,
    Inspection,
    ListOf,
    Made,
    MapOf,
    Placed,
    Schema,
    Shape,
    Text,
    define,
    field,
    has_key,
    holds_template,
    is_list,
    is_mapping,
)
from noetl.dsl.layers import VALUES, merge, noted_knobs
from noetl.dsl.loops import A_LOOP, WrittenLoop, loop
from noetl.dsl.nodes import Mapping, Node
from noetl.dsl.policies import TASKS
from noetl.dsl.tasks import Frame, WrittenAssert, WrittenTask, WrittenTasks, pipeline
from noetl.model.net import Block, Task, Values
from noetl.model.problems import Place

# --- How it is written ---------------------------------------------------------------------------


class _Entry(
    Placed, title="a workbook entry", first=("name", "desc", "description", "args", "loop", "tool")
):
    """A pipeline under `tool`. A task that is an entry, and a list of tasks, are read as one."""

    name: str | None = field(Text(), "Name that tasks call it by.")
    desc: str | None = field(Text(), "What it is for.")
    description = Also(desc)
    args: Node | None = field(VALUES, "Default inputs.")
    input = Also(args)
    with_ = Also(args)
    assert_: WrittenAssert = field(WrittenAssert, "What must be there before and after it.")
    loop: WrittenLoop = field(A_LOOP, "Run the tasks once per element.")
    tool: WrittenTasks = field(TASKS, "The task or tasks.", required=True)


class _EntryShape(Shape):
    def read(self, node: Node, what: str, look: Inspection) -> _Entry:
        if isinstance(node, Mapping) and "kind" in node.entries:
            return self._task(node, what, look)
        if is_list(node):
            return _Entry(given={"tool": TASKS.read(node, what, look)})
        return _Entry.shape.read(node, what, look) or _Entry()

    def _task(self, node: Mapping, what: str, look: Inspection) -> _Entry:
        """A task entry may carry a loop of its own, which no other task may."""
        given: dict[str, Any] = {}
        body = Mapping(node.place)
        for name, value in node.entries.items():
            if name == "loop":
                given["loop"] = WrittenLoop.shape.read(value, "`loop`", look) or WrittenLoop()
            else:
                body.put(name, node.keys[name], value)
        task = WrittenTask.shape.read(body, what, look)
        return _Entry(node, given | {"tool": task, "desc": task.desc, "name": task.name})

    def schema(self) -> Schema:
        return {
            "anyOf": [
                _Entry.shape.schema(),
                {"type": "object", "required": ["kind"]},
                {"type": "array", "items": TASKS.schema()},
            ]
        }


_ENTRY = define("block", _EntryShape())


class _Named(NamedTuple):
    """An entry with its name and the place of the name."""

    name: str
    place: Place
    entry: _Entry


class _ListedEntry(Shape):
    """A workbook entry in a list says its own name."""

    def read(self, node: Node, what: str, look: Inspection) -> _Named:
        entry: _Entry = _ENTRY.read(node, what, look)
        if isinstance(node, Mapping) and "name" not in node.entries:
            look.report.add("missing-key", "a workbook entry in a list needs `name`.", node.place)
        return _Named(entry.name or "", entry.place_of("name") or node.place, entry)

    def schema(self) -> Schema:
        return {"allOf": [_ENTRY.schema(), {"required": ["name"]}]}


class _EntriesByName(MapOf):
    def read(self, node: Node, what: str, look: Inspection) -> Any:
        found = super().read(node, what, look)
        keys = node.keys if isinstance(node, Mapping) else {}
        return tuple(_Named(name, keys[name], found[name]) for name in keys)


_ENTRIES = Either(
    "entries by name, or a list of entries with `name`",
    (is_list, ListOf(_ListedEntry(), "entries")),
    (lambda node: is_mapping(node) or nodes.is_null(node), _EntriesByName(_ENTRY)),
)


class _TaskTable(Placed, title="the workbook"):
    tasks: tuple[_Named, ...] | None = field(_ENTRIES)


def _is_task_table(node: Node) -> bool:
    """`workbook: {tasks: {…}}`, the long form."""
    return (
        isinstance(node, Mapping)
        and list(node.entries) == ["tasks"]
        and not has_key("kind", "tool")(node.entries["tasks"])
    )


WrittenWorkbook = tuple[_Named, ...] | None
WORKBOOK = Either(
    "entries by name, or a list of entries with `name`",
    (_is_task_table, Made(_TaskTable.shape, lambda table: table.tasks)),
    (lambda _: True, _ENTRIES),
)

# --- What it becomes -----------------------------------------------------------------------------


def workbook(building: Building, written: WrittenWorkbook, outer: Values) -> tuple[Block, ...]:
    """The workbook's entries."""
    named = [
        (name or f"entry_{index}", place, entry)
        for index, (name, place, entry) in enumerate(written or ())
    ]
    # By name: the order of entries means nothing, so it must not change the digest.
    named.sort(key=lambda one: one[0])
    return tuple(_block(building, name, place, entry, outer) for name, place, entry in named)


def _promising(building: Building, tasks: tuple[Task, ...], promised: Values) -> tuple[Task, ...]:
    """Give `expects` of an entry to its first task, and `returns` to its last."""
    if not promised or not tasks:
        return tasks
    found = list(tasks)
    for index, key in ((0, "expects"), (-1, "returns")):
        names = promised["assert"].get(key)
        if names:
            own = found[index].spec.get("assert", {})
            spec = {**found[index].spec, "assert": {**own, key: names}}
            found[index] = building.changed(found[index], spec=spec)
    return tuple(found)


def _block(building: Building, name: str, place: Place, entry: _Entry, outer: Values) -> Block:
    iterator = entry.loop.iterator
    first_use = len(building.uses)
    with building.inside(block=name, iterators=(iterator,) if iterator else ()):
        layered = merge(outer, noted_knobs(building, entry.loop.spec))
        tasks = pipeline(building, entry.tool, Frame(spec=layered))
        if "kind" in entry.node.entries and tasks:
            # Inputs that a task which is an entry writes out are defaults of the entry.
            inputs = {k: v for k, v in tasks[0].inputs.items() if not holds_template(v)}
            computed = {k: v for k, v in tasks[0].inputs.items() if k not in inputs}
            tasks = (building.changed(tasks[0], inputs=computed),)
        else:
            with building.inside(iterators=(), hands_over=True):
                inputs = building.values(entry.args, Where.TASK)
        made = Block(
            name=name,
            description=entry.desc or "",
            inputs=inputs,
            loop=loop(building, entry.loop, layered),
            tasks=_promising(building, tasks, entry.assert_.promises()),
        )
    building.mark(made, place)
    building.blocks[name] = (made, building.uses[first_use:])
    return made
