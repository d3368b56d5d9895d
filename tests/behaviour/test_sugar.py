"""Sugar (002 §14) as it runs."""

from __future__ import annotations

from noetl.model.events import TaskStarted
from tests.examples.system import playbook, ran


def test_the_events_say_which_sugar_a_generated_task_belongs_to():
    """002 §14: labels are stable, and a reader of the events can find the construct."""
    run = ran(
        playbook("""
- step: start
  tool:
    - name: counted
      while:
        when: "{{ (iter.n | default(0)) < 1 }}"
        max: 3
        do: [{ name: count, kind: noop, set: { iter.n: 1 } }]
  case:
    - when: "{{ event.name == 'call.done' and _task == 'count' }}"
      then: { set: { ctx: { counted: true } } }
""")
    )

    origins = {fact.task: fact.origin for fact in run.of(TaskStarted)}
    assert origins == {
        "counted": "while counted",
        "counted_round": "while counted",
        "count": "",
        "counted_again": "while counted",
        "counted_end": "while counted",
    }
    assert run.ctx == {"counted": True}
