"""Results that must fit a schema: what breaks one fails, with its place, wherever it came from."""

from __future__ import annotations

from tests.examples.system import Bench, Run, on_bench, playbook, ran

FLOW = """
- step: start
  tool:
    kind: python
    args: { rows: "{{ workload.rows }}" }
    code: "result = {'rows': [{'id': n, 'text': 'x' * 100} for n in range(rows)]}"
    output:
      schema:
        title: table
        type: object
        properties:
          rows: { type: array, maxItems: 2000, items: { type: object, required: [id] } }
"""
RESULT = "spec: { result: { schema: { type: object, required: [rows] } } }"


def test_a_large_result_is_checked_before_it_is_kept_and_its_reference_names_the_schema() -> None:
    done = ran(playbook(FLOW, executor=RESULT), {"rows": 1500})

    assert done.result["_ref"]["schema_hint"] == "table"
    assert done.result["_ref"]["size"] > 64 * 1024


def test_a_result_that_breaks_its_schema_is_an_error_that_is_not_worth_another_try() -> None:
    failed = ran(playbook(FLOW), {"rows": 3000})

    assert failed.error["kind"] == "schema"
    assert not failed.error.get("retryable")
    assert "`rows` has 3000 elements; the maximum is 2000." in failed.error["message"]


def test_an_execution_that_does_not_yield_what_its_playbook_promises_fails() -> None:
    flow = "- { step: start, tool: { kind: noop, result: { lines: 1 } } }"

    failed = ran(playbook(flow, executor=RESULT))

    assert failed.error["kind"] == "schema"
    assert (
        "the result of the execution breaks its schema: the value lacks `rows`."
        in (failed.error["message"])
    )


def test_large_results_of_iterations_are_checked_as_what_they_stand_for() -> None:
    flow = """
- step: start
  loop: { in: [1, 2], iterator: n }
  tool: { kind: python, code: "result = {'text': 'x' * 100_000}" }
"""
    each = "{ type: object, required: [text] }"
    schema = f"{{ properties: {{ results: {{ type: array, items: {each} }} }} }}"

    done = ran(playbook(flow, executor=f"spec: {{ result: {{ schema: {schema} }} }}"))

    assert ["_ref" in one for one in done.result["results"]] == [True, True]


def test_guards_and_args_read_large_results_of_iterations() -> None:
    flow = """
- step: start
  loop: { in: [1, 2], iterator: n }
  tool: { kind: python, code: "result = {'text': 'x' * 100_000}" }
  next: { arcs: [{ step: then }] }
- step: then
  args: { size: "{{ start.results[1].text | length }}" }
  next:
    arcs:
      - { step: long, when: "{{ start.results[1].text | length > 99_999 }}" }
      - { step: short }
- { step: long, tool: { kind: noop, result: "{{ then.size }}" } }
- { step: short, tool: { kind: noop, result: short } }
"""

    assert ran(playbook(flow)).result == 100_000


def test_the_caller_of_a_playbook_is_told_that_it_broke_its_promise() -> None:
    child = playbook("- { step: start, tool: { kind: noop, result: 1 } }", executor=RESULT)
    calling = "- { step: start, tool: { kind: playbook, path: tried } }"

    async def work(bench: Bench) -> Run:
        await bench.system.catalog.register(child)
        return await bench.run(playbook(calling).replace("path: tried}", "path: caller}", 1))

    failed = on_bench(work)

    assert failed.error["kind"] == "schema"
    assert "is integer, not object" in failed.error["message"]
