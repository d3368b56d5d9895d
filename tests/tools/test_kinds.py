"""No kind is forgotten: each is documented, shown by an example, held to the contract, and fails
in every way it says it can."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from noetl.dsl import compile_text
from noetl.dsl.walk import all_tasks, bodies
from noetl.tools import sqlalchemy
from noetl.tools.base import Tool
from noetl.tools.registry import BUILT_IN, tools
from noetl.tools.testing import ToolContract

# Imported for the contracts that they hold kinds to.
from tests.tools import test_contract, test_contract_data, test_contract_system

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "tools"
EXAMPLES = ROOT / "examples"
SUITES = (test_contract, test_contract_data, test_contract_system)
OTHER_NAMES = {tool.kind for tool in sqlalchemy.TOOLS[1:]}
"""Kinds whose page refers to that of kind sql for its fields, result and errors."""
CUT_OFF = {"unknown-step", "unknown-task", "unknown-workbook-task", "no-entry-step"}
"""What an example on a page lacks only because it is cut out of a playbook."""

KINDS = [tools()[kind] for kind in BUILT_IN]
every_kind = pytest.mark.parametrize("tool", KINDS, ids=lambda tool: tool.kind)


def page_of(tool: Tool) -> str:
    return (DOCS / f"{tool.kind}.md").read_text()


def contracts() -> Iterator[type[ToolContract]]:
    for suite in SUITES:
        for case in vars(suite).values():
            if isinstance(case, type) and issubclass(case, ToolContract) and "tool" in vars(case):
                yield case


@cache
def kinds_of(path: Path) -> set[str]:
    """The kinds that an example uses."""
    net = compile_text(path.read_text(), tools=tools()).unwrap()
    return {task.kind for body in bodies(net) for task in all_tasks(body)}


@every_kind
def test_a_kind_has_a_page_whose_example_can_be_pasted(tool):
    blocks = re.findall(r"```yaml\n(.*?)```", page_of(tool), re.DOTALL)
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: pasted, path: pasted}\n"
    texts = [f"{head}workflow:\n{re.sub('^', '  ', block, flags=re.MULTILINE)}" for block in blocks]

    assert texts
    for text in texts:
        problems = compile_text(text, tools=tools()).problems
        errors = [problem for problem in problems if problem.severity == "error"]
        assert [str(problem) for problem in errors if problem.code not in CUT_OFF] == []


@every_kind
def test_the_example_that_the_command_shows_is_the_one_on_the_page(tool):
    assert tool.example.startswith("- step: ")
    assert f"```yaml\n{tool.example}" in page_of(tool)


@every_kind
def test_a_kind_names_the_extra_that_its_page_names(tool):
    named = re.findall(r"pip install ['\"]noetl\[(\w+)\]", page_of(tool))

    assert not tool.extra or tool.extra in named or tool in sqlalchemy.TOOLS


@every_kind
def test_a_kind_is_shown_by_an_example_that_tests_run(tool):
    playbooks = set(EXAMPLES.glob("*.yaml")) - set(EXAMPLES.glob("*.test.yaml"))
    using = [path for path in playbooks if tool.kind in kinds_of(path)]
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "examples").glob("test_*.py"))

    assert [path.name for path in using if f'"{path.stem}"' in tests]


@every_kind
def test_a_page_leads_to_a_whole_playbook_of_its_kind(tool):
    linked = re.findall(r"\(\.\./\.\./examples/(\w+\.yaml)\)", page_of(tool))

    assert [name for name in linked if tool.kind in kinds_of(EXAMPLES / name)]


@every_kind
def test_a_kind_is_held_to_the_contract(tool):
    assert [case.tool.kind for case in contracts()].count(tool.kind) == 1


@every_kind
def test_a_page_names_exactly_the_errors_that_the_kind_declares(tool):
    if tool.kind in OTHER_NAMES:
        assert re.search(r"\[sql\]\(sql\.md\), whose fields, result and errors", page_of(tool))
        assert tool.errors == sqlalchemy.TOOLS[0].errors
        return
    table = page_of(tool).split("\n## Errors\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)

    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(tool.errors)


@pytest.mark.parametrize("case", list(contracts()), ids=lambda case: case.tool.kind)
def test_a_test_that_is_said_to_show_an_error_asks_for_it(case):
    for kind, test in case.shown_by.items():
        assert test.__name__.startswith("test_")
        assert f'"{kind}"' in inspect.getsource(test), test.__name__


def test_the_import_contract_keeps_every_kind_apart_from_every_other():
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = [
        one
        for one in written["tool"]["importlinter"]["contracts"]
        if one["name"] == "Tool kinds do not know each other"
    ]

    assert set(contract["modules"]) == {f"noetl.tools.{module}" for module in BUILT_IN.values()}
    assert "ignore_imports" not in contract
