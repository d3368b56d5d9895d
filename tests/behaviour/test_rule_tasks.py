"""What calls of rules promise the other side, and what they leave in the record.

A rule's own task with a `retry` that pages collects and stores as a step's tool does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from noetl.control import documents
from noetl.model.events import ChainRestarted, RetryStarted, SinkProcessed, TaskDone
from tests.documents.services import Services, serving
from tests.examples.system import Bench, on_bench, playbook, ran

PAGED = """
- step: start
  tool: {{ kind: noop }}
  case:
    - when: "{{{{ event.name == '{event}' }}}}"
      {restart}
      then:
        - fetch:
            tool: {{ kind: http, url: "{{{{ workload.url }}}}/pages", params: {{ page: 1 }} }}
            retry:
              - when: "{{{{ response.data.has_more }}}}"
                then:
                  max_attempts: 100
                  next_call: {{ params: {{ page: "{{{{ _retry.index + 1 }}}}" }} }}
                  collect: {{ strategy: append, path: data.page, into: pages }}
                  sink: {{ tool: {sink} }}
        - result: {{ value: "{{{{ [pages, fetch.result.data.page] }}}}" }}
"""
BUSY = """
- step: start
  tool: {{ kind: {first} }}
  case:
    - when: "{{{{ event.name == 'call.error' and error.status == 429 }}}}"
      then: {{ retry: {{ max_attempts: 3, initial_delay: 0.01 }} }}
    - when: "{{{{ event.name == 'call.done' }}}}"
      then: [{rest} {{ next: end }}]
- {{ step: end, tool: {{ kind: noop }} }}
"""
POST = 'http, method: POST, url: "{{ workload.url }}/busy"'
RETRIED = "retry: { max_attempts: 3, initial_delay: 0.01 }"
SINK = '{ kind: noop, result: "{{ [page.page, _retry.index] }}" }'


@pytest.fixture
def web() -> Iterator[tuple[Services, str]]:
    services = Services()
    with serving(services) as url:
        yield services, url


@pytest.mark.parametrize(
    ("task", "flow"),
    [
        ("start_task", BUSY.format(first=POST, rest="")),
        (
            "ask",
            BUSY.format(
                first="noop", rest=f"{{ ask: {{ tool: {{ kind: {POST} }}, {RETRIED} }} }},"
            ),
        ),
    ],
    ids=["the step's own call", "a task of a rule"],
)
def test_a_call_keeps_its_key_over_its_tries_and_waits_as_long_as_it_is_asked_to(task, flow, web):
    services, url = web

    run = ran(playbook(flow), {"url": url})

    done = [fact for fact in run.of(TaskDone) if fact.task == task]
    [again] = run.of(RetryStarted)
    assert [(fact.attempt, fact.outcome.status) for fact in done] == [(1, "error"), (2, "ok")]
    assert (again.attempt, again.delay) == (2, 1.0), "Retry-After is the least that is waited"
    assert {asked.key for asked in services.asked} == {done[0].action_id}
    assert {fact.action_id for fact in (*done, again)} == {done[0].action_id}


def test_decisions_are_recorded_with_all_that_001_5_4_promises():
    flow = """
- step: start
  tool: { kind: noop }
  case:
    - { when: "{{ event.name == 'call.done' }}", then: { next: [{ step: end }] } }
- { step: end, tool: { kind: noop } }
"""

    async def work(bench: Bench) -> list[dict[str, Any]]:
        execution_id = (await bench.run(playbook(flow))).document["execution_id"]
        rows = await bench.system.store.log.events(execution_id, after=0, limit=100)
        return [documents.plain(documents.event(execution_id, row)) for row in rows]

    told = {one["event_type"]: one for one in on_bench(work)}

    answered = told["case.evaluated"]["payload"]
    assert list(answered["matched"]) == list(answered["order"]) == ["case_0"]
    assert (answered["case_mode"], answered["eval_mode"]) == ("exclusive", "on_entry")
    assert answered["trigger_event"] == "call.done"
    decided = told["next.evaluated"]["payload"]
    assert [(goal["step"], goal["args"]) for goal in decided["selected"]] == [("end", {})]
    assert decided["policy"] == "end_step"
    assert decided["winner_branch"] == "case_0"
    assert list(decided["suppressed_branches"]) == []
    assert decided["routing_committed"] is True
    assert told["next.evaluated"]["step_run_id"] == told["case.evaluated"]["step_run_id"]


@pytest.mark.parametrize("event", ["call.done", "step.enter", "step.exit"])
def test_the_pages_of_a_rules_task_are_collected_and_stored(event, web):
    services, url = web
    flow = PAGED.format(event=event, restart="", sink=SINK)

    run = ran(playbook(flow), {"url": url})

    assert [asked.path for asked in services.asked] == [f"/pages?page={n}" for n in (1, 2, 3)]
    assert run.result == [[1, 2], 3]
    stored = run.of(SinkProcessed)
    assert [fact.outcome.result for fact in stored] == [[1, 1], [2, 2]]
    fetched = [fact for fact in run.of(TaskDone) if fact.task == "fetch"]
    assert len({fact.action_id for fact in (*stored, *fetched)}) == 5
    assert [fact.page for fact in run.of(RetryStarted)] == [1, 2]


def test_a_page_that_cannot_be_stored_fails_the_chain_which_begins_again(web, tmp_path):
    services, url = web
    log = tmp_path / "log"
    sink = f"""{{ kind: shell, cmd: "echo x >> {log}; [ $(grep -c x {log}) -ne 2 ]" }}"""
    restart = "retry: { scope: chain, max_attempts: 2 }"

    run = ran(playbook(PAGED.format(event="call.done", restart=restart, sink=sink)), {"url": url})

    # The second page's sink failed; all that the chain had collected is forgotten.
    assert [asked.path[-1] for asked in services.asked] == ["1", "2", "1", "2", "3"]
    assert run.result == [[1, 2], 3]
    assert [fact.attempt for fact in run.of(ChainRestarted)] == [2]


def test_a_page_that_cannot_be_stored_fails_the_step_if_nothing_is_to_begin_again(web):
    services, url = web
    flow = PAGED.format(event="call.done", restart="", sink='{ kind: shell, cmd: "exit 3" }')

    run = ran(playbook(flow), {"url": url})

    assert len(services.asked) == 1
    assert run.error["code"] == 3
