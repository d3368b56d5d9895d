"""How the writes of many iterations become one."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.engine.reducing import ReducerConflict, reduced

PATCHES = {2: {"k": 3}, 0: {"k": 1}, 1: {"k": 5}}


@pytest.mark.parametrize(
    ("reducer", "patches", "expected"),
    [
        ("append", PATCHES, [1, 5, 3]),
        ("extend", {1: {"k": [3]}, 0: {"k": [1, 2]}}, [1, 2, 3]),
        ("sum", PATCHES, 9),
        ("min", PATCHES, 1),
        ("max", PATCHES, 5),
        ("merge", {1: {"k": {"a": 2}}, 0: {"k": {"a": 1, "b": 1}}}, {"a": 2, "b": 1}),
        ("count", PATCHES, 3),
        ("last", PATCHES, 3),
        ("first", PATCHES, 1),
    ],
)
def test_each_reducer_folds_in_iteration_order(
    reducer: Any, patches: dict[int, Any], expected: Any
) -> None:
    assert reduced({"k": reducer}, patches) == {"k": expected}


@pytest.mark.parametrize(
    ("reducer", "patches"),
    [
        ("extend", {0: {"k": 1}}),
        ("extend", {0: {"k": "text"}}),
        ("merge", {0: {"k": [1]}}),
        ("sum", {0: {"k": 1}, 1: {"k": "x"}}),
        ("min", {0: {"k": 1}, 1: {"k": "x"}}),
    ],
)
def test_values_that_a_reducer_cannot_combine_are_an_error_that_says_so(
    reducer: Any, patches: dict[int, Any]
) -> None:
    with pytest.raises(ReducerConflict, match=f"cannot be combined by `{reducer}`"):
        reduced({"k": reducer}, patches)


def test_a_key_written_once_needs_no_reducer() -> None:
    assert reduced({}, {3: {"a": 1}, 1: {"b.c": 2}}) == {"a": 1, "b.c": 2}


def test_a_conflict_names_both_iterations_and_the_remedy() -> None:
    with pytest.raises(ReducerConflict, match=r"iterations 1 and 4 both wrote ctx\.k\. Say how"):
        reduced({}, {4: {"k": 1}, 1: {"k": 2}})


def test_a_key_and_a_part_of_it_are_a_conflict_too_unless_one_iteration_wrote_both() -> None:
    with pytest.raises(
        ReducerConflict, match=r"iteration 4 wrote ctx\.k and iteration 1 .*ctx\.k\.x"
    ):
        reduced({}, {4: {"k": {}}, 1: {"k.x": 2}})
    assert reduced({}, {1: {"k": {}, "k.x": 2}}) == {"k": {}, "k.x": 2}
