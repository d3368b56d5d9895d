"""Fork, diff, the critical path and recordings from the command line, without a server."""

from __future__ import annotations

import json
import os
import subprocess

import msgspec
import pytest

from noetl.model.answers import ExecutionStatus
from tests.cli.conftest import COMMAND, clean_environment
from tests.server.stage import Caller, answer, playing

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chain, path: tests/chain}
workflow:
  - step: start
    tool: {kind: shell, command: "echo start >> calls; echo 5"}
    next: {arcs: [{step: end, set: {ctx.seen: "{{ start.stdout | int }}"}}]}
  - step: end
    tool: {kind: shell, command: "echo end >> calls; test {{ ctx.seen }} -ne 5"}
"""


def test_a_failed_execution_is_forked_with_another_ctx_and_compared(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    assert noetl("run", "chain.yaml").code == 1
    [failed] = json.loads(noetl("executions", "list", "--json").out)["executions"]
    first = failed["execution_id"]
    events = json.loads(noetl("executions", "events", first, "--json").out)["events"]
    seq = next(e["seq"] for e in events if e["event_type"] == "task.done" and e["step"] == "end")
    (tmp_path / "calls").unlink()

    plan = noetl("executions", "fork", first, "--at", str(seq), "--dry-run")
    assert not (tmp_path / "calls").exists()
    forked = noetl("executions", "fork", first, "--at", str(seq), "--set", "ctx.seen=6", "--json")
    diff = noetl("executions", "diff", first, "last")
    same = noetl("executions", "diff", first, first, "--json")
    critical = noetl("executions", "show", "last", "--critical", "--json")

    assert plan.code == 0
    assert "1 call reused, 1 repeated" in plan.out
    assert forked.code == 0, forked.err
    assert json.loads(forked.out)["ctx"] == {"seen": 6}
    assert (tmp_path / "calls").read_text().split() == ["end"]
    assert diff.code == 1
    assert "`end.end_task` is error in the first and ok in the second" in diff.out
    assert (same.code, json.loads(same.out)["same"]) == (0, True)
    other = noetl("executions", "diff", first, "last", "--json")
    assert (other.code, json.loads(other.out)["same"]) == (1, False)
    assert [run["step"] for run in json.loads(critical.out)["runs"]] == ["end"]
    assert "has no event 9999" in noetl("executions", "fork", first, "--at", "9999").err


LOOPS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: loops, path: tests/loops}
workflow:
  - step: start
    loop: &five {in: [0, 1, 2, 3, 4], iterator: n, spec: {on_error: continue}}
    tool: &call
      kind: shell
      command: 'echo "$n" >> calls; test "$n" -lt "$below"'
      env: {n: "{{ iter.n }}", below: "{{ ctx.below | default(3) }}"}
    next: {arcs: [{step: second}]}
  - step: second
    loop: {in: [0, 1], iterator: n, spec: {on_error: continue}}
    tool: {kind: noop, result: "{{ 1 / (ctx.below | default(3) - 3 + iter.n) }}"}
"""


def test_failed_iterations_are_repeated_and_no_other(tmp_path, noetl):
    calls = tmp_path / "calls"
    (tmp_path / "loops.yaml").write_text(LOOPS.replace("calls", str(calls)))
    assert noetl("run", "loops.yaml").code == 0
    assert calls.read_text().split() == ["0", "1", "2", "3", "4"]
    calls.unlink()

    several = noetl("executions", "fork", "last", "--failed")
    planned = noetl("executions", "fork", "last", "--failed", "--step", "start", "--dry-run")
    assert not calls.exists()
    once = noetl("executions", "fork", "last", "--failed", "--step", "start", "--set", "below=4")
    again = noetl("executions", "fork", "last", "--failed", "--step", "start", "--set", "below=5")
    made = calls.read_text().split()
    none = noetl("executions", "fork", "last", "--failed")
    no_test = noetl("test", "--from", "last", "-o", "it.test.yaml")
    one = noetl("executions", "fork", "last", "--step", "start", "--iteration", "2")

    assert several.code == 2
    assert "start, second. Choose one with --step" in several.err
    assert "(iterations 3, 4)" in planned.out
    assert (once.code, again.code, one.code) == (0, 0, 0)
    assert made == ["3", "4", "4"]
    assert calls.read_text().split() == [*made, "2"]
    assert none.code == 1
    assert "no iteration of a loop has failed" in none.err
    assert (no_test.code, "from which it was forked" in no_test.err) == (2, True)


def test_a_test_that_cannot_be_made_leaves_no_playbook_behind(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("register", "chain.yaml")
    noetl("execute", "tests/chain", "--db", ".noetl/noetl.db")
    (tmp_path / "chain.yaml").unlink()
    before = sorted(tmp_path.iterdir())

    made = noetl("test", "--from", "last", "-o", "it.test.yaml")

    assert made.code == 2
    assert "a test is made of one that has ended by itself" in made.err
    assert sorted(tmp_path.iterdir()) == before


def test_moments_are_shown_in_local_time(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("run", "chain.yaml")
    noetl("executions", "hold", "last", "--note", "why")

    shown = noetl("executions", "show", "last", TZ="Asia/Tokyo").out.splitlines()
    [held] = noetl("executions", "holds", TZ="Asia/Tokyo").out.splitlines()

    moments = [line.split()[1] for line in shown if line.startswith(("started", "ended"))]
    assert [one.rstrip(",")[-6:] for one in moments] == ["+09:00", "+09:00"]
    assert held.split()[1].endswith("+09:00")


def test_an_execution_held_again_without_a_note_keeps_its_note(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("run", "chain.yaml")
    noetl("executions", "hold", "last", "--note", "evidence")
    again = noetl("executions", "hold", "last")

    [held] = json.loads(noetl("executions", "holds", "--json").out)["holds"]

    assert (again.code, held["note"]) == (0, "evidence")


def test_a_wrong_use_is_told_what_to_do_next(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    (tmp_path / "chain.test.yaml").write_text("mine")
    noetl("run", "chain.yaml")

    for words, code, said in (
        (("executions", "fork", "last"), 2, "`noetl executions events ID` lists them"),
        (("executions", "fork", "last", "--failed", "--iteration", "1"), 2, "give only one"),
        (("executions", "fork", "last", "--at", "3", "--step", "end"), 2, "without --at"),
        (("executions", "fork", "last", "--failed"), 1, "--at SEQ continues from any event"),
        (("executions", "fork", "last", "--failed", "--step", "x"), 1, "no loop of step"),
        (("executions", "list", "-timeout"), 2, "list -- -timeout"),
        (("executions", "why", "last", "--step", "middle"), 1, "Its steps: start, end."),
        (("executions", "export", "last", "-o", "no/where"), 2, "no/where cannot be written"),
        (("test", "chain.yaml"), 2, "is a playbook"),
        (("test", "chain.yaml", "--against", "other/path"), 2, "`noetl executions list`"),
        (("test", "--from", "last"), 2, "was not changed"),
        (("test", "--from", "last", "-o", "no/where.test.yaml"), 2, "cannot be written"),
        (("ui", "chain.yaml"), 2, "`noetl executions export ID -o FILE`"),
    ):
        told = noetl(*words)
        assert (told.code, said in told.err) == (code, True), (words, told.err)
    assert (tmp_path / "chain.test.yaml").read_text() == "mine"


def test_terms_of_a_query_may_begin_with_a_minus(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("run", "chain.yaml")

    assert noetl("executions", "list", "-status:failed").out == ""
    assert "tests/chain" in noetl("executions", "list", "-status:done", "--limit", "1").out
    assert "tests/chain" in noetl("executions", "list", "-label.team=x").out
    assert noetl("executions", "list", "--", "-chain").out == ""


def test_an_execution_is_exported_to_a_file_or_to_standard_output(tmp_path, noetl):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("run", "chain.yaml")

    made = noetl("executions", "export", "last", "-o", "it.noetl")
    shown = noetl("ui", "chain.yaml")

    assert made.code == 0
    assert (tmp_path / "it.noetl").read_bytes()[:2] == b"\x1f\x8b"
    assert shown.code == 2
    assert "not a recording" in shown.err


def test_an_export_keeps_the_mode_of_the_file_and_the_link_to_it(tmp_path, noetl):
    """It took the place of the link: with `-o /dev/stdout` of a link of the whole machine."""
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("run", "chain.yaml")
    kept, latest = tmp_path / "kept.noetl", tmp_path / "latest.noetl"
    kept.touch(mode=0o600)
    latest.symlink_to(kept.name)

    assert noetl("executions", "export", "last", "-o", "latest.noetl").code == 0
    assert latest.is_symlink()
    assert kept.read_bytes()[:2] == b"\x1f\x8b"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o400)
    refused = noetl("executions", "export", "last", "-o", "latest.noetl")
    assert (refused.code, refused.err) == (
        2,
        "noetl: latest.noetl cannot be written: it is read-only.\n",
    )


def test_an_export_that_breaks_off_leaves_the_file_as_it_was(tmp_path, noetl):
    (tmp_path / "it.noetl").write_text("the one before")
    status = ExecutionStatus(
        execution_id="4711",
        status="COMPLETED",
        current_steps=[],
        current_step=None,
        completed_steps=[],
        failed=False,
        completed=True,
        error=None,
        start_time=None,
        end_time=None,
        duration_seconds=None,
    )

    def server(caller: Caller) -> None:
        caller.hear()
        caller.say(answer(msgspec.json.encode(status)))
        caller.hear()
        caller.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")

    with playing(server) as stage:
        command = ("executions", "export", "4711", "-o", "it.noetl", "--server", stage.url)
        broken = noetl(*command)

    assert broken.code == 1
    assert "Traceback" not in broken.err
    assert {path.name for path in tmp_path.iterdir()} == {"it.noetl"}
    assert (tmp_path / "it.noetl").read_text() == "the one before"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="it has no disk that is always full")
@pytest.mark.parametrize("command", ["list", "export last -o -", "events last --json"])
def test_a_full_disk_behind_standard_output_is_said_in_a_sentence(tmp_path, noetl, command):
    (tmp_path / "chain.yaml").write_text(TEXT.replace("calls", str(tmp_path / "calls")))
    noetl("run", "chain.yaml")

    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [*COMMAND, "executions", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=clean_environment(),
        )

    assert ran.returncode == 1
    assert ran.stderr == "noetl: the output cannot be written: no space.\n"
