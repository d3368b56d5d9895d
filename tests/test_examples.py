"""The examples people learn from: nothing wrong with them, and they show what they say."""

from pathlib import Path

import pytest

from noetl.dsl import compile_text
from noetl.dsl.walk import all_tasks, bodies, parts_of
from noetl.model.net import Call, Collect, Jump, Net
from noetl.rewrite.fmt import format_text
from noetl.tools.registry import tools

EXAMPLES = Path(__file__).parent.parent / "examples"
RUNNING = [path for path in sorted(EXAMPLES.glob("*.yaml")) if ".test." not in path.name]
FILES = [*RUNNING, *sorted(EXAMPLES.glob("event_rules/*.yaml"))]
RUNNING_MIN = 20
TOOLS = tools()


def net_of(name: str) -> Net:
    return compile_text((EXAMPLES / f"{name}.yaml").read_text(), tools=TOOLS).unwrap()


def test_there_are_enough_of_them():
    assert len(RUNNING) >= RUNNING_MIN


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_has_no_problem_and_no_warning(path):
    compiled = compile_text(path.read_text(), tools=TOOLS)

    assert [str(problem) for problem in compiled.problems] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_starts_with_what_it_does_and_shows(path):
    head = path.read_text().split("\napiVersion", 1)[0].splitlines()

    assert len(head) >= 3
    assert all(line.startswith("#") for line in head)
    assert any(line.startswith("# Shows ") for line in head)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_formatted_the_canonical_way(path):
    assert format_text(path.read_text()) == path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_named_like_its_file(path):
    place = path.relative_to(EXAMPLES).with_suffix("").as_posix()
    net = net_of(place)

    assert (net.name, net.path) == (path.stem, f"examples/{place}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_in_the_index(path):
    place = path.relative_to(EXAMPLES).as_posix()

    assert f"[{path.name}]({place})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.test.yaml")), ids=lambda path: path.stem)
def test_tests_of_an_example_are_in_the_index(path):
    assert f"[{path.name}]({path.name})" in (EXAMPLES / "README.md").read_text()


def test_orders_uses_all_that_the_demo_should_show():
    net = net_of("orders")
    tasks = [task for body in bodies(net) for task in all_tasks(body)]
    actions = [action for body in bodies(net) for action in parts_of(body).actions]

    assert {"http", "python", "sqlite", "duckdb"} <= {task.kind for task in tasks}
    assert any(isinstance(action, Jump) for action in actions)
    assert any(arc.on_failure for step in net.steps for arc in step.router.arcs)


def test_pagination_waits_as_long_as_the_service_asks_for():
    net = net_of("pagination")
    fetch = next(task for task in net.steps[1].tasks if task.name == "fetch_page")

    assert "429" in str(fetch.rules[0].when)
    assert "retry_after" in str(fetch.rules[0].actions[0].delay)


def test_parallel_map_folds_by_reducers():
    loop = net_of("parallel_map").steps[0].loop

    assert loop.mode == "parallel"
    assert loop.reduce == {"cities": "append", "degrees": "sum", "warmest": "max"}


def test_fork_join_forks_and_joins():
    net = net_of("fork_join")
    leading = [
        step.name for step in net.steps for arc in step.router.arcs if arc.step == "together"
    ]

    assert net.steps[0].router.mode == "inclusive"
    assert len(leading) == 3


def test_error_recovery_tries_failures_before_success():
    arcs = net_of("error_recovery").steps[0].router.arcs

    assert [arc.on_failure for arc in arcs] == [True, True, False]


def test_saga_undoes_every_step_that_others_follow():
    net = net_of("saga")

    assert [step.compensate for step in net.steps] == ["cancel_flight", "cancel_room", None, None]


def test_nested_loops_has_a_loop_inside_a_loop():
    net = net_of("nested_loops")

    assert net.steps[0].loop is not None
    assert net.workbook[0].loop is not None


def test_approval_waits_without_a_worker_for_people_and_timers():
    step = next(step for step in net_of("approval").steps if step.case.wait)

    assert [timer.id for timer in step.timers] == ["reminder", "too_late"]
    assert step.form
    assert {name for rule in step.rules for name in rule.events} == {
        "approval.received",
        "timer.fired",
    }


def test_case_pagination_calls_again_and_collects():
    actions = parts_of(net_of("event_rules/case_pagination").steps[0]).actions

    assert any(isinstance(action, Call) for action in actions)
    assert sum(isinstance(action, Collect) for action in actions) == 2


def test_polling_has_both_a_retry_and_a_poll():
    task = net_of("event_rules/polling").steps[1].tasks[0]

    assert task.poll is not None
    assert task.retries
