"""Whatever is asked, the server answers as its own description says, and never with a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from noetl.api.table import TABLE
from tests.effort import IS_LONG
from tests.examples.system import temporary_folder
from tests.server.processes import serving

if TYPE_CHECKING:
    import schemathesis

WAITS = {"/api/commands/lease", "/api/commands/cancelled"}
"""They wait for work that never comes here."""
LOCKS_OUT = {"/api/access/users", "/api/access/tokens"}
"""The first user closes the server to whoever is asking."""
NOTHING_TO_SPOIL = {"/", "/health", "/api/health", "/hooks/{path}"}
"""They take neither parameters nor a body, or any body at all, and anyone may ask."""
OPERATIONS = sorted(
    (route.method, path)
    for route in TABLE
    for path in route.paths
    if path not in WAITS and (route.method, path) not in {("POST", one) for one in LOCKS_OUT}
)


@pytest.fixture(scope="module")
def schema() -> Iterator[schemathesis.BaseSchema]:
    # Half a second, which only the process pays that runs these tests.
    import schemathesis

    # The page for browsers at `/` is not a part of the API.
    with temporary_folder() as folder, serving(folder, NOETL_UI="off") as server:
        yield schemathesis.openapi.from_url(f"{server.url}/api/openapi.json")


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_server_keeps_to_its_description(
    schema: schemathesis.BaseSchema, method: str, path: str, mode: str
) -> None:
    from schemathesis import GenerationMode
    from schemathesis.checks import (
        content_type_conformance,
        not_a_server_error,
        response_schema_conformance,
        status_code_conformance,
    )

    if mode == "negative" and path in NOTHING_TO_SPOIL:
        return
    operation = schema[path][method]

    @settings(
        max_examples=40 if IS_LONG else 2,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.query, dict):
            case.query.pop("wait", None)
        case.call_and_validate(
            checks=[
                not_a_server_error,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ]
        )

    ask()
