"""Every mistake the language knows, one file each, found at its exact place and nothing else.

The head of a file in `bad/` says what must be reported: `# problem: <code> <line>:<column>`, and
with `# says:` a part of the messages that people rely on: the remedy, or a did-you-mean.
"""

from collections import Counter
from pathlib import Path

import pytest

from noetl.control.zones import SystemZones
from noetl.dsl import Compiled, compile_text
from noetl.dsl.codes import CODES
from noetl.dsl.triggers import compile_document
from noetl.model.problems import Problem
from noetl.tools.registry import tools

HERE = Path(__file__).parent
FILES = sorted((HERE / "bad").glob("*.yaml"))
FILES_MIN = 60
TOOLS = tools()
DOCS = (HERE.parents[1] / "docs" / "problems.md").read_text()
NOT_SHOWN = {"yaml-too-large"}
"""An example of these would be as large as the problem."""
OF_TRIGGERS = {"bad-cron", "unknown-timezone", "time-in-gap", "playbook-is-a-file"}
"""No playbook causes these."""
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: example}\n"


def noted(text: str, word: str) -> list[str]:
    """What the comment lines at the head of the file say under this word."""
    prefix = f"# {word}: "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def found(problems: tuple[Problem, ...]) -> Counter[str]:
    return Counter(f"{problem.code} {problem.line}:{problem.column}" for problem in problems)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_mistake_is_reported_at_its_place_with_its_remedy_and_nothing_else_is(path):
    text = path.read_text()
    compiled = compile_text(text, tools=TOOLS)

    assert noted(text, "problem"), "a bad file says what is wrong with it"
    shown = "\n".join(map(str, compiled.problems))
    assert found(compiled.problems) == Counter(noted(text, "problem")), shown
    messages = "\n".join(problem.message for problem in compiled.problems)
    for part in noted(text, "says"):
        assert part in messages
    # An error leaves no net, a warning leaves one.
    has_errors = any(problem.severity == "error" for problem in compiled.problems)
    assert (compiled.net is None) == has_errors
    assert (compiled.digest == "") == has_errors


def test_a_problem_names_the_path_of_what_is_wrong():
    text = (HERE / "bad" / "unknown_key_in_arc.yaml").read_text()
    [problem] = compile_text(text, tools=TOOLS).problems

    assert problem.path == "workflow[0].next.arcs[0].whn"


def test_every_code_has_a_bad_file_or_a_reading_test():
    covered = {
        problem.split()[0] for path in FILES for problem in noted(path.read_text(), "problem")
    }
    read_tests = (HERE / "test_read.py").read_text()
    covered |= {code for code in CODES if f'"{code}"' in read_tests}
    covered |= {
        code for code in OF_TRIGGERS if f' {code}"' in (HERE / "test_triggers.py").read_text()
    }

    assert set(CODES) - covered == set()
    assert covered - set(CODES) == set()


def documented(code: str) -> str:
    """What the documentation says about a code."""
    heading = f"### `{code}`: {CODES[code]}\n"
    assert DOCS.count(heading) == 1
    return DOCS.split(heading)[1].split("\n##")[0]


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_documented_with_its_severity_meaning_and_remedy(code):
    meaning, _, rest = documented(code).strip().partition("\n\n")

    assert meaning.endswith(".")
    assert not meaning.startswith(("```", "**"))
    assert "**Remedy.**" in rest


@pytest.mark.parametrize("code", sorted(set(CODES) - NOT_SHOWN))
def test_the_documented_example_causes_its_problem(code):
    example = documented(code).split("```yaml\n")[1].split("```")[0]
    if example.startswith("- step:") and code != "not-a-playbook":
        example = "workflow:\n" + example
    if not example.startswith(("apiVersion:", "- ")):
        example = HEAD + example

    assert code in {problem.code for problem in anything(example).problems}


def anything(text: str) -> Compiled:
    return compile_document(text, tools=TOOLS, zones=SystemZones())


def test_no_code_is_documented_that_does_not_exist():
    headings = [line for line in DOCS.splitlines() if line.startswith("### ")]

    assert len(headings) == len(CODES)


def test_there_are_many_bad_files():
    assert len(FILES) >= FILES_MIN
