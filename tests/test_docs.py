"""Documentation that can be wrong is tested: examples compile, links lead somewhere."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from noetl.cli.commands import COMMANDS
from noetl.control.zones import SystemZones
from noetl.dsl import compile_text
from noetl.dsl.grammar import Record
from noetl.dsl.triggers import compile_document
from noetl.tools.registry import tools
from tests.dsl.records import all_records

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
    *sorted((ROOT / "bench").glob("*.md")),
    *sorted((ROOT / "deploy").glob("*.md")),
]
LANGUAGE = ROOT / "docs" / "language.md"
LANGUAGE_LINES_MAX = 600
MISTAKES = ROOT / "docs" / "problems.md"
"""Shows what is wrong, so what it shows is not meant to compile."""
TOOLS = tools()

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?:^|`|\$ )noetl ([a-z]+)", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fenced(path: Path, language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(path.read_text()) if found == language]


def prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, made as the usual renderers make them."""
    headings = re.findall(r"^#+ +(.+?)\s*$", prose(path), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {text.replace(" ", "-") for text in kept}


def playbooks() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for number, body in enumerate(fenced(path, "yaml")):
            if path != MISTAKES and body.startswith("apiVersion"):
                yield f"{name_of(path)}:{number}", body


@pytest.mark.parametrize(("place", "text"), [pytest.param(*p, id=p[0]) for p in playbooks()])
def test_a_playbook_in_the_documentation_compiles(place, text):
    compiled = compile_document(text, tools=TOOLS, zones=SystemZones())

    assert [str(problem) for problem in compiled.problems] == [], place


def test_the_readme_and_the_language_page_show_a_playbook():
    shown = {place.partition(":")[0] for place, _ in playbooks()}

    assert {"README.md", "docs/language.md"} <= shown


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_link_between_pages_leads_somewhere(path):
    for link in _LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_command_that_is_shown_exists(path):
    for command in _COMMAND.findall(path.read_text()):
        assert command in COMMANDS, f"noetl {command}"


def options_of(command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from options_of(part)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (word for word in parameter.opts if word.startswith("--"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_all_its_options_are_on_the_page_of_commands(name):
    page = (ROOT / "docs" / "cli.md").read_text()
    command = import_module(f"noetl.cli.{name}").command

    assert re.search(rf"^## .*noetl {name}\b", page, re.MULTILINE)
    missing = [word for word in options_of(command) if not re.search(rf"{word}\b", page)]
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=name_of)
def test_every_page_can_be_found_from_an_index(path):
    index = path.parent / "README.md"
    if path == index:
        index = path.parent.parent / "README.md"

    linked = {link.partition("#")[0] for link in _LINK.findall(index.read_text())}
    wanted = path.relative_to(index.parent).as_posix()
    assert wanted in linked or wanted.removesuffix("README.md") in linked


def test_the_index_of_decisions_has_the_title_of_every_page():
    folder = ROOT / "docs" / "decisions"
    lines = re.findall(r"^\* .*$", (folder / "README.md").read_text(), re.MULTILINE)

    assert lines == [
        f"* [{number}]({page.name}) {title}"
        for page in sorted(folder.glob("0*.md"))
        for number, title in re.findall(r"\A# (\d{4})  (.+)", page.read_text())
    ]
    assert len(lines) == len([*folder.glob("0*.md")])


# --- The language page is complete -------------------------------------------------------------


def test_what_is_not_released_yet_is_listed_twice_by_the_same_areas():
    """What is new, and what is different for those who ran it before. Nothing else grows beside."""
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased = text.split("\n## [Unreleased]\n")[1].split("\n## ")[0]
    lists = re.split(r"^### (.*)\n", unreleased, flags=re.MULTILINE)[1:]
    areas = [re.findall(r"^#### (.*)", entries, re.MULTILINE) for entries in lists[1::2]]

    assert lists[::2] == ["Added", "Changed and fixed"]
    assert areas[0] == areas[1]


def test_the_language_page_stays_readable():
    assert LANGUAGE.read_text().count("\n") <= LANGUAGE_LINES_MAX


def as_playbook(body: str) -> str | None:
    """A piece from the language page, put into the smallest playbook it can stand in."""
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: piece}\n"
    noop = "  - {step: start, tool: {kind: noop}}\n"

    def indented(depth: int) -> str:
        return "".join(" " * depth + line for line in body.splitlines(keepends=True))

    match body.split(":")[0]:
        case "- step":
            return f"{head}workflow:\n{indented(2)}"
        case "- name":
            return f"{head}workflow:\n  - step: start\n    tool:\n{indented(6)}"
        case "tool":
            return f"{head}workflow:\n  - step: start\n{indented(4)}"
        case "loop" | "next" | "retry":
            return f"{head}workflow:\n  - step: start\n    tool: {{kind: noop}}\n{indented(4)}"
        case "workbook" | "keychain" | "executor":
            return f"{head}{body}workflow:\n{noop}"
    return None


PIECES = [body for body in fenced(LANGUAGE, "yaml") if as_playbook(body) is not None]
CUT_OFF = {"unknown-step", "unknown-task", "unknown-workbook-task", "join-impossible"}
"""What a piece lacks only because it is a piece."""


@pytest.mark.parametrize("body", PIECES, ids=lambda body: body.splitlines()[0][:30])
def test_a_piece_on_the_language_page_is_well_formed(body):
    problems = compile_text(as_playbook(body), tools=TOOLS).problems

    errors = [problem for problem in problems if problem.severity == "error"]
    assert [str(problem) for problem in errors if problem.code not in CUT_OFF] == []


def test_the_pieces_are_found():
    assert len(PIECES) >= 15


def keys_of(record: Record) -> set[str]:
    return {key for key, field in record.fields.items() if field.same_as is None}


OF_ONE_KIND_EACH = {"a keychain entry"}
"""Records whose keys the page does not list: which of them count is up to their `kind`."""


def test_every_key_of_the_language_is_on_its_page():
    words = set(re.findall(r"\w+", LANGUAGE.read_text()))
    missing = {
        f"{key} of {record.title}"
        for record in all_records()
        if record.title not in OF_ONE_KIND_EACH
        for key in keys_of(record)
        if key not in words and not record.fields[key].older
    }

    assert missing == set()


def test_every_fast_path_that_is_listed_exists_and_is_tested():
    page = (ROOT / "docs" / "performance.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    for row in rows[1:]:
        name, where, proof = row[0].strip(), row[1], row[-1].strip().strip("`")
        place = ROOT / "src" / "noetl" / re.findall(r"`([\w/]+\.py)`", where)[0]
        assert name.startswith("`") is False or name.strip("`") in place.read_text(), name
        assert (ROOT / proof).is_file(), name
        assert all(cell.strip() for cell in row), name
    assert len(rows) > 3


def test_every_older_form_is_on_the_page_about_migrating():
    words = set(re.findall(r"\w+", (ROOT / "docs" / "migrating.md").read_text()))
    of_records = {
        key for record in all_records() for key, field in record.fields.items() if field.older
    }
    of_kinds = {key for tool in TOOLS.values() for key in (*tool.deprecated, *tool.older_shapes)}

    assert (of_records | of_kinds) - words == set()


MUST = "A task must write "
KIND_PAGES = {page.stem: page.read_text() for page in (ROOT / "docs" / "tools").glob("*.md")}
# The name of a task may stand in the place of `task`.
NEEDY = sorted(kind for kind, text in KIND_PAGES.items() if MUST in text and kind != "workbook")


@pytest.mark.parametrize("kind", NEEDY)
def test_the_page_of_a_kind_says_what_a_task_must_write(kind):
    groups = [" or ".join(f"`{name}`" for name in group) for group in TOOLS[kind].needs]

    assert f"{MUST}{', and '.join(groups)}.\n" in KIND_PAGES[kind]
