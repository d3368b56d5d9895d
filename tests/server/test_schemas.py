"""Schemas in the catalog: versions, what is refused, and what executions keep."""

from __future__ import annotations

from typing import Any

from tests.server.processes import Server

SCHEMA = """\
apiVersion: noetl.io/v2
kind: Schema
metadata: {name: order, path: tests/order}
spec: {schema: {type: object, required: [id], properties: {id: {type: TYPE}}}COMPATIBILITY}
"""
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: tests/ordering}
workload: {id: 1}
workflow:
- step: start
  tool: {kind: noop, result: {id: "{{ workload.id }}"}}
  output: {schema: tests/order}
"""


def schema(kind: str, compatibility: str = "") -> dict[str, str]:
    more = f", compatibility: {compatibility}" if compatibility else ""
    return {"content": SCHEMA.replace("TYPE", kind).replace("COMPATIBILITY", more)}


def test_a_playbook_keeps_the_version_it_was_registered_with(dev: Server) -> None:
    refused = dev.ask("POST", "/api/catalog/register", {"content": PLAYBOOK})
    assert refused.status == 422
    assert refused.json["error"]["details"]["problems"][0]["code"] == "unknown-schema"

    entry = dev.post("/api/catalog/register", schema("integer"))
    assert (entry["kind"], entry["version"]) == ("Schema", 1)
    assert dev.post("/api/catalog/register", schema("integer"))["version"] == 1

    def ran(version: int | None, value: Any) -> dict[str, Any]:
        wanted = {"path": "tests/ordering", "version": version, "workload": {"id": value}}
        return dev.ended(dev.post("/api/execute", wanted)["execution_id"])

    assert dev.post("/api/catalog/register", {"content": PLAYBOOK})["version"] == 1
    assert ran(1, 3)["status"] == "COMPLETED"
    assert "`id` is string, not integer" in ran(1, "x")["error"]["message"]

    breaking = dev.ask("POST", "/api/catalog/register", schema("string"))
    assert breaking.status == 409
    assert "`id` may be string now, not only integer." in breaking.json["error"]["message"]
    assert dev.post("/api/catalog/register", schema("string", "none"))["version"] == 2

    assert ran(1, 3)["status"] == "COMPLETED", "what was registered before keeps its schema"
    again = dev.post("/api/catalog/register", {"content": PLAYBOOK})
    assert again["version"] == 1, "the same text is the same version, with the schema it had"

    pinned = PLAYBOOK.replace("tests/order}", "tests/order@2}")
    assert dev.post("/api/catalog/register", {"content": pinned})["version"] == 2
    assert ran(2, "x")["status"] == "COMPLETED"
    assert "`id` is integer, not string" in ran(2, 3)["error"]["message"]

    listed = dev.post("/api/catalog/list", {"resource_type": "schema"})["entries"]
    assert [(one["path"], one["version"]) for one in listed] == [("tests/order", 2)]


def test_a_call_of_a_playbook_in_the_catalog_is_checked(dev: Server) -> None:
    called = PLAYBOOK.replace("tests/ordering", "tests/called").replace(
        "  output: {schema: tests/order}\n", ""
    )
    typed = called.replace("workload: {id: 1}", "executor: {spec: {inputs: {id: {type: integer}}}}")
    dev.post("/api/catalog/register", {"content": typed})
    caller = PLAYBOOK.split("workload")[0].replace("tests/ordering", "tests/caller")
    caller += (
        "workflow: [{step: start, tool: {kind: playbook, path: tests/called, args: {id: x}}}]\n"
    )

    refused = dev.ask("POST", "/api/catalog/register", {"content": caller})

    assert refused.status == 422
    assert [one["code"] for one in refused.json["error"]["details"]["problems"]] == ["bad-call"]
