"""`noetl executions`: looking beside a running process, and reaching into it."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from noetl import wiring
from noetl.api.routes.executions import START, StartExecution
from noetl.cli.calls import acting
from noetl.settings import Settings
from noetl.tools.limits import ANSWER_TOLD_SECONDS
from tests.cli.test_run import FAILS, HEAD, HELLO, SLOW
from tests.faults.cluster import until
from tests.faults.runs import Place, kill, wait_for
from tests.stopwatch import PATIENCE, Stopwatch

STEPS = (
    HEAD
    + """\
metadata: {name: steps, path: tests/steps}
workload: {factor: 2, file: ""}
workflow:
  - step: start
    tool:
      kind: python
      args: {file: "{{ workload.file }}"}
      code: |
        with open(file, "a") as out:
            out.write("start\\n")
        result = 21
    next: times
  - step: times
    tool:
      kind: python
      args: {a: "{{ start }}", b: "{{ workload.factor }}"}
      code: "result = a * b"
"""
)


LATER = (
    HEAD
    + """\
metadata: {name: later, path: tests/later}
executor: {spec: {concurrency: {key: later, limit: 1}}}
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: last, spec: {delay: 0.1}}]}}
  - {step: last, tool: {kind: python, code: "result = 'later'"}}
"""
)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.write("hello.yaml", HELLO)
    found.write("fails.yaml", FAILS)
    found.write("slow.yaml", SLOW)
    found.write("steps.yaml", STEPS.replace('file: ""', f"file: {tmp_path}/log"))
    return found


def test_executions_are_labelled_listed_and_counted_by_label(place):
    first = place.run("run", "hello.yaml", "--label", "team=sales", "--label", "day=mon", "--json")
    second = place.run("run", "hello.yaml", "--label", "team=billing", "--json")
    assert (first.returncode, second.returncode) == (0, 0)
    execution_id = json.loads(first.stdout)["execution_id"]

    listed = place.run(
        "executions", "list", "--label", "team=sales", "--label", "day=mon", "--json"
    )
    counted = place.run("executions", "labels", "team")
    shown = place.run("executions", "show", execution_id)
    refused = place.run("run", "hello.yaml", "--label", "a b=c")

    [row] = json.loads(listed.stdout)["executions"]
    assert row["execution_id"] == execution_id
    assert [line.split() for line in counted.stdout.splitlines()] == [
        ["1", "billing"],
        ["1", "sales"],
    ]
    assert "labels     day=mon, team=sales" in shown.stdout
    assert refused.returncode == 2
    assert "cannot be the name of a label" in refused.stderr


@pytest.fixture
def running(place):
    """An execution that another process runs just now."""
    process = place.start("run", "slow.yaml")
    wait_for(process, "wait: started")
    yield process
    if process.poll() is None:
        kill(process)
    for stream in (process.stdout, process.stderr):
        stream.close()


# --- Looking -----------------------------------------------------------------------------------


def test_without_a_database_it_says_what_to_do(place):
    ran = place.run("executions", "list")

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "does not exist: nothing was run, registered or stored" in ran.stderr


def test_the_list_is_newest_first_and_can_be_narrowed(place):
    place.run("run", "hello.yaml")
    place.run("run", "fails.yaml")

    def paths(*options: str) -> list[str]:
        found = place.json("executions", "list", *options)["executions"]
        return [one["path"] for one in found]

    assert paths() == ["tests/fails", "tests/hello"]
    assert paths("--status", "failed") == ["tests/fails"]
    assert paths("--path", "tests/hello") == ["tests/hello"]
    assert paths("--since", "1h", "--limit", "1") == ["tests/fails"]
    assert paths("--since", "1ms") == []
    plain = place.run("executions", "list").stdout.splitlines()
    assert "failed" in plain[0]
    assert "it had to be" in plain[0]
    assert "completed" in plain[1]


def test_since_that_is_no_time_span_is_refused(place):
    ran = place.run("executions", "list", "--since", "yesterday")

    assert ran.returncode == 2
    assert "a duration like 1h" in ran.stderr


def test_an_id_may_be_shortened(place):
    first = json.loads(place.run("run", "hello.yaml", "--json").stdout)["execution_id"]
    second = json.loads(place.run("run", "hello.yaml", "--json").stdout)["execution_id"]

    shown = [
        place.json("executions", "show", written)["execution_id"]
        for written in ("last", second[-6:], first[:-1])
    ]
    both = place.run("executions", "show", first[:3])
    neither = place.run("executions", "show", "99999")

    assert shown == [second, second, first]
    assert both.returncode == neither.returncode == 1
    assert "matches several executions" in both.stderr
    assert "there is no execution 99999" in neither.stderr


def test_show_names_the_steps_the_error_and_what_was_printed(place):
    place.run("run", "fails.yaml")

    ran = place.run("executions", "show", "last")

    assert "start  failed" in ran.stdout
    assert "ValueError: it had to be" in ran.stdout
    assert "the last words" in ran.stderr


def test_events_can_be_chosen_by_type_step_and_number(place):
    place.run("run", "steps.yaml")

    done = place.json("executions", "events", "last", "--type", "step.done")["events"]
    of_step = place.json("executions", "events", "last", "--step", "times", "--type", "step.done")
    rest = place.json("executions", "events", "last", "--after", str(done[0]["seq"]))
    some = place.json("executions", "events", "last", "--limit", "2")

    assert [(event["step"], event["event_type"]) for event in done] == [
        ("start", "step.done"),
        ("times", "step.done"),
    ]
    assert [event["step"] for event in of_step["events"]] == ["times"]
    assert rest["events"][0]["seq"] == done[0]["seq"] + 1
    assert (some["next_after"], some["more"]) == (2, True)
    said = place.run("executions", "events", "last").stdout
    assert "step.done" in said
    assert "seal=" not in said, "what marks references is nobody's to know"


def test_one_can_look_while_another_process_runs_it(place, running):
    listed = place.json("executions", "list")["executions"]
    why = place.run("executions", "why", "last")

    assert [(one["status"], one["current_steps"]) for one in listed] == [("RUNNING", ["wait"])]
    assert why.stdout.startswith('step "wait" runs on embedded-')
    assert f"-{running.pid}-" in why.stdout
    assert ", whose lease holds until " in why.stdout


def test_follow_shows_what_another_process_does_until_the_end(place):
    process = place.start("run", "slow.yaml", "--set", f"until={place.folder}/now")
    wait_for(process, "wait: started")
    follower = place.start("executions", "follow", "last")
    wait_for(follower, "following execution")
    place.write("now", "")
    out, said = follower.communicate(timeout=PATIENCE)
    process.communicate(timeout=PATIENCE)

    assert follower.returncode == 0
    assert "wait: done" in said
    assert out == "woke up\n"


def test_follow_ends_when_whoever_ran_it_has_died(place, running):
    follower = place.start("executions", "follow", "last")
    wait_for(follower, "following execution")
    kill(running)
    _, said = follower.communicate(timeout=PATIENCE)

    assert follower.returncode == 1
    assert "it was interrupted" in said


def test_an_interrupted_execution_is_shown_as_what_it_is(place, running):
    kill(running)

    assert "interrupted" in place.run("executions", "list").stdout
    [why] = place.run("executions", "why", "last").stdout.splitlines()
    assert "no process is running it" in why


# --- Acting ------------------------------------------------------------------------------------


def test_cancel_reaches_the_process_that_runs_it_within_a_second_of_asking(place, running):
    ran = place.run("executions", "cancel", "last", "--reason", "wrong file")
    watch = Stopwatch(running.pid)
    _, said = running.communicate(timeout=PATIENCE)

    assert ran.returncode == 0, ran.stderr
    assert watch.seconds() < 5
    assert running.returncode == 1
    assert "cancelled: wrong file" in said
    assert [status for _, status in place.executions()] == ["CANCELLED"]
    [(execution_id, _)] = place.executions()
    [event] = place.events(execution_id, "playbook.cancelled")
    assert event["reason"] == "wrong file"


def test_cancel_of_what_has_ended_is_refused(place):
    place.run("run", "hello.yaml")

    ran = place.run("executions", "cancel", "last")

    assert ran.returncode == 1
    assert "has ended (COMPLETED); an ended execution does not change" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_cancel_of_an_interrupted_execution_needs_nobody_else(place, running):
    kill(running)

    ran = place.run("executions", "cancel", "last")

    assert ran.returncode == 0
    assert [status for _, status in place.executions()] == ["CANCELLED"]


def test_it_is_said_when_the_process_that_has_the_database_does_not_answer(place, running):
    os.kill(running.pid, signal.SIGSTOP)
    try:
        ran = place.run("executions", "cancel", "last")
    finally:
        os.kill(running.pid, signal.SIGCONT)

    assert ran.returncode == 1
    assert "nothing was done: the process that holds the database does not answer" in ran.stderr
    assert str(running.pid) in ran.stderr
    # Whatever it found when it woke up came before this, and a cancelled execution does not pause.
    paused = place.run("executions", "pause", "last")
    assert paused.returncode == 0, paused.stderr
    assert [status for _, status in place.executions()] == ["PAUSED"]


def test_what_is_kept_can_be_changed_beside_the_process_that_has_the_database(place, running):
    stored = place.run("credential", "set", "mail", "password=hunter2")
    again = place.run("credential", "set", "mail", "password=hunter3")
    kept = place.run("register", "hello.yaml")
    made = place.run("access", "token", "create", "boss", "--role", "admin")
    gone = place.run("credential", "delete", "mail")
    audit = place.json("access", "audit")["entries"]

    assert (stored.stderr, again.stderr) == (
        'noetl: credential "mail" is stored\n',
        'noetl: credential "mail" is replaced\n',
    )
    assert "version 1" in kept.stderr
    assert made.stdout.startswith("noetl_t_")
    assert gone.returncode == 0, gone.stderr
    actions = [one["action"] for one in audit if one["action"] != "execution.start"]
    assert actions == [
        "credential.deleted",
        "token.created",
        "playbook.register",
        "credential.put",
        "credential.put",
    ]
    assert {one["who"] for one in audit} == {f"local user {getpass.getuser()}"}


def test_a_call_that_nobody_answers_is_told_with_its_host_and_since_when(place):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        place.write(
            "ask.yaml",
            f"""{HEAD}\
metadata: {{name: ask, path: tests/ask}}
workflow:
  - {{step: ask, tool: {{kind: http, url: "http://{host}/orders?token=abc"}}}}
""",
        )
        process = place.start("run", "ask.yaml")
        wait_for(process, "ask: started")
        [(execution_id, _)] = place.executions()
        until(lambda: list(place.events(execution_id, "task.waiting")), "the wait is told")
        [began] = [event["at"] for event in place.events(execution_id, "task.started")]
        [since] = [event["at"] for event in place.events(execution_id, "task.waiting")]
        why = place.json("executions", "why", "last")
        shown = place.run("executions", "show", "last").stdout
        place.run("executions", "cancel", "last")
        process.communicate(timeout=PATIENCE)

    [wait] = [one for one in why["waits_for"] if one["waits_for"] == "place"]
    assert wait["what"] == f"an answer of {host}"
    assert f"waits for an answer of {host} since {wait['since']}" in wait["text"]
    assert began <= since <= time.time() - ANSWER_TOLD_SECONDS
    assert f"task ask_task waits for an answer of {host} since" in shown


def test_pause_and_resume_reach_the_process_that_runs_it(place):
    process = place.start("run", "slow.yaml", "--set", f"until={place.folder}/now")
    wait_for(process, "wait: started")

    paused = place.run("executions", "pause", "last")
    place.write("now", "")
    said = wait_for(process, "wait: done")
    document = place.json("executions", "show", "last")
    why = place.run("executions", "why", "last").stdout
    resumed = place.run("executions", "resume", "last")
    out, said = process.communicate(timeout=PATIENCE)

    assert (paused.returncode, resumed.returncode) == (0, 0), paused.stderr + resumed.stderr
    assert document["status"] == "PAUSED"
    assert [step["step"] for step in document["steps"]] == ["start", "wait"]
    assert "it is paused" in why
    assert process.returncode == 0, said
    assert out == "woke up\n"
    [(execution_id, _)] = place.executions()
    happened = [(event["type"], event.get("step")) for event in place.events(execution_id)]
    went_on = happened.index(("playbook.resumed", None))
    assert happened.index(("step.done", "wait")) < went_on
    assert happened.index(("step.scheduled", "last")) > went_on


def test_resume_runs_an_interrupted_execution_to_its_end(place):
    process = place.start("run", "slow.yaml", "--set", "seconds=0.5")
    wait_for(process, "wait: started")
    kill(process)

    ran = place.run("executions", "resume", "last")

    assert (ran.returncode, ran.stdout) == (0, "woke up\n")


def test_resume_all_goes_on_with_all_that_was_interrupted(place):
    for _ in range(2):
        process = place.start("run", "slow.yaml", "--new", "--set", "seconds=0.5")
        wait_for(process, "wait: started")
        kill(process)

    ran = place.run("executions", "resume-all")
    again = place.run("executions", "resume-all")

    assert ran.returncode == 0, ran.stderr
    assert "continuing 2 executions" in ran.stderr
    assert [status for _, status in place.executions()] == ["COMPLETED", "COMPLETED"]
    assert "no execution was interrupted" in again.stderr


def test_rerun_is_a_new_execution_with_the_old_workload(place, tmp_path):
    first = place.json("run", "steps.yaml", "--set", "factor=3")
    again = place.json("executions", "rerun", "last")
    other = place.json("executions", "rerun", "last", "--set", "factor=4")

    assert (first["result"], again["result"], other["result"]) == (63, 63, 84)
    assert len({one["execution_id"] for one in (first, again, other)}) == 3
    assert (tmp_path / "log").read_text() == "start\n" * 3


def test_rerun_from_a_step_keeps_the_results_before_it(place, tmp_path):
    place.run("run", "steps.yaml")

    again = place.json("executions", "rerun", "last", "--from", "times", "--set", "factor=10")
    nowhere = place.run("executions", "rerun", "last", "--from", "tims")
    lost = place.run("executions", "rerun", "last", "--from", "publish")

    assert again["result"] == 210
    assert (tmp_path / "log").read_text() == "start\n"
    assert nowhere.returncode == 1
    assert 'Did you mean "times"?' in nowhere.stderr
    assert 'no step "publish". Its steps: start, times' in lost.stderr


def test_resume_beside_a_running_process_makes_that_one_go_on_with_it(place):
    process = place.start("run", "slow.yaml", "--set", f"until={place.folder}/first")
    wait_for(process, "wait: started")
    kill(process)
    [(left, _)] = place.executions()
    other = place.start("run", "slow.yaml", "--new", "--set", f"until={place.folder}/second")
    wait_for(other, "wait: started")

    ran = place.run("executions", "resume", left)
    place.write("first", "")
    followed = place.run("executions", "follow", left)
    place.write("second", "")
    other.communicate(timeout=PATIENCE)

    assert "continues in the process that holds the database" in ran.stderr
    assert (followed.returncode, followed.stdout) == (0, "woke up\n")
    assert [status for _, status in place.executions()] == ["COMPLETED", "COMPLETED"]


def test_nothing_is_deleted_where_nobody_can_be_asked(place):
    assert place.run("run", "hello.yaml").returncode == 0

    ran = place.run("executions", "delete", "last")

    assert ran.returncode == 2
    assert "--yes goes on without asking" in ran.stderr
    assert [status for _, status in place.executions()] == ["COMPLETED"]


def test_what_is_started_beside_a_running_process_runs_there_to_its_end(place):
    """Also what waits for a moment on its way, and for its turn."""
    place.write("later.yaml", LATER)
    assert place.run("register", "later.yaml").returncode == 0
    other = place.start("run", "slow.yaml", "--set", f"until={place.folder}/now")
    wait_for(other, "wait: started")
    database = ("--db", str(place.folder / ".noetl" / "noetl.db"))

    ran = [place.run("execute", "tests/later", *database) for _ in range(2)]
    followed = [place.run("executions", "follow", one.stdout.strip()) for one in ran]
    place.write("now", "")
    other.communicate(timeout=PATIENCE)

    assert all("runs in the process that holds the database" in one.stderr for one in ran)
    assert [(one.returncode, one.stdout) for one in followed] == [(0, "later\n")] * 2
    assert [status for _, status in place.executions()] == ["COMPLETED"] * 3


def test_who_waits_beside_a_process_that_ends_first_runs_the_rest_itself(place):
    assert place.run("register", "slow.yaml").returncode == 0
    database = ("--db", str(place.folder / ".noetl" / "noetl.db"))
    other = place.start("run", "slow.yaml", "--new", "--set", f"until={place.folder}/first")
    wait_for(other, "wait: started")

    waiting = place.start(
        "execute", "tests/slow", "--wait", "--set", f"until={place.folder}/second", *database
    )
    wait_for(waiting, "wait: started")
    place.write("first", "")
    other.communicate(timeout=PATIENCE)
    wait_for(waiting, "the process that held the database has ended; execution")
    place.write("second", "")
    result, rest = waiting.communicate(timeout=PATIENCE)

    assert (waiting.returncode, result) == (0, "woke up\n")
    assert "start: " not in rest, "what was told before is not told again"
    assert [status for _, status in place.executions()] == ["COMPLETED", "COMPLETED"]


def test_who_waits_hands_its_execution_to_the_next_process_that_holds_the_database(place):
    assert place.run("register", "slow.yaml").returncode == 0
    database = ("--db", str(place.folder / ".noetl" / "noetl.db"))
    first = place.start("run", "slow.yaml", "--new", "--set", f"until={place.folder}/first")
    wait_for(first, "wait: started")
    waiting = place.start(
        "execute", "tests/slow", "--wait", "--set", f"until={place.folder}/second", *database
    )
    wait_for(waiting, "wait: started")

    waiting.send_signal(signal.SIGSTOP)  # It does not see how one goes and another comes.
    kill(first)
    other = place.start("run", "slow.yaml", "--new", "--set", f"until={place.folder}/other")
    wait_for(other, "wait: started")
    waiting.send_signal(signal.SIGCONT)
    place.write("second", "")
    result, _ = waiting.communicate(timeout=PATIENCE)

    assert (waiting.returncode, result) == (0, "woke up\n")
    assert other.poll() is None
    place.write("other", "")
    other.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_nobody_has_got_is_done_by_whoever_holds_the_database_by_then(place, end):
    assert place.run("register", "slow.yaml").returncode == 0
    database = f"sqlite:///{place.folder}/.noetl/noetl.db"
    settings = Settings.from_environment({"NOETL_DATABASE_URL": database})

    async def story() -> str:
        other = await asyncio.to_thread(place.start, "run", "slow.yaml", "--new")
        await asyncio.to_thread(wait_for, other, "wait: started")
        async with acting(settings) as api:
            assert api.system is None
            other.send_signal(end)
            await asyncio.to_thread(other.communicate)
            started = await api.call(START, body=StartExecution(path="tests/slow"))
            assert api.system is not None
            return started.execution_id

    assert place.executions() == []
    started = asyncio.run(story())
    assert [one for one, _ in place.executions()][-1] == started


def test_a_command_that_runs_nothing_is_not_taken_for_a_process_that_does(place):
    assert place.run("register", "hello.yaml").returncode == 0
    database = str(place.folder / ".noetl" / "noetl.db")
    settings = Settings.from_environment({"NOETL_DATABASE_URL": f"sqlite:///{database}"})

    async def hold() -> subprocess.Popen[str]:
        async with wiring.reached(settings):  # as `noetl register` holds it
            started = place.start("execute", "tests/hello", "--db", database)
            with pytest.raises(subprocess.TimeoutExpired):
                await asyncio.to_thread(started.communicate, timeout=1)
        return started

    started = asyncio.run(hold())
    _, said = started.communicate(timeout=PATIENCE)

    assert started.returncode == 0
    assert "no process runs it: `noetl executions resume " in said
    assert [status for _, status in place.executions()] == ["RUNNING"]


def test_list_takes_a_query_as_the_api_does(place):
    place.run("run", "hello.yaml")
    place.run("run", "fails.yaml")

    [failed] = place.json("executions", "list", "status:failed took:<10m")["executions"]
    assert failed["status"] == "FAILED"
    [done] = place.json("executions", "list", "since:1h -status:failed")["executions"]
    assert done["status"] == "COMPLETED"
    assert (
        "start: ValueError: it had to be" in place.run("executions", "list", "status:failed").stdout
    )
    wrong = place.run("executions", "list", "status:faild")
    assert wrong.returncode == 2
    assert 'character 8: there is no status "faild". Did you mean "failed"?' in wrong.stderr
