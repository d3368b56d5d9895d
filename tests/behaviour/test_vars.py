"""`vars:` (000 Variable Management, 003 §8.1): extracted after a step, readable everywhere."""

from __future__ import annotations

import json

from tests.examples.system import Bench, Run, on_bench, playbook


def test_variables_are_in_scope_in_the_answer_and_in_their_table():
    text = playbook("""
- step: start
  tool: { kind: noop, result: { user: { id: 7, mail: "a@b" } } }
  vars: { user_id: "{{ result.user.id }}", user: "{{ result.user }}" }
  next: end
- { step: end, tool: { kind: noop, result: "{{ vars.user.mail }}" } }
""")

    async def work(bench: Bench) -> tuple[Run, dict[str, bytes]]:
        run = await bench.run(text)
        return run, await bench.system.store.log.variables(run.document["execution_id"])

    run, kept = on_bench(work)

    assert run.result == "a@b"
    assert run.document["vars"] == {"user_id": 7, "user": {"id": 7, "mail": "a@b"}}
    assert {name: json.loads(value) for name, value in kept.items()} == run.document["vars"]
