"""T4: the server is killed with -9 again and again under load, and comes back: all ends right.

Workers go on meanwhile and say what they have done as soon as somebody listens.
"""

from __future__ import annotations

import math

from tests.effort import IS_LONG
from tests.faults.cluster import MARKS, WORKING, Cluster, Effects, check_ended, start_many

EXECUTIONS = 60 if IS_LONG else 24
KILLS = 2


def test_t04_a_server_that_is_killed_under_load_comes_back(cluster: Cluster, counted: Effects):
    server = cluster.server()
    ids = start_many(server, WORKING, [{"url": counted.url}] * EXECUTIONS)
    everything = EXECUTIONS * len(MARKS)
    for _ in range(2):
        cluster.worker(server)
    for kill in range(KILLS):
        counted.stop_at(everything * (kill + 1) // (KILLS + 1))
        server.kill()
        server = cluster.server(port=server.port)
    counted.limit = math.inf

    check_ended(server, counted, ids)
    assert counted.total == everything
