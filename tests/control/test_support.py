"""What this version cannot run is refused before the first step, never passed over."""

from __future__ import annotations

import pytest

from noetl.control.support import refusal
from noetl.dsl import compile_text
from noetl.tools.registry import shapes

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: x, path: x}
"""
REFUSED = {
    "sink": "{step: start, sink: {tool: {kind: noop}}, next: {arcs: []}}",
    "retry": (
        "{step: start, tool: {kind: noop}, case: [{when: '{{ result }}', then: [{keep: {tool:"
        " {kind: noop}, retry: [{when: '{{ response.more }}', then: {collect: {path: x, into: y}}}]"
        "}}]}]}"
    ),
    "hook": (
        "{step: start, tool: {kind: noop, spec: {policy: {before:"
        " {kind: noop, retry: {max_attempts: 2}}}}}}"
    ),
}


def net_of(step: str):
    return compile_text(f"{HEAD}workflow: [{step}]", tools=shapes()).unwrap()


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_run_is_named(what):
    found = refusal(net_of(REFUSED[what]))

    assert found is not None
    assert found.code == "not_in_this_version"
    assert what in found.message
    assert '"start"' in found.message


def test_a_plain_retry_and_policy_rules_can_run():
    step = "{step: start, tool: {kind: noop, retry: {max_attempts: 3}}, vars: {a: 1}}"

    assert refusal(net_of(step)) is None


CURSOR = "loop: {iterator: row, cursor: {kind: postgres, claim: select 1}}"


def test_a_step_may_loop_over_a_cursor_and_a_workbook_entry_may_not():
    step = f"{{step: start, tool: {{kind: noop}}, {CURSOR}}}"
    book = f"workbook: {{rows: {{tool: {{kind: noop}}, {CURSOR}}}}}"
    text = f"{HEAD}workflow: [{{step: start, tool: {{kind: workbook, task: rows}}}}]\n{book}"
    found = refusal(compile_text(text, tools=shapes()).unwrap())

    assert refusal(net_of(step)) is None
    assert found is not None
    assert 'workbook entry "rows" has a loop over a `cursor`' in found.message
