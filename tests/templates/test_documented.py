"""docs/templates.md names everything there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from noetl.templates.filters import FILTERS
from noetl.templates.functions import FUNCTIONS, METHODS
from noetl.templates.operators import TESTS

PAGE = (Path(__file__).parents[2] / "docs" / "templates.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def words_in_code(text: str) -> set[str]:
    return {word for code in re.findall(r"`([^`]*)`", text) for word in re.split(r"[\s(),]+", code)}


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Filters", FILTERS),
        ("Tests", TESTS),
        ("Functions and methods", [*FUNCTIONS, *METHODS]),
    ],
)
def test_every_name_of_the_tables_is_documented(title, names):
    assert set(names) <= words_in_code(section(title))


def test_every_filter_in_the_documented_table_exists():
    rows = [
        line.split("|")[1] for line in section("Filters").splitlines() if line.startswith("| `")
    ]
    named = {re.split(r"[\s(]", code)[0] for row in rows for code in re.findall(r"`([^`]*)`", row)}

    assert named <= set(FILTERS)


def test_the_page_is_short_enough_to_be_read():
    assert PAGE.count("\n") <= 200
