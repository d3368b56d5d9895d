"""`noetl run`: what people and scripts see of it, in real processes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest
from aiohttp import web

from tests.cli.conftest import COMMAND, clean_environment
from tests.faults.runs import Place, kill, wait_for
from tests.stopwatch import PATIENCE, Stopwatch
from tests.tools.services import answering

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
HELLO = (
    HEAD
    + """\
metadata: {name: hello, path: tests/hello}
workload: {name: world, shop: {days: 1}}
workflow:
  - step: start
    tool:
      kind: python
      args: {name: "{{ workload.name }}"}
      code: "result = 'hello ' + name"
"""
)
FAILS = (
    HEAD
    + """\
metadata: {name: fails, path: tests/fails}
workflow:
  - step: start
    tool:
      kind: python
      code: |
        print("the last words")
        raise ValueError("it had to be")
"""
)
SAGA = (
    HEAD
    + """\
metadata: {name: saga, path: tests/saga}
workbook:
  cancel: {kind: noop}
workflow:
  - {step: start, tool: {kind: noop}, spec: {compensate: undo}, next: book}
  - {step: book, tool: {kind: noop}, spec: {compensate: cancel}, next: bad}
  - {step: bad, tool: {kind: noop, result: "{{ 1 / 0 }}"}}
  - {step: undo, tool: {kind: noop}}
"""
)
SLOW = (
    HEAD
    + """\
metadata: {name: slow, path: tests/slow}
workload: {seconds: 60, until: ""}
workflow:
  - step: start
    tool: {kind: noop}
    next: wait
  - step: wait
    tool:
      kind: python
      args: {seconds: "{{ workload.seconds }}", until: "{{ workload.until }}"}
      code: |
        import os, time
        end = time.monotonic() + seconds
        while time.monotonic() < end and not os.path.exists(until):
            time.sleep(0.02)
        result = "woke up"
    next: last
  - step: last
    tool: {kind: python, code: "result = 'woke up'"}
"""
)
"""Waits for some seconds, or until there is a file."""


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.write("hello.yaml", HELLO)
    found.write("fails.yaml", FAILS)
    found.write("slow.yaml", SLOW)
    return found


def test_a_run_without_a_terminal_counts_the_warnings_of_its_playbook(noetl, tmp_path):
    doubtful = HELLO + '    next: {arcs: [{step: end, when: "{{ 0 }} and {{ 1 }}"}]}\n'
    (tmp_path / "hello.yaml").write_text(doubtful + "  - {step: end, tool: {kind: noop}}\n")

    ran = noetl("run", "hello.yaml")

    assert ran.code == 0
    first = ran.err.splitlines()[0]
    assert first == "noetl: hello.yaml has 1 warning; see `noetl validate hello.yaml`"
    assert "condition-is-text" in noetl("validate", "hello.yaml").out


def test_the_result_goes_to_stdout_and_everything_else_to_stderr(place):
    ran = place.run("run", "hello.yaml")

    assert (ran.returncode, ran.stdout) == (0, "hello world\n")
    assert "start: done" in ran.stderr
    assert re.search(r"completed in 0\.\d+ s|completed in \d", ran.stderr)


def test_values_for_the_workload_come_from_set_and_payload(place):
    document = place.json(
        *("run", "hello.yaml", "--payload", '{"name": "x", "shop": {"days": 2}}'),
        *("--set", "name=you", "--set", "shop.open=true"),
    )

    assert document["workload"] == {"name": "you", "shop": {"days": 2, "open": True}}
    assert document["result"] == "hello you"


def test_a_value_under_a_misspelt_name_is_pointed_out_and_one_under_a_new_name_is_not(place):
    ran = place.run("run", "hello.yaml", "--set", "nmae=you", "--set", "quite_another=1")

    assert ran.returncode == 0
    assert 'the workload of this playbook has no "nmae". Did you mean "name"?' in ran.stderr
    assert "quite_another" not in ran.stderr


@pytest.mark.parametrize("command", ["run", "execute"])
@pytest.mark.parametrize("given", [("--set", "nmae=you"), ("--payload", '{"nmae": "you"}')])
def test_a_misspelt_name_of_a_registered_playbook_is_pointed_out_too(place, command, given):
    assert place.run("register", "hello.yaml").returncode == 0
    database = ("--db", str(place.folder / ".noetl" / "noetl.db"))

    ran = place.run(command, "tests/hello", *given, *database)

    assert ran.returncode == 0, ran.stderr
    assert 'the workload of this playbook has no "nmae". Did you mean "name"?' in ran.stderr


def test_json_is_one_document_and_nothing_else(place):
    ran = place.run("run", "hello.yaml", "--json")

    document = json.loads(ran.stdout)
    assert ran.stderr == ""
    assert document["status"] == "COMPLETED"
    assert document["execution_id"].isdecimal()
    assert [step["step"] for step in document["steps"]] == ["start"]


def test_a_failed_execution_exits_with_1_and_shows_the_error_and_what_was_printed(place):
    ran = place.run("run", "fails.yaml")

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "failed in step start: ValueError: it had to be" in ran.stderr
    assert "the last words" in ran.stderr
    # A line number without its file says nothing.
    listed = place.run("executions", "list").stdout
    assert listed.endswith("start: ValueError: it had to be\n")
    assert "Traceback (most recent call last)" not in ran.stderr


RULES = (
    HEAD
    + """\
metadata: {name: rules, path: tests/rules}
workflow:
  - step: start
    tool: {kind: noop}
    next: [ice, stock]
  - step: ice
    case: [{when: "{{ event.name == 'step.enter' }}", then: {skip: "out of {{ 'season' }}"}}]
  - step: stock
    tool: {kind: noop, result: 0}
    case:
      - when: "{{ event.name == 'call.done' }}"
        then: {fail: {message: "{{ result }} in stock", code: E7, shelf: 3}}
"""
)


def test_what_a_rule_says_of_a_skip_and_a_failure_is_shown_and_recorded(place):
    place.write("rules.yaml", RULES)
    ran = place.run("run", "rules.yaml")

    assert ran.returncode == 1
    assert "ice: skipped (out of season)" in ran.stderr
    assert "0 in stock" in ran.stderr
    assert "its code is E7" in ran.stderr
    [(execution_id, _)] = place.executions()
    said = place.json("executions", "show", execution_id)["error"]
    assert (said["message"], said["code"], said["details"]["shelf"]) == ("0 in stock", "E7", 3)
    why = place.run("executions", "why", execution_id, "--step", "ice").stdout
    assert "then it was skipped: out of season" in why
    [skipped] = place.events(execution_id, "step.skipped")
    assert skipped["reason"] == "out of season"


def test_a_rule_that_gives_a_failure_only_a_code_gets_a_sentence(place):
    only_a_code = "then: {fail: {code: E7}}"
    place.write("rules.yaml", re.sub(r"then: {fail: .*", only_a_code, RULES))
    ran = place.run("run", "rules.yaml", "--json")

    said = json.loads(ran.stdout)["error"]
    assert (said["message"], said["code"]) == ("rule case_0 failed the step", "E7")


def test_what_is_undone_after_a_failure_is_told_as_such(place):
    place.write("saga.yaml", SAGA)

    ran = place.run("run", "saga.yaml")

    assert ran.returncode == 1
    after = ran.stderr.partition("bad: failed")[2]
    assert "book: is undone by cancel\n" in after
    assert "undo: undoes what was done\n" in after


def test_a_failed_execution_is_still_one_json_document(place):
    ran = place.run("run", "fails.yaml", "--json")

    document = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert (document["status"], document["failed_step"]) == ("FAILED", "start")
    assert document["error"]["kind"] == "exception"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument"),
        (["run", "nowhere.yaml"], "nowhere.yaml: there is no such file"),
        (["run", "."], "this is a directory; name one file"),
        (["run", "tests/helo"], 'no registered playbook with that path. Did you mean "tests/hel'),
        (["run", "wrong.yaml"], "wrong.yaml:2:7: "),
        (["run", "hello.yaml", "--set", "name"], '"name" is not KEY=VALUE'),
        (["run", "hello.yaml", "--set", "=1"], "is not KEY=VALUE"),
        (["run", "hello.yaml", "--set", "shop..url=1"], '"shop..url" has an empty name'),
        (["run", "hello.yaml", "--set", "name=[1"], "is not YAML"),
        (["run", "hello.yaml", "--payload", "[1]"], "--payload is a JSON object"),
        (["run", "hello.yaml", "--payload", "{"], "--payload is not JSON"),
        (
            ["run", "hello.yaml", "--payload", "@gone.json"],
            "@gone.json: No such file",
        ),
        (["run", "hello.yaml", "--db", "mysql://h/d"], "SQLite or PostgreSQL"),
        (["run", "hello.yaml", "--db", "sqlite://x.db"], "write sqlite:///x.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_we_are_given_wrong_exits_with_2_and_says_why(place, arguments, message):
    place.write("wrong.yaml", "apiVersion: noetl.io/v2\nkind: Playbok\n")
    assert place.run("register", "hello.yaml").returncode == 0

    ran = place.run(*arguments)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_playbook_that_is_registered_runs_by_its_path(place):
    place.run("register", "hello.yaml")

    document = place.json("run", "tests/hello")

    assert (document["path"], document["version"]) == ("tests/hello", 1)
    assert document["result"] == "hello world"


def test_a_misspelt_credential_gets_a_hint_among_those_that_the_playbook_may_use(place):
    place.run("credential", "set", "shop", "token=canary-of-shop")
    place.run("credential", "set", "shoq", "token=canary-of-shoq", "--for", "other/*")
    place.write(
        "slip.yaml",
        HEAD
        + "metadata: {name: slip, path: tests/slip}\n"
        + "workflow:\n"
        + "- {step: start, tool: {kind: http, url: 'http://127.0.0.1:1', auth: shopp}}\n",
    )

    ran = place.run("run", "slip.yaml")

    assert ran.returncode == 1
    assert 'there is no credential "shopp". Did you mean "shop"?' in ran.stderr
    assert place.run("credential", "delete", "shop").returncode == 0
    assert "Did you mean" not in place.run("run", "slip.yaml").stderr


def test_a_missing_credential_fails_the_execution_before_anything_runs(place):
    place.write(
        "needs.yaml",
        HEAD
        + "metadata: {name: needs, path: tests/needs}\n"
        + "keychain: [{name: token, kind: credential}]\n"
        + "workflow: [{step: start, tool: {kind: noop}}]\n",
    )

    ran = place.run("run", "needs.yaml")

    assert ran.returncode == 1
    assert 'there is no credential "token"' in ran.stderr
    assert "noetl credential set token" in ran.stderr
    assert "start: started" not in ran.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["run", "hello.yaml"],
        ["executions", "list"],
        ["execute", "tests/hello"],
        ["worker", "start"],
    ],
    ids=" ".join,
)
def test_an_address_where_something_else_answers_is_told_as_such(place, command):
    async def greet(request: web.Request) -> web.Response:
        return web.json_response({"welcome": "to another service"})

    place.write("hello.yaml", HELLO)
    with answering(("*", "/{any:.*}", greet)) as url:
        refused = place.run(*command, "--server", url)

    assert refused.returncode == 1
    assert f"what answers at {url} is not a NoETL server" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_playbook_beside_it_is_called_as_it_is_now(place):
    child = HEAD + "metadata: {name: c, path: tests/child}\nworkflow:\n  - step: start\n"
    place.write("child.yaml", child + "    tool: {kind: python, code: 'result = 1'}\n")
    place.write(
        "calls.yaml",
        HEAD
        + "metadata: {name: calls, path: tests/calls}\n"
        + "workflow: [{step: start, tool: {kind: playbook, path: tests/child}}]\n",
    )
    first = place.json("run", "calls.yaml")
    place.write("child.yaml", child + "    tool: {kind: python, code: 'result = 2'}\n")
    second = place.json("run", "calls.yaml")

    assert (first["result"], second["result"]) == (1, 2)


def test_a_playbook_beside_it_is_found_also_where_a_sink_calls_it(place):
    head = HEAD + "metadata: {name: c, path: tests/child}\n"
    place.write("child.yaml", head + "workflow: [{step: start, tool: {kind: noop}}]\n")
    place.write(
        "calls.yaml",
        HEAD
        + "metadata: {name: calls, path: tests/calls}\n"
        + "workflow:\n  - step: start\n    tool: {kind: noop}\n"
        + "    sink: {tool: {kind: playbook, path: tests/child}}\n",
    )

    assert place.json("run", "calls.yaml")["status"] == "COMPLETED"
    listed = place.json("executions", "list")["executions"]
    assert {one["path"] for one in listed} == {"tests/calls", "tests/child"}


def test_a_playbook_that_declares_no_path_is_not_taken_for_the_one_that_it_calls(place):
    head = HEAD + "metadata:\n  name: c\n  path: tests/child\n"
    place.write("child.yaml", head + "workflow: [{step: start, tool: {kind: noop, result: 7}}]\n")
    place.write(
        "the_caller.yaml",
        HEAD
        + "metadata: {name: caller}\n"
        + "workflow:\n  - step: start\n    tool:\n      kind: playbook\n      path: tests/child\n",
    )

    assert place.json("run", "the_caller.yaml")["result"] == 7


def test_a_playbook_beside_it_is_called_by_its_name_where_it_has_no_path(place):
    place.write(
        "child.yaml",
        HEAD + "metadata: {name: kid}\nworkflow: [{step: start, tool: {kind: noop, result: 7}}]\n",
    )
    place.write(
        "calls.yaml",
        HEAD
        + "metadata: {name: calls}\nworkflow: [{step: start, tool: {kind: playbook, path: kid}}]\n",
    )

    assert place.json("run", "calls.yaml")["result"] == 7


def calling(called: str, path: str = "calls") -> str:
    """A playbook that calls another one."""
    step = f'{{step: start, tool: {{kind: playbook, path: "{called}"}}}}'
    return f"{HEAD}metadata: {{path: {path}}}\nworkflow: [{step}]\n"


def yielding(value: object, path: str) -> str:
    step = f"{{step: start, tool: {{kind: noop, result: {value}}}}}"
    return f"{HEAD}metadata: {{path: {path}}}\nworkflow: [{step}]\n"


def test_a_playbook_is_found_in_the_folder_below_that_its_path_names(place):
    (place.folder / "lib" / "deep").mkdir(parents=True)
    place.write("calls.yaml", calling("lib/child"))
    place.write("lib/child.yaml", calling("lib/deep/er", path="lib/child"))
    place.write("lib/deep/any_name.yaml", yielding(7, path="lib/deep/er"))
    place.write(
        "calls.test.yaml", "playbook: calls.yaml\ntests: [{name: calls, expect: {result: 7}}]\n"
    )

    assert place.json("run", "calls.yaml")["result"] == 7
    assert place.run("test", "calls.test.yaml").returncode == 0


def test_a_playbook_beside_it_is_called_with_the_schema_beside_both(place):
    place.write("calls.yaml", calling("child"))
    result = "executor: {spec: {result: {schema: numbers}}}\n"
    place.write("child.yaml", yielding(7, path="child").replace("workflow:", f"{result}workflow:"))
    schema = "kind: Schema\nmetadata: {path: numbers}\nspec: {schema: {type: number}}\n"
    place.write("numbers.yaml", f"apiVersion: noetl.io/v2\n{schema}")

    assert place.json("run", "calls.yaml")["result"] == 7


def test_what_is_in_the_folder_itself_goes_before_what_is_below(place):
    (place.folder / "lib").mkdir()
    place.write("calls.yaml", calling("lib/child"))
    place.write("child.yaml", yielding("here", path="lib/child"))
    place.write("lib/child.yaml", yielding("below", path="lib/child"))

    assert place.json("run", "calls.yaml")["result"] == "here"


@pytest.mark.parametrize("called", ["lib/child", "lib/child.yaml"])
def test_a_file_below_that_declares_another_path_is_told(place, called):
    (place.folder / "lib").mkdir()
    place.write("calls.yaml", calling(called))
    place.write("lib/child.yaml", yielding(7, path="child"))

    said = place.run("run", "calls.yaml").stderr

    assert 'lib/child.yaml declares the path "child": write `path: lib/child` under' in said


@pytest.mark.parametrize("called", ["../child", "/child", ".lib/child", f"{'x' * 250}/child"])
def test_a_path_that_names_no_folder_below_is_looked_for_in_none(place, called):
    (place.folder / "inner" / ".lib").mkdir(parents=True)
    for name in ("child.yaml", "inner/.lib/child.yaml"):
        place.write(name, yielding(7, path=called))
    place.write("inner/calls.yaml", calling(called))

    ran = place.run("run", "inner/calls.yaml")

    assert ran.returncode == 1
    assert f'failed in step start: no playbook "{called}" is registered' in ran.stderr


def test_two_files_beside_it_with_the_path_that_it_calls_are_named_and_nothing_runs(place):
    child = HEAD + "metadata: {name: c, path: tests/child}\nworkflow:\n  - step: start\n"
    place.write("child.yaml", child + "    tool: {kind: noop, result: 1}\n")
    place.write("child_old.yaml", child + "    tool: {kind: noop, result: 2}\n")
    place.write(
        "calls.yaml",
        HEAD
        + "metadata: {name: calls, path: tests/calls}\n"
        + "workflow: [{step: start, tool: {kind: playbook, path: tests/child}}]\n",
    )

    refused = place.run("run", "calls.yaml")

    assert refused.returncode == 2
    assert "child.yaml and child_old.yaml declare the same path, tests/child" in refused.stderr
    assert place.json("executions", "list")["executions"] == []

    place.write("child_old.yaml", child + "    tool: {kind: noop, result: 1}\n")
    assert place.json("run", "calls.yaml")["result"] == 1


def test_errors_of_a_playbook_beside_it_name_its_file(place):
    place.write("kid.yaml", HEAD + "metadata: {name: c, path: tests/child}\nworkflow: []\nx: 1\n")
    place.write(
        "calls.yaml",
        HEAD
        + "metadata: {name: calls, path: tests/calls}\n"
        + "workflow: [{step: start, tool: {kind: playbook, path: tests/child}}]\n",
    )

    assert "\nkid.yaml:5:1: " in place.run("run", "calls.yaml").stderr.replace("noetl: ", "")


def test_pages_are_told_as_pages(place):
    place.write(
        "pages.yaml",
        HEAD
        + """metadata: {name: pages, path: tests/pages}
workflow:
  - step: start
    tool:
      kind: python
      args: {page: 1}
      code: "return {'page': page, 'more': page < 3}"
      retry:
        - when: "{{ response.more }}"
          then: {max_attempts: 9, next_call: {args: {page: "{{ response.page + 1 }}"}}}
""",
    )

    said = place.run("run", "pages.yaml").stderr

    assert "start: start_task asks for page 2\n" in said
    assert "start: start_task asks for page 3\n" in said
    assert "tried again" not in said


def test_a_child_that_could_not_be_started_is_the_reason_that_is_told(place):
    place.write("found.yaml", HELLO.replace("tests/hello", "tests/nowere"))
    place.write(
        "lost.yaml",
        HEAD
        + "metadata: {name: lost, path: tests/lost}\n"
        + "workflow: [{step: start, tool: {kind: playbook, path: tests/nowhere}}]\n",
    )
    ran = place.run("run", "lost.yaml")
    shown = place.run("executions", "show", "last")

    assert ran.returncode == 1
    [told] = [line for line in ran.stderr.splitlines() if "failed in step start" in line]
    assert 'failed in step start: no playbook "tests/nowhere" is registered' in told
    assert 'no playbook "tests/nowhere" is registered' in shown.stdout
    # There is no such execution, so nobody is sent to look at it.
    assert "noetl executions show" not in ran.stderr + shown.stdout
    assert "waits for execution" not in ran.stderr
    assert "as execution" not in ran.stderr
    unknown = (
        '"tests/nowhere", which this playbook calls, is neither in this folder nor registered.'
    )
    assert f'noetl: {unknown} Did you mean "tests/nowere"?' in ran.stderr


@pytest.mark.parametrize(
    ("needs", "lacks"),
    [
        ("pool: far", "a worker: none of pool far is there."),
        ("policy: {placement: {labels: {gpu: a100}}}", "no worker of pool default has gpu=a100."),
    ],
)
def test_a_step_for_workers_that_a_run_does_not_have_is_told(place, needs, lacks):
    step = f"{{step: start, spec: {{{needs}}}, tool: {{kind: shell, cmd: ls}}}}"
    place.write("far.yaml", f"{HEAD}metadata: {{name: far, path: tests/far}}\nworkflow: [{step}]\n")
    process = place.start("run", "far.yaml")
    said = wait_for(process, "This process takes steps of the pool default")
    kill(process)

    assert 'noetl: step "start" waits for a worker' in said
    assert lacks in said
    assert "labels that are in NOETL_LABELS" in said
    assert "noetl worker start" not in said


def test_a_step_that_no_worker_of_a_server_takes_is_told_with_how_to_start_one(place):
    server = place.start("server", "start", "--port", "0")
    assert "web UI" in wait_for(server, "web UI")
    place.write("hello.yaml", HELLO)
    registered = place.run("register", "hello.yaml")
    started = place.run("execute", "tests/hello", "--db", f"{place.folder}/.noetl/noetl.db")
    following = place.start("executions", "follow", "last")
    said = wait_for(following, "waits for a worker")
    kill(following)
    kill(server)

    assert (registered.returncode, started.returncode) == (0, 0), started.stderr
    assert "none of pool default is there. `noetl worker start --pool default` starts one" in said
    assert "This process" not in said


def test_a_misspelt_child_is_told_with_the_path_that_is_registered(place):
    (place.folder / "elsewhere").mkdir()
    place.write("elsewhere/child.yaml", HELLO.replace("tests/hello", "lib/child"))
    place.write(
        "lost.yaml",
        HEAD
        + "metadata: {name: lost, path: tests/lost}\n"
        + "workflow: [{step: start, tool: {kind: playbook, path: lib/chld}}]\n",
    )
    assert place.run("register", "elsewhere/child.yaml").returncode == 0
    ran = place.run("run", "lost.yaml")

    told = 'no playbook "lib/chld" is registered. Did you mean "lib/child"?'
    lines = ran.stderr.splitlines()
    assert f"noetl: a playbook that this one calls is not in this folder, and {told}" in lines
    assert f"noetl: failed in step start: {told}" in lines


def test_a_child_that_is_called_by_its_file_is_told_with_the_path_of_that_file(place):
    place.write("found.yaml", HELLO.replace("tests/hello", "tests/child"))
    place.write(
        "lost.yaml",
        HEAD
        + "metadata: {name: lost, path: tests/lost}\n"
        + "workflow: [{step: start, tool: {kind: playbook, path: ./found.yaml}}]\n",
    )

    said = place.run("run", "lost.yaml").stderr

    assert 'registered. Write "tests/child", the path of that file.\n' in said


def test_another_database_can_be_named(place, tmp_path):
    assert place.run("run", "hello.yaml", "--db", "other.db").returncode == 0

    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / ".noetl").exists()
    assert len(place.json("executions", "list", "--db", "other.db")["executions"]) == 1


# --- Stopping ----------------------------------------------------------------------------------


def test_ctrl_c_cancels_the_execution_and_the_process_ends_with_130(place):
    process = place.start("run", "slow.yaml")
    wait_for(process, "wait: started")
    watch = Stopwatch(process.pid)

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130
    assert watch.seconds() < 10
    assert "cancelling; press Ctrl-C again to quit at once" in said
    assert [status for _, status in place.executions()] == ["CANCELLED"]
    assert place.query("SELECT * FROM noetl_command") == []


INTERRUPTED_EARLY = """\
import sys
from noetl.cli import main

class Interrupt:
    def find_spec(self, name, *_):
        if name == "noetl.cli.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
main()
"""


def test_ctrl_c_while_the_command_loads_is_quiet(tmp_path):
    ran = subprocess.run(
        [COMMAND[0], "-c", INTERRUPTED_EARLY],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_an_execution_that_died_is_resumed_and_goes_on_where_it_was(place):
    process = place.start("run", "slow.yaml", "--set", "seconds=1")
    wait_for(process, "wait: started")
    kill(process)

    untouched = place.run("run", "hello.yaml")
    again = place.run("run", "slow.yaml", "--resume", "--json")

    assert untouched.returncode == 0
    assert json.loads(again.stdout)["result"] == "woke up"
    assert len(place.executions()) == 2
    [(execution_id, status), _] = place.executions()
    assert status == "COMPLETED"
    starts = [event["step"] for event in place.events(execution_id, "step.done")]
    assert starts == ["start", "wait", "last"]


def test_an_interrupted_execution_stays_so_unless_one_asks_for_it(place):
    process = place.start("run", "slow.yaml")
    wait_for(process, "wait: started")
    kill(process)

    ran = place.run("run", "slow.yaml", "--set", "seconds=0.5")

    assert ran.returncode == 0, ran.stderr
    assert "was interrupted and stays so; --resume continues it" in ran.stderr
    assert [status for _, status in place.executions()] == ["RUNNING", "COMPLETED"]
    [(first, _), _] = place.executions()
    assert list(place.events(first, "command.lost")) == []


def test_a_second_run_is_told_who_has_the_database(place):
    process = place.start("run", "slow.yaml")
    wait_for(process, "wait: started")

    ran = place.run("run", "hello.yaml")
    kill(process)

    assert ran.returncode == 1
    assert f"is in use by process {process.pid}" in ran.stderr
    assert "`noetl run FILE --server URL`" in ran.stderr


# --- On a terminal -----------------------------------------------------------------------------


class Terminal:
    """A process with its stdin and stderr on a terminal, and stdout too if it is `whole`."""

    def __init__(self, place, *arguments: str, whole: bool = False, **more: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs if whole else subprocess.PIPE,
            stderr=theirs,
            cwd=place.folder,
            env=clean_environment(**more),
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def until(self, text: str) -> str:
        """Read until the text is shown, or nothing more comes."""
        while text not in self.shown:
            try:
                part = os.read(self._ours, 65536)
            except OSError:
                break
            self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part.decode(errors="replace"))
        assert text in self.shown, self.shown
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ended(self) -> int:
        try:
            while part := os.read(self._ours, 65536):
                self.shown += part.decode(errors="replace")
        except OSError:
            pass  # the other end is closed
        os.close(self._ours)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait(PATIENCE)


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (("executions", "delete", "last"), "for good? [y/N]: "),
        (("credential", "set", "mail", "password"), "password: "),
        (("access", "user", "add", "ada", "--role", "admin"), "password: "),
    ],
)
def test_ctrl_c_at_a_question_ends_the_command_and_changes_nothing(place, command, question):
    place.write("loop.yaml", LOOP)
    assert place.run("run", "loop.yaml").returncode == 0
    terminal = Terminal(place, *command)
    terminal.until(question)

    terminal.process.send_signal(signal.SIGINT)

    assert terminal.ended() == 130
    assert "Traceback" not in terminal.shown
    assert len(place.executions()) == 1
    done = json.loads(place.run("access", "audit", "--json").stdout)["entries"]
    assert [one["action"] for one in done] == ["execution.start"]


def test_a_terminal_shows_the_steps_as_they_go(place):
    place.write("loop.yaml", LOOP)
    terminal = Terminal(place, "run", "loop.yaml")

    terminal.until("tests/loop")
    terminal.until("/6")
    shown = terminal.until("completed in")

    assert "✓ start" in shown
    assert "━━━" in shown
    assert "6/6" in shown
    assert terminal.ended() == 0


@pytest.mark.parametrize(("length", "is_all"), [(98, True), (99, False), (60_000, False)])
def test_a_terminal_shows_the_beginning_of_a_long_result(place, length, is_all):
    tool = f"{{kind: noop, result: '{{{{ range({length}) | list }}}}'}}"
    head = f"{HEAD}metadata: {{name: long, path: tests/long}}\n"
    place.write("long.yaml", f"{head}workflow: [{{step: start, tool: {tool}}}]\n")
    terminal = Terminal(place, "run", "long.yaml", whole=True)
    assert terminal.ended() == 0

    lines = terminal.shown.replace("\r", "").splitlines()
    numbers = [line for line in lines if re.fullmatch(r" {2}\d+,?", line)]
    assert numbers[-1].strip(" ,") == ("97" if is_all else "98")
    assert lines.count("]") == is_all
    assert ("prints all of it" in terminal.shown) is not is_all
    told = re.search(r"`noetl (executions result \d+)`", terminal.shown)
    if told is not None:
        assert len(json.loads(place.run(*told[1].split()).stdout)) == length


LOOP = (
    HEAD
    + """\
metadata: {name: loop, path: tests/loop}
workflow:
  - step: start
    tool: {kind: noop}
    next: each
  - step: each
    loop: {in: [1, 2, 3, 4, 5, 6], iterator: item, spec: {mode: sequential}}
    tool: {kind: python, code: "import time; time.sleep(0.5)"}
"""
)


def test_on_a_terminal_an_interrupted_execution_is_offered(place):
    process = place.start("run", "slow.yaml", "--set", "seconds=1")
    wait_for(process, "wait: started")
    kill(process)

    terminal = Terminal(place, "run", "slow.yaml")
    terminal.until("was interrupted. Continue it? [Y/n]")
    terminal.type("y\n")
    terminal.until("completed in")

    assert terminal.ended() == 0
    assert [status for _, status in place.executions()] == ["COMPLETED"]


def test_resume_after_an_edit_asks_and_without_a_terminal_refuses(place):
    process = place.start("run", "slow.yaml")
    wait_for(process, "wait: started")
    kill(process)
    [(execution_id, _)] = place.executions()
    place.write("slow.yaml", SLOW.replace("woke up", "another version"))

    refused = place.run("run", "slow.yaml", "--resume")
    terminal = Terminal(place, "run", "slow.yaml", "--resume")
    shown = terminal.until("Start a new execution of the edited playbook? [y/N]")
    terminal.type("n\n")

    assert refused.returncode == 2
    assert f"`noetl executions resume {execution_id}`" in refused.stderr
    assert "the playbook was edited" in shown
    assert terminal.ended() == 2
    assert place.executions() == [(execution_id, "RUNNING")]


def test_the_second_ctrl_c_quits_at_once(place):
    terminal = Terminal(place, "run", "slow.yaml")
    terminal.until("wait")

    terminal.process.send_signal(signal.SIGINT)
    terminal.process.send_signal(signal.SIGINT)

    assert terminal.ended() == 130


def test_settings_that_contradict_each_other_are_refused_before_anything_is_kept(place):
    ran = place.run("run", "hello.yaml", NOETL_TASK_NETWORK="refuse")

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Set both, or neither." in ran.stderr
    assert place.executions() == []


INPUTS = (
    HEAD
    + """\
metadata: {name: inputs, path: tests/inputs}
executor:
  spec:
    inputs: {version: {type: string}, count: {type: integer, desc: How many.}}
workflow:
  - step: start
    tool: {kind: noop}
    set: {ctx.seen: "{{ workload.version }}/{{ workload.count }}"}
"""
)


def test_what_is_missing_is_said_where_there_is_nobody_to_ask(noetl, tmp_path):
    (tmp_path / "inputs.yaml").write_text(INPUTS)

    ran = noetl("run", "inputs.yaml", "--set", "count=x")

    assert ran.code == 2
    assert 'input "version" is missing; it takes a text' in ran.err
    assert "input \"count\" takes a whole number, not 'x'" in ran.err
    assert noetl("executions", "list").out == ""
    assert noetl("register", "inputs.yaml").code == 0
    database = ("--db", str(tmp_path / ".noetl" / "noetl.db"))
    started = noetl("execute", "tests/inputs", "--set", "count=x", *database)
    assert (started.code, started.out) == (2, "")
    assert 'input "version" is missing; it takes a text' in started.err


def test_a_text_stays_what_was_typed(noetl, tmp_path):
    (tmp_path / "inputs.yaml").write_text(INPUTS)

    ran = noetl("run", "inputs.yaml", "--set", "version=1.10", "--set", "count=3", "--json")

    assert json.loads(ran.out)["ctx"] == {"seen": "1.10/3"}


def test_a_person_is_asked_for_what_is_missing(place):
    place.write("inputs.yaml", INPUTS)
    terminal = Terminal(place, "run", "inputs.yaml", "--set", "version=2")

    terminal.until("How many.")
    terminal.type("many\n")
    terminal.until("takes a whole number, not 'many'")
    terminal.type("4\n")
    terminal.until("completed in")

    assert terminal.ended() == 0
    assert place.json("executions", "show", "last", "--json")["ctx"] == {"seen": "2/4"}
