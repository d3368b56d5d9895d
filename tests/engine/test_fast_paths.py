"""Each fast path of the engine gives the same facts as the general path it stands for.

`docs/performance.md` lists them with what they save.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.engine.playing import Play, program_of

PLAYBOOKS = {
    "a chain": """
workload: {n: 1}
workflow:
- {step: start, args: {a: 1, b: [x]}, tool: {kind: noop}, next: two}
- step: two
  args: {c: {d: 2}}
  spec: {timeout: 5m}
  tool: {kind: noop}
  next:
    arcs:
    - {step: three, args: {e: 3}, set: {ctx.seen: true}}
    - {step: four, spec: {delay: 10s}}
- {step: three, tool: {kind: noop}, next: {arcs: [{step: end, when: false}]}}
- {step: four, tool: {kind: noop}, next: {arcs: [{step: end, when: true}]}}
- {step: end, args: {a: 5}, tool: {kind: noop}}
""",
    "a join": """
workflow:
- {step: start, tool: {kind: noop}, next: [left, right]}
- {step: left, tool: {kind: noop}, next: {arcs: [{step: both, args: {from: left}}]}}
- {step: right, tool: {kind: noop}, next: {arcs: [{step: both, args: {from: right}}]}}
- {step: both, spec: {join: all}, args: {own: 1}, tool: {kind: noop}}
""",
    "guards": """
workload: {most: 3}
workflow:
- step: start
  tool: {kind: noop}
  next:
    arcs:
    - {step: two, when: "{{ workload.most > 2 }}", args: {again: true}, set: {ctx.n: 1}}
    - {step: end, when: "{{ workload.most > 3 }}"}
- step: two
  tool: {kind: noop}
  next:
    arcs:
    - {step: end, when: "{{ args.again and ctx.n == 1 }}", spec: {delay: 5s}}
- {step: end, args: {n: "{{ ctx.n }}"}, tool: {kind: noop}}
""",
    "a failure": """
workflow:
- {step: start, tool: {kind: noop}, next: two}
- {step: two, tool: {kind: noop}, next: three}
- {step: three, tool: {kind: noop}}
""",
}


def facts_of(text: str) -> list[object]:
    """All facts of an execution in which each step that can end has ended."""
    played = Play(text).start()
    for _ in range(20):
        for command in list(played.open.values()):
            if "a failure" in text and command.step == "two":
                played.fail(command)
            else:
                played.done(command, {"v": command.step})
        while not played.open and played.status == "RUNNING":
            played.fire()
    return [msgspec.to_builtins(fact) for fact in played.history]


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_steps_that_enter_and_route_plainly_do_as_all_others(name):
    plain = PLAYBOOKS[name] + f"# {name}\n"
    general = PLAYBOOKS[name] + f"# {name}, generally\n"
    assert any(step.enters_plainly for step in program_of(plain).steps.values())
    routing = [step for step in program_of(plain).steps.values() if step.arcs]
    assert any(step.routes_plainly for step in routing) or any(
        step.reads_plainly for step in routing
    )
    for step in program_of(general).steps.values():
        step.enters_plainly = step.routes_plainly = step.reads_plainly = False
        for arc in step.arcs:
            arc.sends_plainly = False

    facts = facts_of(plain)
    assert facts == facts_of(general)
    assert sum(fact["type"] == "step.scheduled" for fact in facts) > 1
