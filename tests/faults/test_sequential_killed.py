"""A worker dies in the middle of a sequential loop: no iteration that has ended runs again."""

from __future__ import annotations

from tests.faults.cluster import Cluster, Effects, playbook

ITERATIONS = 60
LOOP = playbook(
    "faults/sequential",
    f"""
- step: start
  loop: {{in: {{from: 0, to: {ITERATIONS}}}, iterator: n}}
  tool: {{kind: http, method: POST, url: "{{{{ workload.url }}}}/{{{{ iter.n }}}}"}}
  next: end
- {{step: end, tool: {{kind: noop, result: "{{{{ start.results | length }}}}"}}}}
""",
    '{url: ""}',
)


def test_only_the_iteration_that_was_cut_short_is_repeated(cluster: Cluster, counted: Effects):
    server = cluster.server()
    worker = cluster.worker(server)
    counted.limit = 0
    execution_id = server.start(LOOP, {"url": counted.url})
    for cut_short in (20, 21, 40):
        counted.stop_at(cut_short)
        worker.kill()
        worker = cluster.worker(server)
    counted.limit = ITERATIONS
    document = server.ended(execution_id)

    assert (document["status"], document["result"]) == ("COMPLETED", ITERATIONS)
    calls = {n: len(counted.keys(str(n))) for n in range(ITERATIONS)}
    assert {n for n, times in calls.items() if times > 1} <= {20, 21, 40}
    assert all(len(set(counted.keys(str(n)))) == 1 for n in range(ITERATIONS))
    done = [
        event["iteration"]
        for event in server.events(execution_id)
        if event["name"] == "loop.iteration.done"
    ]
    assert done == list(range(ITERATIONS))
