"""Where tokens and pipelines go: behaviour that other programs rely on."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from noetl.model.events import (
    CtxPatched,
    NextSelected,
    NextUnmatched,
    PolicyUnmatched,
    RetryStarted,
    StepResumed,
    StepStarted,
    StepWaiting,
    TaskDone,
)
from tests.documents.services import Services, serving
from tests.examples.system import Bench, Run, on_bench, playbook, ran
from tests.stopwatch import PATIENCE


def step_order(run: Run) -> list[str]:
    return [fact.step for fact in run.of(StepStarted)]


# --- Tokens ------------------------------------------------------------------------------------


def test_an_arc_back_to_an_earlier_step_runs_it_again():
    flow = """
- { step: start, tool: { kind: noop }, set: { ctx.n: 0 }, next: count }
- step: count
  tool: { kind: noop, result: "{{ ctx.n + 1 }}" }
  set: { ctx.n: "{{ result }}" }
  next: check
- step: check
  tool: { kind: noop }
  next:
    spec: { mode: exclusive }
    arcs: [{ step: count, when: "{{ ctx.n < 4 }}" }, { step: end }]
- { step: end, tool: { kind: noop, result: "{{ ctx.n }}" } }
"""
    done = ran(playbook(flow))

    assert done.result == 4
    assert step_order(done) == ["start", *["count", "check"] * 4, "end"]


@pytest.mark.parametrize("slow", ["left", "right"])
def test_a_step_reached_by_both_branches_of_a_fork_runs_once_after_both(slow):
    flow = """
- { step: start, tool: { kind: noop }, next: [left, right] }
- step: left
  tool: { kind: shell, cmd: "sleep $S", env: { S: "{{ 0.3 if workload.slow == 'left' else 0 }}" } }
  next: { arcs: [{ step: end, args: { left: 1 } }] }
- step: right
  tool: { kind: shell, cmd: "sleep $S", env: { S: "{{ 0.3 if workload.slow == 'right' else 0 }}" } }
  next: further
- { step: further, tool: { kind: noop }, next: { arcs: [{ step: end, args: { right: 2 } }] } }
- step: end
  tool: { kind: noop, result: "{{ [args.left, args.right, args._tokens | length] }}" }
"""
    done = ran(playbook(flow, workload=f"slow: {slow}"))

    assert done.result == [1, 2, 2]
    assert done.step("end")["runs"] == 1
    assert step_order(done)[-1] == "end"


def test_a_token_without_an_arc_that_holds_ends_and_that_is_recorded():
    flow = """
- step: start
  tool: { kind: noop, result: 7 }
  next: { arcs: [{ step: end, when: "{{ start > 10 }}" }] }
- { step: end, tool: { kind: noop } }
"""
    done = ran(playbook(flow))
    strict = ran(playbook(flow, executor="spec: { no_next_is_error: true }"))

    assert done.result == 7
    assert [fact.step for fact in done.of(NextUnmatched)] == ["start"]
    assert strict.document["status"] == "FAILED"


def test_a_step_that_is_not_admitted_is_skipped_and_its_join_does_not_wait_for_it():
    flow = """
- { step: start, tool: { kind: noop }, next: [a, b] }
- step: a
  spec: { policy: { admit: { rules: [{ when: "{{ workload.on }}", then: { allow: true } }] } } }
  tool: { kind: noop, result: a }
  next: end
- { step: b, tool: { kind: noop, result: b }, next: end }
- { step: end, tool: { kind: noop, result: "{{ [a | default('-'), b] }}" } }
"""
    text = playbook(flow, workload="on: true")

    assert ran(text).result == ["a", "b"]
    skipped = ran(text, {"on": False})
    assert skipped.result == ["-", "b"]
    assert skipped.step("a")["status"] == "skipped"


def test_a_failed_step_takes_only_arcs_that_ask_about_it():
    flow = """
- step: start
  tool: { kind: python, code: "raise LookupError('nothing')" }
  next:
    arcs: [{ step: end }, { step: mend, when: "{{ error.kind == 'exception' }}" }]
- { step: mend, tool: { kind: noop, result: mended }, next: end }
- { step: end, tool: { kind: noop, result: "{{ mend | default('not mended') }}" } }
"""
    assert ran(playbook(flow)).result == "mended"


def test_a_failure_that_nobody_handles_fails_the_execution_with_its_error():
    flow = """
- { step: start, tool: { kind: python, code: "raise LookupError('nothing')" }, next: end }
- { step: end, tool: { kind: noop } }
"""
    done = ran(playbook(flow))

    assert done.error["kind"] == "exception"
    assert done.error["message"] == "LookupError: nothing (line 1)"
    assert done.document["failed_step"] == "start"
    assert done.step("end") == {}


# --- Pipelines ---------------------------------------------------------------------------------


def test_break_ends_the_pipeline_well_with_what_there_is():
    flow = """
- step: end
  tool:
    - name: one
      kind: noop
      result: 1
      spec: { policy: { rules: [{ else: { then: { do: break } } }] } }
    - { name: two, kind: noop, result: 2 }
"""
    done = ran(playbook(flow))

    assert done.result == 1
    assert [fact.task for fact in done.of(TaskDone)] == ["one"]


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        ("too {{ outcome.result }}", "too bad", "failed_by_rule"),
        ("{ message: worse, code: E7 }", "worse", "E7"),
    ],
)
def test_fail_may_say_why(error, message, code):
    flow = f"""
- step: start
  tool:
    kind: noop
    result: bad
    spec: {{ policy: {{ rules: [{{ else: {{ then: {{ do: fail, error: {error!r} }} }} }}] }} }}
"""
    done = ran(playbook(flow.replace("'{", "{").replace("}'", "}") if "E7" in error else flow))

    assert (done.error["message"], done.error["code"]) == (message, code)


def test_rules_of_which_none_holds_let_the_pipeline_go_on():
    flow = """
- step: end
  tool:
    - name: fails
      kind: python
      code: raise ValueError(1)
      spec: { policy: { rules: [{ when: "{{ outcome.status == 'ok' }}", then: { do: break } }] } }
    - { name: next_one, kind: noop, result: "{{ fails is undefined }}" }
"""
    done = ran(playbook(flow))

    assert done.result is True
    assert [fact.status for fact in done.of(PolicyUnmatched)] == ["error"]


def test_jumping_back_is_bounded():
    flow = """
- step: start
  tool:
    - name: again
      kind: noop
      spec:
        max_jumps: 5
        policy: { rules: [{ else: { then: { do: jump, to: again } } }] }
"""
    done = ran(playbook(flow))

    assert done.error["code"] == "jumps"
    assert "more than 5 times" in done.error["message"]
    assert len(done.of(TaskDone)) == 6


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("backoff: none, delay: 1", [0, 0, 0]),
        ("backoff: fixed, delay: 10ms", [0.01, 0.01, 0.01]),
        ("backoff: linear, delay: 10ms", [0.01, 0.02, 0.03]),
        ("backoff: exponential, delay: 10ms", [0.01, 0.02, 0.04]),
        ("backoff: exponential, delay: 10ms, multiplier: 3", [0.01, 0.03, 0.09]),
        ("backoff: exponential, delay: 10ms, max_delay: 15ms", [0.01, 0.015, 0.015]),
    ],
)
def test_the_waits_between_tries(backoff, delays):
    flow = f"""
- step: start
  tool:
    kind: shell
    cmd: exit 3
    spec:
      policy:
        rules:
          - when: "{{{{ outcome.status == 'error' and outcome.sh.exit_code == 3 }}}}"
            then: {{ do: retry, attempts: 4, {backoff} }}
"""
    done = ran(playbook(flow))

    assert [fact.delay for fact in done.of(RetryStarted)] == delays
    assert [fact.attempt for fact in done.of(TaskDone)] == [1, 2, 3, 4]
    assert len({fact.action_id for fact in done.of(TaskDone)}) == 1
    assert done.error["kind"] == "exception"


def test_jitter_is_derived_and_stays_within_bounds():
    flow = """
- step: start
  tool:
    kind: shell
    cmd: exit 1
    spec:
      policy:
        rules: [{ else: { then: { do: retry, attempts: 5, delay: 20ms, jitter: true } } }]
"""
    delays = [fact.delay for fact in ran(playbook(flow)).of(RetryStarted)]

    assert all(0.01 <= delay <= 0.02 for delay in delays)
    assert len(set(delays)) > 1


def test_when_the_tries_are_used_up_the_next_rules_decide():
    flow = """
- step: end
  tool:
    - name: fails
      kind: shell
      cmd: exit 1
      spec:
        policy:
          rules:
            - { when: "{{ outcome.status == 'error' }}", then: { do: retry, attempts: 2 } }
            - when: "{{ outcome.error.code == 1 }}"
              then: { do: continue, set_ctx: { gave: up } }
            - { else: { then: { do: continue, set_ctx: { gave: nothing } } } }
    - { name: last, kind: noop, result: "{{ ctx.gave }} after {{ _attempt }}" }
"""
    assert ran(playbook(flow)).result == "up after 1"


def test_used_up_tries_do_not_fall_into_else():
    flow = """
- step: end
  tool:
    kind: shell
    cmd: exit 3
    spec:
      policy:
        rules:
          - { when: "{{ outcome.status == 'error' }}", then: { do: retry, attempts: 2 } }
          - { else: { then: { do: continue } } }
"""
    found = ran(playbook(flow))

    assert found.document["status"] == "FAILED"
    assert found.error["code"] == 3


def test_hooks_run_around_a_task_and_finally_whatever_happens(tmp_path):
    flow = f"""
- step: start
  tool:
    kind: shell
    cmd: "echo task >> {tmp_path}/log; exit $CODE"
    env: {{ CODE: "{{{{ workload.code }}}}" }}
    spec:
      policy:
        before: [{{ name: b, kind: shell, cmd: "echo before >> {tmp_path}/log" }}]
        after: [{{ name: a, kind: shell, cmd: "echo after >> {tmp_path}/log" }}]
        finally: [{{ name: f, kind: shell, cmd: "echo finally >> {tmp_path}/log" }}]
"""
    text = playbook(flow, workload="code: 0")

    good = ran(text)
    lines = (tmp_path / "log").read_text().split()
    assert good.document["status"] == "COMPLETED"
    assert lines == ["before", "task", "after", "finally"]

    bad = ran(text, {"code": 4})
    assert bad.error["code"] == 4
    assert (tmp_path / "log").read_text().split()[4:] == ["before", "task", "finally"]


def test_finally_runs_on_cancellation_as_well(tmp_path):
    flow = f"""
- step: start
  tool:
    kind: shell
    cmd: "touch {tmp_path}/started; sleep 60"
    spec:
      policy:
        finally: [{{ name: f, kind: shell, cmd: "touch {tmp_path}/released" }}]
"""

    async def work(bench: Bench) -> Run:
        execution_id = await bench.start(playbook(flow))
        await until(lambda: (tmp_path / "started").exists())
        await bench.system.executions.cancel(execution_id, "enough")
        run = await bench.ended(execution_id)
        await until(lambda: (tmp_path / "released").exists())
        return run

    assert on_bench(work).document["status"] == "CANCELLED"


async def until(holds, seconds: float = PATIENCE) -> None:
    """Wait for something outside of the system."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


# --- Time --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        "spec: { timeout: 1500ms }",
        "spec: { policy: { lifecycle: { timeout_s: 1.5 } } }",
        "spec: { policy: { lifecycle: { deadline_s: 1.5 } } }",
    ],
    ids=["spec.timeout", "timeout_s", "deadline_s"],
)
@pytest.mark.parametrize("kind", ["shell", "python"])
def test_t07_a_timeout_kills_what_runs(kind, limit, tmp_path):
    pid = tmp_path / "pid"
    tool = {
        "shell": f"kind: shell\n    cmd: 'echo $$ > {pid}; sleep 30; touch {tmp_path}/late'",
        "python": "kind: python\n    code: |\n      import os, time\n"
        f"      open('{pid}', 'w').write(str(os.getpid()))\n      time.sleep(30)\n"
        f"      open('{tmp_path}/late', 'w')",
    }[kind]
    flow = f"- step: start\n  {limit}\n  tool:\n    {tool}\n"

    async def work(bench: Bench) -> Run:
        run = await bench.run(playbook(flow))
        await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())
        return run

    done = on_bench(work)

    assert done.error["kind"] == "timeout"
    assert done.document["duration_seconds"] < 5
    assert int(pid.read_text()) != os.getpid()
    assert not (tmp_path / "late").exists()


def test_a_long_retry_gives_the_worker_back():
    flow = """
- step: start
  tool:
    - { name: before, kind: noop, result: "{{ 'x' * 100000 }}" }
    - name: ask
      kind: noop
      result: "{{ _attempt }}"
      spec:
        policy:
          rules: [{ when: "{{ outcome.result < 2 }}", then: { do: retry, delay: 5.2s } }]
    - { name: after, kind: noop, result: "{{ [ask, before | length, _prev] }}" }
"""

    async def work(bench: Bench) -> tuple[Run, float]:
        waiting = await bench.start(playbook(flow))
        await asyncio.sleep(0.5)
        started = time.monotonic()
        quick = await bench.run(playbook("- {step: end, tool: {kind: noop, result: 1}}"))
        assert quick.result == 1
        return await bench.ended(waiting), time.monotonic() - started

    done, _ = on_bench(work, slots=1)

    assert done.result == [2, 100_000, 2]
    assert len(done.of(StepWaiting)) == 1
    assert len(done.of(StepResumed)) == 1
    assert done.document["duration_seconds"] >= 5.2


def test_best_effort_lets_the_others_finish_and_fail_fast_stops_them():
    flow = """
- { step: start, tool: { kind: noop }, next: [bad, good] }
- step: bad
  spec: { policy: { failure: { mode: MODE } } }
  tool: { kind: shell, cmd: "sleep 0.2; exit 1" }
- { step: good, tool: { kind: shell, cmd: "sleep 0.6; echo good" } }
"""
    kind = ran(playbook(flow.replace("MODE", "best_effort")))
    strict = ran(playbook(flow.replace("MODE", "fail_fast")))

    assert kind.document["status"] == strict.document["status"] == "FAILED"
    assert kind.step("good")["status"] == "done"
    assert strict.step("good")["status"] == "cancelled"


# --- Loops -------------------------------------------------------------------------------------


def test_a_failed_iteration_fails_the_loop_and_says_which():
    flow = """
- step: start
  loop: { in: [1, 0, 2], iterator: n }
  tool: { kind: noop, result: "{{ 1 / n }}" }
"""
    done = ran(playbook(flow))

    assert done.error["message"].startswith("iteration 1 failed: ")
    told = done.step("start")["loop"]
    assert {key: told[key] for key in ("total", "done", "failed")} == {
        "total": 3,
        "done": 1,
        "failed": 1,
    }


def test_parallel_writes_of_one_key_without_a_reducer_are_a_conflict():
    flow = """
- step: start
  loop: { in: [1, 2], iterator: n, spec: { mode: parallel REDUCE } }
  tool: { kind: noop, result: "{{ n }}", set: { ctx.sum: "{{ n }}" } }
"""
    conflict = ran(playbook(flow.replace("REDUCE", "")))
    summed = ran(playbook(flow.replace("REDUCE", ", policy: { reduce: { sum: sum } }")))

    assert conflict.error["code"] == "ctx_conflict"
    assert summed.ctx == {"sum": 3}
    assert len(summed.of(CtxPatched)) == 1


def test_at_most_max_in_flight_iterations_run_at_once(tmp_path):
    flow = f"""
- step: start
  loop: {{ in: "{{{{ range(12) }}}}", iterator: n, spec: {{ mode: parallel, max_in_flight: 3 }} }}
  tool:
    kind: shell
    cmd: "mkdir {tmp_path}/$N; ls {tmp_path} | wc -l; sleep 0.05; rmdir {tmp_path}/$N"
    env: {{ N: "{{{{ n }}}}" }}
    decode: json
  next: end
- step: end
  tool: {{ kind: noop, result: "{{{{ start.results | map(attribute='data') | max }}}}" }}
"""
    assert 2 <= ran(playbook(flow)).result <= 3


def test_a_playbook_that_is_called_fails_its_caller_with_its_own_error():
    child = playbook("- {step: start, tool: {kind: shell, cmd: exit 9}}").replace("tried", "child")
    flow = """
- step: start
  tool: { kind: playbook, path: child }
  next:
    spec: { mode: exclusive }
    arcs: [{ step: end, when: "{{ error }}", args: { code: "{{ error.code }}" } }, { step: end }]
- { step: end, tool: { kind: noop, result: "{{ args.code | default('none') }}" } }
"""

    async def work(bench: Bench) -> tuple[Run, Run]:
        await bench.system.catalog.register(child)
        missing = playbook("- {step: start, tool: {kind: playbook, path: nowhere}}")
        return await bench.run(playbook(flow)), await bench.run(missing)

    done, missing = on_bench(work)

    assert done.result == 9
    assert missing.error["kind"] == "not_found"
    assert "nowhere" in missing.error["message"]


def test_a_call_with_a_version_runs_that_and_one_without_the_newest():
    def called(said: str) -> str:
        text = playbook(f"- {{step: start, tool: {{kind: noop, result: {said}}}}}")
        return text.replace("tried", "child")

    flow = """
- step: start
  tool: { kind: playbook, path: child, version: "{{ workload.number }}" }
  next: new
- step: new
  tool: { kind: playbook, path: child, args: { before: "{{ start }}" } }
  next: end
- { step: end, tool: { kind: noop, result: "{{ [start, new] }}" } }
"""

    async def work(bench: Bench) -> Run:
        for said in ("first", "second", "third"):
            await bench.system.catalog.register(called(said))
        return await bench.run(playbook(flow), {"number": 2})

    assert on_bench(work).result == ["second", "third"]


def test_a_caller_of_callers_names_the_execution_that_failed_by_itself_and_its_cause():
    inner = playbook("- {step: start, tool: {kind: shell, cmd: exit 9}}").replace("tried", "inner")
    calls = "- {step: start, tool: {kind: playbook, path: CALLED}}"
    middle = playbook(calls.replace("CALLED", "inner")).replace("tried", "middle")

    async def work(bench: Bench) -> tuple[Run, Run]:
        for text in (inner, middle):
            await bench.system.catalog.register(text)
        return (
            await bench.run(playbook(calls.replace("CALLED", "inner"))),
            await bench.run(playbook(calls.replace("CALLED", "middle"))),
        )

    direct, over = on_bench(work)

    said = re.compile(r"child execution \d+ failed: The command ended with exit code 9\.")
    assert said.fullmatch(direct.error["message"])
    assert said.fullmatch(over.error["message"])
    assert over.error["details"]["execution_id"] not in over.error["message"]


def test_a_tools_own_retry_is_unseen_by_policy_and_record():
    """002 §9.1: `spec.retry` repeats inside the call; what is left of it meets the policy."""
    services = Services()
    with serving(services) as url:
        run = ran(
            playbook(f"""
- step: start
  tool:
    kind: http
    url: {url}/flaky
    spec:
      retry: {{ attempts: 1, delay: 0 }}
      policy:
        rules:
          - {{ when: "{{{{ outcome.status == 'error' }}}}", then: {{ do: retry, attempts: 2 }} }}
          - else: {{ then: {{ do: continue }} }}
""")
        )

    assert len(services.asked) == 3
    assert [(done.attempt, done.outcome.status) for done in run.of(TaskDone)] == [
        (1, "error"),
        (2, "ok"),
    ]


def test_a_misspelt_guard_that_ends_the_run_is_a_warning_of_the_execution():
    flow = """
- step: start
  tool: { kind: python, code: "result = {'total': 7}" }
  next:
    arcs:
      - { step: end, when: "{{ start.totl > 2 and start.also_unknown }}" }
      - { step: end, when: "{{ start.maybe is defined or ctx.none | default(false) }}" }
- { step: end, tool: { kind: noop } }
"""
    done = ran(playbook(flow))
    strict = ran(playbook(flow, executor="spec: { no_next_is_error: true }"))

    assert done.document["status"] == "COMPLETED"
    assert [fact.undefined for fact in done.of(NextUnmatched)] == [{"start.totl": "total"}]
    [warning] = done.document["warnings"]
    assert warning["step"] == "start"
    expected = "none of start's arcs held: `start.totl` (did you mean `total`?) is undefined."
    assert warning["message"] == expected
    assert "did you mean `total`?" in strict.error["message"]


@pytest.mark.parametrize("mode", ["exclusive", "inclusive"])
def test_a_misspelt_guard_is_a_warning_also_where_another_arc_is_taken(mode: str):
    flow = """
- step: start
  tool: { kind: python, code: "result = {'total': 7}" }
  next:
    spec: { mode: MODE }
    arcs:
      - { step: big, when: "{{ start.totl > 2 }}" }
      - { step: end }
- { step: big, tool: { kind: noop } }
- { step: end, tool: { kind: noop } }
"""
    done = ran(playbook(flow.replace("MODE", mode)))

    assert [fact.undefined for fact in done.of(NextSelected)] == [{"start.totl": "total"}]
    [warning] = done.document["warnings"]
    expected = "an arc of start did not hold: `start.totl` (did you mean `total`?) is undefined."
    assert (warning["step"], warning["message"]) == ("start", expected)


@pytest.mark.parametrize(
    "guard",
    [
        "start.total > 10",
        "start.unlike_any_other",
        "start.totl is defined",
        "ctx.counts > 2",
        "vars.counts > 2",
        "end2.ok",
        "steps.end2.ok",
    ],
)
def test_guards_that_read_what_is_there_or_may_still_come_warn_of_nothing(guard: str):
    flow = f"""
- step: start
  tool: {{ kind: noop, result: {{ total: 7 }} }}
  set: {{ ctx.count: 1, vars.count: 1 }}
  next: end1
- step: end1
  tool: {{ kind: noop }}
  next: {{ arcs: [{{ step: end2, when: "{{{{ {guard} }}}}" }}, {{ step: end }}] }}
- {{ step: end2, tool: {{ kind: noop }}, next: end }}
- {{ step: end, tool: {{ kind: noop }} }}
"""
    assert ran(playbook(flow)).document["warnings"] == []


def test_a_misspelt_admission_rule_is_a_warning_too():
    flow = """
- { step: start, tool: { kind: noop }, next: a }
- step: a
  spec: { policy: { admit: { rules: [{ when: "{{ workload.onn }}", then: { allow: true } }] } } }
  tool: { kind: noop }
"""
    done = ran(playbook(flow, workload="on: true"))

    assert done.step("a")["status"] == "skipped"
    [warning] = done.document["warnings"]
    assert "admission" in warning["message"]
    assert warning["undefined"] == {"workload.onn": "on"}


def test_misspelt_names_in_event_rules_and_policies_are_warnings_once_per_mistake():
    flow = """
- step: start
  loop: { in: [1, 2, 3], iterator: n }
  tool:
    kind: python
    code: "result = {'total': 7}"
    spec:
      policy: { rules: [{ when: "{{ outcome.result.ttal > 9 }}", then: { do: fail } }] }
  case:
    - when: "{{ event.name == 'call.done' and response.totl > 2 }}"
      then: { set: { ctx: { seen: true } } }
    - when: "{{ event.name == 'call.done' and response.nothing_like_it }}"
      then: { set: { ctx: { seen: true } } }
  next: end
- step: end
  tool: { kind: noop }
  case:
    - when: "{{ event.name == 'step.exit' and workload.limt > 2 }}"
      then: { set: { ctx: { seen: true } } }
"""
    done = ran(playbook(flow, workload="limit: 3"))

    found = {(one["step"], *one["undefined"].items()) for one in done.document["warnings"]}
    assert found == {
        ("start", ("outcome.result.ttal", "total")),
        ("start", ("response.totl", "total")),
        ("end", ("workload.limt", "limit")),
    }


def test_a_poll_that_waits_for_a_misspelt_name_says_so_when_it_gives_up():
    flow = """
- step: start
  tool:
    kind: noop
    result: { state: ready }
    poll: { until: "{{ response.stat == 'ready' }}", interval: 0.01, max_attempts: 2 }
"""
    failed = ran(playbook(flow))

    assert "`response.stat` (did you mean `state`?) is undefined" in failed.error["message"]


# --- Conditions that cannot be evaluated --------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "place"),
    [
        (
            "tool: {kind: noop}, next: {arcs: [{step: end, when: WRONG}]}",
            "the arc from start to end",
        ),
        (
            "spec: {policy: {admit: {rules: [{when: WRONG, then: {allow: true}}]}}}, next: end",
            "an admission rule of step start",
        ),
        (
            "tool: {kind: noop, spec: {policy: {rules: [{when: WRONG, then: {do: continue}}]}}}",
            "a policy rule of task start_task",
        ),
        (
            "tool: {kind: noop}, case: [{when: WRONG, then: {set: {a: 1}}}]",
            "an event rule of step start",
        ),
        (
            "tool: {kind: noop, poll: {until: WRONG, max_attempts: 2}}",
            "`until` of the poll of task start_task",
        ),
        (
            "tool: {kind: noop, retry: [{when: WRONG, then: {max_attempts: 2}}]}",
            "`when` of the retry of task start_task",
        ),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_named_with_its_place(step, place):
    wrong = '"{{ workload.one + workload.word }}"'
    flow = f"- {{step: start, {step.replace('WRONG', wrong)}}}\n- {{step: end}}\n"
    run = ran(playbook(flow, workload="{one: 1, word: a}"))

    assert f"{place}: {{{{ workload.one + workload.word }}}}: `+` does not" in run.error["message"]
