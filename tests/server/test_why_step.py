"""Why a step ran, or why it did not: told by a real server from what it recorded."""

from __future__ import annotations

import pytest

SHOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shop, path: tests/why_shop}
workload: {total: 17}
workflow:
  - step: start
    tool: {kind: noop, result: {total: "{{ workload.total }}"}}
    next: {arcs: [{step: check, set: {ctx.total: "{{ start.total }}"}}]}
  - step: check
    tool: {kind: noop}
    next:
      spec: {mode: inclusive}
      arcs:
        - {step: pay, when: "{{ ctx.total > 0 }}"}
        - {step: refund, when: "{{ start.totl < 0 }}"}
        - {step: audit, when: "{{ ctx.total > 100 }}"}
  - step: pay
    tool: {kind: noop}
    next:
      arcs:
        - {step: end, when: "{{ ctx.total == 17 }}"}
        - {step: late}
  - {step: refund, tool: {kind: noop}, next: {arcs: [{step: mail}]}}
  - {step: mail, tool: {kind: noop}}
  - {step: late, tool: {kind: noop}}
  - step: audit
    tool: {kind: noop}
  - step: end
    spec: {policy: {admit: {rules: [{when: "{{ ctx.total > 1000 }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""


def started(server, text: str) -> str:
    execution_id = server.start(text)
    server.ended(execution_id)
    return execution_id


@pytest.fixture(scope="module")
def shop(dev):
    return dev, started(dev, SHOP)


def why(shop, step: str, **more) -> dict:
    server, execution_id = shop
    return server.get(f"/api/executions/{execution_id}/why", step=step, **more)["step"]


def test_a_step_that_ran_names_token_arc_guard_and_what_was_read(shop):
    told = why(shop, "pay")

    assert told["outcome"] == "ran"
    assert told["text"] == (
        "`pay` ran: token from `check` over arc 1; guard `ctx.total > 0` was true,"
        " `ctx.total` = 17."
    )
    [condition] = told["conditions"]
    assert (condition["arc"], condition["verdict"]) == ("check#0", "fired")
    assert condition["reads"][0]["value"] == 17
    server, execution_id = shop
    events = server.events(execution_id)
    by_number = {event["seq"]: event for event in events}
    assert by_number[told["tokens"][0]["seq"]]["event_type"] == "token.created"
    assert by_number[told["seq"]]["event_type"] == "step.scheduled"
    assert by_number[condition["seq"]]["event_type"] == "step.done"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("start", "`start` ran: the execution begins there."),
        (
            "refund",
            "`refund` did not run: its guard `start.totl < 0` read what is undefined:"
            " `start.totl` (did you mean `total`?).",
        ),
        (
            "audit",
            "`audit` did not run: its guard `ctx.total > 100` was false, `ctx.total` = 17.",
        ),
        (
            "late",
            "`late` did not run: `pay` takes one arc, and took the one to `end`;"
            " guard `ctx.total == 17` was true, `ctx.total` = 17.",
        ),
        (
            "end",
            "`end` was skipped: no rule of admission allowed it: rule `ctx.total > 1000` was"
            " false, `ctx.total` = 17.",
        ),
    ],
)
def test_every_reason_is_a_sentence(shop, step, text):
    assert why(shop, step)["text"] == text


def test_what_was_never_reached_is_followed_back_to_what_decided(shop):
    told = why(shop, "mail")

    assert told["text"].startswith("`mail` did not run: `refund` before it did not run:")
    assert told["conditions"][0]["arc"] == "check#1"


def test_the_answer_is_that_of_the_moment_asked_about(shop):
    whole = why(shop, "pay")

    before = why(shop, "pay", seq=whole["seq"] - 1)
    at = why(shop, "pay", seq=whole["seq"])

    assert before["outcome"] in ("not_run", "waiting")
    assert at["outcome"] == "running"


def test_for_every_moment_of_the_log_there_is_an_answer(shop):
    server, execution_id = shop
    events = server.events(execution_id)

    outcomes = [why(shop, "pay", seq=event["seq"])["outcome"] for event in events[::4]]

    order = ["not_run", "waiting", "running", "ran"]
    assert outcomes == sorted(outcomes, key=order.index)


def test_wrong_steps_and_moments_are_refused(shop):
    server, execution_id = shop
    path = f"/api/executions/{execution_id}/why"

    assert server.ask("GET", path, step="pya").status == 404
    assert server.ask("GET", path, step="pay", seq=100000).status == 404
    assert server.ask("GET", path, seq=3).status == 400
    assert server.ask("GET", path, step="pay", seq=0).status in (400, 422)


def test_a_failed_step_says_which_arcs_were_for_failures(dev):
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: broken, path: tests/why_broken}
workflow:
  - step: start
    tool: {kind: noop, result: "{{ 1 / 0 }}"}
    next:
      arcs:
        - {step: fine}
        - {step: mend, when: "{{ error.kind == 'timeout' }}"}
  - {step: fine, tool: {kind: noop}}
  - {step: mend, tool: {kind: noop}}
"""
    shop = dev, started(dev, text)

    assert "failed, and its arc reads neither `event` nor `error`" in why(shop, "fine")["text"]
    assert "`error.kind == 'timeout'` was false, `error.kind` = " in why(shop, "mend")["text"]


def test_a_guard_over_a_large_result_is_evaluated_on_the_whole_of_it(dev):
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large, path: tests/why_large}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'items': ['x' * 100] * 5000, 'count': 5000}"}
    next:
      arcs:
        - {step: many, when: "{{ start.count > 10 }}"}
  - {step: many, tool: {kind: noop}}
"""
    shop = dev, started(dev, text)

    assert why(shop, "many")["text"].endswith("`start.count` = 5000.")


def test_what_a_fork_and_a_rerun_took_over_ran_before_them(shop):
    server, execution_id = shop
    last = server.get(f"/api/executions/{execution_id}/state")["last_seq"]
    fork = server.post(f"/api/executions/{execution_id}/fork", {"seq": last})["execution_id"]
    rerun = server.post(f"/api/executions/{execution_id}/rerun", {"from": "pay"})["execution_id"]
    for one in (fork, rerun):
        server.ended(one)

    before = "in the execution that this one continues"
    assert why((server, fork), "pay")["text"] == f"`pay` ran {before}."
    assert why((server, rerun), "check")["text"] == f"`check` ran {before}."
    assert why((server, rerun), "refund")["text"] == (
        f"`refund` did not run: `check` ran {before}, and no token of it came here."
    )


def test_what_was_skipped_before_a_fork_did_not_run_in_it(dev):
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: skips, path: tests/why_skips}
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: skipped}, {step: work}]}
  - step: skipped
    spec: {policy: {admit: {rules: [{when: "{{ 1 > 2 }}", then: {allow: true}}]}}}
    tool: {kind: noop}
  - {step: work, tool: {kind: noop}, next: {arcs: [{step: end}]}}
  - {step: end, tool: {kind: noop}}
"""
    execution_id = started(dev, text)
    last = dev.events(execution_id)[-1]["seq"]
    fork = dev.post(f"/api/executions/{execution_id}/fork", {"seq": last})["execution_id"]
    dev.ended(fork)

    told = why((dev, fork), "skipped")

    assert told["outcome"] == "skipped"
    assert told["text"] == "`skipped` was skipped in the execution that this one continues."


def test_a_step_that_no_event_rule_led_to_names_the_step_that_has_the_rule(dev):
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: ruled, path: tests/why_ruled}
workflow:
  - step: start
    tool: {kind: noop, result: 3}
    case:
      - {when: "{{ event.name == 'step.exit' and result > 5 }}", then: {next: [{step: many}]}}
  - {step: many, tool: {kind: noop}}
"""
    told = why((dev, started(dev, text)), "many")

    assert told["text"] == "`many` did not run: `start` sent no token there when it ended."
