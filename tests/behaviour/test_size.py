"""Large results, odd results: nothing grows without bound and nothing gets stuck."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3

import pytest

from noetl.model.events import ChildFinished, StepDone, TaskDone, encode
from tests.examples.system import Bench, Run, on_bench, playbook, ran

MEBI = 1024 * 1024
EVENT_MAX = 4096

# --- Large results -----------------------------------------------------------------------------

LARGE = """
- step: start
  tool:
    kind: python
    args: { size: "{{ workload.size }}" }
    code: result = dict(text="ab" * (size // 2), n=7)
  next: { arcs: [{ step: use, args: { n: "{{ start.n }}" } }] }
- step: use
  tool:
    - name: check
      kind: python
      args: { text: "{{ start.text }}" }
      code: |
        import hashlib
        result = {"sha": hashlib.sha256(text.encode()).hexdigest(), "length": len(text)}
    - { name: small, kind: noop, result: "{{ [check.sha, check.length, start.text[:3]] }}" }
"""


REFERENCES = """
- step: start
  tool: { kind: python, code: "result = {'rows': [{'id': n, 't': 'x' * 50} for n in range(5000)]}" }
  next: two
- step: two
  tool:
    - { name: part, kind: artifact, ref: "{{ start._ref }}", path: rows.4321.id }
    - { name: many, kind: python, code: "result = ['y' * 70000, 'z' * 70000]" }
    - { name: same, kind: artifact, ref: "{{ many._ref }}", offset: 1 }
    - name: seen
      kind: noop
      result: "{{ [part, same | length, start._store, many._preview[:3], start.rows | length] }}"
  next: three
- step: three
  tool:
    kind: noop
    result: "{{ [seen_before, two.results.many._ref.schema_hint, start.data._ref.size > 65536] }}"
  args: { seen_before: "{{ two }}" }
"""


def test_the_reference_of_a_large_result_can_be_read_beside_what_it_holds():
    assert ran(playbook(REFERENCES)).result == [
        [4321, 1, "kv", '["y', 5000],
        "list",
        True,
    ]


@pytest.fixture(scope="module")
def large() -> tuple[Run, bytes]:
    text = playbook(LARGE.replace(', args: { n: "{{ start.n }}" }', ""), workload="size: 0")

    async def work(bench: Bench) -> tuple[Run, bytes]:
        run = await bench.run(text, {"size": 50 * MEBI})
        reference = run.step("start")["result"]["_ref"]
        execution_id = run.document["execution_id"]
        body = await bench.system.store.bodies.get(execution_id, reference["key"])
        assert body is not None
        return run, body

    return on_bench(work)


def test_t23_a_result_of_50_mb_travels_by_reference_and_arrives_whole(large):
    run, body = large
    digest = hashlib.sha256(b"ab" * (25 * MEBI)).hexdigest()

    assert run.result == [digest, 50 * MEBI, "aba"]
    reference = run.step("start")["result"]["_ref"]
    assert reference["size"] == len(body) > 50 * MEBI
    assert reference["checksum"] == hashlib.sha256(body).hexdigest()


def test_t23_the_events_of_a_large_result_stay_small(large):
    run, _ = large

    for fact in run.events:
        assert len(encode(fact)) < EVENT_MAX, type(fact).__name__


def test_an_arc_reads_a_field_of_a_large_result():
    text = playbook(LARGE, workload="size: 0")

    assert ran(text, {"size": 200_000}).result[1] == 200_000


def test_large_results_of_iterations_are_readable_in_order():
    flow = """
- step: start
  loop: { in: [1, 2, 3], iterator: n, spec: { mode: parallel } }
  tool: { kind: noop, result: "{{ (n | string) * 100000 }}" }
  next: end
- step: end
  tool: { kind: noop, result: "{{ [start.results[1][:2], start.results[2] | length] }}" }
"""
    done = ran(playbook(flow))

    assert done.result == ["22", 100_000]
    assert all(len(encode(fact)) < EVENT_MAX for fact in done.events)


@pytest.mark.parametrize(
    ("guard", "read"),
    [
        ("start.stats.total == 3", 0),
        ("result.stats.success == 3 and not start.errors", 0),
        ("start.stats.total == 3 and start.results[1][:1] == '2'", 3),
        ("start.data.stats.total == 3", 3),
        ("result | length > 0", 3),
    ],
)
def test_large_results_of_iterations_are_read_by_the_server_if_something_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, guard: str, read: int
):
    flow = f"""
- step: start
  loop: {{ in: [1, 2, 3], iterator: n, spec: {{ mode: parallel }} }}
  tool: {{ kind: noop, result: "{{{{ (n | string) * 100000 }}}}" }}
  next: {{ arcs: [{{ step: end, when: "{{{{ {guard} }}}}" }}] }}
- {{ step: end, tool: {{ kind: noop, result: reached }} }}
"""
    keys: set[str] = set()

    async def work(bench: Bench) -> Run:
        bodies = bench.system.store.bodies
        get = bodies.get

        async def counted(execution_id: str, key: str) -> bytes | None:
            keys.add(key)
            return await get(execution_id, key)

        monkeypatch.setattr(bodies, "get", counted)
        return await bench.run(playbook(flow))

    assert on_bench(work).result == "reached"
    assert len(keys) == read


def test_a_large_result_of_a_child_reaches_its_parent():
    child = playbook("- {step: start, tool: {kind: noop, result: \"{{ 'c' * 200000 }}\"}}")
    flow = """
- { step: start, tool: { kind: playbook, path: child }, next: end }
- { step: end, tool: { kind: noop, result: "{{ [start | length, start[:2]] }}" } }
"""

    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(child.replace("tried", "child"))
        return await bench.run(playbook(flow))

    done = on_bench(work)

    assert done.result == [200_000, "cc"]
    [finished] = done.of(ChildFinished)
    assert len(encode(finished)) < EVENT_MAX


LOOP_OVER_LARGE = """
- { step: start, tool: { kind: noop, result: "{{ ['x' * 1000] * 500 }}" }, next: each }
- step: each
  loop: { in: "{{ start }}", iterator: text, spec: { mode: parallel } }
  tool: { kind: noop, result: "{{ text | length }}" }
  next: end
- { step: end, tool: { kind: noop, result: "{{ each.results | sum }}" } }
"""


def test_a_loop_goes_over_the_elements_of_a_large_list():
    assert ran(playbook(LOOP_OVER_LARGE)).result == 500_000


def test_a_loop_over_a_large_list_does_not_carry_it_in_its_events():
    done = ran(playbook(LOOP_OVER_LARGE))

    assert all(len(encode(fact)) < EVENT_MAX for fact in done.events)


# --- Odd results -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("result = float('nan')", "nan"),
        ("result = [1, float('inf')]", "inf"),
        ("result = {'n': 2**64}", "64"),
        ("result = object()", "object"),
        ("result = '\\ud800'", "surrogate"),
        ("result = {'s': {1, 2}}", "set"),
        ("x = []\nx.append(x)\nresult = x", "nested"),
        ("result = 'a\\0b'", "NUL"),
        ("result = {'\\0': 1}", "NUL"),
        ("import os\nos._exit(3)", "exit code 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import sys\nsys.exit(4)", "4"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
    ids=lambda text: text[:24],
)
def test_t24_an_odd_result_is_a_clear_task_error(code, message):
    body = "\n".join(f"      {line}" for line in code.splitlines())
    flow = f"""
- step: start
  tool:
    kind: python
    code: |
{body}
  next:
    spec: {{ mode: exclusive }}
    arcs: [{{ step: end, when: "{{{{ error }}}}", args: {{ why: "{{{{ error.message }}}}" }} }}]
- {{ step: end, tool: {{ kind: noop, result: "{{{{ args.why }}}}" }} }}
"""
    done = ran(playbook(flow))

    assert message.lower() in done.result.lower()


@pytest.mark.parametrize(
    "code",
    ["result = '\\x01\\x7f'", "result = 2**63 - 1", "result = -(2**63)", "result = '\\U0001f600'"],
)
def test_t24_what_json_can_say_survives(code):
    wanted: dict[str, object] = {}
    exec(code, wanted)
    flow = f"""
- {{ step: start, tool: {{ kind: python, code: {json.dumps(code)} }}, next: end }}
- {{ step: end, tool: {{ kind: noop, result: "{{{{ start }}}}" }} }}
"""
    done = ran(playbook(flow))

    assert done.result == wanted["result"]


# --- Poison ------------------------------------------------------------------------------------


def test_t32_a_poisoned_execution_does_not_block_the_others():
    deep = "x = []\nfor _ in range(100000): x = [x]\nresult = x"
    poison = [
        playbook(f"- {{step: start, tool: {{kind: python, code: {json.dumps(deep)}}}}}"),
        playbook("- {step: start, tool: {kind: noop, result: \"{{ 'x' * 10 ** 12 }}\"}}"),
        playbook('- {step: start, loop: {in: "{{ 5 }}", iterator: x}, tool: {kind: noop}}'),
        playbook("- {step: start, tool: {kind: noop}, next: '{{ workload.where }}'}"),
        playbook(
            "- {step: start, tool: {kind: python, code: 'while True: print(1)', timeout: 1s}}"
        ),
    ]
    fine = playbook("- {step: end, tool: {kind: python, code: result = 1}}")

    async def work(bench: Bench) -> tuple[list[Run], list[Run]]:
        bad = [await bench.start(text) for text in poison]
        good = await asyncio.gather(*(bench.run(fine) for _ in range(10)))
        return [await bench.ended(one) for one in bad], good

    bad, good = on_bench(work, slots=4)

    assert [run.result for run in good] == [1] * 10
    assert [run.document["status"] for run in bad] == ["FAILED"] * len(poison)
    assert all(run.error["message"] for run in bad)


def test_t32_a_damaged_event_stops_its_own_execution_only():
    text = playbook("- {step: end, tool: {kind: noop, result: 1}}")

    async def work(bench: Bench) -> Run:
        ended = await bench.run(text)
        with sqlite3.connect(bench.folder / "noetl.db") as database:
            database.execute(
                "UPDATE noetl_log SET events = x'00' WHERE execution_id = ?",
                [ended.document["execution_id"]],
            )
        database.close()
        return await bench.run(text)

    assert on_bench(work).result == 1


def test_what_a_tool_prints_is_kept_within_bounds():
    done = ran(
        playbook(
            "- {step: start, tool: {kind: shell, cmd: 'yes | head -c 3000000 | tail -c 2000000'}}"
        )
    )

    [task] = done.of(TaskDone)
    assert len(task.log) < 100_000
    assert task.log.startswith("[… earlier output dropped]")
    assert done.of(StepDone)


def test_each_try_of_a_call_keeps_the_large_result_it_had(tmp_path):
    """A key that two tries share would keep the first body under the second's checksum."""
    tries = tmp_path / "tries"
    flow = f"""
- step: start
  tool:
    kind: python
    code: |
      with open({str(tries)!r}, "a") as file:
          file.write("x")
      result = {{"n": len(open({str(tries)!r}).read()), "filler": "y" * 100000}}
    spec:
      policy:
        rules:
          - when: "{{{{ outcome.result.n < 3 }}}}"
            then: {{ do: retry, attempts: 5 }}
          - else: {{ then: {{ do: continue }} }}
  next: end
- step: end
  tool: {{ kind: noop, result: "{{{{ start.n }}}}" }}
"""

    assert ran(playbook(flow)).result == 3
