"""Formatting: the same playbook, its comments where they belong, in one layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from noetl.dsl import compile_text
from noetl.errors import PlaybookRejected
from noetl.rewrite.fmt import format_text, read_data
from noetl.tools.registry import tools
from tests.effort import generated

HERE = Path(__file__).parent
FILES = sorted([*(HERE.parent / "documents").glob("*.yaml"), *HERE.rglob("*.yaml")])
TOOLS = tools()


def comments_of(text: str) -> list[str]:
    """Every comment of a text, found by asking the scanner what is not a token."""
    found = []
    end = 0
    for token in yaml.scan(text, Loader=yaml.CSafeLoader):
        found += re.findall("#.*", text[end : token.start_mark.index])
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            header = text[token.start_mark.index : token.end_mark.index].split("\n")[0]
            found += re.findall("#.*", header)
        end = token.end_mark.index
    return [comment.rstrip() for comment in found]


def readable(path: Path) -> str:
    text = path.read_text()
    try:
        read_data(text)
    except PlaybookRejected:
        pytest.skip("not YAML we read, on purpose")
    return text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_formatting_a_document_keeps_its_meaning_and_comments_and_is_done_once(path: Path) -> None:
    text = readable(path)
    formatted = format_text(text)

    assert read_data(formatted) == read_data(text)
    assert sorted(comments_of(formatted)) == sorted(comments_of(text))
    assert compile_text(formatted, tools=TOOLS).digest == compile_text(text, tools=TOOLS).digest
    assert format_text(formatted) == formatted


SLOPPY = """\
# Copyright by nobody

workflow:
- next: b   # go on
  # what it is called
  step: a #name
  tool:
  - {kind: http, url: 'it''s here', params: {a_long_name: and_a_value_that_makes_it_much_too_long}}
  - args: {a:   1}
    spec: {timeout: 5}
    # what it is
    kind: python
    name: work
    code: |+ # kept to the last line
        x
          y

    # behind the task

- # about b
  step: b
  tool: &task
    # first of all
    kind: noop
    args:
      # none yet

    spec: {async: true, # one
      cache: false }   # two


- step: c
  tool: *task
  args:
     << : *task
     x: 012
     y: 12:30
     z: no
# the inputs
workload:       # all of them
     a: plain
       text

       more
     b: "over \\
        two lines"
     c: >
         folded
         text

           more


     d: '{{ "quoted" }}'
     e: '{{ x }}'

kind:    Playbook
apiVersion: noetl.io/v2
# the end"""

TIDY = """\
# Copyright by nobody

apiVersion: noetl.io/v2
kind: Playbook

# the inputs
workload:  # all of them
  a: plain
    text

    more
  b: "over \\
    two lines"
  c: >
    folded
    text

      more

  d: '{{ "quoted" }}'
  e: "{{ x }}"

workflow:
  # what it is called
  - step: a  #name
    tool:
      - kind: http
        url: "it's here"
        params: { a_long_name: and_a_value_that_makes_it_much_too_long }
      - name: work
        # what it is
        kind: python
        code: |+  # kept to the last line
          x
            y

        args: { a: 1 }
        spec: { timeout: 5 }
        # behind the task
    next: b  # go on

  # about b
  - step: b
    tool: &task
      # first of all
      kind: noop
      args:
        # none yet

      spec:  # two
        async: true  # one
        cache: false

  - step: c
    args:
      <<: *task
      x: 012
      y: 12:30
      z: no
    tool: *task
# the end
"""


def test_an_untidy_playbook_becomes_tidy() -> None:
    assert format_text(SLOPPY) == TIDY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: no", "a: no\n"),
        ("a: 'x'", 'a: "x"\n'),
        ("a: 'say \"x\"'", "a: 'say \"x\"'\n"),
        ("a: 'back\\slash'", "a: 'back\\slash'\n"),
        ("a: ~", "a: ~\n"),
        ("a:\n  x", "a: x\n"),
        ("a: |\n  no line end", "a: |-\n  no line end\n"),
        ("a: |+\n  x\n\n\nb: 1\n", "a: |+\n  x\n\n\nb: 1\n"),
        ("a: |+\n\nb: 1\n", "a: |+\n\nb: 1\n"),
        ("a: |\n  x\n   \n# c\n", "a: |\n  x\n   \n# c\n"),
        ("a: |\nb: 1\n", "a: |\n\nb: 1\n"),
        ("a: |1\n   x\n", "a: |2\n    x\n"),
        ("a: >-\n\n\n   x\n", "a: >-\n\n\n  x\n"),
        ("a: [ ]", "a: []\n"),
        ("a: {b}", "a: { b: null }\n"),
        ("a: [b: 1]", "a: [{ b: 1 }]\n"),
        ("? a\n: b", "a: b\n"),
        ("a: &x 1\nb: *x\n*x : 2\n", "a: &x 1\n\nb: *x\n\n*x : 2\n"),
        ("a: !!str 12", "a: !!str 12\n"),
        ("%YAML 1.2\n---\na: 1\n...\n", "a: 1\n"),
        ("# above\n--- # beside\na: 1", "# above\na: 1  # beside\n"),
        ("\ufeffkind: 1\r\nname: 2\r\n", "kind: 1\nname: 2\n"),
        ('a: "x\u2028 y"', 'a: "x\\Ly"\n'),
        ("a:\n- 1\n- \n  - 2\n", "a:\n  - 1\n  - - 2\n"),
        ("a: [1, # one\n 2]", "a:\n  - 1  # one\n  - 2\n"),
        ("a: [ # none\n ]", "a: []  # none\n"),
        ("a: # first\n  b # second\n", "# first\na: b  # second\n"),
        (f"? {'k' * 1100}\n: 1", f"? {'k' * 1100}\n: 1\n"),
    ],
)
def test_details_of_yaml_are_kept(text: str, expected: str) -> None:
    assert format_text(text) == expected
    assert format_text(expected) == expected


def test_rules_of_admission_and_named_sugar_are_put_in_order_as_all_others() -> None:
    text = """\
workflow:
  - spec: {policy: {admit: {rules: [{then: {allow: true}, when: "{{ true }}"}]}}}
    step: a
    tool:
      - while: {do: [{kind: noop, name: b}], when: "{{ true }}"}
        name: rounds
"""

    assert (
        format_text(text)
        == """\
workflow:
  - step: a
    spec: { policy: { admit: { rules: [{ when: "{{ true }}", then: { allow: true } }] } } }
    tool:
      - name: rounds
        while: { when: "{{ true }}", do: [{ name: b, kind: noop }] }
"""
    )


def test_an_alias_never_comes_to_stand_before_its_anchor() -> None:
    text = (
        "workflow:\n  - tool: &t\n      kind: noop\n    step: a\n\n  - next: *n\n    step: &n b\n"
    )

    with pytest.raises(PlaybookRejected):
        format_text(text)  # the alias stands first as it is

    text = "workbook: &w\n  a: 1\n\nworkflow: *w\n"
    assert format_text(text) == text


def test_brackets_stay_while_they_fit_and_never_grow_a_line_beyond_its_width() -> None:
    fits = f"a: [{'x' * 94}]\n"
    too_long = f"a: [{'x' * 95}, y]\n"

    assert format_text(fits) == fits
    assert format_text(too_long) == f"a:\n  - {'x' * 95}\n  - y\n"


@pytest.mark.parametrize(
    "text", ["a: [1", "a: 1\na: 2", "", "- a", "a: !x 1", "a: .nan", "a: 1\n---\nb: 2"]
)
def test_what_cannot_be_read_is_rejected(text: str) -> None:
    with pytest.raises(PlaybookRejected) as caught:
        format_text(text)

    assert caught.value.problems


# --- Any document ------------------------------------------------------------------------------

SCALARS = [
    "plain", "no", "012", "12:30", "1", "1.50", "~", "''", '""', "'it''s'", '"a \\"b\\""', "a#b",
    "'{{ x }}'", '"{{ x }}"', "'a \"b\"'", '"a\\tb"', "!!str 1", "http://x/y?a=b", "-1", "'#'",
]  # fmt: skip
FLOW = [
    "{}",
    "[]",
    "[1, 2]",
    "{a: 1, b: [x, y]}",
    '{"a":1}',
    "[ {a: 1} , b ]",
    f"[{'long, ' * 30}]",
]
KEYS = [
    "step", "next", "tool", "case", "spec", "args", "loop", "desc", "name", "kind", "when", "then",
    "else", "rules", "policy", "do", "arcs", "in", "iterator", "workflow", "workload", "metadata",
]  # fmt: skip
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Writer:
    """Writes a random document the way nobody should, each comment naming what it is about."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.count = 0

    def often(self, chance: int = 3) -> bool:
        return bool(self.draw(st.integers(0, chance)) == chance)

    def comment(self, where: str, name: str) -> str:
        self.count += 1
        return f"# {where} {name} ({self.count})"

    def before(self, indent: int, name: str) -> None:
        while self.often():
            self.lines.append(self.draw(st.sampled_from(["", "   "])))
        if self.often():
            self.lines.append(" " * indent + self.comment("before", name))

    def beside(self, name: str) -> str:
        return (
            self.draw(st.sampled_from([" ", "   "])) + self.comment("beside", name)
            if self.often()
            else ""
        )

    def mapping(self, indent: int, depth: int, first: str = "") -> None:
        keys = self.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True))
        for position, key in enumerate(keys):
            start = first if position == 0 and first else ""
            if not start:
                self.before(indent, key)
            self.value(start or " " * indent, f"{key}:", key, indent, depth)

    def listing(self, indent: int, depth: int) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            self.count += 1
            name = f"item{self.count}"
            if depth and self.often(1):
                self.mapping(indent + 2, depth - 1, first=" " * indent + "- ")
            else:
                self.before(indent, name)
                self.lines.append(f"{' ' * indent}- {name}{self.beside(name)}")

    def value(self, start: str, head: str, name: str, indent: int, depth: int) -> None:
        kind = self.draw(st.integers(0, 6 if depth else 3))
        deeper = indent + self.draw(st.integers(2, 4))
        if kind == 0:
            scalar = self.draw(st.sampled_from(SCALARS))
            self.lines.append(f"{start}{head} {scalar}{self.beside(name)}")
        elif kind == 1:
            flow = self.draw(st.sampled_from(FLOW))
            self.lines.append(f"{start}{head}  {flow}{self.beside(name)}")
        elif kind == 2:
            self.block_scalar(start, head, name, deeper)
        elif kind == 3:
            self.lines.append(f"{start}{head}{self.beside(name)}")
        elif kind == 4:
            self.lines.append(f"{start}{head}{self.beside(name)}")
            self.listing(self.draw(st.sampled_from([indent, deeper])), depth - 1)
        else:
            self.lines.append(f"{start}{head}{self.beside(name)}")
            self.mapping(deeper, depth - 1)

    def block_scalar(self, start: str, head: str, name: str, deeper: int) -> None:
        style = self.draw(st.sampled_from(["|", ">", "|-", ">-", "|+", ">+"]))
        self.lines.append(f"{start}{head} {style}{self.beside(name)}")
        content = self.draw(
            st.lists(st.sampled_from(["x", "  y", "", "# not a comment"]), max_size=4)
        )
        self.lines += [
            " " * deeper + "first",
            *(" " * deeper + line if line else "" for line in content),
        ]


@st.composite
def documents(draw: Draw) -> str:
    writer = Writer(draw)
    if writer.often():
        writer.lines += ["# top of the file", ""]
    writer.mapping(0, 4)
    if writer.often():
        writer.lines.append("# bottom of the file")
    return "\n".join(writer.lines) + draw(st.sampled_from(["", "\n", "\n\n"]))


def neighbours(text: str) -> dict[str, bool]:
    """For each comment, whether it stands where it says it does."""
    lines = [line.strip() for line in text.split("\n")]
    found = {}
    for number, line in enumerate(lines):
        match = re.search(r"# (before|beside) (\w+) \(\d+\)$", line)
        if match is None:
            continue
        where, name = match.groups()
        own = line[: match.start()]
        rest = (other for other in lines[number + 1 :] if other and not other.startswith("#"))
        about = next(rest, "") if where == "before" or not own else own
        found[match.group()] = name in re.split(r"[^\w]+", about)[:4]
    return found


@generated(75)
@given(documents())
def test_any_document_keeps_its_meaning_and_every_comment_its_place(text: str) -> None:
    formatted = format_text(text)

    assert read_data(formatted) == read_data(text)
    assert sorted(comments_of(formatted)) == sorted(comments_of(text))
    assert all(neighbours(formatted).values())
    assert format_text(formatted) == formatted
    assert not any(line.startswith("\t") for line in formatted.split("\n"))


@generated(100)
@given(st.text(st.sampled_from(list("ab:- \n#'\"{}[],|>&*!?%\t\\\u2028\x85~1")), max_size=30))
def test_any_text_is_formatted_or_rejected(noise: str) -> None:
    for text in (noise, f"k: {noise}", f"k:\n  - a\n{noise}"):
        try:
            data = read_data(text)
        except PlaybookRejected:
            continue
        formatted = format_text(text)
        assert read_data(formatted) == data
        assert format_text(formatted) == formatted
