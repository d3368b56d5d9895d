"""Schemas of results: written in a playbook, or documents of kind Schema that playbooks name.

What a playbook names is put into its net when it is compiled, with the version it had then: an
execution keeps it, whatever is registered later. Which documents there are is handed in (`Known`).
"""

from __future__ import annotations

import re

from noetl.dsl import nodes
from noetl.dsl.building import Building
from noetl.dsl.grammar import (
    AsWritten,
    Either,
    Inspection,
    Placed,
    Schema,
    Shape,
    Text,
    field,
    is_text,
)
from noetl.dsl.nodes import Node
from noetl.model import schemas
from noetl.model.net import ResultSchema
from noetl.model.problems import Place

REFERENCE = re.compile(r"[^\s@]+(@[1-9][0-9]{0,8})?")


def _wrong_reference(text: str) -> str:
    if REFERENCE.fullmatch(text):
        return ""
    return (
        f'is "{text[:60]}"; write the path of a schema, with its version if need'
        " be: shop/order or shop/order@2."
    )


class InlineSchema(Shape):
    """A JSON Schema, draft 2020-12, within our limits."""

    def read(self, node: Node, what: str, look: Inspection) -> Node:
        for path, problem in schemas.problems(nodes.plain(node)):
            look.report.add("bad-schema", problem, _place_of(node, path))
        return node

    def schema(self) -> Schema:
        return {"type": ["object", "boolean"]}


def _place_of(node: Node, path: schemas.Path) -> Place:
    place = node.place
    for part in path:
        if isinstance(node, nodes.Mapping) and str(part) in node.entries:
            place, node = node.keys[str(part)], node.entries[str(part)]
        elif isinstance(node, nodes.Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            place = node.place
    return place


_REFERENCE = Text(wrong=_wrong_reference, schema={"pattern": f"^{REFERENCE.pattern}$"})
A_SCHEMA = Either(
    "the path of a schema, or a schema",
    (is_text, AsWritten(_REFERENCE)),
    (lambda _: True, InlineSchema()),
)


class WrittenResult(Placed, title="a result"):
    """The schema of the result of a step or an execution."""

    schema: Node | None = field(
        A_SCHEMA, "What it must look like: a path, or a JSON Schema.", required=True
    )


def result_schema(building: Building, node: Node | None) -> ResultSchema | None:
    """The schema under `schema`; None if there is none, or an unknown one."""
    if node is None:
        return None
    written = nodes.text_of(node)
    if written is None:
        plain = nodes.plain(node)
        is_good = next(schemas.problems(plain), None) is None
        return ResultSchema(schema=plain) if is_good else None
    found = building.known.schemas.get(written)
    if found is None and REFERENCE.fullmatch(written):
        building.unresolved[written] = node.place
        hint = building.report.suggest(written, building.known.schemas)
        building.report.add(
            "unknown-schema",
            f'the schema "{written}" is not known here, so nothing can be said of this result.'
            f"{hint} It must be registered before the playbook is.",
            node.place,
        )
    return found
