"""`executor.spec.on_failure`: what runs once when an execution fails."""

from __future__ import annotations

import pytest

from noetl.dsl import compile_text
from noetl.tools.registry import tools

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: fails/{name}}}
executor: {{spec: {{on_failure: {handler}}}}}
workload: {{fail: true}}
workflow:
  - step: start
    tool:
      kind: python
      args: {{fail: "{{{{ workload.fail }}}}"}}
      code: "assert not fail, 'so it is'"
    next: after
  - step: after
    tool: {{kind: noop}}
  - step: told
    tool: {tool}
    spec: {{compensate: undo}}
    next: after
workbook:
  undo: {{tool: {{kind: noop}}}}
"""
NOOP = "{kind: noop, result: '{{ args.failed_step }}: {{ args.error.kind }}'}"
ALERT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: alert, path: fails/alert}
executor: {spec: {inputs: {error: {type: object}, failed_step: {}, execution_id: {}, path: {}}}}
workflow:
  - step: start
    tool: {kind: noop, result: "{{ workload.path }} {{ workload.failed_step }}"}
"""


def playbook(name: str, handler: str = "told", tool: str = NOOP) -> str:
    return PLAYBOOK.format(name=name, handler=handler, tool=tool)


def by_name(document) -> dict:
    return {step["step"]: step for step in document["steps"]}


def test_it_runs_once_with_the_error_and_nothing_follows_it(dev):
    ended = dev.ended(dev.start(playbook("step")))

    steps = by_name(ended)
    assert ended["status"] == "FAILED"
    assert "so it is" in ended["error"]["message"]
    assert (ended["failed_step"], steps["told"]["result"]) == ("start", "start: exception")
    assert (steps["told"]["runs"], steps["told"]["status"]) == (1, "done")
    assert "after" not in steps


def test_it_does_not_run_when_nothing_fails(dev):
    ended = dev.ended(dev.start(playbook("well"), {"fail": False}))

    assert ended["status"] == "COMPLETED"
    assert set(by_name(ended)) == {"start", "after"}


def test_its_own_failure_is_recorded_and_changes_nothing(dev):
    tool = "{kind: python, code: \"raise ValueError('the second one')\"}"
    ended = dev.ended(dev.start(playbook("twice", tool=tool)))

    told = by_name(ended)["told"]
    assert ended["status"] == "FAILED"
    assert "so it is" in ended["error"]["message"]
    assert (told["runs"], told["status"]) == (1, "failed")
    assert "the second one" in told["error"]["message"]


def test_a_template_that_cannot_be_evaluated_does_not_keep_it_from_ending(dev):
    tool = "{kind: noop, result: '{{ args.missing.deeper }}'}"
    ended = dev.ended(dev.start(playbook("broken", tool=tool)))

    assert ended["status"] == "FAILED"
    assert by_name(ended)["told"]["status"] == "failed"


def test_a_playbook_is_called_with_what_happened(dev):
    dev.post("/api/catalog/register", {"content": ALERT})
    execution_id = dev.start(playbook("calls", handler="fails/alert"))

    ended = dev.ended(execution_id)
    [child] = dev.get("/api/executions", parent=execution_id)["executions"]
    shown = dev.get(f"/api/executions/{child['execution_id']}")
    assert ended["status"] == "FAILED"
    assert shown["status"] == "COMPLETED"
    assert shown["result"] == "fails/calls start"
    assert shown["workload"]["error"]["message"] == ended["error"]["message"]
    assert shown["workload"]["execution_id"] == execution_id


def test_it_does_not_run_when_somebody_cancels(dev):
    text = playbook("cancelled").replace("assert not fail", "import time; time.sleep(60); assert 1")
    execution_id = dev.start(text)
    dev.wait_for(execution_id, "step.started")

    dev.post(f"/api/executions/{execution_id}/cancel")

    assert "told" not in by_name(dev.ended(execution_id))


@pytest.mark.parametrize(("handler", "code"), [("tol", "unknown-step"), ("[told]", "wrong-type")])
def test_what_names_nothing_is_said_where_it_stands(handler, code):
    problems = compile_text(playbook("wrong", handler=handler), tools=tools()).problems

    assert [one.code for one in problems if one.severity == "error"] == [code]
    assert next(one for one in problems if one.severity == "error").line == 4
