"""Cursor loops against real databases: every row once, by several frames, until none is left."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from noetl.model.events import FrameClaimed, TaskDone
from tests.examples.system import Bench, Run, on_bench, playbook, ran

CLAIM = """
UPDATE jobs SET state = 'taken', lease = now() + make_interval(secs => %(lease_seconds)s)
 WHERE id IN (SELECT id FROM jobs WHERE state = 'new' OR (state = 'taken' AND lease < now())
               ORDER BY id LIMIT %(max_rows)s FOR UPDATE SKIP LOCKED)
RETURNING id, size
"""


def flow(spec: str, tool: str, claim: str = CLAIM) -> str:
    statement = claim.strip().replace("\n", "\n        ")
    return playbook(
        f"""
- step: start
  loop:
    cursor:
      kind: postgres
      auth: "{{{{ workload.db }}}}"
      claim: |
        {statement}
    iterator: row
    spec: {spec}
  tool: {tool}
  next: end
- {{ step: end, tool: {{ kind: noop, result: "{{{{ start }}}}" }} }}
""",
        workload="db: {}",
    )


def connected(credential: dict[str, str]) -> psycopg.Connection[Any]:
    return psycopg.connect(**credential, autocommit=True)  # type: ignore[arg-type]


@pytest.fixture
def jobs(postgres: dict[str, str]) -> dict[str, str]:
    """A table of 25 rows to work off."""
    with connected(postgres) as db:
        db.execute(
            "CREATE TABLE jobs (id int PRIMARY KEY, size int, state text DEFAULT 'new',"
            " lease timestamptz)"
        )
        db.execute("INSERT INTO jobs SELECT n, n * 10 FROM generate_series(1, 25) n")
    return postgres


DONE = (
    '{ kind: postgres, auth: "{{ workload.db }}",'
    " command: \"UPDATE jobs SET state = 'done' WHERE id = %(id)s RETURNING id, size\","
    ' params: { id: "{{ row.id }}" } }'
)


def test_every_row_is_one_iteration_until_none_is_left(jobs):
    spec = "{ mode: cursor, max_in_flight: 3, frame: { max_rows: 4, row_concurrency: 2 } }"
    done = ran(flow(spec, DONE), {"db": jobs})

    assert done.result["stats"] == {"total": 25, "success": 25, "failed": 0}
    sizes = sorted(result["rows"][0]["size"] for result in done.result["results"])
    assert sizes == [n * 10 for n in range(1, 26)]
    with connected(jobs) as db:
        assert db.execute("SELECT DISTINCT state FROM jobs").fetchall() == [("done",)]
    claims = [fact.iterations for fact in done.of(FrameClaimed)]
    assert sum(claims) == 25
    assert max(claims) == 4
    assert claims.count(0) == 3, "each frame went on until it found nothing"


def test_a_frame_may_be_processed_as_a_whole(jobs):
    spec = "{ mode: cursor, max_in_flight: 1, frame: { max_rows: 10, process: frame } }"
    done = ran(
        flow(spec, "{ kind: noop, result: \"{{ row | map(attribute='id') | list }}\" }"),
        {"db": jobs},
    )

    assert [len(part) for part in done.result["results"]] == [10, 10, 5]
    assert sorted(n for part in done.result["results"] for n in part) == list(range(1, 26))


def test_a_failed_row_counts_and_the_others_go_on(jobs):
    spec = "{ mode: cursor, on_error: continue, frame: { max_rows: 5 } }"
    done = ran(flow(spec, '{ kind: noop, result: "{{ 1 / (row.id - 7) }}" }'), {"db": jobs})

    assert done.result["stats"] == {"total": 25, "success": 24, "failed": 1}


def test_a_claim_that_cannot_work_fails_the_step_and_says_why(jobs):
    done = ran(
        flow("{ mode: cursor, max_in_flight: 1 }", "{ kind: noop }", "SELECT nowhere"),
        {"db": jobs},
    )

    assert "nowhere" in done.error["message"]
    [claim] = done.of(TaskDone)
    assert claim.task == "claim"


def test_rows_may_wait_and_go_on_with_the_row_they_had(jobs):
    child = playbook(
        "- {step: start, tool: {kind: noop, result: '{{ workload.size + 1 }}'}}",
        workload="size: 0",
    ).replace("tried", "child")
    text = flow(
        "{ mode: cursor, max_in_flight: 2, frame: { max_rows: 5, row_concurrency: 5 } }",
        '[{ name: ask, kind: playbook, path: child, args: { size: "{{ row.size }}" } },'
        ' { name: say, kind: noop, result: ["{{ row.id }}", "{{ ask }}"] }]',
    )

    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(child)
        return await bench.run(text, {"db": jobs})

    done = on_bench(work)

    assert sorted(done.result["results"]) == [[n, n * 10 + 1] for n in range(1, 26)]


def test_a_sqlite_file_can_be_claimed_from_too(tmp_path):
    file = tmp_path / "jobs.db"
    text = playbook(
        f"""
- step: start
  tool:
    kind: sqlite
    database: {file}
    command: |
      CREATE TABLE jobs (id INTEGER, taken INTEGER DEFAULT 0);
      INSERT INTO jobs (id) VALUES (1), (2), (3), (4), (5)
  next: each
- step: each
  loop:
    cursor:
      kind: sqlite
      database: {file}
      claim: |
        UPDATE jobs SET taken = 1 WHERE id IN
          (SELECT id FROM jobs WHERE taken = 0 LIMIT :max_rows) RETURNING id
    iterator: row
    spec: {{ mode: cursor, frame: {{ max_rows: 2 }}, policy: {{ reduce: {{ sum: sum }} }} }}
  tool: {{ kind: noop, set: {{ ctx.sum: "{{{{ row.id }}}}" }} }}
  next: end
- {{ step: end, tool: {{ kind: noop, result: "{{{{ ctx.sum }}}}" }} }}
"""
    )

    assert ran(text).result == 15


@pytest.mark.parametrize("where", ["of the loop", "of the executor"])
def test_a_claim_has_the_time_that_tasks_of_its_loop_have(where: str, postgres: dict[str, str]):
    own = ", timeout: 0.5" if where == "of the loop" else ""
    frames = "{ mode: cursor, max_in_flight: 1, frame: { max_attempts: 2 }%s }"
    text = flow(frames % own, "{ kind: noop }", claim="SELECT pg_sleep(600)")
    if where == "of the executor":
        text += "\nexecutor: { spec: { timeout: 0.5 } }\n"

    done = ran(text, {"db": postgres})

    assert done.error["kind"] == "timeout"
    assert [fact.attempt for fact in done.of(TaskDone)] == [1, 2]
