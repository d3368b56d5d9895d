"""Why something went wrong, or did nothing: what `run`, `show` and `validate` tell people of it."""

from __future__ import annotations

import json

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"


def document(noetl, *arguments: str) -> dict:
    return json.loads(noetl("executions", "show", "last", "--json", *arguments).out)


def test_a_typo_in_a_guard_is_a_warning_of_run_and_show(tmp_path, noetl):
    flow = """\
metadata: {name: typo, path: tests/typo}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'total': 3}"}
    next: {arcs: [{step: end, when: "{{ start.totl > 2 }}"}]}
  - {step: end, tool: {kind: noop}}
"""
    (tmp_path / "typo.yaml").write_text(HEAD + flow)

    ran = noetl("run", "typo.yaml")
    shown = noetl("executions", "show", "last")

    warning = "none of start's arcs held: `start.totl` (did you mean `total`?) is undefined."
    assert ran.code == 0
    assert f"warning: {warning}" in ran.err
    assert warning in " ".join(shown.out.split())
    assert document(noetl)["warnings"][0]["undefined"] == {"start.totl": "total"}


def test_a_compensated_step_is_shown_as_undone(tmp_path, noetl):
    saga = """\
metadata: {name: saga, path: tests/saga}
workbook:
  cancel: {kind: noop}
workflow:
  - {step: start, tool: {kind: noop}, spec: {compensate: undo}, next: book}
  - {step: book, tool: {kind: noop}, spec: {compensate: cancel}, next: bad}
  - {step: bad, tool: {kind: noop, result: "{{ 1 / 0 }}"}}
  - {step: undo, tool: {kind: noop}}
"""
    (tmp_path / "saga.yaml").write_text(HEAD + saga)

    ran = noetl("run", "saga.yaml")
    shown = noetl("executions", "show", "last")

    after = ran.err.partition("bad: failed")[2]
    assert "book: undone" in after
    assert "start: undone" in after
    assert "book: done" not in after
    rows = {line.split()[0]: line for line in shown.out.splitlines() if line}
    assert "undone" in rows["start"]
    assert "undone" in rows["book"]
    assert "2 runs" not in rows["book"]
    assert "undoes other steps" in rows["undo"]
