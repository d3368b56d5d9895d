"""Workbook entries: what they are given, and how they wait for sub-playbooks without a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.model.events import ChildStarted, TaskDone, TaskStarted
from tests.examples.system import Bench, Run, on_bench, playbook, ran

CHILD = playbook(
    "- {step: start, tool: {kind: noop, result: '{{ workload.n * 10 }}'}}", workload="n: 0"
).replace("tried", "child")


def with_child(text: str, **settings: object) -> Run:
    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(CHILD)
        return await bench.run(text)

    return on_bench(work, **settings)


ENTRY = """
ask:
  tool:
    - { name: before, kind: noop, result: "{{ args.n + 1 }}" }
    - { name: child, kind: playbook, path: child, args: { n: "{{ before }}" } }
    - { name: after, kind: noop, result: ["{{ before }}", "{{ child }}"] }
"""


def test_an_entry_waits_for_a_sub_playbook_and_goes_on_behind_it():
    flow = """
- step: end
  tool:
    - { name: first, kind: noop, result: 1 }
    - { name: call, kind: workbook, task: ask, args: { n: "{{ first }}" } }
    - { name: last, kind: noop, result: { was: "{{ call }}", first: "{{ first }}" } }
"""
    done = with_child(playbook(flow, workbook=ENTRY), slots=1)

    assert done.result == {"was": [2, 20], "first": 1}
    began = [fact.task for fact in done.of(TaskStarted)]
    assert began == ["first", "call", "before", "after", "last"]
    assert [fact.task for fact in done.of(TaskDone)] == [
        "first",
        "before",
        "child",
        "after",
        "call",
        "last",
    ]


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_looped_entry_waits_for_each_of_its_sub_playbooks(mode):
    book = f"""
each:
  loop: {{ in: "{{{{ args.numbers }}}}", iterator: n, spec: {{ mode: {mode} }} }}
  tool:
    - {{ name: child, kind: playbook, path: child, args: {{ n: "{{{{ n }}}}" }} }}
    - {{ name: both, kind: noop, result: ["{{{{ n }}}}", "{{{{ child }}}}"] }}
"""
    flow = """
- step: end
  tool: { kind: workbook, task: each, args: { numbers: [3, 1, 2, 5] } }
"""
    done = with_child(playbook(flow, workbook=book))

    assert done.result["results"] == [[3, 30], [1, 10], [2, 20], [5, 50]]
    assert done.result["stats"] == {"total": 4, "success": 4, "failed": 0}
    children = [fact.child for fact in done.of(ChildStarted)]
    assert len(set(children)) == len(children) == 4


def test_entries_within_entries_within_a_loop_wait_and_keep_what_they_wrote():
    book = (
        ENTRY
        + """
outer:
  tool:
    - { name: inner, kind: workbook, task: ask, args: { n: "{{ iter.parent.n }}" } }
    - { name: keep, kind: noop, result: "{{ inner[1] }}" }
"""
    )
    flow = """
- step: start
  loop:
    in: [1, 2, 3]
    iterator: n
    spec: { mode: parallel, policy: { reduce: { seen: append } } }
  tool:
    - { name: note, kind: noop, result: "{{ n }}", set: { ctx.seen: "{{ n }}" } }
    - { name: call, kind: workbook, task: outer }
  next: end
- { step: end, tool: { kind: noop, result: ["{{ start.results }}", "{{ ctx.seen }}"] } }
"""
    done = with_child(playbook(flow, workbook=book))

    assert done.result == [[20, 30, 40], [1, 2, 3]]


def test_a_sub_playbook_that_fails_fails_the_task_that_called_the_entry():
    flow = """
- step: start
  tool: { kind: workbook, task: ask, args: { n: 1 } }
  next:
    spec: { mode: exclusive }
    arcs: [{ step: end, when: "{{ error }}", args: { why: "{{ error.message }}" } }]
- { step: end, tool: { kind: noop, result: "{{ args.why }}" } }
"""
    done = with_child(playbook(flow, workbook=ENTRY.replace("path: child", "path: nowhere")))

    assert "nowhere" in done.result
    assert done.result.startswith("ask: ")


@pytest.mark.parametrize("then", ["", ", { kind: playbook, path: child, args: { n: 4 } }"])
def test_a_compensation_writes_ctx_and_variables_also_if_it_waits(then):
    flow = """
- { step: start, tool: { kind: noop }, spec: { compensate: undo }, next: bad }
- { step: bad, tool: { kind: noop, result: "{{ 1 / 0 }}" } }
"""
    book = f"undo: {{ tool: [{{ kind: noop, set: {{ ctx.undone: 1, vars.undone: 2 }} }}{then}] }}"
    done = with_child(playbook(flow, workbook=book))

    assert done.document["ctx"] == {"undone": 1}
    assert done.document["vars"] == {"undone": 2}


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_an_iteration_that_waits_keeps_the_variables_that_it_wrote(mode):
    flow = f"""
- step: end
  loop: {{ in: [1, 2], iterator: n, spec: {{ mode: {mode} }} }}
  tool:
    - {{ name: note, kind: noop, set: {{ "vars.last": "{{{{ iter.n }}}}" }} }}
    - {{ name: call, kind: playbook, path: child, args: {{ n: "{{{{ iter.n }}}}" }} }}
"""
    done = with_child(playbook(flow))

    assert done.result["results"] == [10, 20]
    assert done.document["vars"]["last"] in (1, 2)


def test_a_compensation_may_wait_for_a_sub_playbook():
    flow = """
- { step: start, tool: { kind: noop }, spec: { compensate: undo }, next: bad }
- { step: bad, tool: { kind: noop, result: "{{ 1 / 0 }}" } }
"""
    book = "undo: { tool: { kind: playbook, path: child, args: { n: 4 } } }"
    done = with_child(playbook(flow, workbook=book))

    assert done.document["status"] == "FAILED"
    assert len(done.of(ChildStarted)) == 1
    [undone] = [fact for fact in done.of(TaskDone) if fact.outcome.result == 40]
    assert undone.step == "start"


def test_hooks_of_a_task_that_waits_run_once():
    flow = """
- step: end
  tool:
    - name: call
      kind: workbook
      task: ask
      args: { n: 1 }
      spec:
        policy:
          before: [{ name: lock, kind: shell, cmd: "echo lock >> {{ workload.log }}" }]
          finally: [{ name: unlock, kind: shell, cmd: "echo unlock >> {{ workload.log }}" }]
"""
    text = playbook(flow, workbook=ENTRY, workload="log: ''")

    async def work(bench: Bench) -> tuple[Run, str]:
        await bench.system.catalog.register(CHILD)
        log = bench.folder / "log"
        done = await bench.run(text, {"log": str(log)})
        return done, log.read_text()

    done, log = on_bench(work)

    assert done.result == [2, 20]
    assert log.split() == ["lock", "unlock"]


# --- What an entry is given --------------------------------------------------------------------


def test_a_workbook_entry_of_one_task_is_called_like_that_task():
    """000 §2.4, 002 §2: what the call gives arrives as the task's own inputs."""
    run = ran(
        playbook(
            """
- step: start
  tool: {kind: workbook, name: greet, with: {who: world}}
""",
            workbook="""
greet:
  kind: python
  args: {mark: "!"}
  code: 'result = f"hello {who}{mark}"'
""",
        )
    )

    assert run.result == "hello world!"


def test_the_inner_loop_of_a_workbook_entry_goes_over_what_its_parent_has():
    """002 §6.4: `iter.parent` is the outer iteration, also in the inner loop's `in`."""
    run = ran(
        playbook(
            """
- step: start
  loop: {in: [[1, 2], [3]], iterator: row}
  tool: {kind: workbook, name: cells}
""",
            workbook="""
cells:
  loop: {in: "{{ iter.parent.row }}", iterator: cell}
  tool: {kind: noop, result: "{{ iter.cell * 10 }}"}
""",
        )
    )

    assert [row["results"] for row in run.result["results"]] == [[10, 20], [30]]


def ran_over(loop: str, workload: str = "n: 0") -> Run:
    return ran(
        playbook(
            "- {step: start, tool: {kind: workbook, name: each}}",
            workbook=f"""
each:
  loop: {{in: {loop}, iterator: n}}
  tool: {{kind: noop, result: "{{{{ iter.n }}}}"}}
""",
            workload=workload,
        )
    )


def test_the_range_of_a_looped_entry_is_read_like_that_of_a_step():
    run = ran_over('{from: 1, to: "{{ 2 }}", step: 0.25}')

    assert run.result["results"] == [1, 1.25, 1.5, 1.75]


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ('"{{ workload.n }}"', "`in` is int"),
        ('{from: 0, to: 3, step: "{{ workload.n }}"}', "would never end"),
        ("{from: 0, to: 1000000000000}", "at most 10000000"),
        ('{from: 0, to: "{{ workload }}"}', "which is not a number"),
    ],
)
def test_a_looped_entry_that_has_nothing_to_go_over_fails_its_task(loop, said):
    error = ran_over(loop).error

    assert (error["kind"], error["code"]) == ("schema", "bad_collection")
    assert 'workbook entry "each"' in error["message"]
    assert said in error["message"]


def test_as_many_passes_of_an_entry_run_at_once_as_a_template_says():
    run = ran(
        playbook(
            "- {step: start, tool: {kind: workbook, name: each}}",
            workbook="""
each:
  loop:
    in: [0, 1, 2]
    iterator: n
    spec: {mode: parallel, max_in_flight: "{{ workload.most }}"}
  tool:
    kind: noop
    args: {n: "{{ iter.n }}"}
    spec:
      policy:
        rules:
        - {when: "{{ _attempt < 2 }}", then: {do: retry, attempts: 2, delay: 0.01}}
        - {else: {then: {do: continue}}}
""",
            workload="most: 1",
        )
    )

    assert run.result["stats"]["success"] == 3
    attempts = [fact.attempt for fact in run.of(TaskStarted) if fact.kind == "noop"]
    assert attempts == [1, 2, 1, 2, 1, 2]


def written_by_passes(loop: str, written: str = "{{ iter.n }}", tasks: str = "") -> Run:
    return with_child(
        playbook(
            """
- {step: start, tool: {kind: workbook, name: each}, next: end}
- {step: end, tool: {kind: noop, result: "{{ ctx.total }}"}}
""",
            workbook=f"""
each:
  loop: {{in: [3, 1, 2], iterator: n, spec: {loop}}}
  tool:
  - {{name: write, kind: noop, set: {{ctx.total: "{written}"}}}}
{tasks}
""",
        )
    )


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("reducer", "total"), [("sum", 6), ("append", [3, 1, 2]), ("last", 2), ("max", 3)]
)
@pytest.mark.parametrize(
    "tasks", ["", '  - {name: ask, kind: playbook, path: child, args: {n: "{{ iter.n }}"}}']
)
def test_reducers_of_a_looped_entry_fold_what_its_passes_write(mode, reducer, total, tasks):
    run = written_by_passes(
        f"{{mode: {mode}, policy: {{reduce: {{total: {reducer}}}}}}}", tasks=tasks
    )

    assert run.result == total


def test_parallel_passes_that_write_the_same_key_without_a_reducer_fail_their_task():
    error = written_by_passes("{mode: parallel}").error

    assert error["code"] == "ctx_conflict"
    assert "iterations 0 and 1 both wrote ctx.total" in error["message"]


def test_passes_in_order_see_what_those_before_them_wrote():
    run = written_by_passes("{}", written="{{ (ctx.total | default(0)) + iter.n }}")

    assert run.result == 6


# --- Each try has a child of its own -----------------------------------------------------------

AGAIN = (
    "{ rules: [{ when: \"{{ outcome.status == 'error' }}\", then: { do: retry, attempts: 3 } }] }"
)
UNSTEADY = {
    "a task": f"{{ kind: workbook, task: once, spec: {{ policy: {AGAIN} }} }}",
    "a task of an entry": "{ kind: workbook, task: tries_once }",
    "a task of a pass": "{ kind: workbook, task: each_tries_once }",
}
BOOK = f"""
once: {{ tool: [{{ name: child, kind: playbook, path: unsteady }}] }}
tries_once:
  tool: [{{ name: middle, kind: workbook, task: once, spec: {{ policy: {AGAIN} }} }}]
each_tries_once:
  loop: {{ in: [1], iterator: one }}
  tool: [{{ name: middle, kind: workbook, task: once, spec: {{ policy: {AGAIN} }} }}]
"""


def tried_until_good(flow: str, log: Path) -> Run:
    """The third child succeeds."""
    counts = f"echo >> {log}; [ $(wc -l < {log}) -ge 3 ]"
    child = playbook(f'- {{step: start, tool: {{kind: shell, cmd: "{counts}"}}}}')

    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(child.replace("tried", "unsteady"))
        return await bench.run(playbook(flow, workbook=BOOK))

    return on_bench(work)


@pytest.mark.parametrize("task", UNSTEADY.values(), ids=UNSTEADY)
def test_each_try_of_an_entry_calls_its_sub_playbook_anew(task: str, tmp_path: Path):
    run = tried_until_good(f"- {{ step: end, tool: {task} }}", tmp_path / "log")

    assert run.document["status"] == "COMPLETED", run.document["error"]
    assert len({fact.child for fact in run.of(ChildStarted)}) == 3


CALLS = {
    "a sub-playbook": "{ kind: playbook, path: unsteady }",
    "an entry": "{ kind: workbook, task: once }",
}
RULES = {
    "its task": "then: [{ ask: { tool: %s, retry: { max_attempts: 3 } } }]",
    "its chain": "retry: { scope: chain, max_attempts: 3 }, then: [{ ask: { tool: %s } }]",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("event", ["call.done", "step.exit"])
def test_each_try_of_a_rule_calls_its_sub_playbook_anew(
    event: str, rule: str, call: str, tmp_path: Path
):
    flow = f"""
- step: end
  tool: {{ kind: noop }}
  case:
    - {{ when: "{{{{ event.name == '{event}' }}}}", {rule % call} }}
"""
    run = tried_until_good(flow, tmp_path / "log")

    assert run.document["status"] == "COMPLETED", run.document["error"]
    assert len({fact.child for fact in run.of(ChildStarted)}) == 3


PAGED = {
    "a page": ("call.done", "{ call: {} }", ""),
    "a try": ("call.error", "{ retry: { max_attempts: 3 } }", "code: 'raise KeyError(1)',"),
}


@pytest.mark.parametrize(("event", "again", "code"), PAGED.values(), ids=PAGED)
@pytest.mark.parametrize("loop", ["", "loop: { in: [1], iterator: one }"])
def test_each_call_that_a_rule_answers_has_its_own_sub_playbook(
    event: str, again: str, code: str, loop: str
):
    flow = f"""
- step: start
  {loop}
  tool: {{ kind: python, {code or "code: 'result = 1',"} args: {{}} }}
  case:
    - when: "{{{{ event.name == '{event}' and (seen | default(0)) < 2 }}}}"
      then:
        - set: {{ seen: "{{{{ (seen | default(0)) + 1 }}}}" }}
        - ask: {{ tool: {{ kind: playbook, path: child, args: {{ n: "{{{{ seen }}}}" }} }} }}
        - {again}
  next: {{ arcs: [{{ step: end, when: "{{{{ event.name in ['step.done', 'step.failed'] }}}}" }}] }}
- {{ step: end, tool: {{ kind: noop }} }}
"""
    run = with_child(playbook(flow))

    assert run.document["status"] == "COMPLETED", run.document["error"]
    assert len({fact.child for fact in run.of(ChildStarted)}) == 2


# --- Its time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["", "loop: { in: [1, 2], iterator: one }"])
def test_the_time_of_a_task_goes_on_while_its_entry_waits_for_a_sub_playbook(loop: str):
    book = f"""
patient:
  {loop}
  tool:
    - name: child
      kind: playbook
      path: child
      spec: {{ policy: {AGAIN} }}
"""
    flow = """
- step: end
  tool: { kind: workbook, task: patient, spec: { timeout: 1 } }
"""
    slow = playbook("- {step: start, spec: {eval_mode: on_event, form: [{name: answer}]}}")

    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(slow.replace("tried", "child"))
        return await bench.run(playbook(flow, workbook=book))

    error = on_bench(work).error

    assert (error["kind"], error["message"]) == ("timeout", '"patient" took longer than 1 s')
