"""The mark under a problem stands under the problem."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from noetl.cli.validate import excerpt
from noetl.cli.views.paint import plain


def shown(line: str, column: int, width: int = 80) -> list[str]:
    return list(plain(excerpt([line], 1, column, width)))


def test_the_whole_word_at_the_place_is_marked():
    assert shown("next: strat", 7) == ["1 │ next: strat", "  │       ^^^^^"]


def test_tabs_and_wide_characters_keep_the_mark_in_place():
    assert shown("\t日本: x", 6) == ["1 │     日本: x", "  │           ^"]


def test_a_place_behind_the_end_of_the_line_is_marked_there():
    assert shown("next:", 99) == ["1 │ next:", "  │      ^"]


def test_a_line_that_does_not_exist_shows_nothing():
    assert list(excerpt(["a"], 2, 1, 80)) == []
    assert list(excerpt(["a"], 0, 1, 80)) == []


def test_a_long_line_is_cut_around_the_place():
    first, second = shown(f"{'a ' * 100}strat{' b' * 100}", 201)

    assert first.startswith("1 │ ...")
    assert first.endswith("...")
    assert "strat" in first
    assert second.endswith("^^^^^")


@settings(deadline=None)
@given(st.text(st.sampled_from("ab .日\t\x1b\u0301"), max_size=200), st.integers(1, 220))
def test_no_line_is_wider_than_the_terminal(line, column):
    for row in excerpt([line], 1, column, 60):
        assert cell_len(row.lead + "".join(span.text for span in row.spans)) <= 60
        assert "\x1b" not in "".join(span.text for span in row.spans)
