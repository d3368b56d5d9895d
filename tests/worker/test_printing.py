"""What a task prints can be read while the task still runs."""

from __future__ import annotations

import asyncio
import json
import os
from http.client import HTTPConnection

import pytest

from noetl.cli.views.lines import plain_line
from noetl.engine.pipeline.machine import Printed
from noetl.model.events import TaskDone, TaskLogged, encode
from noetl.secrets.masking import Mask
from noetl.store.log import EventRow
from noetl.worker.printing import NO_MORE, SHOWN_MAX, Printing
from tests.examples.system import on_bench, playbook
from tests.server.processes import serving, working
from tests.stopwatch import PATIENCE

SHELL = """
- step: start
  tool:
    kind: shell
    env: { GATE: "{{ workload.gate }}" }
    cmd: echo begun; cat $GATE; echo over
"""
PYTHON = """
- step: start
  tool:
    kind: python
    args: { gate: "{{ workload.gate }}" }
    code: |
      def main(gate):
          print("begun")
          with open(gate) as held:
              held.read()
          print("over")
"""
SECRET_IN_A_LOOP = """
- step: start
  loop: { in: [1], iterator: n }
  tool:
    kind: shell
    env: { TOKEN: "{{ keychain.door.value }}", GATE: "{{ workload.gate }}" }
    cmd: echo the token is $TOKEN; cat $GATE
"""


async def first_lines(bench, execution_id):
    """The first lines that the stream shows."""
    [row] = await bench.system.executions.next_events(
        execution_id, after=0, limit=1, wait=PATIENCE, types=("task.log",)
    )
    return (await bench.events(execution_id))[row.seq - 1]


def open_gate(gate):
    """Whoever reads the pipe gets to its end."""
    with open(gate, "w"):
        pass


def held_up(workflow, **sections):
    """Run a task that stops until its first lines were seen; those, and the ended run."""

    async def work(bench):
        gate = bench.folder / "gate"
        os.mkfifo(gate)
        execution_id = await bench.start(playbook(workflow, **sections), {"gate": str(gate)})
        seen = await first_lines(bench, execution_id)
        assert not (await bench.system.orchestrator.state(execution_id)).is_finished
        await asyncio.to_thread(open_gate, gate)
        return seen, await bench.ended(execution_id)

    return on_bench(work)


@pytest.mark.parametrize("workflow", [SHELL, PYTHON], ids=["shell", "python"])
def test_a_line_can_be_read_before_its_task_ends(workflow):
    seen, run = held_up(workflow)

    assert seen.text == "begun\n"
    assert run.document["status"] == "COMPLETED"
    assert "".join(fact.text for fact in run.of(TaskLogged)) == "begun\nover\n"
    assert [fact.log for fact in run.of(TaskDone)] == ["begun\nover\n"]


def test_s06_lines_of_a_running_task_show_no_secret():
    entry = "- { name: door, kind: static, value: open-sesame-4711 }"

    seen, run = held_up(SECRET_IN_A_LOOP, keychain=entry)

    assert seen.text == "the token is ***\n"
    assert seen.iteration == 0
    assert "open-sesame" not in repr(run)


def test_lines_of_a_worker_elsewhere_reach_the_stream_before_its_task_ends(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with serving(tmp_path) as server, working(tmp_path, server.url):
        execution_id = server.start(playbook(SHELL), {"gate": str(gate)})
        connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("GET", f"/api/executions/{execution_id}/stream")
        stream = connection.getresponse()
        said = []
        while b"event: task.log\n" not in said:
            said.append(stream.readline())
            assert said[-1], "the stream ended before a line was shown"
        shown = json.loads(stream.readline().removeprefix(b"data: "))
        open_gate(gate)
        rest = stream.read()
        connection.close()

    assert b"event: task.done\n" not in said
    assert shown["payload"]["text"] == "begun\n"
    assert shown["source"] == "worker"
    assert b"event: task.done\n" in rest


def test_a_task_that_prints_without_end_does_not_fill_the_log():
    printing = Printing(Mask(), lambda: None)

    for _ in range(10):
        printing("x" * (SHOWN_MAX // 4 - 1) + "\n")
    first = printing.taken()
    printing("more\n")

    assert len(first) == SHOWN_MAX + len(NO_MORE)
    assert first.endswith(f"x\n{NO_MORE}")
    assert printing.taken() == printing.rest() == ""


def test_a_line_is_shown_when_it_is_whole_or_its_task_is_over():
    printing = Printing(Mask(), lambda: None)

    printing("one\ntw")
    assert printing.taken() == "one\n"
    printing("o\nthree")
    assert printing.taken() == "two\n"
    assert printing.rest() == "three"


def test_a_short_task_has_its_lines_in_its_end_only():
    printing = Printing(Mask(), lambda: None)

    printing("one\n")

    assert printing.rest() == ""


def told(printing: Printing, text: str, *, taken: bool = True) -> None:
    printing(text)
    if taken:
        printing.taken()


def test_the_end_of_a_task_says_how_much_of_its_output_was_told_before():
    printing = Printing(Mask(), lambda: None)
    told(printing, "one\n", taken=False)
    assert (printing.rest(), printing.printed()) == ("", Printed("one\n", 0))

    told(printing, "two\nthr")
    assert (printing.rest(), printing.printed()) == ("thr", Printed("one\ntwo\nthr", 11))


@pytest.mark.parametrize("more", [1, SHOWN_MAX // 20, SHOWN_MAX // 10 - 1, SHOWN_MAX // 10])
def test_of_a_long_output_the_beginning_and_the_end_are_told_and_nothing_twice(more):
    mask = Mask()
    mask.add("secret")
    printing = Printing(mask, lambda: None)
    lines = [f"{n:09}\n" for n in range(SHOWN_MAX // 10 + more)]
    shown = ""
    for line in lines:
        printing(line)
        if line.endswith("77\n"):
            shown += printing.taken()

    shown += printing.rest()
    text, before = printing.printed()

    assert (shown + text[before:]).replace(NO_MORE, "") == "".join(lines)


def test_of_a_very_long_output_the_middle_is_left_out():
    printing = Printing(Mask(), lambda: None)
    printing("begin\n")
    shown = printing.taken()
    for n in range(30_000):
        printing(f"{n:09}\n")

    shown += printing.rest()
    text, before = printing.printed()

    assert shown.startswith("begin\n000000000\n")
    assert shown.endswith(NO_MORE)
    assert (text[:27], before) == ("[… earlier output dropped]\n", 0)
    assert text.endswith("000029999\n")


def test_a_secret_of_several_lines_is_held_back_until_it_is_known_to_be_one():
    mask = Mask()
    mask.add("first\nsecond\nthird")
    printing = Printing(mask, lambda: None)

    printing("key: first\nsecond\n")
    assert printing.taken() == "key: "
    printing("third\nover\n")
    assert printing.taken() == "***\nover\n"


def test_people_who_follow_without_a_live_view_read_the_lines_as_they_were_printed():
    fact = TaskLogged(at=0, step_run_id="r", step="load", task="copy", text="one\ntwo\n")
    row = EventRow(seq=1, type="task.log", at=0, step="load", step_run_id="r", body=encode(fact))

    assert plain_line(row, "1") == "load.copy says\n  one\n  two"
