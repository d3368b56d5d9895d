"""T34: ten thousand executions that wait cost no task, no query, and next to no memory."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.cli.conftest import clean_environment
from tests.examples.system import ROOT, temporary_folder

WAITING = 10_000
BYTES_MAX = 5 * 1024
SECONDS_MAX = 300


def test_t34_ten_thousand_waiting_executions_cost_next_to_nothing():
    with temporary_folder() as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.faults.many_waiting", str(folder), str(WAITING)],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )

    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found["more_tasks"] == 0
    assert found["statements_while_idle"] == []
    assert found["bytes_each"] <= BYTES_MAX
    assert found["results"] == found["expected"], "they are read again when something happens"
    assert found["waiting"] >= WAITING
