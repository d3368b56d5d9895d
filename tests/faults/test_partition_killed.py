"""A partitioned loop keeps the order of each key although its workers are killed."""

from __future__ import annotations

from pathlib import Path

from tests.faults.cluster import Cluster, effects

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: faults/partitions}
workload: {url: ""}
workflow:
- step: start
  loop:
    in: {from: 0, to: 36}
    iterator: n
    spec: {mode: parallel, max_in_flight: 6, policy: {partition: {key: "{{ iter.n % 6 }}"}}}
  tool: {kind: http, method: POST, url: "{{ workload.url }}/m.{{ iter.n }}"}
"""


def test_marks_of_a_key_come_in_order_and_none_again_behind_a_later_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with effects() as service:
        service.seconds = 0.05
        try:
            server = cluster.server()
            for _ in range(2):
                cluster.worker(server)
            started = server.start(PLAYBOOK, {"url": service.url})
            for total in (8, 20):
                service.wait_for(total)
                cluster.workers.pop(0).kill()
                cluster.worker(server)
            ended = server.ended(started)
        finally:
            cluster.end()

    assert ended["status"] == "COMPLETED", ended["error"]
    came = [int(mark.partition(".")[2]) for mark in service.order]
    assert set(came) == set(range(36))
    for key in range(6):
        own = [one for one in came if one % 6 == key]
        assert own == sorted(own), own
