"""The ways out of a step: which arcs fire, and what their tokens carry."""

from __future__ import annotations

import pytest

from noetl.model.events import CtxPatched, NextSelected, NextUnmatched, TokenAbsorbed, TokenCreated
from tests.engine.playing import Play, play

ARCS = """
workload: {n: 1}
workflow:
- step: start
  tool: {kind: noop}
  next:
    spec: {mode: %s}
    arcs:
    - {step: a, when: "{{ start.v > 1 }}"}
    - {step: b, when: "{{ start.v > 0 }}"}
    - {step: c, when: "{{ workload.n == 1 }}"}
- {step: a, tool: {kind: noop}}
- {step: b, tool: {kind: noop}}
- {step: c, tool: {kind: noop}}
"""


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("exclusive", 2, ["a"]),
        ("exclusive", 1, ["b"]),
        ("exclusive", 0, ["c"]),
        ("inclusive", 2, ["a", "b", "c"]),
        ("inclusive", 1, ["b", "c"]),
        ("inclusive", 0, ["c"]),
    ],
)
def test_exclusive_takes_the_first_arc_that_holds_and_inclusive_all(
    mode: str, value: int, expected: list[str]
) -> None:
    played = play(ARCS % mode)

    played.done("start", {"v": value})

    assert played.steps == expected
    assert played.events(NextSelected)[-1].targets == tuple(expected)


def test_an_unrun_step_in_a_guard_is_not_true() -> None:
    played = play(
        """
workflow:
- step: start
  tool: {kind: noop}
  next: {arcs: [{step: b, when: "{{ a }}"}, {step: a, when: "{{ not a.x }}"}]}
- {step: a, tool: {kind: noop}}
- {step: b, tool: {kind: noop}}
"""
    )

    played.done("start")

    assert played.steps == ["a"]


def one_arc(arc: str, head: str = "") -> Play:
    return play(
        f"""
{head}
workload: {{where: last, wait: 30}}
workflow:
- step: start
  args: {{own: 1, n: 1}}
  tool: {{kind: noop}}
  next: {{arcs: [{arc}]}}
- {{step: last, args: {{own: 2, kept: 3}}, tool: {{kind: noop}}}}
"""
    )


def test_no_arc_that_holds_ends_the_token_with_a_warning() -> None:
    played = one_arc('{step: last, when: "{{ false }}"}')

    played.done("start", 7)

    assert len(played.events(NextUnmatched)) == 1
    assert (played.status, played.state.result) == ("COMPLETED", 7)


def test_no_arc_that_holds_is_an_error_where_the_executor_says_so() -> None:
    played = one_arc(
        '{step: last, when: "{{ false }}"}',
        head="executor: {spec: {no_next_is_error: true}}",
    )

    played.done("start")

    assert played.status == "FAILED"
    assert played.state.failure is not None
    assert played.state.failure.code == "no_next"


def test_an_arcs_args_are_laid_over_the_steps_own() -> None:
    played = one_arc('{step: last, args: {own: "{{ start.v }}", more: "{{ args.n + 1 }}"}}')

    played.done("start", {"v": 5})

    assert played["last"].args == {"own": 5, "kept": 3, "more": 2}


def test_an_arcs_set_writes_ctx_and_args() -> None:
    played = one_arc('{step: last, set: {ctx.total: "{{ start.v }}", extra: 4}}')

    played.done("start", {"v": 5})

    assert played.state.ctx == {"total": 5}
    assert played["last"].args["extra"] == 4
    assert [event.values for event in played.events(CtxPatched)] == [{"total": 5}]


def test_all_arcs_that_fire_see_the_same_ctx() -> None:
    played = play(
        """
workflow:
- step: start
  tool: {kind: noop}
  next:
    spec: {mode: inclusive}
    arcs:
    - {step: a, set: {ctx.n: 1}}
    - {step: b, args: {seen: "{{ ctx.n | default('nothing') }}"}}
- {step: a, tool: {kind: noop}}
- {step: b, tool: {kind: noop}}
"""
    )

    played.done("start")

    assert played["b"].args == {"seen": "nothing"}


def test_a_templated_target_is_found_at_run_time() -> None:
    played = one_arc('{step: "{{ workload.where }}"}')

    played.done("start")

    assert played.steps == ["last"]
    assert played.events(NextSelected)[0].targets == ("last",)


def test_a_templated_target_that_is_no_step_fails_the_execution() -> None:
    played = one_arc('{step: "{{ start.v }}"}')

    played.done("start", {"v": "lost"})

    assert played.status == "FAILED"
    assert played.state.failure is not None
    assert 'sends its token to "lost", which is not a step' in played.state.failure.message


@pytest.mark.parametrize("broken", ["args: {x: '{{ no.such }}'}", "set: {ctx.x: '{{ no.such }}'}"])
def test_an_arc_that_cannot_be_evaluated_fails_the_execution_and_sends_nothing(
    broken: str,
) -> None:
    played = play(
        f"""
workload: {{no: {{}}}}
workflow:
- step: start
  tool: {{kind: noop}}
  next: {{spec: {{mode: inclusive}}, arcs: [{{step: a}}, {{step: b, {broken}}}]}}
- {{step: a, tool: {{kind: noop}}}}
- {{step: b, tool: {{kind: noop}}}}
"""
    )

    played.done("start")

    assert played.status == "FAILED"
    assert [token.step for token in played.events(TokenCreated)] == ["start"]


@pytest.mark.parametrize("delay", ["90", "'1m30s'", "'{{ workload.wait * 3 }}'"])
def test_a_delayed_arc_holds_its_token_back(delay: str) -> None:
    played = one_arc(f"{{step: last, spec: {{delay: {delay}}}}}")

    played.done("start")
    assert played.steps == []
    assert played.next_timer().fires_at == played.at + 90
    played.fire()

    assert played.steps == ["last"]


def test_an_arcs_priority_reaches_the_command() -> None:
    played = one_arc("{step: last, spec: {priority: 7}}")

    played.done("start")

    assert played["last"].priority == 7


GUARDED = "{step: last, when: \"{{ event.name == '%s' }}\"}"


@pytest.mark.parametrize(
    "name", ["step.done", "step.exit", "step.finished", "call.done", "StepFinished"]
)
def test_a_success_goes_by_all_its_names(name: str) -> None:
    played = one_arc(GUARDED % name)

    played.done("start")

    assert played.steps == ["last"]


@pytest.mark.parametrize(
    "name", ["step.failed", "step.exit", "step.finished", "call.error", "ToolErrored"]
)
def test_a_failure_goes_by_all_its_names(name: str) -> None:
    played = one_arc(GUARDED % name)

    played.fail("start")

    assert played.steps == ["last"]


@pytest.mark.parametrize("name", ["loop.done", "loop.finished", "step.done", "step.exit"])
def test_the_end_of_a_loop_goes_by_all_its_names(name: str) -> None:
    played = play(
        f"""
workflow:
- step: start
  loop: {{in: [1], iterator: x}}
  tool: {{kind: noop}}
  next: {{arcs: [{GUARDED % name}]}}
- {{step: last, tool: {{kind: noop}}}}
"""
    )

    played.iterate("start")

    assert played.steps == ["last"]


def test_a_net_that_goes_round_without_work_lets_others_have_their_turn_and_can_be_cancelled() -> (
    None
):
    played = Play(
        """
workflow:
- {step: start, next: a}
- {step: a, next: b}
- {step: b, next: a}
""",
        checked=False,
    ).start()

    for _ in range(3):
        assert played.status == "RUNNING"
        assert len(played.state.timers) == 1
        played.fire()
    played.cancel()

    assert played.status == "CANCELLED"


FEED = """
workflow:
- step: start
  tool: {{kind: noop}}
  next:
    spec: {{mode: inclusive, policy: {{priority: 3, {policy}}}}}
    arcs:
    - {{step: work, args: {{k: "{{{{ start.k }}}}"}}{own}}}
    - {{step: start, when: "{{{{ start.more }}}}"}}
- {{step: work, spec: {{join: each}}, tool: {{kind: noop}}}}
"""
KEYED = "{key: '{{ start.k }}'}"


def fed(text: str, *keys: object) -> Play:
    """Tokens with these keys, over one arc."""
    played = play(text)
    for number, key in enumerate(keys):
        [command] = [one for one in played.open.values() if one.step == "start"]
        played.done(command, {"k": key, "more": number + 1 < len(keys)})
    return played


def keys_at_work(played: Play) -> list[object]:
    return [run.args["k"] for run in played.state.runs.values() if run.step == "work"]


def test_an_arc_with_dedupe_carries_each_key_once() -> None:
    text = FEED.format(policy="", own=f", spec: {{dedupe: {KEYED}}}")
    played = fed(text, "a", 1, "a", "1", {"x": 1, "y": 2}, {"y": 2, "x": 1}, 1, None, None)

    assert keys_at_work(played) == ["a", 1, "1", {"x": 1, "y": 2}, None, None]
    assert len(played.events(TokenAbsorbed)) == 3
    for command in list(played.open.values()):
        played.done(command)
    assert played.status == "COMPLETED"


def test_tokens_of_a_partition_run_one_after_the_other_and_others_at_once() -> None:
    played = fed(FEED.format(policy="", own=f", spec: {{partition: {KEYED}}}"), *"aabac")
    order = []

    assert keys_at_work(played) == ["a", "b", "c"]
    assert [token.args["k"] for token in played.state.tokens.values()] == ["a", "a"]
    while played.open:
        [first, *_] = played.open.values()
        order.append(played.state.runs[first.step_run_id].args["k"])
        played.done(first)
        assert len(set(keys_at_work(played))) == len(keys_at_work(played))
    assert sorted(order) == list("aaabc")
    assert played.status == "COMPLETED"


def test_a_partition_goes_on_after_a_run_that_failed_and_ends_with_the_execution() -> None:
    text = FEED.format(policy="", own=f", spec: {{partition: {KEYED}}}")
    played = fed(text.replace("join: each", "join: each, on_error: ignore"), "a", "a")
    played.fail("work")

    assert keys_at_work(played) == ["a"]

    played = fed(text, "a", "a")
    played.fail("work")
    assert (played.status, played.state.tokens) == ("FAILED", {})


def test_what_a_router_says_holds_for_arcs_that_say_nothing() -> None:
    keyed = fed(FEED.format(policy=f"dedupe: {KEYED}", own=""), 1, 1)
    assert keys_at_work(keyed) == [1]
    assert len(keyed.events(TokenAbsorbed)) == 1

    plain = fed(FEED.format(policy="", own=""), 1)
    own = fed(FEED.format(policy="", own=", spec: {priority: 9}"), 1)

    assert [played.__getitem__("work").priority for played in (plain, own)] == [3, 9]
