"""The one way to guess what a misspelt word was meant to be."""

from __future__ import annotations

import pytest

from noetl.model.spelling import did_you_mean


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("stroe", ' Did you mean "store"?'),
        ("STORE", ' Did you mean "store"?'),
        ("fetchorders", ' Did you mean "FetchOrders"?'),
        ("zzz", ""),
        ("", ""),
        ("store", ""),
        ("s" * 10_000, ""),
    ],
)
def test_the_nearest_known_word_is_named(word, hint):
    assert did_you_mean(word, ["fetch", "store", "FetchOrders", "x" * 10_000]) == hint


def test_nothing_known_gives_no_hint():
    assert did_you_mean("store", []) == ""


def test_a_great_many_words_are_not_all_searched():
    assert did_you_mean("w999998", (f"w{i}" for i in range(10**12))) != ""
