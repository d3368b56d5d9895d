"""Executions stay with a server: its workers take first what it has opened itself."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from tests.server.processes import Server, serving, working

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t, path: tests/sticky}\n"
STEPS = 6
CHAIN = (
    HEAD
    + "workflow:\n"
    + "".join(
        f"- {{step: {'start' if n == 0 else f's{n}'}, tool: {{kind: noop}}, next: s{n + 1}}}\n"
        for n in range(STEPS - 1)
    )
    + f"- {{step: s{STEPS - 1}, tool: {{kind: noop}}}}\n"
)
EXECUTIONS = 120
READ_MAX = 0.15
"""States read per step. Where workers claim what is oldest, whoever opened it, it is 0.3."""


def states_read(server: Server) -> float:
    figures = server.ask("GET", "/metrics").raw.decode()
    found = re.search(r'^noetl_states_total\{where="store"\} (\S+)$', figures, re.MULTILINE)
    assert found is not None, figures
    return float(found[1])


def test_steps_are_decided_where_the_state_is_in_memory(tmp_path: Path, database_url: str):
    with ExitStack() as stack:
        given = {"NOETL_DATABASE_URL": database_url}
        servers = [stack.enter_context(serving(tmp_path, **given)) for _ in range(2)]
        entry = servers[0].post("/api/catalog/register", {"content": CHAIN})
        wanted = {"path": entry["path"]}
        # All of them wait when the workers come.
        ids = [
            servers[number % 2].post("/api/execute", wanted)["execution_id"]
            for number in range(EXECUTIONS)
        ]
        for server in servers:
            stack.enter_context(working(tmp_path, server.url, "--slots", "8"))
        for execution_id in ids:
            assert servers[0].ended(execution_id)["status"] == "COMPLETED"

        assert sum(map(states_read, servers)) / (EXECUTIONS * STEPS) <= READ_MAX
