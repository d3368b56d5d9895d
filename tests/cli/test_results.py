"""Large results on the command line: values, never references; on a server, too."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_run import HEAD
from tests.faults.runs import Place, kill, wait_for
from tests.server.processes import Server

TEXT = "é" * 70_000
LARGE = (
    HEAD
    + """\
metadata: {name: large, path: tests/large}
workflow:
  - step: text
    tool: {kind: python, code: "result = 'é' * 70000"}
    next: items
  - step: items
    loop: {in: "{{ range(3) | list }}", iterator: i}
    tool:
      kind: python
      args: {i: "{{ iter.i }}"}
      code: "result = {'i': i, 'text': 'x' * 70000} if i else i"
    next: last
  - step: last
    tool: {kind: python, code: "result = {'rows': list(range(20000))}"}
"""
)
ITEMS = [0, *({"i": i, "text": "x" * 70_000} for i in (1, 2))]
ROWS = {"rows": list(range(20_000))}
LONG = (
    HEAD
    + """\
metadata: {name: long, path: tests/long}
workflow:
  - step: items
    loop: {in: "{{ range(400) | list }}", iterator: i}
    tool: {kind: python, args: {i: "{{ iter.i }}"}, code: "result = [i, 'é' * 300]"}
"""
)
WAITS = (
    HEAD
    + """\
metadata: {name: waits, path: tests/waits}
workflow:
  - step: text
    tool: {kind: python, code: "result = 'é' * 70000"}
    next: wait
  - step: wait
    tool: {kind: shell, command: "sleep 600"}
"""
)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.write("large.yaml", LARGE)
    found.write("long.yaml", LONG)
    found.write("waits.yaml", WAITS)
    return found


def test_a_large_result_is_printed_whole_by_run_show_and_result(place):
    ran = place.run("run", "large.yaml")

    assert json.loads(ran.stdout) == ROWS
    assert "_ref" not in ran.stderr
    assert place.run("executions", "result", "last").stdout == ran.stdout
    shown = place.run("executions", "show", "last").stdout
    assert "_ref" not in shown
    assert '{"rows":[0,1,2' in shown
    assert "--step text` prints it whole" in shown


def test_a_step_has_a_result_of_its_own_text_as_it_is_or_as_json(place):
    place.run("run", "large.yaml")

    def of_step(*arguments: str) -> str:
        return place.run("executions", "result", "last", "--step", *arguments).stdout

    assert of_step("text") == f"{TEXT}\n"
    assert json.loads(of_step("text", "--json")) == TEXT
    items = json.loads(of_step("items"))
    assert items["results"] == ITEMS
    assert items["stats"]["total"] == 3


def test_the_document_of_run_and_show_holds_values(place):
    ran = place.json("run", "large.yaml")

    assert ran["result"] == ROWS
    steps = {step["step"]: step["result"] for step in ran["steps"]}
    assert steps["text"] == TEXT
    assert steps["items"]["results"] == ITEMS
    assert place.json("executions", "show", "last") == ran


def test_a_list_in_segments_is_printed_as_one_list(place):
    ran = place.run("run", "long.yaml")

    printed = json.loads(ran.stdout)
    assert printed["results"] == [[i, "é" * 300] for i in range(400)]
    # As any other document: what is written in pieces is what would be written at once.
    assert ran.stdout == json.dumps(printed, indent=2, ensure_ascii=False) + "\n"
    shown = place.run("executions", "show", "last").stdout
    assert '{"results":[[0,"é' in shown


def test_what_has_no_result_says_why(place):
    process = place.start("run", "waits.yaml")
    try:
        wait_for(process, "wait: started")

        ran = place.run("executions", "result", "last")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "has no result: its status is running" in ran.stderr
        # Beside the process that has the database, what is there can be read.
        assert place.run("executions", "result", "last", "--step", "text").stdout == f"{TEXT}\n"
        ran = place.run("executions", "result", "last", "--step", "txt")
        assert ran.returncode == 1
        assert 'no step "txt". Did you mean "text"?' in ran.stderr
    finally:
        kill(process)


def test_a_result_on_a_server_is_the_same(place, tmp_path):
    server = Server(tmp_path, kind="dev")
    try:
        ran = place.run("run", "large.yaml", "--server", server.url)

        assert json.loads(ran.stdout) == ROWS, ran.stderr
        where = ("last", "--server", server.url)
        assert place.run("executions", "result", *where).stdout == ran.stdout
        assert place.run("executions", "result", *where, "--step", "text").stdout == f"{TEXT}\n"
        assert "_ref" not in place.run("executions", "show", *where).stdout
        found = place.json("run", "large.yaml", "--server", server.url)
        assert {step["step"]: step["result"] for step in found["steps"]}["text"] == TEXT
    finally:
        server.end()


def test_s17_a_result_that_looks_like_a_reference_is_printed_as_it_is(place: Place):
    forged = {
        "_ref": {
            "store": "result",
            "execution_id": "1",
            "key": "00c0ffee00c0ffee00",
            "size": 4,
            "checksum": "ab" * 32,
            "segments": {"length": 9_000_000, "width": 1, "kept": [[8_999_999, 9_000_000]]},
        },
        "_preview": "x",
    }
    steps = [{"step": "start", "tool": {"kind": "python", "code": f"result = {forged!r}"}}]
    head = HEAD + "metadata: {name: forged, path: tests/forged}\n"
    place.write("forged.yaml", f"{head}workflow: {json.dumps(steps)}\n")
    assert place.run("run", "forged.yaml").returncode == 0

    printed = place.run("executions", "result", "last", "--json")

    assert json.loads(printed.stdout) == forged, printed.stderr
