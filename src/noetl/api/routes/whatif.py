"""/api/whatif and /api/tests: playbooks tried out, without calling anything."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated

import msgspec

from noetl.api.route import Body, Caller, Reply, Route, Services
from noetl.api.routes.catalog import Version, number_of
from noetl.control.forks import request_of
from noetl.control.recordings import recorded
from noetl.errors import BadRequest, TooLarge
from noetl.model.execution_query import exactly, parse
from noetl.model.net import Net
from noetl.model.net import digest as digest_of
from noetl.model.retrospect import TestsDocument, WhatIfDocument

EXECUTIONS_MAX = 100
BYTES_MAX = 64 * 1024 * 1024
"""The total packed size of the recordings compared at once."""
NAME = re.compile(r"[^A-Za-z0-9_.-]+")
Text = Annotated[str, msgspec.Meta(max_length=512 * 1024)]


class WhatIf(Body, frozen=True, kw_only=True):
    """A playbook, as text or from the catalog, and the executions to compare it with."""

    content: str | None = None
    path: str | None = None
    version: Version = None
    executions: list[str] | None = None
    """Ids, of the playbook's path."""
    query: str | None = None
    """Executions that match this query, of the playbook's path unless the query has a path or an
    id.
    """
    last: Annotated[int, msgspec.Meta(ge=1, le=EXECUTIONS_MAX)] = 20
    """At most this many, the newest."""


async def whatif(services: Services, caller: Caller, *, body: WhatIf) -> WhatIfDocument:
    """Which of these executions would have gone another way under this playbook, and where.

    Recorded outcomes replace all tools: nothing is called.
    """
    net = await _net(services, caller, body)
    async with services.simulator.turn():
        found = await services.simulator.compared(net, await _recordings(services, body, net.path))
    verdicts = Counter(one.verdict for one in found)
    return WhatIfDocument(
        path=net.path,
        digest=digest_of(net),
        same=verdicts["same"],
        different=verdicts["different"],
        unknown=verdicts["unknown"],
        executions=found,
    )


async def test_of(services: Services, caller: Caller, *, execution_id: str) -> Reply[str]:
    """A test file that replays what the tools of an execution answered, and that passes."""
    request = await request_of(services.store.log, execution_id)
    name = NAME.sub("-", request.path.rpartition("/")[2]) or "playbook"
    async with services.simulator.turn():
        text = await services.simulator.test_of(
            await _packed(services, execution_id, BYTES_MAX), f"{name}.yaml"
        )
    attached = f'attachment; filename="{name}.test.yaml"'
    return Reply(text, headers=(("Content-Disposition", attached),))


async def _recordings(services: Services, body: WhatIf, path: str) -> list[bytes]:
    found: list[bytes] = []
    for execution_id in await _chosen(services, body, path):
        room = BYTES_MAX - sum(map(len, found))
        found.append(await _packed(services, execution_id, room))
    return found


async def _packed(services: Services, execution_id: str, room: int) -> bytes:
    """The recording of an execution. One that is too large is not read to its end."""
    packed = bytearray()
    async for piece in await recorded(services.store, execution_id, services.clock.now()):
        packed += piece
        if len(packed) > room:
            raise TooLarge(
                f"the logs of these executions have more than {BYTES_MAX >> 20} MiB, too much to"
                " read at once. Choose fewer, or smaller ones."
            )
    return bytes(packed)


class Tests(Body, frozen=True, kw_only=True):
    """A playbook and a file of tests, as texts."""

    content: Text
    tests: Text


async def run_tests(services: Services, caller: Caller, *, body: Tests) -> TestsDocument:
    """Run tests with stand-ins, in virtual time. No tool is called; here Python code needs a
    stand-in, too.
    """
    async with services.simulator.turn():
        return await services.simulator.tested(body.content, body.tests)


async def _net(services: Services, caller: Caller, body: WhatIf) -> Net:
    if (body.content is None) == (body.path is None):
        raise BadRequest("give either the `content` of a playbook or its `path` in the catalog.")
    if body.content is not None:
        return (await services.evaluator.compiled(body.content, caller.name)).unwrap()
    assert body.path is not None
    programs = services.orchestrator.programs
    return (await programs.by_path(body.path, number_of(body.version)))[0].net


async def _chosen(services: Services, body: WhatIf, path: str) -> list[str]:
    if body.executions is not None:
        if body.query is not None:
            raise BadRequest("give either `executions` or a `query`.")
        if len(body.executions) > EXECUTIONS_MAX:
            raise BadRequest(f"at most {EXECUTIONS_MAX} executions are compared at once.")
        for execution_id in body.executions:
            other = (await request_of(services.store.log, execution_id)).path
            if other != path:
                raise BadRequest(
                    f"execution {execution_id} is of {other}, and this playbook is {path}. If it"
                    f" was renamed, ask with the query `id:{execution_id}`."
                )
        return body.executions
    now = services.clock.now()
    wanted = parse(body.query or "", now)
    asked = {condition.field for term in wanted for condition in term.conditions}
    if asked.isdisjoint(("path", "path_like", "id", "exact_id")):
        wanted += exactly(path=path)
    rows = await services.store.records.summaries(wanted, now=now, limit=body.last)
    return [row.execution_id for row in rows]


WHATIF = Route("whatif.compare", "POST", "/api/whatif", "read", whatif, body=WhatIf)
TEST_OF = Route(
    "executions.test",
    "GET",
    "/api/executions/{execution_id}/test",
    "read",
    test_of,
    media="text/yaml; charset=utf-8",
)
TESTS = Route("tests.run", "POST", "/api/tests", "read", run_tests, body=Tests)
