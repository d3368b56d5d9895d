"""S10: an inner spec cannot weaken an operator limit, however it is written and whenever it was
compiled."""

from __future__ import annotations

import pytest

from noetl import configured
from noetl.errors import TooLarge
from noetl.model.events import LoopStarted, TaskStarted
from noetl.settings import Settings
from tests.examples.system import Bench, Run, on_bench, playbook, ran

MUCH = {"much": 100_000}

SLOW = """
- step: start
  tool: {kind: python, code: "import time; time.sleep(600)", spec: SPEC}
"""
TIMEOUTS = {
    "nothing": "{}",
    "number": "{timeout: 600}",
    "text": '{timeout: "10m"}',
    "template": '{timeout: "{{ workload.much }}"}',
    "template of a text": "{timeout: \"{{ workload.much ~ 's' }}\"}",
    "parts": "{timeout: {connect: 600}}",
    "template of a part": '{timeout: {total: "{{ workload.much }}"}}',
}


@pytest.mark.parametrize("spec", TIMEOUTS.values(), ids=TIMEOUTS)
def test_s10_no_task_runs_longer_than_the_operator_allows(spec: str):
    run = ran(playbook(SLOW.replace("SPEC", spec)), MUCH, timeout=0.3)

    assert run.document["error"]["kind"] == "timeout"


def test_s10_no_step_asks_for_more_time_than_the_operator_allows():
    flow = """
- step: start
  spec: {eval_mode: on_event, timeout: "{{ workload.much }}"}
  case: [{when: "{{ event.name == 'never' }}", then: [{result: {value: 1}}]}]
"""
    run = ran(playbook(flow), MUCH, timeout=0.3)

    assert run.document["error"]["kind"] == "timeout"


def test_a_timeout_that_is_a_template_is_evaluated_where_there_is_no_limit():
    spec = '{timeout: "{{ workload.seconds }}"}'
    run = ran(playbook(SLOW.replace("SPEC", spec)), {"seconds": 0.3})
    wrong = ran(playbook(SLOW.replace("SPEC", spec)), {"seconds": "soon"})

    assert run.document["error"]["kind"] == "timeout"
    assert "not a duration" in wrong.document["error"]["message"]


FAILING = """
- step: start
  tool: {kind: python, code: "raise ValueError", HOW}
"""
RETRIES = {
    "rule": "spec: {policy: {rules: [{when: '{{ true }}', then: {do: retry, attempts: 50}}]}}",
    "template": "retry: {max_attempts: '{{ workload.much }}'}",
    "number": "retry: {max_attempts: 50}",
}


def tries(run: Run) -> int:
    return len(run.of(TaskStarted))


@pytest.mark.parametrize("how", RETRIES.values(), ids=RETRIES)
def test_s10_nothing_is_tried_more_often_than_the_operator_allows(how: str):
    assert tries(ran(playbook(FAILING.replace("HOW", how)), MUCH, max_attempts=3)) == 3


def test_s10_a_tools_own_retries_count_too(tmp_path):
    count = f"echo x >> {tmp_path}/tries; exit 75"
    flow = """
- step: start
  tool: {kind: shell, cmd: "COUNT", retry_codes: [75], spec: {retry: {attempts: 50, delay: 0}}}
"""
    ran(playbook(flow.replace("COUNT", count)), max_attempts=3)

    assert (tmp_path / "tries").read_text().count("x") == 3


def test_s10_no_loop_is_wider_than_the_operator_allows():
    flow = """
- step: start
  loop:
    in: "{{ range(20) | list }}"
    iterator: n
    mode: parallel
    spec: { max_in_flight: "{{ workload.much }}" }
  tool: {kind: noop}
"""
    [started] = ran(playbook(flow), MUCH, max_in_flight=2).of(LoopStarted)

    assert started.in_flight == 2


@pytest.mark.parametrize("asked", ["100000", '"{{ workload.much }}"'])
def test_s10_nothing_jumps_back_more_often_than_the_operator_allows(asked: str):
    flow = f"""
- step: start
  tool:
    - name: again
      kind: noop
      spec:
        max_jumps: {asked}
        policy: {{rules: [{{else: {{then: {{do: jump, to: again}}}}}}]}}
"""
    run = ran(playbook(flow), MUCH, max_jumps=5)

    assert run.document["error"]["code"] == "jumps"
    assert tries(run) == 6


LARGE = {"text": "x" * 2000}
CHILD = playbook("- {step: start, tool: {kind: noop}}").replace("path: tried", "path: child")
LIMITED = "\n  spec: {policy: {limits: {max_payload_bytes: 1000000}}}"


def test_s10_no_payload_is_larger_than_the_operator_allows():
    async def work(bench: Bench) -> Run:
        with pytest.raises(TooLarge, match="max_payload_bytes"):
            await bench.run(
                playbook("- {step: start, tool: {kind: noop}}", executor=LIMITED), LARGE
            )
        await bench.system.catalog.register(CHILD)
        calls = '- {step: start, tool: {kind: playbook, path: child, args: {text: "{{ big }}"}}}'
        return await bench.run(playbook(calls.replace("big", "'x' * 2000")))

    run = on_bench(work, max_payload_bytes=1000)

    assert run.document["error"]["code"] == "too_large"


def test_s10_limits_of_today_bind_what_was_compiled_before_them():
    async def work(bench: Bench) -> Run:
        text = playbook(FAILING.replace("HOW", "retry: {max_attempts: 50}"))
        compiled = configured.compiler(Settings.from_environment({}))(text)
        await bench.system.store.catalog.put_net(compiled.digest, _bytes(compiled))
        started = await bench.system.executions.start(compiled.digest, "tried", None, {})
        return await bench.ended(started)

    assert tries(on_bench(work, max_attempts=3)) == 3


def _bytes(compiled) -> bytes:
    from noetl.model.net import encode

    return encode(compiled.unwrap())
