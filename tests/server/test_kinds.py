"""A worker that runs some tool kinds gets commands that need no others."""

from __future__ import annotations

from pathlib import Path

from tests.server.processes import serving, working
from tests.server.test_leases import Agent

MIXED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: mixed, path: tried/mixed}
workflow:
  - {step: start, tool: {kind: shell, cmd: echo 1}, next: count}
  - {step: count, tool: {kind: python, code: result = 2}, next: both}
  - step: both
    tool:
      - {name: one, kind: python, code: result = 3}
      - {name: two, kind: workbook, task: shout}
workbook:
  - {name: shout, tool: {kind: shell, cmd: echo 4}}
"""


def test_a_command_goes_to_a_worker_that_runs_all_it_needs(tmp_path: Path):
    with serving(tmp_path) as server:
        execution_id = server.start(MIXED)

        def leased(*kinds: str) -> dict[str, object] | None:
            body = {"worker_id": "w", "slots": 9, "kinds": kinds, "wait": 0}
            found = server.post("/api/commands/lease", body)["commands"]
            return dict(found[0]) if found else None

        def done(command: dict[str, object] | None) -> str:
            assert command is not None
            assert Agent(server, "").report(command).status == 200
            return str(command["step"])

        assert leased() is leased("python") is leased("python", "http") is None
        assert done(leased("shell")) == "start"
        assert leased("shell") is None
        assert done(leased("python", "http")) == "count"
        assert leased("python") is leased("shell") is None
        assert done(leased("shell", "python")) == "both"
        assert server.ended(execution_id)["status"] == "COMPLETED"


def test_workers_of_different_kinds_share_an_execution(tmp_path: Path):
    with (
        serving(tmp_path) as server,
        working(tmp_path, server.url, "--kinds", "shell", "--name", "sh"),
        working(tmp_path, server.url, "--kinds", "python", "--name", "py"),
        working(tmp_path, server.url, "--kinds", "python,shell", "--name", "all"),
    ):
        execution_id = server.start(MIXED)
        assert server.ended(execution_id)["status"] == "COMPLETED"

        started = [
            (event["step"], event["payload"]["worker"])
            for event in server.events(execution_id)
            if event["name"] == "step.started"
        ]
    assert dict(started)["start"] in ("sh", "all")
    assert dict(started)["count"] in ("py", "all")
    assert dict(started)["both"] == "all"
