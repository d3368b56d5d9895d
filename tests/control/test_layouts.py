"""Drawings of playbooks: in layers, in order, with few crossings, and quickly."""

from __future__ import annotations

import time
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from noetl.control.layouts import layout
from noetl.model.answers import Layout
from noetl.model.net import Arc, Net, Router, Step
from tests.effort import generated


def net(arcs: dict[str, list[str]]) -> Net:
    steps = tuple(
        Step(name=name, router=Router(arcs=tuple(Arc(step=target) for target in targets)))
        for name, targets in arcs.items()
    )
    return Net(name="x", path="x", entry=next(iter(arcs)), steps=steps)


def places(drawn: Layout) -> dict[str, tuple[int, float]]:
    return {node.id: (node.x, node.y) for node in drawn.nodes}


def crossings(drawn: Layout) -> int:
    """Pairs of pieces of arcs between two neighbouring layers that cross."""
    at = places(drawn)
    pieces = []
    for edge in drawn.edges:
        if not edge.back and edge.source != edge.target:
            way = [at[edge.source], *edge.points, at[edge.target]]
            pieces += list(pairwise(way))
    return sum(
        (one[0][1] - other[0][1]) * (one[1][1] - other[1][1]) < 0
        for one, other in combinations(pieces, 2)
        if one[0][0] == other[0][0]
    )


def test_a_chain_stands_in_one_row():
    drawn = layout(net({"a": ["b"], "b": ["c"], "c": []}))

    assert places(drawn) == {"a": (0, 0.0), "b": (1, 0.0), "c": (2, 0.0)}
    assert (drawn.width, drawn.height) == (3, 1.0)


def test_a_diamond_lies_around_its_ends_and_a_long_arc_passes_between():
    drawn = layout(net({"a": ["b", "c", "d"], "b": ["d"], "c": ["d"], "d": []}))
    at = places(drawn)

    assert [at[name][0] for name in "abcd"] == [0, 1, 1, 2]
    assert at["a"][1] == at["d"][1] == 1.0
    assert sorted(at[name][1] for name in "bc") != [1.0, 1.0]
    [long] = [edge for edge in drawn.edges if (edge.source, edge.target) == ("a", "d")]
    assert [x for x, _ in long.points] == [1]
    assert crossings(drawn) == 0


def test_an_arc_that_leads_back_is_marked_and_moves_nothing():
    drawn = layout(net({"a": ["b"], "b": ["a", "c", "b"], "c": []}))

    assert {(e.source, e.target) for e in drawn.edges if e.back} == {("b", "a"), ("b", "b")}
    assert [x for x, _ in places(drawn).values()] == [0, 1, 2]


def test_sweeps_undo_crossings():
    twisted = {"s": ["a", "b", "c"], "a": ["z"], "b": ["y"], "c": ["x"], "x": [], "y": [], "z": []}

    assert crossings(layout(net(twisted))) == 0


names = st.integers(0, 11)


@generated(100)
@given(st.dictionaries(names, st.lists(names, max_size=4), min_size=1, max_size=12))
def test_every_net_is_drawn_in_layers_without_steps_on_each_other(arcs: dict[int, list[int]]):
    known = {str(one): [str(two) for two in targets] for one, targets in arcs.items()}
    drawn = layout(net(known))
    at = places(drawn)

    assert len(set(at.values())) == len(at)
    for one, other in combinations(at.values(), 2):
        assert one[0] != other[0] or abs(one[1] - other[1]) >= 0.98  # rounded to hundredths
    for edge in drawn.edges:
        if edge.target in at and not edge.back:
            assert at[edge.source][0] < at[edge.target][0]
            assert len(edge.points) == at[edge.target][0] - at[edge.source][0] - 1
    assert layout(net(known)) == drawn


def test_two_thousand_steps_are_laid_out_in_a_moment():
    wide = {
        str(number): [str(one) for one in (number + 1, number + 7, number + 40) if one < 2000]
        for number in range(2000)
    }
    begun = time.process_time()
    drawn = layout(net(wide))
    took = time.process_time() - begun

    assert len(drawn.nodes) == 2000
    assert took < 5, took
