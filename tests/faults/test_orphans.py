"""Nothing that a task started goes on after the process that ran it was ended by a signal, and
nothing of it stays on disk.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from noetl.tools.processes.tree import descendants
from tests.examples.system import playbook
from tests.faults.runs import Place, is_running, kill
from tests.stopwatch import PATIENCE

SHELL = """
- step: start
  tool:
    kind: shell
    env: { FOLDER: "{{ workload.folder }}" }
    cmd: |
      sleep 300 & echo -n $! > $FOLDER/child.part
      echo -n $$ > $FOLDER/leader.part
      mv $FOLDER/child.part $FOLDER/child; mv $FOLDER/leader.part $FOLDER/leader
      wait
"""
PYTHON = """
- step: start
  tool:
    kind: python
    args: { folder: "{{ workload.folder }}" }
    code: |
      import os, subprocess, time
      child = subprocess.Popen(["sleep", "300"])
      for name, pid in (("child", child.pid), ("leader", os.getpid())):
          with open(f"{folder}/{name}.part", "w") as out:
              out.write(str(pid))
          os.rename(f"{folder}/{name}.part", f"{folder}/{name}")
      time.sleep(300)
"""


def until(holds, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="asks the system for processes")
@pytest.mark.parametrize("workflow", [SHELL, PYTHON], ids=["shell", "python"])
def test_what_a_task_started_dies_with_the_process_that_was_killed(workflow, tmp_path):
    place = Place(tmp_path)
    place.write("play.yaml", playbook(workflow, workload="folder: ''"))
    process = place.start("run", "play.yaml", "--set", f"folder={tmp_path}")
    files = [tmp_path / "leader", tmp_path / "child"]
    until(lambda: all(file.exists() for file in files))
    pids = [int(file.read_text()) for file in files]
    assert all(map(is_running, pids))

    kill(process)

    until(lambda: not any(map(is_running, pids)))


FILES = """
- step: start
  tool:
    - table: { kind: python, result_as: ndjson, code: "return [1, 2, 3]" }
    - wait:
        kind: shell
        env: { SECRET: canary, FOLDER: "{{ workload.folder }}" }
        cmds: ["echo canary > left", "touch $FOLDER/reached; sleep 300"]
"""
CONTAINER = """
- step: start
  tool: { kind: container, runtime: docker, image: any, env: { SECRET: canary } }
"""


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("workflow", [FILES, CONTAINER], ids=["files", "container"])
def test_what_a_task_had_on_disk_goes_with_the_process_that_was_ended(
    workflow, ended_by, tmp_path, monkeypatch
):
    temporary, programs, reached = (tmp_path / name for name in ("tmp", "bin", "reached"))
    temporary.mkdir()
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(f"#!/bin/sh\ntouch {reached}\nsleep 300\n")
    docker.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    place = Place(tmp_path)
    place.write("play.yaml", playbook(workflow, workload="folder: ''"))
    process = place.start("run", "play.yaml", "--set", f"folder={tmp_path}")
    until(reached.exists)
    assert list(temporary.iterdir())

    process.send_signal(ended_by)
    process.communicate(timeout=PATIENCE)

    assert process.returncode == -ended_by
    until(lambda: not list(temporary.iterdir()))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="asks the system for processes")
def test_nothing_stays_when_a_service_manager_asks_all_processes_to_end_at_once(
    tmp_path, monkeypatch
):
    temporary, reached = tmp_path / "tmp", tmp_path / "reached"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    place = Place(tmp_path)
    place.write("play.yaml", playbook(FILES, workload="folder: ''"))
    process = place.start("run", "play.yaml", "--set", f"folder={tmp_path}")
    until(reached.exists)
    everything = descendants(process.pid)
    assert len(everything) >= 3, "a spawner, a supervisor, and the program of the task"

    for pid in (process.pid, *everything):
        with suppress(ProcessLookupError):  # the one asked before it has ended it
            os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=PATIENCE)

    assert process.returncode == -signal.SIGTERM
    until(lambda: not any(map(is_running, everything)))
    assert not list(temporary.iterdir())


def test_a_command_can_still_be_asked_to_end(tmp_path):
    place = Place(tmp_path)
    place.write("play.yaml", playbook("- {step: start, tool: {kind: shell, cmd: 'kill $$'}}"))

    _, said = place.start("run", "play.yaml").communicate(timeout=PATIENCE)

    assert "SIGTERM" in said
