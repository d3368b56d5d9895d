"""`docs/security.md` promises what tests show: each of its sentences has a row in `promises.yaml`.

A new sentence fails here until somebody has named the tests that show it, or has said that it
promises nothing; a test that is renamed or removed fails here until its sentences are looked at.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "security.md"
SHOWN: dict[str, list[str]] = yaml.safe_load((HERE / "promises.yaml").read_text())
TESTS = sorted({test for tests in SHOWN.values() for test in tests})


def sentences(page: str) -> list[str]:
    """The page without headings and programs: each sentence, each item, each row of a table."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=\* |\| )", prose):
        text = " ".join(block.split()).removeprefix("* ")
        if text.startswith("|"):
            found += [] if "|---" in text else [text]
        elif text and not text.startswith("#"):
            found += re.split(r"(?<=[.:;])\s+(?=[A-Z`*\[])", text)
    return found


def test_every_sentence_has_a_row_and_every_row_a_sentence() -> None:
    said = sentences(PAGE.read_text())

    assert [one for one in said if not any(one.startswith(key) for key in SHOWN)] == []
    assert [key for key in SHOWN if not any(one.startswith(key) for one in said)] == []


@pytest.mark.parametrize("test", TESTS)
def test_every_test_that_is_named_exists(test: str) -> None:
    file, _, name = test.partition("::")

    assert name in _functions(file)


@cache
def _functions(file: str) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (\w+)", (HERE / file).read_text(), re.MULTILINE))


def test_a_sentence_that_nobody_has_looked_at_is_found() -> None:
    page = PAGE.read_text() + "\n\nNobody can ever read anything. Trailers are ignored.\n"

    unknown = [one for one in sentences(page) if not any(one.startswith(key) for key in SHOWN)]
    assert unknown == ["Nobody can ever read anything."]
