"""What the database refuses fails alone, with an answer (T24, T32)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from noetl.api.services import Services
from noetl.errors import StoreError
from tests.control.servers import HEAD, run, servers, started, working

ONE_STEP = "workflow: [{step: start, tool: {kind: noop}}]\n"


async def refused(system: Services) -> str:
    """Start what PostgreSQL cannot store: its priority is too large. It is no longer accepted, but
    may have been registered.
    """
    net = system.catalog.check(HEAD + ONE_STEP).unwrap()
    executor = msgspec.structs.replace(net.executor, priority=10**10)
    await system.orchestrator.programs.keep(msgspec.structs.replace(net, executor=executor), "old")
    return await system.executions.start("old", net.path, None, {})


def test_t32_a_write_that_is_refused_takes_nothing_else_with_it(database_url: str):
    async def story() -> None:
        async with servers(database_url, 1) as (system,), working(system, "w", slots=4):
            for _ in range(5):
                first, wrong, *others = await asyncio.gather(
                    started(system, ONE_STEP),
                    refused(system),
                    *(started(system, ONE_STEP) for _ in range(10)),
                    return_exceptions=True,
                )

                assert isinstance(wrong, StoreError)
                for execution_id in (first, *others):
                    assert isinstance(execution_id, str), execution_id
                    state = await system.orchestrator.wait_for_end(execution_id)
                    assert state.status == "COMPLETED"

    run(story)


@pytest.mark.parametrize(
    ("called", "kind", "code"),
    [
        ('{path: "a{{ workload.nul }}b"}', "client_error", "bad_text"),
        ('{path: other, version: "{{ workload.large }}"}', "not_found", "no_playbook"),
        ("{path: other, version: latest}", "not_found", "no_playbook"),
    ],
)
def test_t24_a_call_of_a_playbook_that_no_database_can_look_for_fails(
    database_url: str, called: str, kind: str, code: str
):
    playbook = f"""
workload: {{nul: "\\0", large: "{10**30}"}}
workflow:
- step: start
  tool: {{kind: playbook, {called[1:]}
"""

    async def story() -> None:
        async with servers(database_url, 1) as (system,), working(system, "w"):
            state = await system.orchestrator.wait_for_end(await started(system, playbook))

            assert state.failure is not None
            assert (state.status, state.failure.kind, state.failure.code) == ("FAILED", kind, code)

    run(story)
