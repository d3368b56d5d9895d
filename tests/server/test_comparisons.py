"""Two executions side by side, and the critical path of one, told by a real server."""

from __future__ import annotations

import pytest

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
TEXT = """
metadata: {name: compared, path: tests/compared}
workload: {total: 7, broken: -1}
workflow:
  - step: start
    tool: {kind: noop, result: {total: "{{ workload.total }}"}}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: [0, 1, 2], iterator: n, spec: {on_error: continue}}
    tool: {kind: noop, result: "{{ 1 / 0 if iter.n == workload.broken else iter.n }}"}
    next:
      arcs:
        - {step: much, when: "{{ start.total > 5 }}"}
        - {step: little}
  - {step: much, tool: {kind: noop}}
  - {step: little, tool: {kind: noop}}
"""
SLOW = """
metadata: {name: slow, path: tests/critical}
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: quick}, {step: slow}]}
  - {step: quick, tool: {kind: noop}, next: {arcs: [{step: end}]}}
  - step: slow
    tool: {kind: shell, command: "sleep 0.6"}
    next: {arcs: [{step: end, spec: {delay: 300ms}}]}
  - {step: end, spec: {join: all}, tool: {kind: noop}}
"""


@pytest.fixture(scope="module")
def three(dev):
    ids = []
    for workload in ({}, {}, {"total": 3, "broken": 1}):
        ids.append(dev.start(HEAD + TEXT, workload))
        assert dev.ended(ids[-1])["status"] == "COMPLETED"
    return dev, ids


def test_equal_executions_have_no_difference(three):
    server, (a, b, _) = three

    found = server.get("/api/executions/diff", a=a, b=b)

    assert (found["same"], found["differences"]) == (True, [])
    assert [step["step"] for step in found["steps"]] == ["start", "each", "much"]
    assert all(step["runs_a"] == step["runs_b"] == 1 for step in found["steps"])


def test_differences_come_in_the_order_of_events(three):
    server, (a, _, c) = three

    found = server.get("/api/executions/diff", a=a, b=c)

    texts = [one["text"] for one in found["differences"]]
    assert sorted(texts[:2]) == ["`workload.broken` differs", "`workload.total` differs"]
    assert "`start.start_task` yields something else" in texts
    failed = next(one for one in found["differences"] if one["iteration"] == 1)
    assert (failed["what"], failed["task"], failed["step"]) == ("outcome", "each_task", "each")
    route = next(one for one in found["differences"] if one["what"] == "route")
    assert (route["a"], route["b"]) == (["much"], ["little"])
    only = {one["step"]: one["what"] for one in found["differences"] if "only" in one["what"]}
    assert only == {"much": "only_a", "little": "only_b"}
    assert texts.index("`start.start_task` yields something else") < texts.index(route["text"])


def test_what_does_not_exist_is_refused(three):
    server, (a, *_) = three

    assert server.ask("GET", "/api/executions/diff", a=a, b="1").status == 404
    assert server.ask("GET", "/api/executions/diff", a=a).status == 400
    assert server.ask("GET", "/api/executions/1/critical-path").status == 404


def test_the_critical_path_follows_the_token_that_came_last(dev):
    execution_id = dev.start(HEAD + SLOW)
    assert dev.ended(execution_id)["status"] == "COMPLETED"

    found = dev.get(f"/api/executions/{execution_id}/critical-path")

    assert [run["step"] for run in found["runs"]] == ["start", "slow", "end"]
    slow, end = found["runs"][1:]
    assert slow["by_kind"]["run"] >= 0.5
    assert end["before"] >= 0.25
    assert found["seconds"] >= slow["seconds"] + end["before"] - 0.01
