"""Nothing that a task started goes on after the process that ran it was killed with -9."""

from __future__ import annotations

import os
import time

import pytest

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
