"""`noetl signal` and `noetl executions answer`: talking to executions that wait, run or not."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import pytest

from tests.cli.conftest import COMMAND
from tests.cli.test_run import HEAD
from tests.faults.runs import Place, environment, kill, wait_for
from tests.stopwatch import PATIENCE

ASKS = (
    HEAD
    + """\
metadata: {name: asks, path: tests/asks}
workload: {amount: 120}
workflow:
  - step: start
    spec:
      eval_mode: on_event
      form:
        - {name: approved, type: boolean, label: "Pay {{ workload.amount }}?"}
        - {name: account, type: choice, options: [main, travel], default: main}
        - {name: comment, required: false, help: "Anything to add?"}
    case:
      - when: "{{ event.name == 'approval.received' and event.data.approved }}"
        then: {next: [{step: pay, args: {account: "{{ event.data.account }}"}}]}
      - when: "{{ event.name == 'approval.received' }}"
        then: {next: refuse}
  - step: pay
    tool: {kind: python, args: {by: "{{ args.account }}"}, code: "result = f'paid by {by}'"}
  - step: refuse
    tool: {kind: python, args: {why: "{{ start.comment }}"}, code: "result = f'refused: {why}'"}
"""
)
LISTENS = (
    HEAD
    + """\
metadata: {name: listens, path: tests/listens}
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case:
      - when: "{{ event.name == 'item' }}"
        then: {set: {ctx.items: "{{ (ctx.items | default([])) + [event.data] }}"}}
      - when: "{{ event.name == 'message.received' }}"
        then: {result: {value: "{{ ctx.items | default([]) }}"}}
"""
)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.write("asks.yaml", ASKS)
    found.write("listens.yaml", LISTENS)
    return found


@pytest.fixture
def begun(place):
    """Start `noetl run FILE` in a process of its own; it waits when this returns."""
    processes = []

    def begin(file: str) -> subprocess.Popen[str]:
        process = place.start("run", file)
        processes.append(process)
        said = wait_for(process, "waits for")
        assert "waits for" in said, said
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            kill(process)
        for stream in (process.stdout, process.stderr):
            stream.close()


def output(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=PATIENCE)
    return out


# --- While a process runs it -------------------------------------------------------------------


def test_a_run_that_waits_says_how_to_answer_it(place):
    process = place.start("run", "asks.yaml")
    said = wait_for(process, "waits for")
    kill(process)

    [(execution_id, _)] = place.executions()
    assert f"waits for approval.received; `noetl executions answer {execution_id}`" in said


def test_a_signal_reaches_the_process_that_runs_the_execution(place, begun):
    process = begun("listens.yaml")

    for number in ("1", "2"):
        sent = place.run("signal", "last", "--name", "item", "--data", number)
        assert sent.returncode == 0, sent.stderr
    place.run("signal", "last")

    assert json.loads(output(process)) == [1, 2]
    assert process.returncode == 0


def test_a_name_that_no_step_waits_for_is_kept_and_pointed_out(place, begun):
    begun("listens.yaml")

    kept = place.run("signal", "last", "--name", "itme").stderr
    taken = place.run("signal", "last", "--name", "item").stderr

    assert "it is kept, because no step waits for itme at the moment." in kept
    assert 'Did you mean "item"?' in kept
    assert "kept" not in taken


def test_an_answer_by_flags_goes_on_and_a_bad_one_is_refused_by_its_field(place, begun):
    process = begun("asks.yaml")

    bad = place.run("executions", "answer", "last", "--set", "approved=perhaps")
    missing = place.run("executions", "answer", "last", "--set", "comment=hm")
    wrong = place.run("executions", "answer", "last", "approved")
    good = place.run("executions", "answer", "last", "approved=no", "--set", "comment=dear")

    assert wrong.returncode == 2
    assert '"approved" is not FIELD=VALUE, e.g. approved=yes' in wrong.stderr
    assert (bad.returncode, missing.returncode, good.returncode) == (2, 2, 0)
    assert "field \"approved\" takes true or false, not 'perhaps'" in bad.stderr
    assert 'field "approved" is missing' in missing.stderr
    assert output(process) == "refused: dear\n"


def test_on_a_terminal_the_fields_are_asked_for_one_by_one(place, begun):
    process = begun("asks.yaml")
    ours, theirs = pty.openpty()
    answering = subprocess.Popen(
        [*COMMAND, "executions", "answer", "last"],
        cwd=place.folder,
        env=environment(),
        stdin=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, b"perhaps\nyes\ntravel\n\n")
    _, said = answering.communicate(timeout=PATIENCE)
    os.close(ours)

    assert answering.returncode == 0, said
    assert "Pay 120? (true or false)" in said
    assert "takes true or false, not 'perhaps'" in said
    assert "account (one of main, travel) [main]" in said
    assert "Anything to add?" in said
    assert output(process) == "paid by travel\n"


def test_why_and_show_tell_what_is_asked(place, begun):
    begun("asks.yaml")

    why = place.json("executions", "why", "last")
    shown = place.run("executions", "show", "last").stdout

    [reason] = why["waits_for"]
    assert [field["name"] for field in reason["form"]] == ["approved", "account", "comment"]
    assert "waits for approval.received" in shown
    assert "approved (boolean)  Pay 120?" in shown
    assert "comment (text, may be left out)" in shown


# --- While nobody does -------------------------------------------------------------------------


def test_without_a_process_the_event_is_kept_and_it_says_how_to_go_on(place, begun):
    kill(begun("asks.yaml"))

    answered = place.run("executions", "answer", "last", "--set", "approved=yes")
    resumed = place.run("executions", "resume", "last")

    assert answered.returncode == 0, answered.stderr
    assert "no process runs it: `noetl executions resume" in answered.stderr
    assert resumed.stdout == "paid by main\n"


def test_the_same_id_again_changes_nothing(place, begun):
    kill(begun("listens.yaml"))

    for _ in range(3):
        place.run("signal", "last", "--name", "item", "--data", '"x"', "--id", "shipment-1")
    place.run("signal", "last")

    assert place.json("executions", "show", "last")["result"] == ["x"]
    assert place.count("message.received") == 2


def test_data_may_come_from_a_file(place, begun):
    kill(begun("listens.yaml"))
    place.write("data.json", '{"a": [1, null]}')

    place.run("signal", "last", "--name", "item", "--data", "@data.json")

    assert place.json("executions", "show", "last")["ctx"] == {"items": [{"a": [1, None]}]}


# --- What is refused ---------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused_with_the_reason(place, begun):
    kill(begun("listens.yaml"))

    not_json = place.run("signal", "last", "--data", "{")
    ours = place.run("signal", "last", "--name", "step.done")
    nowhere = place.run("signal", "last", "--step", "strat")
    no_form = place.run("executions", "answer", "last")

    assert not_json.returncode == ours.returncode == nowhere.returncode == 2
    assert "--data is not JSON" in not_json.stderr
    assert '"step.done" is reserved for' in ours.stderr
    assert 'no step "strat". Did you mean "start"?' in nowhere.stderr
    assert no_form.returncode == 1
    assert "does not wait for an answer" in no_form.stderr


def test_an_execution_that_has_ended_hears_nothing(place, begun):
    kill(begun("listens.yaml"))
    place.run("signal", "last")

    late = place.run("signal", "last", "--name", "item")

    assert late.returncode == 1
    assert "has ended (COMPLETED)" in late.stderr
