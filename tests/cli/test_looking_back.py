"""Fork, diff, the critical path and recordings from the command line, without a server."""

from __future__ import annotations

import json

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chain, path: tests/chain}
workflow:
  - step: start
    tool: {kind: shell, command: "echo start >> calls; echo 5"}
    next: {arcs: [{step: end, set: {ctx.seen: "{{ start.stdout | int }}"}}]}
  - step: end
    tool: {kind: shell, command: "echo end >> calls; test {{ ctx.seen }} -ne 5"}
"""


def test_a_failed_execution_is_forked_with_another_ctx_and_compared(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    assert noetl("run", "chain.yaml").code == 1
    [failed] = json.loads(noetl("executions", "list", "--json").out)["executions"]
    first = failed["execution_id"]
    events = json.loads(noetl("executions", "events", first, "--json").out)["events"]
    seq = next(e["seq"] for e in events if e["event_type"] == "task.done" and e["step"] == "end")
    (tmp_path / "calls").unlink()

    plan = noetl("executions", "fork", first, "--at", str(seq), "--dry-run")
    assert not (tmp_path / "calls").exists()
    forked = noetl("executions", "fork", first, "--at", str(seq), "--set", "ctx.seen=6", "--json")
    diff = noetl("executions", "diff", first, "last")
    same = noetl("executions", "diff", first, first, "--json")
    critical = noetl("executions", "show", "last", "--critical", "--json")

    assert plan.code == 0
    assert "1 call reused, 1 of the record again" in plan.out
    assert forked.code == 0, forked.err
    assert json.loads(forked.out)["ctx"] == {"seen": 6}
    assert (tmp_path / "calls").read_text().split() == ["end"]
    assert diff.code == 1
    assert "`end.end_task` is error in the first and ok in the second" in diff.out
    assert (same.code, json.loads(same.out)["same"]) == (0, True)
    assert [run["step"] for run in json.loads(critical.out)["runs"]] == ["end"]
    assert "has no event 9999" in noetl("executions", "fork", first, "--at", "9999").err


def test_an_execution_is_exported_to_a_file_or_to_standard_output(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("run", "chain.yaml")

    made = noetl("executions", "export", "last", "-o", "it.noetl")
    shown = noetl("ui", "chain.yaml")

    assert made.code == 0
    assert (tmp_path / "it.noetl").read_bytes()[:2] == b"\x1f\x8b"
    assert shown.code == 2
    assert "no recording" in shown.err
