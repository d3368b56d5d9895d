"""When tokens that wait at a step become a run of it."""

from __future__ import annotations

import pytest

from noetl.model.events import StepScheduled, StepSkipped, TokenAbsorbed
from tests.engine.playing import Play, play

FORK = """
workflow:
- step: start
  next: {spec: {mode: inclusive}, arcs: [
    {step: a, args: {who: a, a: 1}}, {step: b, args: {who: b}}, {step: c, args: {who: c}}]}
- {step: a, tool: {kind: noop}, next: [{step: j, args: {from: a, a: 1}}]}
- {step: b, tool: {kind: noop}, next: [{step: j, args: {from: b, b: 2}}]}
- {step: c, tool: {kind: noop}, next: [{step: j, args: {from: c, c: 3}}]}
- {step: j, %s tool: {kind: noop}, next: last}
- {step: last, tool: {kind: noop}}
"""


def fork(join: str | None) -> Play:
    return play(FORK % (f"spec: {{join: {join}}}," if join else ""))


def test_auto_waits_for_all_live_branches_and_runs_once() -> None:
    played = fork(None)

    played.done("b")
    played.done("c")
    assert played.steps == ["a"]
    played.done("a")

    assert played.steps == ["j"]


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_args_of_joined_tokens_are_merged_in_arc_order_whatever_the_order_of_arrival(
    order: str,
) -> None:
    played = fork(None)

    for step in order:
        played.done(step)

    args = played["j"].args
    assert {name: args[name] for name in ("from", "a", "b", "c")} == {
        "from": "c",
        "a": 1,
        "b": 2,
        "c": 3,
    }
    assert [token["from"] for token in args["_tokens"]] == ["a", "b", "c"]


def test_a_run_of_several_tokens_has_the_highest_of_their_priorities() -> None:
    played = play(
        """
workflow:
- step: start
  next: {spec: {mode: inclusive}, arcs: [
    {step: j, spec: {priority: 2}}, {step: j, spec: {priority: 7}}, {step: j}]}
- {step: j, tool: {kind: noop}}
"""
    )

    assert played["j"].priority == 7


def test_arc_order_is_that_of_the_playbook_also_beyond_ten_arcs() -> None:
    arcs = ", ".join(f"{{step: j, args: {{n: {n}}}}}" for n in range(12))
    played = play(
        f"""
workflow:
- step: start
  next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}
- {{step: j, tool: {{kind: noop}}}}
"""
    )

    args = played["j"].args
    assert args["n"] == 11
    assert [token["n"] for token in args["_tokens"]] == list(range(12))


def test_each_makes_one_run_per_token() -> None:
    played = fork("each")

    for step in "abc":
        played.done(step)

    assert played.steps == ["j", "j", "j"]
    assert [run.number for run in played.state.runs.values()] == [1, 2, 3]


def test_all_waits_for_one_token_per_arc() -> None:
    played = fork("all")

    played.done("a")
    played.done("c")
    assert played.steps == ["b"]
    played.done("b")

    assert played.steps == ["j"]


def test_all_does_not_wait_for_an_arc_that_can_bring_nothing_any_more() -> None:
    played = play(
        """
workflow:
- step: start
  next: {spec: {mode: inclusive}, arcs: [
    {step: a}, {step: b}, {step: never, when: "{{ false }}"}]}
- {step: a, tool: {kind: noop}, next: j}
- {step: b, tool: {kind: noop}, next: j}
- {step: never, tool: {kind: noop}, next: j}
- {step: j, spec: {join: all}, tool: {kind: noop}}
"""
    )

    played.done("a")
    assert played.steps == ["b"]
    played.done("b")

    assert played.steps == ["j"]


def test_all_takes_one_token_of_each_arc_and_keeps_the_others_for_the_next_set() -> None:
    played = play(
        """
workflow:
- {step: start, next: [x, y, b]}
- {step: x, tool: {kind: noop}, next: a}
- {step: y, tool: {kind: noop}, next: a}
- {step: a, spec: {join: each}, next: j}
- {step: b, tool: {kind: noop}, next: j}
- {step: j, spec: {join: all}, tool: {kind: noop}}
"""
    )

    played.done("x")
    played.done("y")
    assert played.steps == ["b"]
    played.done("b")

    assert played.ran().count("j") == 2


def test_all_looks_again_for_what_may_come_after_each_run() -> None:
    """The first run of `j` sends a token that comes back: the second set waits for it."""
    played = play(
        """
workflow:
- {step: start, next: [x, y, late]}
- {step: x, next: a}
- {step: y, next: a}
- {step: a, spec: {join: each}, next: j}
- {step: late, tool: {kind: noop}, next: {arcs: [{step: j, when: "{{ late.v }}"}]}}
- step: j
  spec: {join: all}
  set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
  next: {arcs: [{step: back, when: "{{ ctx.n == 1 }}"}]}
- {step: back, spec: {join: each}, tool: {kind: noop}, next: j}
"""
    )
    played.done("late", {"v": False})

    assert played.steps == ["back"]
    assert played.ran().count("j") == 1
    played.done("back")

    assert played.ran().count("j") == 2
    assert played.status == "COMPLETED"


def test_any_runs_with_the_first_and_absorbs_the_rest() -> None:
    played = fork("any")

    played.done("b")
    assert played.steps == ["a", "c", "j"]
    played.done("a")
    played.done("j")
    played.done("c")

    assert played.steps == ["last"]
    assert len(played.events(TokenAbsorbed)) == 2


ANY_IN_A_CYCLE = """
workload: {rounds: 3}
workflow:
- step: start
  next: round
- step: round
  set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
  next: {arcs: [{step: a, when: "{{ ctx.n % 2 == 1 }}"}, {step: b}]}
- {step: a, tool: {kind: noop}, next: j}
- {step: b, tool: {kind: noop}, next: j}
- step: j
  spec: {join: any}
  next: {arcs: [{step: round, when: "{{ ctx.n < workload.rounds }}"}, {step: last}]}
- {step: last, tool: {kind: noop}}
"""


def test_any_in_a_cycle_takes_each_rounds_token_whichever_way_it_comes() -> None:
    played = play(ANY_IN_A_CYCLE)

    for step in ("a", "b", "a"):
        assert played.steps == [step]
        played.done(step)

    assert played.steps == ["last"]


def test_any_in_a_cycle_absorbs_a_straggler_of_an_earlier_round() -> None:
    played = play(
        """
workflow:
- step: start
  spec: {join: each}
  next: [a, b]
- {step: a, spec: {join: each}, tool: {kind: noop}, next: j}
- {step: b, spec: {join: each}, tool: {kind: noop}, next: j}
- step: j
  spec: {join: any}
  set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
  next: {arcs: [{step: start, when: "{{ ctx.n < 2 }}"}]}
"""
    )

    played.done("a")  # first round over; the b of that round is late
    assert sorted(played.steps) == ["a", "b", "b"]
    late = played["b"]
    played.done(late)
    assert played.ran().count("j") == 1
    played.done("b")
    assert played.ran().count("j") == 2
    played.done("a")

    assert played.status == "COMPLETED"
    assert played.ran().count("j") == 2


@pytest.mark.parametrize("order", [("slow", "fast"), ("fast", "slow")])
def test_what_joins_a_straggler_with_a_token_of_the_last_round_is_of_that_round(
    order: tuple[str, str],
) -> None:
    played = play(
        """
workflow:
- {step: start, next: j}
- step: j
  spec: {join: any}
  set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
  next: {spec: {mode: inclusive}, arcs: [
    {step: slow, when: "{{ ctx.n == 1 }}"},
    {step: quick, when: "{{ ctx.n == 1 }}"},
    {step: fast, when: "{{ ctx.n == 2 }}"},
    {step: last, when: "{{ ctx.n == 3 }}"}]}
- {step: quick, spec: {join: each}, tool: {kind: noop}, next: j}
- {step: fast, spec: {join: each}, tool: {kind: noop}, next: both}
- {step: slow, spec: {join: each}, tool: {kind: noop}, next: both}
- {step: both, tool: {kind: noop}, next: j}
- {step: last, tool: {kind: noop}}
"""
    )

    played.done("quick")
    for step in (*order, "both"):
        played.done(step)

    assert played.steps == ["last"]


def test_a_count_runs_after_so_many_and_absorbs_the_rest() -> None:
    played = fork("{n: 2}")

    played.done("c")
    assert "j" not in played.steps
    played.done("a")
    assert played.steps == ["b", "j"]
    assert [token["from"] for token in played["j"].args["_tokens"]] == ["a", "c"]
    played.done("j")
    played.done("b")

    assert played.steps == ["last"]


def test_a_count_takes_no_more_than_so_many_of_those_that_come_at_once() -> None:
    played = play(
        """
workflow:
- step: start
  next: {spec: {mode: inclusive}, arcs: [
    {step: j, args: {n: 1}}, {step: j, args: {n: 2}}, {step: j, args: {n: 3}}]}
- {step: j, spec: {join: {n: 2}}, tool: {kind: noop}}
"""
    )

    assert played.steps == ["j"]
    assert [token["n"] for token in played["j"].args["_tokens"]] == [1, 2]


def test_a_count_that_can_no_longer_be_reached_runs_with_what_there_is() -> None:
    played = fork("{n: 5}")

    for step in "ab":
        played.done(step)
    assert played.steps == ["c"]
    played.done("c")

    assert played.steps == ["j"]


def test_a_denied_token_is_a_dead_path_for_the_join() -> None:
    played = play(
        """
workflow:
- {step: start, next: [a, b]}
- {step: a, tool: {kind: noop}, next: j}
- step: b
  spec: {policy: {admit: {rules: [{else: {allow: false}}]}}}
  tool: {kind: noop}
  next: j
- {step: j, tool: {kind: noop}}
"""
    )

    played.done("a")

    assert played.steps == ["j"]
    assert [skipped.step for skipped in played.events(StepSkipped)] == ["b"]


@pytest.mark.parametrize(("join", "listed"), [("all", True), ("{n: 1}", True), ("auto", False)])
def test_a_run_that_took_one_token_lists_it_if_its_join_gathers(join: str, listed: bool) -> None:
    played = play(
        f"""
workflow:
- {{step: start, next: {{arcs: [{{step: j, args: {{n: 1}}}}]}}}}
- {{step: j, spec: {{join: {join}}}, tool: {{kind: noop}}}}
"""
    )

    assert played["j"].args == ({"n": 1, "_tokens": [{"n": 1}]} if listed else {"n": 1})


def test_a_step_that_is_done_at_once_counts_as_alive_until_its_tokens_are_placed() -> None:
    """`q` ends and routes while the token at `j` is looked at in the same decision."""
    played = play(
        """
workflow:
- {step: start, next: [j, p]}
- {step: p, next: q}
- {step: q, next: r}
- {step: r, tool: {kind: noop}, next: j}
- {step: j, tool: {kind: noop}}
"""
    )

    assert played.steps == ["r"]
    played.done("r")

    assert played.steps == ["j"]
    assert played.ran().count("j") == 1


MUTUAL = """
workflow:
- {step: start, next: [p, q, k]}
- {step: p, tool: {kind: noop}, next: left}
- {step: q, tool: {kind: noop}, next: right}
- step: left
  tool: {kind: noop}
  set: {ctx.left: true}
  next: {arcs: [{step: right, when: "{{ not ctx.right }}"}, {step: k}]}
- step: right
  tool: {kind: noop}
  set: {ctx.right: true}
  next: {arcs: [{step: left, when: "{{ not ctx.left }}"}, {step: k}]}
- {step: k, tool: {kind: noop}}
"""


@pytest.mark.parametrize(("first", "second"), [("pq", "left"), ("qp", "right")])
def test_steps_that_wait_for_each_other_are_released_oldest_first(first: str, second: str) -> None:
    played = play(MUTUAL)

    for step in first:
        assert "k" not in played.steps
        played.done(step)

    assert played.steps == [second], "the one whose token came first, and only that one"
    released = [event.step for event in played.events(StepScheduled) if event.released]
    assert released == [second]


def test_a_join_behind_a_mutual_wait_is_not_released_with_it() -> None:
    """The oldest token of all waits at `k`, but nobody waits for `k`."""
    played = play(MUTUAL)
    for step in "pq":
        played.done(step)
    while "k" not in played.steps:
        played.done(played.steps[0])

    assert played.steps == ["k"]
    played.done("k")
    assert played.status == "COMPLETED"
    assert played.ran().count("k") == 1


def test_a_mutual_wait_is_released_although_something_else_goes_on() -> None:
    played = play(
        MUTUAL.replace("next: [p, q, k]", "next: [p, q, k, long]")
        + "- {step: long, tool: {kind: noop}}\n"
    )

    for step in "pq":
        played.done(step)

    assert played.steps == ["long", "left"]


def test_a_delayed_token_is_waited_for() -> None:
    played = play(
        """
workflow:
- step: start
  next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: j, spec: {delay: 60}}]}
- {step: a, tool: {kind: noop}, next: j}
- {step: j, tool: {kind: noop}}
"""
    )

    played.done("a")
    assert played.steps == []
    played.fire()

    assert played.steps == ["j"]
    assert played.at == 1060


def test_a_step_in_a_cycle_runs_again_each_time_round() -> None:
    played = play(
        """
workflow:
- step: start
  tool: {kind: noop}
  set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
  next: {arcs: [{step: start, when: "{{ ctx.n < 3 }}"}, {step: last}]}
- {step: last, tool: {kind: noop}}
"""
    )

    for number in (1, 2, 3):
        assert played.state.runs[played["start"].step_run_id].number == number
        played.done("start")

    assert played.steps == ["last"]
