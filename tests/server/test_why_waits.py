"""`why` of an execution that waits: which try of a task failed, and with what; which workers are
silent.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.server.processes import serving

AGAIN = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: again, path: why/again}
workflow:
  - step: start
    tool:
      - {name: first, kind: noop}
      - name: second
        kind: python
        code: "raise ValueError('no paper, {% for _ in range(100) %}none {% endfor %}')"
        spec:
          policy:
            rules:
              - when: "{{ outcome.status == 'error' }}"
                then: {do: retry, attempts: 3, delay: 600}
"""
PLAIN_WAIT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: wait, path: why/wait}
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: end, spec: {delay: 600}}]}}
  - {step: end, tool: {kind: noop}}
"""


def test_a_run_that_tries_again_later_says_what_failed(tmp_path: Path):
    with serving(tmp_path, kind="dev") as server:
        again = server.start(AGAIN)
        server.wait_for(again, "step.waiting")
        [why] = server.get(f"/api/executions/{again}/why")["waits_for"]
        assert why["waits_for"] == "timer"
        assert (
            'step "start": task "second" failed in attempt 1 (ValueError: no paper' in why["text"]
        )
        assert f"the next one begins at {why['until']}" in why["text"]
        assert len(why["text"]) < 500, "a long message is cut"

        waits = server.start(PLAIN_WAIT)
        server.wait_for(waits, "step.done")
        [why] = server.get(f"/api/executions/{waits}/why")["waits_for"]
        assert "a delayed token becomes ready" in why["text"]


def test_a_pool_whose_workers_fell_silent_is_named_with_the_last_of_them(
    tmp_path: Path, database_url: str
):
    with serving(tmp_path, NOETL_DATABASE_URL=database_url) as server:
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "INSERT INTO noetl.runtime"
                " (name, kind, started_at, seen_at, pool, slots, host, version, draining)"
                " VALUES ('locked-out', 'worker', 0, 3600, 'default', 1, '', '', FALSE),"
                " ('elsewhere', 'worker', 0, 7200, 'other', 1, '', '', FALSE)"
            )
        waits = server.start(PLAIN_WAIT)
        [why] = server.get(f"/api/executions/{waits}/why")["waits_for"]

    assert why["waits_for"] == "worker"
    assert "none of pool default has asked since 1970-01-01T01:00:00.000Z." in why["text"]
    assert "The log of locked-out says why, e.g. that its token is refused" in why["text"]
