"""What counts as a difference: everything that is expected, and nothing else."""

import pytest

from noetl.trials.verdict import NOTHING, Difference, unlike


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2, "d": 3}]}}),
        (1, 1.0),
        (None, None),
        ({}, {"a": 1}),
    ],
)
def test_what_is_not_expected_may_be_anything(expected, found):
    assert list(unlike(expected, found, "result")) == []


@pytest.mark.parametrize(
    ("expected", "found", "where"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, Difference("result.a.b", 1, 2)),
        ({"a": 1}, {}, Difference("result.a", 1, NOTHING)),
        ([1, 2], [1, 2, 3], Difference("result", [1, 2], [1, 2, 3])),
        ([{"a": 1}], [{"a": 2}], Difference("result[0].a", 1, 2)),
        (True, 1, Difference("result", True, 1)),
        ("1", 1, Difference("result", "1", 1)),
        ({"a": 1}, None, Difference("result", {"a": 1}, None)),
    ],
)
def test_a_difference_is_told_by_its_place(expected, found, where):
    assert list(unlike(expected, found, "result")) == [where]
