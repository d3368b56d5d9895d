"""From where tokens could come to a step: the same answer for any shape of net, quickly."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from noetl.engine.program import Program
from tests.effort import generated
from tests.engine.playing import program_of

RATIO_MAX = 4.0
TRIES = 5


def written(targets: list[list[int | None]], order: list[int] | None = None) -> str:
    """A playbook of steps that lead to these; None is a target that a template names."""
    arcs = {
        number: ", ".join(
            "{step: '{{ workload.there }}', when: '{{ workload.x }}'}"
            if one is None
            else f"{{step: s{one}, when: '{{{{ workload.x }}}}'}}"
            for one in found
        )
        for number, found in enumerate(targets)
    }
    steps = "\n".join(
        f"- {{step: s{number}, tool: {{kind: noop}}, next: {{arcs: [{arcs[number]}]}}}}"
        for number in order or range(len(targets))
    )
    return (
        f"executor: {{spec: {{entry_step: s0}}}}\nworkload: {{x: 1, there: s0}}\nworkflow:\n{steps}"
    )


@st.composite
def nets(draw: st.DrawFn) -> list[list[int | None]]:
    count = draw(st.integers(1, 7))
    target = st.one_of(*(st.integers(0, count - 1) for _ in range(6)), st.none())
    return draw(st.lists(st.lists(target, max_size=3), min_size=count, max_size=count))


def reached(targets: list[list[int | None]], start: int) -> set[int]:
    """The steps to which a token of this one could get."""
    found: set[int] = set()
    stack = [start]
    while stack:
        for one in targets[stack.pop()]:
            new = set(range(len(targets)) if one is None else [one]) - found
            found |= new
            stack += new
    return found


@given(nets())
@generated(60, long=1000)
def test_a_token_could_come_from_every_step_that_leads_here(targets):
    program = program_of(written(targets))
    bits = [program.steps[f"s{number}"].bit for number in range(len(targets))]

    for number in range(len(targets)):
        before = {one for one in range(len(targets)) if number in reached(targets, one)}
        together = before & reached(targets, number)
        assert program.reaching(sum(bits), f"s{number}") == sum(bits[n] for n in before - {number})
        assert program.reach.mutual[f"s{number}"] == sum(bits[n] for n in together)


def seconds(program: Program) -> float:
    """Processor time until a net is ready that has several tokens: the least of several tries."""

    def once() -> float:
        began = time.process_time()
        Program(program.net, program.digest, program.views).reaching(1, "s0")
        return time.process_time() - began

    return min(once() for _ in range(TRIES))


def test_the_order_in_which_steps_are_written_costs_nothing():
    there = [[number + 1] for number in range(499)] + [[]]
    to_and_fro = [[number - 1, number + 1] for number in range(1, 499)]
    both_ways = [[1], *to_and_fro, [498]]

    forwards = seconds(program_of(written(there)))

    assert seconds(program_of(written(there, [*range(499, -1, -1)]))) < RATIO_MAX * forwards
    assert seconds(program_of(written(both_ways))) < RATIO_MAX * forwards
