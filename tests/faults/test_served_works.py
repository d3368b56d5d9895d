"""T7, T18, T32, T37, T38 with processes: what is broken, late or poisoned harms nobody else."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.faults.cluster import Served, playbook, start_many, until
from tests.faults.runs import is_running

QUICK = playbook("faults/quick", "- {step: start, tool: {kind: noop, result: 1}}")
WAITING = """
- step: start
  spec: {eval_mode: on_event}
  case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
- {step: end, tool: {kind: noop, result: %s}}
"""


def assert_others_work(served: Served) -> None:
    ids = start_many(served.server, QUICK, [{}] * 8)
    assert [served.server.ended(one)["status"] for one in ids] == ["COMPLETED"] * 8


# --- T7 ----------------------------------------------------------------------------------------

LATE = {
    "shell": """
- step: start
  tool:
    kind: shell
    timeout: 500ms
    env: {FOLDER: "{{ workload.folder }}"}
    command: |
      (sleep 3; echo late > $FOLDER/late) & echo $! > $FOLDER/pids; echo $$ >> $FOLDER/pids
      touch $FOLDER/begun; wait
""",
    "python": """
- step: start
  tool:
    kind: python
    timeout: 3s
    args: {folder: "{{ workload.folder }}"}
    code: |
      import os, pathlib, time
      pathlib.Path(folder, "pids").write_text(str(os.getpid()))
      pathlib.Path(folder, "begun").touch()
      time.sleep(30)
      pathlib.Path(folder, "late").write_text("late")
""",
}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="asks the system for processes")
@pytest.mark.parametrize("kind", LATE)
def test_t07_an_attempt_that_took_too_long_writes_nothing_later(
    served: Served, kind: str, tmp_path: Path
):
    text = playbook(f"faults/late_{kind}", LATE[kind], '{folder: ""}')
    [execution_id] = start_many(served.server, text, [{"folder": str(tmp_path)}])

    document = served.server.ended(execution_id)

    assert (document["status"], document["error"]["kind"]) == ("FAILED", "timeout")
    if (tmp_path / "begun").exists():
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        until(lambda: not any(map(is_running, pids)), "what timed out goes on")
    assert not (tmp_path / "late").exists()


def test_t07_a_statement_that_took_too_long_is_not_committed(
    served: Served, postgres: dict[str, str]
):
    body = {"name": "counters", "type": "postgres", "data": postgres}
    served.server.post("/api/credentials", body)
    with psycopg.connect(**postgres, autocommit=True) as db:
        db.execute("CREATE TABLE mark (n int)")
        text = playbook(
            "faults/late_sql",
            "- {step: start, tool: {kind: postgres, auth: counters, timeout: 500ms,"
            " command: 'INSERT INTO mark VALUES (1); SELECT pg_sleep(60)'}}",
        )
        [execution_id] = start_many(served.server, text, [{}])
        document = served.server.ended(execution_id)

        def is_over() -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO mark%'"
            return db.execute(query + " AND state <> 'idle'").fetchone() == (0,)

        until(is_over, "the statement goes on")
        assert document["status"] == "FAILED"
        assert db.execute("SELECT count(*) FROM mark").fetchone() == (0,)


# --- T18 ---------------------------------------------------------------------------------------

BROKEN = {
    "ends its process": "import os; os._exit(3)",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "raises what nobody catches": "raise SystemExit(3)",
    "is too deep": "def down(n): return down(n + 1)\nresult = down(0)",
    "yields no data": "result = object()",
    "yields no number": "result = float('nan')",
    "yields half a character": "result = '\\ud800'",
    "closes its lines": "import os; [os.close(n) for n in range(3, 50) if n]",
    "prints without end": "print('x' * 50_000_000); raise ValueError('enough')",
}


def test_t18_whatever_breaks_in_a_task_its_run_ends_once(served: Served):
    server, ids = served.server, {}
    for number, (name, code) in enumerate(BROKEN.items()):
        flow = f"- {{step: start, tool: {{kind: python, timeout: 20s, code: {json.dumps(code)}}}}}"
        [ids[name]] = start_many(server, playbook(f"faults/broken_{number}", flow), [{}])
    assert_others_work(served)

    for name, execution_id in ids.items():
        document = server.ended(execution_id)
        assert document["status"] == "FAILED", name
        assert document["error"]["message"], name
        found = [event["name"] for event in server.events(execution_id)]
        assert (found.count("step.failed"), found.count("playbook.processed")) == (1, 1), name
    until(served.is_free, "a command is left")


# --- T32 ---------------------------------------------------------------------------------------

POISON = {
    "cut off": b'{"name": "go", "data": ',
    "no text": b'\xff\xfe{"name": "go"}',
    "no number": b'{"name": "go", "data": NaN}',
    "too large a number": b'{"name": "x", "data": 1e999}',
    "many digits": b'{"name": "x", "data": %s}' % (b"9" * 5000),
    "half a character": b'{"name": "x", "data": "\\ud800"}',
    "a zero byte": b'{"name": "x", "data": "\\u0000"}',
    "too deep": b'{"name": "x", "data": %s%s}' % (b"[" * 5000, b"]" * 5000),
    "no event": b"[1, 2, 3]",
    "nothing": b"",
    "without a name": b'{"data": 1}',
    "too long a name": b'{"name": "%s"}' % (b"x" * 100_000),
}


@pytest.mark.parametrize("poison", POISON)
def test_t32_a_poisoned_event_is_refused_or_taken_and_blocks_nobody(served: Served, poison: str):
    server = served.server
    [execution_id] = start_many(server, playbook("faults/hearing", WAITING % 7), [{}])
    addressed = POISON[poison].replace(b"{", b'{"execution_id": "%s", ' % execution_id.encode(), 1)
    paths = [f"/api/executions/{execution_id}/events", "/api/events", "/api/commands/report"]
    for path in paths:
        for raw in (POISON[poison], addressed):
            reply = server.ask("POST", path, raw=raw)
            assert reply.status < 500, (path, reply.raw)

    assert server.get(f"/api/executions/{execution_id}/status")["status"] == "RUNNING"
    server.post(f"/api/executions/{execution_id}/events", {"name": "go"})
    assert server.ended(execution_id)["result"] == 7


def test_t32_a_damaged_command_blocks_neither_its_pool_nor_its_server(served: Served):
    server = served.server
    flow = "- {step: start, spec: {pool: later}, tool: {kind: noop, result: 1}}"
    ids = start_many(server, playbook("faults/later", flow), [{}] * 5)
    damage(served, ids[0])

    served.cluster.worker(server, pool="later")

    assert [server.ended(one)["status"] for one in ids[1:]] == ["COMPLETED"] * 4
    assert_others_work(served)


def damage(served: Served, execution_id: str) -> None:
    """Change a byte of its command, past the product."""
    broken = "X'00'" if served.cluster.database_url is None else "'\\x00'::bytea"
    sql = (
        f"UPDATE noetl.queue SET body = {broken} WHERE execution_id = '{execution_id}' RETURNING 1"
    )
    assert served.query(sql) == [(1,)]


# --- T37 ---------------------------------------------------------------------------------------

SUBMITS = 500
IN_FLIGHT = 2
SLOTS = 8
LIMITED = playbook(
    "faults/limited",
    f"""
- step: start
  loop: {{in: [0, 1, 2], iterator: n, spec: {{mode: parallel, max_in_flight: {IN_FLIGHT}}}}}
  tool:
    kind: http
    method: POST
    url: "{{{{ workload.url }}}}/{{{{ execution_id }}}}.{{{{ n }}}}"
""",
    '{url: ""}',
)


def test_t37_limits_hold_under_hundreds_of_submits_at_once(served: Served):
    server, effects, submits = served.server, served.effects, served.many(SUBMITS)
    effects.seconds = 0.01
    before = effects.total
    server.post("/api/catalog/register", {"content": LIMITED})
    wanted = {"path": "faults/limited", "workload": {"url": effects.url}}

    def submit(number: int) -> str:
        return str(server.post("/api/execute", wanted)["execution_id"])

    with ThreadPoolExecutor(50) as submitting:
        ids = list(submitting.map(submit, range(submits)))
    effects.wait_for(before + 3 * submits)
    statuses = "SELECT status FROM noetl.execution WHERE path = 'faults/limited'"
    ended = [("COMPLETED",)] * submits
    until(lambda: served.query(statuses) == ended, "some do not end")
    assert max(effects.most[one] for one in ids) <= IN_FLIGHT
    assert 1 < effects.most[""] <= SLOTS
    assert all(len(effects.keys(f"{one}.{n}")) == 1 for one in ids for n in range(3))


# --- T38 ---------------------------------------------------------------------------------------


def test_t38_what_runs_keeps_its_version_whatever_becomes_of_the_playbook(served: Served):
    server = served.server
    [first] = start_many(server, playbook("faults/kept", WAITING % "one"), [{}])
    [second] = start_many(server, playbook("faults/kept", WAITING % "two"), [{}])
    [renamed] = start_many(server, playbook("faults/kept_elsewhere", WAITING % "three"), [{}])
    deleted = served.query("DELETE FROM noetl.catalog WHERE path = 'faults/kept' RETURNING 1")
    assert len(deleted) == 2
    server.kill()
    served.cluster.server(port=server.port)
    [again] = start_many(server, playbook("faults/kept", WAITING % "four"), [{}])

    ids = [first, second, renamed, again]
    for execution_id in ids:
        server.post(f"/api/executions/{execution_id}/events", {"name": "go"})

    documents = [server.ended(execution_id) for execution_id in ids]
    assert [one["result"] for one in documents] == ["one", "two", "three", "four"]
    assert [one["version"] for one in documents] == [1, 2, 1, 1]
