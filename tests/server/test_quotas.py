"""Quotas hold across workers: no call is made beyond one."""

from __future__ import annotations

from tests.faults.cluster import effects
from tests.server.processes import Server

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: tests/quotas}
workload: {url: ""}
workflow:
- step: start
  loop:
    in: {from: 0, to: 40}
    iterator: n
    spec: {mode: parallel, max_in_flight: 8, batch_size: 4, on_error: continue}
  spec: {policy: {quotas: {max_calls: 10}}}
  tool: {kind: http, method: POST, url: "{{ workload.url }}/{{ execution_id }}.{{ iter.n }}"}
"""


def test_two_workers_make_no_call_beyond_the_quota(
    two_workers: Server,
) -> None:
    with effects() as service:
        entry = two_workers.post("/api/catalog/register", {"content": PLAYBOOK})
        body = {"path": entry["path"], "payload": {"url": service.url}}
        started = two_workers.post("/api/execute", body)["execution_id"]
        ended = two_workers.ended(started)

        assert ended["status"] == "FAILED"
        assert ended["error"]["kind"] == "quota"
        calls = [service.keys(f"{started}.{n}") for n in range(40)]
        # Of those that begin together with the one beyond none is made.
        assert 10 - 8 < sum(map(len, calls)) <= 10
