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
    "case": (
        "{step: start, tool: {kind: noop}, case: [{when: '{{ event.name }}', then: {skip: true}}]}"
    ),
    "sink": "{step: start, tool: {kind: noop}, sink: {tool: {kind: noop}}}",
    "poll": "{step: start, tool: {kind: noop, poll: {until: '{{ true }}'}}}",
    "cursor": (
        "{step: start, tool: {kind: noop}, loop: {iterator: row,"
        " cursor: {kind: postgres, claim: select 1}}}"
    ),
    "retry": (
        "{step: start, tool: {kind: noop}, retry:"
        " [{when: '{{ response.more }}', then: {max_attempts: 2, next_call: {result: 1}}}]}"
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
