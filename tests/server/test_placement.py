"""Commands that ask for labels go only to workers that have them; `why` says what is missing."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.processes import Server, serving, working

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: tests/placement}
executor: {spec: {policy: {placement: {labels: {zone: eu}}}}}
workflow:
- step: start
  loop: {in: {from: 0, to: 6}, iterator: n, spec: {mode: parallel, batch_size: 1}}
  spec: {policy: {placement: {labels: {gpu: a100}}}}
  tool: {kind: noop, result: "{{ iter.n }}"}
  next: end
- step: end
  tool: {kind: noop}
"""
PLAIN = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: tests/placement_plain}
workflow:
- {step: start, tool: {kind: noop, result: 7}}
"""


def open_commands(server: Server) -> dict[str, float]:
    """What Prometheus is told of each pool."""
    figures = server.ask("GET", "/metrics").raw.decode()
    found = re.findall(r'noetl_commands_open\{pool="([^"]*)"\} (\S+)', figures)
    return {pool: float(waiting) for pool, waiting in found}


def test_a_command_waits_for_a_worker_with_its_labels_on_whichever_server(
    tmp_path: Path, database_url: str
) -> None:
    given = {"NOETL_DATABASE_URL": database_url}
    with (
        serving(tmp_path, **given) as one,
        serving(tmp_path, **given) as two,
        working(tmp_path, one.url, "--slots", "4", "--name", "plain"),
        working(tmp_path, one.url, "--label", "zone=eu", "--name", "european"),
    ):
        started = one.start(PLAYBOOK)
        assert one.ended(one.start(PLAIN))["result"] == 7

        [why] = one.get(f"/api/executions/{started}/why")["waits_for"][:1]
        assert "no worker of pool default has gpu=a100" in why["text"]
        [queue] = one.get("/api/queues")["queues"]
        assert (queue["pool"], queue["missing"]) == ("default", ["gpu=a100"])
        assert open_commands(one) == {"default": queue["waiting"]}
        [pool] = one.get("/api/worker/pools")["pools"]
        shown = {row["name"].rpartition("/")[2]: row["labels"] for row in pool["workers"]}
        assert shown == {"plain": [], "european": ["zone=eu"]}
        assert pool["missing"] == ["gpu=a100"]

        labels = ("--label", "gpu=a100", "--label", "zone=eu", "--label", "disk=ssd")
        with working(tmp_path, two.url, *labels, "--name", "fast"):
            ended = one.ended(started)
            assert ended["status"] == "COMPLETED"
            events = one.events(started)
            by = {
                event["step"]: event["payload"].get("worker", "").rpartition("/")[2]
                for event in events
                if event["name"] == "step.started"
            }
            assert by["start"] == "fast"
            assert by["end"] in ("fast", "european")
            assert open_commands(one) == {"default": 0}


def test_a_worker_with_labels_takes_what_asks_for_none(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        started = server.start(PLAIN)
        with working(tmp_path, server.url, "--label", "gpu=a100"):
            assert server.ended(started)["result"] == 7
            assert server.ended(server.start(PLAIN))["result"] == 7
