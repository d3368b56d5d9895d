"""Ids that are drawn: nobody else has the same."""

from noetl.control.identity import new_id
from noetl.model.ids import EPOCH_MS


def test_thousands_that_are_drawn_in_one_moment_differ():
    for second in range(4):
        drawn = [new_id(1_800_000_000.0 + second) for _ in range(4096)]

        assert len(set(drawn)) == len(drawn)


def test_an_id_says_when_it_was_drawn():
    drawn = int(new_id(1_800_000_000.5))

    assert (drawn >> 22) + EPOCH_MS == 1_800_000_000_500
    assert drawn < 1 << 63
