"""Why something went wrong, or did nothing: what `run`, `show` and `validate` tell people of it."""

from __future__ import annotations

import getpass
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.cli.test_run import Terminal
from tests.faults.runs import Place
from tests.server.processes import Server

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"


def document(noetl, *arguments: str) -> dict:
    return json.loads(noetl("executions", "show", "last", "--json", *arguments).out)


def test_a_step_none_of_whose_arcs_held_is_told_unless_it_is_quiet(tmp_path, noetl):
    text = f"""{HEAD}metadata: {{name: ends, path: tests/ends}}
workload: {{count: 1}}
workflow:
  - step: start
    tool: {{kind: noop}}
    next:
      spec: {{mode: exclusive}}
      arcs: [{{step: more, when: "{{{{ workload.count > 5 }}}}"}}]
  - {{step: more, tool: {{kind: noop}}}}
"""
    (tmp_path / "ends.yaml").write_text(text)
    (tmp_path / "quiet.yaml").write_text(
        text.replace("mode: exclusive", "mode: exclusive, on_no_match: quiet")
    )

    told, quiet, onward = (
        noetl("run", *arguments, "--new")
        for arguments in (("ends.yaml",), ("quiet.yaml",), ("ends.yaml", "--set", "count=6"))
    )

    line = "noetl: start: none of its arcs held; its branch ends here\n"
    assert [one.code for one in (told, quiet, onward)] == [0, 0, 0]
    assert [line in one.err for one in (told, quiet, onward)] == [True, False, False]


def test_a_failed_iteration_is_named_with_its_element_if_that_is_short_and_no_secret(
    tmp_path, noetl
):
    secret = "canary-of-the-elements-0123456789"
    noetl("credential", "set", "api", f"token={secret}")
    (tmp_path / "each.yaml").write_text(
        HEAD
        + """metadata: {name: each, path: tests/each}
keychain: [{name: api, kind: credential}]
workload: {more: []}
workflow:
  - step: start
    tool:
      kind: python
      args: {token: "{{ keychain.api.token }}"}
      code: "result = [{'token': token}]"
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ workload.more or start }}", iterator: item}
    tool: {kind: python, code: "raise ValueError('no')"}
"""
    )

    short, long, hidden = (
        noetl("run", "each.yaml", "--new", *more)
        for more in (
            ("--set", "more=[{who: ann}]"),
            ("--payload", json.dumps({"more": ["x" * 100]})),
            (),
        )
    )

    assert [one.code for one in (short, long, hidden)] == [1, 1, 1]
    assert 'traceback of each.each_task, iteration 0 ({"who":"ann"}):' in short.err
    assert "traceback of each.each_task, iteration 0:" in long.err
    assert "traceback of each.each_task, iteration 0 (" in hidden.err
    assert secret not in hidden.err + noetl("executions", "show", "last").err


def test_a_typo_in_a_guard_is_a_warning_of_run_and_show(tmp_path, noetl):
    flow = """\
metadata: {name: typo, path: tests/typo}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'total': 3}"}
    next: {arcs: [{step: end, when: "{{ start.totl > 2 }}"}]}
  - {step: end, tool: {kind: noop}}
"""
    (tmp_path / "typo.yaml").write_text(HEAD + flow)

    ran = noetl("run", "typo.yaml")
    shown = noetl("executions", "show", "last")

    warning = "none of start's arcs held: `start.totl` (did you mean `total`?) is undefined."
    assert ran.code == 0
    assert f"warning: {warning}" in ran.err
    assert warning in " ".join(shown.out.split())
    assert document(noetl)["warnings"][0]["undefined"] == {"start.totl": "total"}


def test_a_warning_of_a_sub_playbook_is_one_of_its_callers(tmp_path, noetl):
    called = """\
metadata: {name: inner, path: tests/inner}
workflow:
  - step: look
    tool: {kind: noop, result: {total: 3}}
    next: {arcs: [{step: end, when: "{{ look.totl > 2 }}"}]}
  - {step: end, tool: {kind: noop}}
"""
    between = """\
metadata: {name: between, path: tests/between}
workflow: [{step: start, tool: {kind: playbook, path: tests/inner, return_step: look}}]
"""
    calls = """\
metadata: {name: outer, path: tests/outer}
workflow:
  - step: each
    loop: {in: [1, 2, 3], iterator: n}
    tool: {kind: playbook, path: tests/between}
"""
    for name, flow in {"inner": called, "between": between, "outer": calls}.items():
        (tmp_path / f"{name}.yaml").write_text(HEAD + flow)

    ran = noetl("run", "outer.yaml")
    shown = noetl("executions", "show", "last")

    warning = "in tests/inner, none of look's arcs held: `look.totl` (did you mean `total`?)"
    assert ran.code == 0
    assert ran.err.count(f"warning: {warning}") == 1
    assert f"{warning} is undefined. (3 times)" in " ".join(shown.out.split())
    [told] = document(noetl)["warnings"]
    assert (told["step"], told["count"]) == ("each", 3)
    assert f"`noetl executions show {told['execution_id']}` shows it" in ran.err
    inner = json.loads(noetl("executions", "show", told["execution_id"], "--json").out)
    assert inner["path"] == "tests/inner"
    assert [one["step"] for one in inner["warnings"]] == ["look"]


def test_a_branch_that_ended_because_no_arc_held_is_told_by_run_and_show(tmp_path, noetl):
    flow = """\
metadata: {name: small, path: tests/small}
workflow:
  - step: start
    tool: {kind: noop, result: {total: 1}}
    next: {arcs: [{step: end, when: "{{ start.total > 5 }}"}]}
  - {step: end, tool: {kind: noop}}
"""
    (tmp_path / "small.yaml").write_text(HEAD + flow)

    ran = noetl("run", "small.yaml")
    shown = noetl("executions", "show", "last")

    assert "start: none of its arcs held; its branch ends here" in ran.err
    assert "none of its arcs held; its branch ended here" in shown.out
    [start] = document(noetl)["steps"]
    assert start["unmatched"] == 1


def test_a_compensated_step_is_shown_as_undone(tmp_path, noetl):
    saga = """\
metadata: {name: saga, path: tests/saga}
workbook:
  cancel: {kind: noop}
workflow:
  - {step: start, tool: {kind: noop}, spec: {compensate: undo}, next: book}
  - {step: book, tool: {kind: noop}, spec: {compensate: cancel}, next: bad}
  - {step: bad, tool: {kind: noop, result: "{{ 1 / 0 }}"}}
  - {step: undo, tool: {kind: noop}}
"""
    (tmp_path / "saga.yaml").write_text(HEAD + saga)

    ran = noetl("run", "saga.yaml")
    shown = noetl("executions", "show", "last")

    after = ran.err.partition("bad: failed")[2]
    assert "book: undone" in after
    assert "start: undone" in after
    assert "book: done" not in after
    rows = {line.split()[0]: line for line in shown.out.splitlines() if line}
    assert "undone" in rows["start"]
    assert "undone" in rows["book"]
    assert "2 runs" not in rows["book"]
    assert "undoes other steps" in rows["undo"]


def test_why_iterations_failed_is_grouped_by_reason(tmp_path, noetl):
    flow = """\
metadata: {name: loop, path: tests/loop}
workflow:
  - step: start
    loop: {in: [1, 2, 0, 0, x], iterator: n, spec: {mode: sequential, on_error: continue}}
    tool:
      kind: python
      args: {n: "{{ iter.n }}"}
      code: |
        if n == "x":
            raise TypeError("no number")
        result = 1 / n
"""
    (tmp_path / "loop.yaml").write_text(HEAD + flow)

    ran = noetl("run", "loop.yaml")
    shown = " ".join(noetl("executions", "show", "last").out.split())

    for said in (ran.err, shown):
        assert "3 of 5 iterations failed: 2 × " in said
        assert "division by zero (loop.yaml:13)" in said
        assert "no number (loop.yaml:12)" in said
    assert "(line " not in ran.err


def test_what_failed_says_more_than_its_message_and_steps_have_times(tmp_path, noetl):
    child = """\
metadata: {name: child, path: tests/child}
workflow:
  - step: start
    tool:
      kind: python
      code: |
        raise ValueError("of the child")
"""
    parent = """\
metadata: {name: parent, path: tests/parent}
workflow:
  - {step: start, tool: {kind: noop}, next: call}
  - {step: call, tool: {kind: playbook, path: tests/child}}
"""
    (tmp_path / "child.yaml").write_text(HEAD + child)
    (tmp_path / "parent.yaml").write_text(HEAD + parent)

    ran = noetl("run", "parent.yaml")
    failed = noetl("executions", "list", "--json")

    ids = [one["execution_id"] for one in json.loads(failed.out)["executions"]]
    assert 'raise ValueError("of the child")' in ran.err
    assert any(f"`noetl executions show {one}` shows it" in ran.err for one in ids)
    assert re.search(r"start: done \(\d", ran.err)
    assert re.search(r"call: failed.*\(\d.* s\)", ran.err)
    [parent_id] = re.findall(r"^noetl: execution (\d+)$", ran.err, re.MULTILINE)
    page = noetl("executions", "show", parent_id)
    assert re.search(r"^start +done +\d+\.\d\d s", page.out, re.MULTILINE)
    assert "`noetl executions show" in page.out


def test_the_body_of_a_failed_answer_and_the_last_words_of_a_command_are_shown(tmp_path, noetl):
    with answering(b'{"error": "no such customer: ada"}', 404) as url:
        flow = f"""\
metadata: {{name: fails, path: tests/fails}}
workflow:
  - {{step: start, tool: {{kind: http, url: "{url}"}}}}
"""
        (tmp_path / "http.yaml").write_text(HEAD + flow)
        ran = noetl("run", "http.yaml")
    shown = noetl("executions", "show", "last")
    (tmp_path / "shell.yaml").write_text(
        HEAD
        + """\
metadata: {name: sh, path: tests/sh}
workflow:
  - {step: start, tool: {kind: shell, cmd: "echo first >&2; echo the last words >&2; exit 3"}}
"""
    )
    shell = noetl("run", "shell.yaml")

    assert "no such customer: ada" in ran.err
    assert "no such customer: ada" in shown.out
    [reason] = [line for line in shell.err.splitlines() if "failed in step start" in line]
    assert reason.endswith("It said: the last words")
    assert "it said: the last words" not in shell.err  # Once is enough.


@contextmanager
def answering(body: bytes, status: int) -> Iterator[str]:
    """A web service that gives one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()


BROKEN = (
    HEAD
    + """\
metadata: {name: broken, path: tests/broken}
workload: {customer: ada}
workflow:
  - step: start
    tool:
      kind: python
      code: |
        def divide(n):
            return 1 / n
        result = divide(0)
"""
)


def test_tracebacks_count_the_lines_of_the_file(tmp_path, noetl):
    (tmp_path / "broken.yaml").write_text(BROKEN)

    ran = noetl("run", "broken.yaml")
    noetl("register", "broken.yaml")
    noetl("run", "tests/broken")
    shown = noetl("executions", "show", "last")

    assert 'File "broken.yaml", line 11, in divide' in ran.err
    assert 'File "broken.yaml", line 12' in ran.err
    assert "ZeroDivisionError: division by zero (broken.yaml:11)" in ran.err
    assert 'File "tests/broken version 1", line 11, in divide' in shown.err


def test_a_file_that_nobody_registered_is_named_in_every_way_of_looking(tmp_path, noetl):
    (tmp_path / "broken.yaml").write_text(BROKEN)
    noetl("run", "broken.yaml")

    shown = noetl("executions", "show", "last")
    followed = noetl("executions", "follow", "last")
    rerun = noetl("executions", "rerun", "last")

    assert "division by zero (broken.yaml:11)" in shown.out
    for said in (shown.err, followed.err, rerun.err):
        assert 'File "broken.yaml", line 11, in divide' in said
        assert "<code>" not in said
    for said in (followed.err, rerun.err):
        assert "failed in step start: ZeroDivisionError: division by zero (broken.yaml:11)" in said


def test_lines_that_come_while_it_runs_name_the_file(tmp_path, noetl):
    (tmp_path / "broken.yaml").write_text(BROKEN)

    ran = noetl("run", "broken.yaml")
    followed = noetl("executions", "follow", "last")
    terminal = Terminal(Place(tmp_path), "run", "broken.yaml")
    live = terminal.until("failed in step start")

    assert "start: failed: ZeroDivisionError: division by zero (broken.yaml:11)" in ran.err
    assert re.search(r"✗ +start .*division by zero \(broken\.yaml:11\)", live)
    for said in (ran.err, followed.err, live):
        assert "(line " not in said
    assert terminal.ended() == 1


def test_what_fails_on_a_server_names_the_version_or_the_file(tmp_path):
    place = Place(tmp_path)
    place.write("broken.yaml", BROKEN)
    calls = "workflow:\n  - {step: call, tool: {kind: playbook, path: tests/broken}}\n"
    place.write("top.yaml", f"{HEAD}metadata: {{name: top, path: tests/top}}\n{calls}")
    server = Server(tmp_path, kind="dev")
    where = ("--server", server.url)
    try:
        registered = place.run("register", "broken.yaml", *where)
        waited = place.run("execute", "tests/broken", "--wait", *where).stderr
        followed = place.run("executions", "follow", "last", *where).stderr
        file = place.run("run", "broken.yaml", *where).stderr
        below = place.run("run", "top.yaml", *where).stderr
    finally:
        server.end()

    assert registered.returncode == 0, registered.stderr
    error = "ZeroDivisionError: division by zero"
    version = "tests/broken version 1"
    assert f"start: failed: {error} ({version}:11)" in waited
    for said, name in ((waited, version), (followed, version), (file, "broken.yaml")):
        assert f"failed in step start: {error} ({name}:11)" in said
        assert f'File "{name}", line 11, in divide' in said
    assert f"start: failed: {error} (broken.yaml:11)" in file
    assert re.search(rf"call: failed: .*{error} \({version}:11\)", below)
    for said in (waited, followed, file, below):
        assert "(line " not in said
        assert "<code>" not in said


def test_errors_of_workbook_entries_and_of_children_name_the_lines_of_their_playbook(
    tmp_path, noetl
):
    entry = BROKEN.replace("workflow:\n  - step: start", "workbook:\n  - name: share")
    entry += "workflow:\n  - step: start\n    tool: {kind: workbook, task: share}\n"
    (tmp_path / "broken.yaml").write_text(entry)
    for name, path in (("middle", "tests/broken"), ("top", "tests/middle")):
        calls = f"  - step: start\n    tool: {{kind: playbook, path: {path}}}\n"
        about = f"metadata: {{name: {name}, path: tests/{name}}}\nworkflow:\n"
        (tmp_path / f"{name}.yaml").write_text(HEAD + about + calls)

    alone = noetl("run", "broken.yaml")
    below = noetl("run", "top.yaml")
    shown = noetl("executions", "show", "last")

    assert "share: ZeroDivisionError: division by zero (broken.yaml:11)" in alone.err
    assert 'File "broken.yaml", line 11, in divide' in alone.err
    assert "division by zero (tests/broken version 1:11)" in below.err
    assert "division by zero (tests/broken version 1:11)" in shown.out


def test_validate_finds_python_that_is_none_at_its_place(tmp_path, noetl):
    (tmp_path / "broken.yaml").write_text(BROKEN.replace("(n):", "(n)"))
    (tmp_path / "returns.yaml").write_text(BROKEN.replace("result = divide", "return divide"))

    found = noetl("validate", "broken.yaml")

    assert found.code == 2
    assert "broken.yaml:10:22: " in found.out + found.err
    assert "[code-syntax]" in found.out + found.err
    assert noetl("validate", "returns.yaml").code == 0


def test_a_misspelt_key_of_the_workload_is_told_with_the_one_that_was_meant(tmp_path, noetl):
    (tmp_path / "workload.yaml").write_text(
        HEAD
        + """\
metadata: {name: misspelt, path: tests/misspelt}
workload: {customer: ada, region: north}
workflow:
  - step: start
    tool: {kind: noop, result: "{{ workload.custmer }}"}
"""
    )

    ran = noetl("run", "workload.yaml")

    assert '"workload.custmer" is undefined' in ran.err
    assert 'Did you mean "customer"?' in ran.err


def test_show_says_who_started_it_here(tmp_path, noetl):
    flow = "metadata: {name: x, path: tests/x}\nworkflow: [{step: start, tool: {kind: noop}}]\n"
    (tmp_path / "x.yaml").write_text(HEAD + flow)

    noetl("run", "x.yaml")

    assert f"by local user {getpass.getuser()}" in noetl("executions", "show", "last").out
    assert document(noetl)["actor"]["kind"] == "local"


def test_why_a_step_ran_is_told_without_a_server(tmp_path, noetl):
    flow = """\
metadata: {name: guards, path: tests/guards}
workflow:
  - step: start
    tool: {kind: noop, result: {total: 3}}
    next:
      arcs:
        - {step: much, when: "{{ start.total > 5 }}"}
        - {step: little, when: "{{ start.total < 5 }}"}
  - {step: much, tool: {kind: noop}}
  - {step: little, tool: {kind: noop}}
"""
    (tmp_path / "guards.yaml").write_text(HEAD + flow)
    noetl("run", "guards.yaml")

    much = noetl("executions", "why", "last", "--step", "much")
    little = noetl("executions", "why", "last", "--step", "little", "--json")
    lonely = noetl("executions", "why", "last", "--at", "3")

    assert much.out.strip() == (
        "`much` did not run: its guard `start.total > 5` was false, `start.total` = 3."
    )
    assert json.loads(little.out)["conditions"][0]["verdict"] == "fired"
    assert lonely.code == 2
