"""Layers of `spec`, and the limits that none of them may weaken."""

import pytest

from noetl.model.net import Limits, Retry
from tests.dsl.compiling import codes, compiled, found, net_of, step_of, task_of

LAYERS = ("executor", "step", "loop", "task")


def layered(**written: str) -> tuple[str, str]:
    """A step and a root with these specs, by layer."""
    spec = {layer: written.get(layer, "{}") for layer in LAYERS}
    workflow = f"""
        - step: start
          spec: {spec["step"]}
          loop: {{in: [1], iterator: one, spec: {spec["loop"]}}}
          tool: {{kind: noop, spec: {spec["task"]}}}
        """
    return workflow, f"executor: {{spec: {spec['executor']}}}\n"


def spec_of(**written: str) -> dict[str, object]:
    return task_of(*layered(**written)).spec


@pytest.mark.parametrize("layer", LAYERS)
def test_a_knob_of_any_layer_reaches_the_task(layer):
    assert spec_of(**{layer: "{rate: 10/s}"}) == {"rate": "10/s"}


@pytest.mark.parametrize("outer", range(len(LAYERS)))
def test_of_two_scalars_the_inner_one_wins(outer):
    written = {layer: f"{{rate: {LAYERS.index(layer) + 1}/s}}" for layer in LAYERS[: outer + 1]}

    assert spec_of(**written) == {"rate": f"{outer + 1}/s"}


def test_maps_merge_deeply_through_all_layers():
    found = spec_of(
        executor="{resources: {cpu: 1, memory: 1Gi, node: {zone: a, disk: ssd}}}",
        step="{resources: {memory: 2Gi}}",
        loop="{resources: {gpu: 1, node: {zone: b}}}",
        task="{resources: {cpu: 4}}",
    )

    assert found == {
        "resources": {"cpu": 4, "gpu": 1, "memory": "2Gi", "node": {"disk": "ssd", "zone": "b"}}
    }


def test_of_two_lists_the_inner_one_replaces_the_outer():
    found = spec_of(step="{sandbox: {allow: [a, b], tmp: true}}", task="{sandbox: {allow: [c]}}")

    assert found == {"sandbox": {"allow": ["c"], "tmp": True}}


def test_a_scalar_replaces_a_map_and_a_map_a_scalar():
    over_map = layered(step="{timeout: {connect: 5, read: 10}}", task="{timeout: 3}")
    over_scalar = layered(step="{timeout: 3}", task="{timeout: {read: 10}}")

    assert task_of(*over_map).timeout == 3
    assert task_of(*over_scalar).timeout == {"read": 10}


def test_parts_of_a_timeout_come_from_different_layers_in_seconds():
    written = layered(
        executor="{timeout: {connect: 500ms, read: 1m}}", loop="{timeout: {read: 2m}}"
    )

    assert task_of(*written).timeout == {"connect": 0.5, "read": 120}


def test_executor_defaults_lie_below_the_executors_own_spec():
    defaults = "{policy: {defaults: {timeouts: {task: 30s, step: 5m}, resources: {cpu: 1}}}}"
    both = "{timeout: 10s, policy: {defaults: {timeouts: {task: 30s}}}}"

    task = task_of(*layered(executor=defaults))
    assert (task.timeout, task.spec) == (30, {"resources": {"cpu": 1}})
    assert task_of(*layered(executor=both)).timeout == 10


def test_a_step_without_timeout_takes_the_executors_default_for_steps():
    defaults = "executor: {spec: {policy: {defaults: {timeouts: {step: 5m}}}}}\n"
    plain = "- {step: start, tool: {kind: noop}}"
    own = "- {step: start, spec: {policy: {lifecycle: {timeout_s: 7}}}, tool: {kind: noop}}"

    assert step_of(plain, root=defaults).timeout == 300
    assert step_of(own, root=defaults).timeout == 7


def test_policies_are_not_inherited():
    task = task_of(
        """
        - step: start
          spec:
            policy: {admit: {rules: [{else: {then: {allow: true}}}]}}
          tool: {kind: noop}
        """
    )

    assert (task.spec, task.rules) == ({}, ())


def test_a_steps_spec_does_not_reach_other_steps():
    net = net_of(
        """
        - {step: start, spec: {rate: 1/s}, tool: {kind: noop}, next: end}
        - {step: end, tool: {kind: noop}}
        """
    )

    assert [step.tasks[0].spec for step in net.steps] == [{"rate": "1/s"}, {}]


def test_tasks_in_hooks_sugar_and_event_rules_inherit_too():
    step = step_of(
        """
        - step: start
          spec: {rate: 1/s}
          tool:
            - name: main
              kind: noop
              spec:
                policy: {before: [{name: hook, kind: noop}], rules: [{else: {do: continue}}]}
            - choose:
                - else: [{name: inside, kind: noop}]
          case:
            - when: "{{ event.name == 'call.done' }}"
              then: [{also: {tool: {kind: noop}}}]
        """
    )
    tasks = {task.name: task for task in step.tasks}

    assert tasks["main"].before[0].spec == {"rate": "1/s"}
    assert tasks["inside"].spec == {"rate": "1/s"}
    assert step.rules[0].actions[0].task.spec == {"rate": "1/s"}


def test_a_workbook_entry_inherits_from_the_executor_and_from_its_own_loop():
    net = net_of(
        "- {step: start, tool: {kind: workbook, name: entry}}",
        """
        executor: {spec: {rate: 1/s, cache: true}}
        workbook:
          entry:
            loop: {in: [1], iterator: one, spec: {cache: false}}
            tool: {kind: noop}
        """,
    )

    assert net.workbook[0].tasks[0].spec == {"cache": False, "rate": "1/s"}


def test_the_pool_belongs_to_the_step_not_to_its_tasks():
    step = step_of("- {step: start, spec: {pool: gpu}, tool: {kind: noop}}")

    assert (step.pool, step.tasks[0].spec) == ("gpu", {})


# --- Limits: the tightest holds (S10) ----------------------------------------------------------

RETRY_RULE = "{do: retry, attempts: 50}"


def attempts(workflow: str, root: str = "", limits: Limits | None = None) -> list[object]:
    task = task_of(workflow, root, limits)
    rules = (*task.rules, *task.retries)
    return [a.attempts for rule in rules for a in rule.actions if isinstance(a, Retry)]


def asking(what: str) -> str:
    """A step that asks for 50 of it."""
    return {
        "rule": f"""
            - step: start
              tool:
                kind: noop
                spec: {{policy: {{rules: [{{when: "{{{{ ctx }}}}", then: {RETRY_RULE}}}]}}}}
            """,
        "retry of a task": "- {step: start, tool: {kind: noop, retry: {max_attempts: 50}}}",
        "retry of a step": "- {step: start, retry: {max_attempts: 50}, tool: {kind: noop}}",
        "retry policies": """
            - step: start
              tool:
                kind: noop
                retry: [{when: "{{ error }}", then: {max_attempts: 50}}]
            """,
    }[what]


EVERY_WAY = ["rule", "retry of a task", "retry of a step", "retry policies"]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_s10_tries_are_cut_to_the_operators_limit_with_a_warning(way):
    limits = Limits(max_attempts=10)

    assert attempts(asking(way), limits=limits) == [10]
    assert codes(asking(way), limits=limits) == ["limit-applied"]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_what_stays_within_the_limit_is_left_alone(way):
    limits = Limits(max_attempts=50)

    assert attempts(asking(way), limits=limits) == [50]
    assert codes(asking(way), limits=limits) == []


EXECUTOR_LIMIT = "executor: {{spec: {{policy: {{limits: {{max_attempts: {}}}}}}}}}\n"


def test_s10_a_playbooks_own_limits_can_tighten_the_operators():
    assert attempts(asking("rule"), EXECUTOR_LIMIT.format(5), Limits(max_attempts=10)) == [5]


def test_s10_a_playbooks_own_limits_cannot_weaken_the_operators():
    root = EXECUTOR_LIMIT.format(1000)
    net = net_of(asking("rule"), root, Limits(max_attempts=10))

    assert attempts(asking("rule"), root, Limits(max_attempts=10)) == [10]
    assert net.executor.limits.max_attempts == 10


@pytest.mark.parametrize(
    ("outer", "inner", "holds"), [(5, 9, 5), (9, 5, 5), (None, 5, 5), (5, None, 5)]
)
@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_every_limit_combines_by_minimum(name, outer, inner, holds):
    combined = Limits(**{name: inner}).within(Limits(**{name: outer}))

    assert combined == Limits(**{name: holds})


def test_s10_the_limits_travel_with_the_net_for_values_that_are_templates():
    limits = Limits(max_attempts=10, max_in_flight=2)
    net = net_of(
        """
        - step: start
          loop: {in: [1], iterator: one, spec: {max_in_flight: "{{ workload.width }}"}}
          tool: {kind: noop, retry: {max_attempts: "{{ workload.tries }}"}}
        """,
        "workload: {width: 50, tries: 50}\n",
        limits,
    )

    assert net.executor.limits == limits


def test_s10_a_parallel_loop_is_cut_and_one_that_says_nothing_gets_the_limit():
    silent = "- {step: start, tool: {kind: noop}, loop: {in: [1], iterator: one}}"
    asks = silent.replace("one}", "one, mode: parallel, spec: {max_in_flight: 50}}")
    limits = Limits(max_in_flight=4)

    assert net_of(asks, limits=limits).steps[0].loop.max_in_flight == 4
    assert net_of(silent, limits=limits).steps[0].loop.max_in_flight == 4
    assert found(asks, limits=limits) == [("limit-applied", "50}}}")]
    assert found(silent, limits=limits) == []


@pytest.mark.parametrize("layer", LAYERS)
def test_s10_no_layer_can_ask_for_a_longer_timeout(layer):
    workflow, root = layered(**{layer: "{timeout: 10m}"})

    assert task_of(workflow, root, Limits(timeout=60)).timeout == 60
    assert set(codes(workflow, root, Limits(timeout=60))) == {"limit-applied"}


def test_s10_every_part_of_a_timeout_is_cut():
    written = layered(task="{timeout: {connect: 5, read: 10m, total: 1h}}")

    assert task_of(*written, Limits(timeout=60)).timeout == {"connect": 5, "read": 60, "total": 60}


def test_s10_a_task_without_timeout_gets_the_limit():
    assert task_of(*layered(), Limits(timeout=60)).timeout == 60


def test_s10_a_steps_timeout_is_cut():
    workflow = "- {step: start, spec: {policy: {lifecycle: {timeout_s: 1h}}}, tool: {kind: noop}}"

    assert net_of(workflow, limits=Limits(timeout=60)).steps[0].timeout == 60
    assert found(workflow, limits=Limits(timeout=60)) == [
        ("limit-applied", "1h}}}, tool: {kind: noop}}")
    ]


def test_s10_jumps_are_cut_and_the_default_bound_is_too():
    asks, silent = layered(task="{max_jumps: 5000}"), layered()

    assert task_of(*asks, Limits(max_jumps=100)).max_jumps == 100
    assert task_of(*silent, Limits(max_jumps=100)).max_jumps == 100
    assert task_of(*silent).max_jumps == 100_000


def test_the_warning_says_what_was_asked_and_what_holds():
    [problem] = compiled(asking("rule"), limits=Limits(max_attempts=10)).problems

    assert "50" in problem.message
    assert "10 applies" in problem.message


def test_s10_the_default_number_of_tries_is_cut_too():
    unwritten = "- {step: start, tool: {kind: noop, retry: {delay: 1}}}"
    implied = "- {step: start, spec: {on_error: retry}, tool: {kind: noop}}"

    assert attempts(unwritten, limits=Limits(max_attempts=2)) == [2]
    assert attempts(implied, limits=Limits(max_attempts=2)) == [2]


def test_s10_the_executors_default_timeout_of_steps_is_cut_too():
    root = "executor: {spec: {policy: {defaults: {timeouts: {step: 1h}}}}}\n"
    net = net_of("- {step: start, tool: {kind: noop}}", root, Limits(timeout=60))

    assert net.steps[0].timeout == 60


def test_a_sink_inherits_like_every_task_of_its_step():
    step = step_of(
        """
        - step: start
          spec: {rate: 1/s}
          tool: {kind: noop}
          sink: {tool: {kind: noop}, args: {x: 1}}
        """
    )

    assert step.sink.spec == {"rate": "1/s"}


def test_a_pool_named_for_a_loop_is_the_steps():
    step = step_of(layered(loop="{pool: gpu}")[0])

    assert step.pool == "gpu"


def test_reference_first_lowers_the_inline_limit_of_every_task_that_names_none():
    root = "executor: {spec: {policy: {results: {reference_first: true}}}}\n"
    plain = task_of("- {step: start, tool: {kind: noop}}", root)
    own = task_of("- {step: start, tool: {kind: noop, output: {inline_max_bytes: 9}}}", root)

    assert plain.spec == {"inline_max_bytes": 1024}
    assert own.spec == {"inline_max_bytes": 9}
