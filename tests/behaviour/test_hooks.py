"""Hooks of a task are pipelines of their own: repeated, judged, and seen in the record."""

from __future__ import annotations

import pytest

from noetl.model.events import ChildStarted, RetryStarted, TaskDone
from tests.examples.system import Bench, Run, on_bench, playbook, ran

TASK = """
- step: start
  tool:
    - name: work
      kind: shell
      cmd: "echo work >> {log}; [ $(grep -c work {log}) -ge {good} ]"
      spec:
        policy:
          {hooks}
    - name: after
      kind: noop
      result: "{{{{ [ctx.tries | default(0), iter.mark | default(0)] }}}}"
"""
LOCK = (
    '{{ name: lock, kind: shell, cmd: "echo lock >> {log}; [ $(grep -c lock {log}) -ge 3 ]"'
    " {how} }}"
)
REPEATED = {
    "retry": ", retry: { max_attempts: 5, initial_delay: 0 }",
    "policy": (
        ", spec: { policy: { rules: [{ when: \"{{ outcome.status == 'error' }}\","
        " then: { do: retry, attempts: 5, delay: 0 } }, { else: { then: { do: continue,"
        ' set_ctx: { tries: "{{ _attempt }}" }, set_iter: { mark: 7 } } } }] } }'
    ),
}


def flow(log: object, hooks: str, good: int = 1) -> str:
    return playbook(TASK.format(log=log, hooks=hooks, good=good))


def lines(log) -> list[str]:
    return log.read_text().split()


@pytest.mark.parametrize(("how", "result"), [("retry", [0, 0]), ("policy", [3, 7])])
def test_a_hook_is_repeated_as_its_retry_or_policy_says(how, result, tmp_path):
    log = tmp_path / "log"
    lock = LOCK.format(log=log, how=REPEATED[how])

    run = ran(flow(log, f"before: [{lock}]"))

    assert lines(log) == ["lock"] * 3 + ["work"]
    assert run.result == result
    tries = [(fact.task, fact.attempt) for fact in run.of(TaskDone)]
    assert tries == [("lock", 1), ("lock", 2), ("lock", 3), ("work", 1), ("after", 1)]
    assert [fact.attempt for fact in run.of(RetryStarted)] == [2, 3]
    assert len({fact.action_id for fact in run.of(TaskDone) if fact.task == "lock"}) == 1


def test_a_hook_polls_until_it_is_there(tmp_path):
    log = tmp_path / "log"
    look = (
        f'{{ name: look, kind: shell, cmd: "echo look >> {log}; grep -c look {log}",'
        " poll: { until: \"{{ result.stdout | trim == '3' }}\", interval: 0.01 } }"
    )

    run = ran(flow(log, f"before: [{look}]"))

    assert lines(log) == ["look"] * 3 + ["work"]
    assert run.document["status"] == "COMPLETED"


def test_a_hook_that_stays_broken_fails_the_try_and_the_task_is_tried_with_all_its_hooks(tmp_path):
    log = tmp_path / "log"
    hooks = f"""before: [{{ name: lock, kind: shell, cmd: "echo lock >> {log}" }}]
          finally: [{{ name: unlock, kind: shell, cmd: "echo unlock >> {log}" }}]
          rules:
            - {{ when: "{{{{ outcome.status == 'error' }}}}", then: {{ do: retry, delay: 0 }} }}"""

    run = ran(flow(log, hooks, good=2))

    assert lines(log) == ["lock", "work", "unlock"] * 2
    assert run.document["status"] == "COMPLETED"
    of_hooks = {(fact.task, fact.action_id) for fact in run.of(TaskDone) if "lock" in fact.task}
    assert len(of_hooks) == 4  # what is unlocked behind a try is locked anew before the next


def test_sugar_in_a_hook_runs_and_the_outcome_of_the_task_is_seen_by_every_hook(tmp_path):
    log = tmp_path / "log"
    hooks = f"""after:
            - choose:
                - when: "{{{{ outcome.status == 'ok' }}}}"
                  do: [{{ name: good, kind: shell, cmd: "echo good >> {log}" }}]
                - else: [{{ name: bad, kind: shell, cmd: "echo bad >> {log}" }}]
            - {{ name: told, kind: shell, cmd: "echo {{{{ good.exit_code }}}} >> {log}" }}
          finally: [{{ name: seen, kind: shell, cmd: "echo {{{{ outcome.status }}}} >> {log}" }}]"""

    run = ran(flow(log, hooks))

    assert lines(log) == ["work", "good", "0", "ok"]
    assert run.document["status"] == "COMPLETED"


# --- Around a sub-playbook ---------------------------------------------------------------------

CALL = """
- step: start
  {loop}
  tool:
    name: call
    kind: playbook
    path: child
    args: {{ mark: "{{{{ iter.mark }}}}" }}
    spec:
      policy:
        before:
          kind: shell
          cmd: "echo before >> {log}; {before}"
          set: {{ iter.mark: {good} }}
        after: {{ kind: shell, cmd: "echo after >> {log}" }}
        finally: {{ kind: shell, cmd: "echo {{{{ outcome.status }}}} >> {log}" }}
        rules:
          - {{ when: "{{{{ outcome.status == 'error' }}}}", then: {{ do: retry, attempts: 2 }} }}
"""
CHILD = """
- step: start
  tool:
    kind: shell
    cmd: "echo child >> {log}; [ $(grep -c child {log}) -ge {{{{ workload.mark }}}} ]"
"""


def around_a_child(log: object, *, good: int, loop: str = "", before: str = "true") -> Run:
    async def work(bench: Bench) -> Run:
        child = playbook(CHILD.format(log=log), workload="mark: 0")
        await bench.system.catalog.register(child.replace("tried", "child"))
        return await bench.run(playbook(CALL.format(log=log, good=good, loop=loop, before=before)))

    return on_bench(work)


@pytest.mark.parametrize("loop", ["", "loop: { in: [1], iterator: one }"])
def test_hooks_run_around_each_try_of_a_sub_playbook(loop, tmp_path):
    log = tmp_path / "log"

    run = around_a_child(log, good=2, loop=loop)

    assert run.document["status"] == "COMPLETED", run.document["error"]
    first, second = ["before", "child", "error"], ["before", "child", "after", "ok"]
    assert lines(log) == first + second


def test_a_sub_playbook_whose_hook_fails_before_it_never_starts(tmp_path):
    log = tmp_path / "log"

    run = around_a_child(log, good=1, before="false")

    assert run.error["kind"] == "exception"
    assert lines(log) == ["before", "error"] * 2
    assert not run.of(ChildStarted)
