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


def test_a_variable_that_is_removed_leaves_its_table():
    text = playbook("""
- step: start
  spec: { eval_mode: on_event }
  case: [{ when: "{{ event.name == 'closed' }}", then: { result: { value: 1 } } }]
""")

    async def work(bench: Bench) -> list[dict[str, bytes]]:
        execution_id = await bench.start(text)
        orchestrator, log = bench.system.orchestrator, bench.system.store.log
        await orchestrator.change_vars(execution_id, {"colour": "red", "size": 7})
        kept = [await log.variables(execution_id)]
        await orchestrator.change_vars(execution_id, {}, removed=("colour",))
        return [*kept, await log.variables(execution_id)]

    assert on_bench(work) == [{"colour": b'"red"', "size": b"7"}, {"size": b"7"}]
