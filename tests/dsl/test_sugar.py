"""`choose`, `while` and `until`: what they become, and that it does what it says."""

import re
from textwrap import indent
from typing import Any

import pytest

from noetl.model.net import Continue, Fail, Jump, Patch, Task
from noetl.templates import Scope, compile_condition, compile_value
from tests.dsl.compiling import codes, compiled, net_of, playbook, step_of

ROUNDS_MAX = 1000


def pipeline(tasks: str) -> str:
    return "- step: start\n  tool:\n" + indent(tasks.strip("\n"), "    ")


def labels(tasks: str, root: str = "") -> list[str]:
    return [task.name for task in step_of(pipeline(tasks), root=root).tasks]


class Failed(Exception):
    """The pipeline said so."""


def walk(tasks: tuple[Task, ...], **names: Any) -> list[str]:
    """The written tasks in the order a pipeline runs them, by the rules of the net alone."""
    scope: dict[str, Any] = {"iter": {}, **names}
    position = {task.name: index for index, task in enumerate(tasks)}
    seen: list[str] = []
    index = 0
    for _ in range(ROUNDS_MAX):
        if index == len(tasks):
            return seen
        task = tasks[index]
        index += 1
        if task.config != {"result": "{{ _prev | default(none) }}"}:
            seen.append(task.name)
        patches = [task.patch] if task.patch is not None else []
        for rule in task.rules:
            if rule.when is None or compile_condition(rule.when).holds(Scope(scope)):
                *writes, last = rule.actions
                patches += [write for write in writes if isinstance(write, Patch)]
                assert isinstance(last, Jump | Continue | Fail)
                if isinstance(last, Fail):
                    raise Failed(last.error)
                if isinstance(last, Jump):
                    index = position[last.to]
                break
        for patch in patches:
            scope["iter"] |= compile_value(patch.iter).render(Scope(scope))
    raise AssertionError("the pipeline does not end")


def visited(tasks: str, root: str = "", **names: Any) -> list[str]:
    return walk(step_of(pipeline(tasks), root=root).tasks, **names)


CHOOSE = """
- {name: before, kind: noop}
- choose:
    - when: "{{ workload.size == 'small' }}"
      do: [{name: small, kind: noop}]
    - when: "{{ workload.size == 'large' }}"
      do: [{name: large, kind: noop}, {name: very_large, kind: noop}]
    - else: [{name: other, kind: noop}]
- {name: after, kind: noop}
"""
SIZE = "workload: {size: small}\n"


def test_choose_expands_to_stable_labels_with_one_merge_point():
    assert labels(CHOOSE, SIZE) == [
        "before",
        "choose_1",
        "small",
        "choose_1_0_done",
        "large",
        "very_large",
        "choose_1_1_done",
        "other",
        "choose_1_2_done",
        "choose_1_end",
        "after",
    ]


@pytest.mark.parametrize(
    ("size", "branch"),
    [("small", ["small"]), ("large", ["large", "very_large"]), ("odd", ["other"])],
)
def test_choose_runs_one_branch_and_nothing_falls_through(size, branch):
    assert visited(CHOOSE, SIZE, workload={"size": size}) == ["before", *branch, "after"]


def test_choose_without_else_may_run_no_branch():
    tasks = CHOOSE.replace("    - else: [{name: other, kind: noop}]\n", "")

    assert visited(tasks, SIZE, workload={"size": "odd"}) == ["before", "after"]


WHILE = """
- while:
    when: "{{ iter.n | default(0) < workload.rounds }}"
    max: 5
    do:
      - {name: body, kind: noop, set: {iter.n: "{{ iter.n | default(0) + 1 }}"}}
- {name: after, kind: noop}
"""
ROUNDS = "workload: {rounds: 3}\n"


def test_while_expands_to_stable_labels():
    assert labels(WHILE, ROUNDS) == [
        "while_0",
        "while_0_round",
        "body",
        "while_0_again",
        "while_0_end",
        "after",
    ]


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_while_runs_as_long_as_its_condition_holds(rounds):
    found = visited(WHILE, ROUNDS, workload={"rounds": rounds})

    assert found == ["body"] * rounds + ["after"]


def test_while_fails_in_the_round_after_the_last_allowed_one():
    with pytest.raises(Failed, match="not over after 5 rounds"):
        visited(WHILE, ROUNDS, workload={"rounds": 6})


UNTIL = WHILE.replace("while:", "until:").replace("< workload.rounds", ">= workload.rounds")


def test_until_expands_to_stable_labels():
    assert labels(UNTIL, ROUNDS) == ["until_0", "body", "until_0_check", "until_0_end", "after"]


@pytest.mark.parametrize(("rounds", "times"), [(0, 1), (1, 1), (5, 5)])
def test_until_runs_at_least_once_and_then_until_its_condition_holds(rounds, times):
    assert visited(UNTIL, ROUNDS, workload={"rounds": rounds}) == ["body"] * times + ["after"]


def test_until_fails_in_the_round_after_the_last_allowed_one():
    with pytest.raises(Failed, match="not over after 5 rounds"):
        visited(UNTIL, ROUNDS, workload={"rounds": 6})


NESTED = """
- while:
    when: "{{ iter.n | default(0) < 2 }}"
    max: 2
    do:
      - {name: outer, kind: noop, set: {iter.n: "{{ iter.n | default(0) + 1 }}", iter.m: 0}}
      - until:
          when: "{{ iter.m >= 3 }}"
          max: 3
          do:
            - {name: inner, kind: noop, set: {iter.m: "{{ iter.m + 1 }}"}}
            - choose:
                - {when: "{{ iter.m == 2 }}", do: [{name: second, kind: noop}]}
"""


def test_nested_sugar_counts_afresh_each_time_it_is_entered():
    once = ["outer", "inner", "inner", "second", "inner"]

    assert visited(NESTED) == once * 2


def test_nested_sugar_carries_the_labels_of_what_it_stands_in():
    assert [name for name in labels(NESTED) if "choose" in name] == [
        "while_0_1_until_1_choose",
        "while_0_1_until_1_choose_0_done",
        "while_0_1_until_1_choose_end",
    ]


def test_tasks_without_name_are_called_by_where_they_stand():
    tasks = (
        "- choose:\n    - {when: true, do: [{kind: noop}, {kind: noop}]}\n    - else: {kind: noop}"
    )

    assert labels(tasks) == [
        "choose_0",
        "choose_0_0_0",
        "choose_0_0_1",
        "choose_0_0_done",
        "choose_0_1_0",
        "choose_0_1_done",
        "choose_0_end",
    ]


def test_sugar_with_a_name_starts_its_labels_with_it():
    tasks = '- {name: pick, choose: [{when: "{{ ctx }}", do: {name: it, kind: noop}}]}'

    assert labels(tasks) == ["pick", "it", "pick_0_done", "pick_end"]


def test_what_stands_behind_sugar_does_not_change_its_labels():
    assert labels(CHOOSE + "- {kind: noop}\n", SIZE)[:-1] == labels(CHOOSE, SIZE)


def test_generated_tasks_hand_the_last_result_on():
    tasks = step_of(pipeline(CHOOSE), root=SIZE).tasks
    generated = [task for task in tasks if task.name.startswith("choose")]

    assert {task.kind for task in generated} == {"noop"}
    assert all(task.config == {"result": "{{ _prev | default(none) }}"} for task in generated)


@pytest.mark.parametrize("tasks", [CHOOSE, WHILE, UNTIL, NESTED])
def test_every_jump_has_a_target(tasks):
    pipe = step_of(pipeline(tasks), root="workload: {size: small, rounds: 3}\n").tasks
    jumps = [
        a.to for task in pipe for rule in task.rules for a in rule.actions if isinstance(a, Jump)
    ]

    assert jumps
    assert set(jumps) <= {task.name for task in pipe}


def test_a_rule_may_jump_to_a_task_inside_sugar():
    tasks = CHOOSE + (
        "- {name: again, kind: noop, spec: {policy: {rules:"
        " [{when: '{{ ctx.x | default(false) }}', then: {do: jump, to: small}}]}}}\n"
    )

    assert codes(pipeline(tasks), SIZE) == []


def test_the_debug_map_leads_from_every_generated_label_to_the_line_of_its_sugar():
    workflow = pipeline(NESTED)
    lines = playbook(workflow).splitlines()
    debug = compiled(workflow).debug
    generated = {f"start.{name}" for name in labels(NESTED)} - {
        f"start.{name}" for name in ("outer", "inner", "second")
    }

    assert set(debug) == generated
    for label, place in debug.items():
        word = re.findall("choose|while|until", label)[-1]
        assert lines[place.line - 1][place.column - 1 :] == f"{word}:"


def test_sugar_works_in_the_workbook_and_in_hooks():
    root = "workbook:\n  entry:\n    tool:\n" + indent(CHOOSE.strip("\n"), "      ") + "\n" + SIZE
    found = compiled("- {step: start, tool: {kind: workbook, name: entry}}", root)
    hooked = net_of(
        """
        - step: start
          tool:
            kind: noop
            spec:
              policy:
                finally:
                  - choose: [{when: true, do: {name: clean, kind: noop}}]
        """
    )

    assert found.problems == ()
    assert "entry.choose_1" in found.debug
    assert walk(hooked.steps[0].tasks[0].finally_) == ["clean"]


def test_sugar_without_bound_is_pointed_out_and_still_compiles():
    tasks = WHILE.replace("    max: 5\n", "")

    assert codes(pipeline(tasks), ROUNDS) == ["sugar-unbounded"]
    assert visited(tasks, ROUNDS, workload={"rounds": 50}) == ["body"] * 50 + ["after"]


def test_two_pieces_of_sugar_keep_separate_counts():
    twice = WHILE.replace("body", "one") + WHILE.replace("body", "two").replace(
        "iter.n", "iter.k"
    ).replace("after", "end")

    assert visited(twice, ROUNDS, workload={"rounds": 4}) == ["one"] * 4 + ["after"] + [
        "two"
    ] * 4 + ["end"]
