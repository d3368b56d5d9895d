"""The JSON Schema for editors says what `validate` says, as far as a schema can tell."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from noetl.dsl import compile_text
from noetl.dsl.nodes import plain
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.dsl.schema import playbook_schema
from noetl.tools.registry import tools
from tests.dsl.records import all_records

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TOOLS = tools()

DOCUMENTS = sorted((ROOT / "tests/documents").glob("*.yaml"))
VALID = [
    *(path for path in DOCUMENTS if "# verdict: valid\n" in path.read_text()),
    *sorted((HERE / "good").rglob("*.yaml")),
    *(path for path in sorted((ROOT / "examples").glob("*.yaml")) if ".test." not in path.name),
]
BAD = sorted((HERE / "bad").glob("*.yaml"))

TELLABLE = {
    *("bad-name", "bad-rule", "bad-value", "control-out-of-place", "empty-rules", "empty-step"),
    *("loop-incomplete", "missing-key", "policy-out-of-place", "removed-key", "unknown-key"),
    *("unknown-tool", "unsupported-version", "wrong-kind", "wrong-type"),
}
"""What is wrong with the form of one piece, without a look at any other."""
BEYOND_A_SCHEMA = {
    "inputs_that_nothing_fits": "a schema does not compare two values",
    "arc_writes_iter": "which names a `set` may write is said once, by the compiler",
    "rule_for_the_entry_writes_iter": "the same",
    "bad_moment_of_timer": "a moment is any text to a schema",
    "collect_without_a_path": "what a path is",
    "bad_range_step": "a mapping to go over may have the keys of a range",
    "choice_without_tasks": "which keys of a branch go together is said once, by the compiler",
    "missing_end_of_range": "a mapping to go over may have the keys of a range",
    "missing_moment_of_timer": "which keys of a timer go together is said once, by the compiler",
    "missing_to_of_jump": "`to` is needed by one of the directives only",
    "partition_in_workbook": "one shape of `loop`, wherever it stands",
    "policy_without_rules": "a policy of hooks alone has no rules",
    "retry_scope_on_a_task": "one shape of `retry`, wherever it stands",
    "skip_false": "a flag is true or false",
    "task_label_with_a_blank": "a label is a key, and keys are free",
    "task_name_with_a_blank": "a task's name is any text to a schema",
    "unknown_key_in_metadata": "further keys are kept as labels; only a near miss is refused",
    "unknown_key_in_range": "a mapping to go over may have the keys of a range",
    "unknown_tool_in_hook": "a hook may be empty in any way",
}
"""Bad files that a schema cannot, or need not, refuse, each with its reason."""


@cache
def the_schema() -> dict[str, Any]:
    return playbook_schema(TOOLS)


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(the_schema())


def data_of(text: str) -> Any:
    """The document as data; None where it cannot be read at all."""
    report = Report()
    root = read(text, report)
    return None if report.has_errors or root is None else plain(root)


def errors_of(text: str) -> set[str]:
    problems = compile_text(text, tools=TOOLS).problems
    return {problem.code for problem in problems if problem.severity == "error"}


def refusals(data: Any) -> str:
    best = jsonschema.exceptions.best_match(validator().iter_errors(data))
    return "" if best is None else f"{best.json_path}: {best.message}"


def test_it_is_a_schema_of_the_draft_that_editors_know():
    jsonschema.Draft7Validator.check_schema(the_schema())
    assert the_schema()["$schema"] == "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_what_is_valid_passes_the_schema(path):
    assert refusals(data_of(path.read_text())) == ""


def mistakes_of_form() -> list[Path]:
    return [path for path in BAD if _expected(path) and _expected(path) <= TELLABLE]


def _expected(path: Path) -> set[str]:
    lines = path.read_text().splitlines()
    return {line.split()[2] for line in lines if line.startswith("# problem: ")}


@pytest.mark.parametrize("path", mistakes_of_form(), ids=lambda path: path.stem)
def test_a_mistake_of_form_is_refused_by_the_schema_too(path):
    data = data_of(path.read_text())
    assert data is not None
    refused = refusals(data) != ""

    assert refused == (path.stem not in BEYOND_A_SCHEMA), BEYOND_A_SCHEMA.get(path.stem)


def test_every_exception_is_still_there():
    assert set(BEYOND_A_SCHEMA) <= {path.stem for path in mistakes_of_form()}


# --- Nothing is left out -----------------------------------------------------------------------


def property_sets(schema: Any) -> Iterator[dict[str, Any]]:
    """The properties of every object anywhere in the schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield schema["properties"]
        for value in schema.values():
            yield from property_sets(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from property_sets(value)


RECORDS = all_records()


def test_the_records_are_found():
    titles = {record.title for record in RECORDS}

    assert {"a playbook", "a step", "a task", "an arc", "a case rule", "a poll", "limits"} <= titles


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.title)
def test_every_key_of_every_record_is_in_the_schema(record):
    keys = set(record.fields)

    assert any(keys <= set(properties) for properties in property_sets(the_schema()))


@pytest.mark.parametrize("kind", sorted(TOOLS))
def test_every_field_and_alias_of_every_tool_is_in_the_schema(kind):
    tool = TOOLS[kind]
    properties = set(the_schema()["$defs"][f"task_{kind}"]["properties"])

    assert {*tool.config.__struct_encode_fields__, *tool.aliases} <= properties


def test_every_reference_leads_somewhere():
    def references(schema: Any) -> Iterator[str]:
        match schema:
            case {"$ref": str(reference)}:
                yield reference
            case dict():
                for value in schema.values():
                    yield from references(value)
            case list():
                for value in schema:
                    yield from references(value)

    for reference in set(references(the_schema())):
        target = the_schema()
        for part in reference.removeprefix("#/").split("/"):
            assert part in target, reference
            target = target[part]


# --- Editors and `validate` agree --------------------------------------------------------------


def mappings(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
    for child in (
        data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    ):
        yield from mappings(child)


@pytest.mark.parametrize(
    "name", ["orders", "approval", "event_rules/case_pagination", "nested_loops"]
)
def test_a_key_that_validate_refuses_is_refused_by_the_schema_wherever_it_stands(name):
    data = data_of((ROOT / f"examples/{name}.yaml").read_text())
    refused = 0
    for mapping in list(mappings(data)):
        mapping["zzz"] = 1
        if errors_of(json.dumps(data)):
            refused += 1
            assert not validator().is_valid(data), mapping
        del mapping["zzz"]

    assert refused


def test_a_key_that_the_schema_refuses_beside_a_template_is_refused_by_validate():
    text = (ROOT / "examples/orders.yaml").read_text().replace("read_only: true", "raed_only: true")

    assert refusals(data_of(text)) != ""
    assert errors_of(text) == {"unknown-key"}


def test_a_template_may_stand_wherever_a_value_of_a_tool_may():
    text = (ROOT / "examples/orders.yaml").read_text()
    written = text.replace("method: GET", 'method: "{{ workload.m }}"')

    assert refusals(data_of(written)) == ""


def offered(schema: Any) -> Iterator[str]:
    """Keys in the order in which an editor finds them, before any key is written."""
    if "$ref" in schema:
        found: Any = the_schema()
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        yield from offered(found)
    yield from schema.get("properties", {})
    for word in ("allOf", "anyOf"):
        for one in schema.get(word, []):
            yield from offered(one)
    if isinstance(schema.get("items"), dict):
        yield from offered(schema["items"])


def test_under_tool_the_first_key_that_an_editor_offers_is_kind():
    tool = the_schema()["$defs"]["step"]["properties"]["tool"]
    [many] = [one for one in the_schema()["$defs"]["tasks"]["anyOf"] if "items" in one]

    assert next(offered(tool)) == "kind"
    assert next(offered(many["items"])) == "kind"
    for name in TOOLS:
        assert next(offered(the_schema()["$defs"][f"task_{name}"])) == "kind"


def test_a_cursor_asks_the_kinds_that_say_that_they_claim_rows():
    """Also those of plug-ins: the language knows no kind by its name."""
    plugged = msgspec.structs.replace(TOOLS["postgres"], kind="cockroach")
    text = (
        (HERE / "good" / "loop_cursor.yaml")
        .read_text()
        .replace("kind: postgres,", "kind: cockroach,")
    )

    assert "cockroach" in text
    assert not compile_text(text, tools=TOOLS).is_valid
    assert compile_text(text, tools={**TOOLS, "cockroach": plugged}).is_valid
    assert playbook_schema(TOOLS)["$defs"]["cursor_kind"] == {
        "enum": ["duckdb", "mssql", "mysql", "oracle", "postgres", "sql", "sqlite"]
    }
