"""What tasks print: shown by `run`, read by `noetl executions logs`, also while they run."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.cli.test_run import HEAD
from tests.faults.runs import Place, kill, wait_for
from tests.server.processes import Server
from tests.stopwatch import PATIENCE

PRINTS = (
    HEAD
    + """\
metadata: {name: prints, path: tests/prints}
workflow:
  - step: hello
    tool: {kind: python, code: "print('from hello')\\nresult = 1"}
    next: each
  - step: each
    loop: {in: [10, 20], iterator: i}
    tool: {kind: python, args: {i: "{{ iter.i }}"}, code: "print('seen', i)"}
    next: two
  - step: two
    tool:
      - name: first
        kind: shell
        command: "echo out; echo err >&2"
      - name: second
        kind: python
        code: "print('a\\\\nb')"
"""
)
SLOW = (
    HEAD
    + """\
metadata: {name: slow, path: tests/slow}
workload: {gate: ""}
workflow:
  - step: waits
    tool: {kind: shell, command: "echo begun; cat {{ workload.gate }}; echo over"}
    next: quick
  - step: quick
    tool: {kind: python, code: "print('quickly')"}
"""
)
FAILS = (
    HEAD
    + """\
metadata: {name: fails, path: tests/fails}
workflow:
  - step: broken
    tool: {kind: python, code: "print('before it broke')\\nraise ValueError('no')"}
"""
)
LINES = """\
hello | from hello
each[0] | seen 10
each[1] | seen 20
two.first | out
two.first | err
two.second | a
two.second | b
"""


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.write("prints.yaml", PRINTS)
    found.write("slow.yaml", SLOW)
    found.write("fails.yaml", FAILS)
    return found


@pytest.fixture
def gate(tmp_path):
    found = tmp_path / "gate"
    os.mkfifo(found)
    return found


def open_gate(gate) -> None:
    gate.open("w").close()


def logs(place: Place, *arguments: str) -> str:
    ran = place.run("executions", "logs", "last", *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_run_shows_what_a_quick_task_prints_and_logs_shows_it_again(place):
    ran = place.run("run", "prints.yaml")

    assert "noetl: hello says\n  from hello\n" in ran.stderr
    assert "noetl: each[1] says\n  seen 20\n" in ran.stderr
    assert "noetl: two.second says\n  a\n  b\n" in ran.stderr
    assert logs(place) == LINES
    assert logs(place, "--step", "each") == "each[0] | seen 10\neach[1] | seen 20\n"
    assert logs(place, "--grep", "^[ab]$") == "two.second | a\ntwo.second | b\n"
    assert logs(place, "--grep", "nowhere") == ""


def test_on_a_terminal_the_lines_stay_above_the_steps(place, tmp_path):
    import pty
    import subprocess

    from tests.cli.conftest import COMMAND, _until_closed, clean_environment

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "run", "prints.yaml"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=tmp_path,
        env=clean_environment(),
    ):
        os.close(theirs)
        shown = b"".join(_until_closed(ours)).decode()
    os.close(ours)

    for line in LINES.splitlines():
        assert shown.count(line) == 1, shown


def test_what_a_failed_task_printed_is_shown_once(place):
    ran = place.run("run", "fails.yaml")

    assert ran.returncode == 1
    assert ran.stderr.count("before it broke") == 1
    assert "traceback of broken" in ran.stderr
    assert "before it broke" in place.run("executions", "show", "last").stderr


def test_the_document_has_every_line_with_its_place(place):
    place.run("run", "prints.yaml")

    found = place.json("executions", "logs", "last", "--step", "each")

    assert (found["status"], found["more"]) == ("COMPLETED", False)
    entry = found["entries"][1]
    assert (entry["step"], entry["task"], entry["iteration"]) == ("each", "each_task", 1)
    assert (entry["attempt"], entry["text"]) == (1, "seen 20\n")
    assert entry["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--grep", "("), 2, '"(" is not a regular expression'),
        (("--step", "eech"), 1, 'has no step "eech". Did you mean "each"?'),
        (("--follow", "--json"), 2, "give only one of them"),
    ],
)
def test_a_mistake_is_named(place, arguments, code, said):
    place.run("run", "prints.yaml")

    ran = place.run("executions", "logs", "last", *arguments)

    assert (ran.returncode, ran.stdout) == (code, "")
    assert said in ran.stderr


def test_following_shows_lines_as_they_come_and_ends_with_the_execution(place, gate):
    process = place.start("run", "slow.yaml", "--set", f"gate={gate}")
    follower = None
    try:
        wait_for(process, "waits: started")
        follower = place.start("executions", "logs", "last", "--follow")
        assert follower.stdout.readline() == "waits | begun\n"
        open_gate(gate)
        rest = follower.communicate(timeout=PATIENCE)[0]
    finally:
        kill(process)
        if follower is not None:
            kill(follower)

    assert rest == "waits | over\nquick | quickly\n"
    assert follower.returncode == 0


def test_following_what_nobody_runs_says_so(place, gate):
    process = place.start("run", "slow.yaml", "--set", f"gate={gate}")
    wait_for(process, "says")
    kill(process)

    ran = place.run("executions", "logs", "last", "--follow")

    assert (ran.returncode, ran.stdout) == (1, "waits | begun\n")
    assert "it was interrupted" in ran.stderr


def test_a_server_answers_page_by_page_and_waits_for_the_next_line(place, tmp_path, gate):
    server = Server(tmp_path, kind="dev")
    follower = None
    try:
        content = (tmp_path / "slow.yaml").read_text()
        entry = server.ask("POST", "/api/catalog/register", {"content": content}).json
        started = {"path": entry["path"], "workload": {"gate": str(gate)}}
        execution_id = server.ask("POST", "/api/execute", started).json["execution_id"]
        route = f"/api/executions/{execution_id}/logs"
        first = server.ask("GET", route, wait=50).json
        assert [one["text"] for one in first["entries"]] == ["begun\n"]
        after = first["next_after"]
        begun = time.monotonic()
        assert server.ask("GET", route, after=after, wait=0.2).json["entries"] == []
        assert time.monotonic() - begun >= 0.2
        where = ("--server", server.url)
        follower = place.start("executions", "logs", execution_id, "--follow", *where)
        assert follower.stdout.readline() == "waits | begun\n"
        open_gate(gate)
        rest = follower.communicate(timeout=PATIENCE)[0]
        assert rest == "waits | over\nquick | quickly\n"
        # One line at a time, and waiting is over when the execution is.
        texts, after, more = [], 0, True
        while more:
            page = server.ask("GET", route, after=after, limit=1, wait=50).json
            texts += [one["text"] for one in page["entries"]]
            after, more = page["next_after"], page["more"]
        assert texts == ["begun\n", "over\n", "quickly\n"]
        assert page["status"] == "COMPLETED"
        ran = place.run("executions", "logs", execution_id, "--grep", "^q", *where)
        assert ran.stdout == "quick | quickly\n"
    finally:
        if follower is not None:
            kill(follower)
        server.end()


def test_a_server_names_what_is_wrong_with_a_question(place, tmp_path):
    server = Server(tmp_path, kind="dev")
    try:
        where = ("--server", server.url)
        ran = place.run("run", "prints.yaml", *where)
        assert "noetl: hello says\n  from hello\n" in ran.stderr
        [last] = place.json("executions", "list", *where)["executions"]
        route = f"/api/executions/{last['execution_id']}"

        def refused(part: str, **asked: str) -> tuple[int, str]:
            reply = server.ask("GET", f"{route}/{part}", **asked)
            return reply.status, reply.json["error"]["message"]

        assert refused("logs", grep="(") == (
            400,
            '"(" is not a regular expression that RE2 knows (it has no look-around and no'
            " back-references).",
        )
        status, message = refused("logs", step="hallo")
        assert (status, message.endswith('Did you mean "hello"?')) == (404, True)
        status, message = refused("events", type="task.dne")
        assert (status, message.endswith('Did you mean "task.done"?')) == (400, True)
        assert refused("events", step="hallo")[0] == 404
        assert server.ask("GET", "/api/executions/1/logs").status == 404
        for asked in (("--type", "task.dne"), ("--type", "nope")):
            ran = place.run("executions", "events", "last", *asked, *where)
            assert (ran.returncode, ran.stdout) == (2, ""), ran
            assert f'no type of event "{asked[1]}"' in ran.stderr
    finally:
        server.end()


@pytest.mark.parametrize(
    ("name", "hint"), [("task.dne", ' Did you mean "task.done"?'), ("nope", "")]
)
def test_a_type_that_no_event_has_is_an_error(place, name, hint):
    place.run("run", "prints.yaml")

    ran = place.run("executions", "events", "last", "--type", name)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert f'there is no type of event "{name}".{hint}' in ran.stderr
    assert json.loads(
        place.run("executions", "events", "last", "--type", "task.done", "--json").stdout
    )
