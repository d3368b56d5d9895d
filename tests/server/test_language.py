"""Help while a playbook is written: completion, hover and problems, over HTTP and for editors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl import configured
from noetl.dsl import nodes
from noetl.dsl.assist import about, offers, place_of
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.rewrite.fmt import format_text
from tests.examples.system import EXAMPLES
from tests.stopwatch import PATIENCE

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shop, path: shop/orders}
workload: {total: 17, rate: 3}
workflow:
  - step: start
    tool:
      kind: http
      me
    next:
      arcs:
        - step: ch
          when: "{{ ctx.total | le"
  - step: check
    tool: {kind: python, co
    next: {arcs: [{step: st
    spec:
      on
"""
SCHEMA = configured.schema()


def at(needle: str, text: str = TEXT) -> tuple[int, int]:
    """The place behind a piece of the text."""
    end = text.index(needle) + len(needle)
    return text.count("\n", 0, end) + 1, end - text.rfind("\n", 0, end)


@pytest.mark.parametrize(
    ("needle", "wanted", "kind"),
    [
        ("      me", "method", "key"),
        ("kind: ht", "http", "value"),
        ("python, co", "code", "key"),
        ("step: ch", "check", "step"),
        ("{step: st", "start", "step"),
        ("| le", "length", "filter"),
        ("{{ ctx.", "total", "name"),
        ("      on", "on_error", "key"),
    ],
)
def test_what_fits_is_offered(needle, wanted, kind):
    line, column = at(needle)

    found = {one.text: one for one in offers(TEXT, line, column, SCHEMA)}

    assert found[wanted].kind == kind, list(found)


@pytest.mark.parametrize("before", ["{{ 1 | ", "{{ 1 is ", "{{ "])
def test_every_filter_test_and_function_is_explained(before):
    text = f'a: "{before}'

    found = [one for one in offers(text, 1, len(text) + 1, SCHEMA) if one.kind != "step"]

    assert len(found) > 3
    assert [one.text for one in found if len(one.about) < 10] == []


def test_keys_that_are_there_are_not_offered_again():
    text = TEXT.replace("      me\n", "      url: http://x\n      \n")
    line, column = at("http://x\n      ", text)

    found = [one.text for one in offers(text, line, column, SCHEMA)]

    assert "method" in found
    assert not {"url", "kind"} & set(found)


@pytest.mark.parametrize(
    ("needle", "said"),
    [
        ("kind: htt", "Sends one HTTP request"),
        ("      kin", "The tool to run"),
        ("          whe", "guard"),
    ],
)
def test_what_stands_there_is_explained(needle, said):
    told = about(TEXT, *at(needle), SCHEMA)

    assert told is not None
    assert said in told.text


def test_every_key_of_every_example_is_offered_where_it_stands():
    """The schema is walked the right way wherever examples write a plain key in a block."""
    checked = missed = 0
    for path in sorted(EXAMPLES.glob("*.yaml")):
        if ".test." in path.name:
            continue
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            key, colon, _ = line.strip().removeprefix("- ").partition(":")
            if line.lstrip().startswith("#") or not colon or key not in ("step", "tool", "next"):
                continue
            column = line.index(key) + 2
            found = [one.text for one in offers("\n".join(lines), number, column, SCHEMA)]
            checked += 1
            missed += key not in found
    assert checked > 200
    assert missed <= checked * 0.02, (missed, checked)


def keys_of(node: nodes.Node | None, path: tuple[str, ...] = ()):
    """Every key below: the mapping that has it, the key, and the path of the mapping."""
    if isinstance(node, nodes.Mapping):
        for key, value in node.entries.items():
            yield node, key, path
            yield from keys_of(value, (*path, key))
    for item in nodes.items(node):
        yield from keys_of(item, (*path, "[]"))


def test_every_key_of_every_example_has_the_path_and_neighbours_that_the_reader_finds():
    checked = 0
    for file in sorted(EXAMPLES.glob("*.yaml")):
        text = file.read_text()
        for mapping, key, path in keys_of(read(text, Report())):
            line, column = mapping.keys[key].line, mapping.keys[key].column
            found = place_of(text, line, column + 1)
            assert found.path == path, (file.name, line, column)
            if "{" not in text.splitlines()[line - 1][:column]:
                assert found.siblings.keys() - {key} == mapping.keys.keys() - {key}
            checked += 1
    assert checked > 2000


def test_an_entry_in_braces_is_offered_the_keys_of_an_entry():
    text = TEXT.replace("  - step: check\n", "  - {step: check, de\n")

    found = [one.text for one in offers(text, *at("check, de", text), SCHEMA)]

    assert "desc" in found


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.integers(1, 20), st.integers(1, 80))
def test_no_text_breaks_it(text, line, column):
    offers(text, line, column, SCHEMA)
    about(text, line, column, SCHEMA)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(TEXT)))
def test_no_beginning_of_a_playbook_breaks_it(length):
    text = TEXT[:length]
    line, column = text.count("\n") + 1, length - text.rfind("\n")

    offers(text, line, column, SCHEMA)
    about(text, line, column, SCHEMA)


# --- Over HTTP ------------------------------------------------------------------------------------


def test_the_route_completes_explains_checks_and_evaluates(dev):
    def ask(**body):
        return dev.post("/api/language", body)

    line, column = at("kind: ht")
    offered = ask(content=TEXT, line=line, column=column)["completions"]
    assert offered[0]["text"] == "http"
    assert offered[0]["about"].startswith("Sends one HTTP request")
    assert ask(content=TEXT, line=line, column=column, want="hover")["hover"]["word"] == "http"
    problems = ask(content="kind: Playbook\n", want="problems")["problems"]
    assert any(problem["severity"] == "error" for problem in problems)
    execution_id = dev.start(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: v, path: tests/value}\n"
        "workload: {total: 4}\nworkflow: [{step: start, tool: {kind: noop, result: 3}}]\n"
    )
    dev.ended(execution_id)
    value = ask(want="value", expression="{{ start + workload.total }}", execution_id=execution_id)
    assert value["value"] == 7
    assert dev.ask("POST", "/api/language", {"want": "value"}).status == 400
    assert dev.ask("POST", "/api/language", {"want": "everything"}).status == 400


# --- For editors ----------------------------------------------------------------------------------


class Editor:
    """The other side of a language server."""

    def __init__(self, tmp_path) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "noetl.cli", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        self._number = 0

    def tell(self, method: str, **params) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def ask(self, method: str, **params):
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.send(json.dumps(request).encode())
        answer = self.hear()
        assert answer["id"] == self._number, answer
        return answer.get("result", answer.get("error"))

    def send(self, body: bytes) -> None:
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._server.stdin.flush()

    def hear(self) -> dict:
        length = 0
        while (line := self._server.stdout.readline()).strip():
            length = int(line.partition(b":")[2])
        return json.loads(self._server.stdout.read(length))

    def end(self) -> int:
        self._server.stdin.close()
        code = self._server.wait(PATIENCE)
        self._server.stdout.close()
        return code


def test_an_editor_gets_problems_completion_hover_and_formatting(tmp_path):
    editor = Editor(tmp_path)
    uri = {"uri": "file:///orders.yaml"}

    assert editor.ask("initialize", capabilities={})["capabilities"]["hoverProvider"] is True
    editor.tell("initialized")
    editor.tell("textDocument/didOpen", textDocument={**uri, "text": TEXT})
    assert editor.hear()["params"]["diagnostics"]
    line, column = at("kind: ht")
    position = {"line": line - 1, "character": column - 1}
    offered = editor.ask("textDocument/completion", textDocument=uri, position=position)
    assert offered[0]["label"] == "http"
    hover = editor.ask("textDocument/hover", textDocument=uri, position=position)
    assert "HTTP request" in hover["contents"]["value"]
    fine = (
        "apiVersion: noetl.io/v2\nkind:   Playbook\nmetadata: {name: v, path: tests/v}\n"
        "workflow: [{step: start, tool: {kind: noop}}]\n"
    )
    editor.tell("textDocument/didChange", textDocument=uri, contentChanges=[{"text": fine}])
    assert editor.hear()["params"]["diagnostics"] == []
    [edit] = editor.ask("textDocument/formatting", textDocument=uri, options={})
    assert "kind: Playbook\n" in edit["newText"]
    assert editor.ask("textDocument/unknown")["code"] == -32601
    assert editor.ask("textDocument/hover", textDocument={"uri": "x"})["code"] == -32600
    assert editor.ask("shutdown") is None
    editor.tell("exit")
    assert editor.end() == 0


@pytest.fixture
def editor(tmp_path):
    """An editor with files in a folder: `diagnosed(NAME, TEXT)` opens one."""
    editor = Editor(tmp_path)
    editor.ask("initialize", capabilities={})
    editor.tell("initialized")
    yield editor
    editor.end()


def diagnosed(editor: Editor, file: Path, text: str) -> list[str]:
    """The codes of the problems of a file that is opened."""
    editor.tell("textDocument/didOpen", textDocument={"uri": file.as_uri(), "text": text})
    return [one["code"] for one in editor.hear()["params"]["diagnostics"]]


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  web: { image:   nginx }\n",
        "apiVersion: v1\nkind:   ConfigMap\nmetadata: {name: Playbook}\n",
        "- hosts: all\n  kind:   Playbook\n",
    ],
)
def test_yaml_that_is_none_of_ours_is_left_alone(editor, tmp_path, text):
    file = tmp_path / "compose.yaml"
    document = {"uri": file.as_uri()}
    start = {"line": 0, "character": 0}

    assert diagnosed(editor, file, text) == []
    assert editor.ask("textDocument/formatting", textDocument=document, options={}) == []
    assert editor.ask("textDocument/completion", textDocument=document, position=start) == []


def test_an_empty_text_may_become_a_playbook(editor, tmp_path):
    file = tmp_path / "new.yaml"

    def offered(text: str) -> set[str]:
        assert diagnosed(editor, file, text) == []
        place = {"line": 0, "character": len(text)}
        asked = {"textDocument": {"uri": file.as_uri()}, "position": place}
        return {one["label"] for one in editor.ask("textDocument/completion", **asked)}

    assert {"apiVersion", "kind"} <= offered("")
    assert offered("apiVersion: ") == {"noetl.io/v2"}
    assert diagnosed(editor, file, "kind: Playbook\nworkflow: []\n")


def test_an_editor_shows_the_problems_that_validate_reports(editor, tmp_path):
    head = "apiVersion: noetl.io/v2\nkind: {}\nmetadata: {{name: x, path: shop/{}}}\n"
    child = head.format("Playbook", "child") + (
        "executor: {spec: {inputs: {n: {type: integer}}}}\n"
        "workflow: [{step: start, tool: {kind: noop}}]\n"
    )
    parent = head.format("Playbook", "parent") + (
        "workflow: [{step: start, tool: {kind: playbook, path: shop/child, args: {n: x}}}]\n"
    )
    schedule = head.format("Schedule", "nightly") + "spec: {cronn: '* * * * *'}\n"
    tests = "playbook: child.yaml\ntests: [{name: it runs, expect: {status: COMPLETED}}]\n"
    (tmp_path / "child.yaml").write_text(child)

    assert diagnosed(editor, tmp_path / "parent.yaml", parent) == ["bad-call"]
    assert "unknown-key" in diagnosed(editor, tmp_path / "nightly.yaml", schedule)
    assert diagnosed(editor, tmp_path / "child.test.yaml", tests) == []
    wrong = tests.replace("expect", "expct")
    assert "unknown-key" in diagnosed(editor, tmp_path / "child.test.yaml", wrong)


def test_an_editor_goes_to_the_step_that_is_named(editor, tmp_path):
    file = tmp_path / "orders.yaml"
    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: v, path: tests/v}\n"
        "workflow:\n"
        "  - step: start\n"
        "    tool: {kind: noop}\n"
        "    next: {arcs: [{step: last}]}\n"
        "  - step: last\n"
        '    tool: {kind: noop, result: "{{ start }}"}\n'
    )
    assert diagnosed(editor, file, text) == []

    def place_of(word: str) -> dict | None:
        line, column = at(word, text)
        place = {"line": line - 1, "character": column - 1}
        asked = {"textDocument": {"uri": file.as_uri()}, "position": place}
        found = editor.ask("textDocument/definition", **asked)
        return found and found["range"]["start"]

    assert place_of("{step: la") == {"line": 7, "character": 10}
    assert place_of("{{ sta") == {"line": 4, "character": 10}
    assert place_of("kind: no") is None


def test_a_message_out_of_turn_is_refused_with_its_code(tmp_path):
    editor = Editor(tmp_path)

    assert editor.ask("textDocument/hover")["code"] == -32002
    editor.ask("initialize", capabilities={})
    editor.send(b"{{{")
    assert editor.hear()["error"]["code"] == -32700
    editor.ask("shutdown")
    assert editor.ask("textDocument/hover")["code"] == -32600
    editor.tell("exit")
    assert editor.end() == 0


def test_problems_come_with_the_graph_of_the_text(dev):
    text = TEXT.split("workflow:")[0] + (
        "workflow:\n  - {step: start, tool: {kind: noop}, next: end}\n"
        "  - {step: end, tool: {kind: noop}}\n"
    )

    told = dev.post("/api/language", {"content": text, "want": "problems"})
    broken = dev.post("/api/language", {"content": TEXT, "want": "problems"})

    assert told["problems"] == []
    assert [node["id"] for node in told["layout"]["nodes"]] == ["start", "end"]
    assert broken["problems"]
    assert broken["layout"] is None


def test_a_text_is_formatted_and_migrated(dev):
    old = (
        "apiVersion: noetl.io/v1\nkind: Playbook\nmetadata: {path: a/b, name: b}\n"
        "workflow:\n  - {step: start, tool: {kind: noop}, next: [{step: end}]}\n"
        "  - {step: end, tool: {kind: noop}}\n"
    )

    formatted = dev.post("/api/language", {"content": old, "want": "format"})
    migrated = dev.post("/api/language", {"content": old, "want": "migration"})
    refused = dev.ask("POST", "/api/language", {"content": "a: [", "want": "format"})

    assert formatted["text"] == format_text(old)
    expected = configured.migrator()(old)
    assert migrated["text"] == expected.text
    changes = [one["message"] for one in migrated["remarks"] if one["changed"]]
    assert changes == [one.message for one in expected.changes]
    assert changes
    assert refused.status == 422
