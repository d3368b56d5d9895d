"""The five source documents, example by example: each compiles, or is refused for its reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from noetl.dsl import Compiled, compile_text
from noetl.tools.registry import tools
from tests.documents.verdicts import HERE, Finding, Verdict, all_verdicts, parse

VERDICTS = all_verdicts()
VALID = [verdict for verdict in VERDICTS if verdict.valid]
REFUSED = [verdict for verdict in VERDICTS if not verdict.valid]
TOOLS = tools()
EXAMPLES_OF_DOCUMENT = {"000": 46, "001": 28, "002": 54, "003": 33, "004": 38}


def name_of(verdict: Verdict) -> str:
    return verdict.path.stem


def compiled(verdict: Verdict) -> Compiled:
    return compile_text(verdict.text, tools=TOOLS)


def findings(verdict: Verdict, severity: str) -> list[Finding]:
    return sorted(
        Finding(problem.code, problem.line, problem.column)
        for problem in compiled(verdict).problems
        if problem.severity == severity
    )


@pytest.mark.parametrize("verdict", VALID, ids=name_of)
def test_a_valid_example_compiles_to_a_net(verdict: Verdict) -> None:
    found = compiled(verdict)

    assert [str(problem) for problem in found.problems if problem.severity == "error"] == []
    assert found.net is not None


@pytest.mark.parametrize("verdict", REFUSED, ids=name_of)
def test_a_refused_example_is_refused_for_its_reason_at_its_place(verdict: Verdict) -> None:
    assert findings(verdict, "error") == sorted(verdict.problems)
    assert compiled(verdict).net is None


@pytest.mark.parametrize("verdict", VERDICTS, ids=name_of)
def test_an_example_gives_the_warnings_it_names_and_no_others(verdict: Verdict) -> None:
    assert findings(verdict, "warning") == sorted(verdict.warnings)


def test_no_example_of_a_document_got_lost() -> None:
    assert Counter(verdict.document for verdict in VERDICTS) == EXAMPLES_OF_DOCUMENT


def test_the_readme_lists_every_example_with_its_verdict() -> None:
    listed = [
        line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| `0")
    ]

    assert listed == [readme_row(verdict) for verdict in VERDICTS]


def readme_row(verdict: Verdict) -> str:
    section, _, shows = verdict.title.partition(": ")
    word = "valid" if verdict.valid else "refused"
    return f"| `{verdict.path.name}` | {section} | {shows} | {word} | {verdict.note} |"


@pytest.mark.parametrize(
    "header",
    [
        "apiVersion: noetl.io/v2",
        "# 003 §12: no verdict",
        "# 003 §12: neither\n# verdict: perhaps",
        "# 003 §12: valid with a problem\n# verdict: valid\n# problem: unknown-step 1:1",
        "# 003 §12: refused without a reason\n# verdict: refused",
        "# 003 §12: no place\n# verdict: refused\n# problem: unknown-step",
    ],
)
def test_a_header_that_says_nothing_clear_is_an_error(header: str) -> None:
    with pytest.raises(ValueError, match=r"example\.yaml"):
        parse(Path("example.yaml"), header)
