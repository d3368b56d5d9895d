"""The table of routes: which path means which route, and that every answer has a named schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

import pytest

from noetl.api.errors import WrongMethod
from noetl.api.openapi import document
from noetl.api.route import Incoming
from noetl.api.router import Router
from noetl.api.table import TABLE
from noetl.errors import NotFound

ROUTER = Router(TABLE)


@cache
def described() -> dict[str, Any]:
    return document(TABLE)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in described()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


@pytest.mark.parametrize(
    ("method", "path", "name", "parameters"),
    [
        ("GET", "/", "server.welcome", {}),
        ("POST", "/api/execute", "executions.start", {}),
        ("POST", "/api/executions/", "executions.start", {}),
        ("GET", "/api/executions/7", "executions.get", {"execution_id": "7"}),
        ("GET", "/api/executions/7/events", "executions.events", {"execution_id": "7"}),
        ("GET", "/api/catalog/a/b/c", "catalog.get", {"path": "a/b/c"}),
        ("POST", "/api/catalog/register", "catalog.register", {}),
        ("GET", "/api/results/7/a/b", "results.get", {"execution_id": "7", "key": "a/b"}),
        ("PUT", "/api/vars/7/x%20y", "vars.put", {"execution_id": "7", "name": "x y"}),
        ("PUT", "/api/vars/7/x%2Fy", "vars.put", {"execution_id": "7", "name": "x/y"}),
        ("GET", "/api/catalog/a%2Fb/c", "catalog.get", {"path": "a/b/c"}),
    ],
)
def test_a_path_means_one_route(method, path, name, parameters):
    found = ROUTER.match(method, path)

    assert (found.route.name, found.parameters) == (name, parameters)


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/api", "/api/results/7", "/api/vars/7/x/y", "/API", "/api%2Fexecutions"],
)
def test_a_path_that_no_route_has_is_not_found(path):
    with pytest.raises(NotFound, match=f"there is no route {path}\\. "):
        ROUTER.match("GET", path)


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_another_method_is_refused_with_those_there_are(route):
    path = re.sub(r"\{\w+\}", "7", route.path)
    with pytest.raises(WrongMethod) as refused:
        ROUTER.match("PATCH", path)

    allowed = refused.value.allow.decode().split(", ")
    assert {route.method, "OPTIONS"} <= set(allowed)
    assert ("HEAD" in allowed) == ("GET" in allowed)


def test_two_routes_cannot_answer_the_same():
    with pytest.raises(ValueError, match="two routes answer"):
        Router([*TABLE, TABLE[0]])


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_a_handler_takes_what_its_route_declares(route):
    taken = get_type_hints(route.handler)

    assert taken.pop("query", None) == (dict[str, str] if route.query is dict else route.query)
    assert taken.pop("body", None) == (Incoming if route.streamed else route.body)
    assert set(taken) == {"services", "caller", "return", *route.parameters}


# --- The description -------------------------------------------------------------------------


def name_of(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).removeprefix("#/components/schemas/")


def names_of(schema: dict[str, Any]) -> set[str]:
    if "anyOf" in schema:
        return set().union(*(names_of(one) for one in schema["anyOf"]))
    return names_of(schema["items"]) if schema.get("type") == "array" else {name_of(schema)}


def test_every_json_body_and_answer_is_a_named_schema():
    opaque = {"/api/results/{execution_id}/{key}", "/api/playbooks/{digest}", "/api/openapi.json"}
    opaque.add("/hooks/{path}")  # whatever a sender has to say
    for path, method, operation in operations():
        content = operation["responses"]["200"]["content"]
        body = operation.get("requestBody", {"content": {}})["content"]
        for media, schema in [*content.items(), *body.items()]:
            if media == "application/json" and path not in opaque:
                for name in names_of(schema["schema"]):
                    assert name in described()["components"]["schemas"], (method, path)


def test_generators_find_nothing_to_complain_about():
    """What openapi-python-client and openapi-typescript warn of, or make bad names from."""
    schemas = described()["components"]["schemas"]
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for name in schemas)
    assert all(schema.get("title") == name for name, schema in schemas.items())
    referred = set(re.findall(r"#/components/schemas/(\w+)", repr(described())))
    assert referred <= schemas.keys()

    def look(part: Any) -> None:
        if isinstance(part, list):
            for one in part:
                look(one)
        elif isinstance(part, dict):
            if part.get("type") == "array":
                assert "items" in part or "prefixItems" in part, part
                assert part.get("items") is not False, part
            if part.get("type") == "object":
                # Without, openapi-typescript takes it for an object that has no keys.
                assert "properties" in part or "additionalProperties" in part, part
            for one in part.values():
                look(one)

    look(described())
    for _, _, operation in operations():
        assert operation["summary"]
        bodies = operation.get("requestBody", {"content": {}})["content"]
        assert bodies.keys() <= {"application/json"}
        media = {
            one for answer in operation["responses"].values() for one in answer.get("content", ())
        }
        others = {one for one in media if not one.startswith("text/")}
        assert others <= {"application/json", "application/octet-stream"}


def test_a_typed_client_may_leave_out_what_a_body_does_not_need():
    """openapi-typescript demands every key that has a `default`."""
    schemas = described()["components"]["schemas"]
    sent = ["StartExecution", "Cancel", "Rerun", "Fork", "BulkActing", "Register", "NewToken"]
    for name in sent:
        assert not any("default" in one for one in schemas[name]["properties"].values()), name
    assert schemas["Cancel"]["properties"]["cascade"]["description"].endswith("Default: true.")
    [workload, _] = schemas["StartExecution"]["properties"]["workload"]["anyOf"]
    assert workload == {"type": "object", "additionalProperties": {}}


def test_what_the_source_says_of_a_field_is_in_the_description():
    properties = described()["components"]["schemas"]["StepDocument"]["properties"]

    assert properties["undone"]["description"] == "How many of its runs were compensated."
    [since] = [
        one
        for one in described()["paths"]["/api/executions"]["get"]["parameters"]
        if one["name"] == "since"
    ]
    assert since["description"] == "A moment (RFC 3339) or a duration such as `1h`."


def test_a_server_that_is_not_well_is_described_as_it_answers():
    for path in ("/health", "/api/health"):
        answers = described()["paths"][path]["get"]["responses"]
        assert answers["503"]["content"] == answers["200"]["content"]
