"""How the writes of many iterations become one."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.engine.loops import ReducerConflict, reduced

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
    ("reducer", "before", "patches", "expected"),
    [
        ("append", [0], PATCHES, [0, 1, 5, 3]),
        ("extend", [0], {1: {"k": [3]}, 0: {"k": [1, 2]}}, [0, 1, 2, 3]),
        ("sum", 100, PATCHES, 109),
        ("min", 0, PATCHES, 0),
        ("max", 4, PATCHES, 5),
        ("merge", {"a": 0, "c": 0}, {0: {"k": {"a": 1}}}, {"a": 1, "c": 0}),
        ("count", 10, PATCHES, 13),
        ("last", 7, PATCHES, 3),
        ("first", 7, PATCHES, 7),
    ],
)
def test_each_reducer_goes_on_from_what_ctx_has(
    reducer: Any, before: Any, patches: dict[int, Any], expected: Any
) -> None:
    kept = {"k": before}

    assert reduced({"k": reducer}, patches, kept) == {"k": expected}
    assert (
        reduced({"d.k": reducer}, {n: {"d.k": p["k"]} for n, p in patches.items()}, {"d": kept})[
            "d.k"
        ]
        == expected
    )
    assert kept == {"k": before}


@pytest.mark.parametrize(
    ("reducer", "value"), [("append", 1), ("extend", [1]), ("sum", 1), ("merge", {}), ("count", 1)]
)
def test_a_reducer_that_cannot_add_to_what_ctx_has_says_so(reducer: Any, value: Any) -> None:
    with pytest.raises(ReducerConflict, match=r"before the loop it was str\. Give the loop"):
        reduced({"k": reducer}, {0: {"k": value}}, {"k": "text"})


def test_a_key_without_a_reducer_replaces_what_ctx_has() -> None:
    assert reduced({}, {0: {"k": 1}}, {"k": "text"}) == {"k": 1}


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


def test_lists_that_iterations_wrote_are_to_be_put_together() -> None:
    with pytest.raises(ReducerConflict, match=r"`loop.spec.policy.reduce: {k: extend}`"):
        reduced({}, {0: {"k": [1]}, 1: {"k": [2]}})


def test_a_key_and_a_part_of_it_are_a_conflict_too_unless_one_iteration_wrote_both() -> None:
    with pytest.raises(
        ReducerConflict, match=r"iteration 4 wrote ctx\.k and iteration 1 .*ctx\.k\.x"
    ):
        reduced({}, {4: {"k": {}}, 1: {"k.x": 2}})
    assert reduced({}, {1: {"k": {}, "k.x": 2}}) == {"k": {}, "k.x": 2}
