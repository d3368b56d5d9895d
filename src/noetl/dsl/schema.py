"""The language as JSON Schema, for editors: made from the same shapes that `validate` checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.dsl.grammar import DEFINITIONS, TEMPLATE_SCHEMA, Defined, Schema
from noetl.dsl.loops import CURSOR_KIND, CursorKind
from noetl.dsl.playbook import API_VERSION, WrittenPlaybook
from noetl.dsl.policies import WrittenTaskSpec
from noetl.dsl.tasks import WrittenTask
from noetl.model.net import WORKBOOK
from noetl.model.toolshape import ToolShape

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest draft that editors support completely."""
_TITLE = "NoETL playbook"
_SHARED = "task_shared"


def playbook_schema(tools: Mapping[str, ToolShape]) -> Schema:
    """The schema of a playbook with these tool kinds."""
    root = WrittenPlaybook.shape.schema()
    root["properties"]["apiVersion"] = {"const": API_VERSION}
    root["properties"]["kind"] = {"const": "Playbook"}
    definitions = {
        name: shape.schema() for name, shape in sorted(DEFINITIONS.items()) if name != "task"
    }
    definitions |= _task_definitions(tools)
    definitions[CURSOR_KIND] = CursorKind.of(tools).schema()
    for definition in definitions.values():
        _put_tasks_first(definition)
    return {"$schema": DIALECT, "title": _TITLE, **root, "$defs": definitions}


_TASK = Defined("task").schema()


def _put_tasks_first(part: Any) -> None:
    """Editors offer keys in the order of the schema: `kind` comes first."""
    if isinstance(part, list):
        for one in part:
            _put_tasks_first(one)
    elif isinstance(part, dict):
        choices = part.get("anyOf")
        if isinstance(choices, list) and _TASK in choices:
            choices.sort(key=lambda one: one != _TASK)
        for one in part.values():
            _put_tasks_first(one)


def _task_definitions(tools: Mapping[str, ToolShape]) -> dict[str, Schema]:
    """`task` refers to one definition per kind; what all kinds share is defined once."""
    kinds = sorted(tools)
    configs, components = msgspec.json.schema_components(
        [tools[kind].config for kind in kinds], ref_template="#/$defs/{name}"
    )
    made: dict[str, Schema] = {name: _rendered(schema) for name, schema in components.items()}
    shared = WrittenTask.shape.schema()
    shared["properties"].pop("kind")
    made[_SHARED] = {"properties": shared["properties"]}
    for kind, config in zip(kinds, configs, strict=True):
        made[f"task_{kind}"] = _kind_schema(tools[kind], config["$ref"].rpartition("/")[2])
    made["task"] = {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": kinds, "description": "The tool to run."}},
        "defaultSnippets": [
            {"label": "kind", "description": "The tool to run.", "body": {"kind": "$1"}}
        ],
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"$ref": f"#/$defs/task_{kind}"},
            }
            for kind in kinds
        ],
    }
    return made


def _kind_schema(tool: ToolShape, config: str) -> Schema:
    own = {name: name for name in tool.config.__struct_encode_fields__} | dict(tool.aliases)
    shared = [key for key in WrittenTask.declared if key not in own and key != "kind"]
    found: Schema = {
        "type": "object",
        "description": tool.summary,
        "properties": {
            "kind": {"const": tool.kind},
            **{key: _property(_SHARED, key) for key in shared},
            "spec": _spec(tool),
            **{key: _own(tool, config, key, main) for key, main in own.items()},
            **{
                key: {"deprecated": True, "description": f"Older form: {today}"}
                for key, today in tool.deprecated.items()
            },
        },
        "additionalProperties": False,
    }
    needs = [_one_of_group(group, tool) for group in tool.needs if tool.kind != WORKBOOK]
    needs += [
        {
            "if": {"anyOf": _ways_to_say(field, value, tool)},
            "then": {"allOf": [_one_of_group(group, tool) for group in groups]},
        }
        for field, needed in tool.needs_when.items()
        if "." not in field
        for value, groups in needed.items()
    ]
    return found | {"allOf": needs} if needs else found


def _own(tool: ToolShape, config: str, key: str, main: str) -> Schema:
    """A key of the kind, perhaps with an older way to write its value."""
    today = _property(config, main)
    older = tool.older_shapes.get(key)
    return today if older is None else {"anyOf": [today, older | {"deprecated": True}]}


def _spec(tool: ToolShape) -> Schema:
    """A task's `spec`; in an older form it also holds config of the tool."""
    found = WrittenTaskSpec.shape.schema()
    astray = [*tool.config.__struct_encode_fields__, *tool.aliases, "args", "input", "with"]
    note = "Older form: write it on the task itself."
    return found | {
        "properties": {key: {"deprecated": True, "description": note} for key in astray}
        | found["properties"]
        | {key: {"deprecated": True, "description": note} for key in tool.deprecated}
    }


def _property(definition: str, key: str) -> Schema:
    return {"$ref": f"#/$defs/{definition}/properties/{key}"}


def _ways_to_say(field: str, value: str, tool: ToolShape) -> list[Schema]:
    """The ways in which a task has that value of the field: written, or as its default."""
    spellings = [field, *(alias for alias, main in tool.aliases.items() if main == field)]
    ways: list[Schema] = [
        {"required": [key], "properties": {key: {"const": value}}} for key in spellings
    ]
    if tool.default(field) == value:
        elsewhere = [{"required": [key]} for key in (*spellings, "spec")]
        ways.append({"not": {"anyOf": elsewhere}})
    return ways


def _one_of_group(group: tuple[str, ...], tool: ToolShape) -> Schema:
    spellings = [*group, *(alias for alias, main in tool.aliases.items() if main in group)]
    spellings += tool.deprecated
    ways: list[Schema] = [{"required": [key]} for key in spellings]
    # Older forms have some of them in `spec`, or among the inputs.
    inside = {"anyOf": list(ways)}
    ways += [
        {"required": [place], "properties": {place: inside}}
        for place in (("spec", "args") if tool.deprecated else ("spec",))
    ]
    return {"anyOf": ways}


def _rendered(schema: Any) -> Any:
    """The schema of a value *before* rendering: wherever a value may stand, a template may."""
    if not isinstance(schema, dict):
        return schema
    if "properties" in schema:
        return schema | {
            "properties": {key: _or_template(value) for key, value in schema["properties"].items()}
        }
    return schema


def _or_template(schema: Schema) -> Schema:
    inner = {key: value for key, value in schema.items() if key not in ("description", "default")}
    if not inner or (inner.get("type") == "string" and len(inner) == 1):
        return schema
    for key in ("items", "additionalProperties"):
        if isinstance(inner.get(key), dict):
            inner[key] = _or_template(inner[key])
    found: Schema = {"anyOf": [inner, TEMPLATE_SCHEMA]}
    return found | {key: schema[key] for key in ("description", "default") if key in schema}
