"""Forks at any event, over HTTP with real workers: what is reused is not done again."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.server.processes import Server, working

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
CHAIN = """
metadata: {name: chain, path: tests/fork_chain}
workload: {folder: ""}
workflow:
  - step: start
    tool:
      - first: {kind: shell, command: "echo start.first >> {{ workload.folder }}/calls; echo 5"}
      - second: {kind: shell, command: "echo start.second >> {{ workload.folder }}/calls; echo 6"}
    next: {arcs: [{step: middle, set: {ctx.seen: "{{ start.stdout | trim }}"}}]}
  - step: middle
    tool: {kind: shell, command: "echo middle >> {{ workload.folder }}/calls; echo m{{ ctx.seen }}"}
    next:
      arcs:
        - {step: end, when: "{{ ctx.seen != 'other' }}"}
        - {step: aside}
  - step: aside
    tool: {kind: noop, result: aside}
  - step: end
    tool: {kind: shell, command: "echo end >> {{ workload.folder }}/calls; echo e{{ ctx.seen }}"}
"""
LOOP = """
metadata: {name: many, path: tests/fork_loop}
workload: {folder: "", broken: 613}
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: each}]}
  - step: each
    loop:
      in: "{{ range(1000) | list }}"
      iterator: n
      mode: parallel
      spec: {max_in_flight: 50, on_error: continue}
    tool:
      - check:
          kind: noop
          result: "{{ iter.n if ctx.mended or iter.n != workload.broken else 1 / 0 }}"
      - work: {kind: noop, result: {n: "{{ iter.n }}", text: "{{ 'x' * 150 }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop, result: "{{ each.results | reject('none') | list | length }}"}
"""


def fork(server: Server, execution_id: str, **body):
    return server.post(f"/api/executions/{execution_id}/fork", body)


def spent(step: dict) -> float:
    begun, ended = (datetime.fromisoformat(step[name]) for name in ("started_at", "ended_at"))
    return (ended - begun).total_seconds()


def calls(folder: Path) -> Counter[str]:
    file = folder / "calls"
    return Counter(file.read_text().split()) if file.exists() else Counter()


@pytest.fixture
def chain(dev, tmp_path):
    execution_id = dev.start(HEAD + CHAIN, {"folder": str(tmp_path)})
    document = dev.ended(execution_id)
    assert document["status"] == "COMPLETED", document["error"]
    events = dev.events(execution_id)
    (tmp_path / "calls").unlink()
    return dev, execution_id, document, events, tmp_path


def at(events: list[dict], name: str, step: str, task: str | None = None) -> int:
    return next(
        event["seq"]
        for event in events
        if event["event_type"] == name
        and event["step"] == step
        and (task is None or event["payload"].get("task") == task)
    )


@pytest.mark.parametrize(
    ("name", "step", "task", "again"),
    [
        ("task.done", "start", "second", ["start.second", "middle", "end"]),
        ("step.done", "start", None, ["middle", "end"]),
        ("step.scheduled", "middle", None, ["middle", "end"]),
        ("task.done", "middle", None, ["middle", "end"]),
        ("next.selected", "middle", None, ["end"]),
        ("step.done", "end", None, []),
    ],
)
def test_a_fork_makes_only_the_calls_from_its_event_on(chain, name, step, task, again):
    server, execution_id, document, events, folder = chain
    seq = at(events, name, step, task)

    plan = fork(server, execution_id, seq=seq, dry_run=True)
    assert calls(folder) == Counter()
    forked = fork(server, execution_id, seq=seq)
    ended = server.ended(forked["execution_id"])

    assert calls(folder) == Counter(again)
    assert plan["execution_id"] is None
    assert (plan["plan"]["again"], plan["plan"]["reused"]) == (len(again), 4 - len(again))
    assert (ended["status"], ended["result"], ended["ctx"]) == (
        document["status"],
        document["result"],
        document["ctx"],
    )


def test_a_fork_at_the_beginning_or_the_end_is_one_too(chain):
    server, execution_id, document, events, folder = chain

    whole = server.ended(fork(server, execution_id, seq=1)["execution_id"])
    made = calls(folder)
    last = server.ended(fork(server, execution_id, seq=events[-1]["seq"])["execution_id"])

    assert made.total() == 4
    assert calls(folder) == made
    assert whole["result"] == last["result"] == document["result"]


def test_changed_ctx_is_read_by_what_is_decided_from_there_on(chain):
    server, execution_id, _, events, folder = chain
    seq = at(events, "step.done", "middle")

    forked = fork(server, execution_id, seq=seq, ctx={"seen": "other"})
    ended = server.ended(forked["execution_id"])

    assert ended["result"] == "aside"
    assert calls(folder) == Counter()


def test_another_version_goes_on_from_there(chain):
    server, execution_id, _, events, folder = chain
    text = CHAIN.replace("echo e{{ ctx.seen }}", "echo new{{ ctx.seen }}")
    version = server.post("/api/catalog/register", {"content": HEAD + text})["version"]
    seq = at(events, "step.done", "middle")

    forked = fork(server, execution_id, seq=seq, version=version)
    ended = server.ended(forked["execution_id"])

    assert ended["result"]["stdout"].strip() == "new6"
    assert (ended["version"], calls(folder)) == (version, Counter(["end"]))
    gone = CHAIN.replace("step: middle", "step: centre")
    other = server.post("/api/catalog/register", {"content": HEAD + gone})["version"]
    path = f"/api/executions/{execution_id}/fork"
    refused = server.ask("POST", path, {"seq": seq, "version": other})
    assert refused.status == 400
    assert "has no step middle" in refused.json["error"]["message"]


def test_the_fork_names_its_source_its_event_and_who_asked(chain):
    server, execution_id, _, events, _ = chain
    seq = at(events, "task.done", "middle")

    forked = fork(server, execution_id, seq=seq)["execution_id"]
    server.ended(forked)

    first = server.events(forked)[0]["payload"]
    assert (first["rerun_of"], first["forked_at"]) == (execution_id, seq)
    assert first["actor"]["kind"] == "open"
    begun = next(e for e in server.events(forked) if e["event_type"] == "playbook.forked")
    assert begun["payload"]["source"] == execution_id


def test_a_fork_of_a_fork_goes_on_from_both(chain):
    server, execution_id, document, events, folder = chain
    first = fork(server, execution_id, seq=at(events, "task.done", "middle"))["execution_id"]
    server.ended(first)
    (folder / "calls").unlink()

    second = fork(server, first, seq=at(server.events(first), "task.done", "end"))
    ended = server.ended(second["execution_id"])

    assert calls(folder) == Counter(["end"])
    assert ended["result"] == document["result"]


def test_wrong_events_and_iterations_are_refused(chain):
    server, execution_id, *_ = chain
    path = f"/api/executions/{execution_id}/fork"

    assert server.ask("POST", path, {"seq": 10_000}).status == 404
    assert server.ask("POST", path, {"seq": 0}).status == 400
    assert server.ask("POST", path, {}).status == 400
    assert server.ask("POST", path, {"seq": 5, "iteration": 0}).status == 400
    assert server.ask("POST", "/api/executions/1/fork", {"seq": 5}).status == 404


ENTRY = """
metadata: {name: waits, path: tests/fork_entry}
workload: {folder: ""}
workbook:
  patient:
    tool:
      - child: {kind: playbook, path: tests/fork_slow, args: {folder: "{{ workload.folder }}"}}
workflow:
  - step: end
    tool: {kind: workbook, task: patient, spec: {timeout: 2}}
"""
SLOW = """
metadata: {name: slow, path: tests/fork_slow}
workload: {folder: ""}
workflow:
  - step: start
    tool: {kind: shell, command: "[ -e {{ workload.folder }}/go ] || sleep 60"}
"""


def test_an_entry_that_waited_has_the_time_that_it_had_left(dev, tmp_path):
    dev.post("/api/catalog/register", {"content": HEAD + SLOW})
    execution_id = dev.start(HEAD + ENTRY, {"folder": str(tmp_path)})
    over = dev.ended(execution_id)
    assert over["error"]["kind"] == "timeout"
    (tmp_path / "go").touch()

    seq = at(dev.events(execution_id), "step.waiting", "end") + 1
    ended = dev.ended(fork(dev, execution_id, seq=seq)["execution_id"])

    assert ended["status"] == "COMPLETED", ended["error"]


def test_a_fork_inside_a_loop_of_a_thousand_repeats_one_iteration(two_workers):
    server = two_workers
    execution_id = server.start(HEAD + LOOP)
    document = server.ended(execution_id)
    assert document["result"] == 999
    events = server.events(execution_id)
    failed = next(e for e in events if e["event_type"] == "loop.iteration.failed")
    assert failed["iteration"] == 613
    segments = [e for e in events if e["event_type"] == "loop.results.kept"]
    assert segments, "the results are meant to be too many for the state"

    body = {"seq": failed["seq"], "iteration": 613, "ctx": {"mended": True}}
    plan = fork(server, execution_id, **body, dry_run=True)["plan"]
    forked = fork(server, execution_id, **body)["execution_id"]
    ended = server.ended(forked)

    made = [
        (e["step"], e["iteration"])
        for e in server.events(forked)
        if e["event_type"] == "task.done" and e["step"] == "each"
    ]
    assert made == [("each", 613)] * 2
    assert ended["result"] == 1000
    assert {one["task"]: one["iterations"] for one in plan["calls"] if one["step"] == "each"} == {
        "check": [613],
        "work": [],
    }


def test_a_fork_repeats_all_failed_iterations_and_no_other(two_workers):
    server = two_workers
    broken = "iter.n % 250 != workload.broken % 250"
    text = HEAD + LOOP.replace("iter.n != workload.broken", broken).replace("fork_loop", "fork_all")
    execution_id = server.start(text)
    assert server.ended(execution_id)["result"] == 996
    begun = next(e for e in server.events(execution_id) if e["event_type"] == "loop.started")

    body = {"seq": begun["seq"], "failed": True, "ctx": {"mended": True}}
    plan = fork(server, execution_id, **body, dry_run=True)["plan"]
    forked = fork(server, execution_id, **body)["execution_id"]
    ended = server.ended(forked)

    made = {
        e["iteration"]
        for e in server.events(forked)
        if e["event_type"] == "task.done" and e["step"] == "each"
    }
    assert made == {113, 363, 613, 863}
    assert ended["result"] == 1000
    check = next(one for one in plan["calls"] if one["task"] == "check")
    assert (check["reused"], check["again"], check["iterations"]) == (996, 4, [113, 363, 613, 863])
    path = f"/api/executions/{forked}/fork"
    assert server.ask("POST", path, {**body, "iteration": 3}).status == 400


def test_failed_iterations_are_repeated_until_none_fails(two_workers):
    """Each fork takes over a loop that was taken over itself."""
    server = two_workers
    broken = "iter.n % 250 != workload.broken % 250 or iter.n <= ctx.upto"
    text = HEAD + LOOP.replace("ctx.mended or iter.n != workload.broken", broken).replace(
        "fork_loop", "fork_again"
    )
    execution_id = server.start(text.replace("ctx.upto", "(ctx.upto | default(0))"))
    document = server.ended(execution_id)
    assert document["result"] == 996
    worked = next(spent(step) for step in document["steps"] if step["step"] == "each")

    before = [113, 363, 613, 863]
    for upto, left in ((113, [363, 613, 863]), (613, [863]), (900, [])):
        seq = at(server.events(execution_id), "step.scheduled", "each")
        body = {"seq": seq, "failed": True, "ctx": {"upto": upto}}
        plan = fork(server, execution_id, **body, dry_run=True)["plan"]
        assert [one["iterations"] for one in plan["calls"] if one["task"] == "check"] == [before]
        before = left
        execution_id = fork(server, execution_id, **body)["execution_id"]
        ended = server.ended(execution_id)
        [line] = [step for step in ended["steps"] if step["step"] == "each"]
        timeline = server.get(f"/api/executions/{execution_id}/timeline")
        [run] = [one for one in timeline["runs"] if one["step"] == "each"]
        page = server.get(
            f"/api/executions/{execution_id}/loops/{run['step_run_id']}/iterations", status="failed"
        )

        assert ended["result"] == 1000 - len(left)
        loop = line["loop"]
        assert (loop["total"], loop["done"], loop["failed"]) == (1000, 1000 - len(left), len(left))
        assert sum(one["count"] for one in loop.get("errors", [])) == len(left)
        # The time between the two executions is no time of the step.
        assert spent(line) <= worked + ended["duration_seconds"] + 0.01
        worked = spent(line)
        assert (run["loop"]["done"], run["loop"]["failed"]) == (1000 - len(left), len(left))
        assert [one["iteration"] for one in page["iterations"]] == left
    path = f"/api/executions/{execution_id}/fork"
    seq = at(server.events(execution_id), "step.scheduled", "each")
    none = server.ask("POST", path, {"seq": seq, "failed": True})
    assert none.status == 400
    assert "no iteration" in none.json["error"]["message"]

    one = fork(server, execution_id, seq=seq, iteration=5)["execution_id"]
    assert server.ended(one)["result"] == 1000
    made = [e["iteration"] for e in server.events(one) if e["event_type"] == "task.done"]
    assert made[:2] == [5, 5]
    assert set(made) == {5, None}


def test_a_worker_of_the_fork_reads_large_results_that_it_reuses(guarded):
    """With users configured, a worker reads only what belongs to the work it was given."""
    server, tokens, folder = guarded
    text = """
metadata: {name: large, path: tests/fork_large}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'rows': ['x' * 100] * 3000}"}
    next: {arcs: [{step: count, when: "{{ start.rows | length > 5 }}"}]}
  - step: count
    tool: {kind: python, args: {rows: "{{ start.rows }}"}, code: "result = len(args['rows'])"}
"""
    server.token = tokens["admin"]
    with working(folder, server.url, NOETL_TOKEN=tokens["worker"]):
        execution_id = server.start(HEAD + text)
        document = server.ended(execution_id)
        assert document["result"] == 3000, document["error"]
        events = server.events(execution_id)
        seq = at(events, "step.done", "start")

        forked = server.ended(fork(server, execution_id, seq=seq)["execution_id"])
        again = server.post(f"/api/executions/{execution_id}/rerun", {"from": "count"})
        rerun = server.ended(again["execution_id"])

    assert (forked["result"], rerun["result"]) == (3000, 3000), (forked["error"], rerun["error"])
    body = {"seq": seq}
    path = f"/api/executions/{execution_id}/fork"
    assert server.ask("POST", path, body, token=tokens["viewer"]).status == 403
    assert server.ask("POST", path, body, token=tokens["operator"]).status == 200
    server.token = None


def test_each_rerun_from_a_step_makes_calls_of_its_own(chain):
    """Two reruns made calls of one name: services that know a name do nothing the second time, and
    the second of two sub-playbooks was never started."""
    server, execution_id, *_ = chain
    again = {"from": "middle"}

    reruns = [server.post(f"/api/executions/{execution_id}/rerun", again) for _ in range(2)]
    made = []
    for rerun in reruns:
        assert server.ended(rerun["execution_id"])["status"] == "COMPLETED"
        events = server.events(rerun["execution_id"])
        made += {event["action_id"] for event in events if event["event_type"] == "task.done"}

    assert len(made) == len(set(made)) == 4


WRITES = """
metadata: {name: writes, path: tests/fork_writes}
workflow:
  - step: each
    loop: {in: [1, 2], iterator: n, mode: parallel, spec: {policy: {reduce: {total: sum}}}}
    tool: {kind: noop, set: {ctx.total: "{{ n }}"}}
    set: {ctx.count: "{{ each.stats.total }}"}
    vars: {kept: "{{ result.stats.total }}"}
    next: end
  - step: end
    tool: {kind: noop, result: "{{ [ctx.total, ctx.count, vars.kept] }}"}
"""
RULE = """{when: "{{ event.name == 'loop.done' }}", then: [{note: {tool: {kind: noop}}}]}"""
WITH_RULES = WRITES.replace("    set:", f"    case: [{RULE}]\n    set:")


@pytest.mark.parametrize("text", [WRITES, WITH_RULES])
def test_a_fork_at_any_event_of_a_loop_that_writes_at_its_end_ends_the_same(dev, text):
    """At the end of such a step it waited for ever, and before that a sum was added twice."""
    execution_id = dev.start(HEAD + text)
    result = dev.ended(execution_id)["result"]
    events = dev.events(execution_id)

    forks = {event["seq"]: fork(dev, execution_id, seq=event["seq"]) for event in events}
    results = {seq: dev.ended(made["execution_id"])["result"] for seq, made in forks.items()}

    assert result == [3, 2, 2]
    assert results == dict.fromkeys(forks, result)


CALLED = (
    HEAD
    + """
metadata: {name: called, path: tests/fork_called}
workflow: [{step: start, tool: {kind: noop, result: 1}}]
"""
)
CALLS = """
metadata: {name: calls, path: tests/fork_calls}
workflow:
  - step: each
    loop: {in: [1, 2], iterator: n, mode: parallel}
    tool: {kind: playbook, path: tests/fork_called}
    next: end
  - step: end
    tool: {kind: noop, result: "{{ each | length }}"}
"""


@pytest.mark.parametrize("step", ["each", "end"])
def test_a_fork_inside_of_a_loop_is_run_again_from_a_step(dev, step):
    """It was refused with an internal error: the loop that the fork had taken over was continued
    without what had happened to it meanwhile."""
    dev.post("/api/catalog/register", {"content": CALLED})
    execution_id = dev.start(HEAD + CALLS)
    dev.ended(execution_id)
    waits = at(dev.events(execution_id), "step.waiting", "each")

    for seq in range(waits, waits + 4):
        forked = fork(dev, execution_id, seq=seq)["execution_id"]
        assert dev.ended(forked)["result"] == 2
        again = dev.post(f"/api/executions/{forked}/rerun", {"from": step})
        assert dev.ended(again["execution_id"])["result"] == 2


TASKS = """
metadata: {name: tasks, path: tests/fork_tasks}
workflow:
  - step: start
    tool:
      - one: {kind: noop, set: {ctx.first: "{{ ctx.first | default(0) + 1 }}"}}
      - two: {kind: noop, set: {ctx.second: "{{ ctx.second | default(0) + ctx.first }}"}}
      - three: {kind: noop}
    next: end
  - step: end
    tool: {kind: noop, result: "{{ [ctx.first, ctx.second] }}"}
"""


PAGES = """
metadata: {name: pages, path: tests/fork_pages}
workflow:
  - step: start
    tool: {kind: python, code: "print(5)\\nresult = 5", args: {page: 0}}
    retry:
      - when: "{{ _retry.index < 3 }}"
        then: {next_call: {args: {page: 1}}, collect: {from: "{{ result }}", into: ctx.all}}
    next: end
  - step: end
    tool: {kind: noop, result: "{{ ctx.all }}"}
"""


@pytest.mark.parametrize(("text", "wanted"), [(TASKS, [1, 1]), (PAGES, [5, 5])])
def test_a_fork_keeps_what_a_call_wrote_if_and_only_if_it_keeps_the_call(text, wanted, dev):
    execution_id = dev.start(HEAD + text)
    result = dev.ended(execution_id)["result"]
    events = dev.events(execution_id)

    forks = {event["seq"]: fork(dev, execution_id, seq=event["seq"]) for event in events}
    results = {seq: dev.ended(made["execution_id"])["result"] for seq, made in forks.items()}

    assert result == wanted
    assert results == dict.fromkeys(forks, result)
