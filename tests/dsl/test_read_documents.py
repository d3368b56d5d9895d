"""Reading YAML: what counts as one document, what its syntax errors say, where things stand."""

import pytest

from noetl.dsl.nodes import Mapping, Node, Scalar, Sequence, paths, plain
from noetl.dsl.report import Report
from noetl.model.problems import Place
from tests.dsl.attempts import attempt, message_of, refusals, value_of

# --- Documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n", "\ufeff"])
def test_an_empty_document_is_no_playbook(text):
    assert refusals(text)[0][0] == "not-a-playbook"
    assert "empty" in message_of(text)


@pytest.mark.parametrize("text", ["hello", "- a\n- b\n", "42", "[]"])
def test_a_document_that_is_no_mapping_is_no_playbook(text):
    assert refusals(text) == [("not-a-playbook", 1, 1)]


def test_a_second_document_is_refused_where_it_starts():
    assert refusals("a: 1\n---\nb: 2\n") == [("yaml-many-documents", 2, 1)]
    assert refusals("---\na: 1\n...\n# x\n---\n") == [("yaml-many-documents", 5, 1)]


@pytest.mark.parametrize("text", ["---\na: 1\n", "a: 1\n...\n", "%YAML 1.2\n---\na: 1\n"])
def test_document_markers_around_one_document_are_fine(text):
    root, problems = attempt(text)

    assert problems == ()
    assert plain(root) == {"a": 1}


@pytest.mark.parametrize(
    "tag",
    ["!secret", "!!python/object:os.system", "!!binary", "!!set", "!!timestamp", "!!omap", "!"],
)
def test_tags_are_refused(tag):
    assert refusals(f"a: {tag} x\n") == [("yaml-tag", 1, 4)]


@pytest.mark.parametrize("text", ["!!int '12'", "!!int x", "!!float 12", "!!map x", "!!seq {}"])
def test_tags_that_contradict_their_value_are_refused(text):
    assert refusals(f"a: {text}\n") == [("yaml-tag", 1, 4)]


def test_tags_that_say_what_is_plain_anyway_are_fine():
    root, problems = attempt("a: !!int 12\nb: !!bool true\nc: !!map {}\nd: !!seq []\n")

    assert problems == ()
    assert plain(root) == {"a": 12, "b": True, "c": {}, "d": []}


def test_a_tag_directive_is_refused_where_it_stands():
    assert refusals("# x\n%TAG ! tag:yaml.org,2002:\n---\na: !int 12\n") == [("yaml-tag", 2, 1)]


@pytest.mark.parametrize(
    ("text", "line", "column", "hint"),
    [
        ("a:\n\tb: 1\n", 2, 1, "spaces, not tabs"),
        ("a:\n  b: 1\n\tc: 2\n", 3, 1, "spaces, not tabs"),
        ("a: b: c\n", 1, 5, "Put the value in quotes: it holds `: `"),
        ("a:\n  b: 1\n c: 2\n", 3, 2, "Check the indentation"),
        ('a: "\\d"\n', 1, 5, "backslash must be doubled"),
        ("a: {% if x %}\n", 1, 5, '"{% … %}"'),
        ("a: @x\n", 1, 4, "Put the text in quotes"),
        ("a: `x`\n", 1, 4, "Put the text in quotes"),
        ('a: "x\n', 1, 4, "Close the quote"),
        ("a: [x\nb: 1\n", 1, 4, "Close the bracket"),
        ("a: *x\n", 1, 4, "no anchor &x"),
        ("%YAML 3.0\n---\na: 1\n", 1, 1, ""),
    ],
)
def test_a_syntax_error_says_where_and_what_to_do(text, line, column, hint):
    assert refusals(text) == [("yaml-syntax", line, column)]
    assert hint in message_of(text)


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\x7f", "\x80", "\ufffe", "\ud800"])
def test_t25_characters_yaml_does_not_allow_are_refused_at_their_place(character):
    assert refusals(f"# 日本é\na: é{character}\n") == [("yaml-syntax", 2, 5)]


def test_t25_escaped_control_characters_are_data_and_lone_surrogates_are_refused():
    assert value_of('"\\0 \\a \\x7f"') == "\0 \a \x7f"
    assert refusals('a: "\\ud800"\n')[0][0] == "yaml-syntax"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_ending_gives_the_same_tree_and_places(end):
    text = end.join(["a: 1", "b:", "  - x", "  - |", "    y", "    z", "c: .nan", ""])
    root, problems = attempt(text)

    assert plain(root) == {"a": 1, "b": ["x", "y\nz\n"], "c": ".nan"}
    assert [(problem.line, problem.column) for problem in problems] == [(7, 4)]


def test_a_byte_order_mark_is_no_part_of_the_text():
    root, problems = attempt("\ufeffa: 1\nb: .nan\n")

    assert root is not None
    assert root.keys["a"] == Place(1, 1)
    assert [(problem.line, problem.column) for problem in problems] == [(2, 4)]


# --- Places ------------------------------------------------------------------------------------


def at(root: Node | None, *steps: str | int) -> Node:
    for step in steps:
        if isinstance(step, int):
            assert isinstance(root, Sequence)
            root = root.items[step]
        else:
            assert isinstance(root, Mapping)
            root = root.entries[step]
    assert root is not None
    return root


def test_places_count_lines_and_columns_from_one():
    root, _ = attempt("a: 1\nb:\n  - x: y\n    z: [p, {q: r}]\n")

    assert at(root).place == Place(1, 1)
    assert at(root, "a").place == Place(1, 4)
    assert at(root, "b").place == Place(3, 3)
    assert at(root, "b", 0).place == Place(3, 5)
    assert at(root, "b", 0, "z", 1, "q").place == Place(4, 16)


def test_columns_count_characters_however_wide():
    root, _ = attempt('日本: {"😀é": x}\n')

    assert at(root, "日本").place == Place(1, 5)
    assert at(root, "日本", "😀é").place == Place(1, 12)


def test_a_block_scalar_stands_where_its_header_stands():
    root, _ = attempt("a: |\n  one\n  two\nb: >-\n\n  three\nc: x\n")

    assert at(root, "a").place == Place(1, 4)
    assert at(root, "b").place == Place(4, 4)
    assert at(root, "c").place == Place(7, 4)


def test_an_aliased_text_stands_at_the_alias_and_an_aliased_tree_where_it_is_written():
    root, _ = attempt("a: &text x\nb: &tree [y]\nc: *text\nd: *tree\n")

    assert at(root, "c").place == Place(3, 4)
    assert at(root, "d").place == at(root, "b").place == Place(2, 4)


def test_an_empty_value_stands_behind_its_key():
    root, _ = attempt("a:\nb: 1\n")

    node = at(root, "a")
    assert isinstance(node, Scalar)
    assert node.value is None
    assert node.place == Place(1, 3)


def test_paths_name_keys_and_values():
    root, _ = attempt("a:\n  - b: {c: 1}\n")
    assert root is not None
    found = paths(root)

    assert found[Place(1, 1)] == ""
    assert found[Place(2, 8)] == "a[0].b"
    assert found[Place(2, 12)] == "a[0].b.c"


def test_the_report_is_in_the_order_of_the_text_and_says_nothing_twice():
    report = Report()
    report.add("unknown-key", "later", Place(2, 1))
    report.add("unknown-key", "earlier", Place(1, 9))
    report.add("unknown-key", "later", Place(2, 1))

    assert [problem.message for problem in report.problems(None)] == ["earlier", "later"]
